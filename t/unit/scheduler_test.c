/*
 * The scheduler, driven by made-up tasks and times.  A task here wants `goal` tokens after its
 * prompt; each step that computes its last known token gives it the next.
 */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/serve/cost.h"
#include "engine/serve/scheduler.h"

#define MS 1000000ull
#define TASKS 48u
#define BLOCKS_LIMIT 64u

#define SHARES 4u

typedef struct {
    moe_task_t task;
    uint32_t n_prompt, goal;
    uint32_t tokens[512];
} job_t;

typedef struct {
    uint64_t rows[BLOCKS_LIMIT][MOE_BLOCK_TOKENS];      /* a hash of all tokens up to the row's */
    moe_cache_t *cache;
    moe_scheduler_t *scheduler;
    moe_scheduler_options_t options;
    moe_prefix_key_t key;
    int cached;                 /* jobs have chains */
    uint64_t arrivals;
    moe_share_t shares[SHARES];
    unsigned tenant;            /* of the next job */
    uint64_t deadline_ns;
} bench_t;


static void set_up(bench_t *bench, uint32_t blocks, uint32_t rows, uint32_t sequences)
{
    moe_error_t error;

    assert_true(blocks <= BLOCKS_LIMIT);
    memset(bench, 0, sizeof(*bench));
    bench->options = (moe_scheduler_options_t) {
        .batch_rows = rows,
        .batch_sequences = sequences,
        .batch_outputs = sequences + 4,
        .step_time_ns = 50 * MS
    };
    bench->cache = moe_cache_create(blocks, &error);
    bench->scheduler = moe_scheduler_create(&bench->options, bench->cache, &error);
    assert_non_null(bench->cache);
    assert_non_null(bench->scheduler);
    assert_int_equal(0, moe_prefix_key_init(&bench->key, "model", "f32", &error));
}


/* Everything was given back. */
static void tear_down(bench_t *bench)
{
    assert_int_equal(moe_cache_blocks(bench->cache), moe_cache_unused(bench->cache));
    assert_int_equal(0, moe_scheduler_running(bench->scheduler));
    assert_int_equal(0, moe_scheduler_waiting(bench->scheduler));
    moe_scheduler_free(bench->scheduler);
    moe_cache_free(bench->cache);
}


/* A task of a prompt of token 7, tokens[i] where there are any. */
static void add_tokens(bench_t *bench, job_t *job, const uint32_t *tokens, uint32_t n_prompt,
                       uint32_t goal, int32_t priority)
{
    const moe_string_t salt = { NULL, 0 };
    moe_error_t error;

    memset(job, 0, sizeof(*job));
    for (uint32_t i = 0; i < n_prompt; i++) {
        job->tokens[i] = tokens ? tokens[i] : 7;
    }
    if (bench->cached) {
        assert_int_equal(0, moe_chain_init(&job->task.chain, &bench->key, salt, n_prompt + goal,
                                           &error));
        moe_chain_extend(&job->task.chain, job->tokens, n_prompt);
    }
    job->n_prompt = n_prompt;
    job->goal = goal;
    job->task.tokens = job->tokens;
    job->task.n_tokens = n_prompt;
    job->task.outputs_from = n_prompt - 1;
    job->task.priority = priority;
    job->task.order = bench->arrivals++;
    job->task.share = &bench->shares[bench->tenant];
    job->task.deadline_ns = bench->deadline_ns;
    assert_int_equal(0, moe_block_table_init(&job->task.table, n_prompt + goal, &error));
    moe_scheduler_add(bench->scheduler, &job->task);
}


static void add(bench_t *bench, job_t *job, uint32_t n_prompt, uint32_t goal, int32_t priority)
{
    add_tokens(bench, job, NULL, n_prompt, goal, priority);
}


static void finish(bench_t *bench, job_t *job)
{
    moe_scheduler_remove(bench->scheduler, &job->task);
    moe_block_table_free(&job->task.table);
    moe_chain_free(&job->task.chain);
}


/* Writes the rows of the step, or checks that they and all before them are what they must be: when
 * all were written, so that nobody has written another's. */
static void visit_rows(bench_t *bench, const moe_task_t *task, const moe_batch_sequence_t *s,
                       int check)
{
    uint64_t hash = 0;

    for (uint32_t p = 0; p < s->position + s->n_tokens; p++) {
        uint64_t *row = &bench->rows[s->blocks[p / MOE_BLOCK_TOKENS]][p % MOE_BLOCK_TOKENS];

        hash = (hash ^ (task->tokens[p] + 1)) * 0x9e3779b97f4a7c15ull + (hash >> 29);
        if (!check && p >= s->position) {
            *row = hash;
        }
        if (check && *row != hash) {
            fail_msg("position %u of %u is not that of these tokens", p, s->position + s->n_tokens);
        }
    }
}


