/*
 * The type of an argument that is given as text.  The tool's schema names the types that it may
 * have; where it does not tell, a text that is JSON is taken as that.
 */

#include <string.h>
#include <strings.h>

#include "engine/text/call.h"

#define NESTING_LIMIT 2u        /* of alternatives in alternatives */
#define LIST_LIMIT 16u          /* of a list, what is looked at */

enum {
    TYPE_STRING = 1u << 0,
    TYPE_NUMBER = 1u << 1,
    TYPE_BOOLEAN = 1u << 2,
    TYPE_NULL = 1u << 3,
    TYPE_OBJECT = 1u << 4,
    TYPE_ARRAY = 1u << 5
};


/* object[key]; NULL also for a key that no schema has. */
static const json_t *member(const json_t *object, moe_string_t key)
{
    char name[MOE_CALL_NAME_LIMIT + 1];

    if (key.size > MOE_CALL_NAME_LIMIT || memchr(key.data, '\0', key.size) != NULL) {
        return NULL;
    }
    memcpy(name, key.data, key.size);
    name[key.size] = '\0';
    return json_object_get(object, name);
}


/* Adds a tool; the first one of a name counts. */
static int add_tool(json_t *schemas, const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name");
    json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");

    if (!json_is_string(name) || properties == NULL
        || json_object_get(schemas, json_string_value(name)) != NULL)
    {
        return 0;
    }
    return json_object_set(schemas, json_string_value(name), properties);
}


json_t *moe_call_schemas(moe_string_t tools, moe_error_t *error)
{
    json_error_t where;
    json_t *list = json_loadb(tools.data, tools.size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                              &where);
    json_t *schemas = json_object();

    if (list == NULL || schemas == NULL) {
        moe_fail(error, list == NULL ? MOE_INVALID : MOE_LIMIT, "tools: %s",
                 list == NULL ? where.text : "out of memory");
        goto failed;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (add_tool(schemas, json_array_get(list, i)) != 0) {
            moe_fail(error, MOE_LIMIT, "tools: out of memory");
            goto failed;
        }
    }
    json_decref(list);
    return schemas;

failed:
    json_decref(list);
    json_decref(schemas);
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


static size_t bounded(const json_t *list)
{
    size_t size = json_array_size(list);

    return size < LIST_LIMIT ? size : LIST_LIMIT;
}


/* All types that a schema allows; 0 when it does not tell. */
static unsigned allowed_types(const json_t *schema, unsigned depth)
{
    static const char *const alternatives[] = { "anyOf", "oneOf" };
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum");
    unsigned types = named_type(type);

    for (size_t i = 0; i < bounded(type); i++) {
        types |= named_type(json_array_get(type, i));
    }
    for (size_t i = 0; type == NULL && i < bounded(values); i++) {
        types |= type_of(json_array_get(values, i));
    }
    for (size_t k = 0; depth < NESTING_LIMIT && k < 2; k++) {
        const json_t *list = json_object_get(schema, alternatives[k]);

        for (size_t i = 0; i < bounded(list); i++) {
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
    unsigned types = allowed_types(member(member(text->schemas, tool), parameter), 0);
    moe_string_t trimmed = respell(moe_call_trim(value.data, value.size), types);
    json_t *json = types == TYPE_STRING ? NULL : moe_call_json(trimmed);
    int as_json = json != NULL
                  && (!(types & TYPE_STRING)
                      || (types & type_of(json) & ~(unsigned) TYPE_STRING) != 0);

    json_decref(json);
    return as_json ? moe_buffer_append(out, trimmed.data, trimmed.size, text->error)
                   : moe_call_append_string(out, value, text->error);
}
