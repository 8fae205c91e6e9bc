/*
 * The CPU kernels of every instruction set that this machine runs: against double precision, and
 * bit by bit against each other and across batch sizes.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cpu/kernels.h"
#include "t/unit/tiny_model.h"

#define EPSILON 0x1p-24
#define MAX_ISAS 3
#define E4M3_LARGEST 448.0f

static const moe_kernels_t *isas[MAX_ISAS];
static size_t n_isas;
static tiny_files_t numbers = {.random = 7};


static float *random_floats(size_t n, float width)
{
    float *values = malloc((n + 1) * sizeof(float));

    assert_non_null(values);
    for (size_t i = 0; i < n; i++) {
        values[i] = width * tiny_random(&numbers);
    }
    return values;
}


static void assert_same(const float *a, const float *b, size_t n)
{
    assert_memory_equal(a, b, n * sizeof(float));
}


static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.9g is not %.9g within %.3g", value, expected, tolerance);
    }
}


/* w [columns, depth] into panels of `element`; w becomes what the panels hold. */
static void *pack(float *w, size_t columns, size_t depth, moe_element_t element)
{
    const size_t panels = (columns + 15) / 16, size = element == MOE_ELEMENT_F32 ? 4 : 2;
    char *data = calloc(panels * 16 * depth + 1, size);

    assert_non_null(data);
    for (size_t c = 0; c < columns; c++) {
        for (size_t i = 0; i < depth; i++) {
            char *to = data + (c / 16 * depth * 16 + i * 16 + c % 16) * size;
            float value = w[c * depth + i];
            uint16_t bits = element == MOE_ELEMENT_F16 ? tiny_half(value) : tiny_bfloat16(value);
            uint32_t wide = (uint32_t) bits << 16;

            if (element == MOE_ELEMENT_F32) {
                memcpy(to, &value, 4);
                continue;
            }
            memcpy(to, &bits, 2);
            if (element == MOE_ELEMENT_BF16) {
                memcpy(&w[c * depth + i], &wide, 4);
            } else {
                w[c * depth + i] = (float) ldexp(bits & 0x7c00 ? 1024 + (bits & 1023) : bits & 1023,
                                                 (bits & 0x7c00 ? bits >> 10 & 31 : 1) - 25)
                                   * (bits & 0x8000 ? -1.0f : 1.0f);
            }
        }
    }
    return data;
}


typedef struct {
    size_t columns, depth;
    float *w, *x, *bias;            /* x: 40 rows; bias NULL: none */
    void *panels;
    moe_element_t element;
} product_case_t;


static void check_product(const product_case_t *c, const float *y, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t o = 0; o < c->columns; o++) {
            double sum = c->bias ? (double) c->bias[o] : 0, bound = fabs(sum);

            for (size_t i = 0; i < c->depth; i++) {
                const double term = (double) c->x[r * c->depth + i] * c->w[o * c->depth + i];

                sum += term;
                bound += fabs(term);
            }
            assert_near(y[r * c->columns + o], sum, (double) (c->depth + 1) * EPSILON * bound);
        }
        assert_true(y[rows * c->columns] == -1.0f);     /* nothing is written behind the end */
    }
}


