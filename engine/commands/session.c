#include "engine/commands/session.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/commands/commands.h"
#include "engine/device/kv_type.h"
#include "engine/moe/settings.h"

#define PROGRESS_INTERVAL_NS 50000000l

typedef struct {
    const char *name;
    uint64_t least, most;
    size_t offset;              /* of an uint32_t in moe_engine_options_t */
} number_option_t;

static const number_option_t number_options[] = {
    { "--threads", 1, 1024, offsetof(moe_engine_options_t, threads) },
    { "--ranks", 1, MOE_RANKS_LIMIT, offsetof(moe_engine_options_t, ranks) },
    { "--tensor-parallel", 1, MOE_RANKS_LIMIT, offsetof(moe_engine_options_t, tensor_parallel) },
    { "--redundant-experts", 0, MOE_REDUNDANT_LIMIT,
      offsetof(moe_engine_options_t, redundant_experts) }
};


int moe_session_option(moe_engine_options_t *options, const char *name, const char *value)
{
    uint64_t number;

    if (strcmp(name, "--kv-type") == 0) {
        return moe_kv_type_find(value, &options->kv_type);
    }
    if (strcmp(name, "--exchange") == 0) {
        return moe_payload_find(value, &options->exchange);
    }
    if (strcmp(name, "--overlap") == 0) {
        return moe_overlap_find(value, &options->overlap);
    }
    for (size_t i = 0; i < sizeof(number_options) / sizeof(number_options[0]); i++) {
        const number_option_t *option = &number_options[i];

        if (strcmp(name, option->name) == 0) {
            if (moe_command_number(value, option->least, option->most, &number) != 0) {
                return -1;
            }
            *(uint32_t *) ((char *) options + option->offset) = (uint32_t) number;
            return 0;
        }
    }
    return -1;
}


int moe_session_fault(moe_engine_options_t *options, moe_error_t *error)
{
    return moe_fault_parse(getenv("MOE_FAULT"), options->ranks ? options->ranks : 1,
                           &options->fault, error);
}


static void show_progress(moe_engine_t *engine)
{
    const struct timespec interval = { .tv_nsec = PROGRESS_INTERVAL_NS };
    moe_state_t state;

    for (moe_engine_state(engine, &state); state.code == MOE_STATE_LOADING;
         moe_engine_state(engine, &state))
    {
        fprintf(stderr, "\rloading %3u %%", state.progress);
        nanosleep(&interval, NULL);
    }
    fprintf(stderr, "\r\033[K");
}


moe_engine_t *moe_session_open(const moe_engine_options_t *options, moe_error_t *error)
{
    moe_engine_t *engine = moe_engine_create(options, error);

    if (engine == NULL) {
        return NULL;
    }
    if (isatty(STDERR_FILENO)) {
        show_progress(engine);
    }
    if (moe_engine_wait(engine, error) != 0) {
        moe_engine_free(engine);
        return NULL;
    }
    return engine;
}


int moe_session_submit(moe_session_t *session, moe_engine_t *engine, void *client, uint64_t id,
                       const moe_request_t *request, moe_error_t *error)
{
    moe_buffer_t frame = { .limit = 0 };
    moe_request_t *copy = NULL;
    int rc = -1;

    if (moe_request_encode(&frame, id, request, error) == 0) {
        copy = moe_request_decode(frame.data + MOE_FRAME_HEADER, frame.size - MOE_FRAME_HEADER,
                                  error);
    }
    if (copy) {
        pthread_mutex_lock(&session->lock);
        session->alive++;
        pthread_mutex_unlock(&session->lock);
        rc = moe_engine_submit(engine, client, id, copy, error);
        if (rc != 0) {
            moe_session_released(session);
            free(copy);
        }
    }
    moe_buffer_free(&frame);
    return rc;
}


void moe_session_released(moe_session_t *session)
{
    pthread_mutex_lock(&session->lock);
    session->alive--;
    pthread_cond_signal(&session->changed);
    pthread_mutex_unlock(&session->lock);
}


void moe_session_changed(void *context)
{
    moe_session_t *session = context;

    pthread_mutex_lock(&session->lock);
    pthread_cond_signal(&session->changed);
    pthread_mutex_unlock(&session->lock);
}


void moe_session_wait(moe_session_t *session, moe_engine_t *engine)
{
    moe_error_t reason;

    pthread_mutex_lock(&session->lock);
    while (session->alive > 0) {
        if (moe_engine_lost(engine, &reason) != 0) {
            fflush(stdout);
            _exit(moe_command_fail(&reason));
        }
        pthread_cond_wait(&session->changed, &session->lock);
    }
    pthread_mutex_unlock(&session->lock);
}


void moe_session_failed(moe_error_t *error, const moe_failure_t *failure)
{
    moe_fail(error, failure->code, "%.*s", (int) failure->message.size, failure->message.data);
}


void moe_session_ignore(void *context)
{
}
