/*
 * The text may be in several places: a completion's text, a chat's content, and what reasoning
 * models say before it.  Everything else that a delta may hold (tool calls) counts as part of the
 * answer, but has no text that could be compared.
 */

#include "t/bench/load/answer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define TEXT_LIMIT (64u << 20)


void load_answer_begin(load_answer_t *answer)
{
    moe_buffer_t text = answer->text;
    int keep_text = answer->keep_text;

    text.size = 0;
    text.limit = TEXT_LIMIT;
    memset(answer, 0, sizeof(*answer));
    answer->text = text;
    answer->keep_text = keep_text;
}


void load_answer_free(load_answer_t *answer)
{
    moe_buffer_free(&answer->text);
}


/* Adds a string member.  Returns whether it has text, or -1. */
static int add_text(load_answer_t *answer, const json_t *object, const char *key,
                    moe_error_t *error)
{
    const json_t *value = json_object_get(object, key);
    size_t size = json_string_length(value);

    if (size > 0 && answer->keep_text
        && moe_buffer_append(&answer->text, json_string_value(value), size, error) != 0)
    {
        return -1;
    }
    return size > 0;
}


/* `object` is a delta or a message. */
static int add_message(load_answer_t *answer, const json_t *object, moe_error_t *error)
{
    static const char *const keys[] = { "reasoning_content", "reasoning", "content" };
    int any = json_array_size(json_object_get(object, "tool_calls")) > 0;

    for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        int rc = add_text(answer, object, keys[i], error);

        if (rc == -1) {
            return -1;
        }
        any |= rc;
    }
    return any;
}


static void copy_string(char *to, size_t size, const json_t *value)
{
    const char *text = json_string_value(value);

    if (text) {
        snprintf(to, size, "%s", text);
    }
}


static int add_choice(load_answer_t *answer, const json_t *choice, moe_error_t *error)
{
    const json_t *message = json_object_get(choice, "delta");

    if (message == NULL) {
        message = json_object_get(choice, "message");
    }
    copy_string(answer->finish, sizeof(answer->finish), json_object_get(choice, "finish_reason"));
    return message ? add_message(answer, message, error)
                   : add_text(answer, choice, "text", error);
}


static void read_usage(load_answer_t *answer, const json_t *usage)
{
    const json_t *prompt = json_object_get(usage, "prompt_tokens");
    const json_t *completion = json_object_get(usage, "completion_tokens");

    if (json_is_integer(prompt) && json_is_integer(completion) && json_integer_value(prompt) >= 0
        && json_integer_value(completion) >= 0)
    {
        answer->has_usage = 1;
        answer->prompt_tokens = (uint64_t) json_integer_value(prompt);
        answer->completion_tokens = (uint64_t) json_integer_value(completion);
    }
}


/* The kind of an error is its type, or its code where it has no type. */
static void name_failure(const json_t *failure, char *kind, size_t size)
{
    snprintf(kind, size, "error");
    copy_string(kind, size, json_object_get(failure, "code"));
    copy_string(kind, size, json_object_get(failure, "type"));
}


static int read_object(load_answer_t *answer, const json_t *object, moe_error_t *error)
{
    const json_t *failure = json_object_get(object, "error");

    if (json_is_object(failure)) {
        name_failure(failure, answer->failure, sizeof(answer->failure));
        return 0;
    }
    read_usage(answer, json_object_get(object, "usage"));
    return add_choice(answer, json_array_get(json_object_get(object, "choices"), 0), error);
}


static json_t *parse(const char *data, size_t size, moe_error_t *error)
{
    json_error_t where;
    json_t *object = json_loadb(data, size, 0, &where);

    if (!json_is_object(object)) {
        json_decref(object);
        moe_fail(error, MOE_INVALID, "not a JSON object: \"%.40s\"", data);
        return NULL;
    }
    return object;
}


int load_answer_event(load_answer_t *answer, const char *data, size_t size, moe_error_t *error)
{
    json_t *object;
    int rc;

    if (answer->done) {
        return moe_fail(error, MOE_INVALID, "an event after [DONE]");
    }
    if (strcmp(data, "[DONE]") == 0) {
        answer->done = 1;
        return 0;
    }
    object = parse(data, size, error);
    if (object == NULL) {
        return -1;
    }
    rc = read_object(answer, object, error);
    json_decref(object);
    answer->pieces += rc == 1;
    return rc;
}


int load_answer_whole(load_answer_t *answer, const char *data, size_t size, moe_error_t *error)
{
    json_t *object = parse(data, size, error);
    int rc = -1;

    if (object) {
        rc = read_object(answer, object, error);
        json_decref(object);
    }
    if (rc == -1) {
        return -1;
    }
    answer->pieces = 1;
    answer->done = 1;
    return 0;
}


void load_answer_refused(int status, const char *body, size_t size, char kind[LOAD_KIND])
{
    json_t *object = json_loadb(body, size, 0, NULL);
    const json_t *failure = json_object_get(object, "error");
    int n = snprintf(kind, LOAD_KIND, "http %d", status);

    if (json_is_object(failure)) {
        kind[n++] = ' ';
        name_failure(failure, kind + n, LOAD_KIND - (size_t) n);
    }
    json_decref(object);
}
