/*
 * The free blocks are a stack: the block given back last is given out first, so a lightly loaded
 * engine touches few pages of the cache memory and keeps them warm.  The stack never moves in
 * memory; taking and giving back cost one store each.
 */

#include "engine/serve/cache.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/forward.h"

struct moe_cache_s {
    uint32_t *unused;           /* [n_unused] the stack */
    uint32_t n_unused;
    uint32_t n_blocks;
};


int moe_block_table_init(moe_block_table_t *table, uint32_t tokens, moe_error_t *error)
{
    table->count = 0;
    table->capacity = moe_cache_blocks_for(tokens);
    table->blocks = malloc(((size_t) table->capacity + 1) * sizeof(uint32_t));
    if (table->blocks == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for a table of %u blocks",
                        table->capacity);
    }
    return 0;
}


void moe_block_table_free(moe_block_table_t *table)
{
    assert(table->count == 0);
    free(table->blocks);
    table->blocks = NULL;
    table->capacity = 0;
}


moe_cache_t *moe_cache_create(uint32_t blocks, moe_error_t *error)
{
    moe_cache_t *cache = malloc(sizeof(*cache));

    if (cache) {
        cache->unused = malloc(((size_t) blocks + 1) * sizeof(uint32_t));
    }
    if (cache == NULL || cache->unused == NULL) {
        free(cache);
        moe_fail(error, MOE_LIMIT, "out of memory for %u cache blocks", blocks);
        return NULL;
    }
    cache->n_blocks = blocks;
    cache->n_unused = blocks;
    for (uint32_t i = 0; i < blocks; i++) {
        cache->unused[i] = blocks - 1 - i;
    }
    return cache;
}


void moe_cache_free(moe_cache_t *cache)
{
    if (cache) {
        free(cache->unused);
        free(cache);
    }
}


uint32_t moe_cache_blocks(const moe_cache_t *cache)
{
    return cache->n_blocks;
}


uint32_t moe_cache_unused(const moe_cache_t *cache)
{
    return cache->n_unused;
}


uint32_t moe_cache_blocks_for(uint32_t tokens)
{
    return tokens / MOE_BLOCK_TOKENS + (tokens % MOE_BLOCK_TOKENS != 0);
}


int moe_cache_grow(moe_cache_t *cache, moe_block_table_t *table, uint32_t tokens)
{
    uint32_t wanted = moe_cache_blocks_for(tokens);

    assert(wanted <= table->capacity);
    if (wanted > table->count && wanted - table->count > cache->n_unused) {
        return 0;
    }
    while (table->count < wanted) {
        table->blocks[table->count++] = cache->unused[--cache->n_unused];
    }
    return 1;
}


void moe_cache_release(moe_cache_t *cache, moe_block_table_t *table)
{
    while (table->count > 0) {
        cache->unused[cache->n_unused++] = table->blocks[--table->count];
    }
    assert(cache->n_unused <= cache->n_blocks);
}
