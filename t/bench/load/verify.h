/*
 * Does every answer say what the same request says when nothing else is running?
 */

#ifndef LOAD_VERIFY_H
#define LOAD_VERIFY_H

#include "t/bench/load/run.h"

typedef struct {
    uint64_t compared, different;
    uint64_t unknown;               /* no solo answer came */
    moe_error_t example;            /* the first difference */
} load_verdict_t;

/* Sends each different request of `run`, which was run with options->verify, once alone and
 * compares texts and finish reasons.  Of an answer that failed, what there is of it must be how the
 * solo answer begins.  0, or -1 when that could not be done. */
int load_verify(const load_run_t *run, load_verdict_t *verdict, moe_error_t *error);

#endif
