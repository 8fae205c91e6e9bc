/* The engine's socket, from the side of an nginx worker: good ones, broken ones, hostile ones. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/serve/server.h"

#define MODEL "conf/models/nginx-directives-moe"
#define QUESTION "Syntax: keepalive_timeout"
#define PATIENCE_MS 30000

typedef struct {
    int listen_fd;
    struct sockaddr_un address;
    socklen_t address_size;
    moe_server_options_t options;
    moe_server_t *server;
    moe_engine_t *engine;
    pthread_t thread;
    moe_server_end_t end;
} fixture_t;

/* A worker's connection and the frame read last. */
typedef struct {
    int fd;
    moe_buffer_t in;
    moe_frame_header_t header;
    uint8_t *payload;
} peer_t;


static void *run_server(void *argument)
{
    fixture_t *fixture = argument;

    fixture->end = moe_server_run(fixture->server, fixture->engine);
    return NULL;
}


static void start_engine(fixture_t *fixture, moe_engine_options_t engine)
{
    static unsigned number;
    moe_error_t error;

    memset(fixture, 0, sizeof(*fixture));
    fixture->address.sun_family = AF_UNIX;
    fixture->address_size = (socklen_t) (offsetof(struct sockaddr_un, sun_path) + 1
        + (size_t) snprintf(fixture->address.sun_path + 1, 64, "moe-server-test-%d-%u",
                            (int) getpid(), number++));
    fixture->listen_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(0, bind(fixture->listen_fd, (struct sockaddr *) &fixture->address,
                             fixture->address_size));
    assert_int_equal(0, listen(fixture->listen_fd, 16));
    fixture->options.listen_fd = fixture->listen_fd;
    fixture->options.signal_fd = -1;
    memset(fixture->options.secret, 0x5a, MOE_CHANNEL_SECRET);
    fixture->server = moe_server_create(&fixture->options, &error);
    assert_non_null(fixture->server);
    engine.context = 512;
    engine.credit = MOE_CHANNEL_CREDIT;
    engine.sink = &moe_server_sink;
    engine.sink_context = fixture->server;
    fixture->engine = moe_engine_create(&engine, &error);
    assert_non_null(fixture->engine);
    assert_int_equal(0, pthread_create(&fixture->thread, NULL, run_server, fixture));
}


static void start(fixture_t *fixture, const char *model)
{
    start_engine(fixture, (moe_engine_options_t) { .model = model, .threads = 1 });
}


static void stop(fixture_t *fixture, int drain, moe_server_end_t end)
{
    moe_server_stop(fixture->server, drain);
    pthread_join(fixture->thread, NULL);
    assert_int_equal(end, fixture->end);
    moe_engine_free(fixture->engine);
    moe_server_free(fixture->server);
    close(fixture->listen_fd);
}


static void dial(const fixture_t *fixture, peer_t *peer)
{
    memset(peer, 0, sizeof(*peer));
    peer->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(0, connect(peer->fd, (const struct sockaddr *) &fixture->address,
                                fixture->address_size));
}


static void hang_up(peer_t *peer)
{
    close(peer->fd);
    moe_buffer_free(&peer->in);
}


static void say(const peer_t *peer, const void *data, size_t size)
{
    assert_int_equal(size, send(peer->fd, data, size, MSG_NOSIGNAL));
}


/* Reads a frame.  1, or 0 when the server has closed the connection. */
static int hear(peer_t *peer)
{
    struct pollfd readable = { .fd = peer->fd, .events = POLLIN };
    moe_error_t error;

    if (peer->payload) {
        moe_buffer_consume(&peer->in, MOE_FRAME_HEADER + peer->header.size);
        peer->payload = NULL;
    }
    while (peer->in.size == 0
           || moe_frame_parse(peer->in.data, peer->in.size, &peer->header, &error) == 0)
    {
        ssize_t n;

        assert_int_equal(1, poll(&readable, 1, PATIENCE_MS));
        assert_int_equal(0, moe_buffer_reserve(&peer->in, 65536, &error));
        n = recv(peer->fd, peer->in.data + peer->in.size, 65536, 0);
        if (n == 0 || (n == -1 && errno == ECONNRESET)) {
            return 0;
        }
        assert_true(n > 0);
        peer->in.size += (size_t) n;
    }
    peer->payload = (uint8_t *) peer->in.data + MOE_FRAME_HEADER;
    return 1;
}


