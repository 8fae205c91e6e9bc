/*
 * The scheduler thread: loads the model, then
 *
 *     take what other threads left (prepared sequences, cancellations, credits)
 *     plan a step; sleep when there is nothing to run, or while who came first waits for company
 *     run it; draw tokens, give events to the sink; flush once
 *
 * So a cancellation acts before the next step, and a step's events travel together.
 */

#include <stdio.h>

#include "engine/core/clock.h"
#include "engine/device/kv_type.h"
#include "engine/serve/engine_internal.h"

#define WORTH_SHARING 65536u        /* logits of a step from which several threads draw tokens */


static void set_progress(void *context, uint64_t done, uint64_t total)
{
    moe_engine_t *engine = context;

    atomic_store(&engine->progress, total ? (unsigned) (done * 100 / total) : 0);
}


/* Called by the thread of any rank. */
static void lose(void *context, const moe_error_t *reason)
{
    moe_engine_t *engine = context;

    moe_log(engine->options.log, MOE_LOG_ALERT, "%s: a rank is lost: %s", engine->options.model,
            reason->message);
    pthread_mutex_lock(&engine->lock);
    engine->lost = 1;
    engine->lost_reason = *reason;
    pthread_mutex_unlock(&engine->lock);
    engine->sink->changed(engine->options.sink_context);
}


static void log_loaded(const moe_engine_t *engine, uint64_t load_ns)
{
    const moe_loaded_t *loaded = &engine->loaded;
    const uint32_t ranks = moe_ranks_count(loaded->ranks);
    const unsigned nodes = moe_ranks_nodes(loaded->ranks);
    char of_ranks[64] = "";

    if (ranks > 1 && nodes > 1) {
        snprintf(of_ranks, sizeof(of_ranks), ", %u ranks on %u NUMA nodes", ranks, nodes);
    } else if (ranks > 1) {
        snprintf(of_ranks, sizeof(of_ranks), ", %u ranks", ranks);
    }
    moe_log(engine->options.log, MOE_LOG_NOTICE, "%s loaded in %.2f s: %s%s, context %u, cache of"
            " %llu tokens in %s", engine->options.model, (double) load_ns * 1e-9,
            moe_engine_isa(engine), of_ranks, loaded->lexicon.context,
            (unsigned long long) moe_groups_blocks(&loaded->groups) * MOE_BLOCK_TOKENS,
            moe_kv_type_name(engine->options.kv_type));
}


static int load(moe_engine_t *engine)
{
    const moe_log_t *log = engine->options.log;
    const moe_loaded_events_t events = { set_progress, lose, engine };
    uint64_t began = moe_now_ns();
    moe_error_t error;
    int rc;

    rc = moe_loaded_open(&engine->loaded, &engine->options, &events, &error);
    if (rc == 0) {
        rc = moe_metrics_loaded(&engine->metrics, &engine->loaded, moe_now_ns() - began, &error);
    }
    if (rc == 0) {
        log_loaded(engine, moe_now_ns() - began);
    } else {
        moe_log(log, MOE_LOG_ERR, "%s: %s", engine->options.model, error.message);
    }
    pthread_mutex_lock(&engine->lock);
    if (rc != 0) {
        engine->load_error = error;
    }
    engine->code = rc == 0 ? MOE_STATE_READY : MOE_STATE_FAILED;
    engine->loaded_unix = (uint64_t) time(NULL);
    pthread_cond_broadcast(&engine->for_loading);
    pthread_mutex_unlock(&engine->lock);
    engine->sink->changed(engine->options.sink_context);
    return rc;
}


/* Takes a sequence out of the scheduler and ends it. */
static void end(moe_engine_t *engine, moe_sequence_t *sequence, moe_end_t how)
{
    moe_groups_remove(&engine->loaded.groups, &sequence->task);
    moe_engine_release(engine, sequence, how);
}


/* Sleeps until there is something to do, at most until `until_ns` unless that is 0; the lock is
 * held. */
