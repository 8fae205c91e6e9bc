/*
 * What one rank sends another when rows go to experts, the same layout on every device:
 *
 *     u32 rows, u32 entries       how much follows
 *     u32 list[entries]           row of this part << 12 | slot of the receiver that wants it
 *     rows                        each once, in a form of kernels/payload.h
 *
 * The results come back in the order of the list, without a word about it.
 */

#ifndef MOE_DISPATCH_H
#define MOE_DISPATCH_H

#include <stddef.h>
#include <stdint.h>

#define MOE_ENTRY_SLOT_BITS 12u
#define MOE_ENTRY_SLOTS (1u << MOE_ENTRY_SLOT_BITS)             /* of a rank, at most */
#define MOE_ENTRY_ROWS (1u << (32 - MOE_ENTRY_SLOT_BITS))       /* of a part, at most */

typedef struct {
    uint32_t rows, entries;
    uint32_t list[];
} moe_part_t;

/* Bytes in front of the rows. */
static inline size_t moe_part_head(size_t entries)
{
    return sizeof(moe_part_t) + entries * sizeof(uint32_t);
}


/* The slot that takes a row for an expert, whose replicas are replicas[offsets[expert] ..
 * offsets[expert + 1]): they take turns. */
static inline uint32_t moe_replica(const uint32_t *replicas, const uint32_t *offsets,
                                   uint32_t expert, uint32_t turn)
{
    const uint32_t first = offsets[expert], count = offsets[expert + 1] - first;

    return replicas[first + (count == 1 ? 0 : turn % count)];
}

#endif
