/* Numbers into the block formats: one function per format, the counterparts of those in
 * format.c. */

#include <math.h>
#include <string.h>

#include "engine/model/format.h"
#include "engine/core/half.h"


static float largest(const float *values, size_t count)
{
    float most = 0;

    for (size_t i = 0; i < count; i++) {
        most = fmaxf(most, fabsf(values[i]));
    }
    return most;
}


static void put_half(unsigned char *bytes, float value)
{
    const uint16_t half = f16_from_f32(value);

    bytes[0] = (unsigned char) half;
    bytes[1] = (unsigned char) (half >> 8);
}


static float get_half(const unsigned char *bytes)
{
    return f32_from_f16((uint16_t) (bytes[0] | bytes[1] << 8));
}


/* value / scale rounded into [low, high]; 0 under a scale of 0. */
static int level(float value, float scale, int low, int high)
{
    const float number = scale != 0 ? rintf(value / scale) : 0;

    return number < (float) low ? low : number > (float) high ? high : (int) number;
}


static void narrow_q8_0(const float *values, unsigned char *block)
{
    float scale;

    put_half(block, largest(values, 32) / 127);
    scale = get_half(block);
    for (int i = 0; i < 32; i++) {
        block[2 + i] = (unsigned char) level(values[i], scale, -127, 127);
    }
}


static void narrow_q4_0(const float *values, unsigned char *block)
{
    float scale;

    put_half(block, largest(values, 32) / 7);
    scale = get_half(block);
    for (int i = 0; i < 16; i++) {
        block[2 + i] = (unsigned char) ((level(values[i], scale, -8, 7) + 8)
                                        | (level(values[i + 16], scale, -8, 7) + 8) << 4);
    }
}


static void narrow_q5_0(const float *values, unsigned char *block)
{
    uint32_t high = 0;
    float scale;

    put_half(block, largest(values, 32) / 15);
    scale = get_half(block);
    for (int i = 0; i < 16; i++) {
        const unsigned low = (unsigned) (level(values[i], scale, -16, 15) + 16);
        const unsigned upper = (unsigned) (level(values[i + 16], scale, -16, 15) + 16);

        block[6 + i] = (unsigned char) ((low & 15) | (upper & 15) << 4);
        high |= low >> 4 << i | upper >> 4 << (i + 16);
    }
    for (int i = 0; i < 4; i++) {
        block[2 + i] = (unsigned char) (high >> 8 * i);
    }
}


/* Step and minimum of the eight groups, then both as 6 bits of the block's largest. */
static void narrow_scales(const float *values, float levels, unsigned char *block)
{
    float steps[8], minimums[8];
    int scale[8], minimum[8];

    for (int group = 0; group < 8; group++) {
        float low = 0, high = values[32 * group];

        for (int i = 0; i < 32; i++) {
            low = fminf(low, values[32 * group + i]);
            high = fmaxf(high, values[32 * group + i]);
        }
        steps[group] = (high - low) / levels;
        minimums[group] = -low;
    }
    put_half(block, largest(steps, 8) / 63);
    put_half(block + 2, largest(minimums, 8) / 63);
    for (int group = 0; group < 8; group++) {
        scale[group] = level(steps[group], get_half(block), 0, 63);
        minimum[group] = level(minimums[group], get_half(block + 2), 0, 63);
    }
    for (int i = 0; i < 4; i++) {
        block[4 + i] = (unsigned char) (scale[i] | scale[i + 4] >> 4 << 6);
        block[8 + i] = (unsigned char) (minimum[i] | minimum[i + 4] >> 4 << 6);
        block[12 + i] = (unsigned char) ((scale[i + 4] & 15) | (minimum[i + 4] & 15) << 4);
    }
}


