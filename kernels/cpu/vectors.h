/* Operations on single rows: norms, activations, sums, rotations. */

#ifndef MOE_VECTORS_H
#define MOE_VECTORS_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"


static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *y)
{
    v16 squares = v16_set1(0.0f), factor;
    size_t i;

    for (i = 0; i + MOE_LANES <= n; i += MOE_LANES) {
        v16 a = v16_load(x + i);

        squares = v16_fma(a, a, squares);
    }
    if (i < n) {
        v16 a = v16_load_n(x + i, n - i);

        squares = v16_fma(a, a, squares);
    }
    factor = v16_set1(1.0f / sqrtf(v16_sum(squares) / (float) n + eps));
    for (i = 0; i + MOE_LANES <= n; i += MOE_LANES) {
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), factor), v16_load(weight + i)));
    }
    if (i < n) {
        v16 a = v16_mul(v16_load_n(x + i, n - i), factor);

        v16_store_n(y + i, v16_mul(a, v16_load_n(weight + i, n - i)), n - i);
    }
}


/* A limit that meets no number gives way to it. */
MOE_INLINE v16 swiglu_lanes(const moe_swiglu_t *form, const int limited, v16 gate, v16 up)
{
    if (limited) {
        const v16 limit = v16_set1(form->limit), below = v16_set1(-form->limit);

        gate = v16_min(limit, gate);
        up = v16_add(v16_max(below, v16_min(limit, up)), v16_set1(form->offset));
        return v16_mul(v16_mul(gate, v16_sigmoid(v16_mul(gate, v16_set1(form->alpha)))), up);
    }
    return v16_mul(v16_mul(gate, v16_sigmoid(gate)), up);
}


/* `limited` is a constant where this is inlined. */
MOE_INLINE void swiglu_row(const moe_swiglu_t *form, const int limited, const float *gate,
                           const float *up, size_t n, float *y)
{
    size_t i;

    for (i = 0; i + MOE_LANES <= n; i += MOE_LANES) {
        v16_store(y + i, swiglu_lanes(form, limited, v16_load(gate + i), v16_load(up + i)));
    }
    if (i < n) {
        v16 a = swiglu_lanes(form, limited, v16_load_n(gate + i, n - i), v16_load_n(up + i, n - i));

        v16_store_n(y + i, a, n - i);
    }
}


static void swiglu(const moe_swiglu_t *form, const float *gate, const float *up, size_t n, float *y)
{
    if (form->limit > 0) {
        swiglu_row(form, 1, gate, up, n, y);
    } else {
        swiglu_row(form, 0, gate, up, n, y);
    }
}


static void gate_row(float score, size_t n, float *y)
{
    const v16 factor = v16_sigmoid(v16_set1(score));

    for (size_t i = 0; i < n; i += MOE_LANES) {
        const size_t lanes = n - i < MOE_LANES ? n - i : MOE_LANES;

        v16_store_n(y + i, v16_mul(v16_load_n(y + i, lanes), factor), lanes);
    }
}


static void add(const float *x, float scale, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += scale * x[i];
    }
}


static void combine(const float *x, const uint32_t *index, const float *weights, size_t top_k,
                    const float *shared, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += MOE_LANES) {
        const size_t lanes = n - i < MOE_LANES ? n - i : MOE_LANES;
        v16 sum = v16_set1(0.0f);

        for (size_t s = 0; s < top_k; s++) {
            sum = v16_fma(v16_set1(weights[s]), v16_load_n(x + index[s] * n + i, lanes), sum);
        }
        if (shared) {
            sum = v16_add(sum, v16_load_n(shared + i, lanes));
        }
        v16_store_n(y + i, sum, lanes);
    }
}


static void rope(const float *x, const float *table, int interleaved, size_t n, float *y)
{
    const size_t half = n / 2, step = interleaved ? 2 : 1, distance = interleaved ? 1 : half;

    for (size_t j = 0; j < half; j++) {
        const float a = x[j * step], b = x[j * step + distance];
        const float cosine = table[j], sine = table[half + j];

        y[j * step] = a * cosine - b * sine;
        y[j * step + distance] = b * cosine + a * sine;
    }
}

#endif