/* Any number of rows gives the bits that one row at a time gives, on every instruction set. */
static void run_product_case(const product_case_t *c)
{
    static const size_t batches[] = {40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    float *first = NULL;

    for (size_t k = 0; k < n_isas * 18; k++) {
        const size_t rows = batches[k % 18];
        float *y = malloc((rows * c->columns + 1) * sizeof(float));
        const moe_product_t product = {
            .panels = c->panels, .element = c->element, .depth = c->depth, .columns = c->columns,
            .bias = c->bias, .x = c->x, .x_stride = c->depth, .y = y, .y_stride = c->columns,
            .rows = rows,
        };

        y[rows * c->columns] = -1.0f;
        isas[k / 18]->product(&product);
        if (first == NULL) {
            check_product(c, y, rows);
            first = y;
            continue;
        }
        assert_same(y, first, rows * c->columns);
        assert_true(y[rows * c->columns] == -1.0f);
        free(y);
    }
    free(first);
}


static void test_product(void **state)
{
    static const size_t columns[] = {1, 15, 16, 17, 33, 64, 100};
    static const size_t depths[] = {1, 7, 16, 31, 65, 200};

    for (size_t c = 0; c < 7; c++) {
        for (size_t d = 0; d < 6; d++) {
            for (int element = MOE_ELEMENT_F32; element <= MOE_ELEMENT_BF16; element++) {
                product_case_t t = {.columns = columns[c], .depth = depths[d],
                                    .element = (moe_element_t) element};

                t.w = random_floats(t.columns * t.depth, 1);
                t.x = random_floats(40 * t.depth, 3);
                t.panels = pack(t.w, t.columns, t.depth, t.element);
                run_product_case(&t);
                t.bias = random_floats(t.columns, 2);
                run_product_case(&t);
                free(t.bias);
                free(t.panels);
                free(t.x);
                free(t.w);
            }
        }
    }
}


/* Every binary16 and bfloat16 number but NaN is widened exactly. */
static void test_embed(void **state)
{
    uint16_t *panels = calloc(16, 65536 * sizeof(uint16_t));
    float *y = malloc(65536 * sizeof(float));

    for (size_t i = 0; i < 65536; i++) {
        panels[i * 16 + 3] = (uint16_t) i;
    }
    for (size_t k = 0; k < n_isas; k++) {
        isas[k]->embed(panels, MOE_ELEMENT_F16, 65536, 3, y);
        for (size_t i = 0; i < 65536; i++) {
            const int exponent = i >> 10 & 31, mantissa = i & 1023;
            const double size = exponent == 31  ? INFINITY
                                : exponent == 0 ? ldexp(mantissa, -24)
                                                : ldexp(1024 + mantissa, exponent - 25);

            if (exponent != 31 || mantissa == 0) {
                assert_true(y[i] == (float) (i & 0x8000 ? -size : size));
                assert_true(!signbit(y[i]) == !(i & 0x8000));
            }
        }
        isas[k]->embed(panels, MOE_ELEMENT_BF16, 65536, 3, y);
        for (size_t i = 0; i < 65536; i++) {
            uint32_t bits;

            memcpy(&bits, &y[i], sizeof(bits));
            assert_int_equal(bits, i << 16);
        }
    }
    free(panels);
    free(y);
}


static void test_rms_norm(void **state)
{
    for (size_t n = 1; n <= 70; n++) {
        float *x = random_floats(n, 5), *w = random_floats(n, 2), y[2][71];
        double squares = 0;

        for (size_t i = 0; i < n; i++) {
            squares += (double) x[i] * x[i];
        }
        for (size_t k = 0; k < n_isas; k++) {
            float *out = y[k > 0];

            out[n] = -1.0f;
            isas[k]->rms_norm(x, w, 1e-6f, n, out);
            assert_true(out[n] == -1.0f);
            assert_same(out, y[0], n);
        }
        for (size_t i = 0; i < n; i++) {
            const double expected = w[i] * x[i] / sqrt(squares / (double) n + (double) 1e-6f);

            assert_near(y[0][i], expected, fabs(expected) * 1e-6);
        }
        memcpy(y[1], x, n * sizeof(float));
        isas[0]->rms_norm(y[1], w, 1e-6f, n, y[1]);
        assert_same(y[1], y[0], n);
        free(x);
        free(w);
    }
}


static void test_gate_row(void **state)
{
    static const float scores[] = {-100, -3.5f, 0, 1, 88, 1000};

    for (size_t s = 0; s < 6; s++) {
        for (size_t n = 1; n <= 40; n++) {
            float *x = random_floats(n + 1, 5), first[41];

            for (size_t k = 0; k < n_isas; k++) {
                float y[41];

                memcpy(y, x, (n + 1) * sizeof(float));
                isas[k]->gate_row(scores[s], n, y);
                for (size_t i = 0; i < n && k == 0; i++) {
                    const double value = (double) x[i] / (1 + exp(-(double) scores[s]));

                    assert_near((double) y[i], value, 4 * EPSILON * fabs(value) + 1e-37);
                }
                assert_true(y[n] == x[n]);
                if (k == 0) {
                    memcpy(first, y, sizeof(y));
                }
                assert_same(y, first, n);
            }
            free(x);
        }
    }
}


static void test_swiglu(void **state)
{
    enum { N = 4001 };
    static const moe_swiglu_t usual = {0};
    float gate[N], up[N], y[MAX_ISAS][N + 1];

    for (size_t i = 0; i < N; i++) {
        gate[i] = (float) ((double) i - N / 2) / 20.0f;
        up[i] = 1.0f + (float) (i % 7);
    }
    gate[0] = -1e30f;
    gate[1] = 1e30f;
    for (size_t k = 0; k < n_isas; k++) {
        y[k][N] = -1.0f;
        isas[k]->swiglu(&usual, gate, up, N, y[k]);
        assert_same(y[k], y[0], N);
        assert_true(y[k][N] == -1.0f);
    }
    for (size_t i = 2; i < N; i++) {
        const double expected = gate[i] / (1.0 + exp(-(double) gate[i])) * up[i];

        /* e^x is clamped where it would leave the normal numbers */
        assert_near(y[0][i], expected, fabs(expected) * 1e-6 + 1e-34);
    }
    assert_near(y[0][0], 0, 1e-7);
    assert_true(y[0][1] == gate[1] * up[1]);
}


/* Gate limited from above only, up on both sides, and what is added to it after that. */
static void test_limited_swiglu(void **state)
{
    enum { N = 4001 };
    static const moe_swiglu_t forms[] = {{7.0f, 1.702f, 1.0f}, {0.5f, 1.0f, 0.0f}};
    float gate[N], up[N], y[MAX_ISAS][N + 1];

    for (size_t i = 0; i < N; i++) {
        gate[i] = (float) ((double) i - N / 2) / 100.0f;
        up[i] = (float) ((double) (i * 37 % N) - N / 2) / 150.0f;
    }
    gate[5] = NAN;
    for (size_t f = 0; f < 2; f++) {
        const double limit = (double) forms[f].limit, alpha = (double) forms[f].alpha;

        for (size_t k = 0; k < n_isas; k++) {
            y[k][N] = -1.0f;
            isas[k]->swiglu(&forms[f], gate, up, N, y[k]);
            assert_same(y[k] + 6, y[0] + 6, N - 6);
            assert_true(isnan(y[k][5]) && y[k][N] == -1.0f);
        }
        for (size_t i = 6; i < N; i++) {
            const double g = fmin((double) gate[i], limit);
            const double u = fmax(fmin((double) up[i], limit), -limit) + (double) forms[f].offset;
            const double expected = g / (1.0 + exp(-alpha * g)) * u;

            assert_near((double) y[0][i], expected, fabs(expected) * 2e-6 + 1e-7);
        }
    }
}


static void test_add_combine(void **state)
{
    for (size_t n = 1; n <= 40; n++) {
        const uint32_t index[3] = {4, 0, 2};
        const float weights[3] = {0.5f, -1.25f, 3.0f};
        float *x = random_floats(5 * n, 2), *shared = random_floats(n, 2), y[2][41];
        float scaled[40];

        for (size_t k = 0; k < n_isas; k++) {
            float *out = y[k > 0];

            out[n] = -1.0f;
            isas[k]->combine(x, index, weights, 3, shared, n, out);
            assert_same(out, y[0], n);
            assert_true(out[n] == -1.0f);
            isas[k]->combine(x, index, weights, 3, NULL, n, out);
            isas[k]->add(shared, 1, n, out);
            assert_same(out, y[0], n);
            memcpy(scaled, out, n * sizeof(float));
            isas[k]->add(shared, -0.3f, n, scaled);
            for (size_t i = 0; i < n; i++) {
                assert_true(scaled[i] == out[i] + -0.3f * shared[i]);
            }
        }
        for (size_t i = 0; i < n; i++) {
            float sum = weights[0] * x[4 * n + i];

            sum = fmaf(weights[1], x[i], sum);
            sum = fmaf(weights[2], x[2 * n + i], sum);
            assert_true(y[0][i] == sum + shared[i]);
        }
        free(x);
        free(shared);
    }
}


static void test_rope(void **state)
{
    const float x[6] = {1, 2, 3, 4, 5, 6}, table[6] = {0.8f, 1, 0, 0.6f, 0, 1};
    const float pairs[6] = {1 * 0.8f - 2 * 0.6f, 2 * 0.8f + 1 * 0.6f, 3, 4, -6, 5};
    const float halves[6] = {1 * 0.8f - 4 * 0.6f, 2, -6, 4 * 0.8f + 1 * 0.6f, 5, 3};
    float y[6];

    for (size_t k = 0; k < n_isas; k++) {
        isas[k]->rope(x, table, 1, 6, y);
        assert_same(y, pairs, 6);
        isas[k]->rope(x, table, 0, 6, y);
        assert_same(y, halves, 6);
        memcpy(y, x, sizeof(x));
        isas[k]->rope(y, table, 0, 6, y);
        assert_same(y, halves, 6);
    }
}


/* Attention */

typedef struct {
    size_t heads, latent, rope, tokens;
    size_t first;                       /* position that is seen */
    float *query, *sinks;               /* sinks NULL: none */
    moe_kv_type_t type;
    char *cache;                        /* blocks of 16 rows in mixed order */
    uint32_t blocks[64];
    size_t row;                         /* bytes */
    float scale;
} attend_case_t;


/* Number i of a row of `width` as kernels/kv.h says that it is kept. */
static float kept_number(moe_kv_type_t type, const void *row, size_t width, size_t i)
{
    const size_t rounded = (width + 31) / 32 * 32;
    uint32_t bits;
    float value;

    switch (type) {
    case MOE_KV_BF16:
        bits = (uint32_t) ((const uint16_t *) row)[i] << 16;
        break;
    case MOE_KV_Q8_0:
        bits = (uint32_t) ((const uint16_t *) ((const int8_t *) row + rounded))[i / 32] << 16;
        break;
    default:
        return ((const float *) row)[i];
    }
    memcpy(&value, &bits, sizeof(value));
    return type == MOE_KV_Q8_0 ? value * ((const int8_t *) row)[i] : value;
}


static float cached(const attend_case_t *c, size_t position, size_t i)
{
    return kept_number(c->type, c->cache + (c->blocks[position / 16] * 16 + position % 16) * c->row,
                       c->latent + c->rope, i);
}


static void check_attend(const attend_case_t *c, const float *y)
{
    const size_t width = c->latent + c->rope;
    double *score = malloc(c->tokens * sizeof(double));

    for (size_t h = 0; h < c->heads; h++) {
        double maximum = c->sinks ? c->sinks[h] : -INFINITY, sum = 0, norm = 0, error = 0;

        for (size_t p = c->first; p < c->tokens; p++) {
            score[p] = 0;
            for (size_t i = 0; i < width; i++) {
                score[p] += (double) c->query[h * width + i] * cached(c, p, i);
            }
            score[p] *= c->scale;
            maximum = fmax(maximum, score[p]);
        }
        sum = c->sinks ? exp(c->sinks[h] - maximum) : 0;
        for (size_t p = c->first; p < c->tokens; p++) {
            score[p] = exp(score[p] - maximum);
            sum += score[p];
        }
        for (size_t i = 0; i < c->latent; i++) {
            double value = 0;

            for (size_t p = c->first; p < c->tokens; p++) {
                value += score[p] / sum * cached(c, p, i);
            }
            norm += value * value;
            error += (value - y[h * c->latent + i]) * (value - y[h * c->latent + i]);
        }
        assert_near(sqrt(error / norm), 0, 3e-6);
    }
    free(score);
}


static float *run_attend(const moe_kernels_t *kernels, const attend_case_t *c, size_t split)
{
    const size_t skipped = c->first / split, part = moe_attend_part(c->latent);
    const size_t n_parts = (c->tokens + split - 1) / split - skipped;
    float *parts = malloc(n_parts * part * sizeof(float));
    float *scratch = malloc(moe_attend_scratch(c->latent + c->rope, split) * sizeof(float));
    float *y = malloc((c->heads * c->latent + 1) * sizeof(float));

    y[c->heads * c->latent] = -1.0f;
    for (size_t i = 0; i < n_parts; i++) {
        const size_t start = (i + skipped) * split, end = start + split;
        const moe_attend_t attend = {
            .query = c->query, .heads = c->heads, .width = c->latent + c->rope,
            .latent = c->latent, .cache = c->cache, .type = c->type, .block_stride = 16 * c->row,
            .row_stride = c->row, .block_tokens = 16, .blocks = c->blocks,
            .first = start > c->first ? start : c->first,
            .last = end < c->tokens ? end : c->tokens, .scale = c->scale,
            .scratch = scratch, .part = parts + i * part,
        };

        kernels->attend(&attend);
    }
    kernels->attend_join(parts, n_parts, c->heads, c->latent, c->sinks, y, c->latent);
    assert_true(y[c->heads * c->latent] == -1.0f);
    free(parts);
    free(scratch);
    return y;
}


static void check_attention(attend_case_t *c, const float *rows)
{
    const size_t width = c->latent + c->rope;
    float *first = NULL;

    c->row = moe_kv_row_bytes(c->type, width);
    c->cache = malloc(64 * 16 * c->row);
    for (size_t k = 0; k < n_isas; k++) {
        float *y;

        for (size_t i = 0; i < 64 * 16; i++) {
            isas[k]->store_row(c->type, rows + i * width, width, c->cache + i * c->row);
        }
        y = run_attend(isas[k], c, 64);
        if (first) {
            assert_same(y, first, c->heads * c->latent);
            free(y);
        } else {
            check_attend(c, y);
            first = y;
        }
    }
    free(first);
    free(c->cache);
}


static void test_attend(void **state)
{
    static const size_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 128, 200};
    static const size_t shapes[][3] = {{1, 16, 8}, {4, 40, 6}, {16, 64, 16}, {13, 17, 2}};

    for (size_t i = 0; i < 40; i++) {
        attend_case_t c = {.heads = shapes[i % 4][0], .latent = shapes[i % 4][1],
                           .rope = shapes[i % 4][2], .tokens = lengths[i / 4], .scale = 0.3f};
        float *rows = random_floats(64 * 16 * (c.latent + c.rope), 2);

        c.query = random_floats(c.heads * (c.latent + c.rope), 2);
        for (uint32_t b = 0; b < 64; b++) {
            c.blocks[b] = (b * 37 + 5) % 64;
        }
        for (c.type = MOE_KV_F32; c.type <= MOE_KV_Q8_0; c.type++) {
            check_attention(&c, rows);
        }
        c.sinks = random_floats(c.heads, 8);
        for (c.type = MOE_KV_F32; c.type <= MOE_KV_Q8_0; c.type++) {
            c.first = c.tokens * (c.type + 1) / 4;
            check_attention(&c, rows);
        }
        free(c.sinks);
        free(rows);
        free(c.query);
    }
}


