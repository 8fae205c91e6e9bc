#include "engine/serve/groups.h"

#include <stdlib.h>
#include <string.h>


uint32_t moe_groups_part(uint32_t number, uint32_t index, uint32_t count)
{
    const uint32_t part = number / count + (index < number % count);

    return part ? part : 1;
}


static int open_group(moe_groups_t *groups, uint32_t index, const moe_scheduler_options_t *of_all,
                      uint32_t blocks, moe_error_t *error)
{
    const uint32_t more_outputs = of_all->batch_outputs - of_all->batch_sequences;
    moe_rank_group_t *group = &groups->groups[index];
    moe_scheduler_options_t options = *of_all;

    options.batch_rows = moe_groups_part(of_all->batch_rows, index, groups->count);
    options.batch_sequences = moe_groups_part(of_all->batch_sequences, index, groups->count);
    options.batch_outputs = options.batch_sequences + more_outputs;
    options.pace = &groups->pace;
    group->cache = moe_cache_create(blocks, error);
    group->scheduler = group->cache ? moe_scheduler_create(&options, group->cache, error) : NULL;
    return group->scheduler ? 0 : -1;
}


int moe_groups_init(moe_groups_t *groups, uint32_t count, const moe_scheduler_options_t *options,
                    uint32_t blocks, moe_error_t *error)
{
    int rc = 0;

    *groups = (moe_groups_t) { .count = count };
    groups->groups = calloc(count, sizeof(moe_rank_group_t));
    groups->batches = calloc(count, sizeof(moe_batch_t *));
    if (groups->groups == NULL || groups->batches == NULL) {
        rc = moe_fail(error, MOE_LIMIT, "out of memory for %u groups of ranks", count);
    }
    for (uint32_t g = 0; rc == 0 && g < count; g++) {
        rc = open_group(groups, g, options, blocks, error);
    }
    if (rc != 0) {
        moe_groups_free(groups);
    }
    return rc;
}


void moe_groups_free(moe_groups_t *groups)
{
    for (uint32_t g = 0; groups->groups && g < groups->count; g++) {
        moe_scheduler_free(groups->groups[g].scheduler);
        moe_cache_free(groups->groups[g].cache);
    }
    free(groups->groups);
    free(groups->batches);
    memset(groups, 0, sizeof(*groups));
}


static int is_here(const moe_groups_t *groups, uint32_t group, const moe_task_t *task)
{
    return task->state != MOE_TASK_NEW && task->group == group;
}


/* Rows until a task that waits here, or would, is through. */
static uint64_t distance(const moe_groups_t *groups, uint32_t group, const moe_task_t *task)
{
    const moe_scheduler_t *scheduler = groups->groups[group].scheduler;
    const uint64_t tasks = moe_scheduler_running(scheduler) + moe_scheduler_waiting(scheduler);
    const uint64_t rows = moe_scheduler_pending(scheduler) + MOE_GROUP_SEQUENCE * tasks;
    const uint64_t own = task->n_tokens + MOE_GROUP_SEQUENCE;

    return (is_here(groups, group, task) ? rows - own : rows) + task->n_tokens
           - moe_cache_covered(groups->groups[group].cache, &task->chain, task->tokens,
                               task->outputs_from);
}


/* The group where a task has the shortest way; of equals, the first. */
static uint32_t find_nearest(const moe_groups_t *groups, const moe_task_t *task)
{
    uint64_t least = UINT64_MAX, rows;
    uint32_t nearest = 0;

    for (uint32_t g = 0; groups->count > 1 && g < groups->count; g++) {
        rows = distance(groups, g, task);
        if (rows < least) {
            least = rows;
            nearest = g;
        }
    }
    return nearest;
}


static void put(moe_groups_t *groups, moe_task_t *task, uint32_t group)
{
    task->group = group;
    task->share = &task->shares[group];
    moe_scheduler_add(groups->groups[group].scheduler, task);
}


void moe_groups_add(moe_groups_t *groups, moe_task_t *task)
{
    put(groups, task, find_nearest(groups, task));
}