/* Reads on to a frame of this type for this id; an error is skipped for none. */
static void expect(peer_t *peer, moe_frame_type_t type, uint64_t id)
{
    do {
        assert_int_equal(1, hear(peer));
        assert_true(peer->header.type == type || peer->header.type != MOE_FRAME_ERROR);
    } while (peer->header.type != type || peer->header.id != id);
}


static double milliseconds_since(const struct timespec *before)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double) (now.tv_sec - before->tv_sec) * 1e3
           + (double) (now.tv_nsec - before->tv_nsec) * 1e-6;
}


static void expect_closed(peer_t *peer)
{
    while (hear(peer)) {
        assert_int_equal(MOE_FRAME_STATE, peer->header.type);
    }
}


static void write_hello(moe_buffer_t *out, uint8_t byte, size_t size)
{
    uint8_t secret[64];
    moe_error_t error;
    size_t at;

    memset(secret, byte, sizeof(secret));
    assert_int_equal(0, moe_frame_begin(out, MOE_FRAME_HELLO, 0, &at, &error));
    assert_int_equal(0, moe_buffer_append(out, secret, size, &error));
    moe_frame_end(out, at);
}


static moe_request_t long_request(uint32_t max_tokens)
{
    moe_request_t request;

    moe_request_defaults(&request);
    request.prompt = (moe_string_t) { QUESTION, sizeof(QUESTION) - 1 };
    request.given = MOE_GIVEN_MAX_TOKENS;
    request.max_tokens = max_tokens;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    return request;
}


static void write_request(moe_buffer_t *out, uint64_t id, uint32_t max_tokens)
{
    moe_request_t request = long_request(max_tokens);
    moe_error_t error;

    assert_int_equal(0, moe_request_encode(out, id, &request, &error));
}


static void send_buffer(const peer_t *peer, moe_buffer_t *out)
{
    say(peer, out->data, out->size);
    moe_buffer_free(out);
}


static void send_request(const peer_t *peer, uint64_t id, uint32_t max_tokens)
{
    moe_buffer_t out = { .limit = 0 };

    write_request(&out, id, max_tokens);
    send_buffer(peer, &out);
}


static void send_empty(const peer_t *peer, moe_frame_type_t type, uint64_t id)
{
    moe_buffer_t out = { .limit = 0 };
    moe_error_t error;

    assert_int_equal(0, moe_frame_empty(&out, type, id, &error));
    send_buffer(peer, &out);
}


/* A greeted connection to an engine whose model is loaded. */
static void join(const fixture_t *fixture, peer_t *peer)
{
    moe_buffer_t out = { .limit = 0 };
    moe_state_t state;

    dial(fixture, peer);
    write_hello(&out, 0x5a, MOE_CHANNEL_SECRET);
    send_buffer(peer, &out);
    do {
        expect(peer, MOE_FRAME_STATE, 0);
        assert_int_equal(0, moe_state_decode(peer->payload, peer->header.size, &state));
        assert_int_not_equal(MOE_STATE_FAILED, state.code);
    } while (state.code == MOE_STATE_LOADING);
}


static void ask_stats_and(peer_t *peer, uint32_t wanted, moe_stats_t *stats,
                          moe_expert_load_t *load)
{
    moe_buffer_t out = { .limit = 0 };
    moe_error_t error;

    assert_int_equal(0, moe_stats_ask(&out, 77, wanted, &error));
    send_buffer(peer, &out);
    expect(peer, MOE_FRAME_STATS_REPLY, 77);
    assert_int_equal(0, moe_stats_decode(peer->payload, peer->header.size, stats, load));
}


static void ask_stats(peer_t *peer, moe_stats_t *stats)
{
    moe_expert_load_t load;

    ask_stats_and(peer, 0, stats, &load);
    assert_int_equal(0, load.layers * load.experts);
}


