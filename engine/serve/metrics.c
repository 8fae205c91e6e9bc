#include "engine/serve/metrics.h"

#include <stdio.h>
#include <stdlib.h>
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
    free(metrics->expert_load);
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


uint64_t *moe_metrics_experts(moe_metrics_t *metrics, uint32_t *layers, uint32_t *experts)
{
    uint64_t *copy;
    size_t size;

    *layers = *experts = 0;
    pthread_mutex_lock(&metrics->lock);
    size = sizeof(uint64_t) * metrics->layers * metrics->experts;
    copy = size ? malloc(size) : NULL;
    if (copy) {
        memcpy(copy, metrics->expert_load, size);
        *layers = metrics->layers;
        *experts = metrics->experts;
    }
    pthread_mutex_unlock(&metrics->lock);
    return copy;
}


int moe_metrics_loaded(moe_metrics_t *metrics, const moe_loaded_t *loaded, uint64_t load_ns,
                       moe_error_t *error)
{
    uint32_t layers = loaded->model->n_layers;
    uint32_t experts = moe_forward_experts(moe_ranks_forward(loaded->ranks, 0));
    uint64_t *load = calloc((size_t) layers * experts + 1, sizeof(*load));

    if (load == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for counts of %u experts", experts);
    }
    pthread_mutex_lock(&metrics->lock);
    metrics->stats.load_ns = load_ns;
    metrics->stats.blocks_total = moe_groups_blocks(&loaded->groups);
    metrics->stats.batch_sequences = loaded->batch_sequences;
    metrics->stats.batch_tokens = loaded->batch_tokens;
    metrics->expert_load = load;
    metrics->layers = layers;
    metrics->experts = experts;
    pthread_mutex_unlock(&metrics->lock);
    return 0;
}


void moe_metrics_step(moe_metrics_t *metrics, const moe_loaded_t *loaded, uint32_t rows)
{
    moe_exchange_bytes_t exchanged;
    moe_ranks_rows_t computed;

    pthread_mutex_lock(&metrics->lock);
    metrics->stats.steps += rows > 0;
    metrics->stats.step_rows += rows;
    metrics->stats.blocks_used = metrics->stats.blocks_total - moe_groups_unused(&loaded->groups);
    metrics->stats.preemptions = moe_groups_preemptions(&loaded->groups);
    if (rows > 0 && metrics->experts > 0) {
        moe_ranks_expert_load(loaded->ranks, metrics->expert_load);
        exchanged = moe_ranks_exchanged(loaded->ranks);
        metrics->stats.dispatch_bytes = exchanged.dispatch_rows;
        metrics->stats.list_bytes = exchanged.dispatch_lists;
        metrics->stats.return_bytes = exchanged.return_rows;
        computed = moe_ranks_rows(loaded->ranks);
        metrics->stats.expert_rows = computed.rows;
        metrics->stats.expert_rows_most = computed.most;
        metrics->stats.placements = moe_forward_placement(moe_ranks_forward(loaded->ranks, 0));
    }
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
    if (sequence->lexicon->prefix_key) {
        stats->cache_queries += sequence->n_prompt;
        stats->cache_hits += moe_sequence_cached(sequence);
    }
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
