/*
 * Shared by scheduler.c (tasks: who waits, who runs) and plan.c (rows: what runs in a step).
 */

#ifndef MOE_SCHEDULER_INTERNAL_H
#define MOE_SCHEDULER_INTERNAL_H

#include "engine/serve/scheduler.h"

struct moe_scheduler_s {
    moe_scheduler_options_t options;
    moe_cache_t *cache;
    moe_task_list_t running;
    moe_share_t *shares;                /* those that have tasks */
    uint32_t n_shares, n_waiting;
    uint64_t level;                     /* of the share served last; never falls */
    moe_task_t *first_new, *last_new;   /* never started, by deadline */
    uint64_t preemptions;
    moe_pace_t own_pace, *pace;
    uint64_t waiting_tokens;
    moe_batch_sequence_t *sequences;    /* [batch_sequences] */
    moe_block_copy_t *copies;           /* [batch_sequences] */
    moe_plan_t plan;
    moe_step_size_t size;               /* of the plan */
    double time_ns, short_ns;           /* that it may take; that a flood may fill it to */
    uint32_t outputs;
    int cut_short;                      /* the plan is, for somebody's first token */
};


/* What a share would do next. */
typedef struct {
    moe_task_t *task;               /* NULL: nothing */
    int holds_enough;               /* it would be admitted beyond an equal part of the places */
    uint64_t level;
} moe_contender_t;

#define MOE_CONTESTED_NS 30000000000ull     /* of steps, after somebody came who was owed rows */

/* Begins a step: running decodes get the blocks of their next tokens, shares without their part of
 * the places what others have beyond theirs.  Then every share's `chunked` and `candidate` are
 * those of the step, and nothing is planned yet. */
void moe_scheduler_give_places(moe_scheduler_t *scheduler);

/* The next of all shares, and who would be next without it. */
moe_contender_t moe_scheduler_pick(const moe_scheduler_t *scheduler, int admitting,
                                   moe_contender_t *second);

/* Admits a waiting task into free places only, first of all those of paused tasks; it is listed in
 * `chunked` then.  0 when there are none. */
int moe_scheduler_let_in(moe_scheduler_t *scheduler, moe_task_t *task);

/* Rows computed for a share, as they count against those of others. */
uint64_t moe_scheduler_level_of(const moe_scheduler_t *scheduler, const moe_share_t *share);


static inline int moe_task_is_decode(const moe_task_t *task)
{
    return task->n_tokens - task->computed == 1;
}

#endif
