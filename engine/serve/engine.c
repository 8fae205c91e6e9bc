/*
 * The lock is held for a few list operations at a time, never during a step, a template or a sink
 * call; so submitting, cancelling and asking for the state are quick whatever the model is doing.
 *
 * A burst cannot pile up: batch_sequences + queue requests may be alive, preparing and running ones
 * included.  The next one is refused before any work is spent on it.  But nobody can fill the queue
 * against others: a tenant with fewer than an equal part of the places is let in all the same,
 * until there are twice as many.
 */

#include "engine/serve/engine_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/core/clock.h"

#define DEFAULT_BATCH_SEQUENCES 64u
#define DEFAULT_QUEUE 256u
#define DEFAULT_QUEUE_TIMEOUT_MS 60000u


void moe_engine_ranks_options(const moe_engine_options_t *options, moe_ranks_options_t *ranks)
{
    *ranks = (moe_ranks_options_t) {
        .ranks = options->ranks,
        .tensor_parallel = options->tensor_parallel,
        .timeout_ns = options->peer_timeout_ms * 1000000ull,
        .fault = options->fault,
        .forward = {
            .threads = options->threads ? options->threads : moe_cpu_count(),
            .kv_type = options->kv_type,
            .exchange = options->exchange,
            .overlap = options->overlap,
            .balance = { .redundant = options->redundant_experts }
        }
    };
}


void moe_engine_release(moe_engine_t *engine, moe_sequence_t *sequence, moe_end_t end)
{
    void *client = sequence->client;
    uint64_t id = sequence->id;
    moe_sequence_t **link;

    moe_metrics_ended(&engine->metrics, sequence, end, moe_now_ns());
    pthread_mutex_lock(&engine->lock);
    if (sequence->in_control) {
        for (link = &engine->control; *link != sequence; link = &(*link)->control_next) {
        }
        *link = sequence->control_next;
    }
    moe_registry_remove(&engine->registry, sequence);
    moe_tenants_leave(&engine->tenants, sequence->tenant);
    pthread_mutex_unlock(&engine->lock);
    moe_sequence_free(sequence);
    engine->sink->released(client, id);
}


void moe_engine_fail(moe_engine_t *engine, const moe_sequence_t *sequence, const char *field,
                     const moe_error_t *error)
{
    moe_failure_t failure = {
        .code = error->code,
        .field = { field, field ? (uint32_t) strlen(field) : 0 },
        .message = { error->message, (uint32_t) strlen(error->message) }
    };

    engine->sink->failed(sequence->client, sequence->id, &failure);
}


static void admit(moe_engine_t *engine, const moe_sequence_t *sequence)
{
    moe_admitted_t admitted = { .prompt_tokens = sequence->n_prompt };

    engine->sink->admitted(sequence->client, sequence->id, &admitted);
}


/* Prepares one sequence and hands it to the scheduler, or ends it. */
static void prepare(moe_engine_t *engine, moe_sequence_t *sequence)
{
    moe_error_t error;
    const char *field;
    int rc, cancelled, goes_on;
    moe_end_t end;

    rc = moe_sequence_prepare(sequence, &engine->loaded.lexicon, &field, &error);
    if (rc == 0) {
        /* Before the scheduler has it, so that it comes before what the scheduler sends. */
        admit(engine, sequence);
    }
    pthread_mutex_lock(&engine->lock);
    cancelled = sequence->cancelled;
    goes_on = rc == 0 && !cancelled && !sequence->finish;
    if (goes_on) {
        moe_sequence_queue_push(&engine->ready, sequence);
        pthread_cond_signal(&engine->for_scheduler);
    }
    pthread_mutex_unlock(&engine->lock);
    if (goes_on) {
        engine->sink->flush(engine->options.sink_context);
        return;
    }
    if (cancelled) {
        end = MOE_END_CANCELLED;
    } else if (rc == 0) {
        end = moe_engine_finish(engine, sequence);
    } else {
        moe_engine_fail(engine, sequence, field, &error);
        end = MOE_END_ERROR;
    }
    moe_engine_release(engine, sequence, end);
    engine->sink->flush(engine->options.sink_context);
}


