/*
 * The counters behind moe_stats_t.  One small lock of its own: whoever asks for them never waits
 * for a step.
 */

#ifndef MOE_METRICS_H
#define MOE_METRICS_H

#include <pthread.h>

#include "engine/serve/sequence.h"

typedef struct {
    pthread_mutex_t lock;
    moe_stats_t stats;
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

/* The model is loaded. */
void moe_metrics_loaded(moe_metrics_t *metrics, uint64_t load_ns, uint32_t blocks);

/* A step has ended; gauges as they are now. */
void moe_metrics_step(moe_metrics_t *metrics, uint32_t rows, uint32_t blocks_used,
                      uint64_t preemptions);

/* First token, later token, end of a request. */
void moe_metrics_started(moe_metrics_t *metrics, const moe_sequence_t *sequence);
void moe_metrics_token(moe_metrics_t *metrics, const moe_sequence_t *sequence);
void moe_metrics_ended(moe_metrics_t *metrics, const moe_sequence_t *sequence, moe_end_t end,
                       uint64_t now_ns);

#endif
