/*
 * How rows travel between ranks: n numbers in one of these forms, the same layout on every device.
 *
 *     f32     n floats
 */

#ifndef MOE_PAYLOAD_H
#define MOE_PAYLOAD_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    MOE_PAYLOAD_F32 = 0
} moe_payload_t;

static inline size_t moe_payload_row_bytes(moe_payload_t type, size_t n)
{
    return n * sizeof(float);
}

#endif