static void *prompt_thread(void *argument)
{
    moe_engine_t *engine = argument;
    moe_sequence_t *sequence = NULL;

    pthread_mutex_lock(&engine->lock);
    for (;;) {
        while (!engine->stopping
               && (sequence = moe_tenants_pop(&engine->tenants)) == NULL)
        {
            pthread_cond_wait(&engine->for_prompts, &engine->lock);
        }
        if (engine->stopping) {
            break;
        }
        pthread_mutex_unlock(&engine->lock);
        prepare(engine, sequence);
        pthread_mutex_lock(&engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}


static int start_threads(moe_engine_t *engine, moe_error_t *error)
{
    while (engine->n_threads < 1 + MOE_PROMPT_THREADS) {
        if (pthread_create(&engine->threads[engine->n_threads], NULL,
                           engine->n_threads ? prompt_thread : moe_engine_loop, engine) != 0)
        {
            return moe_fail(error, MOE_SYSTEM, "a thread cannot be started");
        }
        engine->n_threads++;
    }
    return 0;
}


static void init_locks(moe_engine_t *engine)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->for_scheduler, &monotonic);
    pthread_cond_init(&engine->for_prompts, NULL);
    pthread_cond_init(&engine->for_loading, NULL);
    pthread_condattr_destroy(&monotonic);
}


/* Sequences belong to groups of ranks; numbers that do not fit are refused by the loader. */
static uint32_t count_groups(const moe_engine_options_t *options)
{
    uint32_t ranks = options->ranks ? options->ranks : 1;
    uint32_t groups = ranks / (options->tensor_parallel ? options->tensor_parallel : 1);

    return groups ? groups : 1;
}


moe_engine_t *moe_engine_create(const moe_engine_options_t *options, moe_error_t *error)
{
    moe_engine_t *engine = calloc(1, sizeof(*engine));
    uint32_t sequences;

    if (engine == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for an engine");
        return NULL;
    }
    engine->options = *options;
    engine->options.queue = options->queue ? options->queue : DEFAULT_QUEUE;
    engine->options.queue_timeout_ms =
        options->queue_timeout_ms ? options->queue_timeout_ms : DEFAULT_QUEUE_TIMEOUT_MS;
    engine->options.credit = options->credit ? options->credit : MOE_CREDIT_UNLIMITED;
    engine->options.model = strdup(options->model);
    engine->options.chat_template = options->chat_template ? strdup(options->chat_template) : NULL;
    engine->sink = options->sink;
    engine->code = MOE_STATE_LOADING;
    init_locks(engine);
    moe_metrics_init(&engine->metrics);
    sequences = options->batch_sequences ? options->batch_sequences : DEFAULT_BATCH_SEQUENCES;
    engine->places = sequences + engine->options.queue;
    if (engine->options.model == NULL
        || (options->chat_template != NULL && engine->options.chat_template == NULL))
    {
        moe_fail(error, MOE_LIMIT, "out of memory for an engine");
    } else if (moe_registry_init(&engine->registry, 2 * engine->places, error) == 0
               && moe_tenants_init(&engine->tenants, count_groups(options), error) == 0
               && start_threads(engine, error) == 0)
    {
        return engine;
    }
    moe_engine_free(engine);
    return NULL;
}


static void pick(moe_sequence_t *sequence, void *context)
{
    *(moe_sequence_t **) context = sequence;
}


void moe_engine_free(moe_engine_t *engine)
{
    moe_sequence_t *sequence;

    pthread_mutex_lock(&engine->lock);
    engine->stopping = 1;
    pthread_cond_broadcast(&engine->for_scheduler);
    pthread_cond_broadcast(&engine->for_prompts);
    pthread_mutex_unlock(&engine->lock);
    for (unsigned i = 0; i < engine->n_threads; i++) {
        pthread_join(engine->threads[i], NULL);
    }
    while (engine->registry.count > 0) {
        moe_registry_each(&engine->registry, pick, &sequence);
        if (sequence->task.state != MOE_TASK_NEW) {
            moe_groups_remove(&engine->loaded.groups, &sequence->task);
        }
        moe_engine_release(engine, sequence, MOE_END_CANCELLED);
    }
    moe_registry_free(&engine->registry);
    moe_tenants_free(&engine->tenants);
    moe_loaded_close(&engine->loaded);
    moe_metrics_destroy(&engine->metrics);
    pthread_cond_destroy(&engine->for_scheduler);
    pthread_cond_destroy(&engine->for_prompts);
    pthread_cond_destroy(&engine->for_loading);
    pthread_mutex_destroy(&engine->lock);
    free((char *) engine->options.model);
    free((char *) engine->options.chat_template);
    free(engine);
}


