/*
 * The text may be in several places: a completion's text, a chat's content, and what reasoning
 * models say before it.  Everything else that a delta may hold (tool calls) counts as part of the
 * answer, but has no text that could be compared.
 *
 * The events of a stream differ in little but their text, and parsing JSON would be half of what
 * the generator does.  So an event's bytes before and after its text are kept: where the next event
 * has the same ones and plain characters between them, it says the same but for the text.
 */

#include "t/bench/load/answer.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define TEXT_LIMIT (64u << 20)


/* The texts of an event: one, in nearly all of them. */
typedef struct {
    unsigned count;
    const char *key;                /* of the last */
    const json_t *value;
} texts_t;


void load_answer_begin(load_answer_t *answer)
{
    moe_buffer_t text = answer->text, frame = answer->frame;
    int keep_text = answer->keep_text;

    text.size = frame.size = 0;
    text.limit = TEXT_LIMIT;
    memset(answer, 0, sizeof(*answer));
    answer->text = text;
    answer->frame = frame;
    answer->keep_text = keep_text;
}


void load_answer_free(load_answer_t *answer)
{
    moe_buffer_free(&answer->text);
    moe_buffer_free(&answer->frame);
}


static int is_plain(const char *data, size_t size)
{
    size_t i = 0;

    while (i < size && data[i] >= 0x20 && data[i] < 0x7f && data[i] != '"' && data[i] != '\\') {
        i++;
    }
    return i == size;
}


/* Keeps an event to compare the next one with, if its text is to be found in its bytes for sure: as
 * the value of a key that occurs once. */
static void keep_frame(load_answer_t *answer, const char *data, size_t size, const texts_t *texts)
{
    const char *text = json_string_value(texts->value), *at;
    size_t length = json_string_length(texts->value);
    char key[64];
    int n = snprintf(key, sizeof(key), "\"%s\":\"", texts->key);
    moe_error_t ignored;

    answer->frame.size = 0;
    at = strstr(data, key);
    if (texts->count != 1 || at == NULL || at == data || !strchr("{,", at[-1])
        || strstr(at + 1, key))
    {
        return;
    }
    at += n;
    if ((size_t) (data + size - at) > length && is_plain(text, length)
        && memcmp(at, text, length) == 0 && at[length] == '"'
        && moe_buffer_append(&answer->frame, data, size, &ignored) == 0)
    {
        answer->text_at = (size_t) (at - data);
        answer->text_size = length;
    }
}


/* Does the event differ from the one before in nothing but its text?  Returns the text's size, or
 * 0. */
static size_t match_frame(const load_answer_t *answer, const char *data, size_t size)
{
    const moe_buffer_t *frame = &answer->frame;
    size_t before = answer->text_at, after = frame->size - before - answer->text_size;

    if (frame->size == 0 || size <= before + after || memcmp(data, frame->data, before) != 0
        || memcmp(data + size - after, frame->data + frame->size - after, after) != 0)
    {
        return 0;
    }
    size -= before + after;
    return is_plain(data + before, size) ? size : 0;
}


/* Adds a string member.  Returns whether it has text, or -1. */
static int add_text(load_answer_t *answer, const json_t *object, const char *key, texts_t *texts,
                    moe_error_t *error)
{
    const json_t *value = json_object_get(object, key);
    size_t size = json_string_length(value);

    if (size == 0) {
        return 0;
    }
    *texts = (texts_t) { texts->count + 1, key, value };
    if (answer->keep_text
        && moe_buffer_append(&answer->text, json_string_value(value), size, error) != 0)
    {
        return -1;
    }
    return 1;
}


/* `object` is a delta or a message. */
static int add_message(load_answer_t *answer, const json_t *object, texts_t *texts,
                       moe_error_t *error)
{
    static const char *const keys[] = { "reasoning_content", "reasoning", "content" };
    int any = json_array_size(json_object_get(object, "tool_calls")) > 0;

    for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        int rc = add_text(answer, object, keys[i], texts, error);

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


static int add_choice(load_answer_t *answer, const json_t *choice, texts_t *texts,
                      moe_error_t *error)
{
    const json_t *message = json_object_get(choice, "delta");

    if (message == NULL) {
        message = json_object_get(choice, "message");
    }
    copy_string(answer->finish, sizeof(answer->finish), json_object_get(choice, "finish_reason"));
    return message ? add_message(answer, message, texts, error)
                   : add_text(answer, choice, "text", texts, error);
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


/* The kind of an error is its type, or its code where it has no type: a word that is shown. */
static void name_failure(const json_t *failure, char *kind, size_t size)
{
    snprintf(kind, size, "error");
    copy_string(kind, size, json_object_get(failure, "code"));
    copy_string(kind, size, json_object_get(failure, "type"));
    for (char *at = kind; *at; at++) {
        if (*at <= 0x20 || *at >= 0x7f) {
            *at = '?';
        }
    }
}


static int read_object(load_answer_t *answer, const json_t *object, texts_t *texts,
                       moe_error_t *error)
{
    const json_t *failure = json_object_get(object, "error");

    if (json_is_object(failure)) {
        name_failure(failure, answer->failure, sizeof(answer->failure));
        return 0;
    }
    read_usage(answer, json_object_get(object, "usage"));
    return add_choice(answer, json_array_get(json_object_get(object, "choices"), 0), texts, error);
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
    size_t text_size = match_frame(answer, data, size);
    texts_t texts = { .count = 0 };
    json_t *object;
    int rc;

    if (answer->done) {
        return moe_fail(error, MOE_INVALID, "an event after [DONE]");
    }
    if (strcmp(data, "[DONE]") == 0) {
        answer->done = 1;
        return 0;
    }
    if (text_size > 0) {
        answer->pieces++;
        return answer->keep_text
                       && moe_buffer_append(&answer->text, data + answer->text_at, text_size,
                                            error) != 0
                   ? -1
                   : 1;
    }
    object = parse(data, size, error);
    if (object == NULL) {
        return -1;
    }
    rc = read_object(answer, object, &texts, error);
    if (rc == 1) {
        answer->pieces++;
        keep_frame(answer, data, size, &texts);
    }
    json_decref(object);
    return rc;
}


int load_answer_whole(load_answer_t *answer, const char *data, size_t size, moe_error_t *error)
{
    json_t *object = parse(data, size, error);
    texts_t texts = { .count = 0 };
    int rc = -1;

    if (object) {
        rc = read_object(answer, object, &texts, error);
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