static void wait_for_work(moe_engine_t *engine, uint64_t until_ns)
{
    uint64_t late_ns = moe_groups_next_deadline(&engine->loaded.groups);
    uint64_t deadline = until_ns && (late_ns == 0 || until_ns < late_ns) ? until_ns : late_ns;
    struct timespec at = {
        .tv_sec = (time_t) (deadline / 1000000000u),
        .tv_nsec = (long) (deadline % 1000000000u)
    };
    int rc = 0;

    while (rc == 0 && !engine->stopping && !engine->ready.first && !engine->control) {
        if (deadline == 0) {
            pthread_cond_wait(&engine->for_scheduler, &engine->lock);
        } else {
            rc = pthread_cond_timedwait(&engine->for_scheduler, &engine->lock, &at);
        }
    }
}


/* Applies credits and picks the cancelled sequences out, chained by queue_next; the lock is held.
 * A sequence that is still being prepared is left to its prompt thread. */
static moe_sequence_t *take_control(moe_engine_t *engine)
{
    moe_sequence_t *cancelled = NULL, *sequence;

    while ((sequence = engine->control) != NULL) {
        engine->control = sequence->control_next;
        sequence->in_control = 0;
        if (sequence->credit != MOE_CREDIT_UNLIMITED) {
            uint32_t room = MOE_CREDIT_UNLIMITED - 1 - sequence->credit;

            sequence->credit += sequence->credit_added < room ? sequence->credit_added : room;
            sequence->task.paused = sequence->credit == 0;
        }
        sequence->credit_added = 0;
        if (sequence->cancelled && sequence->task.state != MOE_TASK_NEW) {
            sequence->queue_next = cancelled;
            cancelled = sequence;
        }
    }
    return cancelled;
}


/* When the first step for what has just come is due: batch_delay behind its arrival, when nothing
 * runs. */
static void await_company(moe_engine_t *engine, uint64_t *until_ns)
{
    if (*until_ns == 0 && engine->options.batch_delay_ms > 0
        && moe_groups_running(&engine->loaded.groups) == 0)
    {
        *until_ns = moe_now_ns() + engine->options.batch_delay_ms * 1000000ull;
    }
}


/* Sleeps first when `idle`, at most until *until_ns, which it sets when the first of a batch has
 * come.  Returns 0 when the engine stops. */
static int take_input(moe_engine_t *engine, int idle, uint64_t *until_ns)
{
    moe_groups_t *groups = &engine->loaded.groups;
    moe_sequence_t *sequence, *cancelled, *next;
    int stopping;

    pthread_mutex_lock(&engine->lock);
    if (idle) {
        wait_for_work(engine, *until_ns);
    }
    if (engine->ready.first) {
        await_company(engine, until_ns);
    }
    while ((sequence = moe_sequence_queue_pop(&engine->ready)) != NULL) {
        moe_groups_add(groups, &sequence->task);
    }
    cancelled = take_control(engine);
    moe_tenants_forget(&engine->tenants, groups);
    stopping = engine->stopping;
    pthread_mutex_unlock(&engine->lock);
    if (cancelled) {
        for (; cancelled; cancelled = next) {
            next = cancelled->queue_next;
            end(engine, cancelled, MOE_END_CANCELLED);
        }
        engine->sink->flush(engine->options.sink_context);
    }
    return !stopping;
}


static void drop_expired(moe_engine_t *engine)
{
    moe_error_t error;
    moe_task_t *task;
    int any = 0;

    while ((task = moe_groups_expired(&engine->loaded.groups, moe_now_ns())) != NULL) {
        moe_fail(&error, MOE_UNAVAILABLE, "the request waited %u ms for its turn",
                 engine->options.queue_timeout_ms);
        moe_engine_fail(engine, (moe_sequence_t *) task, NULL, &error);
        end(engine, (moe_sequence_t *) task, MOE_END_ERROR);
        any = 1;
    }
    if (any) {
        engine->sink->flush(engine->options.sink_context);
    }
}


