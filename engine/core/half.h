/* The 16-bit number formats of checkpoints, and FP8 in E4M3, one number at a time. */

#ifndef MOE_HALF_H
#define MOE_HALF_H

#include <stdint.h>
#include <string.h>

/* binary16 to binary32, exact. */
static inline float f32_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t) (half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
    uint32_t mantissa = half & 1023u, bits;
    float value;

    if (exponent == 0) {
        value = (float) mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31u ? 0x7f800000u : (exponent + 112u) << 23) | mantissa << 13;
    memcpy(&value, &bits, sizeof(value));
    return value;
}


/* bfloat16 to binary32, exact. */
static inline float f32_from_bf16(uint16_t brain)
{
    uint32_t bits = (uint32_t) brain << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}


/* binary32 to the nearest bfloat16, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits, rounded;

    memcpy(&bits, &value, sizeof(bits));
    rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t) ((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}


/* The smallest bfloat16 that is not below a value >= 0; what is not a number stays so. */
static inline uint16_t bf16_above(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return value != value ? 0x7fc0u : (uint16_t) ((bits + 0xffffu) >> 16);
}


/* binary32 to the nearest binary16, ties to even; what is too large becomes infinity. */
static inline uint16_t f16_from_f32(float value)
{
    uint32_t bits, sign;

    memcpy(&bits, &value, sizeof(bits));
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) {
        return (uint16_t) (sign | 0x7e00u);
    }
    if (bits >= 0x47800000u) {
        return (uint16_t) (sign | 0x7c00u);
    }
    if (bits < 0x38800000u) {           /* below 2^-14: added to 2^-1, the unit is 2^-24 */
        float magnitude;

        memcpy(&magnitude, &bits, sizeof(bits));
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof(bits));
        return (uint16_t) (sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t) (sign | (bits - 0x38000000u) >> 13);
}


#define MOE_E4M3_MAX 448.0f         /* the largest number of E4M3 */

/* A finite binary32 to the nearest E4M3, ties to even; what is too large becomes the largest. */
static inline uint8_t e4m3_from_f32(float value)
{
    uint32_t bits, sign, small, normal;
    float magnitude;

    memcpy(&bits, &value, sizeof(bits));
    sign = bits >> 24 & 0x80u;
    bits &= 0x7fffffffu;
    memcpy(&magnitude, &bits, sizeof(bits));
    magnitude += 16384.0f;              /* below 2^-6: added to 2^14, the unit is 2^-9 */
    memcpy(&small, &magnitude, sizeof(bits));
    small -= 0x46800000u;
    normal = (bits + 0x7ffffu + (bits >> 20 & 1u) - 0x3c000000u) >> 20;
    normal = bits < 0x3c800000u ? small : normal;
    return (uint8_t) (sign | (bits < 0x43e00000u ? normal : 0x7eu));
}


/* E4M3 to binary32, exact but for its NaN, which is not met. */
static inline float f32_from_e4m3(uint8_t byte)
{
    uint32_t bits = (uint32_t) (byte & 0x80u) << 24 | (uint32_t) (byte & 0x7fu) << 20;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value * 0x1p120f;
}

#endif
