#include "engine/core/json.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/file.h"


static json_t *parse(const char *data, size_t size, const char *path, moe_error_t *error)
{
    json_error_t where;
    json_t *json = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);

    if (json == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "%s: %s, line %d", path, where.text, where.line);
        return NULL;
    }
    if (!json_is_object(json)) {
        moe_fail(error, MOE_BAD_MODEL, "%s: not a JSON object", path);
        json_decref(json);
        return NULL;
    }
    return json;
}


json_t *moe_json_load(const char *directory, const char *name, int optional, moe_error_t *error)
{
    char path[PATH_MAX], *data;
    json_t *json;
    size_t size;

    if (moe_file_path(path, directory, name, error) != 0) {
        return NULL;
    }
    data = moe_file_load(path, optional, MOE_JSON_FILE_LIMIT, &size, error);
    json = data != NULL ? parse(data, size, path, error) : NULL;
    free(data);
    return json;
}


static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) {
        p++;
    }
    return p;
}


/* p is at a quote; NULL when the string does not end. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++) {
        p += *p == '\\';
    }
    return p < end ? p + 1 : NULL;
}


/* Behind the value at p: only strings and the balance of brackets are looked at. */
static const char *skip_value(const char *p, const char *end)
{
    size_t depth = 0;

    while (p < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            if (p == NULL) {
                return NULL;
            }
        } else if (depth == 0 && (*p == ',' || *p == ']' || *p == '}')) {
            return p;
        } else {
            depth += *p == '[' || *p == '{';
            depth -= *p == ']' || *p == '}';
            p++;
        }
    }
    return NULL;
}


/* Finds the parts in the object at p, which is the file's (`within` is NULL) or its member
 * `within`.  What is not well formed is left for the parser to name. */
static void find_parts(const char *p, const char *end, const char *within, moe_json_part_t *parts,
                       size_t n_parts)
{
    p = skip_blanks(p, end);
    if (p == end || *p != '{') {
        return;
    }
    do {
        const char *key = skip_blanks(p + 1, end), *value;

        if (key == end || *key != '"' || (p = skip_string(key, end)) == NULL
            || (value = skip_blanks(p, end)) == end || *value != ':'
            || (p = skip_value(value + 1, end)) == NULL)
        {
            return;
        }
        for (size_t i = 0; i < n_parts; i++) {
            const char *name = within == NULL ? parts[i].object : parts[i].key;

            if ((within != NULL && strcmp(within, parts[i].object) != 0)
                || strncmp(key + 1, name, strlen(name)) != 0 || key[1 + strlen(name)] != '"')
            {
                continue;
            }
            if (within == NULL) {
                find_parts(value + 1, p, name, parts, n_parts);
                break;
            }
            parts[i].size = (size_t) (p - value - 1);
            parts[i].data = parts[i].size > 0 ? value + 1 : NULL;
        }
    } while (*p == ',');
}


/* A copy of the text without the parts; line ends stay, so that messages count lines rightly. */
static char *cut(const char *data, size_t size, const moe_json_part_t *parts, size_t n_parts,
                 size_t *cut_size)
{
    char *out = malloc(size + 4 * n_parts + 1), *to = out;
    const char *end = data + size;

    while (out != NULL && data < end) {
        const moe_json_part_t *next = NULL;
        const char *stop;

        for (size_t i = 0; i < n_parts; i++) {
            if (parts[i].data != NULL && parts[i].data >= data
                && (next == NULL || parts[i].data < next->data))
            {
                next = &parts[i];
            }
        }
        stop = next != NULL ? next->data : end;
        memcpy(to, data, (size_t) (stop - data));
        to += stop - data;
        data = stop;
        if (next != NULL) {
            memcpy(to, "null", 4);
            to += 4;
            for (; data < next->data + next->size; data++) {
                if (*data == '\n') {
                    *to++ = '\n';
                }
            }
        }
    }
    *cut_size = (size_t) (to - out);
    return out;
}


json_t *moe_json_load_without(const char *directory, const char *name, int optional,
                              moe_json_part_t *parts, size_t n_parts, char **text,
                              moe_error_t *error)
{
    char path[PATH_MAX], *rest;
    json_t *json = NULL;
    size_t size, rest_size;

    *text = NULL;
    if (moe_file_path(path, directory, name, error) != 0) {
        return NULL;
    }
    *text = moe_file_load(path, optional, MOE_JSON_FILE_LIMIT, &size, error);
    if (*text == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < n_parts; i++) {
        parts[i].data = NULL;
        parts[i].size = 0;
    }
    find_parts(*text, *text + size, NULL, parts, n_parts);
    rest = cut(*text, size, parts, n_parts, &rest_size);
    if (rest == NULL) {
        moe_fail(error, MOE_LIMIT, "%s: out of memory", path);
    } else {
        json = parse(rest, rest_size, path, error);
    }
    free(rest);
    if (json == NULL) {
        free(*text);
        *text = NULL;
    }
    return json;
}


int moe_json_flag(const json_t *object, const char *key, int fallback, int *value,
                  moe_error_t *error)
{
    const json_t *field = json_object_get(object, key);

    if (field != NULL && !json_is_boolean(field) && !json_is_null(field)) {
        return moe_fail(error, MOE_BAD_MODEL, "\"%s\" is not a boolean", key);
    }
    *value = json_is_boolean(field) ? json_is_true(field) : fallback;
    return 0;
}


const char *moe_json_string(const json_t *object, const char *key, size_t *size,
                            moe_error_t *error)
{
    const json_t *field = json_object_get(object, key);

    if (!json_is_string(field)) {
        moe_fail(error, MOE_BAD_MODEL, "\"%s\" is not a string", key);
        return NULL;
    }
    *size = json_string_length(field);
    return json_string_value(field);
}
