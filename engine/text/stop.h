/*
 * Stop strings in a stream of text.  Text that could still become a stop string is held back; what
 * turns out not to be one is released; the earliest match ends the text (of matches that start at
 * the same byte: the one that completes first).  Matching is on bytes and independent of token
 * borders and of the sizes of the pushed pieces.
 */

#ifndef MOE_STOP_H
#define MOE_STOP_H

#include "engine/core/buffer.h"
#include "engine/core/string.h"

typedef struct moe_stop_s moe_stop_t;

/* Copies the strings (none empty).  NULL with MOE_LIMIT. */
moe_stop_t *moe_stop_create(const moe_string_t *stops, uint32_t n_stops, int include_stop,
                            moe_error_t *error);
void moe_stop_free(moe_stop_t *stop);

/* Feeds text; appends to `out` what can be released.  Returns the index of the stop string that
 * matched (nothing may be pushed after that), -1 when none did, -2 with MOE_LIMIT. */
int moe_stop_push(moe_stop_t *stop, const char *text, size_t size, moe_buffer_t *out,
                  moe_error_t *error);

/* The generation ended before push reported a match: appends the held-back text.  A match that only
 * waited for one that had begun earlier counts now: the text ends there. */
int moe_stop_finish(moe_stop_t *stop, moe_buffer_t *out, moe_error_t *error);

/* Index of the stop string that ended the text, in push or in finish; -1 when none did. */
int moe_stop_matched(const moe_stop_t *stop);

#endif
