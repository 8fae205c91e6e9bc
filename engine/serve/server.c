/*
 * One epoll loop.  What other threads want from it (state changes, the end) comes through an
 * eventfd and flags; what it wants from the engine never waits for a step.
 *
 * Events take a shorter way: the engine's threads append frames to a connection's buffer, remember
 * the connection in the list of dirty ones, and send each one's buffer when the step ends
 * (flush).  Only what does not fit into the socket is left to the loop.
 *
 * Peers are untrusted until they have said HELLO with the secret, and still checked after it: a
 * frame that breaks a rule ends its connection and the requests of that connection, nothing else.
 */

#include "engine/serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "engine/core/clock.h"
#include "engine/serve/connection.h"

#define CONNECTIONS_LIMIT 1024u
#define EVENTS_AT_ONCE 64
#define HELLO_TIMEOUT_NS 5000000000ull
#define HELLO_SIZE (MOE_FRAME_HEADER + MOE_CHANNEL_SECRET)
#define KEPT_CAPACITY (1u << 20)

struct moe_server_s {
    moe_server_options_t options;
    moe_engine_t *engine;
    int epoll_fd, wake_fd, timer_fd;
    int accepting;                      /* the listening socket is in the epoll set */
    moe_connection_t *connections;      /* I/O thread only */
    moe_connection_t *closed;           /* of this round, through next */
    unsigned n_connections;
    moe_state_code_t told;              /* state that all connections know */
    atomic_int draining, terminating;

    pthread_mutex_t dirty_lock;
    moe_connection_t *dirty;
};


/* Watches a descriptor; its events carry the address of the field that holds it. */
static int watch(moe_server_t *server, int *fd, moe_error_t *error)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = fd };

    if (*fd == -1 || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, *fd, &event) == -1) {
        return moe_fail(error, MOE_SYSTEM, "the event loop cannot be set up: %s", strerror(errno));
    }
    return 0;
}


static int open_descriptors(moe_server_t *server, moe_error_t *error)
{
    const struct itimerspec heartbeat = {
        .it_interval.tv_nsec = MOE_CHANNEL_HEARTBEAT_MS * 1000000l,
        .it_value.tv_nsec = MOE_CHANNEL_HEARTBEAT_MS * 1000000l
    };
    int *listen_fd = &server->options.listen_fd;

    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (watch(server, &server->wake_fd, error) != 0
        || watch(server, &server->timer_fd, error) != 0
        || (server->options.signal_fd != -1
            && watch(server, &server->options.signal_fd, error) != 0))
    {
        return -1;
    }
    timerfd_settime(server->timer_fd, 0, &heartbeat, NULL);
    if (fcntl(*listen_fd, F_SETFL, fcntl(*listen_fd, F_GETFL) | O_NONBLOCK) == -1) {
        return moe_fail(error, MOE_SYSTEM, "the listening socket %d: %s", *listen_fd,
                        strerror(errno));
    }
    server->accepting = 1;
    return watch(server, listen_fd, error);
}


moe_server_t *moe_server_create(const moe_server_options_t *options, moe_error_t *error)
{
    moe_server_t *server = calloc(1, sizeof(*server));

    if (server == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a server");
        return NULL;
    }
    server->options = *options;
    pthread_mutex_init(&server->dirty_lock, NULL);
    if (open_descriptors(server, error) != 0) {
        moe_server_free(server);
        return NULL;
    }
    return server;
}


void moe_server_free(moe_server_t *server)
{
    const int fds[] = { server->epoll_fd, server->wake_fd, server->timer_fd };

    for (unsigned i = 0; i < 3; i++) {
        if (fds[i] != -1) {
            close(fds[i]);
        }
    }
    pthread_mutex_destroy(&server->dirty_lock);
    OPENSSL_cleanse(server->options.secret, sizeof(server->options.secret));
    free(server);
}


static void wake(moe_server_t *server)
{
    const uint64_t one = 1;

    /* Fails only when the counter is full: then the loop is awake already. */
    while (write(server->wake_fd, &one, sizeof(one)) == -1 && errno == EINTR) {
    }
}


