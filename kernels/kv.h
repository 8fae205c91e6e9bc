/*
 * How the numbers that attention remembers of a token are kept: one row of n numbers per token and
 * layer, the same layout on every device.
 *
 *     f32     n rounded up to 16 floats
 *     bf16    n rounded up to 16 bfloat16, rounded to nearest, ties to even
 *     q8_0    n rounded up to 32 int8, then for each 32 of them a bfloat16 scale: the largest
 *             magnitude of the group / 127, rounded up
 *
 * The numbers behind the n-th are zero.
 */

#ifndef MOE_KV_H
#define MOE_KV_H

#include <stddef.h>
#include <stdint.h>

#define MOE_KV_GROUP 32u            /* numbers that share a scale */

typedef enum {
    MOE_KV_F32 = 0,
    MOE_KV_BF16,
    MOE_KV_Q8_0
} moe_kv_type_t;

/* Numbers of a row with those that fill it up. */
static inline size_t moe_kv_row_size(moe_kv_type_t type, size_t n)
{
    const size_t unit = type == MOE_KV_Q8_0 ? MOE_KV_GROUP : 16;

    return (n + unit - 1) / unit * unit;
}


static inline size_t moe_kv_row_bytes(moe_kv_type_t type, size_t n)
{
    const size_t size = moe_kv_row_size(type, n);

    switch (type) {
    case MOE_KV_BF16:
        return size * sizeof(uint16_t);
    case MOE_KV_Q8_0:
        return size + size / MOE_KV_GROUP * sizeof(uint16_t);
    default:
        return size * sizeof(float);
    }
}


/* Numbers that a slice of n takes among several in a row: whole groups of every type, so that
 * slices are rows of their own. */
static inline size_t moe_kv_slice_size(size_t n)
{
    return moe_kv_row_size(MOE_KV_Q8_0, n);
}


static inline size_t moe_kv_slice_bytes(moe_kv_type_t type, size_t n)
{
    return moe_kv_row_bytes(type, moe_kv_slice_size(n));
}

#endif
