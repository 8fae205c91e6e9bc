/*
 * Regular expressions of tokenizer.json.  They are written for Oniguruma, with whose meaning they
 * are compiled by PCRE2: \s is exactly Unicode's White_Space, \p{Script} is the Script property,
 * ^ and $ match at lines, and class intersections [A&&B] are spelt out as ranges.
 */

#ifndef MOE_REGEX_H
#define MOE_REGEX_H

#include <stddef.h>

#include "engine/core/error.h"
#include "engine/core/json.h"

typedef struct moe_regex_s moe_regex_t;         /* immutable; shared by threads */
typedef struct moe_matcher_s moe_matcher_t;     /* scratch memory of one thread, for any regex */

/* NULL with MOE_BAD_MODEL, or MOE_LIMIT when out of memory. */
moe_regex_t *moe_regex_create(const char *pattern, size_t size, moe_error_t *error);

/* Matches the text itself (not empty). */
moe_regex_t *moe_regex_create_literal(const char *text, size_t size, moe_error_t *error);

/* A pattern of tokenizer.json: {"String": ...} or {"Regex": ...}. */
moe_regex_t *moe_regex_from_json(const json_t *pattern, moe_error_t *error);
void moe_regex_free(moe_regex_t *regex);

moe_matcher_t *moe_matcher_create(moe_error_t *error);
void moe_matcher_free(moe_matcher_t *matcher);

/* The first match that starts at or after `from` in the valid UTF-8 subject[0..size):
 * 1 with [*start, *end), 0 when there is none, -1 with MOE_LIMIT. */
int moe_regex_find(const moe_regex_t *regex, moe_matcher_t *matcher, const char *subject,
                   size_t size, size_t from, size_t *start, size_t *end, moe_error_t *error);

#endif
