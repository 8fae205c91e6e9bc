
/*
 * The messages of a chat.  They go to the engine as they came: what is checked
 * here is what a template relies on, so that an error names a place in the
 * body.  Members that are not known may be there, as the wire format grows.
 */


#include "ngx_http_moe_module.h"
#include "http/openai_fields.h"


#define NGX_HTTP_MOE_MESSAGES_LIMIT   8192
#define NGX_HTTP_MOE_CALLS_LIMIT      1024     /* of one message */
#define NGX_HTTP_MOE_NAME_LIMIT       256      /* bytes */


static ngx_int_t ngx_http_moe_take_message(ngx_http_moe_parse_t *parse,
    size_t index, json_t *message);
static ngx_int_t ngx_http_moe_take_member(ngx_http_moe_parse_t *parse,
    size_t index, json_t *message, const char *member);
static ngx_int_t ngx_http_moe_take_content(ngx_http_moe_parse_t *parse,
    size_t index, json_t *content);
static ngx_int_t ngx_http_moe_take_calls(ngx_http_moe_parse_t *parse,
    size_t index, json_t *message, const char *role);
static ngx_int_t ngx_http_moe_take_call(ngx_http_moe_parse_t *parse,
    size_t index, size_t number, json_t *call);
static ngx_uint_t ngx_http_moe_is_name(json_t *value);


ngx_int_t
ngx_http_moe_take_messages(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t  i, n;

    n = json_array_size(value);

    if (!json_is_array(value) || n == 0 || n > NGX_HTTP_MOE_MESSAGES_LIMIT) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "messages must be a list of 1 to %d messages",
                   NGX_HTTP_MOE_MESSAGES_LIMIT);
    }

    for (i = 0; i < n; i++) {
        if (ngx_http_moe_take_message(parse, i, json_array_get(value, i))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    parse->prompt = value;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_message(ngx_http_moe_parse_t *parse, size_t index,
    json_t *message)
{
    json_t      *content;
    ngx_uint_t   i;
    const char  *role;

    static const char  *roles[] = { "system", "developer", "user",
                                    "assistant", "tool", NULL };
    static const char  *members[] = { "name", "tool_call_id",
                                      "reasoning_content", "reasoning", NULL };

    if (!json_is_object(message)) {
        return ngx_http_moe_parse_error_at(parse, NULL, "must be an object",
                                           "messages[%zu]", index);
    }

    role = json_string_value(json_object_get(message, "role"));

    for (i = 0; role && roles[i]; i++) {
        if (strcmp(role, roles[i]) == 0) {
            break;
        }
    }

    if (role == NULL || roles[i] == NULL) {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "must be one of system, developer, user, assistant, tool",
                   "messages[%zu].role", index);
    }

    for (i = 0; members[i]; i++) {
        if (ngx_http_moe_take_member(parse, index, message, members[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (strcmp(role, "tool") == 0
        && json_string_length(json_object_get(message, "tool_call_id")) == 0)
    {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "must be the id of the call that the message answers",
                   "messages[%zu].tool_call_id", index);
    }

    if (ngx_http_moe_take_calls(parse, index, message, role) != NGX_OK) {
        return NGX_ERROR;
    }

    content = json_object_get(message, "content");

    /* a message of tool calls needs no content of its own */

    if ((content == NULL || json_is_null(content))
        && json_array_size(json_object_get(message, "tool_calls")))
    {
        return NGX_OK;
    }

    return ngx_http_moe_take_content(parse, index, content);
}


/* A member of a message that must be a string, where it is. */

static ngx_int_t
ngx_http_moe_take_member(ngx_http_moe_parse_t *parse, size_t index,
    json_t *message, const char *member)
{
    json_t  *value;

    value = json_object_get(message, member);

    if (value == NULL || json_is_null(value) || json_is_string(value)) {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error_at(parse, NULL, "must be a string",
                                       "messages[%zu].%s", index, member);
}


static ngx_int_t
ngx_http_moe_take_content(ngx_http_moe_parse_t *parse, size_t index,
    json_t *content)
{
    size_t       i, n;
    json_t      *part;
    const char  *type;

    if (json_is_string(content)) {
        return NGX_OK;
    }

    n = json_array_size(content);

    if (n == 0) {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "must be a string or a list of parts",
                   "messages[%zu].content", index);
    }

    for (i = 0; i < n; i++) {
        part = json_array_get(content, i);
        type = json_string_value(json_object_get(part, "type"));

        if (type == NULL || strcmp(type, "text") != 0) {
            return ngx_http_moe_parse_error_at(parse, "unsupported_value",
                       "must be \"text\"", "messages[%zu].content[%zu].type",
                       index, i);
        }

        if (!json_is_string(json_object_get(part, "text"))) {
            return ngx_http_moe_parse_error_at(parse, NULL,
                       "must be a string", "messages[%zu].content[%zu].text",
                       index, i);
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_calls(ngx_http_moe_parse_t *parse, size_t index,
    json_t *message, const char *role)
{
    size_t   i;
    json_t  *calls, *call;

    call = json_object_get(message, "function_call");

    if (call && !json_is_null(call)) {
        return ngx_http_moe_parse_error_at(parse, "unsupported_value",
                   "is not supported: use tool_calls",
                   "messages[%zu].function_call", index);
    }

    calls = json_object_get(message, "tool_calls");

    if (calls == NULL || json_is_null(calls)) {
        return NGX_OK;
    }

    if (!json_is_array(calls)
        || json_array_size(calls) > NGX_HTTP_MOE_CALLS_LIMIT)
    {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "must be a list of at most "
                   ngx_value(NGX_HTTP_MOE_CALLS_LIMIT) " calls",
                   "messages[%zu].tool_calls", index);
    }

    if (json_array_size(calls) && strcmp(role, "assistant") != 0) {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "is only allowed in messages of the assistant",
                   "messages[%zu].tool_calls", index);
    }

    json_array_foreach(calls, i, call) {
        if (ngx_http_moe_take_call(parse, index, i, call) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_call(ngx_http_moe_parse_t *parse, size_t index,
    size_t number, json_t *call)
{
    json_t      *function;
    const char  *type, *must, *member;

    function = json_object_get(call, "function");
    type = json_string_value(json_object_get(call, "type"));

    if (!json_is_object(call)) {
        member = "";
        must = "must be an object";

    } else if (!ngx_http_moe_is_name(json_object_get(call, "id"))) {
        member = ".id";
        must = "must be a string of 1 to "
               ngx_value(NGX_HTTP_MOE_NAME_LIMIT) " bytes";

    } else if (type == NULL || strcmp(type, "function") != 0) {
        member = ".type";
        must = "must be \"function\"";

    } else if (!json_is_object(function)) {
        member = ".function";
        must = "must be an object";

    } else if (!ngx_http_moe_is_name(json_object_get(function, "name"))) {
        member = ".function.name";
        must = "must be a string of 1 to "
               ngx_value(NGX_HTTP_MOE_NAME_LIMIT) " bytes";

    } else if (!json_is_string(json_object_get(function, "arguments"))) {
        member = ".function.arguments";
        must = "must be a string";

    } else {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error_at(parse, NULL, must,
                                       "messages[%zu].tool_calls[%zu]%s",
                                       index, number, member);
}


/* What a model has called is not always one of its tools. */

static ngx_uint_t
ngx_http_moe_is_name(json_t *value)
{
    return json_is_string(value) && json_string_length(value) > 0
           && json_string_length(value) <= NGX_HTTP_MOE_NAME_LIMIT;
}
