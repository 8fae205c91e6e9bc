/* From logits to tokens: every parameter, the distribution, hostile values. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/maths.h"
#include "engine/serve/sampler.h"

#define VOCABULARY 8u
#define DRAWS 20000u

static const moe_sampling_params_t neutral = {
    .temperature = 1.0f,
    .top_p = 1.0f,
    .repetition_penalty = 1.0f,
    .seed = 42
};


static moe_sampler_t *new_sampler(uint32_t vocabulary, const uint8_t *usable)
{
    moe_error_t error;
    moe_sampler_t *sampler = moe_sampler_create(vocabulary, usable, &error);

    assert_non_null(sampler);
    return sampler;
}


/* Draws at many positions and counts. */
static void draw_many(const moe_sampling_params_t *params, const float *logits, uint32_t vocabulary,
                      const uint8_t *usable, unsigned *counts)
{
    moe_sampler_t *sampler = new_sampler(vocabulary, usable);
    moe_sampling_t sampling;
    moe_error_t error;

    assert_int_equal(0, moe_sampling_init(&sampling, params, NULL, 0, 0, &error));
    memset(counts, 0, vocabulary * sizeof(unsigned));
    for (uint32_t position = 0; position < DRAWS; position++) {
        uint32_t id = moe_sampler_draw(sampler, &sampling, logits, position);

        assert_true(id < vocabulary);
        counts[id]++;
    }
    moe_sampling_free(&sampling);
    moe_sampler_free(sampler);
}


static uint32_t draw_once(const moe_sampling_params_t *params, const float *logits)
{
    moe_sampler_t *sampler = new_sampler(VOCABULARY, NULL);
    moe_sampling_t sampling;
    moe_error_t error;
    uint32_t id;

    assert_int_equal(0, moe_sampling_init(&sampling, params, NULL, 0, 0, &error));
    id = moe_sampler_draw(sampler, &sampling, logits, 5);
    moe_sampling_free(&sampling);
    moe_sampler_free(sampler);
    return id;
}


static void test_maths(void **state)
{
    for (double x = -700.0; x < 700.0; x += 0.37) {
        assert_true(fabs(moe_exp(x) - exp(x)) <= 1e-15 * exp(x));
    }
    assert_true(moe_exp(0.0) == 1.0);
    assert_true(moe_exp(-1000.0) == 0.0);
    for (double x = 1e-300; x < 1e300; x *= 1.7) {
        assert_true(fabs(moe_log_natural(x) - log(x)) <= 1e-15 * fabs(log(x)) + 1e-16);
    }
    assert_true(moe_log_natural(1.0) == 0.0);
}


/* Salmon et al., known answers of philox4x32-10 (Random123, kat_vectors): counter and key zero. */
static void test_generator(void **state)
{
    double sum = 0.0;

    assert_true(moe_sampler_uniform(0, 0)
                == (double) ((((uint64_t) 0x6627e8d5 << 32) | 0xe169c58d) >> 11) * 0x1p-53);
    for (uint32_t i = 0; i < DRAWS; i++) {
        double u = moe_sampler_uniform(7, i);

        assert_true(u >= 0.0 && u < 1.0);
        sum += u;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 0.01);
    assert_true(moe_sampler_uniform(7, 1) != moe_sampler_uniform(8, 1));
}


static void test_greedy(void **state)
{
    const float tie[VOCABULARY] = { 0, 3, 1, 3, -1, 2, 3, 0 };
    const float hostile[VOCABULARY] = { NAN, -INFINITY, NAN, 1, NAN, 2, -INFINITY, NAN };
    const float nothing[VOCABULARY] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    moe_sampling_params_t params = neutral;

    params.temperature = 0.0f;
    assert_int_equal(1, draw_once(&params, tie));
    assert_int_equal(5, draw_once(&params, hostile));
    assert_int_equal(0, draw_once(&params, nothing));
}


/* The share of each token is its softmax, within five standard deviations. */
static void assert_distribution(const unsigned *counts, const double *expected, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double sigma = sqrt(expected[i] * (1.0 - expected[i]) * DRAWS);

        assert_true(fabs(counts[i] - expected[i] * DRAWS) <= 5.0 * sigma);
    }
}


