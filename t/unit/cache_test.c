/* Every cache block is free or in exactly one table, whatever happens. */

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


static void check_ownership(const moe_cache_t *cache, const moe_block_table_t *tables)
{
    uint8_t owned[BLOCKS] = { 0 };
    uint32_t used = 0;

    for (unsigned i = 0; i < TABLES; i++) {
        for (uint32_t j = 0; j < tables[i].count; j++) {
            assert_true(tables[i].blocks[j] < BLOCKS);
            assert_int_equal(0, owned[tables[i].blocks[j]]++);
            used++;
        }
    }
    assert_int_equal(BLOCKS, used + moe_cache_unused(cache));
}


static void test_random_operations(void **state)
{
    moe_block_table_t tables[TABLES];
    moe_error_t error;
    moe_cache_t *cache = moe_cache_create(BLOCKS, &error);
    unsigned seed = 1, refused = 0;

    assert_non_null(cache);
    for (unsigned i = 0; i < TABLES; i++) {
        assert_int_equal(0, moe_block_table_init(&tables[i], LONGEST, &error));
    }
    for (unsigned round = 0; round < 20000; round++) {
        moe_block_table_t *table = &tables[rand_r(&seed) % TABLES];

        if (rand_r(&seed) % 4 == 0) {
            moe_cache_release(cache, table);
        } else {
            refused += !moe_cache_grow(cache, table, (uint32_t) rand_r(&seed) % (LONGEST + 1));
        }
        check_ownership(cache, tables);
    }
    assert_true(refused > 100);
    for (unsigned i = 0; i < TABLES; i++) {
        moe_cache_release(cache, &tables[i]);
        moe_block_table_free(&tables[i]);
    }
    assert_int_equal(BLOCKS, moe_cache_unused(cache));
    moe_cache_free(cache);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_all_or_nothing),
        cmocka_unit_test(test_random_operations)
    };

    return cmocka_run_group_tests_name("cache", tests, NULL, NULL);
}