static void emit_started(moe_engine_t *engine, const moe_sequence_t *sequence)
{
    /* What a resumed request asks of its prompt was sent before. */
    uint32_t flags = sequence->request->n_resume_ids ? 0 : sequence->request->flags;
    moe_started_t started = {
        .prompt_tokens = sequence->n_prompt,
        .cached_tokens = moe_sequence_cached(sequence),
        .queue_ns = sequence->scheduled_ns - sequence->arrival_ns,
        .prefill_ns = sequence->first_token_ns - sequence->scheduled_ns,
        .n_prompt_ids = flags & MOE_REQUEST_PROMPT_IDS ? sequence->n_prompt : 0,
        .n_logprobs = sequence->prompt_logprobs ? sequence->n_prompt : 0
    };

    if (flags & MOE_REQUEST_ECHO) {
        started.prompt_text = sequence->prompt_text;
    }
    engine->sink->started(sequence->client, sequence->id, &started, sequence->tokens,
                          sequence->prompt_logprobs);
}


static void emit_tokens(moe_engine_t *engine, const moe_sequence_t *sequence)
{
    uint32_t id = moe_sequence_last_id(sequence);

    engine->sink->tokens(sequence->client, sequence->id, &sequence->deltas, &id, 1,
                         sequence->request->logprobs >= 0 ? &sequence->logprob : NULL);
}


static void emit_done(moe_engine_t *engine, const moe_sequence_t *sequence)
{
    moe_done_t done = {
        .reason = sequence->finish,
        .stop_id = sequence->stop_id,
        .prompt_tokens = sequence->n_prompt,
        .cached_tokens = moe_sequence_cached(sequence),
        .completion_tokens = sequence->generated,
        .reasoning_tokens = sequence->reasoning_tokens,
        .decode_ns = sequence->generated ? sequence->last_token_ns - sequence->first_token_ns : 0
    };

    if (sequence->stop_index >= 0) {
        done.stop = sequence->request->stops[sequence->stop_index];
    }
    engine->sink->done(sequence->client, sequence->id, &done);
}


static moe_end_t end_of(const moe_sequence_t *sequence)
{
    return sequence->finish == MOE_FINISH_STOP ? MOE_END_STOP : MOE_END_LENGTH;
}


moe_end_t moe_engine_finish(moe_engine_t *engine, moe_sequence_t *sequence)
{
    sequence->n_new = 0;
    sequence->scheduled_ns = sequence->first_token_ns = sequence->last_token_ns = moe_now_ns();
    moe_metrics_started(&engine->metrics, sequence);
    emit_started(engine, sequence);
    emit_done(engine, sequence);
    return end_of(sequence);
}


/* Events of a sequence after a step that gave it a token (or its end). */
static void emit(moe_engine_t *engine, moe_sequence_t *sequence)
{
    if (sequence->previous_ns == 0) {
        moe_metrics_started(&engine->metrics, sequence);
        emit_started(engine, sequence);
    } else {
        moe_metrics_token(&engine->metrics, sequence);
    }
    if (sequence->n_new > 0) {
        emit_tokens(engine, sequence);
        if (sequence->credit != MOE_CREDIT_UNLIMITED) {
            sequence->credit--;
            sequence->task.paused = sequence->credit == 0;
        }
    }
    if (sequence->finish) {
        emit_done(engine, sequence);
        end(engine, sequence, end_of(sequence));
    }
}


static void draw_some(void *context, uint32_t group, size_t first, size_t last, unsigned thread)
{
    const moe_loaded_t *loaded = context;
    const moe_plan_t *plan = loaded->groups.groups[group].plan;

    for (size_t i = first; i < last; i++) {
        moe_sequence_t *sequence = (moe_sequence_t *) plan->tasks[i];

        sequence->previous_ns = sequence->last_token_ns;
        sequence->outcome = moe_sequence_advance(sequence, loaded->samplers[thread],
                                                 sequence->logits, loaded->drawn_ns,
                                                 &sequence->error);
    }
}


/* Tells a group's sequences where their logits are; returns how many values these are. */
static size_t hand_out(const moe_loaded_t *loaded, const moe_plan_t *plan, const float *logits)
{
    size_t values = 0;

    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        ((moe_sequence_t *) plan->tasks[i])->logits = logits + values;
        values += (size_t) plan->tasks[i]->step_outputs * loaded->model->vocabulary;
    }
    return values;
}


