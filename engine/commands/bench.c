/*
 * moe-engine bench: random prompts of fixed lengths, several at a time, measured inside the
 * process (no channel, no HTTP).
 *
 *     prefill     prompt tokens of the batch / time to its last first token
 *     decode      tokens after that moment / time from it to the end
 *     overall     all generated tokens / time from submitting to the end
 *     ttft        from submitting to the first token, mean and largest of the batch
 *     overhead    of it, the part that was not spent in prefill steps (smallest of the batch)
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/commands/commands.h"
#include "engine/commands/session.h"
#include "engine/core/clock.h"
#include "engine/model/mapping.h"

#define BATCHES_LIMIT 32u
#define BATCH_LIMIT 4096u
#define DEFAULT_BATCH_TOKENS 512u

typedef struct {
    const char *model;
    uint64_t prompt, gen;
    moe_engine_options_t engine;
    uint64_t batches[BATCHES_LIMIT];
    unsigned n_batches;
    uint64_t largest;
    int json;
} arguments_t;

typedef struct {
    moe_session_t *session;
    uint64_t began_ns, last_first_ns, ended_ns;
    uint64_t tokens, tokens_at_last_first;
    double ttft_sum, ttft_most, overhead_least;
    moe_error_t error;
} measurement_t;


static void on_admitted(void *client, uint64_t id, const moe_admitted_t *admitted)
{
}


static void on_started(void *client, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs)
{
    measurement_t *m = client;
    uint64_t now = moe_now_ns();
    double ttft = (double) (now - m->began_ns) * 1e-6;
    double overhead = ttft - (double) started->prefill_ns * 1e-6;

    m->last_first_ns = now;
    m->tokens_at_last_first = m->tokens + 1;
    m->ttft_sum += ttft;
    m->ttft_most = ttft > m->ttft_most ? ttft : m->ttft_most;
    m->overhead_least = overhead < m->overhead_least ? overhead : m->overhead_least;
}


static void on_tokens(void *client, uint64_t id, const moe_deltas_t *deltas, const uint32_t *ids,
                      uint32_t n_ids, const moe_logprob_t *logprobs)
{
    measurement_t *m = client;

    m->tokens += n_ids;
    m->ended_ns = moe_now_ns();
}


static void on_done(void *client, uint64_t id, const moe_done_t *done)
{
}


static void on_failed(void *client, uint64_t id, const moe_failure_t *failure)
{
    measurement_t *m = client;

    /* Failures may come from several threads. */
    pthread_mutex_lock(&m->session->lock);
    moe_session_failed(&m->error, failure);
    pthread_mutex_unlock(&m->session->lock);
}


static void on_released(void *client, uint64_t id)
{
    measurement_t *m = client;

    moe_session_released(m->session);
}


static const moe_sink_t sink = {
    on_admitted,
    on_started,
    on_tokens,
    on_done,
    on_failed,
    on_released,
    moe_session_ignore,
    moe_session_changed
};


static int parse_batches(arguments_t *a, const char *list)
{
    char *copy = strdup(list), *rest = copy, *item;
    int rc = copy ? 0 : -1;

    a->n_batches = 0;
    while (rc == 0 && (item = strsep(&rest, ",")) != NULL) {
        rc = a->n_batches == BATCHES_LIMIT ? -1
             : moe_command_number(item, 1, BATCH_LIMIT, &a->batches[a->n_batches++]);
    }
    free(copy);
    return rc;
}


static int parse_arguments(int argc, char **argv, arguments_t *a)
{
    *a = (arguments_t) { .prompt = 128, .gen = 64, .batches = { 1, 4, 16 }, .n_batches = 3,
                         .engine.threads = moe_cpu_count() };
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int rc;

        if (argv[i][0] != '-' && a->model == NULL) {
            a->model = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--json") == 0) {
            a->json = 1;
            continue;
        }
        rc = strcmp(argv[i], "--prompt") == 0 ? moe_command_number(value, 1, 1 << 24, &a->prompt)
             : strcmp(argv[i], "--gen") == 0 ? moe_command_number(value, 1, 1 << 24, &a->gen)
             : strcmp(argv[i], "--batch") == 0 ? parse_batches(a, value)
             : moe_session_option(&a->engine, argv[i], value);
        if (rc != 0) {
            return moe_command_wrong(&moe_command_bench, argv[i], argv[i + 1]);
        }
        i++;
    }
    if (a->model == NULL) {
        return moe_command_usage(&moe_command_bench, "MODEL is needed");
    }
    for (unsigned i = 0; i < a->n_batches; i++) {
        a->largest = a->batches[i] > a->largest ? a->batches[i] : a->largest;
    }
    return 0;
}


/* Ids that have a token, the same ones in every run. */
static void fill_prompt(uint32_t *ids, uint64_t n, uint64_t number, const moe_lexicon_t *lexicon)
{
    uint32_t vocabulary = lexicon->model->vocabulary;

    for (uint64_t i = 0; i < n; i++) {
        double u = moe_sampler_uniform(number, (uint32_t) i);

        ids[i] = (uint32_t) (u * vocabulary);
        while (!lexicon->usable[ids[i]]) {
            ids[i] = (ids[i] + 1) % vocabulary;
        }
    }
}


