/*
 * The free blocks are a stack: the block given back last is given out first, so a lightly loaded
 * engine touches few pages of the cache memory and keeps them warm.
 *
 * Kept blocks are found in two indexes, hash tables with as many places as there are blocks: by
 * their own digest, to follow a chain block by block, and by the digest before them, to see how a
 * prefix has gone on so far.  Those that are in no table are also in a list by age.  All three are
 * rings of blocks linked by number, so that any block leaves any of them at once.
 *
 * A table gives its blocks back from its end on: the end of a sequence is evicted before its
 * beginning, without which it could not be found.
 */

#include "engine/serve/cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define CONTINUATIONS 16u           /* of a prefix that are compared for a part of a block */

enum { BY_DIGEST, BY_PREFIX, BY_AGE, RINGS };

typedef struct {
    uint32_t previous, next;
} link_t;

typedef struct {
    moe_digest_t digest, before;        /* of the chain up to this block, and up to the one before */
    uint32_t tokens[MOE_BLOCK_TOKENS];
    uint32_t tables;                    /* it is in */
    int kept;
    link_t links[RINGS];
} block_t;

struct moe_cache_s {
    block_t *blocks;                    /* [n_blocks] */
    uint32_t *unused;                   /* [n_unused] the stack */
    uint32_t *indexes[2];               /* [n_places] a ring each, or NONE: BY_DIGEST, BY_PREFIX */
    uint32_t newest;                    /* the ring of cached blocks, or NONE */
    uint32_t n_blocks, n_unused, n_cached;
    uint32_t n_places;                  /* a power of two */
};


