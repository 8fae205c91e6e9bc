/*
 * The counters behind moe_stats_t.  One small lock of its own: whoever asks for them never waits
 * for a step.
 */

#ifndef MOE_METRICS_H
#define MOE_METRICS_H

#include <pthread.h>

#include "engine/serve/loaded.h"

typedef struct {
    pthread_mutex_t lock;
    moe_stats_t stats;
    uint64_t *expert_load;              /* [layers, experts]; NULL: the model is not loaded */
    uint32_t layers, experts;
} moe_metrics_t;

typedef enum {
    MOE_END_STOP,
    MOE_END_LENGTH,
    MOE_END_CANCELLED,
    MOE_END_ERROR
} moe_end_t;

void moe_metrics_init(moe_metrics_t *metrics);
void moe_metrics_destroy(moe_metrics_t *metrics);

/* A copy, with the process's resident set as of now. */
void moe_metrics_read(moe_metrics_t *metrics, moe_stats_t *stats);

/* A copy of the experts' load, [*layers, *experts], for the caller to free; NULL and two zeroes when
 * the model is not loaded or there is no memory. */
uint64_t *moe_metrics_experts(moe_metrics_t *metrics, uint32_t *layers, uint32_t *experts);

/* The model is loaded.  -1 with MOE_LIMIT. */
int moe_metrics_loaded(moe_metrics_t *metrics, const moe_loaded_t *loaded, uint64_t load_ns,
                       moe_error_t *error);

/* A step of `rows` rows has ended, or there was nothing to run (0); gauges as they are now. */
void moe_metrics_step(moe_metrics_t *metrics, const moe_loaded_t *loaded, uint32_t rows);

/* First token, later token, end of a request. */
void moe_metrics_started(moe_metrics_t *metrics, const moe_sequence_t *sequence);
void moe_metrics_token(moe_metrics_t *metrics, const moe_sequence_t *sequence);
void moe_metrics_ended(moe_metrics_t *metrics, const moe_sequence_t *sequence, moe_end_t end,
                       uint64_t now_ns);

#endif
