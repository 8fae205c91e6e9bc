#include "engine/serve/metrics.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FIRST_MS 0.001          /* lowest bucket borders of API.md: time to first token and like */
#define FIRST_ITL 0.0001
#define FIRST_TOKENS 1.0


void moe_metrics_init(moe_metrics_t *metrics)
{
    memset(metrics, 0, sizeof(*metrics));
    pthread_mutex_init(&metrics->lock, NULL);
}


void moe_metrics_destroy(moe_metrics_t *metrics)
{
    pthread_mutex_destroy(&metrics->lock);
}


static uint64_t resident_bytes(void)
{
    unsigned long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file) {
        if (fscanf(file, "%lu %lu", &size, &resident) != 2) {
            resident = 0;
        }
        fclose(file);
    }
    return (uint64_t) resident * (uint64_t) sysconf(_SC_PAGESIZE);
}


void moe_metrics_read(moe_metrics_t *metrics, moe_stats_t *stats)
{
    pthread_mutex_lock(&metrics->lock);
    *stats = metrics->stats;
    pthread_mutex_unlock(&metrics->lock);
    stats->memory_bytes = resident_bytes();
}


void moe_metrics_loaded(moe_metrics_t *metrics, uint64_t load_ns, uint32_t blocks)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->stats.load_ns = load_ns;
    metrics->stats.blocks_total = blocks;
    pthread_mutex_unlock(&metrics->lock);
}


void moe_metrics_step(moe_metrics_t *metrics, uint32_t rows, uint32_t blocks_used,
                      uint64_t preemptions)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->stats.steps += rows > 0;
    metrics->stats.step_rows += rows;
    metrics->stats.blocks_used = blocks_used;
    metrics->stats.preemptions = preemptions;
    pthread_mutex_unlock(&metrics->lock);
}


static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double) (to_ns - from_ns) * 1e-9 : 0.0;
}


void moe_metrics_started(moe_metrics_t *metrics, const moe_sequence_t *sequence)
{
    moe_stats_t *stats = &metrics->stats;

    pthread_mutex_lock(&metrics->lock);
    moe_histogram_add(&stats->queue, FIRST_MS, MOE_TTFT_BUCKETS,
                      seconds(sequence->arrival_ns, sequence->scheduled_ns));
    moe_histogram_add(&stats->ttft, FIRST_MS, MOE_TTFT_BUCKETS,
                      seconds(sequence->arrival_ns, sequence->first_token_ns));
    moe_histogram_add(&stats->prompt, FIRST_TOKENS, MOE_TOKEN_BUCKETS, sequence->n_prompt);
    stats->prompt_tokens += sequence->n_prompt;
    stats->generation_tokens += sequence->n_new;
    pthread_mutex_unlock(&metrics->lock);
}


void moe_metrics_token(moe_metrics_t *metrics, const moe_sequence_t *sequence)
{
    pthread_mutex_lock(&metrics->lock);
    moe_histogram_add(&metrics->stats.itl, FIRST_ITL, MOE_ITL_BUCKETS,
                      seconds(sequence->previous_ns, sequence->last_token_ns));
    metrics->stats.generation_tokens += sequence->n_new;
    pthread_mutex_unlock(&metrics->lock);
}


void moe_metrics_ended(moe_metrics_t *metrics, const moe_sequence_t *sequence, moe_end_t end,
                       uint64_t now_ns)
{
    moe_stats_t *stats = &metrics->stats;
    uint64_t *const counters[] = {
        [MOE_END_STOP] = &stats->finished_stop,
        [MOE_END_LENGTH] = &stats->finished_length,
        [MOE_END_CANCELLED] = &stats->finished_cancelled,
        [MOE_END_ERROR] = &stats->finished_error
    };

    pthread_mutex_lock(&metrics->lock);
    ++*counters[end];
    if (end == MOE_END_STOP || end == MOE_END_LENGTH) {
        moe_histogram_add(&stats->e2e, FIRST_MS, MOE_TTFT_BUCKETS,
                          seconds(sequence->arrival_ns, now_ns));
        moe_histogram_add(&stats->generation, FIRST_TOKENS, MOE_TOKEN_BUCKETS,
                          sequence->generated);
    }
    pthread_mutex_unlock(&metrics->lock);
}
