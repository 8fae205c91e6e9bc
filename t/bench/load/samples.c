#include "t/bench/load/samples.h"

#include <math.h>
#include <stdlib.h>

#include "engine/serve/sampler.h"

#define KEPT_LIMIT (2u << 20)


static int make_room(load_samples_t *samples)
{
    size_t room = samples->room ? 2 * samples->room : 1024;
    float *values;

    if (samples->kept < samples->room) {
        return 1;
    }
    if (samples->room == KEPT_LIMIT) {
        return 0;
    }
    values = realloc(samples->values, room * sizeof(*values));
    if (values == NULL) {
        return 0;
    }
    samples->values = values;
    samples->room = room;
    return 1;
}


void load_samples_add(load_samples_t *samples, uint64_t nanoseconds)
{
    double value = (double) nanoseconds * 1e-6;

    samples->count++;
    samples->sum += value;
    samples->most = value > samples->most ? value : samples->most;
    if (make_room(samples)) {
        samples->values[samples->kept++] = (float) value;
    } else if (samples->kept > 0) {
        /* Algorithm R: every value so far stays with the same probability. */
        double at = moe_sampler_uniform(samples->count, 0) * (double) samples->count;

        if (at < (double) samples->kept) {
            samples->values[(size_t) at] = (float) value;
        }
    }
}


static int compare(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}


/* The smallest value that at least this share of all does not exceed. */
static double percentile(const load_samples_t *samples, double share)
{
    size_t rank = (size_t) ceil(share * (double) samples->kept);

    return samples->values[rank ? rank - 1 : 0];
}


load_summary_t load_samples_summary(load_samples_t *samples)
{
    load_summary_t summary = { .count = samples->count };

    if (samples->kept == 0) {
        return summary;
    }
    qsort(samples->values, samples->kept, sizeof(float), compare);
    summary.mean = samples->sum / (double) samples->count;
    summary.p50 = percentile(samples, 0.50);
    summary.p90 = percentile(samples, 0.90);
    summary.p95 = percentile(samples, 0.95);
    summary.p99 = percentile(samples, 0.99);
    summary.most = samples->most;
    return summary;
}


void load_samples_free(load_samples_t *samples)
{
    free(samples->values);
    *samples = (load_samples_t) { .values = NULL };
}
