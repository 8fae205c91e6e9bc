/*
 * Blocks and prefixes: every block is free, cached or in tables, whatever happens; what is found
 * for a sequence is what it would have computed, and stays so while it is in a table.
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/serve/cache.h"

#define BLOCKS 37u
#define TABLES 8u
#define LONGEST 320u
#define NONE UINT32_MAX


static void test_sizes(void **state)
{
    assert_int_equal(0, moe_cache_blocks_for(0));
    assert_int_equal(1, moe_cache_blocks_for(1));
    assert_int_equal(1, moe_cache_blocks_for(MOE_BLOCK_TOKENS));
    assert_int_equal(2, moe_cache_blocks_for(MOE_BLOCK_TOKENS + 1));
    assert_int_equal(UINT32_MAX / MOE_BLOCK_TOKENS + 1, moe_cache_blocks_for(UINT32_MAX));
}


static void test_all_or_nothing(void **state)
{
    moe_block_table_t a, b;
    moe_error_t error;
    moe_cache_t *cache = moe_cache_create(4, &error);

    assert_non_null(cache);
    assert_int_equal(0, moe_block_table_init(&a, 10 * MOE_BLOCK_TOKENS, &error));
    assert_int_equal(0, moe_block_table_init(&b, 10 * MOE_BLOCK_TOKENS, &error));
    assert_int_equal(1, moe_cache_grow(cache, &a, 2 * MOE_BLOCK_TOKENS + 1));
    assert_int_equal(3, a.count);
    assert_int_equal(1, moe_cache_unused(cache));
    assert_int_equal(0, moe_cache_grow(cache, &b, 2 * MOE_BLOCK_TOKENS));
    assert_int_equal(0, b.count);
    assert_int_equal(1, moe_cache_unused(cache));
    assert_int_equal(1, moe_cache_grow(cache, &a, 1));      /* never shrinks */
    assert_int_equal(3, a.count);
    moe_cache_release(cache, &a);
    assert_int_equal(4, moe_cache_unused(cache));
    assert_int_equal(1, moe_cache_grow(cache, &b, 4 * MOE_BLOCK_TOKENS));
    moe_cache_release(cache, &b);
    moe_cache_release(cache, &b);
    assert_int_equal(4, moe_cache_unused(cache));
    moe_block_table_free(&a);
    moe_block_table_free(&b);
    moe_cache_free(cache);
}


/* A sequence as the scheduler treats it: tokens, their digests, blocks. */
typedef struct {
    moe_block_table_t table;
    moe_chain_t chain;
    uint32_t tokens[LONGEST];
    uint32_t n_tokens, computed;
} sequence_t;

/* What the row of each position of each block holds: a hash of all tokens up to it. */
typedef struct {
    moe_cache_t *cache;
    moe_prefix_key_t key;
    uint64_t rows[BLOCKS][MOE_BLOCK_TOKENS];
} memory_t;


static void open_memory(memory_t *memory, uint32_t blocks)
{
    moe_error_t error;

    memset(memory, 0, sizeof(*memory));
    assert_true(blocks <= BLOCKS);
    memory->cache = moe_cache_create(blocks, &error);
    assert_non_null(memory->cache);
    assert_int_equal(0, moe_prefix_key_init(&memory->key, "model", "f32", &error));
}


static void open_sequence(memory_t *memory, sequence_t *sequence, const char *salt)
{
    moe_string_t string = { salt, (uint32_t) strlen(salt) };
    moe_error_t error;

    memset(sequence, 0, sizeof(*sequence));
    assert_int_equal(0, moe_block_table_init(&sequence->table, LONGEST, &error));
    assert_int_equal(0, moe_chain_init(&sequence->chain, &memory->key, string, LONGEST, &error));
}


static void close_sequence(memory_t *memory, sequence_t *sequence)
{
    moe_cache_release(memory->cache, &sequence->table);
    moe_block_table_free(&sequence->table);
    moe_chain_free(&sequence->chain);
}


