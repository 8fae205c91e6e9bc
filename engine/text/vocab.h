/* A set of tokens: text to id and id to text. */

#ifndef MOE_VOCAB_H
#define MOE_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/error.h"

#define MOE_TOKEN_ID_LIMIT (1u << 22)           /* ids are below this */
#define MOE_NO_TOKEN UINT32_MAX

typedef struct {
    const char *text;           /* NULL: no token has this id */
    uint32_t size;
} moe_token_t;

typedef struct {
    moe_token_t *tokens;        /* by id; n_ids of them */
    uint32_t n_ids;
    char *bytes;                /* the texts, one behind the other */
    size_t n_bytes, bytes_capacity;
    uint32_t *slots;            /* hash table with open addressing: ids */
    uint32_t mask;
} moe_vocab_t;

/* Room for `count` tokens of `bytes` bytes in all, with ids below `n_ids`.  -1 with MOE_LIMIT. */
int moe_vocab_init(moe_vocab_t *vocab, size_t count, size_t bytes, uint32_t n_ids,
                   moe_error_t *error);
void moe_vocab_free(moe_vocab_t *vocab);

/* Adds a token within the room that was asked for.  -1 with MOE_BAD_MODEL when its id or its text
 * is already there. */
int moe_vocab_add(moe_vocab_t *vocab, const char *text, size_t size, uint32_t id,
                  moe_error_t *error);

/* The id of a text, or MOE_NO_TOKEN. */
uint32_t moe_vocab_find(const moe_vocab_t *vocab, const char *text, size_t size);

#endif
