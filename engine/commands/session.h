/* What run and bench share: an engine inside the command's own process. */

#ifndef MOE_SESSION_H
#define MOE_SESSION_H

#include "engine/serve/engine.h"

/* Creates an engine and waits for its model, showing progress when stderr is a terminal. */
moe_engine_t *moe_session_open(const moe_engine_options_t *options, moe_error_t *error);

/* Submits a copy of the request. */
int moe_session_submit(moe_engine_t *engine, void *client, uint64_t id,
                       const moe_request_t *request, moe_error_t *error);

/* Takes over what a failed request was told. */
void moe_session_failed(moe_error_t *error, const moe_failure_t *failure);

/* Sink functions for events that a command does not look at. */
void moe_session_ignore(void *context);

#endif
