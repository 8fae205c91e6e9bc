/*
 * The normalizer, pre-tokenizer and decoder of tokenizer.json are written alike: an object with a
 * "type" and that type's own keys, where "Sequence" stands for a list of such objects.
 */

#ifndef MOE_COMPONENT_H
#define MOE_COMPONENT_H

#include <jansson.h>

#include "engine/core/error.h"

/* Takes one component, which is no Sequence, into `owner`: 0, or -1 with MOE_BAD_MODEL or
 * MOE_LIMIT. */
typedef int (*moe_component_read_t)(void *owner, const char *type, const json_t *json,
                                    moe_error_t *error);

/* Calls `read` for `json`, or for every member of the Sequence that it is, in order and to a
 * bounded depth; `list` is the key of a Sequence's members.  Stops at the first failure: -1. */
int moe_component_walk(const json_t *json, const char *list, moe_component_read_t read, void *owner,
                       moe_error_t *error);

#endif
