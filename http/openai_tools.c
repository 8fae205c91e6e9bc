
/*
 * What a chat says of tools.  A list that is fit to be shown to a model goes to
 * the engine; a demand that nothing would enforce, such as a call that must be
 * made or arguments that must follow a schema, is an error.
 */


#include "ngx_http_moe_module.h"
#include "http/openai_fields.h"


#define NGX_HTTP_MOE_TOOLS_LIMIT      1024
#define NGX_HTTP_MOE_FUNCTION_NAME    64       /* bytes */
#define NGX_HTTP_MOE_SCHEMA_DEPTH     64


static ngx_int_t ngx_http_moe_take_tool(ngx_http_moe_parse_t *parse,
    size_t index, json_t *tool);
static ngx_int_t ngx_http_moe_take_function(ngx_http_moe_parse_t *parse,
    size_t index, json_t *function);
static ngx_int_t ngx_http_moe_take_parameters(ngx_http_moe_parse_t *parse,
    size_t index, json_t *function);


ngx_int_t
ngx_http_moe_take_tools(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t   i;
    json_t  *tool;

    if (!json_is_array(value)
        || json_array_size(value) > NGX_HTTP_MOE_TOOLS_LIMIT)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "tools must be a list of at most %d tools",
                   NGX_HTTP_MOE_TOOLS_LIMIT);
    }

    json_array_foreach(value, i, tool) {
        if (ngx_http_moe_take_tool(parse, i, tool) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (i > 0) {
        parse->tools = json_incref(value);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_tool(ngx_http_moe_parse_t *parse, size_t index,
    json_t *tool)
{
    json_t      *function;
    const char  *type;

    if (!json_is_object(tool)) {
        return ngx_http_moe_parse_error_at(parse, NULL, "must be an object",
                                           "tools[%zu]", index);
    }

    type = json_string_value(json_object_get(tool, "type"));

    if (type == NULL || strcmp(type, "function") != 0) {
        return ngx_http_moe_parse_error_at(parse,
                   type ? "unsupported_value" : NULL, "must be \"function\"",
                   "tools[%zu].type", index);
    }

    function = json_object_get(tool, "function");

    if (!json_is_object(function)) {
        return ngx_http_moe_parse_error_at(parse, NULL, "must be an object",
                                           "tools[%zu].function", index);
    }

    return ngx_http_moe_take_function(parse, index, function);
}


static ngx_int_t
ngx_http_moe_take_function(ngx_http_moe_parse_t *parse, size_t index,
    json_t *function)
{
    json_t  *description, *strict;

    if (!ngx_http_moe_made_of(json_object_get(function, "name"),
                              NGX_HTTP_MOE_ALPHANUMERIC "_-",
                              NGX_HTTP_MOE_FUNCTION_NAME))
    {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "must be a string of 1 to "
                   ngx_value(NGX_HTTP_MOE_FUNCTION_NAME)
                   " letters, digits, \"_\" or \"-\"",
                   "tools[%zu].function.name", index);
    }

    description = json_object_get(function, "description");

    if (description && !json_is_null(description)
        && !json_is_string(description))
    {
        return ngx_http_moe_parse_error_at(parse, NULL, "must be a string",
                   "tools[%zu].function.description", index);
    }

    strict = json_object_get(function, "strict");

    if (strict && !json_is_null(strict) && !json_is_boolean(strict)) {
        return ngx_http_moe_parse_error_at(parse, NULL,
                   "must be true or false", "tools[%zu].function.strict",
                   index);
    }

    if (json_is_true(strict)) {
        return ngx_http_moe_parse_error_at(parse, "unsupported_value",
                   "is not supported: nothing holds the arguments of a call "
                   "to their schema", "tools[%zu].function.strict", index);
    }

    return ngx_http_moe_take_parameters(parse, index, function);
}


/* A function without parameters takes none: templates are shown so. */

static ngx_int_t
ngx_http_moe_take_parameters(ngx_http_moe_parse_t *parse, size_t index,
    json_t *function)
{
    json_t      *parameters, *type;
    const char  *must;

    parameters = json_object_get(function, "parameters");

    if (parameters == NULL || json_is_null(parameters)) {
        parameters = json_pack("{s:s, s:{}}", "type", "object", "properties");

        if (json_object_set_new(function, "parameters", parameters) != 0) {
            return ngx_http_moe_parse_error(parse, NULL, "tools", "no memory");
        }

        return NGX_OK;
    }

    type = json_object_get(parameters, "type");

    if (!json_is_object(parameters)) {
        must = "must be an object";

    } else if (type && (!json_is_string(type)
                        || strcmp(json_string_value(type), "object") != 0))
    {
        must = "must be a schema of type \"object\"";

    } else if (json_object_get(parameters, "properties")
               && !json_is_object(json_object_get(parameters, "properties")))
    {
        must = "must be a schema whose properties are an object";

    } else if (ngx_http_moe_deeper(parameters, NGX_HTTP_MOE_SCHEMA_DEPTH)) {
        must = "must not be nested more than "
               ngx_value(NGX_HTTP_MOE_SCHEMA_DEPTH) " levels deep";

    } else {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error_at(parse, NULL, must,
                                       "tools[%zu].function.parameters",
                                       index);
}


ngx_int_t
ngx_http_moe_take_tool_choice(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    const char  *choice;

    choice = json_string_value(value);

    if (choice && strcmp(choice, "auto") == 0) {
        return NGX_OK;
    }

    if (choice && strcmp(choice, "none") == 0) {
        parse->no_tools = 1;
        return NGX_OK;
    }

    if ((choice && strcmp(choice, "required") == 0) || json_is_object(value)) {
        return ngx_http_moe_parse_error(parse, "unsupported_value",
                   field->name, "tool_choice must be \"auto\" or \"none\": "
                   "nothing makes the model call a tool");
    }

    return ngx_http_moe_parse_error(parse, NULL, field->name,
                                    "tool_choice must be \"auto\" or \"none\"");
}


/* The names that tools and tool_choice had before. */

ngx_int_t
ngx_http_moe_take_functions(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (json_is_array(value) && json_array_size(value) == 0) {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error(parse, "unsupported_value", field->name,
                                    "functions is not supported: use tools");
}


ngx_int_t
ngx_http_moe_take_function_call(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    const char  *choice;

    choice = json_string_value(value);

    if (choice
        && (strcmp(choice, "none") == 0 || strcmp(choice, "auto") == 0))
    {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error(parse, "unsupported_value", field->name,
                                    "function_call is not supported: use "
                                    "tool_choice");
}
