/*
 * Where experts should be: a thread that solves placements beside the steps.
 *
 * It is given rows per expert now and then, ages them into loads, solves all layers, and keeps
 * those that are worth the move: the balance (moe/placement.h) would be at least 5 % better.  Not
 * before these have been taken is it given rows again.
 */

#ifndef MOE_SOLVER_H
#define MOE_SOLVER_H

#include "engine/moe/placement.h"

typedef struct moe_solver_s moe_solver_t;

typedef enum {
    MOE_SOLVER_IDLE = 0,
    MOE_SOLVER_BUSY,
    MOE_SOLVER_DONE
} moe_solver_state_t;

/* in_use: what solutions are compared with; it does not change while the solver is busy.  NULL with
 * MOE_LIMIT or MOE_SYSTEM. */
moe_solver_t *moe_solver_create(const moe_placement_t *in_use, moe_error_t *error);

/* Waits for the layer at hand. */
void moe_solver_free(moe_solver_t *self);

moe_solver_state_t moe_solver_state(moe_solver_t *self);

/* Begins, when idle.  counts: [layers, experts] rows since the start of it all; they stay as they
 * are while the solver is busy. */
void moe_solver_begin(moe_solver_t *self, const uint64_t *counts);

/* When done: the next layer to be placed anew, and the experts [ranks * slots] of its slots, each
 * where it is if its rank has it.  0 when there is none any more: the solver is idle then. */
int moe_solver_take(moe_solver_t *self, uint32_t *layer, uint32_t *experts);

#endif
