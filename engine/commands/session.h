/* What the commands that compute share: options, and an engine inside the command's own process. */

#ifndef MOE_SESSION_H
#define MOE_SESSION_H

#include <pthread.h>

#include "engine/serve/engine.h"

/* The requests of a command that are not released yet. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t alive;
} moe_session_t;

#define MOE_SESSION_INITIALIZER                                                                 \
    {                                                                                           \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                  \
    }

/* The options of how to compute, of all these commands. */
#define MOE_SESSION_USAGE                                                                       \
    "[--threads N] [--kv-type f32|bf16|q8_0] [--ranks N] [--tensor-parallel N] "                \
    "[--exchange f32|bf16|int8|fp8] [--overlap off|shared|two_batch] [--redundant-experts N]"

/* Sets one of these options.  -1 when it is none of them, or its value is wrong. */
int moe_session_option(moe_engine_options_t *options, const char *name, const char *value);

/* The fault of the environment variable MOE_FAULT (comm/fault.h), after the options.  -1 with
 * MOE_INVALID. */
int moe_session_fault(moe_engine_options_t *options, moe_error_t *error);

/* Creates an engine and waits for its model, showing progress when stderr is a terminal. */
moe_engine_t *moe_session_open(const moe_engine_options_t *options, moe_error_t *error);

/* Submits a copy of the request. */
int moe_session_submit(moe_session_t *session, moe_engine_t *engine, void *client, uint64_t id,
                       const moe_request_t *request, moe_error_t *error);

/* Of the sink: a request is released. */
void moe_session_released(moe_session_t *session);

/* The sink's `changed`, with the session as its context. */
void moe_session_changed(void *session);

/* Waits until all requests are released.  When a rank is lost the process ends with the reason: a
 * rank that is stuck cannot be waited for. */
void moe_session_wait(moe_session_t *session, moe_engine_t *engine);

/* Takes over what a failed request was told. */
void moe_session_failed(moe_error_t *error, const moe_failure_t *failure);

/* Sink functions for events that a command does not look at. */
void moe_session_ignore(void *context);

#endif
