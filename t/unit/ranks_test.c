/*
 * Ranks: the same bits as an only rank gives, whoever has which sequences and however prompts are
 * cut; a lost rank is an error of all and never a hang.
 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "engine/core/clock.h"
#include "t/unit/ranks_fixture.h"


/* Whatever form rows travel in, and what is computed meanwhile: a form changes bits, the number of
 * ranks and the overlap do not. */
static void test_exchange(void **state)
{
    const uint32_t worlds[][2] = { { 1, 1 }, { 2, 1 }, { 2, 2 }, { 4, 1 }, { 8, 2 } };
    fixture_t *f = open_model(tiny_model_defaults());

    for (moe_payload_t p = MOE_PAYLOAD_F32; p <= MOE_PAYLOAD_FP8; p++) {
        float *expected = compute_alone(f, p);

        for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
            moe_ranks_options_t options = rank_options(f, worlds[i][0]);
            uint64_t in_halves, at_once;

            options.tensor_parallel = worlds[i][1];
            options.forward.exchange = p;
            options.forward.overlap = MOE_OVERLAP_TWO_BATCH;
            in_halves = check_bits(f, &options, TOKENS, i, expected);
            options.forward.overlap = MOE_OVERLAP_OFF;
            at_once = check_bits(f, &options, 5, i, expected);
            assert_true(worlds[i][0] == 1 ? at_once == 0 : at_once > 0);
            if (options.tensor_parallel == 1) {         /* else parts share rows in another way */
                assert_int_equal(in_halves, at_once);
            }
        }
        free(expected);
    }
    close_model(f);
}


static void test_same_bits(void **state)
{
    const uint32_t counts[] = { 1, 2, 4, 8 }, chunks[] = { 1, 5, TOKENS };
    const tiny_model_t models[] = { tiny_model_defaults(), tiny_model_v2() };

    for (size_t m = 0; m < 2; m++) {
        fixture_t *f = open_model(models[m]);
        float *expected = compute_alone(f, MOE_PAYLOAD_F32);

        for (size_t i = 0; i < 4; i++) {
            const moe_ranks_options_t options = rank_options(f, counts[i]);

            for (size_t c = 0; c < 3; c++) {
                check_bits(f, &options, chunks[c], 10 * i + c, expected);
            }
        }
        free(expected);
        close_model(f);
    }
}


/* Heads that share keys, divided evenly and not; a norm over all of them; a gated shared expert. */
static void test_grouped_queries(void **state)
{
    const uint32_t worlds[][2] = { { 2, 1 }, { 2, 2 }, { 4, 2 }, { 3, 3 } };
    const char *const families[] = {
        "olmoe", "mixtral", "qwen3_moe", "minimax_m2", "glm4_moe", "qwen2_moe", "gpt_oss"
    };

    for (size_t m = 0; m < sizeof(families) / sizeof(families[0]); m++) {
        tiny_model_t model = tiny_model_gqa(families[m]);
        float *expected;
        fixture_t *f;

        model.kv_heads = 3;
        model.biases |= m == 2;
        model.window = m == 1 ? 20 : m == 5 ? 9 : model.window;
        f = open_model(model);
        expected = compute_alone(f, MOE_PAYLOAD_F32);
        for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
            moe_ranks_options_t options = rank_options(f, worlds[i][0]);

            options.tensor_parallel = worlds[i][1];
            check_bits(f, &options, 9, i, expected);
        }
        free(expected);
        close_model(f);
    }
}


/* ---- loops ---- */

typedef struct {
    _Atomic unsigned seen[MAX_RANKS][100];
    unsigned threads;
} loop_t;


static void see_items(void *context, uint32_t group, size_t first, size_t last, unsigned thread)
{
    loop_t *loop = context;

    assert_true(thread < loop->threads);
    for (size_t i = first; i < last; i++) {
        atomic_fetch_add(&loop->seen[group][i], 1);
    }
}