static uint64_t next_hash(uint64_t hash, uint32_t token)
{
    return (hash ^ (token + 1)) * 0x9e3779b97f4a7c15ull + (hash >> 29);
}


static void check_rows(const memory_t *memory, const sequence_t *sequence)
{
    uint64_t hash = 0;

    for (uint32_t p = 0; p < sequence->computed; p++) {
        hash = next_hash(hash, sequence->tokens[p]);
        if (memory->rows[sequence->table.blocks[p / MOE_BLOCK_TOKENS]][p % MOE_BLOCK_TOKENS]
            != hash)
        {
            fail_msg("position %u of %u", p, sequence->computed);
        }
    }
}


/* Takes what is found of the first tokens and blocks for all `n`; 0 when there are not enough. */
static int begin(memory_t *memory, sequence_t *sequence, uint32_t n)
{
    moe_block_copy_t part;
    uint32_t found, shared;

    moe_chain_extend(&sequence->chain, sequence->tokens, n);
    found = moe_cache_match(memory->cache, &sequence->table, &sequence->chain, sequence->tokens,
                            n - 1, &part);
    shared = sequence->table.count;
    assert_true(found < n);
    assert_true(found - part.tokens == shared * MOE_BLOCK_TOKENS);
    if (!moe_cache_grow(memory->cache, &sequence->table, n)) {
        moe_cache_release(memory->cache, &sequence->table);
        return 0;
    }
    if (part.tokens > 0) {
        memmove(memory->rows[sequence->table.blocks[shared]], memory->rows[part.from],
                part.tokens * sizeof(uint64_t));
    }
    sequence->n_tokens = n;
    sequence->computed = found;
    check_rows(memory, sequence);
    return 1;
}


static void compute(memory_t *memory, sequence_t *sequence, uint32_t n)
{
    uint64_t hash = 0;

    for (uint32_t p = 0; p < sequence->computed + n; p++) {
        hash = next_hash(hash, sequence->tokens[p]);
        if (p >= sequence->computed) {
            memory->rows[sequence->table.blocks[p / MOE_BLOCK_TOKENS]][p % MOE_BLOCK_TOKENS] = hash;
        }
    }
    sequence->computed += n;
    moe_chain_extend(&sequence->chain, sequence->tokens, sequence->computed);
    moe_cache_keep(memory->cache, &sequence->table, &sequence->chain, sequence->tokens,
                   sequence->computed);
    check_rows(memory, sequence);
}


/* Computes the first n tokens of tokens 0, 1, 2, ... with some of them replaced; returns how many
 * of them were found. */
static uint32_t run(memory_t *memory, const char *salt, uint32_t n, uint32_t replaced)
{
    sequence_t *sequence = malloc(sizeof(*sequence));
    uint32_t found;

    assert_non_null(sequence);
    open_sequence(memory, sequence, salt);
    for (uint32_t i = 0; i < n; i++) {
        sequence->tokens[i] = i == replaced ? 1000 : i;
    }
    assert_int_equal(1, begin(memory, sequence, n));
    found = sequence->computed;
    compute(memory, sequence, n - found);
    close_sequence(memory, sequence);
    free(sequence);
    return found;
}


/* What a second sequence finds of a first one of 80 tokens, five blocks. */
static void test_prefix(void **state)
{
    static const struct {
        const char *salt;
        uint32_t n, replaced, found;
    } cases[] = {
        { "", 81, NONE, 80 },       /* longer: all of it */
        { "", 80, NONE, 79 },       /* the same: all but the token whose logits are wanted */
        { "", 65, NONE, 64 },
        { "", 64, NONE, 63 },
        { "", 40, NONE, 39 },       /* shorter, ending inside a block */
        { "", 16, NONE, 15 },
        { "", 2, NONE, 1 },
        { "", 1, NONE, 0 },
        { "", 80, 40, 40 },         /* another from the middle of a block on */
        { "", 80, 32, 32 },
        { "", 80, 1, 1 },
        { "", 80, 0, 0 },
        { "other", 80, NONE, 0 },   /* somebody else's */
        { "o", 80, NONE, 0 }
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memory_t memory;

        open_memory(&memory, BLOCKS);
        assert_int_equal(0, run(&memory, "", 80, NONE));
        assert_int_equal(BLOCKS, moe_cache_unused(memory.cache));
        assert_int_equal(cases[i].found,
                         run(&memory, cases[i].salt, cases[i].n, cases[i].replaced));
        assert_int_equal(79, run(&memory, "", 80, NONE));
        moe_cache_free(memory.cache);
    }
}