static void run_step(bench_t *bench, const moe_batch_t *batch, moe_task_t *const *tasks)
{
    for (uint32_t i = 0; i < batch->n_copies; i++) {
        const moe_block_copy_t *copy = &batch->copies[i];

        assert_true(copy->tokens > 0 && copy->tokens < MOE_BLOCK_TOKENS);
        memmove(bench->rows[copy->to], bench->rows[copy->from], copy->tokens * sizeof(uint64_t));
    }
    for (uint32_t i = 0; i < 2 * batch->n_sequences; i++) {
        uint32_t j = i % batch->n_sequences;

        visit_rows(bench, tasks[j], &batch->sequences[j], i >= batch->n_sequences);
    }
}


/* What every plan must keep to. */
static void check_plan(bench_t *bench, const moe_plan_t *plan)
{
    uint32_t rows = 0, outputs = 0;

    assert_true(plan->batch.n_sequences <= bench->options.batch_sequences);
    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        const moe_batch_sequence_t *s = &plan->batch.sequences[i];
        const moe_task_t *task = plan->tasks[i];

        assert_int_equal(MOE_TASK_RUNNING, task->state);
        assert_false(task->paused);
        assert_true(s->n_tokens >= 1 && s->n_outputs <= s->n_tokens);
        assert_int_equal(task->computed, s->position);
        assert_ptr_equal(task->tokens + s->position, s->tokens);
        assert_true(s->position + s->n_tokens <= task->n_tokens);
        assert_true(moe_cache_blocks_for(s->position + s->n_tokens) <= task->table.count);
        if (s->position + s->n_tokens == task->n_tokens) {
            assert_true(s->n_outputs >= 1);
        }
        rows += s->n_tokens;
        outputs += s->n_outputs;
        for (uint32_t j = 0; j < i; j++) {
            assert_ptr_not_equal(task, plan->tasks[j]);
        }
    }
    assert_int_equal(rows, plan->rows);
    assert_true(rows <= bench->options.batch_rows);
    assert_true(outputs <= bench->options.batch_outputs);
    run_step(bench, &plan->batch, plan->tasks);
}


/* Ends a step; finished jobs leave. */
static void advance(bench_t *bench, const moe_plan_t *plan, uint64_t elapsed_ns)
{
    moe_scheduler_complete(bench->scheduler, elapsed_ns);
    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        job_t *job = (job_t *) plan->tasks[i];

        if (job->task.computed < job->task.n_tokens) {
            continue;
        }
        job->tokens[job->task.n_tokens++] = 1;
        job->task.outputs_from = job->task.n_tokens - 1;
        if (job->task.n_tokens == job->n_prompt + job->goal) {
            finish(bench, job);
        }
    }
}


/* One step that takes `row_ns` per row.  Returns its rows. */
static uint32_t step(bench_t *bench, uint64_t row_ns)
{
    const moe_plan_t *plan = moe_scheduler_plan(bench->scheduler);

    check_plan(bench, plan);
    if (plan->batch.n_sequences > 0) {
        advance(bench, plan, plan->rows * row_ns);
    }
    return plan->rows;
}


static uint32_t generated(const job_t *job)
{
    return job->task.n_tokens - job->n_prompt;
}


static void test_one(void **state)
{
    bench_t bench;
    job_t job;

    set_up(&bench, 8, 64, 4);
    assert_int_equal(0, step(&bench, MS));
    add(&bench, &job, 20, 3, 0);
    assert_int_equal(MOE_LEAST_CHUNK, step(&bench, MS / 10));     /* the cost is not known yet */
    assert_int_equal(20 - MOE_LEAST_CHUNK, step(&bench, MS / 10));
    assert_int_equal(1, generated(&job));
    assert_int_equal(1, step(&bench, MS / 10));
    assert_int_equal(1, step(&bench, MS / 10));
    assert_int_equal(0, step(&bench, MS / 10));
    tear_down(&bench);
}


/* Decodes go on while a long prompt is cut into chunks, sized by rows and by time. */
static void test_chunks(void **state)
{
    static const struct {
        uint32_t rows;
        uint64_t row_ns;
        uint32_t most;          /* rows of a step once the cost is known */
    } cases[] = {
        { 64, 10000, 64 },      /* cheap rows: batch_rows */
        { 256, MS, 52 },        /* 1 ms a row: about 50 rows in 50 ms */
        { 256, 20 * MS, 17 }    /* too slow for anything: the least chunk */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t rows, before, steps = 0;
        bench_t bench;
        job_t decoding, prompt;

        set_up(&bench, 64, cases[i].rows, 4);
        add(&bench, &decoding, 17, 200, 0);
        step(&bench, cases[i].row_ns);
        step(&bench, cases[i].row_ns);
        add(&bench, &prompt, 400, 1, 0);
        while (generated(&prompt) == 0) {
            before = generated(&decoding);
            rows = step(&bench, cases[i].row_ns);
            assert_int_equal(before + 1, generated(&decoding));
            assert_true(rows <= cases[i].most);
            assert_true(++steps < 100);
        }
        assert_true(steps >= 400 / cases[i].most);
        finish(&bench, &decoding);
        tear_down(&bench);
    }
}