static void test_loops(void **state)
{
    const size_t items[MAX_RANKS] = { 100, 0, 1, 37 };
    fixture_t *f = open_model(tiny_model_defaults());
    moe_ranks_options_t options = rank_options(f, 4);
    loop_t loop = { .threads = 7 };
    moe_ranks_t *ranks;
    moe_error_t error;

    options.forward.threads = 7;
    ranks = create(f, &options);
    assert_int_equal(moe_ranks_threads(ranks), 7);
    for (unsigned round = 1; round <= 50; round++) {
        assert_int_equal(moe_ranks_run(ranks, see_items, &loop, items, &error), 0);
        for (uint32_t g = 0; g < 4; g++) {
            for (size_t i = 0; i < 100; i++) {
                assert_int_equal(loop.seen[g][i], i < items[g] ? round : 0);
            }
        }
    }
    moe_ranks_free(ranks);
    close_model(f);
}


/* ---- what cannot be ---- */

static void test_refusals(void **state)
{
    static const struct {
        uint32_t ranks, tensor_parallel;
        unsigned threads;
        const char *message;
    } cases[] = {
        { 0, 0, 1, NULL },
        { 1, 1, 1, NULL },
        { 4, 2, 4, NULL },
        { 3, 1, 4, NULL },
        { 2, 1, 1, "2 ranks need a thread each: threads is 1" },
        { 4, 3, 8, "tensor_parallel 3 does not divide 4 ranks" },
        { 1, 2, 8, "tensor_parallel 2 does not divide 1 ranks" },
        { 1025, 1, 2000, "1025 ranks are more than 1024" },
    };
    moe_error_t error;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int rc = moe_ranks_check(cases[i].ranks, cases[i].tensor_parallel, cases[i].threads,
                                       &error);

        assert_int_equal(rc, cases[i].message ? -1 : 0);
        if (cases[i].message) {
            assert_string_equal(error.message, cases[i].message);
            assert_int_equal(error.code, MOE_INVALID);
        }
    }
}


/* One rank's memory is not there: nobody waits for it. */
static void test_no_memory(void **state)
{
    fixture_t *f = open_model(tiny_model_defaults());
    moe_ranks_options_t options = rank_options(f, 4);
    moe_error_t error;

    options.forward.cache_bytes = 1ull << 60;
    assert_null(moe_ranks_create(f->model, &options, &error));
    assert_int_equal(error.code, MOE_LIMIT);
    close_model(f);
}


typedef struct {
    uint64_t last, total, largest_step;
    unsigned calls;
} loading_t;


static void note_loading(void *context, uint64_t done, uint64_t total)
{
    loading_t *loading = context;

    assert_true(done >= loading->last && done <= total);
    if (done - loading->last > loading->largest_step) {
        loading->largest_step = done - loading->last;
    }
    loading->last = done;
    loading->total = total;
    loading->calls++;
}


static void test_progress(void **state)
{
    fixture_t *f = open_model(tiny_model_defaults());
    uint64_t largest = 0;

    for (uint32_t n = 1; n <= 4; n *= 2) {
        moe_ranks_options_t options = rank_options(f, n);
        loading_t loading = { .last = 0 };

        options.forward.progress = note_loading;
        options.forward.progress_context = &loading;
        moe_ranks_free(create(f, &options));
        assert_true(loading.calls > 10);
        assert_int_equal(loading.last, loading.total);
        /* What a rank leaves to others is no jump at the end. */
        largest = n == 1 ? loading.largest_step : largest;
        assert_true(loading.largest_step <= largest);
    }
    close_model(f);
}


/* ---- a rank is lost ---- */

typedef struct {
    _Atomic unsigned calls;
    moe_error_t reason;
} loss_t;


static void note_loss(void *context, const moe_error_t *reason)
{
    loss_t *loss = context;

    loss->reason = *reason;
    atomic_fetch_add(&loss->calls, 1);
}