int moe_block_table_init(moe_block_table_t *table, uint32_t tokens, moe_error_t *error)
{
    table->count = table->kept = 0;
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


static int allocate(moe_cache_t *cache)
{
    const size_t places = cache->n_places * sizeof(uint32_t);

    cache->blocks = calloc((size_t) cache->n_blocks + 1, sizeof(block_t));
    cache->unused = malloc(((size_t) cache->n_blocks + 1) * sizeof(uint32_t));
    cache->indexes[BY_DIGEST] = malloc(places);
    cache->indexes[BY_PREFIX] = malloc(places);
    return cache->blocks && cache->unused && cache->indexes[BY_DIGEST]
           && cache->indexes[BY_PREFIX];
}


moe_cache_t *moe_cache_create(uint32_t blocks, moe_error_t *error)
{
    moe_cache_t *cache = calloc(1, sizeof(*cache));

    if (cache) {
        cache->n_blocks = cache->n_unused = blocks;
        cache->newest = NONE;
        for (cache->n_places = 1; cache->n_places < blocks && cache->n_places < 1u << 31;) {
            cache->n_places *= 2;
        }
    }
    if (cache == NULL || !allocate(cache)) {
        moe_cache_free(cache);
        moe_fail(error, MOE_LIMIT, "out of memory for %u cache blocks", blocks);
        return NULL;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        cache->unused[i] = blocks - 1 - i;
    }
    for (uint32_t i = 0; i < cache->n_places; i++) {
        cache->indexes[BY_DIGEST][i] = cache->indexes[BY_PREFIX][i] = NONE;
    }
    return cache;
}


void moe_cache_free(moe_cache_t *cache)
{
    if (cache) {
        free(cache->blocks);
        free(cache->unused);
        free(cache->indexes[BY_DIGEST]);
        free(cache->indexes[BY_PREFIX]);
        free(cache);
    }
}


uint32_t moe_cache_blocks(const moe_cache_t *cache)
{
    return cache->n_blocks;
}


uint32_t moe_cache_unused(const moe_cache_t *cache)
{
    return cache->n_unused + cache->n_cached;
}


uint32_t moe_cache_blocks_for(uint32_t tokens)
{
    return tokens / MOE_BLOCK_TOKENS + (tokens % MOE_BLOCK_TOKENS != 0);
}


/* Rings: `first` is their entry, NONE when there is none. */

static void ring_add(moe_cache_t *cache, int ring, uint32_t *first, uint32_t number)
{
    block_t *blocks = cache->blocks;
    link_t *link = &blocks[number].links[ring];

    *link = (link_t) { number, number };
    if (*first != NONE) {
        link->next = *first;
        link->previous = blocks[*first].links[ring].previous;
        blocks[link->next].links[ring].previous = number;
        blocks[link->previous].links[ring].next = number;
    }
    *first = number;
}


static void ring_remove(moe_cache_t *cache, int ring, uint32_t *first, uint32_t number)
{
    const link_t link = cache->blocks[number].links[ring];

    cache->blocks[link.previous].links[ring].next = link.next;
    cache->blocks[link.next].links[ring].previous = link.previous;
    if (*first == number) {
        *first = link.next == number ? NONE : link.next;
    }
}


/* The next block of a walk that began at `first`, NONE at its end. */
static uint32_t ring_next(const moe_cache_t *cache, int ring, uint32_t first, uint32_t number)
{
    uint32_t next = cache->blocks[number].links[ring].next;

    return next == first ? NONE : next;
}


static uint32_t *place_of(const moe_cache_t *cache, int index, const moe_digest_t *digest)
{
    uint32_t hash;

    memcpy(&hash, digest->bytes, sizeof(hash));
    return &cache->indexes[index][hash & (cache->n_places - 1)];
}


static int is_same(const moe_digest_t *a, const moe_digest_t *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}


/* The kept block of this digest and these tokens, or NONE. */
static uint32_t find(const moe_cache_t *cache, const moe_digest_t *digest, const uint32_t *tokens)
{
    const uint32_t first = *place_of(cache, BY_DIGEST, digest);
    uint32_t number = first;

    while (number != NONE) {
        const block_t *block = &cache->blocks[number];

        if (is_same(&block->digest, digest)
            && memcmp(block->tokens, tokens, sizeof(block->tokens)) == 0)
        {
            return number;
        }
        number = ring_next(cache, BY_DIGEST, first, number);
    }
    return NONE;
}


/* A kept block is no longer found. */
static void forget(moe_cache_t *cache, uint32_t number)
{
    block_t *block = &cache->blocks[number];

    ring_remove(cache, BY_DIGEST, place_of(cache, BY_DIGEST, &block->digest), number);
    ring_remove(cache, BY_PREFIX, place_of(cache, BY_PREFIX, &block->before), number);
    block->kept = 0;
}


/* A block to be written, free or else the oldest cached one; there must be one. */
static uint32_t take(moe_cache_t *cache)
{
    uint32_t number;

    if (cache->n_unused > 0) {
        number = cache->unused[--cache->n_unused];
    } else {
        number = cache->blocks[cache->newest].links[BY_AGE].previous;
        ring_remove(cache, BY_AGE, &cache->newest, number);
        cache->n_cached--;
        forget(cache, number);
    }
    cache->blocks[number].tables = 1;
    return number;
}


/* One more table has this kept block. */
static void hold(moe_cache_t *cache, uint32_t number)
{
    if (cache->blocks[number].tables++ == 0) {
        ring_remove(cache, BY_AGE, &cache->newest, number);
        cache->n_cached--;
    }
}


/* One table less has this block. */
static void drop(moe_cache_t *cache, uint32_t number)
{
    block_t *block = &cache->blocks[number];

    assert(block->tables > 0);
    if (--block->tables > 0) {
        return;
    }
    if (block->kept) {
        ring_add(cache, BY_AGE, &cache->newest, number);
        cache->n_cached++;
    } else {
        cache->unused[cache->n_unused++] = number;
    }
    assert(cache->n_unused + cache->n_cached <= cache->n_blocks);
}


int moe_cache_grow(moe_cache_t *cache, moe_block_table_t *table, uint32_t tokens)
{
    uint32_t wanted = moe_cache_blocks_for(tokens);

    assert(wanted <= table->capacity);
    if (wanted > table->count && wanted - table->count > moe_cache_unused(cache)) {
        return 0;
    }
    while (table->count < wanted) {
        table->blocks[table->count++] = take(cache);
    }
    return 1;
}


void moe_cache_release(moe_cache_t *cache, moe_block_table_t *table)
{
    while (table->count > 0) {
        drop(cache, table->blocks[--table->count]);
    }
    table->kept = 0;
}


/* Among the kept blocks behind a prefix the one that shares most of the next tokens, but at most
 * `most`.  Many sequences may have gone on from one prefix: only the newest are looked at. */
static void find_part(moe_cache_t *cache, const moe_digest_t *before, const uint32_t *tokens,
                      uint32_t most, moe_block_copy_t *part)
{
    const uint32_t first = *place_of(cache, BY_PREFIX, before);
    uint32_t number = first, n;

    for (unsigned i = 0; number != NONE && i < CONTINUATIONS; i++) {
        const block_t *block = &cache->blocks[number];

        if (is_same(&block->before, before)) {
            for (n = 0; n < MOE_BLOCK_TOKENS && n < most && block->tokens[n] == tokens[n]; n++) {
            }
            if (n > part->tokens) {
                *part = (moe_block_copy_t) { .from = number, .tokens = n };
            }
        }
        number = ring_next(cache, BY_PREFIX, first, number);
    }
    if (part->tokens > 0) {
        /* It was used. */
        hold(cache, part->from);
        drop(cache, part->from);
    }
}


/* The kept block at `index` of a chain, within the first `most` tokens, or NONE. */
static uint32_t find_in_chain(const moe_cache_t *cache, const moe_chain_t *chain,
                              const uint32_t *tokens, uint32_t index, uint32_t most)
{
    return index < chain->count && index < most / MOE_BLOCK_TOKENS
               ? find(cache, &chain->digests[index], tokens + (size_t) index * MOE_BLOCK_TOKENS)
               : NONE;
}


uint32_t moe_cache_covered(const moe_cache_t *cache, const moe_chain_t *chain,
                           const uint32_t *tokens, uint32_t most)
{
    uint32_t blocks = 0;

    while (find_in_chain(cache, chain, tokens, blocks, most) != NONE) {
        blocks++;
    }
    return blocks * MOE_BLOCK_TOKENS;
}


uint32_t moe_cache_shared(const moe_cache_t *cache, const moe_chain_t *chain,
                          const uint32_t *tokens, uint32_t most)
{
    uint32_t shared = 0, number;

    for (uint32_t i = 0; (number = find_in_chain(cache, chain, tokens, i, most)) != NONE; i++) {
        shared += cache->blocks[number].tables > 0;
    }
    return shared;
}


uint32_t moe_cache_match(moe_cache_t *cache, moe_block_table_t *table, const moe_chain_t *chain,
                         const uint32_t *tokens, uint32_t most, moe_block_copy_t *part)
{
    uint32_t matched, number;

    assert(table->count == 0);
    *part = (moe_block_copy_t) { .tokens = 0 };
    if (chain->capacity == 0) {
        return 0;
    }
    while ((number = find_in_chain(cache, chain, tokens, table->count, most)) != NONE) {
        hold(cache, number);
        table->blocks[table->count++] = number;
    }
    table->kept = table->count;
    matched = table->count * MOE_BLOCK_TOKENS;
    find_part(cache, moe_chain_before(chain, table->count), tokens + matched, most - matched, part);
    return matched + part->tokens;
}


static void keep(moe_cache_t *cache, uint32_t number, const moe_digest_t *digest,
                 const moe_digest_t *before, const uint32_t *tokens)
{
    block_t *block = &cache->blocks[number];

    block->digest = *digest;
    block->before = *before;
    memcpy(block->tokens, tokens, sizeof(block->tokens));
    block->kept = 1;
    ring_add(cache, BY_DIGEST, place_of(cache, BY_DIGEST, digest), number);
    ring_add(cache, BY_PREFIX, place_of(cache, BY_PREFIX, before), number);
}


void moe_cache_keep(moe_cache_t *cache, moe_block_table_t *table, const moe_chain_t *chain,
                    const uint32_t *tokens, uint32_t computed)
{
    uint32_t full = computed / MOE_BLOCK_TOKENS;

    for (; table->kept < full && table->kept < chain->count; table->kept++) {
        const uint32_t i = table->kept, *block_tokens = tokens + (size_t) i * MOE_BLOCK_TOKENS;
        const uint32_t same = find(cache, &chain->digests[i], block_tokens);

        if (same == NONE) {
            keep(cache, table->blocks[i], &chain->digests[i], moe_chain_before(chain, i),
                 block_tokens);
        } else {
            hold(cache, same);
            drop(cache, table->blocks[i]);
            table->blocks[i] = same;
        }
    }
}


int moe_cache_has(const moe_cache_t *cache, const moe_chain_t *chain, const uint32_t *tokens,
                  uint32_t index)
{
    return find_in_chain(cache, chain, tokens, index, UINT32_MAX) != NONE;
}
