/*
 * One epoll loop.  Clients that have nothing to do are in a list; between two rounds of events the
 * requests that are due are given to them.  In a closed loop one is due whenever a client is free;
 * in an open loop when its time has come, and it waits if none is free.
 */

#include "t/bench/load/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "engine/core/clock.h"
#include "t/bench/load/client.h"

#define EVENTS_AT_ONCE 256
#define TICK_NS UINT64_C(100000000)         /* how often deadlines and pauses are looked at */
#define PAUSE_NS UINT64_C(100000000)        /* of a closed loop's client after a failure, */
#define PAUSE_LIMIT_NS UINT64_C(1000000000) /* as the server asks, but at most */

typedef struct {
    load_run_t *run;
    int epoll_fd, timer_fd;
    uint64_t timer_ns;              /* what the timer is set to */
    uint64_t now_ns;
    uint64_t stop_ns;               /* no request is sent from here on */
    uint64_t tick_ns, due_ns;
    uint64_t next;                  /* request of an open loop that comes next */
    load_client_t **clients;
    uint32_t n_clients, busy;
    load_client_t *idle, *paused;
    moe_buffer_t body;
    moe_error_t *error;             /* of what ends the run */
    int broken;
} loop_t;


static int is_measured(const loop_t *loop, uint64_t time)
{
    return time >= loop->run->start_ns && time < loop->stop_ns;
}


static load_record_t *record_of(const loop_t *loop, const load_client_t *client)
{
    return &loop->run->records[client->record];
}


static void on_piece(load_client_t *client)
{
    loop_t *loop = client->context;
    load_record_t *record = record_of(loop, client);
    uint64_t now = loop->now_ns;

    if (record->pieces++ == 0) {
        record->first_ns = now;
    } else {
        uint64_t gap = now - record->last_ns;

        record->longest_ns = gap > record->longest_ns ? gap : record->longest_ns;
        if (is_measured(loop, now)) {
            load_samples_add(&loop->run->itl, gap);
        }
    }
    record->last_ns = now;
    loop->run->pieces += is_measured(loop, now);
}


/* ---- what became of a request ---- */

static void count_failure(load_run_t *run, const load_client_t *client)
{
    unsigned i = 0;

    run->failed++;
    while (i < run->n_failures && strcmp(run->failures[i].kind, client->kind) != 0) {
        i++;
    }
    if (i == LOAD_KINDS) {
        i--;
    } else if (i == run->n_failures) {
        snprintf(run->failures[i].kind, sizeof(run->failures[i].kind), "%s",
                 i == LOAD_KINDS - 1 ? "other" : client->kind);
        snprintf(run->failures[i].message, sizeof(run->failures[i].message), "%s",
                 client->error.message);
        run->n_failures++;
    }
    run->failures[i].count++;
}


static double mean_gap(const load_record_t *record, uint64_t tokens)
{
    return tokens > 1 ? (double) (record->last_ns - record->first_ns) / (double) (tokens - 1) : 0.0;
}


static int is_good(const load_options_t *options, const load_record_t *record, double tpot_ns)
{
    return (options->ttft_ms == 0.0
            || (double) (record->first_ns - record->due_ns) <= options->ttft_ms * 1e6)
           && (options->itl_ms == 0.0 || (double) record->longest_ns <= options->itl_ms * 1e6)
           && (options->tpot_ms == 0.0 || tpot_ns <= options->tpot_ms * 1e6);
}


