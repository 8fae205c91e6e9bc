/*
 * The engine with the demo model, as tests use it: a sink that notes the answer of each request, and
 * bit-for-bit comparison of answers.
 */

#ifndef MOE_ANSWERS_H
#define MOE_ANSWERS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/serve/engine.h"

#define MODEL "conf/models/nginx-directives-moe"
#define CONTEXT 512u
#define LONGEST 2048u
#define QUESTION "Syntax: keepalive_timeout"

/* What the sink has seen of one request. */
typedef struct {
    uint32_t admitted;                  /* prompt tokens */
    int started, done, failed, released;
    char text[32768];
    size_t n_text;
    uint32_t ids[LONGEST];
    size_t text_ends[LONGEST];          /* n_text behind each id */
    uint32_t n_ids;
    moe_logprob_t logprobs[CONTEXT];
    uint32_t n_logprobs;
    moe_logprob_t prompt_logprobs[CONTEXT];
    uint32_t prompt_ids[CONTEXT];
    char prompt_text[8192];
    moe_started_t start;
    moe_done_t end;
    char stop[64];
    moe_error_code_t code;
    char field[32], message[512];
} answer_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;


static void on_admitted(void *client, uint64_t id, const moe_admitted_t *admitted)
{
    answer_t *answer = client;

    pthread_mutex_lock(&lock);
    assert_false(answer->admitted || answer->started || answer->failed);
    answer->admitted = admitted->prompt_tokens;
    pthread_mutex_unlock(&lock);
}


static void on_started(void *client, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs)
{
    answer_t *answer = client;

    pthread_mutex_lock(&lock);
    assert_false(answer->started || answer->done || answer->failed);
    assert_int_equal(answer->admitted, started->prompt_tokens);
    answer->started = 1;
    answer->start = *started;
    if (started->n_prompt_ids) {
        memcpy(answer->prompt_ids, prompt_ids, started->n_prompt_ids * sizeof(uint32_t));
    }
    if (started->n_logprobs) {
        memcpy(answer->prompt_logprobs, logprobs, started->n_logprobs * sizeof(*logprobs));
    }
    if (started->prompt_text.size) {
        memcpy(answer->prompt_text, started->prompt_text.data, started->prompt_text.size);
    }
    pthread_mutex_unlock(&lock);
}


/* What is not content goes to `text` too, behind what tells its kind. */
static void note_delta(answer_t *answer, moe_delta_t delta)
{
    static const char *const signs[] = { "", "", "\x01", "\x02" };

    answer->n_text += (size_t) sprintf(answer->text + answer->n_text, "%s%.*s%.*s%.*s",
                                       signs[delta.kind], (int) delta.id.size, delta.id.data,
                                       (int) delta.name.size, delta.name.data,
                                       (int) delta.text.size, delta.text.data);
}