/* What is kept is near what was given, the same on every instruction set, and filled up by zeroes;
 * nothing is written behind it. */
static void test_rows(void **state)
{
    static const float special[] = {
        0.0f, -0.0f, 1e-45f, -3e-42f, 1e-38f, 3e38f, -3e38f, 1.0f, 1.00390625f, 1.01171875f
    };
    static const size_t widths[] = {1, 15, 16, 17, 31, 32, 33, 48, 96, 576};

    for (size_t i = 0; i < 60; i++) {
        const moe_kv_type_t type = i % 3;
        const size_t n = widths[i / 3 % 10], bytes = moe_kv_row_bytes(type, n);
        float *x = random_floats(n, i < 30 ? 3 : 1e-30f);
        uint8_t first[4096], row[4096];

        for (size_t k = 0; k < n && i % 2; k += 5) {
            x[k] = special[k / 5 % 10];
        }
        for (size_t k = 0; k < n_isas; k++) {
            memset(row, 0xaa, sizeof(row));
            isas[k]->store_row(type, x, n, row);
            if (k == 0) {
                memcpy(first, row, sizeof(row));
            }
            assert_memory_equal(row, first, sizeof(row));
        }
        assert_true(row[bytes] == 0xaa && row[bytes - 1] != 0xaa);
        for (size_t k = 0; k < moe_kv_row_size(type, n); k++) {
            const double kept = kept_number(type, row, n, k), value = k < n ? x[k] : 0.0;
            double largest = 0.0;

            for (size_t g = k / 32 * 32; g < n && g < k / 32 * 32 + 32; g++) {
                largest = fmax(largest, fabs((double) x[g]));
            }
            assert_true(fabs(kept - value)
                        <= (type == MOE_KV_F32    ? 0.0
                            : type == MOE_KV_BF16 ? fabs(value) / 256
                                                  : largest / 252)
                               + (type == MOE_KV_F32 ? 0.0 : 1e-39));
        }
        free(x);
    }
}


