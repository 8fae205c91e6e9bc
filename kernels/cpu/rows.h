/*
 * Cache rows in and out of the forms of kernels/kv.h.  Writing rounds; reading is exact but for the
 * one product with a scale, so that a row reads the same on every instruction set.
 */

#ifndef MOE_ROWS_H
#define MOE_ROWS_H

#include <float.h>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"


/* Rounds x / scale to the nearest integer, ties to even: x is at most 127 scales, so that the sum
 * with 1.5 * 2^23 has it in its last bits. */
static int8_t quantise(float x, float scale)
{
    const float shifted = scale > 0.0f ? x / scale + 12582912.0f : 12582912.0f;
    uint32_t bits;

    memcpy(&bits, &shifted, sizeof(bits));
    return (int8_t) (uint8_t) bits;
}


/* Not a number when one of them is not. */
static float largest_magnitude(const float *x, size_t n)
{
    float largest = 0.0f;

    for (size_t i = 0; i < n; i++) {
        const float magnitude = fabsf(x[i]);

        largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
    }
    return largest;
}


static void store_q8_0(const float *x, size_t n, int8_t *row)
{
    const size_t size = moe_kv_row_size(MOE_KV_Q8_0, n);
    uint16_t *scales = (uint16_t *) (row + size);

    for (size_t i = 0; i < size; i += MOE_KV_GROUP) {
        const size_t numbers = n - i < MOE_KV_GROUP ? n - i : MOE_KV_GROUP;
        const uint16_t scale = bf16_above(largest_magnitude(x + i, numbers) / 127.0f);

        scales[i / MOE_KV_GROUP] = scale;
        for (size_t k = 0; k < MOE_KV_GROUP; k++) {
            row[i + k] = k < numbers ? quantise(x[i + k], f32_from_bf16(scale)) : 0;
        }
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
        for (size_t i = 0; i < n; i++) {
            ((uint16_t *) row)[i] = bf16_from_f32(x[i]);
        }
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
