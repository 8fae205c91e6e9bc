/*
 * Blocks of experts over ranks: the same bits as on one rank, for every payload, whatever is
 * computed while rows travel, wherever experts are and however many rows there are; what travels,
 * counted; what a peer may send, refused.
 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/moe/block.h"
#include "t/unit/tiny_model.h"

#define MAX_RANKS 8u
#define MAX_ROWS 41u                    /* of a group in a step */
#define STEPS 5u
#define ALL_ROWS 100u
#define HIDDEN 160u                     /* a group of 128 and a rest */
#define EXPERTS 8u
#define PAYLOADS 4u
#define TIMEOUT_NS 60000000000ull

typedef struct {
    uint32_t ranks, parts, spare;       /* slots of a rank beyond what is needed */
    moe_payload_t payload;
    moe_overlap_t overlap;
} case_t;

typedef struct {
    const case_t *test;
    moe_world_t world;
    const moe_placement_t *placement;
    int result;
    unsigned faults;                    /* steps with other bits */
    moe_error_t error;
    moe_exchange_bytes_t bytes;
    uint64_t counts[EXPERTS], arrived;

    moe_pool_t *pool;
    moe_device_t *device;
    moe_block_state_t block;
    moe_block_batch_t batches[2];
    float y[(MAX_ROWS + MAX_RANKS) * HIDDEN];
} rank_t;

static moe_model_t *model;
static char *directory;
static float x[ALL_ROWS * HIDDEN];
static float expected[PAYLOADS][(ALL_ROWS + MAX_RANKS) * HIDDEN];
static rank_t all_ranks[MAX_RANKS];


static void open_rank(rank_t *rank, uint32_t rows)
{
    const moe_block_env_t env = {
        .world = &rank->world, .placement = rank->placement, .batch_rows = rows,
        .counts = rank->counts, .arrived = &rank->arrived,
    };
    moe_exchange_options_t options = {
        .world = &rank->world, .experts = EXPERTS, .hidden = HIDDEN,
        .top_k = model->layers[1].moe.router.top_k, .slots = rank->placement->shape.slots,
        .rows = moe_block_rows(&rank->world, rows), .payload = rank->test->payload,
    };
    moe_loader_t loader = {.total = 1};
    moe_error_t error;
    float *scratch;

    rank->pool = moe_pool_create(1, &error);
    rank->device = options.device = loader.device = moe_device_cpu(rank->pool, &error);
    assert_int_equal(moe_block_create(&rank->block, &model->layers[1].moe, &loader, &env, &error),
                     0);
    scratch = rank->device->ops->allocate(
        rank->device, moe_block_scratch(&rank->block, &options) * sizeof(float), &error);
    assert_non_null(scratch);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(moe_block_batch_create(&rank->batches[i], &options, scratch, &error), 0);
    }
}


static void close_rank(rank_t *rank)
{
    for (unsigned i = 0; i < 2; i++) {
        const moe_exchange_bytes_t *bytes = &rank->batches[i].exchange.bytes;

        rank->bytes.dispatch_rows += bytes->dispatch_rows;
        rank->bytes.dispatch_lists += bytes->dispatch_lists;
        rank->bytes.return_rows += bytes->return_rows;
        moe_block_batch_free(&rank->batches[i]);
    }
    rank->device->ops->free(rank->device);
    moe_pool_free(rank->pool);
}


/* Experts in slots by loads that differ: expert 5 gets most of the spare ones. */
static moe_placement_t *place(uint32_t ranks, uint32_t spare)
{
    const double loads[EXPERTS] = {3, 1, 4, 1, 5, 90, 2, 6};
    const uint32_t needed = (EXPERTS + ranks - 1) / ranks + spare;
    const moe_placement_shape_t shape = {
        .experts = EXPERTS, .groups = 1, .ranks = ranks, .domains = 1,
        .slots = needed < EXPERTS ? needed : EXPERTS,
    };
    moe_error_t error;
    moe_placement_t *placement = moe_placement_create(&shape, 1, &error);

    assert_non_null(placement);
    if (spare > 0) {
        moe_placement_solve(placement, 0, loads);
    }
    return placement;
}


