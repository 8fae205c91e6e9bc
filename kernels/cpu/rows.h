/*
 * Cache rows in and out of the forms of kernels/kv.h.  Writing rounds; reading is exact but for the
 * one product with a scale, so that a row reads the same on every instruction set.
 */

#ifndef MOE_ROWS_H
#define MOE_ROWS_H

#include <float.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"


/* Not a number when one of them is not: as integers, magnitudes are in their order, NaN last.
 * Constant n, here and below: the compiler makes vectors of such loops. */
MOE_INLINE float largest_magnitude(const float *x, const size_t n)
{
    uint32_t largest = 0;
    float magnitude;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    memcpy(&magnitude, &largest, sizeof(magnitude));
    return magnitude;
}


/* Rounds x / scale to the nearest integer, ties to even: x is at most 127 scales, so that the sum
 * with 1.5 * 2^23 has it in its last bits. */
MOE_INLINE void quantise(const float *x, float scale, int8_t *row)
{
    int8_t numbers[MOE_KV_GROUP];

    if (!(scale > 0.0f)) {
        memset(row, 0, MOE_KV_GROUP);
        return;
    }
    for (size_t i = 0; i < MOE_KV_GROUP; i++) {
        const float shifted = x[i] / scale + 12582912.0f;
        uint32_t bits;

        memcpy(&bits, &shifted, sizeof(bits));
        numbers[i] = (int8_t) (uint8_t) bits;
    }
    memcpy(row, numbers, sizeof(numbers));
}


static void store_q8_0(const float *x, size_t n, int8_t *row)
{
    const size_t size = moe_kv_row_size(MOE_KV_Q8_0, n);
    uint16_t *scales = (uint16_t *) (row + size);

    for (size_t i = 0; i < size; i += MOE_KV_GROUP) {
        const float *group = x + i;
        float last[MOE_KV_GROUP] = {0};
        uint16_t scale;

        if (n - i < MOE_KV_GROUP) {
            memcpy(last, group, (n - i) * sizeof(float));
            group = last;
        }
        scale = bf16_above(largest_magnitude(group, MOE_KV_GROUP) / 127.0f);
        scales[i / MOE_KV_GROUP] = scale;
        quantise(group, f32_from_bf16(scale), row + i);
    }
}


/* The first n numbers become bfloat16. */
static void store_bf16(const float *x, size_t n, uint16_t *row)
{
    uint16_t rounded[MOE_KV_GROUP];
    size_t i = 0;

    for (; i + MOE_KV_GROUP <= n; i += MOE_KV_GROUP) {
        for (size_t k = 0; k < MOE_KV_GROUP; k++) {
            rounded[k] = bf16_from_f32(x[i + k]);
        }
        memcpy(row + i, rounded, sizeof(rounded));
    }
    for (; i < n; i++) {
        row[i] = bf16_from_f32(x[i]);
    }
}


static void store_row(moe_kv_type_t type, const float *x, size_t n, void *row)
{
    const size_t size = moe_kv_row_size(type, n);

    switch (type) {
    case MOE_KV_F32:
        memcpy(row, x, n * sizeof(float));
        memset((float *) row + n, 0, (size - n) * sizeof(float));
        break;
    case MOE_KV_BF16:
        store_bf16(x, n, row);
        memset((uint16_t *) row + n, 0, (size - n) * sizeof(uint16_t));
        break;
    case MOE_KV_Q8_0:
        store_q8_0(x, n, row);
        break;
    }
}


static void load_bf16(const uint16_t *row, size_t size, float *y)
{
    for (size_t i = 0; i < size; i += MOE_LANES) {
        v16_store(y + i, v16_load_bf16(row + i));
    }
}


/* The first n numbers, of which any number may be asked for. */
static void load_q8_0(const int8_t *row, size_t n, float *y)
{
    const uint16_t *scales = (const uint16_t *) (row + moe_kv_row_size(MOE_KV_Q8_0, n));

    for (size_t i = 0; i < n; i += MOE_LANES) {
        const v16 scale = v16_set1(f32_from_bf16(scales[i / MOE_KV_GROUP]));
        const v16 values = v16_mul(v16_load_i8(row + i), scale);

        if (n - i >= MOE_LANES) {
            v16_store(y + i, values);
        } else {
            v16_store_n(y + i, values, n - i);
        }
    }
}


/* y: moe_kv_row_size floats.  Not for f32, which is read in place. */
static void load_row(moe_kv_type_t type, const void *row, size_t n, float *y)
{
    const size_t size = moe_kv_row_size(type, n);

    if (type == MOE_KV_BF16) {
        load_bf16(row, size, y);
    } else {
        load_q8_0(row, size, y);
    }
}

#endif