static void test_faults(void **state)
{
    static const struct {
        uint32_t ranks;
        moe_fault_t fault;
        const char *message;
    } cases[] = {
        { 2, { MOE_FAULT_EXIT, 0, 1 }, "step 1: fault: rank 0 has left" },
        { 2, { MOE_FAULT_EXIT, 1, 3 }, "step 3: fault: rank 1 has left" },
        { 4, { MOE_FAULT_STALL, 0, 2 }, "step 2: rank 0 did not come to allgather within 200 ms" },
        { 4, { MOE_FAULT_STALL, 2, 2 }, "step 2: rank 2 did not come to allgather within 200 ms" },
    };
    fixture_t *f = open_model(tiny_model_defaults());
    const uint32_t blocks[] = { 0 };
    const moe_batch_sequence_t sequence = { f->tokens[0], 5, 0, blocks, 1 };
    const moe_batch_t some = { .sequences = &sequence, .n_sequences = 1 }, none = { NULL };
    const moe_batch_t *batches[] = { &some, &none, &some, &none };
    const float *logits[4];
    moe_error_t error;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_ranks_options_t options = rank_options(f, cases[i].ranks);
        loss_t loss = { .calls = 0 };
        moe_ranks_t *ranks;
        size_t items[4] = { 1 };

        options.fault = cases[i].fault;
        options.timeout_ns = 200000000u;
        options.lost = note_loss;
        options.lost_context = &loss;
        ranks = create(f, &options);
        for (uint64_t step = 1; step < cases[i].fault.step; step++) {
            assert_int_equal(moe_ranks_step(ranks, batches, logits, &error), 0);
        }
        for (int again = 0; again < 2; again++) {
            assert_int_equal(moe_ranks_step(ranks, batches, logits, &error), -1);
            assert_int_equal(error.code, MOE_UNAVAILABLE);
            assert_string_equal(error.message, cases[i].message);
        }
        assert_int_equal(moe_ranks_run(ranks, see_items, NULL, items, &error), -1);
        assert_int_equal(loss.calls, 1);
        assert_string_equal(loss.reason.message, cases[i].message);
        moe_ranks_free(ranks);
    }
    close_model(f);
}


static void sleep_in_group(void *context, uint32_t group, size_t first, size_t last,
                           unsigned thread)
{
    if (group == *(const uint32_t *) context) {
        nanosleep(&(struct timespec) { .tv_nsec = 400000000 }, NULL);
    }
}


/* A rank that is late outside of the verbs is lost, too; the caller's own takes its time. */
static void test_late_rank(void **state)
{
    fixture_t *f = open_model(tiny_model_defaults());
    moe_ranks_options_t options = rank_options(f, 4);
    const size_t items[4] = { 1, 1, 1, 1 };
    uint32_t sleeper = 0, late = 2;
    moe_ranks_t *ranks;
    moe_error_t error;

    options.timeout_ns = 100000000u;
    ranks = create(f, &options);
    assert_int_equal(moe_ranks_run(ranks, sleep_in_group, &sleeper, items, &error), 0);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(moe_ranks_run(ranks, sleep_in_group, &late, items, &error), -1);
        assert_int_equal(error.code, MOE_UNAVAILABLE);
        assert_string_equal(error.message, "rank 2 did not end its step within 100 ms");
    }
    moe_ranks_free(ranks);
    close_model(f);
}


/* What has to be in memory: experts once, or as often as they fill the slots; all else on each rank,
 * or once for each group but for what is not divided. */