/* The block used least recently makes room, the end of a sequence before its beginning. */
static void test_eviction(void **state)
{
    static const struct {
        const char *salt;
        uint32_t n, found;
    } cases[] = {
        { "a", 32, 0 }, { "b", 64, 0 }, { "c", 64, 0 },     /* ten blocks, all are cached now */
        { "a", 33, 32 },            /* "a" is the youngest; its third block was the end of "b" */
        { "d", 16, 0 },             /* took the same one */
        { "b", 64, 48 },            /* for which "c" gave its end */
        { "c", 64, 48 },            /* for which "a" gave its end */
        { "a", 32, 16 },
        { "d", 16, 0 }
    };
    memory_t memory;

    open_memory(&memory, 10);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(cases[i].found, run(&memory, cases[i].salt, cases[i].n, NONE));
        assert_int_equal(10, moe_cache_unused(memory.cache));
    }
    moe_cache_free(memory.cache);
}


/* Two that compute the same at the same time end up with the same blocks. */
static void test_duplicates(void **state)
{
    sequence_t *pair = calloc(2, sizeof(sequence_t));
    memory_t memory;

    assert_non_null(pair);
    open_memory(&memory, BLOCKS);
    for (unsigned i = 0; i < 2; i++) {
        open_sequence(&memory, &pair[i], "");
        assert_int_equal(1, begin(&memory, &pair[i], 40));
        assert_int_equal(0, pair[i].computed);
    }
    assert_int_equal(BLOCKS - 6, moe_cache_unused(memory.cache));
    compute(&memory, &pair[0], 20);
    compute(&memory, &pair[1], 40);
    compute(&memory, &pair[0], 20);
    assert_memory_equal(pair[0].table.blocks, pair[1].table.blocks, 2 * sizeof(uint32_t));
    assert_int_not_equal(pair[0].table.blocks[2], pair[1].table.blocks[2]);
    assert_int_equal(BLOCKS - 4, moe_cache_unused(memory.cache));
    close_sequence(&memory, &pair[0]);
    assert_int_equal(BLOCKS - 3, moe_cache_unused(memory.cache));
    check_rows(&memory, &pair[1]);
    close_sequence(&memory, &pair[1]);
    assert_int_equal(BLOCKS, moe_cache_unused(memory.cache));
    moe_cache_free(memory.cache);
    free(pair);
}


static void test_chains(void **state)
{
    const moe_string_t empty = { NULL, 0 };
    static const struct {
        const char *model, *kv_type;
    } others[] = { { "model", "f32" }, { "other", "f32" }, { "model", "bf16" } };
    uint32_t tokens[100] = { 0 }, changed[100] = { 0 };
    moe_prefix_key_t key;
    moe_chain_t a, b;
    moe_error_t error;

    changed[70] = 1;
    assert_int_equal(0, moe_prefix_key_init(&key, "model", "f32", &error));
    assert_int_equal(0, moe_chain_init(&a, &key, empty, 100, &error));
    assert_int_equal(0, moe_chain_init(&b, &key, empty, 90, &error));
    assert_int_equal(0, moe_chain_common(&a, &b));
    moe_chain_extend(&a, tokens, 15);
    assert_int_equal(0, a.count);
    for (uint32_t n = 16; n <= 100; n++) {
        moe_chain_extend(&a, tokens, n);
        assert_int_equal(n / MOE_BLOCK_TOKENS, a.count);
    }
    moe_chain_extend(&b, changed, 100);
    assert_int_equal(5, b.count);               /* no more than it has room for */
    assert_int_equal(4, moe_chain_common(&a, &b));
    assert_int_equal(4, moe_chain_common(&b, &a));
    moe_chain_free(&b);
    /* Every start has a key of its own. */
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_int_equal(0, moe_prefix_key_init(&key, others[i].model, others[i].kv_type, &error));
        assert_int_equal(0, moe_chain_init(&b, &key, empty, 100, &error));
        moe_chain_extend(&b, tokens, 100);
        assert_int_equal(0, moe_chain_common(&a, &b));
        moe_chain_free(&b);
    }
    moe_chain_free(&a);
}


