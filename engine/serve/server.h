/*
 * The engine's socket: an I/O thread (the one that calls moe_server_run) that accepts nginx's
 * workers, checks who they are, turns their frames into calls of the engine, and answers for the
 * engine's state without ever waiting for it.
 *
 *     server = moe_server_create(...)
 *     options.sink = &moe_server_sink, options.sink_context = server
 *     engine = moe_engine_create(&options)
 *     moe_server_run(server, engine)
 *     moe_engine_free, moe_server_free
 */

#ifndef MOE_SERVER_H
#define MOE_SERVER_H

#include <sys/types.h>

#include "engine/serve/engine.h"

typedef struct {
    int listen_fd;                      /* listening Unix stream socket; not closed */
    int signal_fd;                      /* signalfd of QUIT, TERM, INT, USR1; -1: none */
    uint8_t secret[MOE_CHANNEL_SECRET];
    uid_t uid;                          /* of peers, besides 0 and our own */
    moe_log_t *log;
} moe_server_options_t;

typedef struct moe_server_s moe_server_t;

extern const moe_sink_t moe_server_sink;    /* clients are connections */

/* NULL with MOE_SYSTEM or MOE_LIMIT. */
moe_server_t *moe_server_create(const moe_server_options_t *options, moe_error_t *error);

/* After the engine is freed. */
void moe_server_free(moe_server_t *server);

typedef enum {
    MOE_SERVER_DRAINED = 1,             /* QUIT: every request was finished and sent */
    MOE_SERVER_LOST,                    /* a rank is lost, and with it the requests */
    MOE_SERVER_TERMINATED               /* TERM, INT, moe_server_stop, or epoll failed */
} moe_server_end_t;

/* Serves until a signal or moe_server_stop; closes all connections. */
moe_server_end_t moe_server_run(moe_server_t *server, moe_engine_t *engine);

/* From any thread: makes moe_server_run return; drain as SIGQUIT does, else as SIGTERM. */
void moe_server_stop(moe_server_t *server, int drain);

#endif
