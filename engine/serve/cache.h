/*
 * Who uses which cache block.  The forward pass holds the memory and knows blocks by number only.
 *
 *     free ----grow----> in a table ----release----> free
 *       ^                     |
 *       |                    keep
 *       |                     v
 *       |                in tables ----release----> cached
 *       |                     ^                      |  |
 *       |                     '--------match---------'  |
 *       '-------------------evicted---------------------'
 *
 * A full block of computed tokens can be kept: then it is found again by whoever has the same tokens
 * up to its end, may be in several tables, and stays when the last of them is released, until
 * somebody needs its place.  A kept block is never written again.
 */

#ifndef MOE_CACHE_H
#define MOE_CACHE_H

#include <stdint.h>

#include "engine/core/error.h"
#include "engine/forward.h"
#include "engine/serve/prefix.h"

/* The blocks of one sequence in the order of its positions. */
typedef struct {
    uint32_t *blocks;           /* [capacity], owned by the sequence */
    uint32_t count, capacity;
    uint32_t kept;              /* of these, from the first on */
} moe_block_table_t;

int moe_block_table_init(moe_block_table_t *table, uint32_t tokens, moe_error_t *error);
void moe_block_table_free(moe_block_table_t *table);        /* after moe_cache_release */

typedef struct moe_cache_s moe_cache_t;

/* All `blocks` are free.  NULL with MOE_LIMIT. */
moe_cache_t *moe_cache_create(uint32_t blocks, moe_error_t *error);
void moe_cache_free(moe_cache_t *cache);

uint32_t moe_cache_blocks(const moe_cache_t *cache);

/* Blocks in no table, free and cached ones. */
uint32_t moe_cache_unused(const moe_cache_t *cache);

/* Number of blocks that `tokens` positions take. */
uint32_t moe_cache_blocks_for(uint32_t tokens);

/* Makes the table cover `tokens` positions (within its capacity); cached blocks are evicted, the
 * one that was used least recently first.  1, or 0 without any change when there are not enough
 * blocks. */
int moe_cache_grow(moe_cache_t *cache, moe_block_table_t *table, uint32_t tokens);

/* Gives all blocks of the table back. */
void moe_cache_release(moe_cache_t *cache, moe_block_table_t *table);

/*
 * Puts the kept blocks that begin `tokens` into an empty table, at most `most` tokens (which must be
 * known).  When a kept block goes on with some of the next ones, but not all, its rows can be
 * copied: *part says from where and how many (0: none), `to` is left to the caller, who grows the
 * table.  Returns the tokens covered by both.
 */
uint32_t moe_cache_match(moe_cache_t *cache, moe_block_table_t *table, const moe_chain_t *chain,
                         const uint32_t *tokens, uint32_t most, moe_block_copy_t *part);

/* How many tokens match would find in whole blocks. */
uint32_t moe_cache_covered(const moe_cache_t *cache, const moe_chain_t *chain,
                           const uint32_t *tokens, uint32_t most);

/* How many of the blocks that match would put into a table are in others: they take no unused one. */
uint32_t moe_cache_shared(const moe_cache_t *cache, const moe_chain_t *chain,
                          const uint32_t *tokens, uint32_t most);

/* Keeps the full blocks of the first `computed` tokens, as far as the chain goes.  Where a block of
 * the same tokens is kept already, the table gets that one. */
void moe_cache_keep(moe_cache_t *cache, moe_block_table_t *table, const moe_chain_t *chain,
                    const uint32_t *tokens, uint32_t computed);

/* Is block `index` of this chain kept? */
int moe_cache_has(const moe_cache_t *cache, const moe_chain_t *chain, const uint32_t *tokens,
                  uint32_t index);

#endif
