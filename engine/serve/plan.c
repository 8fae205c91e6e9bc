/*
 * The rows of a step: decodes first, then chunks of prompts as the shares have them to come.
 *
 * Somebody comes while a share floods: it has more than can be let in and fills every step.  Then
 * the time to the first token is the step in progress (all of it where requests follow answers,
 * which end with a step) and the step of the own prompt with what else is in it.  So
 *
 *   - a share that floods fills steps to `short_ns` only, as long as somebody who was owed rows
 *     has come lately (MOE_CONTESTED_NS).  Nobody else's prompts are cut smaller, and no one's
 *     where no one would gain: small chunks cost something, on large models much.
 *   - the step that completes the prompt of somebody served less is not filled up with a flood's
 *     chunks, and its decodes stand back, too.  Never two such steps in a row: then everything has
 *     its turn.
 */

#include "engine/serve/scheduler_internal.h"


static void plan_rows(moe_scheduler_t *scheduler, moe_task_t *task, uint32_t rows)
{
    uint32_t begin = task->computed + task->step_rows, end = begin + rows;
    uint32_t first = task->outputs_from > begin ? task->outputs_from : begin;
    uint32_t outputs = end > first ? end - first : 0;
    moe_plan_t *plan = &scheduler->plan;

    if (task->step_rows == 0) {
        plan->tasks[plan->batch.n_sequences++] = task;
    }
    task->step_rows += rows;
    task->step_outputs += outputs;
    plan->rows += rows;
    scheduler->outputs += outputs;
    scheduler->size.attended += moe_attended(begin, rows);
}


static void plan_decodes(moe_scheduler_t *scheduler)
{
    for (moe_task_t *task = scheduler->running.first; task; task = task->next) {
        if (!task->paused && moe_task_is_decode(task)) {
            plan_rows(scheduler, task, 1);
        }
    }
    scheduler->plan.decode_rows = scheduler->size.decode_rows = scheduler->plan.rows;
}


/* How long the step may take: what is left of step_time beside the decodes is for prompts, and half
 * of it whatever the decodes take. */
static double step_time(const moe_scheduler_t *scheduler)
{
    double all = (double) scheduler->options.step_time_ns;
    double decodes = moe_cost_of(&scheduler->pace->cost, &scheduler->size);

    return decodes + all / 2.0 > all ? decodes + all / 2.0 : all;
}


/* More than is let in, and served as much as anybody. */
static int floods(const moe_scheduler_t *scheduler, const moe_share_t *share)
{
    return share->waiting.count > 0
           && moe_scheduler_level_of(scheduler, share) >= scheduler->level;
}


/* How long a step may be that a flood fills up while others come. */
static double short_time(const moe_scheduler_t *scheduler)
{
    double all = (double) scheduler->options.step_time_ns;
    double decodes = moe_cost_of(&scheduler->pace->cost, &scheduler->size);

    return decodes + all / 8.0 > all / 4.0 ? decodes + all / 8.0 : all / 4.0;
}


/* Whether a share fills the step up to short_ns only. */
static int is_cut(const moe_scheduler_t *scheduler, const moe_share_t *share)
{
    return scheduler->pace->busy_ns < scheduler->pace->contested_ns && floods(scheduler, share);
}


/* Rows of a prompt that the step has room and time for. */
static uint32_t fitting_rows(const moe_scheduler_t *scheduler, const moe_task_t *task)
{
    uint32_t space = scheduler->options.batch_rows - scheduler->plan.rows;
    uint32_t prefill = scheduler->size.prefill_rows;
    uint32_t least = prefill < MOE_LEAST_CHUNK ? MOE_LEAST_CHUNK - prefill : 0;
    double rows = 0.0;

    if (moe_cost_known(&scheduler->pace->cost)) {
        rows = moe_cost_rows(&scheduler->pace->cost, &scheduler->size,
                             task->computed + task->step_rows,
                             is_cut(scheduler, task->share) ? scheduler->short_ns
                                                            : scheduler->time_ns);
    }
    /* While the cost of a row is unknown, too: a slow machine's first step must not be its
     * longest. */
    if (rows < least) {
        rows = least;
    }
    return rows < space ? (uint32_t) rows : space;
}


/* The largest chunk within `rows` whose outputs fit into what the batch has left. */
static uint32_t chunk_rows(const moe_scheduler_t *scheduler, const moe_task_t *task, uint32_t rows)
{
    uint32_t begin = task->computed + task->step_rows;
    uint32_t outputs = scheduler->options.batch_outputs - scheduler->outputs;
    uint32_t pending = task->n_tokens - begin;
    uint32_t silent = task->outputs_from > begin ? task->outputs_from - begin : 0;

    if (rows > pending) {
        rows = pending;
    }
    if (rows > silent && rows - silent > outputs) {
        rows = silent + outputs;
    }
    return rows;
}


static int completes(const moe_task_t *task)
{
    return task->computed + task->step_rows == task->n_tokens;
}


