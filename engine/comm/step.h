/*
 * What ranks tell each other before each step, so that all of them run the same one: a rank without
 * rows takes part for the experts that it holds.
 */

#ifndef MOE_STEP_H
#define MOE_STEP_H

#include "engine/comm/comm.h"

typedef struct {
    uint32_t rows;              /* of its sequences */
    uint32_t micro_batches;     /* that it wants to cut its rows into: all cut into the most */
    uint32_t placement;         /* version by which it sends to experts; equal on all ranks */
    uint32_t task;              /* moe_balance_task_t; of rank 0 */
} moe_step_word_t;

/* All say `mine`; fills words [ranks].  -1 with MOE_UNAVAILABLE: a rank is lost, or ranks differ in
 * what must be equal. */
int moe_step_agree(moe_comm_t *all, const moe_step_word_t *mine, moe_step_word_t *words,
                   moe_error_t *error);

#endif