static void count_success(loop_t *loop, load_client_t *client)
{
    const load_answer_t *answer = &client->answer;
    load_record_t *record = record_of(loop, client);
    load_run_t *run = loop->run;
    uint64_t tokens = answer->has_usage ? answer->completion_tokens : record->pieces;
    double tpot_ns = mean_gap(record, tokens);

    record->succeeded = 1;
    run->all_pieces += record->pieces;
    run->all_tokens += tokens;
    run->prompt_tokens += answer->prompt_tokens;
    if (is_measured(loop, loop->now_ns)) {
        run->answers++;
        run->good += is_good(run->options, record, tpot_ns);
    }
    if (record->due_ns < run->start_ns) {
        return;
    }
    load_samples_add(&run->e2e, loop->now_ns - record->due_ns);
    if (record->pieces > 0) {
        load_samples_add(&run->ttft, record->first_ns - record->due_ns);
    }
    if (tokens > 1 && record->pieces > 1) {
        load_samples_add(&run->tpot, (uint64_t) tpot_ns);
    }
}


/* Keeps the text for the comparison; the client needs none until its next request. */
static void keep_text(loop_t *loop, load_client_t *client)
{
    load_record_t *record = record_of(loop, client);
    moe_buffer_t *text = &client->answer.text;

    memcpy(record->finish, client->answer.finish, sizeof(record->finish));
    record->text_size = text->size;
    record->text = malloc(text->size + 1);
    if (record->text == NULL) {
        loop->broken = moe_fail(loop->error, MOE_LIMIT, "out of memory for an answer");
        return;
    }
    if (text->size > 0) {
        memcpy(record->text, text->data, text->size);
    }
    record->text[text->size] = '\0';
}


static void put_idle(loop_t *loop, load_client_t *client)
{
    client->next = loop->idle;
    loop->idle = client;
}


static void put_paused(loop_t *loop, load_client_t *client)
{
    uint64_t pause = client->retry_after ? client->retry_after * UINT64_C(1000000000) : PAUSE_NS;

    client->resume_ns = loop->now_ns + (pause < PAUSE_LIMIT_NS ? pause : PAUSE_LIMIT_NS);
    client->next = loop->paused;
    loop->paused = client;
}


static void watch(loop_t *loop, load_client_t *client)
{
    uint32_t wants = load_client_wants(client);
    struct epoll_event event = { .events = wants, .data.ptr = client };

    if (wants != client->watched) {
        int operation = client->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

        if (epoll_ctl(loop->epoll_fd, operation, client->transport.fd, &event) == -1) {
            loop->broken = moe_fail(loop->error, MOE_SYSTEM, "epoll_ctl: %s", strerror(errno));
        }
        client->watched = wants;
    }
}


/* Takes the result of one of the client's functions. */
static void settle(loop_t *loop, load_client_t *client, load_result_t result)
{
    watch(loop, client);
    if (result == LOAD_BUSY) {
        return;
    }
    loop->busy--;
    if (client->answer.keep_text) {
        keep_text(loop, client);
    }
    if (result == LOAD_SUCCEEDED) {
        count_success(loop, client);
    } else {
        count_failure(loop->run, client);
    }
    if (result == LOAD_FAILED && loop->run->options->rate == 0.0) {
        put_paused(loop, client);
    } else {
        put_idle(loop, client);
    }
}


/* ---- requests ---- */

static load_record_t *new_record(loop_t *loop)
{
    load_run_t *run = loop->run;
    size_t n = run->n_records;

    if ((n & (n - 1)) == 0) {
        load_record_t *more = realloc(run->records, (n ? 2 * n : 1) * sizeof(*more));

        if (more == NULL) {
            loop->broken = moe_fail(loop->error, MOE_LIMIT, "out of memory for requests");
            return NULL;
        }
        run->records = more;
    }
    run->records[n] = (load_record_t) { .number = run->numbers ? run->numbers[n] : n };
    run->n_records++;
    return &run->records[n];
}


/* FNV-1a: tells equal bodies. */
static uint64_t hash(const char *data, size_t size)
{
    uint64_t value = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < size; i++) {
        value = (value ^ (unsigned char) data[i]) * UINT64_C(0x100000001b3);
    }
    return value;
}


