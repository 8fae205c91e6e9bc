/* The router: hand-checkable choices, ties, masks, and a plain sort in double precision. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/kernels.h"
#include "t/unit/tiny_model.h"

#define MAX_EXPERTS 256

typedef struct {
    const char *what;
    moe_route_t route;
    float scores[8];                /* after the sigmoid, or logits for softmax */
    float bias[8];
    uint32_t ids[3];
    float weights[3];
} route_case_t;

#define SIGMOID(e, k) .experts = (e), .top_k = (k), .sigmoid = 1
#define SOFTMAX(e, k) .experts = (e), .top_k = (k)

static const route_case_t cases[] = {
    {"groups by their two best",
     {SIGMOID(8, 2), .groups = 4, .groups_kept = 2, .normalise = 1, .scale = 1, .group_top = 2},
     {.9f, .15f, .5f, .6f, .2f, .8f, .3f, .3f}, {0}, {0, 3}, {.6f, .4f}},
    {"groups by their best",
     {SIGMOID(8, 2), .groups = 4, .groups_kept = 2, .group_top = 1, .scale = 1},
     {.9f, .15f, .5f, .6f, .2f, .8f, .3f, .3f}, {0}, {0, 5}, {.9f, .8f}},
    {"scale after normalising", {SIGMOID(2, 2), .normalise = 1, .scale = 2.5f},
     {.9f, .6f}, {0}, {0, 1}, {1.5f, 1.0f}},
    {"bias selects only", {SIGMOID(2, 1), .scale = 1}, {.6f, .5f}, {0, .2f}, {1}, {.5f}},
    {"negative keys of a kept group",
     {SIGMOID(4, 1), .groups = 2, .groups_kept = 1, .scale = 1, .group_top = 2},
     {.7f, .8f, .1f, .1f}, {-1, -1, -2, -2}, {1}, {.8f}},
    {"all keys negative",
     {SIGMOID(8, 3), .groups = 4, .groups_kept = 2, .scale = 1, .group_top = 2},
     {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f}, {-9, -9, -3, -3, -5, -5, -8, -8}, {3, 2, 5},
     {.4f, .3f, .6f}},
    {"ties to the lower index", {SIGMOID(4, 3), .scale = 1}, {.5f, .5f, .5f, .5f}, {0}, {0, 1, 2},
     {.5f, .5f, .5f}},
    {"ties of groups", {SIGMOID(8, 2), .groups = 4, .groups_kept = 1, .scale = 1, .group_top = 2},
     {.5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f}, {0}, {0, 1}, {.5f, .5f}},
    {"all experts", {SIGMOID(3, 3), .normalise = 1, .scale = 1}, {.2f, .5f, .3f}, {0}, {1, 2, 0},
     {.5f, .3f, .2f}},
    {"softmax", {SOFTMAX(3, 2), .scale = 1}, {2, 1, 0}, {0}, {0, 1}, {.665241f, .244728f}},
    {"softmax, normalised", {SOFTMAX(3, 2), .normalise = 1, .scale = 1}, {2, 1, 0}, {0}, {0, 1},
     {.731059f, .268941f}},
    {"softmax of large logits", {SOFTMAX(3, 1), .scale = 1}, {1000, -1000, 0}, {0}, {0}, {1}},
};


static void check_case(const route_case_t *c, const moe_kernels_t *kernels)
{
    float scores[8], keys[8], weights[8];
    moe_route_t route = c->route;
    uint32_t ids[8];

    for (size_t i = 0; i < route.experts; i++) {
        scores[i] = route.sigmoid ? -logf(1.0f / c->scores[i] - 1.0f) : c->scores[i];
    }
    route.bias = c->bias;
    kernels->route(&route, scores, keys, ids, weights);
    for (size_t s = 0; s < route.top_k; s++) {
        if (ids[s] != c->ids[s] || fabsf(weights[s] - c->weights[s]) > 1e-6f) {
            fail_msg("%s, %s: slot %zu is %u with %.7g", c->what, kernels->name, s, ids[s],
                     (double) weights[s]);
        }
    }
}


static void test_cases(void **state)
{
    for (size_t k = 0; moe_kernels_name(k); k++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            check_case(&cases[i], moe_kernels_find(moe_kernels_name(k)));
        }
    }
}


