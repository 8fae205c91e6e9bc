/*
 * JSON files of a model directory, read with jansson: bounded in size, duplicate keys refused,
 * object order kept (chat templates depend on it).
 */

#ifndef MOE_JSON_H
#define MOE_JSON_H

#include <jansson.h>

#include "engine/core/error.h"

#define MOE_JSON_FILE_LIMIT (256u << 20)

/* Parses the file `directory`/`name`.  Returns a new reference to an object.
 * On failure NULL with MOE_BAD_MODEL and a message "name: what, line N"; when the file does not
 * exist and `optional` is set: NULL with error->code == MOE_OK. */
json_t *moe_json_load(const char *directory, const char *name, int optional, moe_error_t *error);

/* A big value that is left out of what is parsed, for a reader of its own: member `key` of the
 * member `object` of the file's object.  `data`: its text; NULL when the file has no such
 * member. */
typedef struct {
    const char *object, *key;
    const char *data;
    size_t size;
} moe_json_part_t;

/* As moe_json_load, with null in the place of each part.  The parts are no more than bracketed
 * rightly; they lie in *text, which the caller frees. */
json_t *moe_json_load_without(const char *directory, const char *name, int optional,
                              moe_json_part_t *parts, size_t n_parts, char **text,
                              moe_error_t *error);

/* object[key] as a boolean, `fallback` when it is absent or null.  -1 with MOE_BAD_MODEL. */
int moe_json_flag(const json_t *object, const char *key, int fallback, int *value,
                  moe_error_t *error);

/* object[key], which must be a string; owned by `object`.  NULL with MOE_BAD_MODEL. */
const char *moe_json_string(const json_t *object, const char *key, size_t *size,
                            moe_error_t *error);

#endif