int moe_engine_wait(moe_engine_t *engine, moe_error_t *error)
{
    int failed;

    pthread_mutex_lock(&engine->lock);
    while (engine->code == MOE_STATE_LOADING) {
        pthread_cond_wait(&engine->for_loading, &engine->lock);
    }
    failed = engine->code == MOE_STATE_FAILED;
    pthread_mutex_unlock(&engine->lock);
    if (failed) {
        *error = engine->load_error;
    }
    return failed ? -1 : 0;
}


int moe_engine_lost(moe_engine_t *engine, moe_error_t *reason)
{
    int lost;

    pthread_mutex_lock(&engine->lock);
    lost = engine->lost;
    if (lost) {
        *reason = engine->lost_reason;
    }
    pthread_mutex_unlock(&engine->lock);
    return lost ? -1 : 0;
}


/* Whether one more request of this tenant finds a place. */
static int has_place(const moe_engine_t *engine, moe_string_t name)
{
    const moe_tenant_t *tenant = moe_tenants_find(&engine->tenants, name);
    uint32_t held = tenant ? tenant->alive : 0, alive = engine->registry.count;
    uint32_t tenants = engine->tenants.active + (held == 0);

    return alive < engine->places
           || (alive < engine->registry.limit && held < engine->places / tenants);
}


/* Whether a request can be taken now; the lock is held. */
static int check_admission(const moe_engine_t *engine, const void *client, uint64_t id,
                           moe_string_t tenant, moe_error_t *error)
{
    switch (engine->code) {
    case MOE_STATE_LOADING:
        return moe_fail(error, MOE_UNAVAILABLE, "the model is being loaded");
    case MOE_STATE_DRAINING:
        return moe_fail(error, MOE_UNAVAILABLE, "the engine is shutting down");
    case MOE_STATE_FAILED:
        return moe_fail(error, MOE_UNAVAILABLE, "the model cannot be loaded: %s",
                        engine->load_error.message);
    default:
        break;
    }
    if (moe_registry_find(&engine->registry, client, id)) {
        return moe_fail(error, MOE_INVALID, "request %llu exists already",
                        (unsigned long long) id);
    }
    if (!has_place(engine, tenant)) {
        return moe_fail(error, MOE_LIMIT, "the queue is full: %u requests are running or waiting",
                        engine->registry.count);
    }
    return 0;
}


int moe_engine_submit(moe_engine_t *engine, void *client, uint64_t id, moe_request_t *request,
                      moe_error_t *error)
{
    moe_sequence_t *sequence;
    uint64_t now = moe_now_ns();
    int rc;

    sequence = moe_sequence_create(request, client, id, engine->options.credit, now, error);
    if (sequence == NULL) {
        return -1;
    }
    sequence->task.deadline_ns = now + engine->options.queue_timeout_ms * 1000000ull;
    pthread_mutex_lock(&engine->lock);
    rc = check_admission(engine, client, id, request->tenant, error);
    if (rc == 0) {
        sequence->tenant = moe_tenants_enter(&engine->tenants, request->tenant, error);
        rc = sequence->tenant ? 0 : -1;
    }
    if (rc == 0) {
        sequence->task.order = engine->arrivals++;
        sequence->task.shares = sequence->tenant->shares;
        moe_registry_add(&engine->registry, sequence);
        moe_tenants_push(&engine->tenants, sequence);
        pthread_cond_signal(&engine->for_prompts);
    }
    pthread_mutex_unlock(&engine->lock);
    if (rc != 0) {
        sequence->request = NULL;
        moe_sequence_free(sequence);
    }
    return rc;
}


/* Makes the scheduler look at a sequence before its next step; the lock is held. */
static void control(moe_engine_t *engine, moe_sequence_t *sequence)
{
    if (!sequence->in_control) {
        sequence->in_control = 1;
        sequence->control_next = engine->control;
        engine->control = sequence;
        pthread_cond_signal(&engine->for_scheduler);
    }
}