static void test_distribution(void **state)
{
    static const struct {
        float temperature, top_p, min_p;
        uint32_t top_k;
        double expected[4];         /* weights 8, 4, 2, 2 at temperature 1 */
    } cases[] = {
        { 1.0f, 1.0f, 0.0f, 0, { 8 / 16.0, 4 / 16.0, 2 / 16.0, 2 / 16.0 } },
        { 0.5f, 1.0f, 0.0f, 0, { 64 / 88.0, 16 / 88.0, 4 / 88.0, 4 / 88.0 } },
        { 1.0f, 1.0f, 0.0f, 2, { 8 / 12.0, 4 / 12.0, 0, 0 } },
        { 1.0f, 1.0f, 0.0f, 3, { 8 / 14.0, 4 / 14.0, 2 / 14.0, 0 } },
        { 1.0f, 1.0f, 0.0f, 9, { 8 / 16.0, 4 / 16.0, 2 / 16.0, 2 / 16.0 } },
        { 1.0f, 0.4f, 0.0f, 0, { 1, 0, 0, 0 } },
        { 1.0f, 0.74f, 0.0f, 0, { 8 / 12.0, 4 / 12.0, 0, 0 } },
        { 1.0f, 0.76f, 0.0f, 0, { 8 / 14.0, 4 / 14.0, 2 / 14.0, 0 } },
        { 1.0f, 1.0f, 0.49f, 0, { 8 / 12.0, 4 / 12.0, 0, 0 } },
        { 1.0f, 1.0f, 0.2f, 0, { 8 / 16.0, 4 / 16.0, 2 / 16.0, 2 / 16.0 } },
        { 1.0f, 1.0f, 1.0f, 0, { 1, 0, 0, 0 } },
        /* top_p is taken of what top_k and min_p leave: 8 of 12 is enough for 0.6. */
        { 1.0f, 0.6f, 0.0f, 2, { 1, 0, 0, 0 } },
        { 1.0f, 0.7f, 0.0f, 2, { 8 / 12.0, 4 / 12.0, 0, 0 } },
        { 1.0f, 0.6f, 0.49f, 0, { 1, 0, 0, 0 } },
        { 1e-30f, 1.0f, 0.0f, 0, { 1, 0, 0, 0 } }
    };
    /* Shifted by a constant, and with a token that can never be drawn. */
    const float logits[5] = { 100.0f + logf(8), 100.0f + logf(4), 100.0f + logf(2),
                              100.0f + logf(2), -INFINITY };
    unsigned counts[5];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_sampling_params_t params = neutral;

        params.temperature = cases[i].temperature;
        params.top_p = cases[i].top_p;
        params.min_p = cases[i].min_p;
        params.top_k = cases[i].top_k;
        draw_many(&params, logits, 5, NULL, counts);
        assert_distribution(counts, cases[i].expected, 4);
        assert_int_equal(0, counts[4]);
    }
}


/* The selection by heap gives the same tokens as a full sort would. */
static void test_large_vocabulary(void **state)
{
    enum { N = 5000, K = 40 };
    float *logits = malloc(N * sizeof(float));
    unsigned *counts = malloc(N * sizeof(unsigned)), kept = 0;
    moe_sampling_params_t params = neutral;

    assert_true(logits && counts);
    for (uint32_t i = 0; i < N; i++) {
        logits[i] = (float) (moe_sampler_uniform(3, i) * 0.1);
    }
    params.top_k = K;
    draw_many(&params, logits, N, NULL, counts);
    for (uint32_t i = 0; i < N; i++) {
        unsigned larger = 0;

        for (uint32_t j = 0; j < N; j++) {
            larger += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
        }
        assert_int_equal(counts[i] > 0, larger < K);
        kept += counts[i] > 0;
    }
    assert_int_equal(K, kept);
    free(logits);
    free(counts);
}


