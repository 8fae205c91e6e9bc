/* Groups of ranks, with made-up tasks: where a sequence goes, that nobody is lost on the way. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/serve/groups.h"

#define MS 1000000ull
#define JOBS 64u
#define LONGEST 400u
#define GROUPS 4u

typedef struct {
    moe_task_t task;
    moe_share_t *shares;
    uint32_t n_prompt, goal;
    uint32_t tokens[LONGEST];
    int alive;
} job_t;

typedef struct {
    moe_groups_t groups;
    moe_prefix_key_t key;
    moe_share_t shares[3][GROUPS];      /* of three tenants */
    job_t jobs[JOBS];
    uint64_t arrivals, steps;
} bench_t;


static bench_t *open_bench(uint32_t groups, uint32_t blocks, uint32_t sequences)
{
    const moe_scheduler_options_t options = {
        .batch_rows = 64 * groups, .batch_sequences = sequences, .batch_outputs = sequences + 4,
        .step_time_ns = 50 * MS
    };
    bench_t *bench = calloc(1, sizeof(*bench));
    moe_error_t error;

    assert_non_null(bench);
    assert_int_equal(moe_groups_init(&bench->groups, groups, &options, blocks, &error), 0);
    assert_int_equal(moe_prefix_key_init(&bench->key, "model", "f32", &error), 0);
    return bench;
}


static void close_bench(bench_t *bench)
{
    assert_int_equal(moe_groups_blocks(&bench->groups), moe_groups_unused(&bench->groups));
    assert_int_equal(moe_groups_running(&bench->groups), 0);
    assert_int_equal(moe_groups_waiting(&bench->groups), 0);
    moe_groups_free(&bench->groups);
    free(bench);
}


/* A prompt of one token again and again; returns its group. */
static uint32_t add(bench_t *bench, unsigned number, uint32_t token, uint32_t n_prompt,
                    uint32_t goal)
{
    const moe_string_t salt = { NULL, 0 };
    job_t *job = &bench->jobs[number];
    moe_error_t error;

    assert_false(job->alive);
    *job = (job_t) { .n_prompt = n_prompt, .goal = goal, .alive = 1 };
    for (uint32_t i = 0; i < LONGEST; i++) {
        job->tokens[i] = token;
    }
    assert_int_equal(moe_chain_init(&job->task.chain, &bench->key, salt, n_prompt + goal, &error),
                     0);
    moe_chain_extend(&job->task.chain, job->tokens, n_prompt);
    assert_int_equal(moe_block_table_init(&job->task.table, n_prompt + goal, &error), 0);
    job->task.tokens = job->tokens;
    job->task.n_tokens = n_prompt;
    job->task.outputs_from = n_prompt - 1;
    job->task.order = bench->arrivals++;
    job->task.deadline_ns = 1000 + bench->arrivals;
    job->task.shares = bench->shares[number % 3];
    moe_groups_add(&bench->groups, &job->task);
    return job->task.group;
}


static void end(bench_t *bench, job_t *job)
{
    moe_groups_remove(&bench->groups, &job->task);
    moe_block_table_free(&job->task.table);
    moe_chain_free(&job->task.chain);
    job->alive = 0;
}


/* Returns the rows. */
static uint32_t step(bench_t *bench)
{
    moe_groups_t *groups = &bench->groups;
    const uint32_t rows = moe_groups_plan(groups);
    uint32_t sum = 0;

    for (uint32_t g = 0; g < groups->count; g++) {
        assert_ptr_equal(groups->batches[g], &groups->groups[g].plan->batch);
        sum += groups->groups[g].plan->rows;
        for (uint32_t i = 0; i < groups->batches[g]->n_sequences; i++) {
            assert_int_equal(groups->groups[g].plan->tasks[i]->group, g);
        }
    }
    assert_int_equal(rows, sum);
    moe_groups_complete(groups, MS + rows * MS / 10);
    for (unsigned i = 0; i < JOBS; i++) {
        job_t *job = &bench->jobs[i];

        if (job->alive && job->task.computed == job->task.n_tokens) {
            if (job->task.n_tokens++ == job->n_prompt + job->goal - 1) {
                end(bench, job);
            }
        }
    }
    bench->steps++;
    return rows;
}