/* What a step takes on a machine where rows deep in a long sequence cost most, with noise. */
static uint64_t made_up_time(const moe_plan_t *plan, unsigned *seed)
{
    double us = 1000.0;

    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        const moe_batch_sequence_t *s = &plan->batch.sequences[i];

        us += s->n_tokens * (s->n_tokens == 1 ? 300.0 : 100.0)
              + (double) moe_attended(s->position, s->n_tokens) * 2.0;
    }
    return (uint64_t) (us * (0.9 + 0.2 * rand_r(seed) / RAND_MAX) * 1000.0);
}


/* Steps neither exceed step_time nor leave it unused while prompts of 400 rows, the last of which
 * cost eight times the first, follow each other beside streams that come and go. */
static void test_step_time(void **state)
{
    job_t *jobs = calloc(TASKS, sizeof(job_t));
    unsigned seed = 3, full = 0, unused = 0, over = 0;
    bench_t bench;

    assert_non_null(jobs);
    set_up(&bench, 64, 512, 10);
    for (unsigned round = 0; round < 3000; round++) {
        const moe_plan_t *plan;
        uint32_t prefill;
        uint64_t time;

        for (unsigned i = 0; i < 10; i++) {
            unsigned wanted = round < 1000 ? 4 : round < 2000 ? 10 : 2;

            if (jobs[i].task.state == MOE_TASK_NEW && i < wanted) {
                add(&bench, &jobs[i], i ? 20 : 400, i ? 40 : 1, 0);
            }
        }
        plan = moe_scheduler_plan(bench.scheduler);
        check_plan(&bench, plan);
        prefill = plan->rows - plan->decode_rows;
        time = made_up_time(plan, &seed);
        advance(&bench, plan, time);
        if (round > 5) {
            over += time > 60 * MS;
            full += prefill > 0 && jobs[0].task.computed > 0 && jobs[0].task.computed < 300;
            unused += prefill > 0 && jobs[0].task.computed > 0 && jobs[0].task.computed < 300
                      && time < 42 * MS;
        }
    }
    assert_true(full > 300);
    assert_true(over < 10);
    assert_true(unused < 10);
    for (unsigned i = 0; i < TASKS; i++) {
        if (jobs[i].task.state != MOE_TASK_NEW) {
            finish(&bench, &jobs[i]);
        }
    }
    tear_down(&bench);
    free(jobs);
}


static void test_priority_then_arrival(void **state)
{
    static const int32_t priorities[] = { 0, 5, -1, 0, -1 };
    static const unsigned order[] = { 2, 4, 0, 3, 1 };
    bench_t bench;
    job_t jobs[5];

    set_up(&bench, 8, 64, 1);
    for (unsigned i = 0; i < 5; i++) {
        add(&bench, &jobs[i], 10, 2, priorities[i]);
    }
    for (unsigned i = 0; i < 5; i++) {
        step(&bench, MS);
        assert_int_equal(1, generated(&jobs[order[i]]));
        step(&bench, MS);
        assert_int_equal(2, generated(&jobs[order[i]]));
    }
    tear_down(&bench);
}


/* The queue is not overtaken by a smaller request. */
static void test_no_overtaking(void **state)
{
    bench_t bench;
    job_t first, large, small;

    set_up(&bench, 8, 64, 4);
    add(&bench, &first, 80, 10, 0);
    step(&bench, MS / 100);
    step(&bench, MS / 100);
    add(&bench, &large, 60, 1, 0);
    add(&bench, &small, 5, 1, 0);
    for (unsigned i = 0; i < 4; i++) {
        step(&bench, MS / 100);
        assert_int_equal(MOE_TASK_WAITING, large.task.state);
        assert_int_equal(MOE_TASK_WAITING, small.task.state);
    }
    finish(&bench, &first);
    step(&bench, MS / 100);
    assert_int_equal(1, generated(&large));
    step(&bench, MS / 100);
    assert_int_equal(1, generated(&small));
    tear_down(&bench);
}