/* Takes the first task that waits in a group in vain to a nearer one with room.  0: there is
 * none. */
static int move_one(moe_groups_t *groups, uint32_t from)
{
    moe_task_t *task = moe_scheduler_first_waiting(groups->groups[from].scheduler);
    uint32_t to;

    if (task == NULL || moe_scheduler_has_room(groups->groups[from].scheduler, task, 0)) {
        return 0;
    }
    to = find_nearest(groups, task);
    if (to == from || !moe_scheduler_has_room(groups->groups[to].scheduler, task, 1)) {
        return 0;
    }
    moe_groups_remove(groups, task);
    put(groups, task, to);
    return 1;
}


void moe_groups_remove(moe_groups_t *groups, moe_task_t *task)
{
    moe_scheduler_remove(groups->groups[task->group].scheduler, task);
}


moe_task_t *moe_groups_expired(const moe_groups_t *groups, uint64_t now_ns)
{
    moe_task_t *task = NULL;

    for (uint32_t g = 0; task == NULL && g < groups->count; g++) {
        task = moe_scheduler_expired(groups->groups[g].scheduler, now_ns);
    }
    return task;
}


uint64_t moe_groups_next_deadline(const moe_groups_t *groups)
{
    uint64_t nearest = 0, deadline;

    for (uint32_t g = 0; g < groups->count; g++) {
        deadline = moe_scheduler_next_deadline(groups->groups[g].scheduler);
        if (deadline && (nearest == 0 || deadline < nearest)) {
            nearest = deadline;
        }
    }
    return nearest;
}


int moe_groups_settled(const moe_groups_t *groups, const moe_share_t *shares)
{
    for (uint32_t g = 0; g < groups->count; g++) {
        if (!moe_scheduler_settled(groups->groups[g].scheduler, &shares[g])) {
            return 0;
        }
    }
    return 1;
}


uint32_t moe_groups_plan(moe_groups_t *groups)
{
    uint32_t rows = 0;

    for (uint32_t g = 0; groups->count > 1 && g < groups->count; g++) {
        while (move_one(groups, g)) {
        }
    }
    for (uint32_t g = 0; g < groups->count; g++) {
        moe_rank_group_t *group = &groups->groups[g];

        group->plan = moe_scheduler_plan(group->scheduler);
        groups->batches[g] = &group->plan->batch;
        rows += group->plan->rows;
    }
    return rows;
}


/* The step took as long as its longest part: that is the one to learn from. */
void moe_groups_complete(moe_groups_t *groups, uint64_t elapsed_ns)
{
    uint32_t longest = 0;

    for (uint32_t g = 1; g < groups->count; g++) {
        if (groups->groups[g].plan->rows > groups->groups[longest].plan->rows) {
            longest = g;
        }
    }
    for (uint32_t g = 0; g < groups->count; g++) {
        moe_scheduler_complete(groups->groups[g].scheduler, g == longest ? elapsed_ns : 0);
    }
}


/* name(): the sum of what `value` is of each group. */
#define SUM(type, name, value)                                                                 \
    type name(const moe_groups_t *groups)                                                      \
    {                                                                                          \
        type sum = 0;                                                                          \
                                                                                               \
        for (uint32_t g = 0; g < groups->count; g++) {                                         \
            const moe_rank_group_t *group = &groups->groups[g];                                \
                                                                                               \
            sum += value;                                                                      \
        }                                                                                      \
        return sum;                                                                            \
    }

SUM(uint32_t, moe_groups_running, moe_scheduler_running(group->scheduler))
SUM(uint32_t, moe_groups_waiting, moe_scheduler_waiting(group->scheduler))
SUM(uint64_t, moe_groups_preemptions, moe_scheduler_preemptions(group->scheduler))
SUM(uint64_t, moe_groups_blocks, moe_cache_blocks(group->cache))
SUM(uint64_t, moe_groups_unused, moe_cache_unused(group->cache))