static void test_masks(void **state)
{
    const float logits[VOCABULARY] = { 5, 4, 3, 2, 1, 0, -1, -2 };
    const uint8_t usable[VOCABULARY] = { 0, 1, 0, 1, 1, 1, 0, 0 };
    const uint32_t allowed[] = { 6, 3 }, end[] = { 0 }, stop[] = { 1 };
    const moe_logit_bias_t biases[] = { { 0, -100.0f }, { 7, 100.0f } };
    moe_sampling_params_t params = neutral;
    unsigned counts[VOCABULARY];
    moe_sampling_t sampling;
    moe_sampler_t *sampler;
    moe_error_t error;

    params.temperature = 3.0f;
    draw_many(&params, logits, VOCABULARY, usable, counts);
    for (uint32_t i = 0; i < VOCABULARY; i++) {
        assert_int_equal(usable[i], counts[i] > 0);
    }

    params = neutral;
    params.temperature = 0.0f;
    params.allowed_ids = allowed;
    params.n_allowed_ids = 2;
    assert_int_equal(3, draw_once(&params, logits));

    params = neutral;
    params.temperature = 0.0f;
    params.biases = biases;
    params.n_biases = 2;
    assert_int_equal(7, draw_once(&params, logits));

    /* min_tokens: neither EOS nor stop id until two tokens are there. */
    params = neutral;
    params.temperature = 0.0f;
    params.min_tokens = 2;
    params.end_ids = end;
    params.n_end_ids = 1;
    params.stop_ids = stop;
    params.n_stop_ids = 1;
    sampler = new_sampler(VOCABULARY, NULL);
    assert_int_equal(0, moe_sampling_init(&sampling, &params, NULL, 0, 8, &error));
    assert_int_equal(2, moe_sampler_draw(sampler, &sampling, logits, 0));
    moe_sampling_note(&sampling, 2);
    assert_int_equal(2, moe_sampler_draw(sampler, &sampling, logits, 1));
    moe_sampling_note(&sampling, 2);
    assert_int_equal(0, moe_sampler_draw(sampler, &sampling, logits, 2));
    moe_sampling_free(&sampling);

    /* Nothing that is allowed may be drawn yet: the lowest allowed id, whatever it is. */
    params.allowed_ids = end;
    params.n_allowed_ids = 1;
    assert_int_equal(0, moe_sampling_init(&sampling, &params, NULL, 0, 8, &error));
    assert_int_equal(0, moe_sampler_draw(sampler, &sampling, logits, 0));
    moe_sampling_free(&sampling);
    moe_sampler_free(sampler);
}


static void test_penalties(void **state)
{
    /* Prompt: 0, 1.  Output: 2, 2, 3. */
    static const struct {
        float repetition, presence, frequency;
        float logits[5];
        uint32_t expected;
    } cases[] = {
        { 1.0f, 0.0f, 0.0f, { 4, 3, 2, 1, 0 }, 0 },
        { 2.0f, 0.0f, 0.0f, { 4, 3, 0, 0, 2.5f }, 4 },      /* 4 / 2 < 2.5 */
        { 2.0f, 0.0f, 0.0f, { -1, -9, -9, -9, -1.5f }, 4 }, /* -1 * 2 < -1.5 */
        { 0.5f, 0.0f, 0.0f, { 1, -9, -9, -9, 1.5f }, 0 },   /* 1 / 0.5 > 1.5 */
        { 1.0f, 1.0f, 0.0f, { 0, 0, 3, 0, 2.5f }, 4 },      /* 3 - 1 < 2.5 */
        { 1.0f, 1.0f, 0.0f, { 3, 0, 0, 0, 2.5f }, 0 },      /* the prompt does not count */
        { 1.0f, 0.0f, 0.5f, { 0, 0, 3, 2.4f, 2.2f }, 4 },   /* 3 - 2 * 0.5, 2.4 - 0.5 */
        { 1.0f, 0.0f, 0.5f, { 0, 0, 3, 2.8f, 2.2f }, 3 },
        { 1.0f, -2.0f, 0.0f, { 0, 0, 1, 0, 2.5f }, 2 },
        { 1e-3f, 0.0f, 0.0f, { FLT_MAX, 0, 0, 0, 1 }, 0 },  /* overflow stays the largest */
        { 1e3f, 0.0f, 0.0f, { NAN, NAN, -FLT_MAX, NAN, NAN }, 2 }
    };
    const uint32_t prompt[] = { 0, 1 }, output[] = { 2, 2, 3 };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_sampling_params_t params = neutral;
        moe_sampler_t *sampler = new_sampler(5, NULL);
        moe_sampling_t sampling;
        moe_error_t error;

        params.temperature = 0.0f;
        params.repetition_penalty = cases[i].repetition;
        params.presence_penalty = cases[i].presence;
        params.frequency_penalty = cases[i].frequency;
        assert_int_equal(0, moe_sampling_init(&sampling, &params, prompt, 2, 3, &error));
        for (unsigned j = 0; j < 3; j++) {
            moe_sampling_note(&sampling, output[j]);
        }
        assert_int_equal(cases[i].expected,
                         moe_sampler_draw(sampler, &sampling, cases[i].logits, 5));
        moe_sampling_free(&sampling);
        moe_sampler_free(sampler);
    }
}


