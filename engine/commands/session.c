#include "engine/commands/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PROGRESS_INTERVAL_NS 50000000l


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


int moe_session_submit(moe_engine_t *engine, void *client, uint64_t id,
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
        rc = moe_engine_submit(engine, client, id, copy, error);
        if (rc != 0) {
            free(copy);
        }
    }
    moe_buffer_free(&frame);
    return rc;
}


void moe_session_failed(moe_error_t *error, const moe_failure_t *failure)
{
    moe_fail(error, failure->code, "%.*s", (int) failure->message.size, failure->message.data);
}


void moe_session_ignore(void *context)
{
}
