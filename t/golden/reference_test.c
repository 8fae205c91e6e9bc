/*
 * Every family against logits and greedy continuations of the public reference implementation
 * (reference.py).  The prompts cross sliding windows and YaRN's original context, and choose among
 * groups of experts.
 *
 *     reference_test                 the tests
 *     reference_test DIRECTORY       writes the models instead, one directory each
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/forward.h"
#include "engine/moe/settings.h"
#include "t/golden/reference_model.h"

#define GOLDEN "t/golden/reference.json"
#define TOLERANCE 1e-5          /* relative error of a row of logits */
#define NEAR_TIE 1e-4           /* logits: the two best of a row */
#define CONTEXT 128u

typedef struct {
    moe_model_t *model;
    moe_forward_t *forward;
    uint32_t blocks[CONTEXT / MOE_BLOCK_TOKENS];
} fixture_t;


static void load_model(fixture_t *f, const json_t *test, unsigned threads)
{
    tiny_files_t files = reference_model_make(test);
    char *directory = tiny_directory();
    moe_error_t error;

    tiny_model_save(&files, directory);
    f->model = moe_model_open(directory, &error);
    if (f->model == NULL) {
        fail_msg("%s: %s", json_string_value(json_object_get(test, "name")), error.message);
    }
    tiny_directory_remove(directory);
    tiny_model_free(&files);
    f->forward = moe_forward_create(f->model, &(moe_forward_options_t) {
        .threads = threads, .context = CONTEXT, .batch_rows = CONTEXT, .batch_sequences = 1,
        .batch_outputs = CONTEXT,
        .cache_bytes = CONTEXT / MOE_BLOCK_TOKENS * moe_forward_block_bytes(f->model, MOE_KV_F32)
    }, &error);
    assert_non_null(f->forward);
    for (uint32_t b = 0; b < CONTEXT / MOE_BLOCK_TOKENS; b++) {
        f->blocks[b] = CONTEXT / MOE_BLOCK_TOKENS - 1 - b;
    }
}


static void free_model(fixture_t *f)
{
    moe_forward_free(f->forward);
    moe_model_close(f->model);
}


static const float *step(fixture_t *f, const uint32_t *tokens, uint32_t n, uint32_t position,
                         uint32_t outputs)
{
    const moe_batch_sequence_t sequence = { tokens, n, position, f->blocks, outputs };
    const moe_batch_t batch = { .sequences = &sequence, .n_sequences = 1 };

    return moe_forward_step(f->forward, &batch, NULL);
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


static void check_greedy(fixture_t *f, const json_t *test, uint32_t position, const float *logits)
{
    uint32_t greedy[CONTEXT];
    const uint32_t n = load_ids(json_object_get(test, "greedy"), greedy);

    assert_true(n >= 32 && position + n <= CONTEXT);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t best = best_token(logits, f->model->vocabulary);

        if (best != greedy[i]) {
            fail_msg("token %u of the continuation: %u instead of %u", i, best, greedy[i]);
        }
        logits = step(f, &best, 1, position + i, 1);
    }
}


/* The same logits, to the bit, from chunks of 7 tokens and more threads. */
static void check_chunks(const json_t *test, const uint32_t *prompt, uint32_t n,
                         const float *whole)
{
    fixture_t f;

    load_model(&f, test, 3);
    for (uint32_t at = 0; at < n; at += 7) {
        const uint32_t rows = n - at < 7 ? n - at : 7;
        const float *logits = step(&f, prompt + at, rows, at, rows);

        assert_memory_equal(logits, whole + (size_t) at * f.model->vocabulary,
                            rows * f.model->vocabulary * sizeof(float));
    }
    free_model(&f);
}


static void run_case(const json_t *golden, const json_t *test)
{
    uint32_t prompt[CONTEXT];
    const uint32_t n = load_ids(json_object_get(golden, "prompt"), prompt);
    fixture_t f;
    const float *logits;
    double error;

    load_model(&f, test, 1);
    logits = step(&f, prompt, n, 0, n);
    error = check_prompt(golden, test, logits, f.model->vocabulary);
    print_message("%-20s %.2g\n", json_string_value(json_object_get(test, "name")), error);
    assert_true(error < TOLERANCE);
    check_chunks(test, prompt, n, logits);
    check_greedy(&f, test, n, logits + (size_t) (n - 1) * f.model->vocabulary);
    free_model(&f);
}


/* Families come one by one; what there is of them is checked. */
static int is_supported(const json_t *test)
{
    const char *model_type =
        json_string_value(json_object_get(json_object_get(test, "config"), "model_type"));

    for (const moe_family_t *const *family = moe_families; *family != NULL; family++) {
        if (strcmp((*family)->model_type, model_type) == 0) {
            return 1;
        }
    }
    return 0;
}


static void test_reference(void **state)
{
    json_t *golden = json_load_file(GOLDEN, 0, NULL);
    const json_t *test, *cases = json_object_get(golden, "cases");
    size_t i;

    assert_true(json_array_size(cases) > 0);
    print_message("relative error against %s\n",
                  json_string_value(json_object_get(golden, "reference")));
    json_array_foreach(cases, i, test) {
        if (is_supported(test)) {
            run_case(golden, test);
        }
    }
    json_decref(golden);
}


static int write_models(const char *directory)
{
    json_t *golden = json_load_file(GOLDEN, 0, NULL);
    const json_t *test;
    size_t i;

    tiny_check(golden != NULL, GOLDEN);
    json_array_foreach(json_object_get(golden, "cases"), i, test) {
        tiny_files_t files = reference_model_make(test);

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
