/*
 * Tensor parallelism: heads, dense layers, shared experts and the output head divided among the
 * ranks of a group give the same bits as an only rank, however unevenly they are divided; what
 * cannot be divided is refused with the numbers.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "t/unit/ranks_fixture.h"


/* Widths, heads and a vocabulary that no number of parts divides, in panels of 16 rows or not. */
static tiny_model_t odd_model(void)
{
    tiny_model_t options = tiny_model_defaults();

    options.hidden = 72;
    options.vocabulary = 101;
    options.heads = 5;
    options.dense_width = 83;
    options.expert_width = 29;
    options.value = 12;
    options.kv_lora = 40;
    return options;
}


static tiny_model_t tied_model(void)
{
    tiny_model_t options = tiny_model_v2();

    options.tied = 1;
    options.vocabulary = 120;
    options.dtype = "F32";
    return options;
}


/* No shared expert, two dense layers, more heads than a panel has rows. */
static tiny_model_t plain_model(void)
{
    tiny_model_t options = tiny_model_defaults();

    options.shared = 0;
    options.dense_layers = 2;
    options.heads = 36;
    options.interleaved = 0;
    options.dtype = "F16";
    return options;
}


static void test_same_bits(void **state)
{
    static const uint32_t worlds[][2] = {
        { 1, 1 }, { 2, 2 }, { 3, 3 }, { 4, 2 }, { 4, 4 }, { 8, 2 }, { 8, 4 }
    };
    static const uint32_t chunks[] = { 1, 9, TOKENS };
    const tiny_model_t models[] = {
        tiny_model_defaults(), tiny_model_v2(), odd_model(), tied_model(), plain_model()
    };

    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        fixture_t *f = open_model(models[m]);
        float *expected = compute_alone(f, MOE_PAYLOAD_F32);

        for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
            moe_ranks_options_t options = rank_options(f, worlds[i][0]);

            options.tensor_parallel = worlds[i][1];
            check_bits(f, &options, chunks[(m + i) % 3], 10 * m + i, expected);
        }
        free(expected);
        close_model(f);
    }
}


/* Rows that travel in other forms and in halves, more threads than
 * ranks: each as on an only rank. */
static void test_settings(void **state)
{
    fixture_t *f = open_model(odd_model());

    for (moe_payload_t p = MOE_PAYLOAD_F32; p <= MOE_PAYLOAD_FP8; p++) {
        float *expected = compute_alone(f, p);

        for (moe_overlap_t o = MOE_OVERLAP_SHARED; o <= MOE_OVERLAP_TWO_BATCH; o++) {
            moe_ranks_options_t options = rank_options(f, 4);

            options.tensor_parallel = o == MOE_OVERLAP_OFF ? 4 : 2;
            options.forward.exchange = p;
            options.forward.overlap = o;
            options.forward.threads = 6;
            check_bits(f, &options, 40, p, expected);
        }
        free(expected);
    }
    close_model(f);
}


/* Each rank counts all that there is to load, its part or not. */
static void note_loaded(void *context, uint64_t done, uint64_t total)
{
    uint64_t *seen = context;

    seen[2] += done < seen[0] || done > total;
    seen[0] = done;
    seen[1] = total;
}


static void test_progress(void **state)
{
    fixture_t *f = open_model(tied_model());
    moe_ranks_options_t options = rank_options(f, 4);
    uint64_t seen[3] = { 0, 0, 0 };

    options.tensor_parallel = 2;
    options.forward.progress = note_loaded;
    options.forward.progress_context = seen;
    moe_ranks_free(create(f, &options));
    assert_int_equal(seen[1], 4 * moe_tensors_bytes(f->model->tensors));
    assert_int_equal(seen[0], seen[1]);
    assert_int_equal(seen[2], 0);
    close_model(f);
}


static void test_refused(void **state)
{
    const struct {
        uint32_t heads, hidden, vocabulary, dense_width, expert_width;
        const char *message;
    } cases[] = {
        { 7, 64, 96, 96, 32, "tensor_parallel 8: layer 0 has 7 heads to be divided" },
        { 8, 64, 7, 96, 32, "tensor_parallel 8: the model has 7 tokens, of 64 numbers each" },
        { 8, 6, 96, 96, 32, "tensor_parallel 8: the model has 96 tokens, of 6 numbers each" },
        { 8, 64, 96, 5, 32, "tensor_parallel 8: the network of layer 0 has a width of 5" },
        { 8, 64, 96, 96, 4, "tensor_parallel 8: the network of layer 1 has a width of 4" },
        { 8, 64, 96, 96, 32, NULL }
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny_model_t model = tiny_model_defaults();
        moe_ranks_options_t options;
        moe_error_t error;
        moe_ranks_t *ranks;
        fixture_t *f;

        model.heads = cases[i].heads;
        model.hidden = cases[i].hidden;
        model.vocabulary = cases[i].vocabulary;
        model.dense_width = cases[i].dense_width;
        model.expert_width = cases[i].expert_width;
        f = open_model(model);
        options = rank_options(f, 8);
        options.tensor_parallel = 8;
        ranks = moe_ranks_create(f->model, &options, &error);
        if (cases[i].message) {
            assert_null(ranks);
            assert_int_equal(error.code, MOE_INVALID);
            assert_string_equal(error.message, cases[i].message);
        }
        assert_true((ranks != NULL) == (cases[i].message == NULL));
        moe_ranks_free(ranks);
        close_model(f);
    }
}


/* A rank that leaves in a layer's gathering ends all, those of other groups included. */
static void test_lost(void **state)
{
    fixture_t *f = open_model(tiny_model_defaults());
    moe_ranks_options_t options = rank_options(f, 4);
    const moe_batch_t empty = { .n_sequences = 0 }, *batches[2] = { &empty, &empty };
    const float *logits[2];
    moe_ranks_t *ranks;
    moe_error_t error;

    options.tensor_parallel = 2;
    options.fault = (moe_fault_t) { .kind = MOE_FAULT_EXIT, .rank = 3, .step = 2 };
    ranks = create(f, &options);
    assert_int_equal(moe_ranks_step(ranks, batches, logits, &error), 0);
    assert_int_equal(moe_ranks_step(ranks, batches, logits, &error), -1);
    assert_int_equal(error.code, MOE_UNAVAILABLE);
    moe_ranks_free(ranks);
    close_model(f);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
