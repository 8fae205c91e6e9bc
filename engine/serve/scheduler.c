/*
 * Two lists of tasks, both sorted by (priority, arrival): the queue, and those that run and hold
 * cache blocks.
 *
 * A task is admitted when blocks for all its known tokens are free, and one more for each running
 * task so that it is not thrown out again at once.  It gets them in one go: a prompt that was begun
 * never lacks blocks, only a decode that enters a new block can.  Then the youngest running task is
 * preempted: it loses its blocks, keeps its tokens and goes back to the queue, where its arrival
 * puts it in front.  The oldest is never preempted for another, so it always comes to an end, and
 * with it everybody.
 *
 * A paused task (its client does not read) keeps its blocks as long as nobody needs them.
 *
 * Decode order is oldest first and victims are the youngest, so a task that is already part of the
 * plan is never a victim of the same plan.
 */

#include "engine/serve/scheduler.h"

#include <assert.h>
#include <stdlib.h>

typedef struct {
    moe_task_t *first, *last;
    uint32_t count;
} task_list_t;

struct moe_scheduler_s {
    moe_scheduler_options_t options;
    moe_cache_t *cache;
    task_list_t waiting, running;
    uint64_t preemptions;
    double decode_ns, prefill_ns;       /* measured cost of a row; 0: not known yet */
    moe_batch_sequence_t *sequences;    /* [batch_sequences] */
    moe_plan_t plan;
    uint32_t outputs;                   /* of the plan */
};


moe_scheduler_t *moe_scheduler_create(const moe_scheduler_options_t *options, moe_cache_t *cache,
                                      moe_error_t *error)
{
    moe_scheduler_t *scheduler = calloc(1, sizeof(*scheduler));

    assert(options->batch_sequences <= options->batch_rows);
    assert(options->batch_outputs > options->batch_sequences);
    if (scheduler) {
        scheduler->sequences = calloc(options->batch_sequences, sizeof(moe_batch_sequence_t));
        scheduler->plan.tasks = calloc(options->batch_sequences, sizeof(moe_task_t *));
    }
    if (scheduler == NULL || scheduler->sequences == NULL || scheduler->plan.tasks == NULL) {
        moe_scheduler_free(scheduler);
        moe_fail(error, MOE_LIMIT, "out of memory for a scheduler of %u sequences",
                 options->batch_sequences);
        return NULL;
    }
    scheduler->options = *options;
    scheduler->cache = cache;
    scheduler->plan.batch.sequences = scheduler->sequences;
    return scheduler;
}


void moe_scheduler_free(moe_scheduler_t *scheduler)
{
    if (scheduler) {
        free(scheduler->sequences);
        free(scheduler->plan.tasks);
        free(scheduler);
    }
}


static int goes_before(const moe_task_t *a, const moe_task_t *b)
{
    return a->priority < b->priority || (a->priority == b->priority && a->order < b->order);
}


static void insert(task_list_t *list, moe_task_t *task, moe_task_state_t state)
{
    moe_task_t *after = list->last;

    while (after && goes_before(task, after)) {
        after = after->previous;
    }
    task->previous = after;
    task->next = after ? after->next : list->first;
    *(task->previous ? &task->previous->next : &list->first) = task;
    *(task->next ? &task->next->previous : &list->last) = task;
    task->state = state;
    list->count++;
}


static void take_out(task_list_t *list, moe_task_t *task)
{
    *(task->previous ? &task->previous->next : &list->first) = task->next;
    *(task->next ? &task->next->previous : &list->last) = task->previous;
    task->previous = task->next = NULL;
    task->state = MOE_TASK_NEW;
    list->count--;
}


void moe_scheduler_add(moe_scheduler_t *scheduler, moe_task_t *task)
{
    assert(task->state == MOE_TASK_NEW && task->n_tokens > 0);
    task->computed = 0;
    task->started = 0;
    insert(&scheduler->waiting, task, MOE_TASK_WAITING);
}