/* Q4_K, and Q5_K where `high` takes fifth bits. */
static void narrow_k(const float *values, unsigned char *block, unsigned char *high,
                     unsigned char *quants)
{
    const int most = high != NULL ? 31 : 15;

    narrow_scales(values, (float) most, block);
    for (int group = 0; group < 8; group++) {
        const unsigned char *packed = block + 4;
        const int scale = group < 4 ? packed[group] & 63
                                    : (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        const int minimum = group < 4 ? packed[group + 4] & 63
                                      : packed[group + 4] >> 4 | packed[group] >> 6 << 4;
        const float step = get_half(block) * (float) scale;
        const float offset = get_half(block + 2) * (float) minimum;
        unsigned char *bytes = quants + group / 2 * 32;

        for (int i = 0; i < 32; i++) {
            const int quant = level(values[32 * group + i] + offset, step, 0, most);

            bytes[i] = (unsigned char) (bytes[i] | (quant & 15) << group % 2 * 4);
            if (high != NULL) {
                high[i] = (unsigned char) (high[i] | quant >> 4 << group);
            }
        }
    }
}


static void narrow_q4_k(const float *values, unsigned char *block)
{
    narrow_k(values, block, NULL, block + 16);
}


static void narrow_q5_k(const float *values, unsigned char *block)
{
    narrow_k(values, block, block + 16, block + 48);
}


static void narrow_q6_k(const float *values, unsigned char *block)
{
    unsigned char *scales = block + 192;
    float steps[16], scale;

    for (int group = 0; group < 16; group++) {
        steps[group] = largest(values + 16 * group, 16) / 31;
    }
    put_half(block + 208, largest(steps, 16) / 127);
    scale = get_half(block + 208);
    for (int group = 0; group < 16; group++) {
        scales[group] = (unsigned char) level(steps[group], scale, 0, 127);
    }
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, group = i / 32 % 4, at = i % 32;
        const int quant = level(values[i], scale * (float) scales[i / 16], -32, 31) + 32;
        unsigned char *low = block + 64 * half + group % 2 * 32 + at;
        unsigned char *high = block + 128 + 32 * half + at;

        *low = (unsigned char) (*low | (quant & 15) << group / 2 * 4);
        *high = (unsigned char) (*high | quant >> 4 << 2 * group);
    }
}


/* The nearest of the eight magnitudes, with the sign's bit. */
static unsigned nearest_e2m1(float value)
{
    static const float magnitudes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    unsigned best = 0;

    for (unsigned i = 1; i < 8; i++) {
        if (fabsf(fabsf(value) - magnitudes[i]) < fabsf(fabsf(value) - magnitudes[best])) {
            best = i;
        }
    }
    return best | (value < 0 ? 8u : 0);
}


static void narrow_mxfp4(const float *values, unsigned char *block)
{
    const float most = largest(values, 32);
    const int exponent = most > 0 ? (int) fmaxf((float) ilogbf(most) - 2, -120) : -120;

    block[0] = (unsigned char) (exponent + 127);
    for (int i = 0; i < 16; i++) {
        block[1 + i] = (unsigned char) (nearest_e2m1(ldexpf(values[i], -exponent))
                                        | nearest_e2m1(ldexpf(values[i + 16], -exponent)) << 4);
    }
}


static void narrow_plain(moe_dtype_t dtype, const float *values, size_t count, void *data)
{
    for (size_t i = 0; i < count; i++) {
        if (dtype == MOE_F32) {
            ((float *) data)[i] = values[i];
        } else {
            ((uint16_t *) data)[i] = dtype == MOE_F16 ? f16_from_f32(values[i])
                                                      : bf16_from_f32(values[i]);
        }
    }
}


void moe_narrow(moe_dtype_t dtype, const float *values, size_t count, void *data)
{
    static void (*const formats[])(const float *values, unsigned char *block) = {
        [MOE_Q4_0] = narrow_q4_0, [MOE_Q5_0] = narrow_q5_0, [MOE_Q8_0] = narrow_q8_0,
        [MOE_Q4_K] = narrow_q4_k, [MOE_Q5_K] = narrow_q5_k, [MOE_Q6_K] = narrow_q6_k,
        [MOE_MXFP4] = narrow_mxfp4,
    };
    const size_t block = moe_dtype_block(dtype), bytes = moe_dtype_bytes(dtype, block);
    unsigned char *out = data;

    if (block == 1) {
        narrow_plain(dtype, values, count, data);
        return;
    }
    memset(data, 0, moe_dtype_bytes(dtype, count));
    for (size_t i = 0; i < count; i += block) {
        formats[dtype](values + i, out);
        out += bytes;
    }
}