static int submit_all(moe_engine_t *engine, const arguments_t *a, uint64_t batch, uint32_t *ids,
                      measurement_t *m)
{
    moe_error_t error = { .code = MOE_OK };
    moe_request_t request;

    moe_request_defaults(&request);
    request.kind = MOE_PROMPT_TOKENS;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.given = MOE_GIVEN_MAX_TOKENS | MOE_GIVEN_TEMPERATURE;
    request.temperature = 0.0f;
    request.max_tokens = (uint32_t) a->gen;
    request.prompt_ids = ids;
    request.n_prompt_ids = (uint32_t) a->prompt;
    m->began_ns = moe_now_ns();
    for (uint64_t i = 0; i < batch; i++) {
        fill_prompt(ids, a->prompt, i, moe_engine_lexicon(engine));
        if (moe_session_submit(m->session, engine, m, i, &request, &error) != 0) {
            break;
        }
    }
    moe_session_wait(m->session, engine);
    if (error.code != MOE_OK) {
        m->error = error;
    }
    return m->error.code == MOE_OK ? 0 : -1;
}


static void print_result(const arguments_t *a, uint64_t batch, const measurement_t *m, int first)
{
    double prefill_s = (double) (m->last_first_ns - m->began_ns) * 1e-9;
    double decode_s = (double) (m->ended_ns - m->last_first_ns) * 1e-9;
    double prefill = (double) (batch * a->prompt) / prefill_s;
    double decode = decode_s > 0.0 ? (double) (m->tokens - m->tokens_at_last_first) / decode_s : 0;
    double overall = (double) m->tokens / ((double) (m->ended_ns - m->began_ns) * 1e-9);

    if (a->json) {
        printf("%s\n  {\"batch\":%llu,\"prefill_tokens_per_s\":%.1f,\"decode_tokens_per_s\":%.1f,"
               "\"overall_tokens_per_s\":%.1f,\"ttft_ms\":%.3f,\"ttft_max_ms\":%.3f,"
               "\"overhead_ms\":%.3f}", first ? "" : ",", (unsigned long long) batch, prefill,
               decode, overall, m->ttft_sum / (double) batch, m->ttft_most, m->overhead_least);
    } else {
        printf("batch %4llu: prefill %9.1f tokens/s, decode %9.1f tokens/s, overall %9.1f tokens/s,"
               " first token %8.2f ms (largest %.2f, overhead %.2f)\n", (unsigned long long) batch,
               prefill, decode, overall, m->ttft_sum / (double) batch, m->ttft_most,
               m->overhead_least);
    }
}


static unsigned long long peak_memory(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    unsigned long long kilobytes = 0;
    char line[256];

    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "VmHWM: %llu", &kilobytes) == 1) {
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return kilobytes * 1024;
}


static int measure(moe_engine_t *engine, const arguments_t *a, moe_session_t *session,
                   moe_error_t *error)
{
    uint32_t *ids = malloc(a->prompt * sizeof(uint32_t));
    moe_stats_t stats;
    int rc = ids ? 0 : moe_fail(error, MOE_LIMIT, "out of memory for a prompt");

    moe_engine_stats(engine, &stats);
    if (a->json && rc == 0) {
        printf("{\"prompt\":%llu,\"gen\":%llu,\"ranks\":%u,\"tensor_parallel\":%u,"
               "\"threads\":%u,\"isa\":\"%s\",\"load_ms\":%.1f,\"results\":[",
               (unsigned long long) a->prompt, (unsigned long long) a->gen,
               a->engine.ranks ? a->engine.ranks : 1,
               a->engine.tensor_parallel ? a->engine.tensor_parallel : 1,
               a->engine.threads, moe_engine_isa(engine), (double) stats.load_ns * 1e-6);
    }
    for (unsigned i = 0; rc == 0 && i < a->n_batches; i++) {
        measurement_t m = { .session = session, .overhead_least = 1e9 };

        rc = submit_all(engine, a, a->batches[i], ids, &m);
        if (rc == 0) {
            print_result(a, a->batches[i], &m, i == 0);
        }
        *error = m.error;
    }
    if (a->json && rc == 0) {
        printf("\n],\"peak_memory_bytes\":%llu}\n", peak_memory());
    } else if (rc == 0) {
        printf("%s, %u threads, loaded in %.1f ms, peak memory %.1f MiB\n",
               moe_engine_isa(engine), a->engine.threads, (double) stats.load_ns * 1e-6,
               (double) peak_memory() / 1048576.0);
    }
    free(ids);
    return rc;
}


static int bench(int argc, char **argv)
{
    moe_session_t session = MOE_SESSION_INITIALIZER;
    moe_engine_options_t *options;
    moe_engine_t *engine;
    moe_error_t error;
    arguments_t a;
    int rc;

    if (parse_arguments(argc, argv, &a) != 0) {
        return 1;
    }
    moe_mapping_handle_sigbus();
    options = &a.engine;
    options->sink = &sink;
    options->sink_context = &session;
    options->no_prefix_cache = 1;
    options->model = a.model;
    options->batch_sequences = (uint32_t) a.largest;
    options->batch_tokens = a.largest > DEFAULT_BATCH_TOKENS ? (uint32_t) a.largest
                                                             : DEFAULT_BATCH_TOKENS;
    if (moe_session_fault(options, &error) != 0) {
        return moe_command_fail(&error);
    }
    engine = moe_session_open(options, &error);
    if (engine == NULL) {
        return moe_command_fail(&error);
    }
    rc = measure(engine, &a, &session, &error);
    moe_engine_free(engine);
    return rc == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_bench = {
    .name = "bench",
    .usage = "MODEL [--prompt P] [--gen G] [--batch 1,4,16] [--json] " MOE_SESSION_USAGE,
    .help = "measure speed and memory",
    .run = bench
};
