/* The thread pool: every item exactly once, in chunks, on threads with indices of their own. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "engine/core/clock.h"
#include "engine/core/threads.h"

#define MAX_ITEMS 5000u

typedef struct {
    _Atomic unsigned char seen[MAX_ITEMS];
    _Atomic unsigned inside[64];            /* threads that run under an index */
    _Atomic unsigned faults;
    size_t items, grain;
    unsigned threads;
} loop_t;


static void visit(void *context, size_t first, size_t last, unsigned thread)
{
    loop_t *loop = context;

    if (first >= last || last > loop->items || thread >= loop->threads
        || atomic_fetch_add(&loop->inside[thread], 1) != 0)
    {
        atomic_fetch_add(&loop->faults, 1);
        return;
    }
    for (size_t i = first; i < last; i++) {
        atomic_fetch_add(&loop->seen[i], 1);
    }
    atomic_fetch_sub(&loop->inside[thread], 1);
}


static void check_loop(moe_pool_t *pool, size_t items, size_t grain)
{
    static loop_t loop;

    memset(&loop, 0, sizeof(loop));
    loop.items = items;
    loop.grain = grain;
    loop.threads = moe_pool_threads(pool);
    moe_pool_run(pool, visit, &loop, items, grain);
    assert_int_equal(loop.faults, 0);
    for (size_t i = 0; i < MAX_ITEMS; i++) {
        assert_int_equal(loop.seen[i], i < items);
    }
}


static void test_every_item_once(void **state)
{
    const unsigned threads[] = {1, 2, 3, 8};
    const size_t items[] = {0, 1, 2, 7, 64, 1000, MAX_ITEMS}, grains[] = {0, 1, 3, 64, 10000};
    moe_error_t error;

    for (size_t t = 0; t < 4; t++) {
        moe_pool_t *pool = moe_pool_create(threads[t], &error);

        assert_non_null(pool);
        assert_int_equal(moe_pool_threads(pool), threads[t]);
        for (size_t i = 0; i < 7; i++) {
            for (size_t g = 0; g < 5; g++) {
                check_loop(pool, items[i], grains[g]);
            }
        }
        moe_pool_free(pool);
    }
}


/* Back to back, and after pauses in which the threads fall asleep. */
static void test_many_loops(void **state)
{
    moe_error_t error;
    moe_pool_t *pool = moe_pool_create(4, &error);

    assert_non_null(pool);
    for (unsigned i = 0; i < 3000; i++) {
        check_loop(pool, i % 50, 1 + i % 3);
        if (i % 100 == 0) {
            usleep(500);
        }
    }
    moe_pool_free(pool);
}


/* Waits until two threads are inside at once: fails by timeout when nobody shares the work. */
static void meet(void *context, size_t first, size_t last, unsigned thread)
{
    _Atomic unsigned *arrived = context;
    const uint64_t start = moe_now_ns();

    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2 && moe_now_ns() - start < 10000000000u) {
        usleep(100);
    }
}


static void test_runs_in_parallel(void **state)
{
    moe_error_t error;
    moe_pool_t *pool = moe_pool_create(2, &error);

    assert_non_null(pool);
    for (unsigned i = 0; i < 20; i++) {
        _Atomic unsigned arrived = 0;
        const uint64_t start = moe_now_ns();

        usleep(i % 2 ? 2000 : 0);
        moe_pool_run(pool, meet, &arrived, 2, 1);
        assert_int_equal(arrived, 2);
        assert_true(moe_now_ns() - start < 10000000000u);
    }
    moe_pool_free(pool);
}


static void test_limits(void **state)
{
    moe_error_t error;

    assert_null(moe_pool_create(0, &error));
    assert_int_equal(error.code, MOE_SYSTEM);
    moe_pool_free(NULL);
    assert_true(moe_cpu_count() >= 1);
    assert_true(moe_cpu_count() <= (unsigned) sysconf(_SC_NPROCESSORS_CONF));
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_many_loops),
        cmocka_unit_test(test_runs_in_parallel),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
