/*
 * Placement in use: the same bits while experts move between ranks, rows shared out evenly where
 * one expert is hot, what cannot be moved, what a peer may not say.
 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine/core/clock.h"
#include "t/unit/ranks_fixture.h"

#define PATIENCE_NS 120000000000ull


/* ---- the same bits ---- */

/* Computes all sequences again and again until layers have been placed anew `switches` times. */
static void check_switches(const fixture_t *f, const moe_ranks_options_t *options, uint32_t chunk,
                           uint32_t switches, const float *expected)
{
    moe_ranks_t *ranks = create(f, options);
    const moe_forward_t *forward = moe_ranks_forward(ranks, 0);
    const uint64_t began = moe_now_ns();
    uint64_t seed = chunk;

    while (moe_forward_placement(forward) < switches) {
        float *logits = compute(f, ranks, chunk, seed++);

        assert_memory_equal(logits, expected,
                            SEQUENCES * TOKENS * f->options.vocabulary * sizeof(float));
        free(logits);
        assert_true(moe_now_ns() - began < PATIENCE_NS);
    }
    for (uint32_t r = 1; r < options->ranks; r++) {
        assert_int_equal(moe_forward_placement(moe_ranks_forward(ranks, r)),
                         moe_forward_placement(forward));
    }
    moe_ranks_free(ranks);
}


/* Rows are counted as soon as the last move is over, so experts move nearly all the time, in pieces
 * of a few bytes or a layer in a step.  Biases of experts move with them. */
