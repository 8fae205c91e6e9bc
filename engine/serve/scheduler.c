/*
 * Tasks are in lists sorted by (priority, arrival): one queue for each share, and one of all tasks
 * that run and hold cache blocks.
 *
 * A task is admitted when blocks for all its known tokens are free, and one more for each running
 * task so that it is not thrown out again at once.  It gets them in one go: a prompt that was begun
 * never lacks blocks, only a decode that enters a new block can.  Then a task is preempted: it
 * loses its blocks, keeps its tokens and goes back to the queue, where its arrival puts it in
 * front.  It is the youngest of the share that holds most blocks, among the last priority; but the
 * first of all running tasks is never preempted for another, so it always comes to an end, and with
 * it everybody.
 *
 * A paused task (its client does not read) keeps its blocks as long as nobody needs them.
 *
 * Prompt rows are shared out by start-time fair queueing, what deficit round robin becomes for
 * small quanta: each share counts the rows computed for it, the lowest count among those with work
 * is next, and `level` follows it.  A share that was away comes back with its old count, but at
 * most MOE_SHARE_CREDIT behind the level.  So nobody gains by coming in small bites, and nobody is
 * made to pay for what he used while no one else wanted it.
 *
 * Nothing here depends on a clock: the same tasks and times give the same plans.
 */

#include "engine/serve/scheduler_internal.h"

#include <assert.h>
#include <stdlib.h>


moe_scheduler_t *moe_scheduler_create(const moe_scheduler_options_t *options, moe_cache_t *cache,
                                      moe_error_t *error)
{
    moe_scheduler_t *scheduler = calloc(1, sizeof(*scheduler));

    assert(options->batch_sequences <= options->batch_rows);
    assert(options->batch_outputs > options->batch_sequences);
    if (scheduler) {
        scheduler->sequences = calloc(options->batch_sequences, sizeof(moe_batch_sequence_t));
        scheduler->copies = calloc(options->batch_sequences, sizeof(moe_block_copy_t));
        scheduler->plan.tasks = calloc(options->batch_sequences, sizeof(moe_task_t *));
    }
    if (scheduler == NULL || scheduler->sequences == NULL || scheduler->copies == NULL
        || scheduler->plan.tasks == NULL)
    {
        moe_scheduler_free(scheduler);
        moe_fail(error, MOE_LIMIT, "out of memory for a scheduler of %u sequences",
                 options->batch_sequences);
        return NULL;
    }
    scheduler->options = *options;
    scheduler->cache = cache;
    scheduler->pace = options->pace ? options->pace : &scheduler->own_pace;
    scheduler->plan.batch.sequences = scheduler->sequences;
    scheduler->plan.batch.copies = scheduler->copies;
    return scheduler;
}


void moe_scheduler_free(moe_scheduler_t *scheduler)
{
    if (scheduler) {
        free(scheduler->sequences);
        free(scheduler->copies);
        free(scheduler->plan.tasks);
        free(scheduler);
    }
}


static int goes_before(const moe_task_t *a, const moe_task_t *b)
{
    return a->priority < b->priority || (a->priority == b->priority && a->order < b->order);
}


/* Who comes back is looked for from the front, who is new from the end. */
static moe_task_t *find_before(const moe_task_list_t *list, const moe_task_t *task)
{
    moe_task_t *before = list->last;

    if (task->started) {
        moe_task_t *behind = list->first;

        while (behind && goes_before(behind, task)) {
            behind = behind->next;
        }
        return behind ? behind->previous : list->last;
    }
    while (before && goes_before(task, before)) {
        before = before->previous;
    }
    return before;
}


static void insert(moe_task_list_t *list, moe_task_t *task, moe_task_state_t state)
{
    moe_task_t *before = find_before(list, task);

    task->previous = before;
    task->next = before ? before->next : list->first;
    *(task->previous ? &task->previous->next : &list->first) = task;
    *(task->next ? &task->next->previous : &list->last) = task;
    task->state = state;
    list->count++;
}


