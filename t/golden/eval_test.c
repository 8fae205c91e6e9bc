/*
 * The demo model's evaluation set through the whole engine: every question that the reference
 * answers exactly must be answered exactly here.  Another order of summation may flip a near-tie
 * between two tokens; at most MISSES_ALLOWED rows may differ for that.
 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/engine.h"

#define MODEL "conf/models/nginx-directives-moe"
#define ROWS_LIMIT 1024
#define ROWS_EXPECTED 483
#define MISSES_ALLOWED 3

typedef struct {
    char *question, *answer;
    moe_buffer_t text;
    int finished;
} row_t;

static row_t rows[ROWS_LIMIT];
static size_t n_rows, n_released;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released_all = PTHREAD_COND_INITIALIZER;


static void on_started(void *client, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs)
{
}


static void on_tokens(void *client, uint64_t id, const moe_deltas_t *deltas, const uint32_t *ids,
                      uint32_t n_ids, const moe_logprob_t *logprobs)
{
    moe_error_t error;

    for (uint32_t i = 0; i < deltas->count; i++) {
        moe_delta_t delta = moe_deltas_at(deltas, i);

        if (moe_buffer_append(&rows[id].text, delta.text.data, delta.text.size, &error) != 0) {
            abort();
        }
    }
}


static void on_done(void *client, uint64_t id, const moe_done_t *done)
{
    rows[id].finished = done->reason == MOE_FINISH_STOP;
}


static void on_failed(void *client, uint64_t id, const moe_failure_t *failure)
{
    printf("row %d: %.*s\n", (int) id, (int) failure->message.size, failure->message.data);
}


static void on_released(void *client, uint64_t id)
{
    pthread_mutex_lock(&lock);
    n_released++;
    pthread_cond_signal(&released_all);
    pthread_mutex_unlock(&lock);
}


static void on_admitted(void *client, uint64_t id, const moe_admitted_t *admitted)
{
}


static void on_step(void *context)
{
}


static const moe_sink_t sink = {
    on_admitted, on_started, on_tokens, on_done, on_failed, on_released, on_step, on_step
};


/* In an answer "\n" is written for a newline; there are no other escapes. */
static char *unescape(const char *text)
{
    char *copy = strdup(text), *out = copy;

    for (const char *p = text; *p; p++) {
        if (p[0] == '\\' && p[1] == 'n') {
            *out++ = '\n';
            p++;
        } else {
            *out++ = *p;
        }
    }
    *out = '\0';
    return copy;
}


static void read_rows(void)
{
    char line[8192], *field[5];
    FILE *file = fopen("t/golden/eval.tsv", "r");

    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));           /* names of the columns */
    while (fgets(line, sizeof(line), file) && n_rows < ROWS_LIMIT) {
        char *next = line;

        line[strcspn(line, "\n")] = '\0';
        for (int i = 0; i < 5; i++) {
            field[i] = strsep(&next, "\t");
            assert_non_null(field[i]);
        }
        if (strcmp(field[4], "1") == 0) {
            rows[n_rows].question = strdup(field[2]);
            rows[n_rows].answer = unescape(field[3]);
            n_rows++;
        }
    }
    fclose(file);
    assert_int_equal(n_rows, ROWS_EXPECTED);
}


static void submit(moe_engine_t *engine, size_t row)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", rows[row].question);
    char *text = json_dumps(messages, JSON_COMPACT);
    moe_buffer_t frame = {0};
    moe_request_t r, *owned;
    moe_error_t error;

    moe_request_defaults(&r);
    r.kind = MOE_PROMPT_CHAT;
    r.prompt = (moe_string_t) {text, (uint32_t) strlen(text)};
    r.given = MOE_GIVEN_TEMPERATURE;
    r.temperature = 0.0f;
    assert_int_equal(moe_request_encode(&frame, 1, &r, &error), 0);
    owned = moe_request_decode(frame.data + MOE_FRAME_HEADER, frame.size - MOE_FRAME_HEADER,
                               &error);
    assert_non_null(owned);
    if (moe_engine_submit(engine, NULL, row, owned, &error) != 0) {
        fail_msg("row %zu: %s", row, error.message);
    }
    moe_buffer_free(&frame);
    free(text);
    json_decref(messages);
}


static int row_is_exact(const row_t *row)
{
    size_t size = strlen(row->answer);

    return row->finished && row->text.size == size
           && (size == 0 || memcmp(row->text.data, row->answer, size) == 0);
}


static void test_eval_exact(void **state)
{
    const moe_engine_options_t options = {
        .model = MODEL, .context = 512, .queue = ROWS_LIMIT, .queue_timeout_ms = 600000,
        .sink = &sink,
    };
    moe_engine_t *engine;
    moe_error_t error;
    size_t misses = 0;

    read_rows();
    engine = moe_engine_create(&options, &error);
    assert_non_null(engine);
    if (moe_engine_wait(engine, &error) != 0) {
        fail_msg("%s", error.message);
    }
    for (size_t i = 0; i < n_rows; i++) {
        submit(engine, i);
    }
    pthread_mutex_lock(&lock);
    while (n_released < n_rows) {
        pthread_cond_wait(&released_all, &lock);
    }
    pthread_mutex_unlock(&lock);
    moe_engine_free(engine);

    for (size_t i = 0; i < n_rows; i++) {
        if (!row_is_exact(&rows[i])) {
            printf("miss: \"%s\"\n  expected \"%s\"\n  got      \"%.*s\"\n", rows[i].question,
                   rows[i].answer, (int) rows[i].text.size, rows[i].text.data);
            misses++;
        }
        free(rows[i].question);
        free(rows[i].answer);
        moe_buffer_free(&rows[i].text);
    }
    printf("%zu of %zu exact\n", n_rows - misses, n_rows);
    assert_in_range(misses, 0, MISSES_ALLOWED);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eval_exact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
