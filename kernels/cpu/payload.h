/*
 * Rows in and out of the forms of kernels/payload.h.  Reading is exact but for the one product
 * with a scale; writing is done with the same operations on each number on every instruction set,
 * so that ranks agree to the bit.  A group is copied to where its size is constant.
 */

#ifndef MOE_CPU_PAYLOAD_H
#define MOE_CPU_PAYLOAD_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/payload.h"


/* The largest number, divided by the scale, is 448 but for rounding. */
MOE_INLINE float encode_fp8_group(const float *x, uint8_t *row)
{
    const float largest = largest_magnitude(x, MOE_FP8_GROUP);
    const float scale = largest <= FLT_MAX ? largest / MOE_E4M3_MAX : NAN;

    if (!(scale > 0.0f)) {
        memset(row, 0, MOE_FP8_GROUP);
        return scale;
    }
    for (size_t i = 0; i < MOE_FP8_GROUP; i++) {
        row[i] = e4m3_from_f32(x[i] / scale);
    }
    return scale;
}


static void encode_fp8(const float *x, size_t n, uint8_t *row)
{
    const size_t size = moe_fp8_size(n);

    for (size_t i = 0; i < n; i += MOE_FP8_GROUP) {
        const size_t left = n - i, numbers = left < MOE_FP8_GROUP ? left : MOE_FP8_GROUP;
        float group[MOE_FP8_GROUP] = {0}, scale;
        uint8_t rounded[MOE_FP8_GROUP];

        memcpy(group, x + i, numbers * sizeof(float));
        scale = encode_fp8_group(group, rounded);
        memcpy(row + i, rounded, size - i < MOE_FP8_GROUP ? size - i : MOE_FP8_GROUP);
        memcpy(row + size + i / MOE_FP8_GROUP * sizeof(float), &scale, sizeof(float));
    }
}


static void decode_fp8(const uint8_t *row, size_t n, float *y)
{
    const size_t size = moe_fp8_size(n);

    for (size_t i = 0; i < n; i += MOE_FP8_GROUP) {
        const size_t left = n - i, numbers = left < MOE_FP8_GROUP ? left : MOE_FP8_GROUP;
        uint8_t group[MOE_FP8_GROUP] = {0};
        float values[MOE_FP8_GROUP], scale;

        memcpy(group, row + i, numbers);
        memcpy(&scale, row + size + i / MOE_FP8_GROUP * sizeof(float), sizeof(float));
        for (size_t k = 0; k < MOE_FP8_GROUP; k++) {
            values[k] = f32_from_e4m3(group[k]) * scale;
        }
        memcpy(y + i, values, numbers * sizeof(float));
    }
}


static void decode_bf16(const uint16_t *row, size_t n, float *y)
{
    size_t i = 0;

    for (; i + MOE_LANES <= n; i += MOE_LANES) {
        v16_store(y + i, v16_load_bf16(row + i));
    }
    for (; i < n; i++) {
        y[i] = f32_from_bf16(row[i]);
    }
}


static void encode_row(moe_payload_t type, const float *x, size_t n, void *row)
{
    switch (type) {
    case MOE_PAYLOAD_F32:
        memcpy(row, x, n * sizeof(float));
        break;
    case MOE_PAYLOAD_BF16:
        store_bf16(x, n, row);
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
        decode_bf16(row, n, y);
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
