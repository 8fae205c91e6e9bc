/*
 * Shared by engine.c (what other threads call, prompt threads) and loop.c (the scheduler thread).
 *
 * Who may touch a sequence: until it is prepared, its prompt thread; then the scheduler thread.
 * All others set `cancelled` and `credit_added` under the lock and put it on the control list.
 */

#ifndef MOE_ENGINE_INTERNAL_H
#define MOE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/serve/engine.h"
#include "engine/serve/loaded.h"
#include "engine/serve/metrics.h"
#include "engine/serve/registry.h"
#include "engine/serve/tenants.h"

#define MOE_PROMPT_THREADS 2u

struct moe_engine_s {
    moe_engine_options_t options;
    const moe_sink_t *sink;
    moe_metrics_t metrics;

    pthread_mutex_t lock;
    pthread_cond_t for_scheduler;       /* ready or control is not empty, or stopping */
    pthread_cond_t for_prompts;         /* something was submitted, or stopping */
    pthread_cond_t for_loading;         /* code left LOADING */

    /* Guarded by the lock. */
    moe_registry_t registry;
    uint32_t places;                    /* requests that may be alive: batch_sequences + queue */
    uint64_t arrivals;
    moe_tenants_t tenants;              /* with the sequences that were submitted */
    moe_sequence_queue_t ready;         /* for the scheduler */
    moe_sequence_t *control;            /* through control_next */
    moe_state_code_t code;
    int stopping;
    uint64_t loaded_unix;
    moe_error_t load_error;             /* constant once the code is FAILED */
    int lost;                           /* a rank is, */
    moe_error_t lost_reason;            /* for this reason */

    atomic_uint progress;               /* per cent */
    atomic_uint running;                /* as the scheduler saw it last */
    atomic_ullong steps;
    atomic_ullong step_began_ns;        /* 0: no step in progress */

    moe_loaded_t loaded;                /* constant once the code is READY */
    pthread_t threads[1 + MOE_PROMPT_THREADS];
    unsigned n_threads;
};

/* Ends a sequence that the caller owns and that the scheduler no longer holds: forgets it, tells
 * the sink, frees it.  The last event must have been given to the sink. */
void moe_engine_release(moe_engine_t *engine, moe_sequence_t *sequence, moe_end_t end);

/* Gives the sink a failure. */
void moe_engine_fail(moe_engine_t *engine, const moe_sequence_t *sequence, const char *field,
                     const moe_error_t *error);

/* Gives the sink the events of a resumed sequence whose resume_ids are all of it. */
moe_end_t moe_engine_finish(moe_engine_t *engine, moe_sequence_t *sequence);

/* Thread functions; the argument is the engine. */
void *moe_engine_loop(void *engine);

#endif
