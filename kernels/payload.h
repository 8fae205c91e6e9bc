/*
 * How rows travel between ranks: n numbers in one of these forms, the same layout on every device.
 *
 *     f32     n floats
 *     bf16    n bfloat16, rounded to nearest, ties to even
 *     int8    the q8_0 of kernels/kv.h: 8 bits, a bfloat16 scale for each 32
 *     fp8     n rounded up to 4 bytes in E4M3 (arXiv 2209.05433), rounded to nearest, ties to even,
 *             then for each 128 of them an f32 scale: the largest magnitude of the group / 448
 *
 * Groups are as small as the numbers need them: int8 has one step size for a group, so that one
 * large number costs all others their precision; fp8 is relative over 15 powers of two, and 128 is
 * the group of what it is used with: checkpoints in FP8 and kernels that multiply rows of this very
 * form.  A bfloat16 scale has the range of the numbers, which binary16 has not, in the same bits.
 *
 * A group with a number that is not finite reads as all NaN, in int8 and fp8.
 */

#ifndef MOE_PAYLOAD_H
#define MOE_PAYLOAD_H

#include "kernels/kv.h"

#define MOE_FP8_GROUP 128u          /* numbers that share a scale */

typedef enum {
    MOE_PAYLOAD_F32 = 0,
    MOE_PAYLOAD_BF16,
    MOE_PAYLOAD_INT8,
    MOE_PAYLOAD_FP8
} moe_payload_t;

/* Bytes in front of the scales. */
static inline size_t moe_fp8_size(size_t n)
{
    return (n + 3) / 4 * 4;
}


static inline size_t moe_payload_row_bytes(moe_payload_t type, size_t n)
{
    switch (type) {
    case MOE_PAYLOAD_BF16:
        return n * sizeof(uint16_t);
    case MOE_PAYLOAD_INT8:
        return moe_kv_row_bytes(MOE_KV_Q8_0, n);
    case MOE_PAYLOAD_FP8:
        return moe_fp8_size(n) + (n + MOE_FP8_GROUP - 1) / MOE_FP8_GROUP * sizeof(float);
    default:
        return n * sizeof(float);
    }
}

#endif
