/*
 * Checks messages as clients send them before a template sees them, so that errors name a place in
 * the request and not a line of the template.
 */

#include "engine/text/chat_messages.h"

#include <string.h>

#include "engine/core/buffer.h"
#include "engine/text/template_string.h"


/* The text of a part {"type": "text", "text": ...}. */
static const json_t *part_text(const json_t *part, size_t message, size_t number,
                               moe_error_t *error)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");

    if (!json_is_string(type)) {
        moe_fail(error, MOE_INVALID, "messages[%zu].content[%zu].type: not a string", message,
                 number);
        return NULL;
    }
    if (strcmp(json_string_value(type), "text") != 0) {
        moe_fail(error, MOE_INVALID, "messages[%zu].content[%zu].type: '%.40s' is not supported",
                 message, number, json_string_value(type));
        return NULL;
    }
    if (!json_is_string(text)) {
        moe_fail(error, MOE_INVALID, "messages[%zu].content[%zu].text: not a string", message,
                 number);
        return NULL;
    }
    return text;
}


/* The texts of all parts, joined; NULL with the error. */
static json_t *join_parts_of(const json_t *parts, size_t message, moe_error_t *error)
{
    moe_buffer_t joined = { 0 };
    json_t *result = NULL;
    size_t i;

    for (i = 0; i < json_array_size(parts); i++) {
        const json_t *text = part_text(json_array_get(parts, i), message, i, error);

        if (text == NULL || (i > 0 && moe_buffer_append(&joined, "\n", 1, error) != 0)
            || moe_buffer_append(&joined, json_string_value(text), json_string_length(text),
                                 error) != 0)
        {
            break;
        }
    }
    if (i == json_array_size(parts)) {
        result = json_stringn(joined.size > 0 ? joined.data : "", joined.size);
        if (result == NULL) {
            moe_fail(error, MOE_LIMIT, "out of memory");
        }
    }
    moe_buffer_free(&joined);
    return result;
}


static int set_member(json_t *object, const char *name, json_t *value, moe_error_t *error)
{
    return json_object_set_new(object, name, value) == 0
           ? 0 : moe_fail(error, MOE_LIMIT, "out of memory");
}


static int has_calls(const json_t *message)
{
    return json_array_size(json_object_get(message, "tool_calls")) > 0;
}


static int check_content(json_t *message, size_t number, const moe_chat_form_t *form,
                         moe_error_t *error)
{
    json_t *content = json_object_get(message, "content"), *joined;

    if (content == NULL && has_calls(message)) {
        return set_member(message, "content", json_null(), error);
    }
    if (content == NULL || json_is_null(content) || json_is_string(content)) {
        return 0;
    }
    if (!json_is_array(content)) {
        return moe_fail(error, MOE_INVALID, "messages[%zu].content: not a string or an array",
                        number);
    }
    joined = join_parts_of(content, number, error);
    if (joined == NULL) {
        return -1;
    }
    if (form->takes_parts) {
        json_decref(joined);
        return 0;
    }
    return set_member(message, "content", joined, error);
}


/* Two texts as one, with an empty line between them; NULL with the error. */
static json_t *join_texts(const json_t *a, const json_t *b, moe_error_t *error)
{
    moe_buffer_t joined = { 0 };
    json_t *result = NULL;

    if (moe_buffer_append(&joined, json_string_value(a), json_string_length(a), error) == 0
        && moe_buffer_append(&joined, "\n\n", 2, error) == 0
        && moe_buffer_append(&joined, json_string_value(b), json_string_length(b), error) == 0)
    {
        result = json_stringn(joined.data, joined.size);
    }
    moe_buffer_free(&joined);
    return result;
}


/* Clients send reasoning_content, or reasoning; templates look for these or for thinking. */
static int name_reasoning(json_t *message, const moe_chat_form_t *form, moe_error_t *error)
{
    json_t *reasoning = json_object_get(message, "reasoning_content");

    if (!json_is_string(reasoning)) {
        reasoning = json_object_get(message, "reasoning");
    }
    if (!json_is_string(reasoning) || json_object_get(message, form->reasoning) != NULL) {
        return 0;
    }
    return set_member(message, form->reasoning, json_incref(reasoning), error);
}