/* Each row went to four experts in every layer but the first, which is dense. */
static void check_expert_load(peer_t *peer)
{
    moe_expert_load_t load;
    moe_stats_t stats;

    ask_stats_and(peer, MOE_STATS_EXPERTS, &stats, &load);
    assert_int_equal(4, load.layers);
    assert_int_equal(16, load.experts);
    for (size_t layer = 0; layer < load.layers; layer++) {
        uint64_t rows = 0;

        for (size_t expert = 0; expert < load.experts; expert++) {
            rows += moe_count_at(load.counts, layer * load.experts + expert);
        }
        assert_int_equal(layer ? 4 * stats.step_rows : 0, rows);
    }
}


/* Until nothing runs, nothing waits and no block is taken. */
static void expect_idle(peer_t *peer, moe_stats_t *stats)
{
    for (unsigned i = 0; i < 1000; i++) {
        ask_stats(peer, stats);
        if (stats->running + stats->waiting + stats->blocks_used == 0) {
            return;
        }
        nanosleep(&(struct timespec) { .tv_nsec = 5000000 }, NULL);
    }
    fail_msg("sequences or blocks are left");
}


/* Reads TOKENS of one request until `n` were read; returns them all when DONE came first. */
static uint32_t read_tokens(peer_t *peer, uint64_t id, uint32_t n, uint32_t *ids)
{
    uint32_t count = 0;

    while (count < n && hear(peer) && peer->header.type != MOE_FRAME_DONE) {
        moe_tokens_t tokens;

        if (peer->header.type == MOE_FRAME_TOKENS && peer->header.id == id) {
            assert_int_equal(0, moe_tokens_decode(peer->payload, peer->header.size, &tokens));
            for (uint32_t i = 0; i < tokens.n_ids; i++) {
                ids[count++] = moe_id_at(tokens.ids, i);
            }
        }
    }
    return count;
}