void moe_scheduler_remove(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_cache_release(scheduler->cache, &task->table);
    if (task->state == MOE_TASK_WAITING) {
        take_out(&scheduler->waiting, task);
    } else if (task->state == MOE_TASK_RUNNING) {
        take_out(&scheduler->running, task);
    }
}


static void preempt(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_cache_release(scheduler->cache, &task->table);
    task->computed = 0;
    take_out(&scheduler->running, task);
    insert(&scheduler->waiting, task, MOE_TASK_WAITING);
    scheduler->preemptions++;
}


static void add_rows(moe_scheduler_t *scheduler, moe_task_t *task, uint32_t rows)
{
    uint32_t end = task->computed + rows;
    uint32_t first = task->outputs_from > task->computed ? task->outputs_from : task->computed;
    moe_plan_t *plan = &scheduler->plan;

    task->step_rows = rows;
    task->step_outputs = end > first ? end - first : 0;
    scheduler->sequences[plan->batch.n_sequences] = (moe_batch_sequence_t) {
        .tokens = task->tokens + task->computed,
        .n_tokens = rows,
        .position = task->computed,
        .blocks = task->table.blocks,
        .n_outputs = task->step_outputs
    };
    plan->tasks[plan->batch.n_sequences++] = task;
    plan->rows += rows;
    scheduler->outputs += task->step_outputs;
}


static int is_decode(const moe_task_t *task)
{
    return task->n_tokens - task->computed == 1;
}


/* Gets the task the block of its last token, from younger ones if it must be.  0 when the task
 * itself was the youngest and is now in the queue. */
static int make_room(moe_scheduler_t *scheduler, moe_task_t *task)
{
    while (!moe_cache_grow(scheduler->cache, &task->table, task->n_tokens)) {
        moe_task_t *victim = scheduler->running.last;

        preempt(scheduler, victim);
        if (victim == task) {
            return 0;
        }
    }
    return 1;
}


static void plan_decodes(moe_scheduler_t *scheduler)
{
    moe_task_t *task, *next;

    for (task = scheduler->running.first; task; task = next) {
        if (task->paused || !is_decode(task)) {
            next = task->next;
            continue;
        }
        if (!make_room(scheduler, task)) {
            break;
        }
        add_rows(scheduler, task, 1);
        next = task->next;
    }
    scheduler->plan.decode_rows = scheduler->plan.rows;
}


/* Rows of prompts that fit beside the decodes. */
static uint32_t prefill_rows(const moe_scheduler_t *scheduler)
{
    uint32_t decode_rows = scheduler->plan.decode_rows;
    uint32_t space = scheduler->options.batch_rows - decode_rows;
    double time = (double) scheduler->options.step_time_ns - decode_rows * scheduler->decode_ns;
    double rows = scheduler->prefill_ns > 0.0 ? time / scheduler->prefill_ns : 0.0;

    /* Also while the cost of a row is unknown: a slow machine's first step must not be its longest. */
    if (rows < MOE_LEAST_CHUNK) {
        rows = MOE_LEAST_CHUNK;
    }
    return rows < space ? (uint32_t) rows : space;
}


/* The largest chunk within `rows` whose outputs fit into what the batch has left. */
static uint32_t chunk_rows(const moe_scheduler_t *scheduler, const moe_task_t *task, uint32_t rows)
{
    uint32_t outputs = scheduler->options.batch_outputs - scheduler->outputs;
    uint32_t pending = task->n_tokens - task->computed;
    uint32_t silent = task->outputs_from > task->computed ? task->outputs_from - task->computed : 0;

    if (rows > pending) {
        rows = pending;
    }
    if (rows > silent && rows - silent > outputs) {
        rows = silent + outputs;
    }
    return rows;
}


static uint32_t plan_chunk(moe_scheduler_t *scheduler, moe_task_t *task, uint32_t rows)
{
    uint32_t chunk = chunk_rows(scheduler, task, rows);

    if (chunk > 0) {
        add_rows(scheduler, task, chunk);
    }
    return rows - chunk;
}


/* A paused running task, the youngest; NULL when there is none. */
static moe_task_t *find_paused(const moe_scheduler_t *scheduler)
{
    moe_task_t *task = scheduler->running.last;

    while (task && !task->paused) {
        task = task->previous;
    }
    return task;
}


