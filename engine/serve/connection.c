/*
 * Output is one buffer with a mark of what was sent already: a step's events of all sequences of a
 * worker are appended and leave with one send().  The mark saves moving megabytes after each
 * partial send; the buffer starts afresh when it is empty.
 */

#include "engine/serve/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/core/clock.h"

#define READ_CHUNK 65536u
#define READS_AT_ONCE 4u
#define KEPT_CAPACITY (1u << 20)        /* a larger buffer is given back when it is empty */


moe_connection_t *moe_connection_create(int fd, int epoll_fd, moe_error_t *error)
{
    moe_connection_t *connection = calloc(1, sizeof(*connection));
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = connection };

    if (connection == NULL) {
        close(fd);
        moe_fail(error, MOE_LIMIT, "out of memory for a connection");
        return NULL;
    }
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == -1) {
        moe_fail(error, MOE_SYSTEM, "epoll_ctl() failed (%d)", errno);
        close(fd);
        free(connection);
        return NULL;
    }
    atomic_init(&connection->references, 1);
    pthread_mutex_init(&connection->lock, NULL);
    connection->fd = fd;
    connection->epoll_fd = epoll_fd;
    connection->in.limit = (size_t) MOE_FRAME_LIMIT + MOE_FRAME_HEADER + READ_CHUNK;
    connection->out.limit = MOE_CONNECTION_OUT_LIMIT;
    connection->opened_ns = moe_now_ns();
    return connection;
}


void moe_connection_hold(moe_connection_t *connection)
{
    atomic_fetch_add(&connection->references, 1);
}


void moe_connection_drop(moe_connection_t *connection)
{
    if (atomic_fetch_sub(&connection->references, 1) == 1) {
        moe_buffer_free(&connection->in);
        moe_buffer_free(&connection->out);
        pthread_mutex_destroy(&connection->lock);
        free(connection);
    }
}


void moe_connection_close(moe_connection_t *connection)
{
    pthread_mutex_lock(&connection->lock);
    close(connection->fd);
    connection->fd = -1;
    connection->broken = 1;
    moe_buffer_free(&connection->out);
    connection->sent = 0;
    pthread_mutex_unlock(&connection->lock);
}


int moe_connection_read(moe_connection_t *connection)
{
    moe_buffer_t *in = &connection->in;
    moe_error_t error;
    int any = 0;

    for (unsigned i = 0; i < READS_AT_ONCE; i++) {
        ssize_t n;

        /* What was read may have to be handled first to make room for more. */
        if (moe_buffer_reserve(in, READ_CHUNK, &error) != 0) {
            return any ? 1 : -1;
        }
        n = recv(connection->fd, in->data + in->size, READ_CHUNK, 0);
        if (n == -1 && errno == EINTR) {
            continue;
        }
        if (n == -1 && errno == EAGAIN) {
            return any;
        }
        if (n <= 0) {
            return -1;
        }
        in->size += (size_t) n;
        any = 1;
        if ((size_t) n < READ_CHUNK) {
            break;
        }
    }
    return any;
}


moe_buffer_t *moe_connection_lock(moe_connection_t *connection)
{
    pthread_mutex_lock(&connection->lock);
    if (connection->broken) {
        pthread_mutex_unlock(&connection->lock);
        return NULL;
    }
    return &connection->out;
}


void moe_connection_unlock(moe_connection_t *connection, int failed)
{
    connection->broken |= failed;
    pthread_mutex_unlock(&connection->lock);
}


static void ask_for_write(moe_connection_t *connection, int wanted)
{
    struct epoll_event event = {
        .events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN,
        .data.ptr = connection
    };

    if (connection->waits_for_write != wanted) {
        connection->waits_for_write = wanted;
        connection->broken |=
            epoll_ctl(connection->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) == -1;
    }
}


/* The lock is held and the socket open. */
static void send_out(moe_connection_t *connection)
{
    moe_buffer_t *out = &connection->out;

    while (connection->sent < out->size) {
        ssize_t n = send(connection->fd, out->data + connection->sent,
                         out->size - connection->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n == -1 && errno == EAGAIN) {
            ask_for_write(connection, 1);
            return;
        }
        if (n == -1 && errno != EINTR) {
            connection->broken = 1;
            return;
        }
        connection->sent += n > 0 ? (size_t) n : 0;
    }
    out->size = 0;
    connection->sent = 0;
    if (out->capacity > KEPT_CAPACITY) {
        moe_buffer_free(out);
    }
    ask_for_write(connection, 0);
}


void moe_connection_flush(moe_connection_t *connection)
{
    pthread_mutex_lock(&connection->lock);
    if (connection->fd != -1) {
        if (!connection->broken) {
            send_out(connection);
        }
        if (connection->broken) {
            shutdown(connection->fd, SHUT_RDWR);
        }
    }
    pthread_mutex_unlock(&connection->lock);
}


int moe_connection_is_flushed(moe_connection_t *connection)
{
    int flushed;

    pthread_mutex_lock(&connection->lock);
    flushed = connection->broken || connection->out.size == 0;
    pthread_mutex_unlock(&connection->lock);
    return flushed;
}