static void test_seed_and_position(void **state)
{
    const float logits[VOCABULARY] = { 0 };
    moe_sampling_params_t params = neutral;
    unsigned equal = 0, other = 0;
    moe_sampling_t sampling;
    moe_sampler_t *sampler = new_sampler(VOCABULARY, NULL);
    moe_error_t error;
    uint32_t first[64];

    assert_int_equal(0, moe_sampling_init(&sampling, &params, NULL, 0, 0, &error));
    for (uint32_t i = 0; i < 64; i++) {
        first[i] = moe_sampler_draw(sampler, &sampling, logits, i);
    }
    for (uint32_t i = 64; i-- > 0;) {
        assert_int_equal(first[i], moe_sampler_draw(sampler, &sampling, logits, i));
        equal += i > 0 && first[i] == first[i - 1];
    }
    assert_true(equal < 32);
    sampling.params.seed = 43;
    for (uint32_t i = 0; i < 64; i++) {
        other += first[i] != moe_sampler_draw(sampler, &sampling, logits, i);
    }
    assert_true(other > 32);
    moe_sampler_free(sampler);
}


static void test_logprobs(void **state)
{
    const float logits[6] = { logf(1), logf(4), logf(4), logf(7), -INFINITY, NAN };
    const uint8_t usable[6] = { 1, 1, 1, 0, 1, 1 };
    const float hostile[3] = { NAN, NAN, -INFINITY }, huge[2] = { INFINITY, 0 };
    moe_sampler_t *sampler = new_sampler(6, usable);
    moe_logprob_t record;

    moe_sampler_logprobs(sampler, logits, 0, 3, &record);
    assert_int_equal(0, record.token.id);
    assert_true(fabs(record.token.logprob - log(1 / 16.0)) < 1e-6);
    assert_int_equal(3, record.n_top);
    /* 3 has no token; of equal ones the lower id comes first. */
    assert_int_equal(1, record.top[0].id);
    assert_int_equal(2, record.top[1].id);
    assert_int_equal(0, record.top[2].id);
    assert_true(fabs(record.top[0].logprob - log(4 / 16.0)) < 1e-6);
    assert_true(record.top[2].logprob == record.token.logprob);

    moe_sampler_logprobs(sampler, logits, 0, 1, &record);
    assert_int_equal(1, record.n_top);
    assert_int_equal(1, record.top[0].id);

    moe_sampler_logprobs(sampler, logits, 4, 20, &record);
    assert_int_equal(5, record.n_top);
    assert_true(record.token.logprob == MOE_LOGPROB_FLOOR);
    assert_true(record.top[3].logprob == MOE_LOGPROB_FLOOR);
    assert_true(record.top[4].logprob == MOE_LOGPROB_FLOOR);
    moe_sampler_logprobs(sampler, logits, 5, 0, &record);
    assert_true(record.token.logprob == MOE_LOGPROB_FLOOR);
    assert_int_equal(0, record.n_top);
    moe_sampler_free(sampler);

    sampler = new_sampler(3, NULL);
    moe_sampler_logprobs(sampler, hostile, 1, 3, &record);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(record.top[i].logprob == MOE_LOGPROB_FLOOR);
    }
    moe_sampler_free(sampler);

    sampler = new_sampler(2, NULL);
    moe_sampler_logprobs(sampler, huge, 1, 2, &record);
    assert_true(record.top[0].id == 0 && record.top[0].logprob == 0.0f);
    assert_true(record.token.logprob == MOE_LOGPROB_FLOOR);
    moe_sampler_free(sampler);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maths),
        cmocka_unit_test(test_generator),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_seed_and_position),
        cmocka_unit_test(test_logprobs)
    };

    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