/* Out of blocks: the youngest loses them, starts over later, and everybody comes to an end. */
static void test_preemption(void **state)
{
    bench_t bench;
    job_t jobs[4];
    unsigned steps = 0, oldest = 0;
    int runs = 0;

    set_up(&bench, 10, 64, 4);
    for (unsigned i = 0; i < 4; i++) {
        add(&bench, &jobs[i], 15, 100, 0);
    }
    while (step(&bench, MS / 100) > 0) {
        if (moe_scheduler_preemptions(bench.scheduler) == 1 && steps == 0) {
            steps = 1;
            assert_int_equal(MOE_TASK_WAITING, jobs[3].task.state);
            assert_int_equal(0, jobs[3].task.table.count);
        }
        /* The oldest does not step back. */
        assert_false(runs && jobs[oldest].task.state == MOE_TASK_WAITING);
        while (oldest < 3 && jobs[oldest].task.state == MOE_TASK_NEW) {
            oldest++;
        }
        runs = jobs[oldest].task.state == MOE_TASK_RUNNING;
        assert_true(++steps < 2000);
    }
    assert_true(moe_scheduler_preemptions(bench.scheduler) >= 2);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(100, generated(&jobs[i]));
    }
    tear_down(&bench);
}


static void test_paused(void **state)
{
    bench_t bench;
    job_t first, slow, other, third;

    set_up(&bench, 8, 64, 2);
    add(&bench, &first, MOE_LEAST_CHUNK, 1, 0);         /* teaches what a row costs */
    step(&bench, MS / 100);
    add(&bench, &slow, 20, 50, 0);
    add(&bench, &other, 20, 50, 0);
    step(&bench, MS / 100);
    slow.task.paused = 1;
    for (unsigned i = 0; i < 5; i++) {
        step(&bench, MS / 100);
    }
    assert_int_equal(1, generated(&slow));
    assert_int_equal(6, generated(&other));
    assert_int_equal(2, slow.task.table.count);         /* nobody else wants its blocks */

    add(&bench, &third, 20, 2, 0);                      /* wants its place */
    step(&bench, MS / 100);
    assert_int_equal(1, generated(&third));
    assert_int_equal(MOE_TASK_WAITING, slow.task.state);
    assert_int_equal(0, slow.task.table.count);
    step(&bench, MS / 100);
    step(&bench, MS / 100);
    assert_int_equal(1, generated(&slow));

    slow.task.paused = 0;
    step(&bench, MS / 100);
    assert_int_equal(2, generated(&slow));
    other.task.paused = slow.task.paused = 1;
    assert_int_equal(0, step(&bench, MS / 100));
    finish(&bench, &slow);
    finish(&bench, &other);
    tear_down(&bench);
}


/* With prompt_logprobs every row is an output: chunks keep within batch_outputs. */
static void test_outputs(void **state)
{
    uint32_t outputs = 0;
    bench_t bench;
    job_t job;

    set_up(&bench, 16, 64, 4);
    add(&bench, &job, 100, 1, 0);
    job.task.outputs_from = 3;
    while (job.task.computed < 100) {
        const moe_plan_t *plan = moe_scheduler_plan(bench.scheduler);

        check_plan(&bench, plan);
        outputs += plan->batch.sequences[0].n_outputs;
        moe_scheduler_complete(bench.scheduler, MS);
    }
    assert_int_equal(97, outputs);
    finish(&bench, &job);
    tear_down(&bench);
}


static void test_deadline(void **state)
{
    bench_t bench;
    job_t running, waiting, last;

    set_up(&bench, 8, 64, 1);
    bench.deadline_ns = 5;
    add(&bench, &running, 10, 50, 0);
    assert_int_equal(5, moe_scheduler_next_deadline(bench.scheduler));
    step(&bench, MS);
    assert_int_equal(0, moe_scheduler_next_deadline(bench.scheduler));
    assert_null(moe_scheduler_expired(bench.scheduler, 1000));
    bench.deadline_ns = 200;
    add(&bench, &last, 10, 50, 0);
    bench.deadline_ns = 100;
    add(&bench, &waiting, 10, 50, 0);
    assert_int_equal(100, moe_scheduler_next_deadline(bench.scheduler));
    assert_null(moe_scheduler_expired(bench.scheduler, 99));
    assert_ptr_equal(&waiting, moe_scheduler_expired(bench.scheduler, 100));
    finish(&bench, &waiting);
    assert_int_equal(200, moe_scheduler_next_deadline(bench.scheduler));
    /* Who was started once and had to give way is not late. */
    running.task.paused = 1;
    step(&bench, MS);
    assert_int_equal(MOE_TASK_WAITING, running.task.state);
    assert_null(moe_scheduler_expired(bench.scheduler, 1000));
    assert_int_equal(0, moe_scheduler_next_deadline(bench.scheduler));
    finish(&bench, &last);
    finish(&bench, &running);
    tear_down(&bench);
}


/* ---- the prefix cache ---- */