static void take_out(moe_task_list_t *list, moe_task_t *task)
{
    *(task->previous ? &task->previous->next : &list->first) = task->next;
    *(task->next ? &task->next->previous : &list->last) = task->previous;
    task->previous = task->next = NULL;
    task->state = MOE_TASK_NEW;
    list->count--;
}


/* A share is listed while it has tasks. */
static void enter(moe_scheduler_t *scheduler, moe_share_t *share)
{
    if (share->waiting.count + share->running == 0) {
        share->previous = NULL;
        share->next = scheduler->shares;
        if (share->next) {
            share->next->previous = share;
        }
        scheduler->shares = share;
        scheduler->n_shares++;
    }
}


static void leave(moe_scheduler_t *scheduler, moe_share_t *share)
{
    if (share->waiting.count + share->running == 0) {
        *(share->previous ? &share->previous->next : &scheduler->shares) = share->next;
        if (share->next) {
            share->next->previous = share->previous;
        }
        scheduler->n_shares--;
    }
}


static void enter_new(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_task_t *before = scheduler->last_new;

    while (before && before->deadline_ns > task->deadline_ns) {
        before = before->previous_new;
    }
    task->previous_new = before;
    task->next_new = before ? before->next_new : scheduler->first_new;
    *(before ? &before->next_new : &scheduler->first_new) = task;
    *(task->next_new ? &task->next_new->previous_new : &scheduler->last_new) = task;
}


static void leave_new(moe_scheduler_t *scheduler, moe_task_t *task)
{
    *(task->previous_new ? &task->previous_new->next_new : &scheduler->first_new) = task->next_new;
    *(task->next_new ? &task->next_new->previous_new : &scheduler->last_new) = task->previous_new;
}


static void put_waiting(moe_scheduler_t *scheduler, moe_task_t *task)
{
    enter(scheduler, task->share);
    insert(&task->share->waiting, task, MOE_TASK_WAITING);
    scheduler->n_waiting++;
    scheduler->waiting_tokens += task->n_tokens;
}


static void take_waiting(moe_scheduler_t *scheduler, moe_task_t *task)
{
    if (!task->started && task->deadline_ns) {
        leave_new(scheduler, task);
    }
    take_out(&task->share->waiting, task);
    scheduler->n_waiting--;
    scheduler->waiting_tokens -= task->n_tokens;
}


/* Does a task come from somebody who is owed rows by others that are here? */
static int contests(const moe_scheduler_t *scheduler, const moe_share_t *share)
{
    int listed = share->waiting.count + share->running > 0;

    return scheduler->n_shares > (uint32_t) listed
           && moe_scheduler_level_of(scheduler, share) < scheduler->level;
}


void moe_scheduler_add(moe_scheduler_t *scheduler, moe_task_t *task)
{
    assert(task->state == MOE_TASK_NEW && task->n_tokens > 0);
    if (contests(scheduler, task->share)) {
        scheduler->pace->contested_ns = scheduler->pace->busy_ns + MOE_CONTESTED_NS;
    }
    task->computed = task->cached = 0;
    task->started = 0;
    put_waiting(scheduler, task);
    if (task->deadline_ns) {
        enter_new(scheduler, task);
    }
}


void moe_scheduler_remove(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_cache_release(scheduler->cache, &task->table);
    if (task->state == MOE_TASK_NEW) {
        return;
    }
    if (task->state == MOE_TASK_WAITING) {
        take_waiting(scheduler, task);
    } else {
        take_out(&scheduler->running, task);
        task->share->running--;
    }
    leave(scheduler, task->share);
}


static void preempt(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_cache_release(scheduler->cache, &task->table);
    task->computed = 0;
    take_out(&scheduler->running, task);
    put_waiting(scheduler, task);
    task->share->running--;
    scheduler->preemptions++;
}


/* An equal part of the places; 0 when there are fewer than shares. */
static uint32_t fair_places(const moe_scheduler_t *scheduler)
{
    return scheduler->options.batch_sequences / scheduler->n_shares;
}