void moe_server_stop(moe_server_t *server, int drain)
{
    atomic_store(drain ? &server->draining : &server->terminating, 1);
    wake(server);
}


/* ---- events of the engine, from its threads ---- */

static void mark_dirty(moe_server_t *server, moe_connection_t *connection)
{
    pthread_mutex_lock(&server->dirty_lock);
    if (!connection->dirty) {
        connection->dirty = 1;
        connection->next_dirty = server->dirty;
        server->dirty = connection;
        moe_connection_hold(connection);
    }
    pthread_mutex_unlock(&server->dirty_lock);
}


/* Ends what moe_connection_lock began: the frame goes with the next flush. */
static void finish_frame(moe_connection_t *connection, int rc)
{
    moe_connection_unlock(connection, rc != 0);
    mark_dirty(connection->server, connection);
}


static void on_admitted(void *client, uint64_t id, const moe_admitted_t *admitted)
{
    moe_buffer_t *out = moe_connection_lock(client);
    moe_error_t error;

    if (out) {
        finish_frame(client, moe_admitted_encode(out, id, admitted, &error));
    }
}


static void on_started(void *client, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs)
{
    moe_buffer_t *out = moe_connection_lock(client);
    moe_error_t error;

    if (out) {
        finish_frame(client, moe_started_encode(out, id, started, prompt_ids, logprobs, &error));
    }
}


static void on_tokens(void *client, uint64_t id, const moe_deltas_t *deltas, const uint32_t *ids,
                      uint32_t n_ids, const moe_logprob_t *logprobs)
{
    moe_buffer_t *out = moe_connection_lock(client);
    moe_error_t error;

    if (out) {
        finish_frame(client, moe_tokens_encode(out, id, deltas, ids, n_ids, logprobs, &error));
    }
}


static void on_done(void *client, uint64_t id, const moe_done_t *done)
{
    moe_buffer_t *out = moe_connection_lock(client);
    moe_error_t error;

    if (out) {
        finish_frame(client, moe_done_encode(out, id, done, &error));
    }
}


static void on_failed(void *client, uint64_t id, const moe_failure_t *failure)
{
    moe_buffer_t *out = moe_connection_lock(client);
    moe_error_t error;

    if (out) {
        finish_frame(client, moe_failure_encode(out, id, failure, &error));
    }
}


static void on_released(void *client, uint64_t id)
{
    moe_connection_drop(client);
}


static moe_connection_t *take_dirty(moe_server_t *server)
{
    moe_connection_t *connection;

    pthread_mutex_lock(&server->dirty_lock);
    connection = server->dirty;
    if (connection) {
        server->dirty = connection->next_dirty;
        connection->dirty = 0;
    }
    pthread_mutex_unlock(&server->dirty_lock);
    return connection;
}


static void flush_dirty(moe_server_t *server)
{
    moe_connection_t *connection;

    while ((connection = take_dirty(server)) != NULL) {
        moe_connection_flush(connection);
        moe_connection_drop(connection);
    }
}


static void on_flush(void *context)
{
    moe_server_t *server = context;

    flush_dirty(server);
    /* The last request may just have gone: the loop looks whether it can end. */
    if (atomic_load(&server->draining)) {
        wake(server);
    }
}


static void on_changed(void *context)
{
    wake(context);
}


const moe_sink_t moe_server_sink = {
    on_admitted,
    on_started,
    on_tokens,
    on_done,
    on_failed,
    on_released,
    on_flush,
    on_changed
};


/* ---- the I/O thread ---- */

static void log_fault(const moe_server_t *server, const char *what)
{
    moe_log(server->options.log, MOE_LOG_WARN, "channel: %s, connection closed", what);
}


static void close_connection(moe_server_t *server, moe_connection_t *connection)
{
    *(connection->previous ? &connection->previous->next : &server->connections) =
        connection->next;
    if (connection->next) {
        connection->next->previous = connection->previous;
    }
    moe_connection_close(connection);
    moe_engine_cancel_all(server->engine, connection);
    server->n_connections--;
    connection->next = server->closed;
    server->closed = connection;
}