/* A second task of the same prompt computes what is not cached; without its first logits, none. */
static void test_cached(void **state)
{
    static const struct {
        uint32_t n_prompt, outputs_from, cached;
    } cases[] = { { 100, 99, 96 }, { 96, 95, 95 }, { 40, 39, 39 }, { 100, 0, 0 }, { 100, 50, 50 } };
    bench_t bench;
    job_t job;

    set_up(&bench, 16, 64, 4);
    bench.cached = 1;
    add(&bench, &job, 100, 1, 0);
    while (step(&bench, MS / 100) > 0) {
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t rows = 0, n;

        add(&bench, &job, cases[i].n_prompt, 1, 0);
        job.task.outputs_from = cases[i].outputs_from;
        while ((n = step(&bench, MS / 100)) > 0) {
            rows += n;
        }
        assert_int_equal(cases[i].cached, job.task.cached);
        assert_int_equal(cases[i].n_prompt - cases[i].cached, rows);
    }
    tear_down(&bench);
}


/* What one computes the others of the same prompt wait for. */
static void test_followers(void **state)
{
    uint32_t other[100], rows = 0, n;
    bench_t bench;
    job_t jobs[4];

    for (uint32_t i = 0; i < 100; i++) {
        other[i] = i < 48 ? 7 : i;
    }
    set_up(&bench, 40, 24, 4);
    bench.cached = 1;
    bench.deadline_ns = 1;
    for (unsigned i = 0; i < 4; i++) {
        add_tokens(&bench, &jobs[i], i == 2 ? other : NULL, 100, 2, 0);
    }
    rows += step(&bench, MS / 100);
    for (unsigned i = 1; i < 4; i++) {
        assert_int_equal(MOE_TASK_WAITING, jobs[i].task.state);
    }
    assert_null(moe_scheduler_expired(bench.scheduler, 1000));      /* they are not late */
    while ((n = step(&bench, MS / 100)) > 0) {
        rows += n;
    }
    /* The third has 48 tokens in common with the others, three blocks. */
    assert_int_equal(100 + 52 + 2 * 4 + 4, rows);
    assert_int_equal(0, jobs[0].task.cached);
    assert_int_equal(96, jobs[1].task.cached);
    assert_int_equal(48, jobs[2].task.cached);
    assert_int_equal(96, jobs[3].task.cached);
    tear_down(&bench);
}


/* Nobody waits for one that is paused, or cancelled, or goes after it, or is another tenant's. */
static void test_nobody_to_follow(void **state)
{
    for (unsigned what = 0; what < 5; what++) {
        bench_t bench;
        job_t first, second;

        set_up(&bench, 40, 32, 4);
        bench.cached = 1;
        add(&bench, &first, 40, 1, what == 0 ? 1 : 0);
        step(&bench, MS / 100);
        bench.tenant = what == 3;
        bench.deadline_ns = 1;
        add(&bench, &second, 40, 1, 0);
        first.task.paused = what == 1;
        if (what == 2) {
            finish(&bench, &first);
        }
        assert_true((moe_scheduler_expired(bench.scheduler, 1) == NULL) == (what == 4));
        step(&bench, MS / 100);
        assert_true((second.task.state == MOE_TASK_WAITING) == (what == 4));
        first.task.paused = 0;
        while (step(&bench, MS / 100) > 0) {
        }
        assert_int_equal(1, generated(&second));
        tear_down(&bench);
    }
}


/* Who had to give way finds what it had computed. */
static void test_preempted_is_cached(void **state)
{
    uint32_t rows = 0, n, other[20] = { 0 };
    bench_t bench;
    job_t first, second;

    set_up(&bench, 8, 64, 2);
    bench.cached = 1;
    add(&bench, &first, 64, 30, 0);
    while (generated(&first) < 20) {
        step(&bench, MS / 100);
    }
    first.task.paused = 1;
    add_tokens(&bench, &second, other, 20, 1, 0);
    step(&bench, MS / 100);
    assert_int_equal(1, generated(&second));
    assert_int_equal(1, moe_scheduler_preemptions(bench.scheduler));
    assert_int_equal(MOE_TASK_WAITING, first.task.state);
    first.task.paused = 0;
    while ((n = step(&bench, MS / 100)) > 0) {
        rows += n;
    }
    /* Five full blocks of 84 tokens; what it has generated after them. */
    assert_int_equal(84 - 80 + 9, rows);
    assert_int_equal(30, generated(&first));
    assert_int_equal(0, first.task.cached);
    tear_down(&bench);
}


/* ---- tenants ---- */

/* Tenant 0 has prompts waiting and running all the time; how many steps does tenant 1's take? */
static unsigned steps_to_first(bench_t *bench, uint32_t n_prompt, unsigned flood, uint32_t goal)
{
    job_t *jobs = calloc(TASKS, sizeof(job_t)), *job = calloc(1, sizeof(*job));
    unsigned steps = 0;

    assert_true(jobs && job);
    bench->tenant = 0;
    for (unsigned i = 0; i < flood; i++) {
        add(bench, &jobs[i], 100, goal, 0);
    }
    for (unsigned i = 0; i < 40; i++) {
        step(bench, MS / 10);
    }
    bench->tenant = 1;
    add(bench, job, n_prompt, 2, 0);
    while (generated(job) == 0) {
        step(bench, MS / 10);
        assert_true(++steps < 100);
    }
    finish(bench, job);
    for (unsigned i = 0; i < flood; i++) {
        if (jobs[i].task.state != MOE_TASK_NEW) {
            finish(bench, &jobs[i]);
        }
    }
    free(jobs);
    free(job);
    return steps;
}


