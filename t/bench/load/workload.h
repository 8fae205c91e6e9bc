/*
 * What is asked, and when: a function of the options and a request's number alone, so that a
 * request can be made again.
 */

#ifndef LOAD_WORKLOAD_H
#define LOAD_WORKLOAD_H

#include "t/bench/load/options.h"

typedef struct {
    char *prompt;                   /* JSON: the member that holds it, "name": value */
    uint32_t max_tokens;            /* 0: as the options say */
} load_prompt_t;

typedef struct {
    const load_options_t *options;
    moe_buffer_t common;            /* JSON: the members that all requests share, without braces */
    load_prompt_t *prompts;         /* of the file; none: they are generated */
    size_t n_prompts;
} load_workload_t;

/* `options` must outlive the workload.  0, or -1 with MOE_INVALID or MOE_SYSTEM. */
int load_workload_open(load_workload_t *workload, const load_options_t *options,
                       moe_error_t *error);
void load_workload_close(load_workload_t *workload);

/* Appends the JSON body of a request. */
int load_workload_body(const load_workload_t *workload, uint64_t number, moe_buffer_t *out,
                       moe_error_t *error);

/* Nanoseconds between the arrivals of requests `number` and `number` + 1 of an open loop. */
uint64_t load_workload_gap(const load_workload_t *workload, uint64_t number);

#endif