/* Events of this round may still point to closed connections: they are let go after it. */
static void drop_closed(moe_server_t *server)
{
    moe_connection_t *connection;

    while ((connection = server->closed) != NULL) {
        server->closed = connection->next;
        moe_connection_drop(connection);
    }
}


static int is_trusted(const moe_server_t *server, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == -1) {
        return 0;
    }
    return peer.uid == 0 || peer.uid == geteuid() || peer.uid == server->options.uid;
}


static void set_accepting(moe_server_t *server, int accepting)
{
    struct epoll_event event = {
        .events = accepting ? EPOLLIN : 0,
        .data.ptr = &server->options.listen_fd
    };

    if (server->accepting != accepting) {
        epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->options.listen_fd, &event);
        server->accepting = accepting;
    }
}


static void accept_connections(moe_server_t *server)
{
    moe_connection_t *connection;
    moe_error_t error;
    int fd;

    while (server->n_connections < CONNECTIONS_LIMIT) {
        fd = accept4(server->options.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd == -1 && (errno == EINTR || errno == ECONNABORTED)) {
            continue;
        }
        if (fd == -1 && errno == EAGAIN) {
            return;
        }
        if (fd == -1) {
            moe_log(server->options.log, MOE_LOG_ERR, "channel: accept: %s", strerror(errno));
            break;
        }
        if (!is_trusted(server, fd)) {
            log_fault(server, "peer of another user");
            close(fd);
            continue;
        }
        connection = moe_connection_create(fd, server->epoll_fd, &error);
        if (connection == NULL) {
            moe_log(server->options.log, MOE_LOG_ERR, "channel: %s", error.message);
            break;
        }
        connection->server = server;
        connection->next = server->connections;
        if (connection->next) {
            connection->next->previous = connection;
        }
        server->connections = connection;
        server->n_connections++;
    }
    /* Too many, or out of something: the heartbeat tries again. */
    set_accepting(server, 0);
}


static void send_state(moe_connection_t *connection, const moe_state_t *state)
{
    moe_buffer_t *out = moe_connection_lock(connection);
    moe_error_t error;

    if (out) {
        moe_connection_unlock(connection, moe_state_encode(out, state, &error) != 0);
    }
    moe_connection_flush(connection);
}


static void send_failure(moe_connection_t *connection, uint64_t id, const moe_error_t *error)
{
    moe_failure_t failure = {
        .code = error->code,
        .message = { error->message, (uint32_t) strlen(error->message) }
    };

    on_failed(connection, id, &failure);
}


/* ---- frames; each returns NULL or what is wrong with the peer ---- */

static const char *on_hello(moe_server_t *server, moe_connection_t *connection,
                            const moe_frame_header_t *header, const uint8_t *payload)
{
    moe_state_t state;

    if (connection->greeted || header->size != MOE_CHANNEL_SECRET
        || CRYPTO_memcmp(payload, server->options.secret, MOE_CHANNEL_SECRET) != 0)
    {
        return "wrong greeting";
    }
    connection->greeted = 1;
    moe_engine_state(server->engine, &state);
    send_state(connection, &state);
    return NULL;
}


static const char *on_request(moe_server_t *server, moe_connection_t *connection,
                              const moe_frame_header_t *header, const uint8_t *payload)
{
    moe_request_t *request;
    moe_error_t error;

    request = moe_request_decode(payload, header->size, &error);
    if (request == NULL) {
        send_failure(connection, header->id, &error);
        return NULL;
    }
    /* Before submitting: the request may be over when submit returns. */
    moe_connection_hold(connection);
    if (moe_engine_submit(server->engine, connection, header->id, request, &error) != 0) {
        moe_connection_drop(connection);
        free(request);
        if (error.code == MOE_INVALID) {
            return "request id in use";
        }
        send_failure(connection, header->id, &error);
    }
    return NULL;
}