/* Equal keys in equal logits: exactly, not within rounding. */
static void test_exact_ties(void **state)
{
    for (size_t k = 0; moe_kernels_name(k); k++) {
        const moe_route_t route = {SIGMOID(64, 8), .normalise = 1, .scale = 1};
        float scores[64], keys[64], weights[8];
        uint32_t ids[8];

        for (size_t i = 0; i < 64; i++) {
            scores[i] = i == 40 || i == 7 || i == 19 ? 1.5f : 0.25f;
        }
        moe_kernels_find(moe_kernels_name(k))->route(&route, scores, keys, ids, weights);
        assert_int_equal(ids[0], 7);
        assert_int_equal(ids[1], 19);
        assert_int_equal(ids[2], 40);
        for (uint32_t s = 3; s < 8; s++) {
            assert_int_equal(ids[s], s - 3);
        }
    }
}


static double reference_score(const moe_route_t *r, const float *logits, size_t i)
{
    double maximum = -INFINITY, sum = 0;

    if (r->sigmoid) {
        return 1 / (1 + exp(-(double) logits[i]));
    }
    for (size_t e = 0; e < r->experts; e++) {
        maximum = fmax(maximum, logits[e]);
    }
    for (size_t e = 0; e < r->experts; e++) {
        sum += exp(logits[e] - maximum);
    }
    return exp(logits[i] - maximum) / sum;
}


/* Random logits: scores near double precision, the choice exactly by the kernel's own keys, the
 * same bits on every instruction set. */
static void test_random(void **state)
{
    tiny_files_t numbers = {.random = 3};
    float logits[MAX_EXPERTS], bias[MAX_EXPERTS];

    for (unsigned round = 0; round < 60; round++) {
        moe_route_t route = {
            .experts = 1 + round * 4, .top_k = 1 + round % 8, .sigmoid = round % 2, .scale = 1.5f,
            .normalise = round % 3 == 0, .bias = bias,
        };
        float first[MAX_EXPERTS] = {0};
        uint32_t first_ids[8] = {0};

        route.top_k = route.top_k > route.experts ? route.experts : route.top_k;
        for (size_t i = 0; i < route.experts; i++) {
            logits[i] = 4 * tiny_random(&numbers);
            bias[i] = tiny_random(&numbers);
        }
        for (size_t k = 0; moe_kernels_name(k); k++) {
            float scores[MAX_EXPERTS], keys[MAX_EXPERTS], weights[8];
            double total = 0;
            uint32_t ids[8];

            memcpy(scores, logits, sizeof(logits));
            moe_kernels_find(moe_kernels_name(k))->route(&route, scores, keys, ids, weights);
            for (size_t i = 0; i < route.experts; i++) {
                const double score = reference_score(&route, logits, i);

                assert_true(fabs(scores[i] - score) <= 1e-6 * score);
                assert_true(keys[i] == scores[i] + bias[i]);
            }
            for (size_t s = 0; s < route.top_k; s++) {
                size_t better = 0;

                for (size_t i = 0; i < route.experts; i++) {
                    better += keys[i] > keys[ids[s]] || (keys[i] == keys[ids[s]] && i < ids[s]);
                }
                assert_int_equal(better, s);
                total += scores[ids[s]];
            }
            for (size_t s = 0; s < route.top_k; s++) {
                const double weight = scores[ids[s]] / (route.normalise ? total : 1) * 1.5;

                assert_true(fabs(weights[s] - weight) <= 1e-6 * weight);
            }
            if (k == 0) {
                memcpy(first, weights, route.top_k * sizeof(float));
                memcpy(first_ids, ids, route.top_k * sizeof(uint32_t));
            }
            assert_memory_equal(weights, first, route.top_k * sizeof(float));
            assert_memory_equal(ids, first_ids, route.top_k * sizeof(uint32_t));
        }
    }
}


/* Whatever the logits are, ids are distinct and in range. */
static void test_not_a_number(void **state)
{
    for (size_t k = 0; moe_kernels_name(k); k++) {
        for (unsigned mask = 0; mask < 256; mask++) {
            const moe_route_t route = {
                SOFTMAX(8, 4), .groups = 2, .groups_kept = 1, .sigmoid = mask & 1,
                .group_top = 2, .scale = 1,
            };
            float scores[8], keys[8], weights[4];
            unsigned seen = 0;
            uint32_t ids[4];

            for (unsigned i = 0; i < 8; i++) {
                scores[i] = mask >> i & 1 ? (i % 2 ? NAN : INFINITY) : (float) i;
            }
            moe_kernels_find(moe_kernels_name(k))->route(&route, scores, keys, ids, weights);
            for (unsigned s = 0; s < 4; s++) {
                assert_true(ids[s] < 8 && !(seen >> ids[s] & 1));
                seen |= 1u << ids[s];
            }
        }
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_exact_ties),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_not_a_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