static int check_message(json_t *message, size_t number, const moe_chat_form_t *form,
                         moe_error_t *error)
{
    const json_t *role = json_object_get(message, "role");

    if (!json_is_object(message)) {
        return moe_fail(error, MOE_INVALID, "messages[%zu]: not an object", number);
    }
    if (!json_is_string(role)) {
        return moe_fail(error, MOE_INVALID, "messages[%zu].role: missing or not a string", number);
    }
    if (!form->knows_developer && strcmp(json_string_value(role), "developer") == 0
        && set_member(message, "role", json_string("system"), error) != 0)
    {
        return -1;
    }
    return check_content(message, number, form, error) != 0
           ? -1 : name_reasoning(message, form, error);
}


json_t *moe_chat_messages_parse(const char *data, size_t size, const moe_chat_form_t *form,
                                moe_error_t *error)
{
    json_error_t where;
    json_t *messages = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);

    if (messages == NULL) {
        moe_fail(error, MOE_INVALID, "messages: %s", where.text);
        return NULL;
    }
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        moe_fail(error, MOE_INVALID, "messages: not an array with at least one message");
        json_decref(messages);
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (check_message(json_array_get(messages, i), i, form, error) != 0) {
            json_decref(messages);
            return NULL;
        }
    }
    return messages;
}


/* 1 when `holder`.arguments was a string and is an object now. */
static int parse_arguments(json_t *holder)
{
    const json_t *given = json_object_get(holder, "arguments");
    json_t *parsed;

    if (!json_is_string(given)) {
        return 0;
    }
    parsed = json_string_length(given) == 0
             ? json_object() : json_loadb(json_string_value(given), json_string_length(given),
                                          JSON_ALLOW_NUL, NULL);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return 0;
    }
    return json_object_set_new(holder, "arguments", parsed) == 0 ? 1 : -1;
}


int moe_chat_messages_parse_arguments(json_t *messages, moe_error_t *error)
{
    int replaced = 0;

    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");

        for (size_t j = 0; j < json_array_size(calls); j++) {
            json_t *call = json_array_get(calls, j), *function = json_object_get(call, "function");
            int status = parse_arguments(function != NULL ? function : call);

            if (status < 0) {
                return moe_fail(error, MOE_LIMIT, "out of memory");
            }
            replaced += status;
        }
    }
    return replaced;
}


int moe_chat_messages_fill_contents(json_t *messages, moe_error_t *error)
{
    int filled = 0;

    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);

        if (json_is_null(json_object_get(message, "content")) && has_calls(message)) {
            if (set_member(message, "content", json_string(""), error) != 0) {
                return -1;
            }
            filled++;
        }
    }
    return filled;
}


int moe_chat_messages_join_thoughts(json_t *messages, moe_error_t *error)
{
    int joined = 0;

    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const json_t *thinking = json_object_get(message, "thinking");
        const json_t *content = json_object_get(message, "content");

        if (has_calls(message) && json_string_length(thinking) > 0
            && json_string_length(content) > 0)
        {
            if (set_member(message, "thinking", join_texts(thinking, content, error), error) != 0
                || set_member(message, "content", json_string(""), error) != 0)
            {
                return -1;
            }
            joined++;
        }
    }
    return joined;
}


static int is_blank(const json_t *string)
{
    size_t size = json_string_length(string);

    return moe_trim_end(json_string_value(string), size) == 0;
}


const json_t *moe_chat_messages_final_text(const json_t *messages, moe_error_t *error)
{
    size_t last = json_array_size(messages) - 1;
    const json_t *message = json_array_get(messages, last);
    const json_t *text = json_object_get(message, "content");

    if (strcmp(json_string_value(json_object_get(message, "role")), "assistant") != 0) {
        moe_fail(error, MOE_INVALID, "messages[%zu].role: only a message of the assistant can be "
                 "continued", last);
        return NULL;
    }
    if (json_is_array(text)) {
        text = json_object_get(json_array_get(text, json_array_size(text) - 1), "text");
    }
    if (!json_is_string(text) || is_blank(text)) {
        moe_fail(error, MOE_INVALID, "messages[%zu].content: no text to continue", last);
        return NULL;
    }
    return text;
}