/* Rows of a group in a step, and which: all ranks with many, with few, with none; one alone. */
static uint32_t rows_of(uint32_t group, uint32_t step, const float **rows)
{
    static const uint32_t numbers[STEPS][4] = {
        {7, 0, 1, 16}, {1, 1, 1, 1}, {0, 41, 0, 0}, {0, 0, 0, 0}, {13, 32, 2, 3}
    };

    *rows = x + (group * 7 + step * 5) % (ALL_ROWS - MAX_ROWS) * HIDDEN;
    return numbers[step][group % 4];
}


/* Two halves as the forward pass runs them. */
static int run_halves(rank_t *rank, const float *rows, uint32_t n)
{
    const moe_block_state_t *block = &rank->block;
    moe_block_batch_t *a = &rank->batches[0], *b = &rank->batches[1];
    const uint32_t parts = rank->world.parts, up = ((n + 1) / 2 + parts - 1) / parts * parts;
    const uint32_t first = up < n ? up : n;
    moe_error_t *error = &rank->error;

    if (moe_block_send(block, a, rows, first, error) != 0
        || moe_block_recv(block, a, error) != 0
        || moe_block_send(block, b, rows + first * HIDDEN, n - first, error) != 0)
    {
        return -1;
    }
    if (moe_block_shared(block, a, error) != 0) {
        return -1;
    }
    moe_block_experts(block, a);
    if (moe_block_recv(block, b, error) != 0 || moe_block_return_send(block, a, error) != 0) {
        return -1;
    }
    moe_block_experts(block, b);
    return moe_block_shared(block, b, error) != 0
           || moe_block_return_recv(block, a, rank->y, error) != 0
           || moe_block_return_send(block, b, error) != 0
           || moe_block_return_recv(block, b, rank->y + first * HIDDEN, error) != 0 ? -1 : 0;
}


static int run_step(rank_t *rank, const float *rows, uint32_t n)
{
    if (rank->test->overlap == MOE_OVERLAP_TWO_BATCH) {
        return run_halves(rank, rows, n);
    }
    return moe_block_run(&rank->block, &rank->batches[0], rank->test->overlap, rows, n, rank->y,
                         &rank->error);
}


static void *run_steps(void *argument)
{
    rank_t *rank = argument;
    const float *outputs = expected[rank->test->payload];

    open_rank(rank, MAX_ROWS);
    for (uint32_t step = 0; step < STEPS && rank->result == 0; step++) {
        const float *rows;
        const uint32_t n = rows_of(rank->world.rank / rank->world.parts, step, &rows);

        rank->result = run_step(rank, rows, n);
        rank->faults += rank->result == 0
                        && memcmp(rank->y, outputs + (rows - x), n * HIDDEN * sizeof(float)) != 0;
    }
    return NULL;
}


