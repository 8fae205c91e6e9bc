/*
 * Both plans are counting sorts: entries by rank and, where they arrive, by slot.  Sizes come
 * first, then starts, then each entry takes the next place, so that equals stay in their order.
 */

#include "engine/device/cpu_dispatch.h"

#include <string.h>


static moe_part_t *part_of(const moe_dispatch_t *d, char *parts, uint32_t rank)
{
    return (moe_part_t *) (parts + rank * d->part_bytes);
}


/* The own part is not sent: it arrives where it was made. */
static moe_part_t *arrived_part(const moe_dispatch_t *d, uint32_t rank)
{
    return part_of(d, rank == d->rank ? d->send : d->receive, rank);
}


/* Chooses slots, into d->places for now, and sums up how many results come from each other rank. */
static void choose_slots(const moe_dispatch_t *d, const uint32_t *ids, size_t n_entries)
{
    memset(d->result_offsets, 0, ((size_t) d->ranks + 1) * sizeof(uint32_t));
    for (size_t i = 0; i < n_entries; i++) {
        const uint32_t expert = ids[i];
        const uint32_t slot = moe_replica(d->replicas, d->replica_offsets, expert,
                                          d->rank + d->turns[expert]++);
        const uint32_t rank = slot / d->slots;

        d->counts[expert]++;
        d->places[i] = slot;
        d->result_offsets[rank + 1] += rank != d->rank;
    }
    for (uint32_t r = 0; r < d->ranks; r++) {
        d->result_offsets[r + 1] += d->result_offsets[r];
    }
}


/* A row that is sent to a rank for the first time becomes the next of that part. */
static uint32_t row_in_part(const moe_dispatch_t *d, uint32_t rank, uint32_t row)
{
    moe_part_t *part = part_of(d, d->send, rank);
    uint32_t *sent = d->sent + (size_t) rank * d->rows;

    if (rank == d->rank) {
        return row;
    }
    if (part->rows == 0 || sent[part->rows - 1] != row) {
        sent[part->rows++] = row;
    }
    return part->rows - 1;
}


void moe_cpu_plan_dispatch(const moe_dispatch_t *d, const uint32_t *ids, uint32_t n)
{
    choose_slots(d, ids, (size_t) n * d->top_k);
    for (uint32_t r = 0; r < d->ranks; r++) {
        *part_of(d, d->send, r) = (moe_part_t) {.rows = 0};
    }
    for (uint32_t row = 0; row < n; row++) {
        for (uint32_t s = 0; s < d->top_k; s++) {
            const uint32_t i = row * d->top_k + s, slot = d->places[i], rank = slot / d->slots;
            moe_part_t *part = part_of(d, d->send, rank);
            const uint32_t entry = part->entries++;

            part->list[entry] = row_in_part(d, rank, row) << MOE_ENTRY_SLOT_BITS
                                | slot % d->slots;
            if (rank == d->rank) {
                d->own[entry] = i;
            } else {
                d->places[i] = d->first_result + d->result_offsets[rank] + entry;
            }
        }
    }
}


void moe_cpu_plan_arrival(const moe_dispatch_t *d)
{
    uint32_t *offsets = d->slot_offsets;

    memset(offsets, 0, ((size_t) d->slots + 1) * sizeof(*offsets));
    for (uint32_t r = 0; r < d->ranks; r++) {
        const moe_part_t *part = arrived_part(d, r);

        for (uint32_t e = 0; e < part->entries; e++) {
            offsets[part->list[e] % MOE_ENTRY_SLOTS + 1]++;
        }
    }
    for (uint32_t s = 0; s < d->slots; s++) {
        offsets[s + 1] += offsets[s];
    }
    /* offsets[s] walks to the end of s, which is the start of s + 1; then all move up by one. */
    for (uint32_t r = 0; r < d->ranks; r++) {
        const moe_part_t *part = arrived_part(d, r);
        uint32_t *rows = d->arrived_rows + (size_t) r * d->entries;
        uint32_t *places = d->arrived_places + (size_t) r * d->entries;

        for (uint32_t e = 0; e < part->entries; e++) {
            rows[e] = part->list[e] >> MOE_ENTRY_SLOT_BITS;
            places[e] = offsets[part->list[e] % MOE_ENTRY_SLOTS]++;
            if (r == d->rank) {
                d->places[d->own[e]] = places[e];
            }
        }
    }
    memmove(offsets + 1, offsets, d->slots * sizeof(*offsets));
    offsets[0] = 0;
}