static void test_weights_needed(void **state)
{
    fixture_t *f = open_model(tiny_model_defaults());
    const uint64_t all = moe_tensors_bytes(f->model->tensors);
    const uint64_t expert = 3ull * f->options.hidden * f->options.expert_width * 2;
    const uint64_t layers = f->options.layers - f->options.dense_layers;
    const uint64_t experts = layers * f->options.experts * expert;
    const uint64_t hidden = 2ull * f->options.hidden;
    const uint64_t whole = hidden * (f->options.vocabulary + layers * f->options.experts
                                     + f->options.layers * (f->options.q_lora + f->options.kv_lora
                                                            + f->options.rope));

    assert_int_equal(moe_ranks_weights_needed(f->model, 0, 0, 0), all);
    assert_int_equal(moe_ranks_weights_needed(f->model, 4, 1, 0), 4 * (all - experts) + experts);
    assert_int_equal(moe_ranks_weights_needed(f->model, 4, 2, 0), 2 * (all - experts) + experts + 2 * whole);
    assert_int_equal(moe_ranks_weights_needed(f->model, 3, 1, 0),
                     3 * (all - experts) + layers * 9 * expert);
    assert_int_equal(moe_ranks_weights_needed(f->model, 4, 1, 4),
                     4 * (all - experts) + (layers + 1) * 12 * expert);
    close_model(f);
}


/* ---- a thousand ends ---- */

#define ABORTS 1000u
#define MOVE_ABORTS 200u
#define ABORT_RANKS 4u
#define PATIENCE_NS 120000000000ull

/* An end of a group that aborts it at the count's end; forward passes outlive groups. */
typedef struct {
    moe_comm_t comm;
    moe_comm_t *inner;
    uint32_t *left;                     /* verbs that this rank still calls */
    int late;                           /* aborts after the verb, not before */
    int waits;                          /* begins to count when rank 0 tells a placement */
} fragile_t;

typedef struct {
    moe_forward_t *forward;
    fragile_t all;
    pthread_t thread;
    const moe_batch_t *batch;
    uint32_t left;
    int failed;
    moe_error_t error;
} fragile_rank_t;


static void count_verb(fragile_t *end)
{
    const moe_error_t reason = { MOE_UNAVAILABLE, "on purpose" };

    if (!end->waits && *end->left > 0 && --*end->left == 0) {
        end->inner->ops->abort(end->inner, &reason);
    }
}


/* A verb of the group inside, with the same arguments. */
#define FRAGILE(name, parameters, arguments)                                                    \
    static int fragile_##name parameters                                                        \
    {                                                                                           \
        fragile_t *end = (fragile_t *) comm;                                                    \
        int rc;                                                                                 \
                                                                                                \
        end->inner->step = comm->step;                                                          \
        if (!end->late) {                                                                       \
            count_verb(end);                                                                    \
        }                                                                                       \
        rc = end->inner->ops->name arguments;                                                   \
        if (end->late) {                                                                        \
            count_verb(end);                                                                    \
        }                                                                                       \
        return rc;                                                                              \
    }

FRAGILE(barrier, (moe_comm_t *comm, moe_error_t *error), (end->inner, error))
FRAGILE(allgather, (moe_comm_t *comm, const void *send, size_t size, void *receive,
                    moe_error_t *error), (end->inner, send, size, receive, error))
FRAGILE(alltoallv_start, (moe_comm_t *comm, const moe_comm_parts_t *send,
                          const moe_comm_parts_t *receive, moe_error_t *error),
        (end->inner, send, receive, error))
FRAGILE(alltoallv_finish, (moe_comm_t *comm, moe_error_t *error), (end->inner, error))
FRAGILE(allreduce, (moe_comm_t *comm, void *data, size_t count, moe_reduction_t reduction,
                    moe_error_t *error), (end->inner, data, count, reduction, error))
FRAGILE(bcast, (moe_comm_t *comm, uint32_t root, void *data, size_t size, moe_error_t *error),
        (end->inner, root, data, size, error))


/* The only broadcasts of a step are placements. */
static int fragile_placement(moe_comm_t *comm, uint32_t root, void *data, size_t size,
                             moe_error_t *error)
{
    ((fragile_t *) comm)->waits = 0;
    return fragile_bcast(comm, root, data, size, error);
}


static const moe_comm_ops_t fragile_ops = {
    .name = "fragile",
    .barrier = fragile_barrier,
    .allgather = fragile_allgather,
    .alltoallv_start = fragile_alltoallv_start,
    .alltoallv_finish = fragile_alltoallv_finish,
    .allreduce = fragile_allreduce,
    .bcast = fragile_placement
};