static void test_parts(void **state)
{
    for (uint32_t number = 1; number < 40; number++) {
        for (uint32_t count = 1; count < 9; count++) {
            uint32_t sum = 0;

            for (uint32_t i = 0; i < count; i++) {
                sum += moe_groups_part(number, i, count);
            }
            assert_int_equal(sum, number < count ? count : number);
        }
    }
}


static void test_equal_tasks_are_spread(void **state)
{
    bench_t *bench = open_bench(GROUPS, 64, 32);
    unsigned counts[GROUPS] = { 0 };

    for (unsigned i = 0; i < 32; i++) {
        counts[add(bench, i, i + 1, 30, 5)]++;
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        assert_int_equal(counts[g], 8);
    }
    assert_int_equal(moe_groups_next_deadline(&bench->groups), 1001);
    assert_ptr_equal(moe_groups_expired(&bench->groups, 1001), &bench->jobs[0].task);
    while (step(bench) > 0) {
    }
    close_bench(bench);
}


/* A kept prefix is worth as much as the rows that it saves. */
static void test_prefix(void **state)
{
    bench_t *bench = open_bench(2, 200, 32);

    assert_int_equal(add(bench, 0, 5, 20, 1), 0);
    assert_int_equal(add(bench, 1, 7, 320, 1), 1);
    while (step(bench) > 0) {
    }
    /* Alone: to its prefix, again and again. */
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(add(bench, 2, 7, 330, 2), 1);
        while (step(bench) > 0) {
        }
        assert_int_equal(bench->jobs[2].task.cached, 320);
    }
    /* Many at once: some go elsewhere, and the prefix is there, too, from then on. */
    for (unsigned i = 0; i < 30; i++) {
        add(bench, i, 7, 330, 2);
    }
    while (step(bench) > 0) {
    }
    assert_int_equal(add(bench, 0, 9, 200, 30), 0);
    assert_int_equal(add(bench, 1, 9, 100, 30), 1);
    assert_int_equal(add(bench, 2, 7, 330, 2), 1);
    assert_int_equal(add(bench, 3, 7, 330, 2), 0);
    while (step(bench) > 0) {
    }
    assert_int_equal(bench->jobs[2].task.cached, 320);
    assert_int_equal(bench->jobs[3].task.cached, 320);
    close_bench(bench);
}


/* Two groups of two places; all with much to do were sent to one of them. */
static void test_waiting_move(void **state)
{
    bench_t *bench = open_bench(2, 200, 4);

    /* Long ones in turn, so that the short ones of one group end first. */
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(add(bench, i, 10 + i, 40, i % 2 ? 1 : 100), i % 2);
    }
    for (unsigned i = 0; i < 30; i++) {
        step(bench);
    }
    /* All short ones are through, and the long ones of the other group have their places. */
    assert_int_equal(moe_groups_running(&bench->groups), 4);
    assert_int_equal(moe_groups_waiting(&bench->groups), 0);
    assert_int_equal(bench->jobs[0].task.group + bench->jobs[2].task.group, 0);
    assert_int_equal(bench->jobs[4].task.group + bench->jobs[6].task.group, 2);
    while (step(bench) > 0) {
    }
    close_bench(bench);
}


/* Any load comes to its end, also where the cache is too small for it. */
static void test_random_load(void **state)
{
    uint32_t seed = 3;

    for (unsigned round = 0; round < 20; round++) {
        bench_t *bench = open_bench(1 + round % GROUPS, 26, 5 + round);
        uint64_t steps = 0;

        for (unsigned i = 0; i < 4 * JOBS; i++) {
            job_t *job = &bench->jobs[i % JOBS];

            seed = seed * 1664525u + 1013904223u;
            if (job->alive) {
                end(bench, job);
            }
            add(bench, i % JOBS, 1 + (seed >> 20) % 5, 1 + (seed >> 8) % 300,
                1 + (seed >> 24) % 60);
            job->task.paused = (seed >> 16) % 7 == 0;
            for (unsigned n = (seed >> 28) % 4; n > 0; n--) {
                step(bench);
            }
        }
        for (unsigned i = 0; i < JOBS; i++) {
            bench->jobs[i].task.paused = 0;
        }
        while (step(bench) > 0) {
            assert_true(++steps < 100000);
        }
        close_bench(bench);
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_equal_tasks_are_spread),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_waiting_move),
        cmocka_unit_test(test_random_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
