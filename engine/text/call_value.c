/*
 * The type of an argument that is given as text.  The tool's schema names the types that it may
 * have; where it does not tell, a text that is JSON is taken as that.
 */

#include <string.h>
#include <strings.h>

#include "engine/text/call.h"

#define NESTING_LIMIT 4u        /* of alternatives in alternatives */

enum {
    TYPE_STRING = 1u << 0,
    TYPE_NUMBER = 1u << 1,
    TYPE_BOOLEAN = 1u << 2,
    TYPE_NULL = 1u << 3,
    TYPE_OBJECT = 1u << 4,
    TYPE_ARRAY = 1u << 5
};


static const json_t *member(const json_t *object, moe_string_t key)
{
    return key.size > 0 ? json_object_getn(object, key.data, key.size) : NULL;
}


static const json_t *find_schema(const json_t *tools, moe_string_t tool, moe_string_t parameter)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const json_t *name = json_object_get(function, "name");

        if (json_is_string(name) && json_string_length(name) == tool.size
            && memcmp(json_string_value(name), tool.data, tool.size) == 0)
        {
            return member(json_object_get(json_object_get(function, "parameters"), "properties"),
                          parameter);
        }
    }
    return NULL;
}


static unsigned named_type(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {
        { "string", TYPE_STRING }, { "integer", TYPE_NUMBER }, { "number", TYPE_NUMBER },
        { "boolean", TYPE_BOOLEAN }, { "null", TYPE_NULL }, { "object", TYPE_OBJECT },
        { "array", TYPE_ARRAY }
    };

    for (size_t i = 0; json_is_string(name) && i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(json_string_value(name), types[i].name) == 0) {
            return types[i].type;
        }
    }
    return 0;
}


static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    default:
        return TYPE_ARRAY;
    }
}


/* All types that a schema allows; 0 when it does not tell. */
static unsigned allowed_types(const json_t *schema, unsigned depth)
{
    static const char *const alternatives[] = { "anyOf", "oneOf" };
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum");
    unsigned types = named_type(type);

    for (size_t i = 0; i < json_array_size(type); i++) {
        types |= named_type(json_array_get(type, i));
    }
    for (size_t i = 0; types == 0 && i < json_array_size(values); i++) {
        types |= type_of(json_array_get(values, i));
    }
    for (size_t k = 0; depth < NESTING_LIMIT && k < 2; k++) {
        const json_t *list = json_object_get(schema, alternatives[k]);

        for (size_t i = 0; i < json_array_size(list); i++) {
            types |= allowed_types(json_array_get(list, i), depth + 1);
        }
    }
    return types;
}


static int append_dumped(const char *data, size_t size, void *context)
{
    moe_error_t error;

    return moe_buffer_append(context, data, size, &error);
}


int moe_call_append_string(moe_buffer_t *out, moe_string_t string, moe_error_t *error)
{
    json_t *json = json_stringn(string.size ? string.data : "", string.size);
    int rc;

    if (json == NULL) {         /* a mark: what is made of it is no JSON, and no call */
        return moe_buffer_append(out, "?", 1, error);
    }
    rc = json_dump_callback(json, append_dumped, out, JSON_ENCODE_ANY);
    json_decref(json);
    return rc == 0 ? 0 : moe_fail(error, MOE_LIMIT, "out of memory for the arguments of a call");
}


static int equals(moe_string_t text, const char *word)
{
    return text.size == strlen(word) && strncasecmp(text.data, word, text.size) == 0;
}


/* Python's spelling of what JSON has. */
static moe_string_t respell(moe_string_t text, unsigned types)
{
    static const struct {
        const char *word, *json;
        unsigned type;
    } words[] = {
        { "true", "true", TYPE_BOOLEAN }, { "false", "false", TYPE_BOOLEAN },
        { "none", "null", TYPE_NULL }, { "null", "null", TYPE_NULL }
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((types & words[i].type) && equals(text, words[i].word)) {
            return (moe_string_t) { words[i].json, (uint32_t) strlen(words[i].json) };
        }
    }
    return text;
}


int moe_call_value(const moe_call_text_t *text, moe_string_t tool, moe_string_t parameter,
                   moe_string_t value, moe_buffer_t *out)
{
    unsigned types = allowed_types(find_schema(text->tools, tool, parameter), 0);
    moe_string_t trimmed = respell(moe_call_trim(value.data, value.size), types);
    json_t *json = types == TYPE_STRING ? NULL : moe_call_json(trimmed);
    int as_json = json != NULL
                  && (!(types & TYPE_STRING)
                      || (types & type_of(json) & ~(unsigned) TYPE_STRING) != 0);

    json_decref(json);
    return as_json ? moe_buffer_append(out, trimmed.data, trimmed.size, text->error)
                   : moe_call_append_string(out, value, text->error);
}
