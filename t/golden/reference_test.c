/*
 * Every family against logits and greedy continuations of the public reference implementation
 * (reference.py), and the same bits from threads, chunks, ranks and company.  The prompt crosses
 * sliding windows and YaRN's original context.
 *
 *     reference_test                 the tests
 *     reference_test DIRECTORY       writes the models instead, one directory each
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/ranks.h"
#include "t/golden/reference_model.h"

#define TOLERANCE 1e-5          /* relative error of a row of logits */
#define NEAR_TIE 1e-4           /* logits: the two best of a row */
#define CONTEXT 128u

#define COMPANY 5u              /* tokens of another sequence in the batch */
#define BLOCKS (CONTEXT / MOE_BLOCK_TOKENS)
#define GROUPS 4u

/* How a model is run: all ways must give the same bits. */
typedef struct {
    uint32_t ranks, parts;
    unsigned threads;
    uint32_t chunk;             /* most tokens of a step */
    uint32_t company;           /* tokens of the other sequence */
} way_t;


/* With the case's "config", or the one that the reference "saved" of it. */
static moe_model_t *open_model(const json_t *test, const char *config)
{
    tiny_files_t files = reference_model_make(test, config);
    char *directory = tiny_directory();
    moe_model_t *model;
    moe_error_t error;

    tiny_model_save(&files, directory);
    model = moe_model_open(directory, &error);
    if (model == NULL) {
        fail_msg("%s: %s", json_string_value(json_object_get(test, "name")), error.message);
    }
    tiny_directory_remove(directory);
    tiny_model_free(&files);
    return model;
}


static moe_ranks_t *make_ranks(moe_model_t *model, const way_t *way)
{
    const moe_ranks_options_t options = {
        .ranks = way->ranks, .tensor_parallel = way->parts,
        .forward = {
            .threads = way->threads, .context = CONTEXT, .batch_rows = CONTEXT + COMPANY,
            .batch_sequences = 2, .batch_outputs = CONTEXT,
            .cache_bytes = (BLOCKS + 1) * moe_forward_block_bytes(model, MOE_KV_F32)
        }
    };
    moe_error_t error;
    moe_ranks_t *ranks = moe_ranks_create(model, &options, &error);

    if (ranks == NULL) {
        fail_msg("%s", error.message);
    }
    return ranks;
}


/* Logits [groups] of n tokens, which all groups compute, each beside another sequence. */
static void step(moe_ranks_t *ranks, const uint32_t *tokens, uint32_t n, uint32_t position,
                 uint32_t company, const float **logits)
{
    static const uint32_t others[COMPANY] = { 9, 8, 7, 6, 5 };
    const uint32_t blocks[BLOCKS + 1] = { 3, 8, 1, 6, 0, 7, 2, 5, 4 };
    const moe_batch_sequence_t sequences[] = {
        { tokens, n, position, blocks, n }, { others, company, 0, blocks + BLOCKS, 0 }
    };
    const moe_batch_t batch = {
        .sequences = sequences, .n_sequences = company > 0 ? 2 : 1
    };
    const moe_batch_t *const batches[GROUPS] = { &batch, &batch, &batch, &batch };
    moe_error_t error;

    if (moe_ranks_step(ranks, batches, logits, &error) != 0) {
        fail_msg("%s", error.message);
    }
}


static uint32_t load_ids(const json_t *array, uint32_t *ids)
{
    const uint32_t n = (uint32_t) json_array_size(array);

    assert_in_range(n, 1, CONTEXT);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = (uint32_t) json_integer_value(json_array_get(array, i));
    }
    return n;
}


static double relative_error(const json_t *expected, const float *logits, uint32_t vocabulary)
{
    double error = 0, size = 0;

    assert_int_equal(json_array_size(expected), vocabulary);
    for (uint32_t i = 0; i < vocabulary; i++) {
        const double value = json_number_value(json_array_get(expected, i));

        error += pow((double) logits[i] - value, 2);
        size += value * value;
    }
    return sqrt(error / size);
}


static uint32_t best_token(const float *logits, uint32_t vocabulary)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocabulary; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}


