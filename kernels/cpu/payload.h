/*
 * Rows in and out of the forms of kernels/payload.h.  Reading is exact but for the one product with
 * a scale; writing is done number by number with the same operations on every instruction set, so
 * that ranks agree to the bit.
 */

#ifndef MOE_CPU_PAYLOAD_H
#define MOE_CPU_PAYLOAD_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/payload.h"


/* A group of n <= 128.  Its largest number, divided by the scale, is 448 but for rounding. */
static void encode_fp8_group(const float *x, size_t n, uint8_t *row, float *scale)
{
    const float largest = largest_magnitude(x, n);

    *scale = largest <= FLT_MAX ? largest / MOE_E4M3_MAX : NAN;
    for (size_t i = 0; i < n; i++) {
        row[i] = *scale > 0.0f ? e4m3_from_f32(x[i] / *scale) : 0;
    }
}


static void encode_fp8(const float *x, size_t n, uint8_t *row)
{
    const size_t size = moe_fp8_size(n);

    memset(row + n, 0, size - n);
    for (size_t i = 0; i < n; i += MOE_FP8_GROUP) {
        float scale;

        encode_fp8_group(x + i, n - i < MOE_FP8_GROUP ? n - i : MOE_FP8_GROUP, row + i, &scale);
        memcpy(row + size + i / MOE_FP8_GROUP * sizeof(float), &scale, sizeof(float));
    }
}


static void decode_fp8(const uint8_t *row, size_t n, float *y)
{
    for (size_t i = 0; i < n; i += MOE_FP8_GROUP) {
        const size_t end = n - i < MOE_FP8_GROUP ? n : i + MOE_FP8_GROUP;
        float scale;

        memcpy(&scale, row + moe_fp8_size(n) + i / MOE_FP8_GROUP * sizeof(float), sizeof(float));
        for (size_t k = i; k < end; k++) {
            y[k] = f32_from_e4m3(row[k]) * scale;
        }
    }
}


static void encode_row(moe_payload_t type, const float *x, size_t n, void *row)
{
    switch (type) {
    case MOE_PAYLOAD_F32:
        memcpy(row, x, n * sizeof(float));
        break;
    case MOE_PAYLOAD_BF16:
        for (size_t i = 0; i < n; i++) {
            ((uint16_t *) row)[i] = bf16_from_f32(x[i]);
        }
        break;
    case MOE_PAYLOAD_INT8:
        store_q8_0(x, n, row);
        break;
    case MOE_PAYLOAD_FP8:
        encode_fp8(x, n, row);
        break;
    }
}


/* y: n floats; what is behind them is another row's. */
static void decode_row(moe_payload_t type, const void *row, size_t n, float *y)
{
    switch (type) {
    case MOE_PAYLOAD_F32:
        memcpy(y, row, n * sizeof(float));
        break;
    case MOE_PAYLOAD_BF16:
        for (size_t i = 0; i < n; i++) {
            y[i] = f32_from_bf16(((const uint16_t *) row)[i]);
        }
        break;
    case MOE_PAYLOAD_INT8:
        load_q8_0(row, n, y);
        break;
    case MOE_PAYLOAD_FP8:
        decode_fp8(row, n, y);
        break;
    }
}

#endif
