/*
 * Sends the requests of a workload and measures what comes back.
 *
 * Latencies count from the moment at which a request was due, also when it could not be sent at
 * once: in an open loop a stall of the server, or of this program, is not left out.
 */

#ifndef LOAD_RUN_H
#define LOAD_RUN_H

#include <signal.h>

#include "t/bench/load/samples.h"
#include "t/bench/load/transport.h"
#include "t/bench/load/workload.h"

#define LOAD_KINDS 32u              /* of errors; more are counted as the last */

typedef struct {
    uint64_t number;                /* of the workload */
    uint64_t body_hash;
    uint64_t due_ns;
    uint64_t first_ns, last_ns;     /* of its events; 0: none yet */
    uint64_t longest_ns;            /* between two of them */
    uint32_t pieces;
    int succeeded;
    char *text;                     /* of the answer, owned; NULL unless texts are compared */
    size_t text_size;
    char finish[32];
} load_record_t;

typedef struct {
    char kind[80];
    char message[200];              /* of the first */
    uint64_t count;
} load_failures_t;

typedef struct {
    /* Set by the caller. */
    const load_options_t *options;
    const load_workload_t *workload;
    const load_endpoint_t *endpoint;
    const uint64_t *numbers;        /* of the requests, or NULL: 0, 1, 2 ... */
    const volatile sig_atomic_t *interrupted;   /* ends the run where it is */

    /* What happened.  Measured is what lies between start_ns and end_ns: warm-up and what is left
     * when the time is over are outside. */
    uint64_t start_ns, end_ns;
    load_record_t *records;         /* one for each request that was sent */
    size_t n_records;
    uint64_t pieces;                /* events measured */
    uint64_t answers, good;         /* that succeeded, and met the targets */
    uint64_t all_pieces, all_tokens;    /* of requests that succeeded */
    uint64_t prompt_tokens;
    uint64_t failed, retried;
    load_samples_t ttft, itl, tpot, e2e;
    load_samples_t late;            /* from due to sent */
    load_failures_t failures[LOAD_KINDS];
    unsigned n_failures;
} load_run_t;

/* Runs until everything has been answered, or it is interrupted.  0, or -1 when it cannot go on. */
int load_run(load_run_t *run, moe_error_t *error);
void load_run_free(load_run_t *run);

#endif
