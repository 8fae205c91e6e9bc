/*
 * Who owns which cache block.  The forward pass holds the memory and knows blocks by number only;
 * every number is either free or in exactly one table here.
 */

#ifndef MOE_CACHE_H
#define MOE_CACHE_H

#include <stdint.h>

#include "engine/core/error.h"

/* The blocks of one sequence in the order of its positions. */
typedef struct {
    uint32_t *blocks;           /* [capacity], owned by the sequence */
    uint32_t count, capacity;
} moe_block_table_t;

int moe_block_table_init(moe_block_table_t *table, uint32_t tokens, moe_error_t *error);
void moe_block_table_free(moe_block_table_t *table);        /* after moe_cache_release */

typedef struct moe_cache_s moe_cache_t;

/* All `blocks` are free.  NULL with MOE_LIMIT. */
moe_cache_t *moe_cache_create(uint32_t blocks, moe_error_t *error);
void moe_cache_free(moe_cache_t *cache);

uint32_t moe_cache_blocks(const moe_cache_t *cache);
uint32_t moe_cache_unused(const moe_cache_t *cache);

/* Number of blocks that `tokens` positions take. */
uint32_t moe_cache_blocks_for(uint32_t tokens);

/* Makes the table cover `tokens` positions (within its capacity).  1, or 0 without any change when
 * there are not enough free blocks. */
int moe_cache_grow(moe_cache_t *cache, moe_block_table_t *table, uint32_t tokens);

/* Gives all blocks of the table back. */
void moe_cache_release(moe_cache_t *cache, moe_block_table_t *table);

#endif