/* The number that E4M3 byte b stands for. */
static double e4m3_value(uint8_t b)
{
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);

    return b & 0x80 ? -magnitude : magnitude;
}


/* Largest distance between a number and what its row reads: half a step. */
static double payload_error(moe_payload_t payload, double value, double largest)
{
    switch (payload) {
    case MOE_PAYLOAD_BF16:
        return fabs(value) / 256 + 1e-40;
    case MOE_PAYLOAD_INT8:
        return largest / 253 + 1e-40;
    case MOE_PAYLOAD_FP8:
        return fmax(fabs(value) / 16, largest / 448 / 1024) * (1 + 1e-6) + 1e-42;
    default:
        return 0;
    }
}


static double largest_around(const float *x, size_t n, size_t i, size_t group)
{
    double largest = 0;

    for (size_t k = i / group * group; k < n && k < (i / group + 1) * group; k++) {
        largest = fmax(largest, fabs((double) x[k]));
    }
    return largest;
}


/* Rows there and back: as near as the form allows, the same bytes on every instruction set, and
 * nothing written behind either. */
static void test_payloads(void **state)
{
    static const float special[] = {
        0.0f, -0.0f, 1e-45f, -3e-42f, 1e-38f, 3.38e38f, -3e38f, 1.0f, 448.0f, -460.0f, 1.0625f
    };
    static const size_t widths[] = {1, 3, 16, 31, 33, 96, 127, 128, 160, 300};

    for (size_t i = 0; i < 120; i++) {
        const moe_payload_t payload = i % 4;
        const size_t n = widths[i / 4 % 10], bytes = moe_payload_row_bytes(payload, n);
        float *x = random_floats(n, i < 80 ? 3 : 1e-43f), y[2][301];
        uint8_t rows[2][2000];

        for (size_t k = 0; k < n && i >= 40; k += 3) {
            x[k] = special[k / 3 % 11];
        }
        for (size_t k = 0; k < n_isas; k++) {
            memset(rows[k > 0], 0xaa, sizeof(rows[0]));
            memset(y[k > 0], 0xaa, sizeof(y[0]));
            isas[k]->encode_row(payload, x, n, rows[k > 0]);
            isas[k]->decode_row(payload, rows[k > 0], n, y[k > 0]);
            assert_memory_equal(rows[k > 0], rows[0], sizeof(rows[0]));
            assert_memory_equal(y[k > 0], y[0], sizeof(y[0]));
        }
        assert_true(rows[0][bytes] == 0xaa && memcmp(&y[0][n], rows[0] + 1999 - 3, 4) == 0);
        for (size_t k = 0; k < n; k++) {
            const double largest = largest_around(x, n, k, payload == MOE_PAYLOAD_FP8 ? 128 : 32);

            const double allowed = payload_error(payload, x[k], largest);

            if (!(fabs((double) y[0][k] - x[k]) <= allowed)) {
                fail_msg("payload %d, number %zu of %zu: %.9g became %.9g", payload, k, n, x[k],
                         y[0][k]);
            }
        }
        free(x);
    }
}


