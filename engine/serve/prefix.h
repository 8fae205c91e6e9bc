/*
 * Names of prefixes: every full block of a sequence has a digest of all tokens up to its end.
 *
 *     root    = SHA-256(key, salt)
 *     block i = SHA-256(digest of block i - 1, or root, and the block's tokens)
 *
 * The key is drawn at each start and covers whatever else the rows of a block depend on, so nobody
 * outside can make two prefixes collide, and sequences of different salts have no prefix in common.
 */

#ifndef MOE_PREFIX_H
#define MOE_PREFIX_H

#include <openssl/types.h>
#include <stdint.h>

#include "engine/core/error.h"
#include "engine/core/string.h"

typedef struct {
    uint8_t bytes[32];
} moe_digest_t;

typedef struct {
    moe_digest_t secret;
} moe_prefix_key_t;

/* The digests of one sequence.  All zeroes: it has no part in the prefix cache. */
typedef struct {
    moe_digest_t root;
    moe_digest_t *digests;      /* [capacity] of blocks 0, 1, ... */
    uint32_t count, capacity;
    EVP_MD_CTX *hash;
} moe_chain_t;

/* Draws a key for rows of this model that are kept in this form.  -1 with MOE_SYSTEM. */
int moe_prefix_key_init(moe_prefix_key_t *key, const char *model, const char *kv_type,
                        moe_error_t *error);

/* Room for the blocks of `tokens` tokens.  -1 with MOE_LIMIT or MOE_SYSTEM; free it either way. */
int moe_chain_init(moe_chain_t *chain, const moe_prefix_key_t *key, moe_string_t salt,
                   uint32_t tokens, moe_error_t *error);
void moe_chain_free(moe_chain_t *chain);

/* Adds the full blocks of tokens[0 .. n_tokens) that it lacks, within its capacity; allocates
 * nothing.  When the digest fails the chain stays short: those blocks are not shared. */
void moe_chain_extend(moe_chain_t *chain, const uint32_t *tokens, uint32_t n_tokens);

/* The digest before block `index`: of the block before it, or the root. */
const moe_digest_t *moe_chain_before(const moe_chain_t *chain, uint32_t index);

/* Blocks at the beginning of both. */
uint32_t moe_chain_common(const moe_chain_t *a, const moe_chain_t *b);

#endif