static void *run_fragile(void *argument)
{
    fragile_rank_t *rank = argument;
    const uint64_t began = moe_now_ns();

    while (!rank->failed && moe_now_ns() - began < PATIENCE_NS) {
        rank->failed = moe_forward_step(rank->forward, rank->batch, &rank->error) == NULL;
    }
    return NULL;
}


/* Rank `who` aborts at its verb number `when`; `moving`: of those after a placement was told. */
static void abort_once(fragile_rank_t *ranks, uint32_t who, uint32_t when, int late, int moving)
{
    const moe_comm_options_t options = { .timeout_ns = 60000000000u };
    moe_comm_t *inner[ABORT_RANKS];
    moe_error_t error;

    assert_int_equal(moe_comm_threads(inner, ABORT_RANKS, &options, &error), 0);
    for (uint32_t r = 0; r < ABORT_RANKS; r++) {
        ranks[r].all.inner = inner[r];
        ranks[r].all.late = late;
        ranks[r].all.waits = moving;
        ranks[r].left = r == who ? when : 0;
        ranks[r].failed = 0;
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_fragile, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < ABORT_RANKS; r++) {
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
        assert_true(ranks[r].failed);
        assert_string_equal(ranks[r].error.message, "on purpose");
        inner[r]->ops->close(inner[r]);
    }
}


static void create_fragile(const fixture_t *f, const moe_balance_options_t *balance,
                           fragile_rank_t *ranks)
{
    moe_forward_options_t options = rank_options(f, 1).forward;
    moe_error_t error;

    options.threads = 1;
    options.balance = *balance;
    for (uint32_t r = 0; r < ABORT_RANKS; r++) {
        ranks[r].all = (fragile_t) {
            .comm = { .ops = &fragile_ops, .rank = r, .ranks = ABORT_RANKS }, .left = &ranks[r].left
        };
        options.world = (moe_world_t) {
            .rank = r, .ranks = ABORT_RANKS, .parts = 1, .all = &ranks[r].all.comm
        };
        ranks[r].forward = moe_forward_create(f->model, &options, &error);
        assert_non_null(ranks[r].forward);
    }
}


static void free_fragile(fragile_rank_t *ranks)
{
    for (uint32_t r = 0; r < ABORT_RANKS; r++) {
        moe_forward_free(ranks[r].forward);
    }
}


/* While experts stay, and while they move, which leaves ranks behind that have moved different
 * parts. */
static void test_aborts(void **state)
{
    const moe_balance_options_t stay = { 0 };
    const moe_balance_options_t move = { .redundant = 4, .rows = 1, .step_bytes = 1000 };
    fixture_t *f = open_model(tiny_model_defaults());
    static fragile_rank_t ranks[ABORT_RANKS];
    const uint32_t blocks[] = { 0 };
    const moe_batch_sequence_t sequence = { f->tokens[0], 5, 0, blocks, 1 };
    const moe_batch_t some = { .sequences = &sequence, .n_sequences = 1 }, none = { NULL };
    uint64_t seed = 11;

    for (uint32_t r = 0; r < ABORT_RANKS; r++) {
        ranks[r].batch = r == 1 ? &none : &some;
    }
    create_fragile(f, &stay, ranks);
    for (unsigned i = 0; i < ABORTS; i++) {
        abort_once(ranks, draw(&seed, ABORT_RANKS), 1 + draw(&seed, 60), i % 2, 0);
    }
    free_fragile(ranks);
    for (unsigned i = 0; i < MOVE_ABORTS; i++) {
        create_fragile(f, &move, ranks);
        abort_once(ranks, draw(&seed, ABORT_RANKS), 1 + draw(&seed, 200), i % 2, 1);
        free_fragile(ranks);
    }
    close_model(f);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_grouped_queries),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_weights_needed),
        cmocka_unit_test(test_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
