/*
 * Calls whose arguments are tags around plain text.  What type a value has is in the tool's schema
 * only (call_value.c).
 *
 *     qwen3_coder   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...
 *                   </function>\n</tool_call>
 *     minimax       <minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">VALUE
 *                   </parameter>\n...</invoke>\n...</minimax:tool_call>
 *     glm           <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n...
 *                   </tool_call>
 *     hy3           the same with a suffix to all tags, and a tag behind the name
 */

#include <string.h>

#include "engine/text/answer_internal.h"

typedef struct {
    const char *call, *parameter;           /* up to the name */
    const char *name_end;
    const char *parameter_end, *call_end;
} tags_t;

/* What is left of a text. */
typedef moe_string_t rest_t;


static void skip(rest_t *rest, size_t size)
{
    rest->data += size;
    rest->size -= (uint32_t) size;
}


static void skip_space(rest_t *rest)
{
    while (rest->size > 0 && moe_is_json_space(rest->data[0])) {
        skip(rest, 1);
    }
}


static int skip_tag(rest_t *rest, const char *tag)
{
    size_t size = strlen(tag);

    if (rest->size < size || memcmp(rest->data, tag, size) != 0) {
        return 0;
    }
    skip(rest, size);
    return 1;
}


/* What comes before a tag, which is skipped too; 0 when it does not come. */
static int skip_to(rest_t *rest, const char *tag, moe_string_t *before)
{
    const char *found = memmem(rest->data, rest->size, tag, strlen(tag));

    if (found == NULL) {
        return 0;
    }
    *before = (moe_string_t) { rest->data, (uint32_t) (found - rest->data) };
    skip(rest, before->size + strlen(tag));
    return 1;
}


/* A value ends with the first closing tag that another tag follows: values may quote tags. */
static int skip_value(rest_t *rest, const tags_t *tags, moe_string_t *value)
{
    const char *start = rest->data;
    moe_string_t part;

    while (skip_to(rest, tags->parameter_end, &part)) {
        rest_t next = *rest;

        skip_space(&next);
        if (skip_tag(&next, tags->parameter) || skip_tag(&next, tags->call_end)) {
            *value = (moe_string_t) { start, (uint32_t) (part.data + part.size - start) };
            return 1;
        }
    }
    return 0;
}


/* The line breaks next to the tags are not the value's. */
static moe_string_t without_breaks(moe_string_t value)
{
    if (value.size > 0 && value.data[0] == '\n') {
        skip(&value, 1);
    }
    if (value.size > 0 && value.data[value.size - 1] == '\n') {
        value.size--;
    }
    return value;
}


static int begin_arguments(const moe_call_text_t *text)
{
    text->scratch->size = 0;
    return moe_buffer_append(text->scratch, "{", 1, text->error);
}


static int add_argument(const moe_call_text_t *text, moe_string_t tool, moe_string_t key,
                        moe_string_t value)
{
    moe_buffer_t *out = text->scratch;

    key = moe_call_trim(key.data, key.size);
    return (out->size > 1 && moe_buffer_append(out, ",", 1, text->error) != 0)
           || moe_call_append_string(out, key, text->error) != 0
           || moe_buffer_append(out, ":", 1, text->error) != 0
           || moe_call_value(text, tool, key, value, out) != 0 ? -1 : 1;
}


static int end_arguments(const moe_call_text_t *text, moe_string_t tool)
{
    moe_buffer_t *out = text->scratch;

    if (moe_buffer_append(out, "}", 1, text->error) != 0) {
        return -1;
    }
    return moe_call_add(text, (moe_string_t) { .size = 0 }, tool,
                        (moe_string_t) { out->data, (uint32_t) out->size });
}


/* One call, behind its first tag. */
static int parse_tagged_call(const moe_call_text_t *text, const tags_t *tags, rest_t *rest)
{
    moe_string_t tool, key, value;
    int rc = skip_to(rest, tags->name_end, &tool) ? begin_arguments(text) == 0 ? 1 : -1 : 0;

    tool = rc == 1 ? moe_call_trim(tool.data, tool.size) : tool;
    while (rc == 1) {
        skip_space(rest);
        if (skip_tag(rest, tags->call_end)) {
            return end_arguments(text, tool);
        }
        if (!skip_tag(rest, tags->parameter) || !skip_to(rest, tags->name_end, &key)
            || !skip_value(rest, tags, &value))
        {
            return 0;
        }
        rc = add_argument(text, tool, key, without_breaks(value));
    }
    return rc;
}