/* Runs fn on all ranks of a case, each in a thread; they stay open. */
static void run_ranks(const case_t *test, moe_placement_t *placement, void *(*fn)(void *))
{
    const moe_comm_options_t options = {.timeout_ns = TIMEOUT_NS};
    moe_comm_t *all[MAX_RANKS] = {NULL}, *groups[MAX_RANKS] = {NULL};
    pthread_t threads[MAX_RANKS];
    moe_error_t error;

    if (test->ranks > 1) {
        assert_int_equal(moe_comm_threads(all, test->ranks, &options, &error), 0);
    }
    for (uint32_t r = 0; test->parts > 1 && r < test->ranks; r += test->parts) {
        assert_int_equal(moe_comm_threads(groups + r, test->parts, &options, &error), 0);
    }
    memset(all_ranks, 0, sizeof(all_ranks));
    for (uint32_t r = 0; r < test->ranks; r++) {
        all_ranks[r].test = test;
        all_ranks[r].placement = placement;
        all_ranks[r].world = (moe_world_t) {
            .rank = r, .ranks = test->ranks, .part = r % test->parts, .parts = test->parts,
            .all = all[r], .group = groups[r],
        };
        assert_int_equal(pthread_create(&threads[r], NULL, fn, &all_ranks[r]), 0);
    }
    for (uint32_t r = 0; r < test->ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    for (uint32_t r = 0; r < test->ranks; r++) {
        close_rank(&all_ranks[r]);
        if (all[r]) {
            all[r]->ops->close(all[r]);
        }
        if (groups[r]) {
            groups[r]->ops->close(groups[r]);
        }
    }
}


/* Runs a case; what its ranks sent, together. */
static moe_exchange_bytes_t check_case(const case_t *test)
{
    moe_placement_t *placement = place(test->ranks, test->spare);
    moe_exchange_bytes_t sum = {.dispatch_rows = 0};
    uint64_t counted = 0, rows = 0;
    const float *first;

    run_ranks(test, placement, run_steps);
    for (uint32_t r = 0; r < test->ranks; r++) {
        const rank_t *rank = &all_ranks[r];

        if (rank->result != 0 || rank->faults > 0) {
            fail_msg("ranks %u, parts %u, spare %u, %s, %s, rank %u: %u steps with other bits%s%s",
                     test->ranks, test->parts, test->spare, moe_payload_name(test->payload),
                     moe_overlap_name(test->overlap), r, rank->faults, rank->result ? ", " : "",
                     rank->result ? rank->error.message : "");
        }
        for (uint32_t e = 0; e < EXPERTS; e++) {
            counted += rank->counts[e];
        }
        sum.dispatch_rows += rank->bytes.dispatch_rows;
        sum.dispatch_lists += rank->bytes.dispatch_lists;
        sum.return_rows += rank->bytes.return_rows;
    }
    for (uint32_t g = 0; g < test->ranks / test->parts; g++) {
        for (uint32_t step = 0; step < STEPS; step++) {
            rows += rows_of(g, step, &first);
        }
    }
    assert_int_equal(counted, rows * model->layers[1].moe.router.top_k);
    moe_placement_free(placement);
    return sum;
}


static void test_same_bits(void **state)
{
    static const struct {
        uint32_t ranks, parts, spare;
    } worlds[] = {
        {1, 1, 0}, {2, 1, 0}, {2, 2, 1}, {4, 1, 1}, {4, 2, 0}, {8, 1, 0}, {8, 1, 3}, {8, 2, 1}
    };

    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        for (moe_payload_t p = MOE_PAYLOAD_F32; p <= MOE_PAYLOAD_FP8; p++) {
            for (moe_overlap_t o = MOE_OVERLAP_SHARED; o <= MOE_OVERLAP_TWO_BATCH; o++) {
                check_case(&(case_t) {worlds[i].ranks, worlds[i].parts, worlds[i].spare, p, o});
            }
        }
    }
}


/* A row goes to a rank once, whatever it wants there; a result comes back for each wish. */
static void test_bytes(void **state)
{
    moe_exchange_bytes_t f32, int8, bf16, fp8;
    uint64_t rows, entries, messages;

    f32 = check_case(&(case_t) {2, 1, 0, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED});
    rows = f32.dispatch_rows / (HIDDEN * 4);
    entries = f32.return_rows / (HIDDEN * 4);
    messages = STEPS * 2;
    assert_in_range(rows, 60, 7 + 1 + 13 + 1 + 41 + 32);
    assert_in_range(entries, rows + 1, rows * 3);
    assert_int_equal(f32.dispatch_lists, messages * 8 + entries * 4);

    int8 = check_case(&(case_t) {2, 1, 0, MOE_PAYLOAD_INT8, MOE_OVERLAP_SHARED});
    assert_true(int8.dispatch_rows * 100 <= f32.dispatch_rows * 27);
    assert_true(int8.return_rows * 100 <= f32.return_rows * 27);
    assert_int_equal(int8.dispatch_rows, rows * HIDDEN * 34 / 32);
    assert_int_equal(int8.dispatch_lists, f32.dispatch_lists);

    bf16 = check_case(&(case_t) {2, 1, 0, MOE_PAYLOAD_BF16, MOE_OVERLAP_SHARED});
    fp8 = check_case(&(case_t) {2, 1, 0, MOE_PAYLOAD_FP8, MOE_OVERLAP_SHARED});
    assert_int_equal(bf16.dispatch_rows * 2, f32.dispatch_rows);
    assert_int_equal(fp8.dispatch_rows, rows * (HIDDEN + 2 * 4));
    assert_int_equal(fp8.return_rows, bf16.return_rows);

    f32 = check_case(&(case_t) {1, 1, 0, MOE_PAYLOAD_INT8, MOE_OVERLAP_SHARED});
    assert_int_equal(f32.dispatch_rows + f32.dispatch_lists + f32.return_rows, 0);
}


/* What rank 1 sends instead of rows, or of results. */
typedef struct {
    uint32_t words[8];
    size_t size;
    const char *expected;
} message_t;

static const message_t *message;