/* E4M3 byte by byte: every number is read exactly and written as itself; what lies between two goes
 * to the nearer, from the middle to the even one; beyond the largest is the largest. */
static void test_e4m3(void **state)
{
    float x[128] = {[0] = E4M3_LARGEST}, y[128];
    uint8_t row[128 + 4];

    for (size_t k = 0; k < n_isas; k++) {
        for (uint32_t b = 1; b < 0x7e; b++) {
            const double below = e4m3_value((uint8_t) b), above = e4m3_value((uint8_t) (b + 1));

            x[1] = (float) below;
            x[2] = (float) -below;
            x[3] = (float) ((below + above) / 2);
            x[4] = nextafterf(x[3], 0);
            x[5] = nextafterf(x[3], INFINITY);
            isas[k]->encode_row(MOE_PAYLOAD_FP8, x, 128, row);
            isas[k]->decode_row(MOE_PAYLOAD_FP8, row, 128, y);
            assert_int_equal(row[0], 0x7e);
            assert_int_equal(row[1], b);
            assert_int_equal(row[2], b | 0x80);
            assert_int_equal(row[3], b + b % 2);
            assert_int_equal(row[4], b);
            assert_int_equal(row[5], b + 1);
            assert_true(y[0] == E4M3_LARGEST && y[1] == x[1] && y[2] == x[2]);
        }
    }
}