static void on_tokens(void *client, uint64_t id, const moe_deltas_t *deltas, const uint32_t *ids,
                      uint32_t n_ids, const moe_logprob_t *logprobs)
{
    answer_t *answer = client;

    pthread_mutex_lock(&lock);
    assert_true(answer->started && !answer->done && n_ids == 1);
    for (uint32_t i = 0; i < deltas->count; i++) {
        note_delta(answer, moe_deltas_at(deltas, i));
    }
    answer->text_ends[answer->n_ids] = answer->n_text;
    answer->ids[answer->n_ids++] = ids[0];
    if (logprobs) {
        answer->logprobs[answer->n_logprobs++] = *logprobs;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}


static void on_done(void *client, uint64_t id, const moe_done_t *done)
{
    answer_t *answer = client;

    pthread_mutex_lock(&lock);
    assert_true(answer->started && !answer->done && !answer->failed);
    answer->done = 1;
    answer->end = *done;
    snprintf(answer->stop, sizeof(answer->stop), "%.*s", (int) done->stop.size, done->stop.data);
    pthread_mutex_unlock(&lock);
}


static void on_failed(void *client, uint64_t id, const moe_failure_t *failure)
{
    answer_t *answer = client;

    pthread_mutex_lock(&lock);
    assert_false(answer->done || answer->failed);
    answer->failed = 1;
    answer->code = failure->code;
    snprintf(answer->field, sizeof(answer->field), "%.*s", (int) failure->field.size,
             failure->field.data);
    snprintf(answer->message, sizeof(answer->message), "%.*s", (int) failure->message.size,
             failure->message.data);
    pthread_mutex_unlock(&lock);
}


static void on_released(void *client, uint64_t id)
{
    answer_t *answer = client;

    pthread_mutex_lock(&lock);
    assert_false(answer->released);
    answer->released = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}


static void on_context(void *context)
{
}


static const moe_sink_t sink = {
    on_admitted,
    on_started, on_tokens, on_done, on_failed, on_released, on_context, on_context
};


static moe_engine_t *new_engine(moe_engine_options_t options)
{
    moe_engine_t *engine;
    moe_error_t error;

    options.model = MODEL;
    options.context = options.context ? options.context : CONTEXT;
    options.threads = options.threads ? options.threads : 1;
    options.sink = &sink;
    engine = moe_engine_create(&options, &error);
    assert_non_null(engine);
    if (moe_engine_wait(engine, &error) != 0) {
        fail_msg("%s", error.message);
    }
    return engine;
}


static moe_request_t text_request(const char *prompt, uint32_t max_tokens)
{
    moe_request_t request;

    moe_request_defaults(&request);
    request.prompt.data = prompt;
    request.prompt.size = (uint32_t) strlen(prompt);
    request.given = MOE_GIVEN_MAX_TOKENS | MOE_GIVEN_TEMPERATURE;
    request.temperature = 0.0f;
    request.max_tokens = max_tokens;
    return request;
}


static int submit(moe_engine_t *engine, answer_t *answer, uint64_t id,
                  const moe_request_t *request, moe_error_t *error)
{
    moe_buffer_t frame = { .limit = 0 };
    moe_request_t *copy;
    int rc;

    memset(answer, 0, sizeof(*answer));
    assert_int_equal(0, moe_request_encode(&frame, id, request, error));
    copy = moe_request_decode(frame.data + MOE_FRAME_HEADER, frame.size - MOE_FRAME_HEADER, error);
    assert_non_null(copy);
    moe_buffer_free(&frame);
    rc = moe_engine_submit(engine, answer, id, copy, error);
    if (rc != 0) {
        free(copy);
    }
    return rc;
}


static void submit_ok(moe_engine_t *engine, answer_t *answer, uint64_t id,
                      const moe_request_t *request)
{
    moe_error_t error;

    if (submit(engine, answer, id, request, &error) != 0) {
        fail_msg("%s", error.message);
    }
}


/* Waits until so many tokens were seen or the request is over; bounded by 60 s. */
static void wait_tokens(answer_t *answer, uint32_t n_ids)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&lock);
    while (!answer->released && answer->n_ids < n_ids) {
        assert_int_equal(0, pthread_cond_timedwait(&changed, &lock, &until));
    }
    pthread_mutex_unlock(&lock);
}


static void ask(moe_engine_t *engine, answer_t *answer, const moe_request_t *request)
{
    submit_ok(engine, answer, 1, request);
    wait_tokens(answer, UINT32_MAX);
}


static void assert_idle(moe_engine_t *engine)
{
    moe_stats_t stats;

    for (unsigned i = 0; i < 1000; i++) {
        moe_engine_stats(engine, &stats);
        if (stats.blocks_used == 0) {
            break;
        }
        nanosleep(&(struct timespec) { .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(0, stats.blocks_used);
    assert_int_equal(0, stats.running);
    assert_int_equal(0, stats.waiting);
    assert_int_equal(0, moe_engine_alive(engine));
}


static int same_candidate(const moe_candidate_t *a, const moe_candidate_t *b)
{
    return a->id == b->id && memcmp(&a->logprob, &b->logprob, sizeof(float)) == 0;
}


static void assert_same_logprobs(const moe_logprob_t *a, const moe_logprob_t *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_true(same_candidate(&a[i].token, &b[i].token));
        assert_int_equal(a[i].n_top, b[i].n_top);
        for (uint32_t j = 0; j < a[i].n_top; j++) {
            assert_true(same_candidate(&a[i].top[j], &b[i].top[j]));
        }
    }
}


/* Bit for bit. */
static void assert_same(const answer_t *a, const answer_t *b)
{
    assert_int_equal(1, a->done);
    assert_int_equal(1, b->done);
    assert_int_equal(a->end.reason, b->end.reason);
    assert_string_equal(a->stop, b->stop);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->n_ids, b->n_ids);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof(uint32_t));
    assert_int_equal(a->n_logprobs, b->n_logprobs);
    assert_same_logprobs(a->logprobs, b->logprobs, a->n_logprobs);
    assert_int_equal(a->start.n_logprobs, b->start.n_logprobs);
    assert_same_logprobs(a->prompt_logprobs, b->prompt_logprobs, a->start.n_logprobs);
}

#endif