/* Rows of the first contender until the second is due. */
static void plan_chunk(moe_scheduler_t *scheduler, const moe_contender_t *first,
                       const moe_contender_t *second, uint32_t rows)
{
    moe_task_t *task = first->task;
    moe_share_t *share = task->share;
    uint64_t ahead;

    if (second->task && second->task->priority == task->priority && !second->holds_enough) {
        ahead = second->level - first->level + MOE_LEAST_CHUNK;
        rows = ahead < rows ? (uint32_t) ahead : rows;
    }
    rows = chunk_rows(scheduler, task, rows);
    if (rows > 0) {
        scheduler->level = first->level > scheduler->level ? first->level : scheduler->level;
        share->served = first->level + rows;
        scheduler->size.prefill_rows += rows;
        plan_rows(scheduler, task, rows);
    }
    if (rows == 0 || completes(task)) {
        share->chunked = task->next_chunked;
    }
}


/* Whether `next` should wait for the next step, so that the first token of `done` is not held up:
 * when its share was served more, but not in two steps running. */
static int stands_back(const moe_scheduler_t *scheduler, const moe_contender_t *next,
                       const moe_task_t *done, int cut_before)
{
    return !cut_before && done && next->task->share != done->share
           && next->task->priority == done->priority && next->level >= done->share->served;
}


/* Takes the decodes of floods out of a step that completes `done`. */
static void set_decodes_aside(moe_scheduler_t *scheduler, const moe_task_t *done)
{
    moe_plan_t *plan = &scheduler->plan;
    uint32_t n_decodes = plan->decode_rows, kept = 0;

    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        moe_task_t *task = plan->tasks[i];

        if (i >= n_decodes || task->share == done->share || task->priority < done->priority
            || !floods(scheduler, task->share)
            || moe_scheduler_level_of(scheduler, task->share) < done->share->served)
        {
            plan->tasks[kept++] = task;
            continue;
        }
        plan->rows--;
        plan->decode_rows--;
        scheduler->size.decode_rows--;
        scheduler->size.attended -= moe_attended(task->computed, 1);
        scheduler->cut_short = 1;
    }
    plan->batch.n_sequences = kept;
}


static void plan_chunks(moe_scheduler_t *scheduler)
{
    int admitting = 1, cut_before = scheduler->cut_short;
    const moe_task_t *done = NULL;
    moe_contender_t first, second;
    uint32_t rows;

    scheduler->cut_short = 0;
    while ((first = moe_scheduler_pick(scheduler, admitting, &second)).task) {
        rows = fitting_rows(scheduler, first.task);
        if (rows == 0 && is_cut(scheduler, first.task->share)) {
            first.task->share->full = 1;        /* others may go on */
            continue;
        }
        if (rows == 0) {
            break;
        }
        if (stands_back(scheduler, &first, done, cut_before)) {
            scheduler->cut_short = 1;
            break;
        }
        if (first.task->state == MOE_TASK_RUNNING) {
            plan_chunk(scheduler, &first, &second, rows);
            done = completes(first.task) ? first.task : done;
        } else {
            /* Nobody overtakes the first in the queue. */
            admitting = scheduler->outputs < scheduler->options.batch_outputs
                        && moe_scheduler_let_in(scheduler, first.task);
        }
    }
    if (done && !cut_before) {
        set_decodes_aside(scheduler, done);
    }
}


static void fill_batch(moe_scheduler_t *scheduler)
{
    moe_batch_t *batch = &scheduler->plan.batch;

    for (uint32_t i = 0; i < batch->n_sequences; i++) {
        const moe_task_t *task = scheduler->plan.tasks[i];

        scheduler->sequences[i] = (moe_batch_sequence_t) {
            .tokens = task->tokens + task->computed,
            .n_tokens = task->step_rows,
            .position = task->computed,
            .blocks = task->table.blocks,
            .n_outputs = task->step_outputs
        };
    }
}


const moe_plan_t *moe_scheduler_plan(moe_scheduler_t *scheduler)
{
    moe_plan_t *plan = &scheduler->plan;

    plan->batch.n_sequences = plan->batch.n_copies = 0;
    plan->rows = plan->decode_rows = 0;
    scheduler->outputs = 0;
    scheduler->size = (moe_step_size_t) { .attended = 0 };
    moe_scheduler_give_places(scheduler);
    plan_decodes(scheduler);
    scheduler->time_ns = step_time(scheduler);
    scheduler->short_ns = short_time(scheduler);
    plan_chunks(scheduler);
    fill_batch(scheduler);
    return plan;
}


void moe_scheduler_complete(moe_scheduler_t *scheduler, uint64_t elapsed_ns)
{
    const moe_plan_t *plan = &scheduler->plan;

    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        moe_task_t *task = plan->tasks[i];

        task->computed += task->step_rows;
        moe_chain_extend(&task->chain, task->tokens, task->computed);
        moe_cache_keep(scheduler->cache, &task->table, &task->chain, task->tokens, task->computed);
    }
    if (elapsed_ns > 0) {
        moe_cost_learn(&scheduler->pace->cost, &scheduler->size, elapsed_ns);
    }
    scheduler->pace->busy_ns += elapsed_ns;
}