static void *run_peer(void *argument)
{
    rank_t *rank = argument;
    moe_comm_t *all = rank->world.all;
    static uint32_t data[2][1 << 16];
    size_t sizes[2] = {message->size, 0}, offsets[2] = {0, 0}, rooms[2] = {sizeof(data[1]), 0};
    const moe_comm_parts_t send = {data[0], sizes, offsets}, receive = {data[1], rooms, offsets};

    open_rank(rank, MAX_ROWS);
    if (rank->world.rank == 0) {
        rank->result = run_step(rank, x, MAX_ROWS);
        return NULL;
    }
    memcpy(data[0], message->words, sizeof(message->words));
    for (unsigned verb = 0; verb < 2; verb++) {
        if (all->ops->alltoallv_start(all, &send, &receive, &rank->error) != 0
            || all->ops->alltoallv_finish(all, &rank->error) != 0)
        {
            return NULL;
        }
        rooms[0] = sizeof(data[1]);
        sizes[0] = 0;
    }
    return NULL;
}


static void test_messages(void **state)
{
    static const message_t messages[] = {
        {{0, 0}, 0, "rank 1 sent rows"},
        {{0, 0}, 4, "rank 1 sent rows"},
        {{0, 0}, 12, "rank 1 sent rows"},
        {{0, 1}, 8, "rank 1 sent rows"},
        {{1, 0}, 8 + 4 * HIDDEN - 1, "rank 1 sent rows"},
        {{MAX_ROWS + 1, 0}, 8 + 4 * HIDDEN * (MAX_ROWS + 1), "rank 1 sen"},
        {{0, 1u << 31}, 8, "rank 1 sent rows"},
        {{1, 1, 4}, 12 + 4 * HIDDEN, "rank 1 sent a list"},
        {{1, 1, 1u << MOE_ENTRY_SLOT_BITS}, 12 + 4 * HIDDEN, "rank 1 sent a list"},
        {{0, 1, 0}, 12, "rank 1 sent a list"},
        {{0, 0}, 8, "rank 1 sent results"},
    };
    const case_t test = {2, 1, 0, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED};
    moe_placement_t *placement = place(2, 0);

    for (size_t i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
        message = &messages[i];
        run_ranks(&test, placement, run_peer);
        assert_int_equal(all_ranks[0].result, -1);
        assert_int_equal(all_ranks[0].error.code, MOE_UNAVAILABLE);
        if (strstr(all_ranks[0].error.message, messages[i].expected) == NULL) {
            fail_msg("message %zu: %s", i, all_ranks[0].error.message);
        }
    }
    moe_placement_free(placement);
}


static void test_too_many(void **state)
{
    const moe_world_t world = {.ranks = 1024};
    moe_exchange_t exchange;
    moe_error_t error;

    assert_int_equal(moe_exchange_create(&exchange, &(moe_exchange_options_t) {
        .world = &world, .experts = 4096, .top_k = 64, .hidden = 8, .slots = 4, .rows = 1u << 20
    }, &error), -1);
    assert_int_equal(error.code, MOE_LIMIT);
    moe_exchange_free(&exchange);
}


/* What every case is compared with: one rank, all rows at once. */
static void compute_expected(moe_payload_t payload)
{
    const case_t test = {1, 1, 0, payload, MOE_OVERLAP_SHARED};
    rank_t *rank = &all_ranks[0];

    *rank = (rank_t) {
        .test = &test, .world = {.ranks = 1, .parts = 1}, .placement = place(1, 0)
    };
    open_rank(rank, ALL_ROWS);
    assert_int_equal(moe_block_run(&rank->block, &rank->batches[0], MOE_OVERLAP_SHARED, x, ALL_ROWS,
                                   expected[payload], &rank->error), 0);
    close_rank(rank);
    moe_placement_free((moe_placement_t *) rank->placement);
}


static int set_up(void **state)
{
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files;
    moe_error_t error;

    options.hidden = HIDDEN;
    options.experts = EXPERTS;
    files = tiny_model_make(&options);
    directory = tiny_directory();
    tiny_model_save(&files, directory);
    model = moe_model_open(directory, &error);
    if (model == NULL) {
        return -1;
    }
    for (size_t i = 0; i < ALL_ROWS * HIDDEN; i++) {
        x[i] = tiny_random(&files);
    }
    tiny_model_free(&files);
    for (moe_payload_t p = MOE_PAYLOAD_F32; p <= MOE_PAYLOAD_FP8; p++) {
        compute_expected(p);
    }
    return 0;
}


static int tear_down(void **state)
{
    moe_model_close(model);
    tiny_directory_remove(directory);
    return 0;
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_too_many),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
