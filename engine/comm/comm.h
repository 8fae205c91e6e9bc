/*
 * Communication between the ranks of a model: the verbs that a step needs and nothing else.  The
 * exchange (moe/exchange.h) sends rows with alltoallv, the engine agrees on a step with allgather,
 * tensor-parallel layers gather, counts of rows per expert are summed with allreduce.
 *
 * A rank calls the verbs from one thread, all ranks in one order.  Every verb but abort, error and
 * close is collective.  Sizes may be 0 everywhere, a NULL then is fine.
 *
 * Failure is for the whole group and for good.  A verb that fails has aborted the group: all ranks'
 * verbs, those they wait in included, return -1 with the first reason (MOE_UNAVAILABLE: the
 * requests of the step can be sent again).  No verb waits longer than the group's timeout for a
 * rank; the reason then names the ranks that did not come.  After that all a rank can do is close.
 *
 * Buffers belong to the caller.  What a verb reads must stay as it is, and what it writes must not
 * be read, until the verb (or alltoallv_finish) returns.  When it returns -1, other ranks may not
 * have noticed yet: all memory that it was given lives on until every rank is out of its verb.
 */

#ifndef MOE_COMM_H
#define MOE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "engine/comm/fault.h"
#include "engine/core/error.h"

typedef struct moe_comm_s moe_comm_t;           /* one rank's end */

/* A buffer with a part for each rank, in bytes; all of it is only read when it is sent. */
typedef struct {
    void *data;
    size_t *sizes;              /* [ranks] */
    const size_t *offsets;      /* [ranks]: where the parts begin */
} moe_comm_parts_t;

typedef enum {
    MOE_SUM_F32 = 1,            /* added in the order of ranks: the same bits every time */
    MOE_SUM_U64,
    MOE_MAX_U64
} moe_reduction_t;

typedef struct {
    const char *name;           /* "threads" */

    int (*barrier)(moe_comm_t *comm, moe_error_t *error);

    /* receive: [ranks, size]; send may be the own part of it. */
    int (*allgather)(moe_comm_t *comm, const void *send, size_t size, void *receive,
                     moe_error_t *error);

    /*
     * Part r of `send` goes to rank r and becomes part `rank` of its `receive`; the own one, too.
     * receive->sizes are the rooms before, and after it the sizes of what came; parts do not
     * overlap.  More than the room is an error, of which nothing is written.  A back end that has
     * to know sizes beforehand moves rooms: so let both sides agree on them, and say inside a part
     * how much of it counts.
     *
     * Between start and finish the rank computes; it calls no other verb of this group.  The two
     * structs may be gone after start, what they point to may not.
     */
    int (*alltoallv_start)(moe_comm_t *comm, const moe_comm_parts_t *send,
                           const moe_comm_parts_t *receive, moe_error_t *error);
    int (*alltoallv_finish)(moe_comm_t *comm, moe_error_t *error);

    /* data: [count], replaced on all ranks by the reduction over ranks, element by element. */
    int (*allreduce)(moe_comm_t *comm, void *data, size_t count, moe_reduction_t reduction,
                     moe_error_t *error);

    /* data [size] of rank root to all. */
    int (*bcast)(moe_comm_t *comm, uint32_t root, void *data, size_t size, moe_error_t *error);

    /* Optional (NULL where memory is out of reach): windows[r] becomes the address under which this
     * rank reads and writes the `memory` that rank r gave.  What was written before a barrier is
     * there after it. */
    int (*window)(moe_comm_t *comm, void *memory, void **windows, moe_error_t *error);

    /* 0 while the group is whole, else -1 with the reason.  From any thread, at any time. */
    int (*error)(moe_comm_t *comm, moe_error_t *error);

    /* Ends the group: every verb fails with this reason unless there is an earlier one.  From any
     * thread until the end is closed. */
    void (*abort)(moe_comm_t *comm, const moe_error_t *reason);

    /* The rank leaves; ranks that still count on it get an error.  It is in no verb then. */
    void (*close)(moe_comm_t *comm);
} moe_comm_ops_t;

struct moe_comm_s {
    const moe_comm_ops_t *ops;
    uint32_t rank, ranks;
    uint64_t step;              /* set by the rank at the start of each step; named in reasons, and
                                 * what faults count */
};

typedef struct {
    uint64_t timeout_ns;        /* longest wait for a rank; longer than any step computes */
    moe_fault_t fault;
} moe_comm_options_t;

#define MOE_RANKS_LIMIT 1024u

/* A group whose ranks are threads (or thread groups) of this process.  Fills comms [ranks], one end
 * for each rank, closed one by one.  0, or -1 with MOE_INVALID or MOE_LIMIT. */
int moe_comm_threads(moe_comm_t **comms, uint32_t ranks, const moe_comm_options_t *options,
                     moe_error_t *error);

#endif