/* Who sends something that is not a number gets no number, and its neighbours' groups are whole. */
static void test_broken_payloads(void **state)
{
    static const float broken[] = {NAN, -NAN, INFINITY, -INFINITY};

    for (size_t i = 0; i < 16; i++) {
        const moe_payload_t payload = i % 4;
        uint8_t rows[2][2000] = {{0}};

        for (size_t k = 0; k < n_isas; k++) {
            float x[260] = {[7] = broken[i / 4], [8] = 1, [200] = 2}, y[260];

            isas[k]->encode_row(payload, x, 260, rows[k > 0]);
            assert_memory_equal(rows[k > 0], rows[0], sizeof(rows[0]));
            isas[k]->decode_row(payload, rows[0], 260, y);
            assert_false(isfinite(y[7]));
            assert_true(y[200] > 1.9f && y[200] < 2.1f && y[259] == 0.0f);
            if (payload == MOE_PAYLOAD_INT8 || payload == MOE_PAYLOAD_FP8) {
                assert_true(isnan(y[0]) && isnan(y[7]) && isnan(y[8]));
            } else {
                assert_true(y[0] == 0.0f && y[8] == 1.0f && isnan(y[7]) == isnan(x[7]));
            }
        }
    }
}


/* A row with something that is not a number does not become one. */
static void test_broken_rows(void **state)
{
    for (moe_kv_type_t type = MOE_KV_F32; type <= MOE_KV_Q8_0; type++) {
        for (size_t k = 0; k < n_isas; k++) {
            float x[40] = {[7] = NAN, [35] = INFINITY};
            uint16_t row[128];

            isas[k]->store_row(type, x, 40, row);
            assert_true(isnan(kept_number(type, row, 40, 7)));
            assert_false(isfinite(kept_number(type, row, 40, 35)));
        }
    }
}


static void test_find(void **state)
{
    assert_null(moe_kernels_find("sse9"));
    assert_ptr_equal(moe_kernels_find(NULL), isas[0]);
    assert_string_equal(isas[n_isas - 1]->name, "c");
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_gate_row),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_limited_swiglu),
        cmocka_unit_test(test_add_combine),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_broken_rows),
        cmocka_unit_test(test_payloads),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_broken_payloads),
        cmocka_unit_test(test_attend),
    };

    while (n_isas < MAX_ISAS && moe_kernels_name(n_isas)) {
        isas[n_isas] = moe_kernels_find(moe_kernels_name(n_isas));
        n_isas++;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
