/*
 * Texts lie in one block of memory; an array by id points into it, and a hash table with linear
 * probing, at most half full, holds ids.  Loading 128k tokens is 128k copies and no allocation.
 */

#include "engine/text/vocab.h"

#include <stdlib.h>
#include <string.h>


int moe_vocab_init(moe_vocab_t *vocab, size_t count, size_t bytes, uint32_t n_ids,
                   moe_error_t *error)
{
    uint32_t n_slots = 16;

    memset(vocab, 0, sizeof(*vocab));
    if (count > MOE_TOKEN_ID_LIMIT) {
        return moe_fail(error, MOE_BAD_MODEL, "more than %u tokens", MOE_TOKEN_ID_LIMIT);
    }
    while (n_slots < 2 * count) {
        n_slots *= 2;
    }
    vocab->tokens = calloc(n_ids ? n_ids : 1, sizeof(moe_token_t));
    vocab->bytes = malloc(bytes ? bytes : 1);
    vocab->slots = malloc(n_slots * sizeof(uint32_t));
    if (vocab->tokens == NULL || vocab->bytes == NULL || vocab->slots == NULL) {
        moe_vocab_free(vocab);
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu tokens", count);
    }
    memset(vocab->slots, 0xff, n_slots * sizeof(uint32_t));
    vocab->mask = n_slots - 1;
    vocab->n_ids = n_ids;
    vocab->bytes_capacity = bytes;
    return 0;
}


void moe_vocab_free(moe_vocab_t *vocab)
{
    free(vocab->tokens);
    free(vocab->bytes);
    free(vocab->slots);
    memset(vocab, 0, sizeof(*vocab));
}


/* FNV-1a: texts are a few bytes long. */
static uint32_t hash(const char *text, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ (unsigned char) text[i]) * 0x100000001b3u;
    }
    return (uint32_t) (h ^ h >> 32);
}


/* The slot that holds a text, or the empty one where it belongs. */
static uint32_t find_slot(const moe_vocab_t *vocab, const char *text, size_t size)
{
    uint32_t slot = hash(text, size) & vocab->mask;

    for (; vocab->slots[slot] != MOE_NO_TOKEN; slot = (slot + 1) & vocab->mask) {
        const moe_token_t *token = &vocab->tokens[vocab->slots[slot]];

        if (token->size == size && memcmp(token->text, text, size) == 0) {
            break;
        }
    }
    return slot;
}


/* How much of a token's text a message shows. */
static int shown(size_t size)
{
    return (int) (size < 60 ? size : 60);
}


int moe_vocab_add(moe_vocab_t *vocab, const char *text, size_t size, uint32_t id,
                  moe_error_t *error)
{
    uint32_t slot = find_slot(vocab, text, size);

    if (vocab->slots[slot] != MOE_NO_TOKEN) {
        return moe_fail(error, MOE_BAD_MODEL, "token \"%.*s\" is there twice", shown(size), text);
    }
    if (id >= vocab->n_ids || vocab->tokens[id].text != NULL) {
        const moe_token_t *other = id < vocab->n_ids ? &vocab->tokens[id] : NULL;

        return moe_fail(error, MOE_BAD_MODEL, "tokens \"%.*s\" and \"%.*s\" have the same id %u",
                        shown(size), text, other != NULL ? shown(other->size) : 0,
                        other != NULL ? other->text : "", id);
    }
    if (size > vocab->bytes_capacity - vocab->n_bytes) {
        return moe_fail(error, MOE_BAD_MODEL, "token \"%.*s\" is too long", shown(size), text);
    }
    memcpy(vocab->bytes + vocab->n_bytes, text, size);
    vocab->tokens[id] = (moe_token_t) { vocab->bytes + vocab->n_bytes, (uint32_t) size };
    vocab->n_bytes += size;
    vocab->slots[slot] = id;
    return 0;
}


uint32_t moe_vocab_find(const moe_vocab_t *vocab, const char *text, size_t size)
{
    return vocab->slots[find_slot(vocab, text, size)];
}
