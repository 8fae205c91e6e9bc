/*
 * A sample of durations and its percentiles.  Up to two million values are kept as they are; of
 * more, a random choice of that size.
 */

#ifndef LOAD_SAMPLES_H
#define LOAD_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    float *values;                  /* milliseconds */
    size_t kept, room;
    uint64_t count;
    double sum, most;
} load_samples_t;

typedef struct {
    uint64_t count;
    double mean, p50, p90, p95, p99, most;      /* milliseconds; 0 when there are none */
} load_summary_t;

/* A value that finds no memory is counted, but not kept. */
void load_samples_add(load_samples_t *samples, uint64_t nanoseconds);

/* Sorts the kept values. */
load_summary_t load_samples_summary(load_samples_t *samples);
void load_samples_free(load_samples_t *samples);

#endif