static int make_request(loop_t *loop, load_client_t *client, load_record_t *record)
{
    const load_options_t *options = loop->run->options;
    moe_buffer_t *request = &client->request;
    int bracket = strchr(options->host, ':') != NULL;
    char head[2048];
    int n;

    loop->body.size = 0;
    if (load_workload_body(loop->run->workload, record->number, &loop->body, loop->error) != 0) {
        return -1;
    }
    record->body_hash = hash(loop->body.data, loop->body.size);
    n = snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\n%s"
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n", options->path,
                 bracket ? "[" : "", options->host, bracket ? "]" : "", options->port,
                 options->reuse ? "" : "Connection: close\r\n", loop->body.size);
    request->size = 0;
    return moe_buffer_append(request, head, (size_t) n, loop->error)
           | moe_buffer_append(request, options->headers.data, options->headers.size, loop->error)
           | moe_buffer_append(request, "\r\n", 2, loop->error)
           | moe_buffer_append(request, loop->body.data, loop->body.size, loop->error);
}


static void send_request(loop_t *loop, load_client_t *client, uint64_t due_ns)
{
    load_record_t *record = new_record(loop);

    if (record == NULL || make_request(loop, client, record) != 0) {
        loop->broken = -1;
        return;
    }
    record->due_ns = due_ns;
    client->record = (size_t) (record - loop->run->records);
    client->deadline_ns = loop->now_ns + loop->run->options->timeout_ns;
    loop->busy++;
    if (due_ns >= loop->run->start_ns) {
        load_samples_add(&loop->run->late, loop->now_ns - due_ns);
    }
    settle(loop, client, load_client_start(client));
}


static load_client_t *new_client(loop_t *loop)
{
    load_client_t *client = calloc(1, sizeof(*client));

    if (client == NULL) {
        loop->broken = moe_fail(loop->error, MOE_LIMIT, "out of memory for a client");
        return NULL;
    }
    client->endpoint = loop->run->endpoint;
    client->reuse = loop->run->options->reuse;
    client->answer.keep_text = loop->run->options->verify;
    client->piece = on_piece;
    client->context = loop;
    loop->clients[loop->n_clients++] = client;
    return client;
}


static load_client_t *take_idle(loop_t *loop)
{
    load_client_t *client = loop->idle;

    if (client) {
        loop->idle = client->next;
        return client;
    }
    return loop->n_clients < loop->run->options->concurrency ? new_client(loop) : NULL;
}


/* Has everything been sent? */
static int is_over(const loop_t *loop)
{
    return loop->run->n_records >= loop->run->options->requests || loop->now_ns >= loop->stop_ns;
}


/* Sends what is due. */
static void send_due(loop_t *loop)
{
    const load_options_t *options = loop->run->options;
    load_client_t *client;

    while (!loop->broken && !is_over(loop) && (options->rate == 0.0 || loop->due_ns <= loop->now_ns)
           && (client = take_idle(loop)) != NULL)
    {
        send_request(loop, client, options->rate == 0.0 ? loop->now_ns : loop->due_ns);
        if (options->rate > 0.0) {
            loop->due_ns += load_workload_gap(loop->run->workload, loop->next++);
        }
    }
}


static void resume_paused(loop_t *loop)
{
    load_client_t **link = &loop->paused, *client;

    while ((client = *link) != NULL) {
        if (client->resume_ns <= loop->now_ns) {
            *link = client->next;
            put_idle(loop, client);
        } else {
            link = &client->next;
        }
    }
}


static void on_tick(loop_t *loop)
{
    for (uint32_t i = 0; i < loop->n_clients; i++) {
        load_client_t *client = loop->clients[i];

        if (client->busy && client->deadline_ns <= loop->now_ns) {
            settle(loop, client, load_client_timeout(client));
        }
    }
    resume_paused(loop);
    loop->tick_ns = loop->now_ns + TICK_NS;
}


/* ---- the loop ---- */