static const char *on_credit(moe_server_t *server, moe_connection_t *connection,
                             const moe_frame_header_t *header, const uint8_t *payload)
{
    uint32_t tokens;

    if (moe_credit_decode(payload, header->size, &tokens) != 0) {
        return "broken credit";
    }
    moe_engine_credit(server->engine, connection, header->id, tokens);
    return NULL;
}


static const char *on_cancel(moe_server_t *server, moe_connection_t *connection,
                             const moe_frame_header_t *header, const uint8_t *payload)
{
    if (header->size != 0) {
        return "broken cancellation";
    }
    moe_engine_cancel(server->engine, connection, header->id);
    return NULL;
}


static const char *on_stats(moe_server_t *server, moe_connection_t *connection,
                            const moe_frame_header_t *header, const uint8_t *payload)
{
    uint32_t wanted, layers = 0, experts = 0;
    uint64_t *load = NULL;
    moe_buffer_t *out;
    moe_stats_t stats;
    moe_error_t error;

    if (moe_stats_asked(payload, header->size, &wanted) != 0) {
        return "broken question for statistics";
    }
    moe_engine_stats(server->engine, &stats);
    if (wanted & MOE_STATS_EXPERTS) {
        load = moe_engine_expert_load(server->engine, &layers, &experts);
    }
    out = moe_connection_lock(connection);
    if (out) {
        finish_frame(connection, moe_stats_encode(out, header->id, &stats, load, layers, experts,
                                                  &error));
    }
    free(load);
    return NULL;
}


typedef const char *(*frame_handler_t)(moe_server_t *server, moe_connection_t *connection,
                                       const moe_frame_header_t *header, const uint8_t *payload);

static const frame_handler_t frame_handlers[] = {
    [MOE_FRAME_HELLO] = on_hello,
    [MOE_FRAME_REQUEST] = on_request,
    [MOE_FRAME_CREDIT] = on_credit,
    [MOE_FRAME_CANCEL] = on_cancel,
    [MOE_FRAME_STATS] = on_stats
};


static const char *handle_frame(moe_server_t *server, moe_connection_t *connection,
                                const moe_frame_header_t *header, const uint8_t *payload)
{
    if (header->type >= sizeof(frame_handlers) / sizeof(frame_handlers[0])
        || frame_handlers[header->type] == NULL)
    {
        return "unknown frame";
    }
    if (!connection->greeted && header->type != MOE_FRAME_HELLO) {
        return "no greeting";
    }
    return frame_handlers[header->type](server, connection, header, payload);
}


/* Handles the whole frames at the front of `in`. */
static const char *handle_input(moe_server_t *server, moe_connection_t *connection)
{
    moe_buffer_t *in = &connection->in;
    moe_frame_header_t header;
    const char *fault = NULL;
    moe_error_t error;
    size_t at = 0;
    int rc;

    while ((rc = moe_frame_parse(in->data + at, in->size - at, &header, &error)) == 1) {
        fault = handle_frame(server, connection, &header,
                             (const uint8_t *) in->data + at + MOE_FRAME_HEADER);
        if (fault) {
            return fault;
        }
        at += MOE_FRAME_HEADER + header.size;
    }
    if (rc == -1) {
        return "not a frame";
    }
    if (!connection->greeted && in->size - at >= HELLO_SIZE) {
        return "no greeting";
    }
    moe_buffer_consume(in, at);
    if (in->size == 0 && in->capacity > KEPT_CAPACITY) {
        moe_buffer_free(in);
    }
    return NULL;
}


static void serve_connection(moe_server_t *server, moe_connection_t *connection, uint32_t events)
{
    const char *fault;
    int rc;

    if (connection->fd == -1) {
        return;
    }
    if (events & EPOLLOUT) {
        moe_connection_flush(connection);
    }
    if (!(events & ~(uint32_t) EPOLLOUT)) {
        return;
    }
    rc = moe_connection_read(connection);
    if (rc == 1) {
        fault = handle_input(server, connection);
        if (fault) {
            log_fault(server, fault);
            rc = -1;
        }
    }
    if (rc == -1) {
        close_connection(server, connection);
    }
}