static uint32_t fair_blocks(const moe_scheduler_t *scheduler)
{
    return moe_cache_blocks(scheduler->cache) / scheduler->n_shares;
}


static void count_blocks(moe_scheduler_t *scheduler)
{
    for (moe_share_t *share = scheduler->shares; share; share = share->next) {
        share->blocks = 0;
    }
    for (moe_task_t *task = scheduler->running.first; task; task = task->next) {
        task->share->blocks += task->table.count;
    }
}


/* Who loses his blocks when a decode needs one. */
static moe_task_t *find_loser(moe_scheduler_t *scheduler)
{
    moe_task_t *loser = scheduler->running.last, *task;

    count_blocks(scheduler);
    for (task = loser; task != scheduler->running.first; task = task->previous) {
        if (task->priority != scheduler->running.last->priority) {
            break;
        }
        if (task->share->blocks > loser->share->blocks) {
            loser = task;
        }
    }
    return loser;
}


/* Every running decode gets the block of its next token, from others if it must be. */
static void grow_decodes(moe_scheduler_t *scheduler)
{
    moe_task_t *task = scheduler->running.first, *next, *loser;

    while (task) {
        if (task->paused || !moe_task_is_decode(task)
            || moe_cache_grow(scheduler->cache, &task->table, task->n_tokens))
        {
            task = task->next;
            continue;
        }
        next = task->next;
        loser = find_loser(scheduler);
        preempt(scheduler, loser);
        if (loser == task) {
            task = next;
        }
    }
}


/* Into the share's list of running tasks with more than a row to go. */
static void put_chunked(moe_task_t *task)
{
    moe_task_t **link = &task->share->chunked;

    while (*link && goes_before(*link, task)) {
        link = &(*link)->next_chunked;
    }
    task->next_chunked = *link;
    *link = task;
}


/* Is a running task of its tenant about to compute blocks that this one begins with, too?  Then
 * they are worth waiting for: that one goes with it or before it. */
static int follows(const moe_scheduler_t *scheduler, const moe_task_t *task)
{
    const uint32_t useful = moe_cache_blocks_for(task->outputs_from);

    for (const moe_task_t *other = scheduler->running.first; other; other = other->next) {
        uint32_t common;

        if (other->paused || moe_task_is_decode(other) || other->share != task->share
            || other->priority > task->priority)
        {
            continue;
        }
        common = moe_chain_common(&task->chain, &other->chain);
        common = common < useful ? common : useful;
        if (common > other->computed / MOE_BLOCK_TOKENS
            && !moe_cache_has(scheduler->cache, &task->chain, task->tokens, common - 1))
        {
            return 1;
        }
    }
    return 0;
}


/* The first of a queue from `task` on that could run. */
static moe_task_t *find_candidate(const moe_scheduler_t *scheduler, moe_task_t *task)
{
    while (task && (task->paused || follows(scheduler, task))) {
        task = task->next;
    }
    return task;
}


/* Finds what each share has for this step. */
static void list_candidates(moe_scheduler_t *scheduler)
{
    for (moe_share_t *share = scheduler->shares; share; share = share->next) {
        share->chunked = NULL;
        share->full = 0;
        share->candidate = find_candidate(scheduler, share->waiting.first);
    }
    for (moe_task_t *task = scheduler->running.last; task; task = task->previous) {
        task->step_rows = task->step_outputs = 0;
        if (!task->paused && !moe_task_is_decode(task)) {
            put_chunked(task);
        }
    }
}


uint64_t moe_scheduler_level_of(const moe_scheduler_t *scheduler, const moe_share_t *share)
{
    uint64_t level = scheduler->level;
    uint64_t least = level > MOE_SHARE_CREDIT ? level - MOE_SHARE_CREDIT : 0;

    return share->served > least ? share->served : least;
}


