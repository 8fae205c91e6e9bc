/*
 * Placement in use: experts move to where their rows are shared out best, between steps, while the
 * engine serves.
 *
 * All ranks do the same at the same steps.  Rank 0, which has the solver, says what in the
 * all-gather at the start of a step (comm/step.h):
 *
 *     count   rows per expert are summed over ranks; rank 0 gives the sums to its solver
 *     place   rank 0 broadcasts what the slots of a layer are to hold
 *
 * From the step of a `place` on, each rank takes up to step_bytes of weights a step, from ranks
 * that have the expert (or from itself), into a spare stack of slots.  When that is full it changes
 * roles with the layer's own, and rows are sent by the new map: by all ranks from the same step on,
 * for they are at the same byte all the time.  Then comes the next layer, and after the last one
 * the next counting.
 *
 * Results do not depend on any of this.
 */

#ifndef MOE_BALANCE_H
#define MOE_BALANCE_H

#include "engine/moe/block.h"

#define MOE_REDUNDANT_LIMIT 65536u

typedef struct {
    uint32_t redundant;         /* slots of a layer beyond one for each expert, on all ranks
                                 * together; 0: experts stay where they are */
    uint64_t rows;              /* through the model between two countings; 0: until an expert of
                                 * average load has had 512 */
    uint64_t step_bytes;        /* of weights that a rank takes in a step; 0: so many that all it
                                 * holds takes 512 steps, 64 KiB at least */
} moe_balance_options_t;

typedef struct moe_balance_s moe_balance_t;

typedef enum {
    MOE_BALANCE_NOTHING = 0,    /* but what is under way */
    MOE_BALANCE_COUNT,
    MOE_BALANCE_PLACE
} moe_balance_task_t;

/*
 * For the blocks of a rank [placement->layers], made by `placement`, which from now on changes as
 * they do; both live longer.  top_k: of their routers.  NULL with MOE_LIMIT, MOE_SYSTEM, or
 * MOE_BAD_MODEL when the experts of layers differ in form, so that stacks cannot change roles.
 */
moe_balance_t *moe_balance_create(moe_block_state_t *const *blocks, moe_placement_t *placement,
                                  uint32_t top_k, const moe_balance_options_t *options,
                                  moe_error_t *error);
void moe_balance_free(moe_balance_t *self);

/* What this rank says in the all-gather: rank 0 what is to be done, others nothing. */
moe_balance_task_t moe_balance_ask(moe_balance_t *self);

/* After the all-gather, before the layers: what rank 0 said, then what is under way.  rows: of this
 * step, on all ranks.  -1 with MOE_UNAVAILABLE when another rank is lost. */
int moe_balance_step(moe_balance_t *self, moe_balance_task_t task, uint64_t rows,
                     moe_error_t *error);

#endif