/* All tables together have what is not unused. */
static void check_counts(const memory_t *memory, const sequence_t *sequences)
{
    uint8_t used[BLOCKS] = { 0 };
    uint32_t n_used = 0;

    for (unsigned i = 0; i < TABLES; i++) {
        for (uint32_t j = 0; j < sequences[i].table.count; j++) {
            assert_true(sequences[i].table.blocks[j] < BLOCKS);
            n_used += used[sequences[i].table.blocks[j]]++ == 0;
        }
    }
    assert_int_equal(BLOCKS, n_used + moe_cache_unused(memory->cache));
}


/* Sequences with few different beginnings, far more than the cache holds; some are taken out and
 * begin again with what they had. */
static void test_random_operations(void **state)
{
    static const char *const salts[] = { "", "salt" };
    sequence_t *sequences = calloc(TABLES, sizeof(sequence_t));
    unsigned seed = 1, refused = 0, found = 0, parts = 0;
    memory_t memory;

    assert_non_null(sequences);
    open_memory(&memory, BLOCKS);
    for (unsigned i = 0; i < TABLES; i++) {
        open_sequence(&memory, &sequences[i], salts[i % 2]);
    }
    for (unsigned round = 0; round < 30000; round++) {
        unsigned i = (unsigned) rand_r(&seed) % TABLES;
        sequence_t *s = &sequences[i];
        uint32_t least = 1 + (uint32_t) rand_r(&seed) % 60;

        if (s->table.count == 0) {
            if (s->n_tokens == 0 || rand_r(&seed) % 4 == 0) {
                close_sequence(&memory, s);
                open_sequence(&memory, s, salts[i % 2]);
                for (uint32_t p = 0; p < LONGEST; p++) {
                    s->tokens[p] = p % 7 == 6 && rand_r(&seed) % 6 == 0;
                }
                s->n_tokens = 1 + (uint32_t) rand_r(&seed) % 200;
            }
            refused += !begin(&memory, s, s->n_tokens);
            found += s->computed / MOE_BLOCK_TOKENS;
            parts += s->computed % MOE_BLOCK_TOKENS > 0;
        } else if (s->computed < s->n_tokens) {
            least = s->n_tokens - s->computed < least ? s->n_tokens - s->computed : least;
            compute(&memory, s, least);
        } else if (s->n_tokens < LONGEST && rand_r(&seed) % 8 > 0
                   && moe_cache_grow(memory.cache, &s->table, s->n_tokens + 1))
        {
            s->n_tokens++;
        } else {
            moe_cache_release(memory.cache, &s->table);
            s->computed = 0;
        }
        check_rows(&memory, s);
        check_counts(&memory, sequences);
    }
    assert_true(refused > 100 && found > 1000 && parts > 100);
    for (unsigned i = 0; i < TABLES; i++) {
        close_sequence(&memory, &sequences[i]);
    }
    assert_int_equal(BLOCKS, moe_cache_unused(memory.cache));
    moe_cache_free(memory.cache);
    free(sequences);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_all_or_nothing),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_random_operations)
    };

    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
