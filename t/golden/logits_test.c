/*
 * The demo model against golden.json (float32 numpy): logits of every prompt position, and greedy
 * continuations.
 *
 * Two float32 implementations may choose different experts where the router's margin is smaller
 * than rounding; from there on the sequence's hidden states differ.  Such near ties (NEAR_TIE)
 * excuse a position and those after it in its item; they are counted and must be few.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "engine/moe/settings.h"

#define MODEL "conf/models/nginx-directives-moe"
#define GOLDEN "t/golden/golden.json"
#define TOLERANCE 2e-3              /* relative error of the 20 largest logits */
#define NEAR_TIE 2e-6               /* router scores: their rounding errors */
#define NEAR_TOKEN 1e-3             /* logits: the two best of a greedy step */
#define MAX_EXCUSED 5               /* positions of all items */
#define CONTEXT 512u

typedef struct {
    moe_model_t *model;
    moe_forward_t *forward;
    json_t *items;
    uint32_t blocks[CONTEXT / MOE_BLOCK_TOKENS];
} fixture_t;


static moe_forward_t *make_forward(moe_model_t *model, moe_payload_t exchange)
{
    const moe_forward_options_t options = {
        .threads = moe_cpu_count(), .context = CONTEXT, .batch_rows = CONTEXT,
        .batch_sequences = 1, .batch_outputs = CONTEXT, .exchange = exchange,
        .cache_bytes = CONTEXT / MOE_BLOCK_TOKENS * moe_forward_block_bytes(model, MOE_KV_F32),
    };
    moe_error_t error;

    return moe_forward_create(model, &options, &error);
}


static int set_up(void **state)
{
    static fixture_t f;
    json_t *golden = json_load_file(GOLDEN, JSON_ALLOW_NUL, NULL);
    moe_error_t error;

    *state = &f;
    f.items = json_incref(json_object_get(golden, "items"));
    json_decref(golden);
    f.model = moe_model_open(MODEL, &error);
    if (f.model == NULL || json_array_size(f.items) == 0) {
        print_error("%s: %s\n", GOLDEN, f.model ? "no items" : error.message);
        return -1;
    }
    f.forward = make_forward(f.model, MOE_PAYLOAD_F32);
    for (uint32_t b = 0; b < CONTEXT / MOE_BLOCK_TOKENS; b++) {
        f.blocks[b] = b;
    }
    return f.forward ? 0 : -1;
}


static int tear_down(void **state)
{
    fixture_t *f = *state;

    moe_forward_free(f->forward);
    moe_model_close(f->model);
    json_decref(f->items);
    return 0;
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


static const float *step(fixture_t *f, const uint32_t *ids, uint32_t n, uint32_t position,
                         uint32_t outputs)
{
    const moe_batch_sequence_t sequence = {ids, n, position, f->blocks, outputs};
    const moe_batch_t batch = {.sequences = &sequence, .n_sequences = 1};

    return moe_forward_step(f->forward, &batch, NULL);
}


static double number_at(const json_t *object, const char *name, size_t i)
{
    return json_number_value(json_array_get(json_object_get(object, name), i));
}


/* Adds the squares of a position. */
static void add_squares(const json_t *top, const float *logits, double *error, double *norm)
{
    const size_t n = json_array_size(json_object_get(top, "ids"));

    assert_int_equal(n, 20);
    for (size_t i = 0; i < n; i++) {
        const double value = number_at(top, "logits", i);

        *error += pow(logits[(size_t) number_at(top, "ids", i)] - value, 2);
        *norm += value * value;
    }
}


static double relative_error(const json_t *top, const float *logits)
{
    double error = 0, norm = 0;

    add_squares(top, logits, &error, &norm);
    return sqrt(error / norm);
}


static void test_logits(void **state)
{
    fixture_t *f = *state;
    double worst = 0;
    unsigned excused = 0, positions = 0;
    uint32_t ids[CONTEXT];
    size_t i;
    json_t *item;

    json_array_foreach(f->items, i, item) {
        const uint32_t n = load_ids(json_object_get(item, "ids"), ids);
        const float *logits = step(f, ids, n, 0, n);
        int near_tie = 0;

        for (uint32_t p = 0; p < n; p++) {
            const double error = relative_error(
                json_array_get(json_object_get(item, "top20"), p),
                logits + (size_t) p * f->model->vocabulary);

            positions++;
            near_tie |= number_at(item, "router_margin", p) < NEAR_TIE;
            if (near_tie && !(error <= TOLERANCE)) {
                excused++;
            } else if (!(error <= TOLERANCE)) {
                fail_msg("item %zu, position %u: relative error %.3g", i, p, error);
            } else {
                worst = error > worst ? error : worst;
            }
        }
    }
    print_message("%u positions, worst relative error %.2g, %u excused by near ties\n", positions,
                  worst, excused);
    assert_in_range(excused, 0, MAX_EXCUSED);
}


static uint32_t best_token(const float *logits, uint32_t vocabulary)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocabulary; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}


static void test_greedy(void **state)
{
    fixture_t *f = *state;
    uint32_t ids[CONTEXT], greedy[CONTEXT];
    unsigned tokens = 0, excused = 0;
    size_t i;
    json_t *item;

    json_array_foreach(f->items, i, item) {
        const uint32_t n = load_ids(json_object_get(item, "ids"), ids);
        const uint32_t n_greedy = load_ids(json_object_get(item, "greedy"), greedy);
        const float *logits = step(f, ids, n, 0, 1);

        for (uint32_t k = 0; k < n_greedy; k++) {
            const uint32_t best = best_token(logits, f->model->vocabulary);

            tokens++;
            if (best != greedy[k] && number_at(item, "greedy_margin", k) < NEAR_TOKEN) {
                excused++;
                break;
            }
            if (best != greedy[k]) {
                fail_msg("item %zu, token %u: %u instead of %u", i, k, best, greedy[k]);
            }
            logits = step(f, &best, 1, n + k, 1);
        }
    }
    print_message("%u tokens, %u excused by near ties\n", tokens, excused);
    assert_in_range(excused, 0, 2);
}


/* What payloads cost: the relative error of all positions as one vector, router flips included. */
static void test_payloads(void **state)
{
    static const double allowed[] = {
        [MOE_PAYLOAD_F32] = 1e-5, [MOE_PAYLOAD_BF16] = 1e-2, [MOE_PAYLOAD_INT8] = 1e-2,
        [MOE_PAYLOAD_FP8] = 2e-2
    };
    fixture_t f = *(fixture_t *) *state;
    uint32_t ids[CONTEXT];
    size_t i;
    json_t *item;

    for (moe_payload_t payload = MOE_PAYLOAD_F32; payload <= MOE_PAYLOAD_FP8; payload++) {
        double error = 0, norm = 0;

        f.forward = make_forward(f.model, payload);
        assert_non_null(f.forward);
        json_array_foreach(f.items, i, item) {
            const uint32_t n = load_ids(json_object_get(item, "ids"), ids);
            const float *logits = step(&f, ids, n, 0, n);

            for (uint32_t p = 0; p < n; p++) {
                add_squares(json_array_get(json_object_get(item, "top20"), p),
                            logits + (size_t) p * f.model->vocabulary, &error, &norm);
            }
        }
        moe_forward_free(f.forward);
        print_message("exchange %-4s: relative error %.2g\n", moe_payload_name(payload),
                      sqrt(error / norm));
        assert_true(sqrt(error / norm) <= allowed[payload]);
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_payloads),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
