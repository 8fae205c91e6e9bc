/*
 * Calls whose arguments are written as JSON.
 *
 *     hermes      <tool_call>{"name": NAME, "arguments": {...}}</tool_call>      Hermes, Qwen
 *     mistral     [TOOL_CALLS][{"name": NAME, "arguments": {...}}, ...]
 *                 [TOOL_CALLS]NAME[ARGS]{...}, with [CALL_ID]ID before [ARGS] or not
 *     deepseek    <tool_call_begin>function<tool_sep>NAME\n```json\n{...}\n```<tool_call_end>
 *                 <tool_call_begin>NAME<tool_sep>{...}<tool_call_end>, as of V3.1
 *     kimi        <|tool_call_begin|>functions.NAME:N<|tool_call_argument_begin|>{...}
 *                 <|tool_call_end|>
 *
 * Arguments are handed on as the model wrote them: jansson says whether a text is JSON, a walk over
 * text that is known to be JSON finds where the values in it are.
 */

#include <stdio.h>
#include <string.h>

#include "engine/text/answer_internal.h"


static size_t skip_space(moe_string_t text, size_t at)
{
    while (at < text.size && moe_is_json_space(text.data[at])) {
        at++;
    }
    return at;
}


/* Behind the value at `at` of a valid JSON text. */
static size_t skip_value(moe_string_t text, size_t at)
{
    moe_json_scan_t scan = { .begun = 1 };

    if (text.data[at] != '{' && text.data[at] != '[' && text.data[at] != '"') {
        while (at < text.size && strchr(",]}", text.data[at]) == NULL
               && !moe_is_json_space(text.data[at]))
        {
            at++;
        }
        return at;
    }
    while (at < text.size) {
        int ends = moe_json_scan(&scan, text.data[at++]);

        if (ends || (scan.depth == 0 && !scan.in_string)) {
            break;
        }
    }
    return at;
}


/* The next value of a valid array or object, of which *at is behind the bracket or a value, and of
 * an object its key; 0 at the end. */
static int next_value(moe_string_t text, size_t *at, moe_string_t *key, moe_string_t *value)
{
    size_t start = skip_space(text, *at);

    if (text.data[start] == ',') {
        start = skip_space(text, start + 1);
    }
    if (text.data[start] == ']' || text.data[start] == '}') {
        return 0;
    }
    if (key != NULL) {
        *at = skip_value(text, start);
        *key = (moe_string_t) { text.data + start + 1, (uint32_t) (*at - start - 2) };
        start = skip_space(text, skip_space(text, *at) + 1);
    }
    *at = skip_value(text, start);
    *value = (moe_string_t) { text.data + start, (uint32_t) (*at - start) };
    return 1;
}


static int is_key(moe_string_t key, const char *name)
{
    return key.size == strlen(name) && memcmp(key.data, name, key.size) == 0;
}


/* An object of a name and arguments, or parameters; `json`: the same, parsed. */
static int add_object(const moe_call_text_t *text, moe_string_t object, const json_t *json)
{
    const json_t *name = json_object_get(json, "name");
    moe_string_t key, value, arguments = { .size = 0 };
    size_t at = 1, known = 1, most;

    if (!json_is_string(name)) {
        return 0;
    }
    while (next_value(object, &at, &key, &value)) {
        if (is_key(key, "arguments") || is_key(key, "parameters")) {
            arguments = value;
            known++;
        }
    }
    /* a key that is spelt in another way would be lost */
    most = 1u + (json_object_get(json, "arguments") != NULL)
           + (json_object_get(json, "parameters") != NULL);
    if (known != most || known > 2) {
        return 0;
    }
    return moe_call_add(text, (moe_string_t) { .size = 0 },
                        (moe_string_t) { json_string_value(name),
                                         (uint32_t) json_string_length(name) }, arguments);
}


/* An object, or an array of them. */
static int parse_objects(const moe_call_text_t *text)
{
    moe_string_t whole = moe_call_trim(text->data, text->size), object;
    json_t *json = moe_call_json(whole);
    size_t at = 1;
    int rc = 0;

    if (json_is_object(json)) {
        rc = add_object(text, whole, json);
    } else if (json_array_size(json) > 0) {
        rc = 1;
        for (size_t i = 0; rc == 1 && next_value(whole, &at, NULL, &object); i++) {
            const json_t *item = json_array_get(json, i);

            rc = json_is_object(item) ? add_object(text, object, item) : 0;
        }
    }
    json_decref(json);
    return rc;
}


const moe_call_style_t moe_call_hermes = {
    .name = "hermes",
    .sign = "<tool_call>",
    .markers = { "<tool_call>", "</tool_call>" },
    .json = 1,
    .parse = parse_objects
};


enum { MISTRAL_ARGUMENTS = 2, MISTRAL_ID };