static int parse_tagged(const moe_call_text_t *text, const tags_t *tags)
{
    rest_t rest = { text->data, (uint32_t) text->size };
    int rc, calls = 0;

    for (;;) {
        skip_space(&rest);
        if (rest.size == 0) {
            return calls > 0;
        }
        rc = skip_tag(&rest, tags->call) ? parse_tagged_call(text, tags, &rest) : 0;
        if (rc != 1) {
            return rc;
        }
        calls++;
    }
}


static int parse_qwen3_coder(const moe_call_text_t *text)
{
    static const tags_t tags = {
        "<function=", "<parameter=", ">", "</parameter>", "</function>"
    };

    return parse_tagged(text, &tags);
}


const moe_call_style_t moe_call_qwen3_coder = {
    .name = "qwen3_coder",
    .sign = "<function=",
    .markers = { "<tool_call>", "</tool_call>" },
    .parse = parse_qwen3_coder
};


static int parse_minimax(const moe_call_text_t *text)
{
    static const tags_t tags = {
        "<invoke name=\"", "<parameter name=\"", "\">", "</parameter>", "</invoke>"
    };

    return parse_tagged(text, &tags);
}


const moe_call_style_t moe_call_minimax = {
    .name = "minimax",
    .sign = "<minimax:tool_call>",
    .markers = { "<minimax:tool_call>", "</minimax:tool_call>" },
    .parse = parse_minimax
};


/* The first four of a style's own markers, and hy3's last. */
enum { KEY = 2, KEY_END, VALUE, VALUE_END, CALLS, CALLS_END, NAME_END };


/* Whether nothing but white space comes between *at and marker `i`, behind which it moves. */
static int skip_marker(const moe_call_text_t *text, size_t *at, unsigned i)
{
    size_t end, found = moe_call_find(text, *at, i, &end);

    if (found == SIZE_MAX || moe_call_trim(text->data + *at, found - *at).size > 0) {
        return 0;
    }
    *at = end;
    return 1;
}


/* What lies between *at and marker `i`, behind which it moves. */
static int take_text(const moe_call_text_t *text, size_t *at, unsigned i, moe_string_t *before)
{
    size_t end, found = moe_call_find(text, *at, i, &end);

    if (found == SIZE_MAX) {
        return 0;
    }
    *before = (moe_string_t) { text->data + *at, (uint32_t) (found - *at) };
    *at = end;
    return 1;
}


/* Keys and values behind the tool's name. */
static int parse_pairs(const moe_call_text_t *text, moe_string_t tool, size_t at)
{
    moe_string_t key, value;
    int rc = begin_arguments(text) == 0 ? 1 : -1;

    tool = moe_call_trim(tool.data, tool.size);
    while (rc == 1 && moe_call_trim(text->data + at, text->size - at).size > 0) {
        if (!skip_marker(text, &at, KEY) || !take_text(text, &at, KEY_END, &key)
            || !skip_marker(text, &at, VALUE) || !take_text(text, &at, VALUE_END, &value))
        {
            return 0;
        }
        rc = add_argument(text, tool, key, value);
    }
    return rc == 1 ? end_arguments(text, tool) : rc;
}


static int parse_glm(const moe_call_text_t *text)
{
    size_t end, at = moe_call_find(text, 0, KEY, &end);

    if (!text->closed) {
        return 0;
    }
    at = at == SIZE_MAX ? text->size : at;
    return parse_pairs(text, (moe_string_t) { text->data, (uint32_t) at }, at);
}


const moe_call_style_t moe_call_glm = {
    .name = "glm",
    .sign = "<arg_key>",
    .markers = { "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                 "</arg_value>" },
    .parse = parse_glm
};


static int parse_hy3(const moe_call_text_t *text)
{
    moe_string_t tool;
    size_t at = 0;

    return text->closed && take_text(text, &at, NAME_END, &tool) ? parse_pairs(text, tool, at) : 0;
}


const moe_call_style_t moe_call_hy3 = {
    .name = "hy3",
    .sign = "<tool_sep:opensource>",
    .markers = { "<tool_call:opensource>", "</tool_call:opensource>", "<arg_key:opensource>",
                 "</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>",
                 "<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_sep:opensource>" },
    .between = 1u << CALLS | 1u << CALLS_END,
    .parse = parse_hy3
};