static void test_greeting(void **state)
{
    static const struct {
        uint8_t byte;
        size_t size;
    } greetings[] = { { 0x5b, 32 }, { 0x5a, 31 }, { 0x5a, 33 }, { 0x5a, 0 } };
    moe_buffer_t out = { .limit = 0 };
    struct timespec before;
    fixture_t fixture;
    peer_t peer, good;
    uint8_t garbage[4096];

    start(&fixture, MODEL);
    join(&fixture, &good);
    for (size_t i = 0; i < sizeof(greetings) / sizeof(greetings[0]); i++) {
        dial(&fixture, &peer);
        write_hello(&out, greetings[i].byte, greetings[i].size);
        send_buffer(&peer, &out);
        expect_closed(&peer);
        hang_up(&peer);
    }
    dial(&fixture, &peer);                      /* anything before the greeting */
    send_request(&peer, 1, 5);
    expect_closed(&peer);
    hang_up(&peer);

    dial(&fixture, &peer);                      /* a frame that will never be whole */
    write_hello(&out, 0x5a, 32);
    out.data[2] = 1;                            /* 65,568 bytes of greeting */
    say(&peer, out.data, out.size);
    moe_buffer_free(&out);
    clock_gettime(CLOCK_MONOTONIC, &before);
    expect_closed(&peer);
    assert_true(milliseconds_since(&before) < 4000);    /* not only when its time is up */
    hang_up(&peer);

    dial(&fixture, &peer);
    memset(garbage, 0xee, sizeof(garbage));
    say(&peer, garbage, sizeof(garbage));
    expect_closed(&peer);
    hang_up(&peer);

    dial(&fixture, &peer);                      /* goes away in the middle of its greeting */
    say(&peer, "\x20\0\0\0\1", 5);
    hang_up(&peer);

    join(&fixture, &peer);                      /* twice */
    write_hello(&out, 0x5a, 32);
    send_buffer(&peer, &out);
    expect_closed(&peer);
    hang_up(&peer);

    send_request(&good, 3, 5);
    expect(&good, MOE_FRAME_DONE, 3);
    hang_up(&good);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


/* After the greeting: each of these ends the connection and its requests, nobody else's. */
static void test_broken_frames(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
    } frames[] = {
        { "\xff\xff\xff\xff\x02\0\4\0\0\0\0\0\0\0\0\0", 16 },       /* 4 GiB */
        { "\x01\0\0\x08\x02\0\4\0\0\0\0\0\0\0\0\0", 16 },           /* 128 MiB + 1 */
        { "\0\0\0\0\x02\0\5\0\0\0\0\0\0\0\0\0", 16 },               /* version */
        { "\0\0\0\0\x63\0\4\0\0\0\0\0\0\0\0\0", 16 },               /* unknown type */
        { "\0\0\0\0\0\0\4\0\0\0\0\0\0\0\0\0", 16 },
        { "\0\0\0\0\x40\0\4\0\0\0\0\0\0\0\0\0", 16 },               /* the engine's own frame */
        { "\1\0\0\0\4\0\4\0\0\0\0\0\0\0\0\0x", 17 },                /* CANCEL with a payload */
        { "\1\0\0\0\3\0\4\0\0\0\0\0\0\0\0\0x", 17 },                /* CREDIT of one byte */
        { "\1\0\0\0\5\0\4\0\0\0\0\0\0\0\0\0x", 17 }                 /* STATS of one byte */
    };
    fixture_t fixture;
    peer_t peer, good;
    moe_stats_t stats;
    uint32_t ids[8];

    start(&fixture, MODEL);
    join(&fixture, &good);
    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        join(&fixture, &peer);
        send_request(&peer, 1, 400);
        assert_int_equal(2, read_tokens(&peer, 1, 2, ids));
        say(&peer, frames[i].bytes, frames[i].size);
        while (hear(&peer)) {
            assert_int_not_equal(MOE_FRAME_DONE, peer.header.type);
        }
        hang_up(&peer);
        expect_idle(&good, &stats);
        assert_int_equal(i + 1, stats.finished_cancelled);
    }
    join(&fixture, &peer);                      /* an id that is in use */
    send_request(&peer, 1, 400);
    send_request(&peer, 1, 400);
    while (hear(&peer)) {
        assert_int_not_equal(MOE_FRAME_DONE, peer.header.type);
    }
    hang_up(&peer);
    expect_idle(&good, &stats);
    hang_up(&good);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