static void set_timer(loop_t *loop)
{
    int waits_for_time = loop->run->options->rate > 0.0 && !is_over(loop)
                         && loop->due_ns > loop->now_ns;
    uint64_t at = waits_for_time && loop->due_ns < loop->tick_ns ? loop->due_ns : loop->tick_ns;
    struct itimerspec timer = {
        .it_value.tv_sec = (time_t) (at / 1000000000u),
        .it_value.tv_nsec = (long) (at % 1000000000u)
    };

    if (at != loop->timer_ns) {
        timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
        loop->timer_ns = at;
    }
}


static void handle_event(loop_t *loop, const struct epoll_event *event)
{
    load_client_t *client = event->data.ptr;
    uint64_t ticks;

    loop->now_ns = moe_now_ns();
    if (client) {
        int readable = (event->events & ~(uint32_t) EPOLLOUT) != 0;

        settle(loop, client, load_client_drive(client, readable));
    } else if (read(loop->timer_fd, &ticks, sizeof(ticks)) == sizeof(ticks)) {
        loop->timer_ns = 0;
    }
}


static int run_loop(loop_t *loop)
{
    struct epoll_event events[EVENTS_AT_ONCE];

    while (!loop->broken) {
        int n;

        loop->now_ns = moe_now_ns();
        if (loop->now_ns >= loop->tick_ns) {
            on_tick(loop);
        }
        send_due(loop);
        if (*loop->run->interrupted || (is_over(loop) && loop->busy == 0)) {
            return 0;
        }
        set_timer(loop);
        n = epoll_wait(loop->epoll_fd, events, EVENTS_AT_ONCE, -1);
        if (n == -1 && errno != EINTR) {
            return moe_fail(loop->error, MOE_SYSTEM, "epoll_wait: %s", strerror(errno));
        }
        for (int i = 0; i < n; i++) {
            handle_event(loop, &events[i]);
        }
    }
    return -1;
}


static int open_loop(loop_t *loop)
{
    const load_options_t *options = loop->run->options;
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };

    loop->clients = calloc(options->concurrency, sizeof(load_client_t *));
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (loop->clients == NULL || loop->epoll_fd == -1 || loop->timer_fd == -1
        || epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, loop->timer_fd, &event) == -1)
    {
        return moe_fail(loop->error, MOE_SYSTEM, "the event loop cannot be set up: %s",
                        strerror(errno));
    }
    loop->now_ns = moe_now_ns();
    loop->run->start_ns = loop->now_ns + options->warm_up_ns;
    loop->stop_ns = options->duration_ns ? loop->now_ns + options->duration_ns : UINT64_MAX;
    loop->tick_ns = loop->now_ns + TICK_NS;
    loop->due_ns = loop->now_ns;
    return 0;
}


static void close_loop(loop_t *loop)
{
    for (uint32_t i = 0; i < loop->n_clients; i++) {
        loop->run->retried += loop->clients[i]->retried;
        load_client_free(loop->clients[i]);
        free(loop->clients[i]);
    }
    free(loop->clients);
    moe_buffer_free(&loop->body);
    if (loop->epoll_fd != -1) {
        close(loop->epoll_fd);
    }
    if (loop->timer_fd != -1) {
        close(loop->timer_fd);
    }
}


int load_run(load_run_t *run, moe_error_t *error)
{
    loop_t loop = { .run = run, .epoll_fd = -1, .timer_fd = -1, .error = error };
    int rc = open_loop(&loop);

    if (rc == 0) {
        rc = run_loop(&loop);
    }
    run->end_ns = loop.now_ns < loop.stop_ns ? loop.now_ns : loop.stop_ns;
    close_loop(&loop);
    return rc;
}


void load_run_free(load_run_t *run)
{
    for (size_t i = 0; i < run->n_records; i++) {
        free(run->records[i].text);
    }
    free(run->records);
    load_samples_free(&run->ttft);
    load_samples_free(&run->itl);
    load_samples_free(&run->tpot);
    load_samples_free(&run->e2e);
    load_samples_free(&run->late);
}
