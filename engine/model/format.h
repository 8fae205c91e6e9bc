/*
 * How the numbers of a tensor are stored: plain floating point, and the block formats of GGUF, in
 * which groups of 32 or 256 numbers of a row share scales (ggml's block structures; little-endian,
 * no padding, no alignment).  A block format's value is defined by a formula; moe_widen computes it
 * in f32, in the formula's own order, so that every conversion gives the same bits.
 */

#ifndef MOE_FORMAT_H
#define MOE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    MOE_F32 = 1,
    MOE_F16,
    MOE_BF16,
    MOE_Q4_0,
    MOE_Q5_0,
    MOE_Q8_0,
    MOE_Q4_K,
    MOE_Q5_K,
    MOE_Q6_K,
    MOE_MXFP4,
    MOE_MXFP4_APART             /* its scales lie elsewhere, two neighbours are in a byte: only for
                                 * moe_widen_apart */
} moe_dtype_t;

#define MOE_BLOCK_LIMIT 256u            /* elements of the largest block */

/* Elements that are stored together: 1, 32 or 256.  A row is a whole number of blocks. */
size_t moe_dtype_block(moe_dtype_t dtype);

/* Bytes of `count` elements, a multiple of moe_dtype_block. */
size_t moe_dtype_bytes(moe_dtype_t dtype, size_t count);

/* What the address of the data must be a multiple of: 1 for the block formats. */
size_t moe_dtype_alignment(moe_dtype_t dtype);

/* values[i] = element i for i < count, a multiple of moe_dtype_block; data as its alignment
 * says. */
void moe_widen(moe_dtype_t dtype, const void *data, size_t count, float *values);

/* The same for MOE_MXFP4_APART: scales[i] is that of block i. */
void moe_widen_apart(const unsigned char *data, const unsigned char *scales, size_t count,
                     float *values);

/* The way back, rounded to the nearest number that the format has under scales chosen by the
 * largest and smallest of a group (no search for better ones).  Values must be finite, below
 * 2^15. */
void moe_narrow(moe_dtype_t dtype, const float *values, size_t count, void *data);

#endif
