/*
 * Typed, bounded reading of JSON objects that describe a model.
 *
 * A config that was put together from another file's metadata says in `names` where its keys came
 * from, so that messages name what is in that file.
 *
 * The first problem is kept and makes the whole read failed; later getters then return harmless
 * values.  So a family reads all its keys in a row and asks once at the end.  Messages read
 * "config.json: key: what".  A key whose value is null counts as absent.
 */

#ifndef MOE_CONFIG_H
#define MOE_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#include "engine/core/error.h"

typedef struct {
    const json_t *object;       /* NULL: as if empty */
    const char *where;          /* the file: "config.json" */
    const char *section;        /* where `object` lies in it: "rope_scaling"; NULL: on top */
    const json_t *names;        /* key -> the file's own name for it; NULL: the same */
    moe_error_t *error;
    int failed;
} moe_config_t;

/* The value, or NULL when absent or null. */
json_t *moe_config_get(const moe_config_t *config, const char *key);

/* An integer within [minimum, maximum]; required, or `otherwise` when absent. */
uint32_t moe_config_uint(moe_config_t *config, const char *key, uint32_t minimum, uint32_t maximum);
uint32_t moe_config_uint_or(moe_config_t *config, const char *key, uint32_t otherwise,
                            uint32_t minimum, uint32_t maximum);

/* A number (integer or real) within [minimum, maximum]. */
double moe_config_number(moe_config_t *config, const char *key, double minimum, double maximum);
double moe_config_number_or(moe_config_t *config, const char *key, double otherwise, double minimum,
                            double maximum);

int moe_config_bool_or(moe_config_t *config, const char *key, int otherwise);

/* Borrowed from the object, never NULL unless `otherwise` is. */
const char *moe_config_string_or(moe_config_t *config, const char *key, const char *otherwise);

/* A string that must be `expected` where it is given. */
void moe_config_expect(moe_config_t *config, const char *key, const char *expected);

/* True or false, which must be `expected` where it is given. */
void moe_config_expect_bool(moe_config_t *config, const char *key, int expected);

/* The object under `key` (which must outlive it), empty when absent. */
moe_config_t moe_config_object(moe_config_t *config, const char *key);

/* Notes a failure "where: section: key: what"; the first one wins. */
void moe_config_fail(moe_config_t *config, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fails for the first key of the object that is in neither NULL-terminated list (a list may be
 * NULL): an unknown key may change the maths. */
void moe_config_check_keys(moe_config_t *config, const char *const *known,
                           const char *const *neutral);

#endif
