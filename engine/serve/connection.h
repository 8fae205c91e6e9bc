/*
 * A connection of an nginx worker: bytes in, bytes out.
 *
 * The I/O thread owns the socket's reading side and the struct's life; any thread may append events
 * and flush.  Requests hold references, so events of a request whose connection is gone are
 * written into nothing instead of freed memory.
 */

#ifndef MOE_CONNECTION_H
#define MOE_CONNECTION_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/channel/message.h"

#define MOE_CONNECTION_OUT_LIMIT (2u * MOE_FRAME_LIMIT)     /* unsent bytes; beyond: dropped */

typedef struct moe_connection_s {
    atomic_uint references;
    struct moe_server_s *server;        /* the owner's; constant */
    int epoll_fd;

    /* I/O thread only. */
    struct moe_connection_s *previous, *next;
    moe_buffer_t in;
    uint64_t opened_ns;
    int greeted;                        /* HELLO was right */

    pthread_mutex_t lock;               /* of what follows */
    int fd;                             /* -1: closed */
    moe_buffer_t out;                   /* out.data[sent..] is to be sent */
    size_t sent;
    int waits_for_write;                /* EPOLLOUT is asked for */
    int broken;                         /* nothing can be written any more */

    /* The server's list of connections with unflushed events; guarded by its lock. */
    struct moe_connection_s *next_dirty;
    int dirty;
} moe_connection_t;

/* Takes `fd` (non-blocking) over and registers it for reading.  NULL with MOE_SYSTEM or MOE_LIMIT;
 * fd is closed then. */
moe_connection_t *moe_connection_create(int fd, int epoll_fd, moe_error_t *error);

void moe_connection_hold(moe_connection_t *connection);
void moe_connection_drop(moe_connection_t *connection);     /* the last one frees */

/* Closes the socket; the struct lives on until the last reference is dropped. */
void moe_connection_close(moe_connection_t *connection);

/* Reads what is there (a bounded amount) into `in`.  1: some bytes, 0: nothing now, -1: end of the
 * stream, an error or too much. */
int moe_connection_read(moe_connection_t *connection);

/* Access to `out`: NULL when the connection is broken.  moe_connection_unlock(..., failed) ends it;
 * `failed`: a frame could not be written whole, the connection is broken. */
moe_buffer_t *moe_connection_lock(moe_connection_t *connection);
void moe_connection_unlock(moe_connection_t *connection, int failed);

/* Sends what can be sent now; the rest goes when the socket is writable (moe_connection_flush is
 * called again then).  A broken connection is shut down, which the I/O thread sees as its end. */
void moe_connection_flush(moe_connection_t *connection);

/* 1 when everything was sent or never will be. */
int moe_connection_is_flushed(moe_connection_t *connection);

#endif
