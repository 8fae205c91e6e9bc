/*
 * Moves rows to the ranks that hold their experts, and results home.
 *
 * Four verbs, called in this order by all ranks, each over the same alltoallv of the comm:
 *
 *     dispatch_send       this rank's rows leave: each once for every rank that wants it
 *     dispatch_recv       what all ranks sent has come, grouped by local slot
 *     return_send         results leave: one for each (row, slot)
 *     return_recv         the results of this rank's own rows have come; moe/combine.h adds them up
 *
 * Between a send and its recv the rank may compute whatever does not use this comm.  Numbers of
 * rows may be 0.  Who gets which row, and how many, the device knows (offsets and counts in its
 * memory); the host goes by capacities, so that these operations can be captured in a graph.  It
 * looks at counts only to send no more than there is, and to check what came from others.
 *
 * An only rank sends nothing: its rows go from x into the groups, and results are used where they
 * are.  The same holds for the rows that any rank has for itself.
 *
 * What a payload rounds, it rounds of all rows, those that stay at home included: so results do
 * not depend on who holds which expert, nor on the number of ranks.  Results come back in the same
 * form, but for fp8, whose results are bf16: three bits of a number are enough to multiply with,
 * too few to add up.
 *
 * The memory is that of one batch on its way; all blocks of a model use it in turn.
 */

#ifndef MOE_EXCHANGE_H
#define MOE_EXCHANGE_H

#include "engine/comm/world.h"
#include "engine/device/device.h"

typedef struct {
    moe_device_t *device;
    const moe_world_t *world;
    uint32_t experts, top_k, hidden;
    uint32_t slots;                 /* of each rank */
    uint32_t rows;                  /* that a rank sends in a step, at most; the same on all */
    moe_payload_t payload;
} moe_exchange_options_t;

/* Where the experts of a block are, in device memory. */
typedef struct {
    uint32_t *replicas, *offsets;   /* moe_placement_map_t */
    uint64_t *counts;               /* [experts] grows by the rows that this rank sends to each */
    uint64_t *arrived;              /* one, of the host: grows by the rows that come for its slots;
                                     * stays as it is on an only rank */
} moe_exchange_map_t;

/* Bytes sent to other ranks. */
typedef struct {
    uint64_t dispatch_rows, dispatch_lists, return_rows;
} moe_exchange_bytes_t;

typedef struct {
    moe_exchange_options_t options;
    moe_dispatch_t dispatch;
    uint32_t capacity;              /* of received rows */
    float *rows;                    /* [capacity, hidden] received, then results, which are followed
                                     * by those from other ranks: combine reads both */
    moe_payload_t payload, return_payload;
    size_t row_bytes, return_row_bytes;
    void *encoded;                  /* [rows] of this rank; NULL: f32 */
    uint64_t *arrived;              /* of the block whose rows are under way */
    const void *local;              /* this rank's rows as they travel: those, or x */
    char *returns;                  /* [ranks] parts of results to send, return_bytes apart; in the
                                     * own one the own results are rounded */
    size_t return_bytes;
    char *returned;                 /* [rows * top_k] results as they come; NULL: f32 */
    size_t *sizes, *rooms, *offsets;    /* [ranks] of the transfer under way */
    size_t *result_rooms, *result_offsets;
    moe_exchange_bytes_t bytes;
} moe_exchange_t;

/* Most rows that a rank can receive: what its experts need memory for. */
size_t moe_exchange_capacity(const moe_exchange_options_t *options);

/* 0, or -1 with MOE_LIMIT.  To be freed in either case. */
int moe_exchange_create(moe_exchange_t *self, const moe_exchange_options_t *options,
                        moe_error_t *error);
void moe_exchange_free(moe_exchange_t *self);

/* x: [n, hidden], stays until dispatch_recv has returned; ids: [n, top_k] < experts, different in
 * each row; n <= options.rows.  -1, as all verbs, with MOE_UNAVAILABLE when a rank is lost. */
int moe_exchange_dispatch_send(moe_exchange_t *self, const moe_exchange_map_t *map, const float *x,
                               const uint32_t *ids, uint32_t n, moe_error_t *error);

/* Then self->rows holds the rows of local slot s at places [offsets[s], offsets[s + 1]) with the
 * offsets [slots + 1] in self->dispatch.slot_offsets: capacity rows at most.  Results replace
 * them. */
int moe_exchange_dispatch_recv(moe_exchange_t *self, moe_error_t *error);

int moe_exchange_return_send(moe_exchange_t *self, moe_error_t *error);

/* Then the result for slot s of row i is row places[i, s] of self->rows, with places [n, top_k] in
 * self->dispatch.places. */
int moe_exchange_return_recv(moe_exchange_t *self, moe_error_t *error);

#endif
