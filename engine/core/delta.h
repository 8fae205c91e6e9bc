/*
 * What an answer is made of, in the order in which it came: content, reasoning, calls of tools.
 * The concatenation of all deltas of a kind does not depend on how the answer was cut.
 */

#ifndef MOE_DELTA_H
#define MOE_DELTA_H

#include <stdint.h>

#include "engine/core/buffer.h"
#include "engine/core/string.h"

typedef enum {
    MOE_DELTA_CONTENT = 1,
    MOE_DELTA_REASONING,
    MOE_DELTA_CALL              /* one whole call */
} moe_delta_kind_t;

typedef struct {
    moe_delta_kind_t kind;
    moe_string_t text;          /* valid UTF-8; of a call: its arguments, a JSON object */
    moe_string_t id, name;      /* of a call */
} moe_delta_t;

/* A list of them and their texts; zeroes are an empty one. */
typedef struct {
    struct moe_delta_item_s *items;
    uint32_t count, capacity;
    moe_buffer_t bytes;
} moe_deltas_t;

/* Makes room for the first few, with so many bytes of text.  -1 with MOE_LIMIT. */
int moe_deltas_reserve(moe_deltas_t *deltas, size_t size, moe_error_t *error);

/* Adds text to the last delta if that is of the same kind, else as a new one; nothing when it is
 * empty.  -1 with MOE_LIMIT. */
int moe_deltas_add(moe_deltas_t *deltas, moe_delta_kind_t kind, const char *text, size_t size,
                   moe_error_t *error);

int moe_deltas_add_call(moe_deltas_t *deltas, moe_string_t id, moe_string_t name,
                        moe_string_t arguments, moe_error_t *error);

/* Number `i`, valid until the list is changed. */
moe_delta_t moe_deltas_at(const moe_deltas_t *deltas, uint32_t i);

/* Empties the list but keeps its memory. */
void moe_deltas_clear(moe_deltas_t *deltas);
void moe_deltas_free(moe_deltas_t *deltas);

#endif