/* A flood costs the other tenant the rows of the flood's decodes, whatever of it waits and whether
 * places, blocks or rows are what it took all of. */
static void test_flood(void **state)
{
    static const struct {
        uint32_t blocks, rows, sequences, prompt, goal;
    } cases[] = {
        { 64, 64, 4, 300, 400 },        /* places: 4 run for long */
        { 64, 64, 8, 300, 2 },          /* rows: prompts follow prompts */
        { 40, 64, 16, 250, 400 },       /* blocks */
        { 64, 32, 8, 300, 1 }
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned alone, flooded;
        bench_t bench;

        set_up(&bench, cases[i].blocks, cases[i].rows, cases[i].sequences);
        alone = steps_to_first(&bench, cases[i].prompt, 0, 0);
        tear_down(&bench);
        set_up(&bench, cases[i].blocks, cases[i].rows, cases[i].sequences);
        flooded = steps_to_first(&bench, cases[i].prompt, TASKS, cases[i].goal);
        tear_down(&bench);
        /* And one for the step that was running when it came. */
        assert_true(flooded + 1 <= 2 * alone);
    }
}


/* Two tenants that both want all they can get have equal rows, however many requests they cut them
 * into; then the third comes, who is owed something. */
static void test_equal_rows(void **state)
{
    static const uint32_t prompts[SHARES] = { 200, 20, 64, 100 };
    job_t *jobs = calloc(TASKS, sizeof(job_t));
    uint64_t served[SHARES] = { 0 };
    bench_t bench;

    assert_non_null(jobs);
    set_up(&bench, 64, 64, 16);
    for (unsigned round = 0; round < 4000; round++) {
        unsigned tenants = round < 2000 ? 2 : 3;

        for (unsigned i = 0; i < TASKS; i++) {
            bench.tenant = i % SHARES;
            if (jobs[i].task.state == MOE_TASK_NEW && bench.tenant < tenants) {
                add(&bench, &jobs[i], prompts[bench.tenant], 1 + i % 3, 0);
            }
        }
        step(&bench, MS / 10);
        for (unsigned i = 0; i < tenants; i++) {
            if (round == 100 || round == 2000) {
                served[i] = bench.shares[i].served;
            }
        }
        if (round == 1999) {
            uint64_t first = bench.shares[0].served - served[0];
            uint64_t second = bench.shares[1].served - served[1];

            assert_true(first > 40000 && second > 40000);
            assert_true(first < second + 2 * 64 && second < first + 2 * 64);
        }
    }
    /* The third's credit was limited, and is used up. */
    assert_true(bench.shares[2].served - served[2] < bench.shares[0].served - served[0]
                                                     + MOE_SHARE_CREDIT + 2 * 64);
    assert_true(bench.shares[0].served - served[0] > 20000);
    assert_false(moe_scheduler_settled(bench.scheduler, &bench.shares[2]));
    assert_true(moe_scheduler_settled(bench.scheduler, &bench.shares[3]));
    for (unsigned i = 0; i < TASKS; i++) {
        if (jobs[i].task.state != MOE_TASK_NEW) {
            finish(&bench, &jobs[i]);
        }
    }
    tear_down(&bench);
    free(jobs);
}


/* Places: the youngest of who has more than its part steps back, once, and the oldest never. */
static void test_equal_places(void **state)
{
    job_t *jobs = calloc(TASKS, sizeof(job_t));
    bench_t bench;

    assert_non_null(jobs);
    set_up(&bench, 64, 64, 4);
    for (unsigned i = 0; i < 8; i++) {
        add(&bench, &jobs[i], 16, 300, 0);
    }
    for (unsigned i = 0; i < 10; i++) {
        step(&bench, MS / 100);
    }
    assert_int_equal(4, bench.shares[0].running);
    assert_int_equal(0, moe_scheduler_preemptions(bench.scheduler));
    bench.tenant = 1;
    for (unsigned i = 8; i < 12; i++) {
        add(&bench, &jobs[i], 16, 300, 0);
    }
    step(&bench, MS / 100);
    assert_int_equal(1, moe_scheduler_preemptions(bench.scheduler));
    assert_int_equal(MOE_TASK_WAITING, jobs[3].task.state);
    assert_int_equal(1, generated(&jobs[8]));
    step(&bench, MS / 100);
    assert_int_equal(MOE_TASK_WAITING, jobs[2].task.state);
    assert_int_equal(MOE_TASK_RUNNING, jobs[8].task.state);
    assert_int_equal(MOE_TASK_RUNNING, jobs[9].task.state);
    for (unsigned i = 0; i < 50; i++) {
        step(&bench, MS / 100);
        assert_int_equal(2, moe_scheduler_preemptions(bench.scheduler));
    }
    /* What the other gives up is the other's again, not the one's that waits longer. */
    finish(&bench, &jobs[8]);
    bench.shares[1].served += 1000;
    step(&bench, MS / 100);
    assert_int_equal(MOE_TASK_RUNNING, jobs[10].task.state);
    assert_int_equal(2, moe_scheduler_preemptions(bench.scheduler));
    /* Less important tasks take nothing from others. */
    bench.tenant = 2;
    add(&bench, &jobs[12], 16, 300, 1);
    step(&bench, MS / 100);
    assert_int_equal(MOE_TASK_WAITING, jobs[12].task.state);
    add(&bench, &jobs[13], 16, 300, 0);
    step(&bench, MS / 100);
    assert_int_equal(MOE_TASK_RUNNING, jobs[13].task.state);
    assert_int_equal(MOE_TASK_RUNNING, jobs[0].task.state);
    for (unsigned i = 0; i < 14; i++) {
        if (jobs[i].task.state != MOE_TASK_NEW) {
            finish(&bench, &jobs[i]);
        }
    }
    tear_down(&bench);
    free(jobs);
}