static int parse_mistral(const moe_call_text_t *text)
{
    moe_string_t whole = moe_call_trim(text->data, text->size);
    size_t name_end, id_end = 0, end, id, arguments;

    if (whole.size == 0 || whole.data[0] == '[' || whole.data[0] == '{') {
        return parse_objects(text);
    }
    arguments = moe_call_find(text, 0, MISTRAL_ARGUMENTS, &end);
    if (arguments == SIZE_MAX) {
        const char *brace = memchr(text->data, '{', text->size);

        if (brace == NULL) {
            return 0;
        }
        arguments = end = (size_t) (brace - text->data);
    }
    if (moe_call_trim(text->data + end, text->size - end).size == 0) {
        return 0;
    }
    id = moe_call_find(text, 0, MISTRAL_ID, &id_end);
    name_end = id < arguments ? id : arguments;
    return moe_call_add(text, (moe_string_t) { .size = 0 },
                        (moe_string_t) { text->data, (uint32_t) name_end },
                        (moe_string_t) { text->data + end, (uint32_t) (text->size - end) });
}


const moe_call_style_t moe_call_mistral = {
    .name = "mistral",
    .sign = "[TOOL_CALLS]",
    .markers = { "[TOOL_CALLS]", "", "[ARGS]", "[CALL_ID]" },
    .json = 1,
    .parse = parse_mistral
};


enum { DEEPSEEK_SEPARATOR = 4 };


/* NAME\n```json\n{...}\n``` */
static int add_fenced(const moe_call_text_t *text, moe_string_t fenced)
{
    static const char opening[] = "```json", closing[] = "```";
    const char *line = memchr(fenced.data, '\n', fenced.size);
    moe_string_t rest;

    if (line == NULL) {
        return 0;
    }
    rest = moe_call_trim(line, (size_t) (fenced.data + fenced.size - line));
    if (rest.size < sizeof(opening) - 1 + sizeof(closing) - 1
        || memcmp(rest.data, opening, sizeof(opening) - 1) != 0
        || memcmp(rest.data + rest.size - 3, closing, sizeof(closing) - 1) != 0)
    {
        return 0;
    }
    return moe_call_add(text, (moe_string_t) { .size = 0 },
                        (moe_string_t) { fenced.data, (uint32_t) (line - fenced.data) },
                        (moe_string_t) { rest.data + sizeof(opening) - 1,
                                         rest.size - (uint32_t) (sizeof(opening)
                                                                 + sizeof(closing) - 2) });
}


static int parse_deepseek(const moe_call_text_t *text)
{
    size_t end, at = moe_call_find(text, 0, DEEPSEEK_SEPARATOR, &end);
    moe_string_t rest;

    if (at == SIZE_MAX) {
        return 0;
    }
    rest = moe_call_trim(text->data + end, text->size - end);
    if (rest.size == 0 ? text->closed : rest.data[0] == '{') {
        return moe_call_add(text, (moe_string_t) { .size = 0 },
                            (moe_string_t) { text->data, (uint32_t) at }, rest);
    }
    return add_fenced(text, rest);
}


const moe_call_style_t moe_call_deepseek = {
    .name = "deepseek",
    .sign = "<｜tool▁call▁begin｜>",
    .markers = { "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>",
                 "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>" },
    .between = 1u << 2 | 1u << 3,
    .json = 1,
    .parse = parse_deepseek
};


enum { KIMI_ARGUMENTS = 4 };


/* The model's own id, which it must see again in later turns; its number, if it is none or not
 * larger than the last, becomes the next.  *name is the part of it that is one. */
static int kimi_id(moe_string_t given, uint64_t *next_number, moe_string_t *name, char *id,
                   size_t size)
{
    static const char prefix[] = "functions.";
    uint64_t number = 0, scale = 1;
    uint32_t end = given.size;

    *name = given;
    while (end > 0 && given.size - end < 9 && given.data[end - 1] >= '0'
           && given.data[end - 1] <= '9')
    {
        number += scale * (uint64_t) (given.data[--end] - '0');
        scale *= 10;
    }
    if (end > 0 && end < given.size && given.data[end - 1] == ':') {
        name->size = end - 1;
    } else {
        number = 0;
    }
    if (name->size >= sizeof(prefix) && memcmp(name->data, prefix, sizeof(prefix) - 1) == 0) {
        name->data += sizeof(prefix) - 1;
        name->size -= (uint32_t) sizeof(prefix) - 1;
    }
    if (name->size > MOE_CALL_NAME_LIMIT) {
        return 0;
    }
    number = number >= *next_number ? number : *next_number;
    *next_number = number + 1;
    return snprintf(id, size, "%s%.*s:%llu", prefix, (int) name->size, name->data,
                    (unsigned long long) number);
}


static int parse_kimi(const moe_call_text_t *text)
{
    size_t end, at = moe_call_find(text, 0, KIMI_ARGUMENTS, &end);
    char id[MOE_CALL_NAME_LIMIT + 40];
    moe_string_t name;
    int id_size;

    if (at == SIZE_MAX || (end == text->size && !text->closed)) {
        return 0;
    }
    id_size = kimi_id(moe_call_trim(text->data, at), text->next_number, &name, id, sizeof(id));
    return moe_call_add(text, (moe_string_t) { id, (uint32_t) id_size }, name,
                        (moe_string_t) { text->data + end, (uint32_t) (text->size - end) });
}


const moe_call_style_t moe_call_kimi = {
    .name = "kimi",
    .sign = "<|tool_call_begin|>",
    .markers = { "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>",
                 "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>" },
    .between = 1u << 2 | 1u << 3,
    .json = 1,
    .parse = parse_kimi
};
