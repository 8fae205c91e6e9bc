/*
 * Answers of an HTTP/1 server, parsed as their bytes come: any split of them gives the same result.
 *
 * The server is not trusted: lines, heads and lengths are bounded, and an answer whose framing is
 * ambiguous is an error.
 */

#ifndef LOAD_HTTP_H
#define LOAD_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/buffer.h"

typedef enum {
    LOAD_HTTP_STATUS = 0,
    LOAD_HTTP_HEADER,
    LOAD_HTTP_CHUNK_SIZE,
    LOAD_HTTP_CHUNK_END,
    LOAD_HTTP_TRAILER,
    LOAD_HTTP_CHUNK,                /* from here on bytes of the body, not lines */
    LOAD_HTTP_LENGTH,
    LOAD_HTTP_UNTIL_CLOSE,
    LOAD_HTTP_DONE
} load_http_state_t;

/* Takes a piece of the body; -1 stops the parser with that error. */
typedef int (*load_http_body_t)(void *context, const char *data, size_t size, moe_error_t *error);

typedef struct {
    int status;
    int keep_alive;                 /* valid once the state is DONE */
    int event_stream;               /* Content-Type: text/event-stream */
    unsigned retry_after;           /* seconds; 0: not said */

    load_http_state_t state;
    uint64_t left;                  /* of the chunk or the body */
    int chunked, has_length;
    size_t head_size;
    moe_buffer_t line;
} load_http_t;

/* Makes ready for the next answer; a zeroed parser is ready, too. */
void load_http_begin(load_http_t *http);
void load_http_free(load_http_t *http);

/* Parses `size` bytes, at most to the end of the answer; *used is how many.  0, or -1 with
 * MOE_INVALID. */
int load_http_feed(load_http_t *http, const char *data, size_t size, size_t *used,
                   load_http_body_t body, void *context, moe_error_t *error);

/* The connection ended: 0 when that is the answer's end, or -1. */
int load_http_end(load_http_t *http, moe_error_t *error);

#endif
