/*
 * The ranks of a model in this process, and how they run a step together.
 *
 * A rank is a thread group with a device, a forward pass and packed weights of its own; on a
 * machine with several NUMA nodes it is bound to one of them, and its memory lies there.
 * `tensor_parallel` adjacent ranks form a group: they share sequences, so a group is what has a
 * cache and a scheduler.  Experts are spread over all ranks, so all run every step, with rows of
 * their own or without.
 *
 * Rank 0 runs on the thread that calls; each other one has a thread that waits for work.  An only
 * rank is the forward pass called directly: no thread, no communication, no copy.
 *
 * A rank that is lost ends them all, for good: the step fails, so does every later one, and all
 * that is left is to free them, or to end the process.  Others may still be at work then: what they
 * were given lives on until moe_ranks_free has returned.
 */

#ifndef MOE_RANKS_H
#define MOE_RANKS_H

#include "engine/forward.h"

typedef struct moe_ranks_s moe_ranks_t;

typedef struct {
    uint32_t ranks;             /* 0: 1 */
    uint32_t tensor_parallel;   /* ranks of a group; 0: 1 */
    uint64_t timeout_ns;        /* longest wait for a rank; 0: MOE_RANKS_TIMEOUT_NS */
    moe_fault_t fault;
    /*
     * For each rank, but: `world` is set here, `threads` are those of all ranks together, and
     * `progress` is called by one rank at a time, with the sums of all.
     */
    moe_forward_options_t forward;
    /* Called once when a rank is lost, with the reason, on whichever rank's thread notices first:
     * it must not wait for a step.  May be NULL. */
    void (*lost)(void *context, const moe_error_t *reason);
    void *lost_context;
} moe_ranks_options_t;

#define MOE_RANKS_TIMEOUT_NS 30000000000ull

/* MOE_INVALID, with the numbers, when there cannot be so many ranks. */
int moe_ranks_check(uint32_t ranks, uint32_t tensor_parallel, unsigned threads,
                    moe_error_t *error);

/* MOE_INVALID or MOE_BAD_MODEL, with the numbers, when so many ranks cannot share a model;
 * `redundant` as in moe_balance_options_t. */
int moe_ranks_check_model(const moe_model_t *model, uint32_t ranks, uint32_t tensor_parallel,
                          uint32_t redundant, moe_error_t *error);

/* Threads of a rank, of those of all ranks together: they differ by one at most. */
unsigned moe_ranks_share(unsigned threads, uint32_t rank, uint32_t ranks);

/* Makes all ranks, each packing its weights at the same time as the others.  `model` must stay
 * open.  On a machine with several NUMA nodes the calling thread is bound to those of rank 0.  NULL
 * with MOE_INVALID, MOE_SYSTEM or what moe_forward_create says. */
moe_ranks_t *moe_ranks_create(moe_model_t *model, const moe_ranks_options_t *options,
                              moe_error_t *error);

/* Waits for all ranks to be out of their step. */
void moe_ranks_free(moe_ranks_t *ranks);

uint32_t moe_ranks_count(const moe_ranks_t *ranks);
uint32_t moe_ranks_groups(const moe_ranks_t *ranks);
unsigned moe_ranks_threads(const moe_ranks_t *ranks);       /* of all */
unsigned moe_ranks_nodes(const moe_ranks_t *ranks);         /* NUMA nodes that they are bound to */
const moe_forward_t *moe_ranks_forward(const moe_ranks_t *ranks, uint32_t rank);

/* Runs a step: batches [groups] (none is NULL, any may be empty) to logits [groups], each valid
 * until the next step.  0, or -1 with MOE_UNAVAILABLE when a rank is lost. */
int moe_ranks_step(moe_ranks_t *ranks, const moe_batch_t *const *batches, const float **logits,
                   moe_error_t *error);

/* Runs items [first, last) of a group's loop; `thread` is unique among those that run at the same
 * time, and less than moe_ranks_threads. */
typedef void (*moe_ranks_fn)(void *context, uint32_t group, size_t first, size_t last,
                             unsigned thread);

/* Between steps: runs loops of items [groups], each on the threads of its group.  As moe_ranks_step
 * fails. */
int moe_ranks_run(moe_ranks_t *ranks, moe_ranks_fn fn, void *context, const size_t *items,
                  moe_error_t *error);

/* Bytes that the packed weights of a model will take on all ranks together, nearly; `redundant` as
 * in moe_balance_options_t. */
uint64_t moe_ranks_weights_needed(const moe_model_t *model, uint32_t ranks,
                                  uint32_t tensor_parallel, uint32_t redundant);

/* Counts of rows routed to each expert by all ranks, [layers, experts] as moe_forward_expert_load;
 * between steps. */
void moe_ranks_expert_load(const moe_ranks_t *ranks, uint64_t *counts);

/* How evenly rows came to the experts of ranks, since creation; zeroes for an only rank. */
typedef struct {
    uint64_t rows;              /* that experts have computed */
    uint64_t most;              /* that it would have been if in each layer of each step every rank
                                 * had had as many as the busiest one, for which all wait */
} moe_ranks_rows_t;

moe_ranks_rows_t moe_ranks_rows(const moe_ranks_t *ranks);

/* What all ranks have sent to others since creation; between steps. */
moe_exchange_bytes_t moe_ranks_exchanged(const moe_ranks_t *ranks);

#endif