/* A payload that is no request harms only itself. */
static void test_broken_request(void **state)
{
    moe_buffer_t out = { .limit = 0 };
    moe_failure_t failure;
    fixture_t fixture;
    moe_stats_t stats;
    unsigned seed = 3;
    peer_t peer;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    for (unsigned i = 0; i < 500; i++) {
        write_request(&out, 100 + i, 1);
        for (unsigned j = 0; j < 3; j++) {
            size_t at = MOE_FRAME_HEADER
                        + (size_t) rand_r(&seed) % (out.size - MOE_FRAME_HEADER);

            out.data[at] = (char) rand_r(&seed);
        }
        send_buffer(&peer, &out);
        do {
            assert_int_equal(1, hear(&peer));
        } while (peer.header.id != 100 + i || peer.header.type == MOE_FRAME_ADMITTED
                 || peer.header.type == MOE_FRAME_STARTED);
        if (peer.header.type == MOE_FRAME_ERROR) {
            assert_int_equal(0, moe_failure_decode(peer.payload, peer.header.size, &failure));
            assert_true(failure.code == MOE_INVALID || failure.code == MOE_TOO_LONG);
        } else if (peer.header.type == MOE_FRAME_TOKENS) {
            send_empty(&peer, MOE_FRAME_CANCEL, 100 + i);
        }
    }
    expect_idle(&peer, &stats);
    hang_up(&peer);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


/* Frames in any pieces, several in one. */
/* The largest frame, with others right behind it: it is wrong, but costs nobody else anything. */
static void test_largest_frame(void **state)
{
    enum { BEHIND = 65536 };
    moe_buffer_t out = { .limit = 0 };
    fixture_t fixture;
    peer_t peer;
    moe_error_t error;
    size_t at;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    assert_int_equal(0, moe_frame_begin(&out, MOE_FRAME_REQUEST, 1, &at, &error));
    assert_int_equal(0, moe_buffer_reserve(&out, MOE_FRAME_LIMIT, &error));
    memset(out.data + out.size, 0xee, MOE_FRAME_LIMIT);
    out.size += MOE_FRAME_LIMIT;
    moe_frame_end(&out, at);
    for (unsigned i = 0; i < BEHIND; i++) {
        assert_int_equal(0, moe_frame_empty(&out, MOE_FRAME_CANCEL, 2, &error));
    }
    write_request(&out, 3, 5);
    send_buffer(&peer, &out);
    do {
        assert_int_equal(1, hear(&peer));
    } while (peer.header.type != MOE_FRAME_ERROR);
    assert_int_equal(1, peer.header.id);
    expect(&peer, MOE_FRAME_DONE, 3);
    hang_up(&peer);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


static void test_pieces(void **state)
{
    moe_buffer_t out = { .limit = 0 };
    uint32_t whole[32], pieces[32];
    fixture_t fixture;
    moe_stats_t stats;
    peer_t peer;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    send_request(&peer, 1, 20);
    assert_int_equal(20, read_tokens(&peer, 1, 32, whole));
    write_request(&out, 2, 20);
    for (size_t i = 0; i < out.size; i++) {
        say(&peer, out.data + i, 1);
        if (i % 16 == 0) {
            nanosleep(&(struct timespec) { .tv_nsec = 1000000 }, NULL);
        }
    }
    assert_int_equal(20, read_tokens(&peer, 2, 32, pieces));
    assert_memory_equal(whole, pieces, sizeof(uint32_t) * 20);
    out.size = 0;
    for (uint64_t id = 10; id < 30; id++) {
        write_request(&out, id, 3);
    }
    send_buffer(&peer, &out);
    for (unsigned done = 0; done < 20;) {
        assert_int_equal(1, hear(&peer));
        done += peer.header.type == MOE_FRAME_DONE;
    }
    expect_idle(&peer, &stats);
    assert_int_equal(22, stats.finished_length);
    assert_int_equal(20 + 20 + 20 * 3, stats.generation_tokens);
    assert_int_equal(22, stats.ttft.count);
    assert_int_equal(22, stats.e2e.count);
    assert_int_equal(100 - 22, stats.itl.count);
    check_expert_load(&peer);
    hang_up(&peer);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


static void test_end_of_peer(void **state)
{
    uint32_t ids[128];
    fixture_t fixture;
    moe_stats_t stats;
    peer_t peer, other;

    start(&fixture, MODEL);
    join(&fixture, &other);
    for (unsigned round = 0; round < 5; round++) {
        join(&fixture, &peer);
        for (uint64_t id = 1; id <= 8; id++) {
            send_request(&peer, id, 450);
        }
        if (round > 0) {
            assert_int_equal(round, read_tokens(&peer, 1, round, ids));
        }
        hang_up(&peer);
    }
    send_request(&other, 1, 50);
    assert_int_equal(50, read_tokens(&other, 1, 64, ids));
    expect_idle(&other, &stats);
    assert_int_equal(1, stats.finished_length);

    send_request(&other, 1, 450);               /* cancelled by name; the id is free again */
    assert_int_equal(2, read_tokens(&other, 1, 2, ids));
    send_empty(&other, MOE_FRAME_CANCEL, 1);
    send_empty(&other, MOE_FRAME_CANCEL, 12345);
    expect_idle(&other, &stats);
    send_request(&other, 1, 5);
    expect(&other, MOE_FRAME_STARTED, 1);
    hang_up(&other);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


static void test_credit(void **state)
{
    moe_buffer_t out = { .limit = 0 };
    uint32_t ids[512], paused, count;
    fixture_t fixture;
    moe_stats_t stats;
    moe_error_t error;
    peer_t peer, other;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    join(&fixture, &other);
    send_request(&peer, 1, 400);
    count = read_tokens(&peer, 1, MOE_CHANNEL_CREDIT, ids);
    assert_int_equal(MOE_CHANNEL_CREDIT, count);
    send_request(&other, 1, 50);                /* somebody else is not held up */
    assert_int_equal(50, read_tokens(&other, 1, 512, ids));
    ask_stats(&other, &stats);
    paused = (uint32_t) stats.generation_tokens - 50;
    assert_int_equal(MOE_CHANNEL_CREDIT, paused);
    assert_int_equal(1, stats.running);

    assert_int_equal(0, moe_credit_encode(&out, 1, 10, &error));
    send_buffer(&peer, &out);
    assert_int_equal(10, read_tokens(&peer, 1, 10, ids));
    assert_int_equal(0, moe_credit_encode(&out, 1, 1000, &error));
    send_buffer(&peer, &out);
    assert_int_equal(400 - 10 - MOE_CHANNEL_CREDIT, read_tokens(&peer, 1, 512, ids));
    expect_idle(&other, &stats);
    hang_up(&peer);
    hang_up(&other);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


/* A peer that stops reading: its frames wait, the others get theirs; nothing is lost. */
static void test_stalled_peer(void **state)
{
    enum { REQUESTS = 60 };
    int small = 4096;
    uint32_t ids[64];
    moe_request_t request = long_request(MOE_CHANNEL_CREDIT);
    moe_buffer_t out = { .limit = 0 };
    unsigned done = 0, tokens = 0;
    fixture_t fixture;
    moe_stats_t stats;
    moe_error_t error;
    peer_t peer, other;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    join(&fixture, &other);
    setsockopt(peer.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    request.logprobs = 20;
    for (uint64_t id = 0; id < REQUESTS; id++) {
        assert_int_equal(0, moe_request_encode(&out, id, &request, &error));
    }
    send_buffer(&peer, &out);
    send_request(&other, 1, 50);
    assert_int_equal(50, read_tokens(&other, 1, 64, ids));
    expect_idle(&other, &stats);                /* all is generated, most of it not yet sent */
    while (done < REQUESTS) {
        assert_int_equal(1, hear(&peer));
        tokens += peer.header.type == MOE_FRAME_TOKENS;
        done += peer.header.type == MOE_FRAME_DONE;
    }
    assert_int_equal(REQUESTS * MOE_CHANNEL_CREDIT, tokens);
    hang_up(&peer);
    hang_up(&other);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


/* A peer that writes more than the queue holds and more than both sockets take before it reads
 * anything: every request is answered, one way or the other. */
static void test_both_full(void **state)
{
    enum { REQUESTS = 4000 };
    int small = 4096;
    moe_request_t request = long_request(20);
    moe_buffer_t out = { .limit = 0 };
    unsigned done = 0, refused = 0;
    fixture_t fixture;
    moe_stats_t stats;
    moe_error_t error;
    peer_t peer;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    setsockopt(peer.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    setsockopt(peer.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    request.logprobs = 20;
    for (uint64_t id = 0; id < REQUESTS; id++) {
        assert_int_equal(0, moe_request_encode(&out, id, &request, &error));
    }
    send_buffer(&peer, &out);
    while (done + refused < REQUESTS) {
        assert_int_equal(1, hear(&peer));
        done += peer.header.type == MOE_FRAME_DONE;
        refused += peer.header.type == MOE_FRAME_ERROR;
    }
    assert_true(done >= 64 + 256 && refused > 0);
    expect_idle(&peer, &stats);
    hang_up(&peer);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


static void test_heartbeat(void **state)
{
    struct timespec before;
    fixture_t fixture;
    peer_t peer;
    double ms;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    expect(&peer, MOE_FRAME_STATE, 0);
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (unsigned i = 0; i < 4; i++) {
        expect(&peer, MOE_FRAME_STATE, 0);
    }
    ms = milliseconds_since(&before);
    assert_true(ms > 2 * MOE_CHANNEL_HEARTBEAT_MS && ms < 40 * MOE_CHANNEL_HEARTBEAT_MS);
    hang_up(&peer);
    stop(&fixture, 0, MOE_SERVER_TERMINATED);
}


static void test_drain(void **state)
{
    moe_failure_t failure;
    fixture_t fixture;
    moe_state_t snapshot;
    uint32_t ids[256];
    peer_t peer;

    start(&fixture, MODEL);
    join(&fixture, &peer);
    send_request(&peer, 1, MOE_CHANNEL_CREDIT);
    assert_int_equal(1, read_tokens(&peer, 1, 1, ids));
    moe_server_stop(fixture.server, 1);
    do {
        assert_int_equal(1, hear(&peer));
        snapshot.code = 0;
        if (peer.header.type == MOE_FRAME_STATE) {
            assert_int_equal(0, moe_state_decode(peer.payload, peer.header.size, &snapshot));
        }
    } while (snapshot.code != MOE_STATE_DRAINING);
    send_request(&peer, 2, MOE_CHANNEL_CREDIT);
    do {
        assert_int_equal(1, hear(&peer));
    } while (peer.header.type != MOE_FRAME_ERROR && peer.header.type != MOE_FRAME_DONE);
    if (peer.header.type == MOE_FRAME_ERROR) {
        assert_int_equal(2, peer.header.id);
        assert_int_equal(0, moe_failure_decode(peer.payload, peer.header.size, &failure));
        assert_int_equal(MOE_UNAVAILABLE, failure.code);
        expect(&peer, MOE_FRAME_DONE, 1);
    }
    expect_closed(&peer);
    hang_up(&peer);
    stop(&fixture, 1, MOE_SERVER_DRAINED);
}


static void test_failed_model(void **state)
{
    moe_failure_t failure;
    fixture_t fixture;
    moe_state_t snapshot;
    moe_buffer_t out = { .limit = 0 };
    peer_t peer;

    start(&fixture, "/nonexistent");
    dial(&fixture, &peer);
    write_hello(&out, 0x5a, MOE_CHANNEL_SECRET);
    send_buffer(&peer, &out);
    do {
        expect(&peer, MOE_FRAME_STATE, 0);
        assert_int_equal(0, moe_state_decode(peer.payload, peer.header.size, &snapshot));
    } while (snapshot.code == MOE_STATE_LOADING);
    assert_int_equal(MOE_STATE_FAILED, snapshot.code);
    assert_non_null(memmem(snapshot.message.data, snapshot.message.size, "/nonexistent", 12));
    send_request(&peer, 1, 5);
    expect(&peer, MOE_FRAME_ERROR, 1);
    assert_int_equal(0, moe_failure_decode(peer.payload, peer.header.size, &failure));
    assert_int_equal(MOE_UNAVAILABLE, failure.code);
    assert_non_null(memmem(failure.message.data, failure.message.size, "/nonexistent", 12));
    hang_up(&peer);
    stop(&fixture, 1, MOE_SERVER_DRAINED);
}


/* The peer sees the end of the connection and no failure: its requests are for the next engine. */
static void test_lost_rank(void **state)
{
    const moe_engine_options_t options = {
        .model = MODEL, .threads = 2, .ranks = 2, .fault = { MOE_FAULT_EXIT, 1, 10 }
    };
    fixture_t fixture;
    peer_t peer;

    start_engine(&fixture, options);
    join(&fixture, &peer);
    send_request(&peer, 1, MOE_CHANNEL_CREDIT);
    while (hear(&peer)) {
        assert_int_not_equal(MOE_FRAME_ERROR, peer.header.type);
        assert_int_not_equal(MOE_FRAME_DONE, peer.header.type);
    }
    hang_up(&peer);
    stop(&fixture, 0, MOE_SERVER_LOST);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greeting),
        cmocka_unit_test(test_broken_frames),
        cmocka_unit_test(test_broken_request),
        cmocka_unit_test(test_largest_frame),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_end_of_peer),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_stalled_peer),
        cmocka_unit_test(test_both_full),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_failed_model),
        cmocka_unit_test(test_lost_rank)
    };

    return cmocka_run_group_tests_name("server", tests, NULL, NULL);
}
