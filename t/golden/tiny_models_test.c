/*
 * Every switch of all families against logits that tiny_models.py computed in double
 * precision: loader, descriptors and forward pass together.
 *
 *     tiny_models_test               the tests
 *     tiny_models_test DIRECTORY     writes the models instead, for reference.py
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/forward.h"
#include "engine/moe/settings.h"
#include "t/unit/tiny_model.h"

#define TOLERANCE 1e-5
#define TOKENS_LIMIT 64


static tiny_model_t read_options(const json_t *object)
{
    static const struct {
        const char *key;
        size_t offset;
    } numbers[] = {
#define NUMBER(field) { #field, offsetof(tiny_model_t, field) }
        NUMBER(hidden), NUMBER(vocabulary), NUMBER(layers), NUMBER(dense_layers), NUMBER(context),
        NUMBER(heads), NUMBER(q_lora), NUMBER(kv_lora), NUMBER(nope), NUMBER(rope), NUMBER(value),
        NUMBER(dense_width), NUMBER(expert_width), NUMBER(experts), NUMBER(top_k), NUMBER(groups),
        NUMBER(groups_kept), NUMBER(shared), NUMBER(normalise), NUMBER(tied), NUMBER(yarn),
        NUMBER(interleaved), NUMBER(mtp), NUMBER(kv_heads), NUMBER(head),
        NUMBER(biases), NUMBER(window), NUMBER(qk_norm), NUMBER(rotary),
#undef NUMBER
    };
    tiny_model_t options = {
        .model_type = json_string_value(json_object_get(object, "model_type")),
        .topk_method = json_string_value(json_object_get(object, "topk_method")),
        .scoring = json_string_value(json_object_get(object, "scoring")),
        .dtype = json_string_value(json_object_get(object, "dtype")),
        .scale = json_number_value(json_object_get(object, "scale")),
        .seed = (uint64_t) json_integer_value(json_object_get(object, "seed")),
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const json_t *number = json_object_get(object, numbers[i].key);

        assert_true(json_is_integer(number));
        *(uint32_t *) ((char *) &options + numbers[i].offset) =
            (uint32_t) json_integer_value(number);
    }
    return options;
}


static moe_model_t *open_model(const json_t *object)
{
    tiny_model_t options = read_options(object);
    tiny_files_t files = tiny_model_make(&options);
    char *directory = tiny_directory();
    moe_error_t error;
    moe_model_t *model;

    tiny_model_save(&files, directory);
    model = moe_model_open(directory, &error);
    if (model == NULL) {
        fail_msg("%s", error.message);
    }
    tiny_directory_remove(directory);
    tiny_model_free(&files);
    return model;
}


/* Relative error of the wanted rows, all of them as one vector. */
static double relative_error(const json_t *test, const float *logits, uint32_t vocabulary)
{
    const json_t *rows = json_object_get(test, "rows");
    double error = 0, size = 0;

    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *expected = json_array_get(json_object_get(test, "logits"), r);
        size_t row = (size_t) json_integer_value(json_array_get(rows, r));

        assert_int_equal(json_array_size(expected), vocabulary);
        for (size_t i = 0; i < vocabulary; i++) {
            double value = json_number_value(json_array_get(expected, i));
            double difference = (double) logits[row * vocabulary + i] - value;

            error += difference * difference;
            size += value * value;
        }
    }
    return sqrt(error / size);
}


/* The logits' error with rows that travel in a form. */
static double run_payload(const json_t *test, moe_model_t *model, const moe_batch_t *batch,
                          moe_payload_t exchange)
{
    const moe_forward_options_t options = {
        .threads = 1, .cache_bytes = 4 * moe_forward_block_bytes(model, MOE_KV_F32),
        .context = TOKENS_LIMIT, .batch_rows = TOKENS_LIMIT, .batch_sequences = 1,
        .batch_outputs = TOKENS_LIMIT, .exchange = exchange
    };
    moe_error_t error;
    moe_forward_t *forward = moe_forward_create(model, &options, &error);
    double difference;

    assert_non_null(forward);
    difference = relative_error(test, moe_forward_step(forward, batch, NULL), model->vocabulary);
    moe_forward_free(forward);
    return difference;
}


static void run_case(const json_t *test)
{
    static const double allowed[] = {
        [MOE_PAYLOAD_F32] = TOLERANCE, [MOE_PAYLOAD_BF16] = 0.01,
        [MOE_PAYLOAD_INT8] = 0.03, [MOE_PAYLOAD_FP8] = 0.1
    };
    const json_t *ids = json_object_get(test, "tokens");
    moe_model_t *model = open_model(json_object_get(test, "options"));
    uint32_t tokens[TOKENS_LIMIT], n = (uint32_t) json_array_size(ids);
    const uint32_t blocks[TOKENS_LIMIT / MOE_BLOCK_TOKENS] = { 3, 1, 2, 0 };
    moe_batch_sequence_t sequence = {
        .tokens = tokens, .n_tokens = n, .blocks = blocks, .n_outputs = n
    };
    const moe_batch_t batch = { .sequences = &sequence, .n_sequences = 1 };

    assert_true(n > MOE_BLOCK_TOKENS && n <= TOKENS_LIMIT);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t) json_integer_value(json_array_get(ids, i));
    }
    print_message("%-50s", json_string_value(json_object_get(test, "name")));
    for (moe_payload_t payload = MOE_PAYLOAD_F32; payload <= MOE_PAYLOAD_FP8; payload++) {
        const double difference = run_payload(test, model, &batch, payload);

        print_message(" %s %.2g", moe_payload_name(payload), difference);
        assert_true(difference < allowed[payload]);
    }
    print_message("\n");
    moe_model_close(model);
}


static void test_tiny_models(void **state)
{
    json_t *cases = json_load_file("t/golden/tiny_models.json", 0, NULL);
    const json_t *test;
    size_t i;

    assert_true(json_array_size(cases) > 0);
    json_array_foreach(cases, i, test) {
        run_case(test);
    }
    json_decref(cases);
}


static int write_models(const char *directory)
{
    json_t *cases = json_load_file("t/golden/tiny_models.json", 0, NULL);
    const json_t *test;
    size_t i;

    json_array_foreach(cases, i, test) {
        tiny_model_t options = read_options(json_object_get(test, "options"));
        tiny_files_t files = tiny_model_make(&options);

        tiny_model_save_below(&files, directory, json_string_value(json_object_get(test, "name")));
        tiny_model_free(&files);
    }
    json_decref(cases);
    return 0;
}


int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_models),
    };

    return argc > 1 ? write_models(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
