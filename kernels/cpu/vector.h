/*
 * Sixteen float lanes, the one vector type of the CPU kernels.
 *
 * Every operation is written once on it and compiled once per instruction set: one zmm register
 * with AVX-512, two ymm registers with AVX2 and FMA, an array in portable C.  All three do the same
 * IEEE operations lane by lane in the same order (fused multiply-adds included: fmaf where there is
 * no instruction), so a result has the same bits on every instruction set.
 */

#ifndef MOE_VECTOR_H
#define MOE_VECTOR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/core/half.h"

#define MOE_LANES 16u

#define MOE_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

#include <immintrin.h>

typedef __m512 v16;

MOE_INLINE v16 v16_set1(float a)
{
    return _mm512_set1_ps(a);
}


MOE_INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}


MOE_INLINE v16 v16_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16) ((1u << n) - 1u), p);
}


MOE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p));

    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}


MOE_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
}


MOE_INLINE v16 v16_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)));
}


MOE_INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}


MOE_INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16) ((1u << n) - 1u), a);
}


MOE_INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}


MOE_INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}


MOE_INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}


MOE_INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}


MOE_INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}


MOE_INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}


MOE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}


/* 2^n out of the bits of 1.5 * 2^23 + n. */
MOE_INLINE v16 v16_exponent(v16 a)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(a), 23);

    return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)));
}

#elif defined(__AVX2__)

#include <immintrin.h>

typedef struct {
    __m256 low, high;
} v16;

MOE_INLINE v16 v16_pair(__m256 low, __m256 high)
{
    v16 a = {low, high};

    return a;
}


MOE_INLINE v16 v16_set1(float a)
{
    return v16_pair(_mm256_set1_ps(a), _mm256_set1_ps(a));
}


MOE_INLINE v16 v16_load(const float *p)
{
    return v16_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}


MOE_INLINE v16 v16_load_n(const float *p, size_t n)
{
    float lanes[MOE_LANES] = {0};

    memcpy(lanes, p, n * sizeof(float));
    return v16_load(lanes);
}


MOE_INLINE __m256 v8_load_bf16(const uint16_t *p)
{
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p));

    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}


MOE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return v16_pair(v8_load_bf16(p), v8_load_bf16(p + 8));
}


MOE_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return v16_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p + 8))));
}


MOE_INLINE __m256 v8_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p)));
}


MOE_INLINE v16 v16_load_i8(const int8_t *p)
{
    return v16_pair(v8_load_i8(p), v8_load_i8(p + 8));
}


MOE_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}


MOE_INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    float lanes[MOE_LANES];

    v16_store(lanes, a);
    memcpy(p, lanes, n * sizeof(float));
}


MOE_INLINE v16 v16_add(v16 a, v16 b)
{
    return v16_pair(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}


MOE_INLINE v16 v16_sub(v16 a, v16 b)
{
    return v16_pair(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high));
}


MOE_INLINE v16 v16_mul(v16 a, v16 b)
{
    return v16_pair(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}


MOE_INLINE v16 v16_div(v16 a, v16 b)
{
    return v16_pair(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high));
}


MOE_INLINE v16 v16_min(v16 a, v16 b)
{
    return v16_pair(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high));
}


MOE_INLINE v16 v16_max(v16 a, v16 b)
{
    return v16_pair(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}


MOE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return v16_pair(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}


MOE_INLINE __m256 v8_exponent(__m256 a)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(a), 23);

    return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}


MOE_INLINE v16 v16_exponent(v16 a)
{
    return v16_pair(v8_exponent(a.low), v8_exponent(a.high));
}

#else

typedef struct {
    float lane[MOE_LANES];
} v16;

#define V16_EACH(expression)                                                                      \
    v16 result;                                                                                   \
    for (size_t i = 0; i < MOE_LANES; i++) {                                                      \
        result.lane[i] = (expression);                                                            \
    }                                                                                             \
    return result