void moe_engine_cancel(moe_engine_t *engine, void *client, uint64_t id)
{
    moe_sequence_t *sequence;

    pthread_mutex_lock(&engine->lock);
    sequence = moe_registry_find(&engine->registry, client, id);
    if (sequence) {
        sequence->cancelled = 1;
        control(engine, sequence);
    }
    pthread_mutex_unlock(&engine->lock);
}


typedef struct {
    moe_engine_t *engine;
    const void *client;
} cancellation_t;


static void cancel_of_client(moe_sequence_t *sequence, void *context)
{
    const cancellation_t *cancellation = context;

    if (sequence->client == cancellation->client) {
        sequence->cancelled = 1;
        control(cancellation->engine, sequence);
    }
}


void moe_engine_cancel_all(moe_engine_t *engine, void *client)
{
    cancellation_t cancellation = { engine, client };

    pthread_mutex_lock(&engine->lock);
    moe_registry_each(&engine->registry, cancel_of_client, &cancellation);
    pthread_mutex_unlock(&engine->lock);
}


void moe_engine_credit(moe_engine_t *engine, void *client, uint64_t id, uint32_t tokens)
{
    moe_sequence_t *sequence;

    pthread_mutex_lock(&engine->lock);
    sequence = moe_registry_find(&engine->registry, client, id);
    if (sequence) {
        sequence->credit_added = tokens > UINT32_MAX - sequence->credit_added
                                     ? UINT32_MAX : sequence->credit_added + tokens;
        control(engine, sequence);
    }
    pthread_mutex_unlock(&engine->lock);
}


void moe_engine_drain(moe_engine_t *engine)
{
    int changed;

    pthread_mutex_lock(&engine->lock);
    changed = engine->code == MOE_STATE_READY;
    if (changed) {
        engine->code = MOE_STATE_DRAINING;
    }
    pthread_mutex_unlock(&engine->lock);
    if (changed) {
        engine->sink->changed(engine->options.sink_context);
    }
}


uint32_t moe_engine_alive(moe_engine_t *engine)
{
    uint32_t alive;

    pthread_mutex_lock(&engine->lock);
    alive = engine->registry.count;
    pthread_mutex_unlock(&engine->lock);
    return alive;
}


void moe_engine_state(moe_engine_t *engine, moe_state_t *state)
{
    uint64_t began = atomic_load(&engine->step_began_ns), now = moe_now_ns();

    memset(state, 0, sizeof(*state));
    state->progress = atomic_load(&engine->progress);
    state->steps = atomic_load(&engine->steps);
    state->running = atomic_load(&engine->running);
    state->step_started_ns = began && now > began ? now - began : 0;
    pthread_mutex_lock(&engine->lock);
    state->code = engine->code;
    state->waiting = engine->registry.count;
    state->loaded_unix = engine->loaded_unix;
    pthread_mutex_unlock(&engine->lock);
    /* Two snapshots: what ended in between runs no more. */
    state->running = state->running < state->waiting ? state->running : state->waiting;
    state->waiting -= state->running;
    if (state->code == MOE_STATE_READY || state->code == MOE_STATE_DRAINING) {
        state->context = engine->loaded.lexicon.context;
        state->vocabulary = engine->loaded.model->vocabulary;
    } else if (state->code == MOE_STATE_FAILED) {
        state->message.data = engine->load_error.message;
        state->message.size = (uint32_t) strlen(engine->load_error.message);
    }
}


void moe_engine_stats(moe_engine_t *engine, moe_stats_t *stats)
{
    moe_state_t state;

    moe_engine_state(engine, &state);
    moe_metrics_read(&engine->metrics, stats);
    stats->running = state.running;
    stats->waiting = state.waiting;
    stats->queue_limit = engine->options.queue;
}


uint64_t *moe_engine_expert_load(moe_engine_t *engine, uint32_t *layers, uint32_t *experts)
{
    return moe_metrics_experts(&engine->metrics, layers, experts);
}


const moe_lexicon_t *moe_engine_lexicon(const moe_engine_t *engine)
{
    return engine->loaded.lexicon.model ? &engine->loaded.lexicon : NULL;
}


const char *moe_engine_isa(const moe_engine_t *engine)
{
    return moe_forward_isa(moe_ranks_forward(engine->loaded.ranks, 0));
}