/* The oldest keeps its blocks, though its tenant has most of them. */
static void test_oldest_of_all(void **state)
{
    job_t jobs[3];
    bench_t bench;

    set_up(&bench, 10, 64, 4);
    add(&bench, &jobs[0], 80, 40, 0);
    bench.tenant = 1;
    add(&bench, &jobs[1], 15, 60, 0);
    add(&bench, &jobs[2], 15, 60, 0);
    do {
        assert_true(step(&bench, MS / 100) > 0);
        assert_int_not_equal(MOE_TASK_WAITING, jobs[0].task.state);
    } while (jobs[0].task.state == MOE_TASK_RUNNING);
    assert_true(moe_scheduler_preemptions(bench.scheduler) > 0);
    while (step(&bench, MS / 100) > 0) {
    }
    tear_down(&bench);
}


/* A step that completes a prompt of who was served less is not filled up with the other's, but two
 * in a row are not cut short. */
static void test_short_prompt(void **state)
{
    job_t large, small;
    uint32_t computed;
    bench_t bench;

    set_up(&bench, 64, 64, 4);
    add(&bench, &large, 400, 1, 0);
    for (unsigned i = 0; i < 3; i++) {
        step(&bench, MS / 100);
    }
    bench.tenant = 1;
    for (unsigned i = 0; i < 4; i++) {
        computed = large.task.computed;
        add(&bench, &small, 20, 1, 0);
        assert_int_equal(i % 2 ? 64 : 20, step(&bench, MS / 100));
        assert_int_equal(MOE_TASK_NEW, small.task.state);
        assert_int_equal(i % 2 ? computed + 44 : computed, large.task.computed);
    }
    finish(&bench, &large);
    tear_down(&bench);
}


/* A flood fills steps, of 0.1 ms a row, to step_time until somebody comes, then to a quarter of it,
 * until nobody came for long; the other's prompt is not cut. */
static void test_contested(void **state)
{
    job_t *jobs = calloc(TASKS, sizeof(job_t)), *other = calloc(1, sizeof(job_t));
    bench_t bench;
    unsigned steps;

    assert_true(jobs && other);
    set_up(&bench, 64, 512, 8);
    for (unsigned i = 0; i < TASKS; i++) {
        add(&bench, &jobs[i], 400, 1, 0);
    }
    step(&bench, MS / 10);
    for (unsigned i = 0; i < 4; i++) {
        assert_in_range(step(&bench, MS / 10), 480, 512);  /* nobody else is here */
    }
    bench.tenant = 1;
    add(&bench, other, 300, 3, 0);
    assert_int_equal(300, step(&bench, MS / 10));
    for (steps = 0; bench.shares[0].waiting.count > 10; steps++) {
        assert_in_range(step(&bench, MS / 10), 120, 130);   /* a quarter of step_time */
    }
    assert_true(steps > 50);
    /* Also while both are served equally, what the flood leaves of a step is the other's. */
    bench.shares[1].served = bench.shares[0].served;
    add(&bench, other, 400, 1, 0);
    assert_in_range(step(&bench, MS / 10), 300, 512);
    finish(&bench, other);
    /* What is let in at once is no flood. */
    for (unsigned i = 0; i < TASKS; i++) {
        if (jobs[i].task.state != MOE_TASK_NEW) {
            finish(&bench, &jobs[i]);
        }
    }
    bench.tenant = 0;
    add(&bench, &jobs[0], 400, 1, 0);
    assert_true(step(&bench, MS / 10) > 250);
    while (step(&bench, MS / 10) > 0) {
    }
    /* Long after the other was here. */
    bench.tenant = 0;
    for (unsigned i = 0; i < 12; i++) {
        add(&bench, &jobs[i], 400, 1, 0);
    }
    assert_in_range(step(&bench, 30000 * MS / 100), 120, 130);
    assert_true(step(&bench, MS / 10) > 250);
    for (unsigned i = 0; i < 12; i++) {
        if (jobs[i].task.state != MOE_TASK_NEW) {
            finish(&bench, &jobs[i]);
        }
    }
    tear_down(&bench);
    free(jobs);
    free(other);
}