/* Draws the tokens of a step.  Sequences do not know of each other, so they are shared out to the
 * threads of their ranks where that is worth waking them. */
static int draw_all(moe_loaded_t *loaded, moe_error_t *error)
{
    const moe_groups_t *groups = &loaded->groups;
    size_t values = 0;

    loaded->drawn_ns = moe_now_ns();
    for (uint32_t g = 0; g < groups->count; g++) {
        loaded->drawn[g] = groups->batches[g]->n_sequences;
        values += hand_out(loaded, groups->groups[g].plan, loaded->logits[g]);
    }
    if (values >= WORTH_SHARING) {
        return moe_ranks_run(loaded->ranks, draw_some, loaded, loaded->drawn, error);
    }
    for (uint32_t g = 0; g < groups->count; g++) {
        draw_some(loaded, g, 0, loaded->drawn[g], 0);
    }
    return 0;
}


static void emit_all(moe_engine_t *engine, const moe_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        moe_sequence_t *sequence = (moe_sequence_t *) plan->tasks[i];

        if (sequence->outcome > 0) {
            emit(engine, sequence);
        } else if (sequence->outcome < 0) {
            moe_engine_fail(engine, sequence, NULL, &sequence->error);
            end(engine, sequence, MOE_END_ERROR);
        }
    }
}


static void note_scheduled(const moe_plan_t *plan, uint64_t now_ns)
{
    for (uint32_t i = 0; i < plan->batch.n_sequences; i++) {
        moe_sequence_t *sequence = (moe_sequence_t *) plan->tasks[i];

        if (sequence->scheduled_ns == 0) {
            sequence->scheduled_ns = now_ns;
        }
    }
}


/* Runs the planned step.  -1 when a rank is lost. */
static int run_step(moe_engine_t *engine)
{
    moe_loaded_t *loaded = &engine->loaded;
    moe_groups_t *groups = &loaded->groups;
    uint64_t began = moe_now_ns();
    moe_error_t error;

    for (uint32_t g = 0; g < groups->count; g++) {
        note_scheduled(groups->groups[g].plan, began);
    }
    atomic_store(&engine->step_began_ns, began);
    if (moe_ranks_step(loaded->ranks, groups->batches, loaded->logits, &error) != 0) {
        return -1;
    }
    moe_groups_complete(groups, moe_now_ns() - began);
    if (draw_all(loaded, &error) != 0) {
        return -1;
    }
    for (uint32_t g = 0; g < groups->count; g++) {
        emit_all(engine, groups->groups[g].plan);
    }
    atomic_fetch_add(&engine->steps, 1);
    atomic_store(&engine->step_began_ns, 0);
    return 0;
}


/* Whether a batch is still being gathered: it is not full, and the first of it may wait. */
static int gathers(const moe_engine_t *engine, uint64_t *until_ns)
{
    uint32_t waiting = moe_groups_waiting(&engine->loaded.groups);

    if (waiting == 0 || waiting >= engine->loaded.batch_sequences || moe_now_ns() >= *until_ns) {
        *until_ns = 0;
    }
    return *until_ns != 0;
}


void *moe_engine_loop(void *argument)
{
    moe_engine_t *engine = argument;
    moe_groups_t *groups = &engine->loaded.groups;
    uint64_t until_ns = 0;
    uint32_t rows;
    int idle = 1;

    if (load(engine) != 0) {
        return NULL;
    }
    while (take_input(engine, idle, &until_ns)) {
        drop_expired(engine);
        idle = gathers(engine, &until_ns);
        if (idle) {
            atomic_store(&engine->running, 0);
            continue;
        }
        rows = moe_groups_plan(groups);
        atomic_store(&engine->running, moe_groups_running(groups));
        idle = rows == 0;
        if (!idle && run_step(engine) != 0) {
            return NULL;
        }
        moe_metrics_step(&engine->metrics, &engine->loaded, rows);
        if (!idle) {
            engine->sink->flush(engine->options.sink_context);
        }
    }
    return NULL;
}
