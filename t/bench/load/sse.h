/*
 * Server-sent events, from any split of their bytes.  Only the data of an event matters here;
 * comments and other fields are skipped.
 */

#ifndef LOAD_SSE_H
#define LOAD_SSE_H

#include "engine/core/buffer.h"

typedef struct {
    moe_buffer_t line;              /* an unfinished one */
    moe_buffer_t event;             /* data of the event so far */
    int has_data;
    int after_cr;                   /* a line feed right now would belong to that line end */
} load_sse_t;

/* Takes the data of an event, which ends with a NUL that `size` does not count; -1 stops. */
typedef int (*load_sse_event_t)(void *context, const char *data, size_t size, moe_error_t *error);

/* Forgets what is unfinished; a zeroed parser is ready, too. */
void load_sse_begin(load_sse_t *sse);
void load_sse_free(load_sse_t *sse);

/* 0, or -1: the function's error, or MOE_LIMIT for a line or event that is too long. */
int load_sse_feed(load_sse_t *sse, const char *data, size_t size, load_sse_event_t event,
                  void *context, moe_error_t *error);

#endif