/* The worst relative error of the rows that are known whole; the best token of all rows. */
static double check_prompt(const json_t *golden, const json_t *test, const float *logits,
                           uint32_t vocabulary)
{
    const json_t *row, *token, *rows = json_object_get(test, "logits");
    double worst = 0;
    size_t i;

    json_array_foreach(json_object_get(golden, "rows"), i, row) {
        const size_t position = (size_t) json_integer_value(row);

        worst = fmax(worst, relative_error(json_array_get(rows, i),
                                           logits + position * vocabulary, vocabulary));
    }
    json_array_foreach(json_object_get(test, "top"), i, token) {
        const float *values = logits + i * vocabulary;
        const uint32_t expected = (uint32_t) json_integer_value(token);
        const uint32_t best = best_token(values, vocabulary);

        if (best != expected && values[best] - values[expected] > NEAR_TIE) {
            fail_msg("position %zu: %u is ahead of %u", i, best, expected);
        }
    }
    return worst;
}


static void check_greedy(moe_ranks_t *ranks, const json_t *test, uint32_t position,
                         const float *logits, uint32_t vocabulary)
{
    uint32_t greedy[CONTEXT];
    const uint32_t n = load_ids(json_object_get(test, "greedy"), greedy);

    assert_true(n >= 32 && position + n <= CONTEXT);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t best = best_token(logits, vocabulary);

        if (best != greedy[i]) {
            fail_msg("token %u of the continuation: %u instead of %u", i, best, greedy[i]);
        }
        step(ranks, &best, 1, position + i, 0, &logits);
    }
}


static void check_bits(moe_model_t *model, const way_t *way, const uint32_t *prompt, uint32_t n,
                       const float *expected)
{
    moe_ranks_t *ranks = make_ranks(model, way);
    const float *logits[GROUPS];

    for (uint32_t at = 0; at < n; at += way->chunk) {
        const uint32_t rows = n - at < way->chunk ? n - at : way->chunk;

        step(ranks, prompt + at, rows, at, way->company, logits);
        for (uint32_t group = 0; group < moe_ranks_groups(ranks); group++) {
            assert_memory_equal(logits[group], expected + (size_t) at * model->vocabulary,
                                rows * model->vocabulary * sizeof(float));
        }
    }
    moe_ranks_free(ranks);
}


static void run_case(const json_t *golden, const json_t *test)
{
    static const way_t plain = { 1, 1, 1, CONTEXT, 0 }, ways[] = {
        { 1, 1, 3, 7, COMPANY }, { 2, 1, 2, 33, COMPANY }, { 2, 2, 2, 20, 0 },
        { 4, 2, 4, CONTEXT, COMPANY }
    };
    uint32_t prompt[CONTEXT];
    const uint32_t n = load_ids(json_object_get(golden, "prompt"), prompt);
    moe_model_t *model = open_model(test, "config"), *saved = open_model(test, "saved");
    moe_ranks_t *ranks = make_ranks(model, &plain);
    const float *logits;
    double error;

    step(ranks, prompt, n, 0, 0, &logits);
    error = check_prompt(golden, test, logits, model->vocabulary);
    print_message("%-20s %.2g\n", json_string_value(json_object_get(test, "name")), error);
    assert_true(error < TOLERANCE);
    check_bits(saved, &plain, prompt, n, logits);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        check_bits(model, &ways[i], prompt, n, logits);
    }
    check_greedy(ranks, test, n, logits + (size_t) (n - 1) * model->vocabulary,
                 model->vocabulary);
    moe_ranks_free(ranks);
    moe_model_close(model);
    moe_model_close(saved);
}


static void test_reference(void **state)
{
    json_t *golden = json_load_file(REFERENCE_MODELS, 0, NULL);
    const json_t *test, *cases = json_object_get(golden, "cases");
    size_t i;

    assert_true(json_array_size(cases) > 0);
    print_message("relative error against %s\n",
                  json_string_value(json_object_get(golden, "reference")));
    json_array_foreach(cases, i, test) {
        run_case(golden, test);
    }
    json_decref(golden);
}


static int write_models(const char *directory)
{
    json_t *golden = json_load_file(REFERENCE_MODELS, 0, NULL);
    const json_t *test;
    size_t i;

    tiny_check(golden != NULL, REFERENCE_MODELS);
    json_array_foreach(json_object_get(golden, "cases"), i, test) {
        tiny_files_t files = reference_model_make(test, "config");

        tiny_model_save_below(&files, directory, json_string_value(json_object_get(test, "name")));
        tiny_model_free(&files);
    }
    json_decref(golden);
    return 0;
}


int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
    };

    return argc > 1 ? write_models(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
