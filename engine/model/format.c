/* One function per block format; the layouts are those of ggml's block_q4_0 and so on. */

#include "engine/model/format.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/core/half.h"

typedef struct {
    size_t block, bytes, alignment;
    void (*widen)(const unsigned char *block, float *values);   /* one block; NULL: plain */
} format_t;


static float half_at(const unsigned char *bytes)
{
    return f32_from_f16((uint16_t) (bytes[0] | bytes[1] << 8));
}


static void widen_q4_0(const unsigned char *block, float *values)
{
    const float scale = half_at(block);

    for (int i = 0; i < 16; i++) {
        values[i] = scale * (float) ((block[2 + i] & 15) - 8);
        values[i + 16] = scale * (float) ((block[2 + i] >> 4) - 8);
    }
}


static void widen_q5_0(const unsigned char *block, float *values)
{
    const float scale = half_at(block);
    const uint32_t high = block[2] | (uint32_t) block[3] << 8 | (uint32_t) block[4] << 16
                          | (uint32_t) block[5] << 24;

    for (int i = 0; i < 16; i++) {
        const int low = (block[6 + i] & 15) | (int) (high >> i & 1) << 4;
        const int upper = block[6 + i] >> 4 | (int) (high >> (i + 16) & 1) << 4;

        values[i] = scale * (float) (low - 16);
        values[i + 16] = scale * (float) (upper - 16);
    }
}


static void widen_q8_0(const unsigned char *block, float *values)
{
    const float scale = half_at(block);

    for (int i = 0; i < 32; i++) {
        values[i] = scale * (float) (int8_t) block[2 + i];
    }
}


/* Scale and minimum of the eight groups of 32: 6 bits each, packed into 12 bytes. */
static void group_scale(const unsigned char *packed, int group, float *scale, float *minimum)
{
    if (group < 4) {
        *scale = (float) (packed[group] & 63);
        *minimum = (float) (packed[group + 4] & 63);
    } else {
        *scale = (float) ((packed[group + 4] & 15) | packed[group - 4] >> 6 << 4);
        *minimum = (float) (packed[group + 4] >> 4 | packed[group] >> 6 << 4);
    }
}


/* Q4_K, and Q5_K where `high` holds fifth bits: bit g of high[i] belongs to element i of group
 * g. */
static void widen_k(const unsigned char *block, const unsigned char *high,
                    const unsigned char *quants, float *values)
{
    const float block_scale = half_at(block), block_minimum = half_at(block + 2);

    for (int group = 0; group < 8; group++) {
        const unsigned char *bytes = quants + group / 2 * 32;
        const int shift = group % 2 * 4;
        float scale, minimum;

        group_scale(block + 4, group, &scale, &minimum);
        scale = block_scale * scale;
        minimum = block_minimum * minimum;
        for (int i = 0; i < 32; i++) {
            const int fifth = high != NULL ? (high[i] >> group & 1) << 4 : 0;

            values[group * 32 + i] = scale * (float) ((bytes[i] >> shift & 15) | fifth) - minimum;
        }
    }
}


static void widen_q4_k(const unsigned char *block, float *values)
{
    widen_k(block, NULL, block + 16, values);
}


static void widen_q5_k(const unsigned char *block, float *values)
{
    widen_k(block, block + 16, block + 48, values);
}


/* Two halves of 128, each four groups of 32 that share their bytes; a scale for every 16. */
static void widen_q6_k(const unsigned char *block, float *values)
{
    const float block_scale = half_at(block + 208);

    for (int half = 0; half < 2; half++) {
        const unsigned char *low = block + 64 * half, *high = block + 128 + 32 * half;
        const unsigned char *scales = block + 192 + 8 * half;

        for (int group = 0; group < 4; group++) {
            for (int i = 0; i < 32; i++) {
                const int nibble = low[group % 2 * 32 + i] >> (group / 2 * 4) & 15;
                const int quant = nibble | (high[i] >> 2 * group & 3) << 4;
                const float scale = block_scale * (float) (int8_t) scales[2 * group + i / 16];

                values[128 * half + 32 * group + i] = scale * (float) (quant - 32);
            }
        }
    }
}


/* MXFP4: E2M1 numbers under one power of two; 255 is the scale's NaN. */
static const float e2m1[16] = {
    0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6
};


static float e8m0(unsigned char scale)
{
    return scale == 255 ? NAN : ldexpf(1, scale - 127);
}


static void widen_mxfp4(const unsigned char *block, float *values)
{
    const float scale = e8m0(block[0]);

    for (int i = 0; i < 16; i++) {
        values[i] = scale * e2m1[block[1 + i] & 15];
        values[i + 16] = scale * e2m1[block[1 + i] >> 4];
    }
}


void moe_widen_apart(const unsigned char *data, const unsigned char *scales, size_t count,
                     float *values)
{
    for (size_t i = 0; i < count / 2; i++) {
        const float scale = e8m0(scales[i / 16]);

        values[2 * i] = scale * e2m1[data[i] & 15];
        values[2 * i + 1] = scale * e2m1[data[i] >> 4];
    }
}


static const format_t formats[] = {
    [MOE_F32] = { 1, 4, 4, NULL },
    [MOE_F16] = { 1, 2, 2, NULL },
    [MOE_BF16] = { 1, 2, 2, NULL },
    [MOE_Q4_0] = { 32, 18, 1, widen_q4_0 },
    [MOE_Q5_0] = { 32, 22, 1, widen_q5_0 },
    [MOE_Q8_0] = { 32, 34, 1, widen_q8_0 },
    [MOE_Q4_K] = { 256, 144, 1, widen_q4_k },
    [MOE_Q5_K] = { 256, 176, 1, widen_q5_k },
    [MOE_Q6_K] = { 256, 210, 1, widen_q6_k },
    [MOE_MXFP4] = { 32, 17, 1, widen_mxfp4 },
    [MOE_MXFP4_APART] = { 32, 16, 1, NULL },
};


size_t moe_dtype_block(moe_dtype_t dtype)
{
    return formats[dtype].block;
}


size_t moe_dtype_bytes(moe_dtype_t dtype, size_t count)
{
    return count / formats[dtype].block * formats[dtype].bytes;
}


size_t moe_dtype_alignment(moe_dtype_t dtype)
{
    return formats[dtype].alignment;
}


static float plain(moe_dtype_t dtype, const void *data, size_t i)
{
    switch (dtype) {
    case MOE_BF16:
        return f32_from_bf16(((const uint16_t *) data)[i]);
    case MOE_F16:
        return f32_from_f16(((const uint16_t *) data)[i]);
    default:
        return ((const float *) data)[i];
    }
}


void moe_widen(moe_dtype_t dtype, const void *data, size_t count, float *values)
{
    const format_t *format = &formats[dtype];
    const unsigned char *block = data;

    assert(dtype != MOE_MXFP4_APART);
    if (format->widen == NULL) {
        for (size_t i = 0; i < count; i++) {
            values[i] = plain(dtype, data, i);
        }
        return;
    }
    for (size_t i = 0; i < count; i += format->block) {
        format->widen(block, values + i);
        block += format->bytes;
    }
}
