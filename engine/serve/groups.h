/*
 * Groups of ranks, as the engine schedules for them: each has a cache and a scheduler of its own,
 * and a sequence belongs to one from its arrival to its end.  With an only rank there is one group,
 * and everything here is what its scheduler does.
 *
 * A new sequence goes where it is through soonest: what of its tokens the group's cache lacks, the
 * rows that wait there already, and for every sequence there MOE_GROUP_SEQUENCE rows, for those
 * that it will have, count alike.  So a prefix is computed once as long as that group keeps up, and
 * is computed again by another before it leaves that one idle.  Who was never started and lacks a
 * place goes to another group when that one has it and is nearer by the same count.
 */

#ifndef MOE_GROUPS_H
#define MOE_GROUPS_H

#include "engine/serve/scheduler.h"

#define MOE_GROUP_SEQUENCE 32u

typedef struct {
    moe_cache_t *cache;
    moe_scheduler_t *scheduler;
    const moe_plan_t *plan;         /* of the step in progress */
} moe_rank_group_t;

typedef struct {
    uint32_t count;
    moe_rank_group_t *groups;       /* [count] */
    const moe_batch_t **batches;    /* [count] those of the plans */
    moe_pace_t pace;                /* groups are alike: what one has measured all know */
} moe_groups_t;

/* `options` are those of all groups together, and divided among them; `blocks` those of each.  -1
 * with MOE_LIMIT. */
int moe_groups_init(moe_groups_t *groups, uint32_t count, const moe_scheduler_options_t *options,
                    uint32_t blocks, moe_error_t *error);
void moe_groups_free(moe_groups_t *groups);

/* The part of a number that group `index` of `count` gets, at least 1. */
uint32_t moe_groups_part(uint32_t number, uint32_t index, uint32_t count);

/* Hands a task to one of the groups: sets task->group and task->share, one of task->shares. */
void moe_groups_add(moe_groups_t *groups, moe_task_t *task);

/* As the functions of the scheduler are called. */
void moe_groups_remove(moe_groups_t *groups, moe_task_t *task);
moe_task_t *moe_groups_expired(const moe_groups_t *groups, uint64_t now_ns);
uint64_t moe_groups_next_deadline(const moe_groups_t *groups);
int moe_groups_settled(const moe_groups_t *groups, const moe_share_t *shares);

/* Plans a step of all groups; returns its rows, 0 when nothing can run. */
uint32_t moe_groups_plan(moe_groups_t *groups);
void moe_groups_complete(moe_groups_t *groups, uint64_t elapsed_ns);

/* Sums over groups. */
uint32_t moe_groups_running(const moe_groups_t *groups);
uint32_t moe_groups_waiting(const moe_groups_t *groups);
uint64_t moe_groups_preemptions(const moe_groups_t *groups);
uint64_t moe_groups_blocks(const moe_groups_t *groups);
uint64_t moe_groups_unused(const moe_groups_t *groups);

#endif