static void test_same_bits(void **state)
{
    static const struct {
        uint32_t ranks, parts, redundant, chunk;
        moe_payload_t exchange;
        moe_overlap_t overlap;
        uint64_t step_bytes;
        const char *model_type;         /* NULL: the tiny model's default */
    } cases[] = {
        { 2, 1, 2, 5, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED, 1000, NULL },
        { 2, 1, 8, 5, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED, 5000, NULL },
        { 2, 2, 4, 70, MOE_PAYLOAD_INT8, MOE_OVERLAP_TWO_BATCH, 10000, NULL },
        { 3, 1, 1, 5, MOE_PAYLOAD_BF16, MOE_OVERLAP_OFF, 1u << 20, NULL },
        { 4, 1, 4, 5, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED, 1u << 20, NULL },
        { 4, 2, 8, 70, MOE_PAYLOAD_FP8, MOE_OVERLAP_TWO_BATCH, 4096, NULL },
        { 8, 1, 8, 70, MOE_PAYLOAD_INT8, MOE_OVERLAP_SHARED, 3333, NULL },
        { 8, 1, 56, 70, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED, 0, NULL },
        { 4, 2, 8, 70, MOE_PAYLOAD_F32, MOE_OVERLAP_SHARED, 1111, "gpt_oss" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_t *f = open_model(cases[i].model_type ? tiny_model_gqa(cases[i].model_type)
                                                      : tiny_model_defaults());
        moe_ranks_options_t options = rank_options(f, cases[i].ranks);
        float *expected = compute_alone(f, cases[i].exchange);

        options.tensor_parallel = cases[i].parts;
        options.forward.exchange = cases[i].exchange;
        options.forward.overlap = cases[i].overlap;
        options.forward.balance = (moe_balance_options_t) {
            .redundant = cases[i].redundant, .rows = 1, .step_bytes = cases[i].step_bytes
        };
        /* Where every rank has all experts there is nothing to be gained. */
        check_switches(f, &options, cases[i].chunk,
                       cases[i].redundant == (cases[i].ranks - 1) * f->options.experts ? 0 : 4,
                       expected);
        free(expected);
        close_model(f);
    }
}


/* ---- what cannot be ---- */

/* Another type for tensors whose names begin so: as many bytes, other numbers. */
static void change_type(tiny_files_t *files, const char *prefix)
{
    const char *name;
    json_t *tensor;

    json_object_foreach(files->header, name, tensor) {
        if (strncmp(name, prefix, strlen(prefix)) == 0) {
            json_object_set_new(tensor, "dtype", json_string("F16"));
        }
    }
}


static void test_refusals(void **state)
{
    static const struct {
        uint32_t ranks, redundant;
        const char *changed, *message;
        moe_error_code_t code;
    } cases[] = {
        { 4, 3, NULL, "redundant_experts 3: 8 experts and these cannot be divided evenly among 4 "
                      "ranks", MOE_INVALID },
        { 3, 4294967290u, NULL, "redundant_experts 4294967290: 8 experts and these cannot be "
                                "divided evenly among 3 ranks", MOE_INVALID },
        { 2, 10, NULL, "redundant_experts 10: each of 2 ranks would have 9 slots for 8 experts",
          MOE_INVALID },
        { 1, 1, NULL, "redundant_experts 1: there is one rank only",
          MOE_INVALID },
        { 2, 2, "model.layers.1.mlp.experts.3.down", "redundant_experts: layer 1: expert 3 has "
          "another size or type than expert 0", MOE_INVALID },
        { 2, 2, "model.layers.2.mlp.experts.", "redundant_experts: the experts of layers differ in "
          "size or type", MOE_BAD_MODEL },
        { 2, 0, "model.layers.2.mlp.experts.", NULL, MOE_OK },
        { 4, 24, NULL, NULL, MOE_OK },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny_model_t model = tiny_model_defaults();
        tiny_files_t files = tiny_model_make(&model);
        char *directory = tiny_directory();
        fixture_t f = { .options = model };
        moe_ranks_options_t options;
        moe_ranks_t *ranks;
        moe_error_t error;

        if (cases[i].changed) {
            change_type(&files, cases[i].changed);
        }
        tiny_model_save(&files, directory);
        tiny_model_free(&files);
        f.model = moe_model_open(directory, &error);
        assert_non_null(f.model);
        options = rank_options(&f, cases[i].ranks);
        options.forward.balance.redundant = cases[i].redundant;
        ranks = moe_ranks_create(f.model, &options, &error);
        assert_int_equal(ranks == NULL, cases[i].message != NULL);
        if (cases[i].message) {
            assert_string_equal(error.message, cases[i].message);
            assert_int_equal(error.code, cases[i].code);
        }
        moe_ranks_free(ranks);
        moe_model_close(f.model);
        tiny_directory_remove(directory);
    }
}


/* ---- what a peer may not say ---- */

/* Rank 1's end, on which a word of what rank 0 broadcasts is another one. */
typedef struct {
    moe_comm_t comm;
    moe_comm_t *inner;
    uint32_t word, value;
} forged_t;


static moe_comm_t *inner_of(moe_comm_t *comm)
{
    moe_comm_t *inner = ((forged_t *) comm)->inner;

    inner->step = comm->step;
    return inner;
}


static int forged_allgather(moe_comm_t *comm, const void *send, size_t size, void *receive,
                            moe_error_t *error)
{
    return inner_of(comm)->ops->allgather(inner_of(comm), send, size, receive, error);
}


static int forged_start(moe_comm_t *comm, const moe_comm_parts_t *send,
                        const moe_comm_parts_t *receive, moe_error_t *error)
{
    return inner_of(comm)->ops->alltoallv_start(inner_of(comm), send, receive, error);
}


static int forged_finish(moe_comm_t *comm, moe_error_t *error)
{
    return inner_of(comm)->ops->alltoallv_finish(inner_of(comm), error);
}


static int forged_allreduce(moe_comm_t *comm, void *data, size_t count, moe_reduction_t reduction,
                            moe_error_t *error)
{
    return inner_of(comm)->ops->allreduce(inner_of(comm), data, count, reduction, error);
}


static int forged_bcast(moe_comm_t *comm, uint32_t root, void *data, size_t size,
                        moe_error_t *error)
{
    const forged_t *end = (forged_t *) comm;
    const int rc = end->inner->ops->bcast(end->inner, root, data, size, error);

    ((uint32_t *) data)[end->word] = end->value;
    return rc;
}


static void forged_abort(moe_comm_t *comm, const moe_error_t *reason)
{
    inner_of(comm)->ops->abort(inner_of(comm), reason);
}


static const moe_comm_ops_t forged_ops = {
    .name = "forged",
    .allgather = forged_allgather,
    .alltoallv_start = forged_start,
    .alltoallv_finish = forged_finish,
    .allreduce = forged_allreduce,
    .bcast = forged_bcast,
    .abort = forged_abort
};

typedef struct {
    moe_forward_t *forward;
    const moe_batch_t *batch;
    uint64_t began;
    moe_error_t error;
} stepper_t;


/* Steps until one fails. */
static void *run_steps(void *argument)
{
    stepper_t *stepper = argument;

    while (moe_forward_step(stepper->forward, stepper->batch, &stepper->error)
           && moe_now_ns() - stepper->began < PATIENCE_NS)
    {
    }
    return NULL;
}


static void check_forged(const fixture_t *f, uint32_t word, uint32_t value, const char *message)
{
    const moe_comm_options_t comm_options = { .timeout_ns = 60000000000u };
    const uint32_t blocks[] = { 0 };
    const moe_batch_sequence_t sequence = { f->tokens[0], 16, 0, blocks, 1 };
    const moe_batch_t batch = { .sequences = &sequence, .n_sequences = 1 };
    moe_forward_options_t options = rank_options(f, 1).forward;
    stepper_t steppers[2];
    pthread_t threads[2];
    moe_comm_t *ends[2];
    forged_t forged;
    moe_error_t error;

    assert_int_equal(moe_comm_threads(ends, 2, &comm_options, &error), 0);
    forged = (forged_t) {
        { .ops = &forged_ops, .rank = 1, .ranks = 2 }, ends[1], word, value
    };
    options.threads = 1;
    options.balance = (moe_balance_options_t) { .redundant = 2, .rows = 1 };
    for (uint32_t r = 0; r < 2; r++) {
        options.world = (moe_world_t) {
            .rank = r, .ranks = 2, .parts = 1, .all = r == 0 ? ends[0] : &forged.comm
        };
        steppers[r] = (stepper_t) {
            moe_forward_create(f->model, &options, &error), &batch, moe_now_ns(), { 0 }
        };
        assert_non_null(steppers[r].forward);
    }
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(pthread_create(&threads[r], NULL, run_steps, &steppers[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        pthread_join(threads[r], NULL);
        assert_string_equal(steppers[r].error.message, message);
        assert_int_equal(steppers[r].error.code, MOE_UNAVAILABLE);
    }
    for (uint32_t r = 0; r < 2; r++) {
        moe_forward_free(steppers[r].forward);
        ends[r]->ops->close(ends[r]);
    }
}


static void test_forged(void **state)
{
    fixture_t *f = open_model(tiny_model_defaults());

    check_forged(f, 0, 2, "rank 0 places experts of layer 2, of 2");
    check_forged(f, 4, 8, "not a placement: slot 3 of rank 0 holds expert 8");
    close_model(f);
}


/* ---- a hot expert ---- */

#define HOT_RANKS 4u
#define REDUNDANT 4u
#define HOT_PASSES 8u

static const tiny_model_t hot_model = {
    .model_type = "deepseek_v3", .topk_method = "noaux_tc", .scoring = "sigmoid", .dtype = "BF16",
    .hidden = 64, .vocabulary = 96, .layers = 3, .dense_layers = 1, .context = 256, .heads = 4,
    .q_lora = 24, .kv_lora = 32, .nope = 16, .rope = 8, .value = 16, .dense_width = 96,
    .expert_width = 32, .experts = 32, .top_k = 2, .groups = 1, .groups_kept = 1, .shared = 1,
    .normalise = 1, .interleaved = 1, .scale = 2.5, .seed = 1
};


/* Where a tensor of the files lies. */
static void *tensor_data(const tiny_files_t *files, const char *name)
{
    const json_t *offsets = json_object_get(json_object_get(files->header, name), "data_offsets");

    assert_non_null(offsets);
    return files->data + json_integer_value(json_array_get(offsets, 0));
}


/* The router chooses expert 5, among two, for three rows in five: it has 30 % of the rows. */
static fixture_t *open_hot_model(void)
{
    static const float keys[] = { 0, .39f, .41f };
    tiny_files_t files = tiny_model_make(&hot_model);
    fixture_t *f = calloc(1, sizeof(*f));
    moe_error_t error;
    char name[80];

    assert_non_null(f);
    f->options = hot_model;
    for (uint32_t i = hot_model.dense_layers; i < hot_model.layers; i++) {
        float biases[32] = { [5] = keys[i] };

        snprintf(name, sizeof(name), "model.layers.%u.mlp.gate.e_score_correction_bias", i);
        memcpy(tensor_data(&files, name), biases, sizeof(biases));
    }
    f->directory = tiny_directory();
    tiny_model_save(&files, f->directory);
    tiny_model_free(&files);
    f->model = moe_model_open(f->directory, &error);
    assert_non_null(f->model);
    return f;
}


static void draw_tokens(fixture_t *f, uint64_t seed)
{
    for (uint32_t i = 0; i < SEQUENCES * TOKENS; i++) {
        f->tokens[i / TOKENS][i % TOKENS] = draw(&seed, f->options.vocabulary);
    }
}


/* Rows of each rank, [layers], and of each expert, while new tokens are computed. */
typedef struct {
    uint64_t ranks[HOT_RANKS][3], experts[3][32];
} load_t;


static void read_load(const moe_ranks_t *ranks, load_t *load)
{
    moe_ranks_expert_load(ranks, load->experts[0]);
    for (uint32_t r = 0; r < HOT_RANKS; r++) {
        memcpy(load->ranks[r], moe_forward_arrived(moe_ranks_forward(ranks, r)),
               sizeof(load->ranks[r]));
    }
}


static void measure(fixture_t *f, moe_ranks_t *ranks, load_t *load)
{
    load_t before;

    read_load(ranks, &before);
    for (uint32_t pass = 0; pass < HOT_PASSES; pass++) {
        draw_tokens(f, 1000 + pass);
        free(compute(f, ranks, 5, pass));
    }
    read_load(ranks, load);
    for (uint32_t i = 0; i < HOT_RANKS * 3; i++) {
        load->ranks[i / 3][i % 3] -= before.ranks[i / 3][i % 3];
    }
    for (uint32_t i = 0; i < 3 * 32; i++) {
        load->experts[i / 32][i % 32] -= before.experts[i / 32][i % 32];
    }
}


/* Rows of the most loaded rank / mean rows, of the layer where that is largest; prints all layers,
 * in the form that t/bench/expert_load.pl draws. */
static double show_load(const load_t *load, const char *name)
{
    double largest = 0;

    for (uint32_t l = hot_model.dense_layers; l < hot_model.layers; l++) {
        uint64_t sum = 0, most = 0;

        printf("layer %u, %s:", l, name);
        for (uint32_t r = 0; r < HOT_RANKS; r++) {
            const uint64_t rows = load->ranks[r][l];

            printf(" %llu", (unsigned long long) rows);
            sum += rows;
            most = rows > most ? rows : most;
        }
        assert_int_equal(sum, HOT_PASSES * SEQUENCES * TOKENS * hot_model.top_k);
        printf(" rows, most / mean %.3f\n", (double) most * HOT_RANKS / (double) sum);
        largest = (double) most * HOT_RANKS / (double) sum > largest
                      ? (double) most * HOT_RANKS / (double) sum : largest;
    }
    return largest;
}


static void test_hot_expert(void **state)
{
    fixture_t *f = open_hot_model();
    moe_ranks_options_t options = rank_options(f, HOT_RANKS);
    const uint64_t began = moe_now_ns();
    moe_ranks_rows_t rows;
    moe_ranks_t *ranks;
    load_t load;
    double without, with;

    ranks = create(f, &options);
    measure(f, ranks, &load);
    rows = moe_ranks_rows(ranks);
    without = show_load(&load, "without placement");
    for (uint32_t l = hot_model.dense_layers; l < hot_model.layers; l++) {
        const uint64_t all = HOT_PASSES * SEQUENCES * TOKENS * hot_model.top_k;

        assert_in_range(load.experts[l][5] * 1000 / all, 290, 310);
    }
    assert_int_equal(rows.rows, 2 * HOT_PASSES * SEQUENCES * TOKENS * hot_model.top_k);
    assert_true(rows.most >= rows.rows);
    moe_ranks_free(ranks);

    options.forward.balance.redundant = REDUNDANT;
    ranks = create(f, &options);
    for (uint64_t seed = 1; moe_forward_placement(moe_ranks_forward(ranks, 0)) < 2; seed++) {
        draw_tokens(f, seed);
        free(compute(f, ranks, 5, seed));
        assert_true(moe_now_ns() - began < PATIENCE_NS);
    }
    measure(f, ranks, &load);
    with = show_load(&load, "with placement");
    printf("%u ranks, 30 %% of the rows for one expert, %u redundant slots: the most loaded rank "
           "has %.3f times the mean, without placement %.3f times\n", HOT_RANKS, REDUNDANT, with,
           without);
    assert_true(without > 1.5);
    assert_true(with <= 1.15);
    moe_ranks_free(ranks);
    close_model(f);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_hot_expert),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
