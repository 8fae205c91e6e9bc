/*
 * Rotary frequencies and magnitudes of every type, as configs spell them, against formulas and
 * published numbers; configs that must be refused.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/mixer/rope.h"
#include "engine/model/rope.h"

#define HEAD 64u
#define PAIRS_LIMIT 64u


static int read_rope(moe_rope_t *rope, json_t *object, uint32_t head, double share,
                     moe_error_t *error)
{
    moe_config_t config = { .object = object, .where = "config.json", .error = error };

    moe_rope_read(rope, &config, head, share);
    return config.failed ? -1 : 0;
}


static json_t *parse(const char *text)
{
    json_t *object = json_loads(text, 0, NULL);

    assert_non_null(object);
    return object;
}


/* Released models' YaRN: ramps, magnitudes and softmax scales as published. */
static void test_yarn(void **state)
{
    static const struct {
        const char *config;
        double low, high;               /* where the ramp begins and ends */
        double magnitude, scale;
    } cases[] = {
        /* DeepSeek-V3 */
        { "{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
          "\"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1, "
          "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}}", 10, 23, 1, 0.1352338 },
        /* DeepSeek-V2-Lite */
        { "{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
          "\"original_max_position_embeddings\": 4096, \"mscale\": 0.707, "
          "\"mscale_all_dim\": 0.707}}", 10, 23, 1, 0.1147214 },
        /* Kimi-K2, with factor 32 and 64; the context that a config names beside it has no say */
        { "{\"max_position_embeddings\": 1000000, \"rope_theta\": 50000.0, \"rope_scaling\": "
          "{\"type\": \"yarn\", \"factor\": 32.0, \"original_max_position_embeddings\": 4096, "
          "\"beta_fast\": 1.0, \"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}",
          19, 20, 1, 0.1308608 },
        { "{\"rope_parameters\": {\"rope_theta\": 50000.0, \"rope_type\": \"yarn\", "
          "\"factor\": 64.0, \"original_max_position_embeddings\": 4096, \"mscale\": 1.0, "
          "\"mscale_all_dim\": 1.0}}", 8, 20, 1, 0.1446796 },
        /* gpt-oss: bounds not rounded */
        { "{\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32, "
          "\"original_max_position_embeddings\": 4096, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
          "\"truncate\": false}}", 8.0928, 17.3980, 1.3465736, 0.0721688 },
        /* one mscale alone is not used; attention_factor wins */
        { "{\"rope_theta\": 10000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 40, "
          "\"original_max_position_embeddings\": 4096, \"mscale\": 2}}",
          10, 23, 1.3688879, 0.0721688 },
        { "{\"rope_theta\": 10000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 40, "
          "\"original_max_position_embeddings\": 4096, \"attention_factor\": 1.5, "
          "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}}", 10, 23, 1.5, 0.1352338 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config = parse(cases[i].config);
        float frequencies[PAIRS_LIMIT];
        moe_error_t error;
        moe_rope_t rope;

        assert_int_equal(read_rope(&rope, config, HEAD, 0, &error), 0);
        moe_rope_frequencies(&rope, 0, frequencies);
        assert_true(fabs(moe_rope_magnitude(&rope, 0) - cases[i].magnitude) < 1e-7);
        assert_true(fabs(moe_rope_softmax_factor(&rope) / sqrt(192) - cases[i].scale) < 1e-7);
        for (uint32_t j = 0; j < HEAD / 2; j++) {
            double base = pow(rope.theta, -2.0 * j / HEAD);
            double ramp = (j - cases[i].low) / (cases[i].high - cases[i].low);

            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            base = base / rope.factor * ramp + base * (1 - ramp);
            assert_true(fabs(frequencies[j] / base - 1)
                        < (cases[i].low == floor(cases[i].low) ? 1e-7 : 1e-4));
        }
        json_decref(config);
    }
}


#define LLAMA3 \
    "{\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, " \
    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " \
    "\"original_max_position_embeddings\": 8192}}"

/* A frequency of the other types, worked out by their formulas. */
static void test_types(void **state)
{
    static const struct {
        const char *config;
        uint32_t head;
        double share;
        uint32_t width, pair;
        double frequency;
    } cases[] = {
        { "{}", 64, 0, 64, 0, 1 },
        { "{\"rope_theta\": 10000, \"rope_scaling\": null}", 64, 0, 64, 16, 0.01 },
        { "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e6}}", 64, 0, 64, 16,
          0.001 },
        { "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 8.0}}", 64, 0, 64, 16, 0.00125 },
        /* a part of the head, said in every way */
        { "{}", 64, 0.5, 32, 8, 0.01 },
        { "{\"partial_rotary_factor\": 0.25}", 64, 0.5, 16, 4, 0.01 },
        { "{\"rotary_dim\": 32}", 64, 1, 32, 8, 0.01 },
        { "{\"rotary_dim\": 32, \"partial_rotary_factor\": 0.5}", 64, 1, 32, 8, 0.01 },
        { "{\"rope_parameters\": {\"rope_theta\": 10000, \"partial_rotary_factor\": 0.5}}", 64, 1,
          32, 8, 0.01 },
        { "{\"partial_rotary_factor\": 1.0}", 64, 0, 64, 16, 0.01 },
        { "{\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_interleaved\": true, "
          "\"mrope_section\": [24, 20, 20]}}", 64, 0, 64, 16, 0.01 },
        /* Hunyuan: theta becomes 11158839.92508 */
        { "{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1000.0, \"factor\": 1.0, "
          "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}",
          128, 0, 128, 32, 0.00029935772 },
        /* of these pairs' turns within 8192, 1303.8 keep, 1.84 mix and 0.36 divide */
        { LLAMA3, 64, 0, 64, 0, 1 },
        { LLAMA3, 64, 0, 64, 16, 0.00052484616 },
        { LLAMA3, 64, 0, 64, 20, 3.4281022e-05 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config = parse(cases[i].config);
        float frequencies[PAIRS_LIMIT];
        moe_error_t error;
        moe_rope_t rope;

        if (read_rope(&rope, config, cases[i].head, cases[i].share, &error) != 0) {
            fail_msg("%s: %s", cases[i].config, error.message);
        }
        assert_int_equal(rope.width, cases[i].width);
        assert_true(moe_rope_magnitude(&rope, 0) == 1);
        assert_true(moe_rope_softmax_factor(&rope) == 1);
        moe_rope_frequencies(&rope, 0, frequencies);
        if (!(fabs(frequencies[cases[i].pair] / cases[i].frequency - 1) < 1e-7)) {
            fail_msg("%s: %.9g", cases[i].config, (double) frequencies[cases[i].pair]);
        }
        json_decref(config);
    }
}


/* Sequences that fit the original context and those that may not: factors and magnitudes. */
static void test_longrope(void **state)
{
    static const struct {
        const char *more;
        double magnitudes[2];
    } cases[] = {
        { "\"short_mscale\": 1.2431631, \"long_mscale\": 1.2431632", { 1.2431631, 1.2431632 } },
        { "\"attention_factor\": 1.5", { 1.5, 1.5 } },
        { "\"factor\": 32.0", { 1.1902381, 1.1902381 } },
        { "\"rope_theta\": 10000", { 1.1902381, 1.1902381 } },
        { "\"factor\": 1.0", { 1, 1 } },
    };
    float frequencies[PAIRS_LIMIT];
    char text[512];
    moe_error_t error;
    moe_rope_t rope;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config;

        snprintf(text, sizeof(text), "{\"max_position_embeddings\": 131072, \"rope_scaling\": "
                 "{\"type\": \"longrope\", \"original_max_position_embeddings\": 4096, "
                 "\"short_factor\": [1, 1.25], \"long_factor\": [2.0, 50.0], %s}}", cases[i].more);
        config = parse(text);
        assert_int_equal(read_rope(&rope, config, 4, 0, &error), 0);
        for (int is_long = 0; is_long < 2; is_long++) {
            assert_true(fabs(moe_rope_magnitude(&rope, is_long) - cases[i].magnitudes[is_long])
                        < 1e-7);
        }
        moe_rope_frequencies(&rope, 0, frequencies);
        assert_true(frequencies[0] == 1 && frequencies[1] == 0.008f);
        moe_rope_frequencies(&rope, 1, frequencies);
        assert_true(frequencies[0] == 0.5f && frequencies[1] == 0.0002f);
        json_decref(config);
    }
}


/* The context that is served tells which frequencies a table is made of. */
static void test_tables(void **state)
{
    static const float near[1] = { 0.5f }, far[1] = { 0.25f };
    const moe_rotary_t rotary = {
        .size = 2, .frequencies = near, .magnitude = 1, .long_frequencies = far,
        .long_magnitude = 2, .short_context = 4
    }, plain = { .size = 2, .frequencies = near, .magnitude = 1 };
    moe_rope_tables_t tables = { 0 };
    moe_error_t error;
    moe_pool_t *pool = moe_pool_create(1, &error);
    moe_device_t *device = pool != NULL ? moe_device_cpu(pool, &error) : NULL;
    const float *first, *second;

    assert_non_null(device);
    first = moe_rope_table(&tables, device, &rotary, 4, &error);
    second = moe_rope_table(&tables, device, &rotary, 5, &error);
    assert_true(first != NULL && second != NULL && first != second);
    assert_true(first[2 * 3] == (float) cos(1.5) && first[2 * 3 + 1] == (float) sin(1.5));
    assert_true(second[2 * 3] == (float) (2 * cos(0.75)));
    assert_true(second[2 * 3 + 1] == (float) (2 * sin(0.75)));
    assert_ptr_equal(moe_rope_table(&tables, device, &plain, 4, &error), first);
    device->ops->free(device);
    moe_pool_free(pool);
}


static void test_refusals(void **state)
{
    static const struct {
        const char *config;
        double share;
        const char *message;
    } cases[] = {
        { "{\"rope_scaling\": {\"rope_type\": \"ntk\"}}", 0,
          "config.json: rope_scaling: rope_type: \"ntk\" is not supported" },
        { "{\"rope_scaling\": {\"rope_type\": \"mrope\", \"mrope_section\": [8, 12, 12]}}", 0,
          "rope_scaling: rope_type: \"mrope\" is not supported" },
        { "{\"rope_scaling\": {\"xdrope_section\": [8, 12, 12]}}", 0,
          "rope_scaling: xdrope_section: unknown key" },
        { "{\"rope_scaling\": {\"type\": \"linear\"}}", 0, "rope_scaling: factor: missing" },
        { "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 32}}", 0,
          "rope_scaling: beta_fast: unknown key" },
        { "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", 0,
          "rope_scaling: rope_type: \"dynamic\" is not supported without alpha" },
        { "{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 10, \"factor\": 2}}", 0,
          "rope_scaling: factor: 2 is not within 1..1" },
        { "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}", 0,
          "rope_scaling: original_max_position_embeddings: missing" },
        { "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
          "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}", 0,
          "rope_scaling: high_freq_factor: 4 is not above low_freq_factor 4" },
        { "{\"max_position_embeddings\": 8, \"rope_scaling\": {\"type\": \"longrope\", "
          "\"original_max_position_embeddings\": 4, \"short_factor\": [1], \"long_factor\": [1]}}",
          0, "rope_scaling: short_factor: not an array of 32 numbers" },
        { "{\"max_position_embeddings\": 8, \"rotary_dim\": 2, \"rope_scaling\": {\"type\": "
          "\"longrope\", \"original_max_position_embeddings\": 4, \"short_factor\": [1], "
          "\"long_factor\": [0]}}", 1, "rope_scaling: long_factor: entry 0" },
        { "{\"rope_scaling\": [], \"rope_theta\": 10000}", 0, "rope_scaling: not an object" },
        { "{\"rope_scaling\": {}, \"rope_parameters\": {}}", 0, "rope_scaling: given twice" },
        { "{\"partial_rotary_factor\": 0.5}", 0, "partial_rotary_factor: 0.5 is not within 1..1" },
        { "{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", 0,
          "rope_parameters: partial_rotary_factor: 0.5 is not within 1..1" },
        { "{\"partial_rotary_factor\": 0.25, \"rope_scaling\": {\"partial_rotary_factor\": 0.5}}",
          0.5, "rope_scaling: partial_rotary_factor: 0.5 here, 0.25 outside" },
        { "{\"partial_rotary_factor\": 0.25, \"rotary_dim\": 32}", 1,
          "rotary_dim: 32, but partial_rotary_factor 0.25 of 64" },
        { "{\"partial_rotary_factor\": 0.05}", 1,
          "partial_rotary_factor: 3 of 64 dimensions cannot rotate in pairs" },
        { "{\"rotary_dim\": 66}", 1, "rotary_dim: 66 is not within 2..64" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config = parse(cases[i].config);
        moe_error_t error = { MOE_OK, "" };
        moe_rope_t rope;

        if (read_rope(&rope, config, HEAD, cases[i].share, &error) == 0
            || error.code != MOE_BAD_MODEL || strstr(error.message, cases[i].message) == NULL)
        {
            fail_msg("%s: \"%s\"", cases[i].config, error.message);
        }
        json_decref(config);
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