static int has_space(const moe_scheduler_t *scheduler, const moe_task_t *task)
{
    uint32_t running = scheduler->running.count;

    return running < scheduler->options.batch_sequences
           && moe_cache_blocks_for(task->n_tokens) + running <= moe_cache_unused(scheduler->cache);
}


/* The first in the queue becomes running, or stays first: nobody overtakes it. */
static moe_task_t *admit(moe_scheduler_t *scheduler)
{
    moe_task_t *task = scheduler->waiting.first, *victim;

    while (task && task->paused) {
        task = task->next;
    }
    if (task == NULL) {
        return NULL;
    }
    while (!has_space(scheduler, task)) {
        victim = find_paused(scheduler);
        if (victim == NULL) {
            return NULL;
        }
        preempt(scheduler, victim);
    }
    moe_cache_grow(scheduler->cache, &task->table, task->n_tokens);
    take_out(&scheduler->waiting, task);
    insert(&scheduler->running, task, MOE_TASK_RUNNING);
    task->started = 1;
    return task;
}


const moe_plan_t *moe_scheduler_plan(moe_scheduler_t *scheduler)
{
    moe_plan_t *plan = &scheduler->plan;
    moe_task_t *task;
    uint32_t rows;

    plan->batch.n_sequences = 0;
    plan->rows = plan->decode_rows = 0;
    scheduler->outputs = 0;
    plan_decodes(scheduler);
    rows = prefill_rows(scheduler);
    for (task = scheduler->running.first; task && rows > 0; task = task->next) {
        if (!task->paused && !is_decode(task)) {
            rows = plan_chunk(scheduler, task, rows);
        }
    }
    while (rows > 0 && scheduler->outputs < scheduler->options.batch_outputs
           && (task = admit(scheduler)) != NULL)
    {
        rows = plan_chunk(scheduler, task, rows);
    }
    return plan;
}


/* Moves an average by an eighth of the way; the first value counts whole. */
static void learn(double *average, double value)
{
    *average += *average > 0.0 ? (value - *average) / 8.0 : value;
}


void moe_scheduler_complete(moe_scheduler_t *scheduler, uint64_t elapsed_ns)
{
    const moe_plan_t *plan = &scheduler->plan;
    uint32_t prefill = plan->rows - plan->decode_rows;
    double rest = (double) elapsed_ns - plan->decode_rows * scheduler->decode_ns;

    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        plan->tasks[i]->computed += plan->tasks[i]->step_rows;
    }
    if (prefill == 0 && plan->decode_rows > 0) {
        learn(&scheduler->decode_ns, (double) elapsed_ns / plan->decode_rows);
    } else if (prefill >= MOE_LEAST_CHUNK) {
        learn(&scheduler->prefill_ns, (rest > 0.0 ? rest : (double) elapsed_ns) / prefill);
    }
}


moe_task_t *moe_scheduler_expired(const moe_scheduler_t *scheduler, uint64_t now_ns)
{
    for (moe_task_t *task = scheduler->waiting.first; task; task = task->next) {
        if (!task->started && task->deadline_ns && task->deadline_ns <= now_ns) {
            return task;
        }
    }
    return NULL;
}


uint64_t moe_scheduler_next_deadline(const moe_scheduler_t *scheduler)
{
    uint64_t nearest = 0;

    for (const moe_task_t *task = scheduler->waiting.first; task; task = task->next) {
        if (!task->started && task->deadline_ns
            && (nearest == 0 || task->deadline_ns < nearest))
        {
            nearest = task->deadline_ns;
        }
    }
    return nearest;
}


uint32_t moe_scheduler_running(const moe_scheduler_t *scheduler)
{
    return scheduler->running.count;
}


uint32_t moe_scheduler_waiting(const moe_scheduler_t *scheduler)
{
    return scheduler->waiting.count;
}


uint64_t moe_scheduler_preemptions(const moe_scheduler_t *scheduler)
{
    return scheduler->preemptions;
}