/* Decodes of a flood stand back from a step that completes the other's prompt, not twice in a row,
 * and only where they are a flood's. */
static void test_decodes_stand_back(void **state)
{
    static const struct {
        unsigned flood;         /* tasks, of which 4 find a place */
        int32_t priority;       /* of the flood */
        int stands_back;
    } cases[] = { { 8, 0, 1 }, { 8, 1, 1 }, { 2, 0, 0 } };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        job_t jobs[8], other;
        bench_t bench;
        uint32_t before;

        set_up(&bench, 64, 128, 4);
        for (unsigned j = 0; j < cases[i].flood; j++) {
            add(&bench, &jobs[j], 20, 300, cases[i].priority);
        }
        for (unsigned j = 0; j < 10; j++) {
            step(&bench, MS / 10);
        }
        bench.tenant = 1;
        for (unsigned round = 0; round < 4; round++) {
            int aside = cases[i].stands_back && round % 2 == 0;

            before = generated(&jobs[0]);
            add(&bench, &other, 10, 1, 0);
            step(&bench, MS / 10);
            assert_int_equal(MOE_TASK_NEW, other.task.state);
            assert_int_equal(before + !aside, generated(&jobs[0]));
        }
        for (unsigned j = 0; j < cases[i].flood; j++) {
            finish(&bench, &jobs[j]);
        }
        tear_down(&bench);
    }
}


/* Arrivals, cancellations, pauses in random order: plans stay within bounds, no block is lost, and
 * in the end everybody who was not cancelled has what it wanted. */
static void run_random(int cached)
{
    job_t *jobs = calloc(TASKS, sizeof(job_t));
    int alive[TASKS] = { 0 };
    unsigned seed = 7, finished = 0, cancelled = 0, found = 0;
    uint32_t tokens[150];
    bench_t bench;

    assert_non_null(jobs);
    set_up(&bench, 24, 48, 6);
    bench.cached = cached;
    for (unsigned round = 0; round < 30000; round++) {
        unsigned i = (unsigned) rand_r(&seed) % TASKS;

        if (round < 25000 && !alive[i]) {
            bench.tenant = (unsigned) rand_r(&seed) % SHARES;
            for (unsigned n = 0; n < 150; n++) {
                tokens[n] = n % 10 == 9 && rand_r(&seed) % 8 == 0;
            }
            add_tokens(&bench, &jobs[i], tokens, 1 + (uint32_t) rand_r(&seed) % 150,
                       1 + (uint32_t) rand_r(&seed) % 200, rand_r(&seed) % 3);
            alive[i] = 1;
        } else if (alive[i] && rand_r(&seed) % 50 == 0) {
            finish(&bench, &jobs[i]);
            alive[i] = 0;
            cancelled++;
        } else if (alive[i]) {
            jobs[i].task.paused = round < 25000 && rand_r(&seed) % 4 == 0;
        }
        step(&bench, (uint64_t) rand_r(&seed) % (2 * MS));
        for (unsigned j = 0; j < TASKS; j++) {
            if (alive[j] && jobs[j].task.state == MOE_TASK_NEW) {
                assert_int_equal(jobs[j].goal, generated(&jobs[j]));
                alive[j] = 0;
                finished++;
                found += jobs[j].task.cached > 0;
            }
        }
    }
    assert_true(finished > 100);
    assert_true(cancelled > 50);
    assert_true(moe_scheduler_preemptions(bench.scheduler) > 50);
    assert_true(cached ? found > 50 : found == 0);
    tear_down(&bench);
    free(jobs);
}


static void test_random(void **state)
{
    run_random(0);
}


static void test_random_cached(void **state)
{
    run_random(1);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_step_time),
        cmocka_unit_test(test_priority_then_arrival),
        cmocka_unit_test(test_no_overtaking),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_paused),
        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_cached),
        cmocka_unit_test(test_followers),
        cmocka_unit_test(test_nobody_to_follow),
        cmocka_unit_test(test_preempted_is_cached),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_equal_rows),
        cmocka_unit_test(test_equal_places),
        cmocka_unit_test(test_oldest_of_all),
        cmocka_unit_test(test_short_prompt),
        cmocka_unit_test(test_contested),
        cmocka_unit_test(test_decodes_stand_back),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_random_cached)
    };

    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
