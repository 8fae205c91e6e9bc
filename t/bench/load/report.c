#include "t/bench/load/report.h"

#include <stdio.h>
#include <sys/resource.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct {
    double seconds;
    double tokens_per_s, requests_per_s, goodput_per_s;
    double cpu_s;
    struct {
        const char *name;
        load_summary_t summary;
    } times[5];
} results_t;


static double processor_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
           + (double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}


/* Events are what is seen while it happens, tokens what the answers say at their end. */
static double tokens_per_event(const load_run_t *run)
{
    return run->all_pieces ? (double) run->all_tokens / (double) run->all_pieces : 1.0;
}


static results_t summarise(load_run_t *run)
{
    results_t results = {
        .seconds = run->end_ns > run->start_ns ? (double) (run->end_ns - run->start_ns) * 1e-9 : 0,
        .cpu_s = processor_seconds(),
        .times = {
            { "ttft", load_samples_summary(&run->ttft) },
            { "itl", load_samples_summary(&run->itl) },
            { "tpot", load_samples_summary(&run->tpot) },
            { "e2e", load_samples_summary(&run->e2e) },
            { "late", load_samples_summary(&run->late) }
        }
    };

    if (results.seconds > 0.0) {
        results.tokens_per_s = (double) run->pieces * tokens_per_event(run) / results.seconds;
        results.requests_per_s = (double) run->answers / results.seconds;
        results.goodput_per_s = (double) run->good / results.seconds;
    }
    return results;
}


static void print_text(const load_run_t *run, const results_t *r, const load_verdict_t *verdict)
{
    printf("%zu requests, %llu failed, %llu sent again; measured for %.2f s\n", run->n_records,
           (unsigned long long) run->failed, (unsigned long long) run->retried, r->seconds);
    printf("%.1f tokens/s, %.2f requests/s, goodput %.2f requests/s\n", r->tokens_per_s,
           r->requests_per_s, r->goodput_per_s);
    printf("%-8s %10s %10s %10s %10s %10s %10s %10s\n", "ms", "count", "mean", "p50", "p90", "p95",
           "p99", "most");
    for (size_t i = 0; i < COUNT(r->times); i++) {
        const load_summary_t *s = &r->times[i].summary;

        printf("%-8s %10llu %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", r->times[i].name,
               (unsigned long long) s->count, s->mean, s->p50, s->p90, s->p95, s->p99, s->most);
    }
    for (unsigned i = 0; i < run->n_failures; i++) {
        printf("failed: %llu x %s (%s)\n", (unsigned long long) run->failures[i].count,
               run->failures[i].kind, run->failures[i].message);
    }
    if (verdict) {
        printf("compared with solo runs: %llu, different %llu, without a solo answer %llu\n",
               (unsigned long long) verdict->compared, (unsigned long long) verdict->different,
               (unsigned long long) verdict->unknown);
    }
}


static json_t *times_object(const load_summary_t *s)
{
    return json_pack("{sI sf sf sf sf sf sf}", "count", (json_int_t) s->count, "mean", s->mean,
                     "p50", s->p50, "p90", s->p90, "p95", s->p95, "p99", s->p99, "max", s->most);
}


static json_t *failures_object(const load_run_t *run)
{
    json_t *object = json_object();

    for (unsigned i = 0; i < run->n_failures; i++) {
        json_object_set_new(object, run->failures[i].kind,
                            json_integer((json_int_t) run->failures[i].count));
    }
    return object;
}


static void print_json(const load_run_t *run, const results_t *r, const load_verdict_t *verdict)
{
    json_t *object = json_pack(
        "{sf sI sI sI sI sI sI sf sf sf sf so}", "seconds", r->seconds, "requests",
        (json_int_t) run->n_records, "failed", (json_int_t) run->failed, "retried",
        (json_int_t) run->retried, "prompt_tokens", (json_int_t) run->prompt_tokens,
        "completion_tokens", (json_int_t) run->all_tokens, "events", (json_int_t) run->all_pieces,
        "tokens_per_s", r->tokens_per_s, "requests_per_s", r->requests_per_s, "goodput_per_s",
        r->goodput_per_s, "cpu_s", r->cpu_s, "errors", failures_object(run));

    for (size_t i = 0; i < COUNT(r->times); i++) {
        char name[16];

        snprintf(name, sizeof(name), "%s_ms", r->times[i].name);
        json_object_set_new(object, name, times_object(&r->times[i].summary));
    }
    if (verdict) {
        json_object_set_new(object, "verify",
                            json_pack("{sI sI sI}", "compared", (json_int_t) verdict->compared,
                                      "different", (json_int_t) verdict->different, "unknown",
                                      (json_int_t) verdict->unknown));
    }
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(object);
}


void load_report(load_run_t *run, const load_verdict_t *verdict)
{
    results_t results = summarise(run);

    if (run->options->json) {
        print_json(run, &results, verdict);
    } else {
        print_text(run, &results, verdict);
    }
}
