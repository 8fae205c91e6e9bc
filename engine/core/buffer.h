/*
 * A growable byte buffer with a hard limit: everything that is built up from untrusted input
 * (rendered templates, frames, token pieces) grows in one of these.
 */

#ifndef MOE_BUFFER_H
#define MOE_BUFFER_H

#include <stddef.h>

#include "engine/core/error.h"

typedef struct {
    char *data;         /* owned; not NUL-terminated unless the user appends a NUL */
    size_t size;        /* bytes in use */
    size_t capacity;    /* bytes allocated */
    size_t limit;       /* most bytes it may ever hold; 0 means no limit */
} moe_buffer_t;

/* Makes room for `extra` more bytes.  0, or -1 with MOE_LIMIT (limit or memory). */
int moe_buffer_reserve(moe_buffer_t *buffer, size_t extra, moe_error_t *error);

/* Appends bytes; same errors as moe_buffer_reserve. */
int moe_buffer_append(moe_buffer_t *buffer, const void *data, size_t size, moe_error_t *error);

/* Removes `size` bytes at the front. */
void moe_buffer_consume(moe_buffer_t *buffer, size_t size);

/* Frees the memory and zeroes all but the limit. */
void moe_buffer_free(moe_buffer_t *buffer);

#endif