static void tell_state(moe_server_t *server)
{
    moe_connection_t *connection;
    moe_state_t state;

    moe_engine_state(server->engine, &state);
    server->told = state.code;
    for (connection = server->connections; connection; connection = connection->next) {
        /* A peer that has not read the last heartbeat needs no more of them. */
        if (connection->greeted && moe_connection_is_flushed(connection)) {
            send_state(connection, &state);
        }
    }
}


static void on_heartbeat(moe_server_t *server)
{
    uint64_t ticks, now = moe_now_ns();
    moe_connection_t *connection, *next;

    if (read(server->timer_fd, &ticks, sizeof(ticks)) == -1) {
        return;
    }
    for (connection = server->connections; connection; connection = next) {
        next = connection->next;
        if (!connection->greeted && now - connection->opened_ns > HELLO_TIMEOUT_NS) {
            log_fault(server, "no greeting in time");
            close_connection(server, connection);
        }
    }
    set_accepting(server, server->n_connections < CONNECTIONS_LIMIT);
    tell_state(server);
}


static void on_wake(moe_server_t *server)
{
    moe_state_t state;
    uint64_t count;

    while (read(server->wake_fd, &count, sizeof(count)) == -1 && errno == EINTR) {
    }
    if (atomic_load(&server->draining)) {
        moe_engine_drain(server->engine);
    }
    moe_engine_state(server->engine, &state);
    if (state.code != server->told) {
        tell_state(server);
    }
}


static void on_signal(moe_server_t *server)
{
    struct signalfd_siginfo info;

    if (read(server->options.signal_fd, &info, sizeof(info)) != sizeof(info)) {
        return;
    }
    switch (info.ssi_signo) {
    case SIGUSR1:
        if (moe_log_reopen(server->options.log) != 0) {
            moe_log(server->options.log, MOE_LOG_ERR, "the log cannot be reopened");
        }
        break;
    case SIGQUIT:
        moe_log(server->options.log, MOE_LOG_NOTICE, "draining");
        moe_server_stop(server, 1);
        break;
    default:
        moe_log(server->options.log, MOE_LOG_NOTICE, "terminating");
        moe_server_stop(server, 0);
    }
}


static void dispatch(moe_server_t *server, const struct epoll_event *event)
{
    void *what = event->data.ptr;

    if (what == &server->wake_fd) {
        on_wake(server);
    } else if (what == &server->timer_fd) {
        on_heartbeat(server);
    } else if (what == &server->options.signal_fd) {
        on_signal(server);
    } else if (what == &server->options.listen_fd) {
        accept_connections(server);
    } else {
        serve_connection(server, what, event->events);
    }
}


static int is_drained(moe_server_t *server)
{
    moe_connection_t *connection;

    if (!atomic_load(&server->draining) || moe_engine_alive(server->engine) > 0) {
        return 0;
    }
    for (connection = server->connections; connection; connection = connection->next) {
        if (!moe_connection_is_flushed(connection)) {
            return 0;
        }
    }
    return 1;
}


moe_server_end_t moe_server_run(moe_server_t *server, moe_engine_t *engine)
{
    moe_server_end_t end = MOE_SERVER_TERMINATED;
    struct epoll_event events[EVENTS_AT_ONCE];
    moe_error_t reason;
    int n;

    server->engine = engine;
    server->told = MOE_STATE_LOADING;
    while (!atomic_load(&server->terminating)) {
        if (moe_engine_lost(engine, &reason) != 0) {
            end = MOE_SERVER_LOST;
            break;
        }
        if (is_drained(server)) {
            end = MOE_SERVER_DRAINED;
            break;
        }
        n = epoll_wait(server->epoll_fd, events, EVENTS_AT_ONCE, -1);
        if (n == -1 && errno != EINTR) {
            moe_log(server->options.log, MOE_LOG_ALERT, "epoll_wait: %s", strerror(errno));
            break;
        }
        for (int i = 0; i < n; i++) {
            dispatch(server, &events[i]);
        }
        flush_dirty(server);
        drop_closed(server);
    }
    while (server->connections) {
        close_connection(server, server->connections);
    }
    drop_closed(server);
    return end;
}