static moe_contender_t contender_of(const moe_scheduler_t *scheduler, const moe_share_t *share,
                                int admitting)
{
    const moe_task_t *waiting = admitting ? share->candidate : NULL;
    moe_contender_t contender = {
        .task = share->chunked,
        .level = moe_scheduler_level_of(scheduler, share)
    };

    if (waiting && (contender.task == NULL || waiting->priority < contender.task->priority)) {
        contender.task = share->candidate;
        contender.holds_enough = share->running > 0 && share->running >= fair_places(scheduler);
    }
    return contender;
}


static int precedes(const moe_contender_t *a, const moe_contender_t *b)
{
    if (a->task == NULL || b->task == NULL) {
        return a->task != NULL;
    }
    if (a->task->priority != b->task->priority) {
        return a->task->priority < b->task->priority;
    }
    if (a->holds_enough != b->holds_enough) {
        return b->holds_enough;
    }
    return a->level < b->level || (a->level == b->level && a->task->order < b->task->order);
}


moe_contender_t moe_scheduler_pick(const moe_scheduler_t *scheduler, int admitting,
                                   moe_contender_t *second)
{
    moe_contender_t first = { .task = NULL }, contender;

    second->task = NULL;
    for (moe_share_t *share = scheduler->shares; share; share = share->next) {
        if (share->full) {
            continue;
        }
        contender = contender_of(scheduler, share, admitting);
        if (precedes(&contender, &first)) {
            *second = first;
            first = contender;
        } else if (precedes(&contender, second)) {
            *second = contender;
        }
    }
    return first;
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


static int has_place(const moe_scheduler_t *scheduler)
{
    return scheduler->running.count < scheduler->options.batch_sequences;
}


static int has_blocks(const moe_scheduler_t *scheduler, const moe_task_t *task)
{
    const uint32_t shared = moe_cache_shared(scheduler->cache, &task->chain, task->tokens,
                                             task->outputs_from);

    return moe_cache_blocks_for(task->n_tokens) - shared + scheduler->running.count
           <= moe_cache_unused(scheduler->cache);
}


/* Who steps back for a task whose share has less than an equal part of what is lacking: the
 * youngest of the share that has most of it, and more than that.  NULL: nobody. */
static moe_task_t *find_yielding(moe_scheduler_t *scheduler, const moe_task_t *wanting)
{
    uint32_t places = fair_places(scheduler), blocks = fair_blocks(scheduler), most, has;
    int for_place = !has_place(scheduler);
    moe_task_t *yielding = NULL, *task;

    count_blocks(scheduler);
    if (wanting->share->running >= places
        || (!has_blocks(scheduler, wanting)
            && wanting->share->blocks + moe_cache_blocks_for(wanting->n_tokens) > blocks))
    {
        return NULL;
    }
    most = for_place ? places : blocks;
    for (task = scheduler->running.last; task != scheduler->running.first; task = task->previous) {
        has = for_place ? task->share->running : task->share->blocks;
        if (task->priority >= wanting->priority && has > most) {
            yielding = task;
            most = has;
        }
    }
    return yielding;
}


static int make_place(moe_scheduler_t *scheduler, const moe_task_t *task, int others_yield)
{
    moe_task_t *victim;

    while (!has_place(scheduler) || !has_blocks(scheduler, task)) {
        victim = find_paused(scheduler);
        if (victim == NULL && others_yield) {
            victim = find_yielding(scheduler, task);
        }
        if (victim == NULL) {
            return 0;
        }
        preempt(scheduler, victim);
    }
    return 1;
}


/* The blocks of all known tokens, which must be there; rows that are in the cache are computed. */
static void take_blocks(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_block_table_t *table = &task->table;
    moe_batch_t *batch = &scheduler->plan.batch;
    moe_block_copy_t part;
    uint32_t shared;

    task->computed = moe_cache_match(scheduler->cache, table, &task->chain, task->tokens,
                                     task->outputs_from, &part);
    shared = table->count;
    moe_cache_grow(scheduler->cache, table, task->n_tokens);
    if (part.tokens > 0 && batch->n_copies < scheduler->options.batch_sequences) {
        /* Growing may have evicted `from`: its rows stay until the step, which copies first. */
        part.to = table->blocks[shared];
        scheduler->copies[batch->n_copies++] = part;
    } else {
        task->computed -= part.tokens;
    }
    if (!task->started) {
        task->cached = task->computed;
    }
}


/* A place and blocks for all known tokens must be free. */
static void admit(moe_scheduler_t *scheduler, moe_task_t *task)
{
    moe_task_t *next = task->next;

    take_blocks(scheduler, task);
    take_waiting(scheduler, task);
    insert(&scheduler->running, task, MOE_TASK_RUNNING);
    task->share->running++;
    task->share->candidate = find_candidate(scheduler, next);
    task->started = 1;
    task->step_rows = task->step_outputs = 0;
}


int moe_scheduler_let_in(moe_scheduler_t *scheduler, moe_task_t *task)
{
    if (!make_place(scheduler, task, 0)) {
        return 0;
    }
    admit(scheduler, task);
    put_chunked(task);
    return 1;
}


/* Shares without their part of the places get it, before anything is planned for those that hold
 * more than theirs.  Leaves the candidates listed. */
static void claim_places(moe_scheduler_t *scheduler)
{
    moe_contender_t first, second;
    int goes_on = 1;

    while (goes_on) {
        list_candidates(scheduler);
        first = moe_scheduler_pick(scheduler, 1, &second);
        if (first.task == NULL || first.task->state != MOE_TASK_WAITING
            || (has_place(scheduler) && has_blocks(scheduler, first.task)))
        {
            return;
        }
        goes_on = make_place(scheduler, first.task, 1);
        if (goes_on) {
            admit(scheduler, first.task);
        }
    }
    list_candidates(scheduler);
}


void moe_scheduler_give_places(moe_scheduler_t *scheduler)
{
    grow_decodes(scheduler);
    claim_places(scheduler);
}


moe_task_t *moe_scheduler_expired(const moe_scheduler_t *scheduler, uint64_t now_ns)
{
    moe_task_t *task = scheduler->first_new;

    while (task && task->deadline_ns <= now_ns && follows(scheduler, task)) {
        task = task->next_new;
    }
    return task && task->deadline_ns <= now_ns ? task : NULL;
}


uint64_t moe_scheduler_next_deadline(const moe_scheduler_t *scheduler)
{
    return scheduler->first_new ? scheduler->first_new->deadline_ns : 0;
}


int moe_scheduler_settled(const moe_scheduler_t *scheduler, const moe_share_t *share)
{
    return scheduler->n_shares == 0 || share->served + MOE_SHARE_CREDIT <= scheduler->level;
}


moe_task_t *moe_scheduler_first_waiting(const moe_scheduler_t *scheduler)
{
    moe_task_t *first = NULL, *task;

    for (const moe_share_t *share = scheduler->shares; share; share = share->next) {
        task = find_candidate(scheduler, share->waiting.first);
        while (task && task->started) {
            task = find_candidate(scheduler, task->next);
        }
        if (task && (first == NULL || goes_before(task, first))) {
            first = task;
        }
    }
    return first;
}


int moe_scheduler_has_room(const moe_scheduler_t *scheduler, const moe_task_t *task, uint32_t more)
{
    return scheduler->running.count + scheduler->n_waiting + more
               <= scheduler->options.batch_sequences
           && has_blocks(scheduler, task);
}


uint64_t moe_scheduler_pending(const moe_scheduler_t *scheduler)
{
    uint64_t rows = scheduler->waiting_tokens;

    for (const moe_task_t *task = scheduler->running.first; task; task = task->next) {
        rows += task->n_tokens - task->computed;
    }
    return rows;
}


uint32_t moe_scheduler_running(const moe_scheduler_t *scheduler)
{
    return scheduler->running.count;
}


uint32_t moe_scheduler_waiting(const moe_scheduler_t *scheduler)
{
    return scheduler->n_waiting;
}


uint64_t moe_scheduler_preemptions(const moe_scheduler_t *scheduler)
{
    return scheduler->preemptions;
}