MOE_INLINE v16 v16_set1(float a)
{
    V16_EACH(a);
}


MOE_INLINE v16 v16_load(const float *p)
{
    V16_EACH(p[i]);
}


MOE_INLINE v16 v16_load_n(const float *p, size_t n)
{
    V16_EACH(i < n ? p[i] : 0.0f);
}


MOE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    V16_EACH(f32_from_bf16(p[i]));
}


MOE_INLINE v16 v16_load_f16(const uint16_t *p)
{
    V16_EACH(f32_from_f16(p[i]));
}


MOE_INLINE v16 v16_load_i8(const int8_t *p)
{
    V16_EACH((float) p[i]);
}


MOE_INLINE void v16_store(float *p, v16 a)
{
    memcpy(p, a.lane, sizeof(a.lane));
}


MOE_INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    memcpy(p, a.lane, n * sizeof(float));
}


MOE_INLINE v16 v16_add(v16 a, v16 b)
{
    V16_EACH(a.lane[i] + b.lane[i]);
}


MOE_INLINE v16 v16_sub(v16 a, v16 b)
{
    V16_EACH(a.lane[i] - b.lane[i]);
}


MOE_INLINE v16 v16_mul(v16 a, v16 b)
{
    V16_EACH(a.lane[i] * b.lane[i]);
}


MOE_INLINE v16 v16_div(v16 a, v16 b)
{
    V16_EACH(a.lane[i] / b.lane[i]);
}


/* As the x86 instructions: the second operand when either is not a number. */
MOE_INLINE v16 v16_min(v16 a, v16 b)
{
    V16_EACH(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]);
}


MOE_INLINE v16 v16_max(v16 a, v16 b)
{
    V16_EACH(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}


MOE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_EACH(fmaf(a.lane[i], b.lane[i], c.lane[i]));
}


MOE_INLINE v16 v16_exponent(v16 a)
{
    v16 result;

    for (size_t i = 0; i < MOE_LANES; i++) {
        uint32_t bits;

        memcpy(&bits, &a.lane[i], sizeof(bits));
        bits = (bits << 23) + 0x3f800000u;
        memcpy(&result.lane[i], &bits, sizeof(bits));
    }
    return result;
}

#endif


/* Lanes added in a fixed tree: i and i + 8, then + 4, + 2, + 1. */
MOE_INLINE float v16_sum(v16 a)
{
    float lanes[MOE_LANES];

    v16_store(lanes, a);
    for (size_t half = MOE_LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}


/*
 * e^a, within 2 units in the last place; a is clamped to [-87.33, 88.37], so that the result is
 * always a normal number.  a = n ln 2 + r with ln 2 in two parts; e^r by a polynomial; exp(0) is 1.
 */
MOE_INLINE v16 v16_exp(v16 a)
{
    const v16 round = v16_set1(12582912.0f);
    v16 n, r, t, y;

    a = v16_max(v16_min(a, v16_set1(88.37f)), v16_set1(-87.33f));
    t = v16_fma(a, v16_set1(1.44269504f), round);
    n = v16_sub(t, round);
    r = v16_fma(n, v16_set1(-0.693359375f), a);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    y = v16_set1(1.9875691500e-4f);
    y = v16_fma(y, r, v16_set1(1.3981999507e-3f));
    y = v16_fma(y, r, v16_set1(8.3334519073e-3f));
    y = v16_fma(y, r, v16_set1(4.1665795894e-2f));
    y = v16_fma(y, r, v16_set1(1.6666665459e-1f));
    y = v16_fma(y, r, v16_set1(5.0000001201e-1f));
    y = v16_fma(v16_mul(r, r), y, v16_add(r, v16_set1(1.0f)));
    return v16_mul(y, v16_exponent(t));
}


MOE_INLINE v16 v16_sigmoid(v16 a)
{
    v16 one = v16_set1(1.0f);

    return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_set1(0.0f), a))));
}

#endif
