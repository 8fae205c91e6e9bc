/*
 * Text with provenance: which bytes were written by the chat template or by us (trusted), and
 * which came from a client.  Special tokens are recognised in trusted bytes only, so nothing a
 * user types can become a control token.
 */

#ifndef MOE_TEXT_H
#define MOE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/buffer.h"
#include "engine/core/error.h"

typedef struct {
    size_t start, end;          /* bytes [start, end) */
} moe_span_t;

typedef struct {
    moe_buffer_t bytes;
    moe_span_t *trusted;        /* ascending, not touching; owned */
    size_t n_trusted, capacity;
} moe_text_t;

/* Appends bytes; adjacent spans of the same kind melt together. */
int moe_text_append(moe_text_t *text, const char *data, size_t size, int trusted,
                    moe_error_t *error);

/* Appends the bytes [start, end) of another text with their provenance. */
int moe_text_append_range(moe_text_t *text, const moe_text_t *from, size_t start, size_t end,
                          moe_error_t *error);

/* Where the trusted span that holds the byte at `position` ends; `position` when none does. */
size_t moe_text_trusted_end(const moe_text_t *text, size_t position);

/* Empties the text but keeps its memory. */
void moe_text_clear(moe_text_t *text);
void moe_text_free(moe_text_t *text);

typedef struct {
    uint32_t *ids;              /* owned */
    size_t count, capacity;
} moe_ids_t;

int moe_ids_append(moe_ids_t *ids, uint32_t id, moe_error_t *error);
void moe_ids_free(moe_ids_t *ids);

/* Length of the longest prefix of data[0..size) that is whole, valid UTF-8 characters. */
size_t moe_utf8_valid_prefix(const char *data, size_t size);

#endif
