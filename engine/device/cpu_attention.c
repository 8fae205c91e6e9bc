/*
 * A row's attention is cut into splits of fixed length, each over 16 heads of a group: parts that
 * the pool computes in any order and that are then joined in theirs.  Where a split begins depends
 * on positions alone, so that a row's result does not depend on its company; a window only leaves
 * out the splits before it and the beginning of the first.
 */

#include "engine/device/cpu_attention.h"

#include <assert.h>

#define SPLIT 256u                  /* positions of a part; fixed: parts are rounded */
#define MIN_UNITS 64u               /* parts in flight, at least */

/* A part of one row's attention: all heads over one split. */
struct moe_cpu_unit_s {
    uint32_t row, split;
};


static size_t group_count(const moe_attention_t *a)
{
    return a->groups > 0 ? a->groups : 1;
}


/* Of 16 heads, in each group. */
static size_t group_panels(const moe_attention_t *a)
{
    return (a->heads / group_count(a) + MOE_PANEL - 1) / MOE_PANEL;
}


/* The first position that a row at `position` sees. */
static uint32_t first_seen(const moe_attention_t *a, uint32_t position)
{
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}


/* The splits that it lies in: from which one on, and how many. */
static uint32_t first_split(const moe_attention_t *a, uint32_t position)
{
    return first_seen(a, position) / SPLIT;
}


static uint32_t count_splits(const moe_attention_t *a, uint32_t position)
{
    return position / SPLIT - first_split(a, position) + 1;
}


int moe_cpu_reserve_attention(moe_cpu_attention_t *self, moe_arena_t *arena, unsigned threads,
                              const moe_attention_t *a, uint32_t context, moe_error_t *error)
{
    const size_t splits = ((size_t) context + SPLIT - 1) / SPLIT;
    const size_t units = splits > MIN_UNITS ? splits : MIN_UNITS;
    const size_t panels = group_count(a) * group_panels(a);
    const size_t parts = units * panels * moe_attend_part(a->latent);
    const size_t scratch = moe_attend_scratch((size_t) a->latent + a->rope, SPLIT);

    if (units > self->max_units) {
        self->units = moe_arena_allocate(arena, units * sizeof(*self->units), error);
        self->max_units = self->units ? units : 0;
    }
    if (parts > self->parts_floats) {
        self->parts = moe_arena_allocate(arena, parts * sizeof(float), error);
        self->parts_floats = self->parts ? parts : 0;
    }
    if (scratch > self->scratch_floats) {
        self->scratch = moe_arena_allocate(arena, scratch * threads * sizeof(float), error);
        self->scratch_floats = self->scratch ? scratch : 0;
    }
    return self->units && self->parts && self->scratch ? 0 : -1;
}


typedef struct {
    const moe_cpu_attention_t *self;
    const moe_kernels_t *kernels;
    const moe_attention_t *attention;
    const moe_rows_t *rows;
    const moe_kv_t *cache;
    const float *query;
    float *y;
    size_t panels;                  /* of 16 heads of a group */
    size_t n_units;
} attend_job_t;


/* Heads that share a panel. */
typedef struct {
    size_t group, first, count;
} panel_t;


static panel_t panel_of(const moe_attention_t *a, size_t index)
{
    const size_t panels = group_panels(a), heads = a->heads / group_count(a);
    const size_t before = index % panels * MOE_PANEL, rest = heads - before;

    return (panel_t) {
        .group = index / panels, .first = index / panels * heads + before,
        .count = rest < MOE_PANEL ? rest : MOE_PANEL
    };
}


/* Parts are ordered [panel][unit], so that those of one row and panel are adjacent. */
static float *part_of(const attend_job_t *j, size_t panel, size_t unit)
{
    return j->self->parts + (panel * j->n_units + unit) * moe_attend_part(j->attention->latent);
}


static void attend_units(void *context, size_t first, size_t last, unsigned thread)
{
    const attend_job_t *j = context;
    const moe_attention_t *a = j->attention;
    const size_t size = (size_t) a->latent + a->rope, key = a->apart ? a->latent : 0;
    const size_t slice = moe_kv_slice_bytes(j->cache->type, size);

    for (size_t i = first; i < last; i++) {
        const size_t panel = i % j->panels, unit = i / j->panels;
        const panel_t heads = panel_of(a, panel);
        const uint32_t row = j->self->units[unit].row, position = j->rows->positions[row];
        const size_t split = (size_t) j->self->units[unit].split * SPLIT;
        const size_t seen = first_seen(a, position), end = (size_t) position + 1;
        const moe_attend_t attend = {
            .query = j->query + (row * (size_t) a->heads + heads.first) * (size - key),
            .heads = heads.count, .key = key, .width = size - key, .latent = a->latent,
            .cache = (const char *) j->cache->rows + heads.group * slice, .type = j->cache->type,
            .block_stride = j->cache->block_stride,
            .row_stride = j->cache->row_stride, .block_tokens = j->cache->block_tokens,
            .blocks = j->rows->tables + (size_t) j->rows->sequences[row] * j->rows->table_stride,
            .first = seen > split ? seen : split,
            .last = end - split < SPLIT ? end : split + SPLIT, .scale = a->scale,
            .scratch = j->self->scratch + thread * j->self->scratch_floats,
            .part = part_of(j, panel, unit),
        };

        j->kernels->attend(&attend);
    }
}


/* Items: the units with the first split, which stand for their row, times head panels. */
static void join_units(void *context, size_t first, size_t last, unsigned thread)
{
    const attend_job_t *j = context;
    const moe_attention_t *a = j->attention;

    for (size_t i = first; i < last; i++) {
        const size_t panel = i % j->panels, unit = i / j->panels;
        const panel_t heads = panel_of(a, panel);
        const uint32_t row = j->self->units[unit].row, position = j->rows->positions[row];

        if (j->self->units[unit].split == first_split(a, position)) {
            j->kernels->attend_join(
                part_of(j, panel, unit), count_splits(a, position), heads.count, a->latent,
                a->sinks ? a->sinks + heads.first : NULL,
                j->y + (row * (size_t) a->heads + heads.first) * a->latent, a->latent);
        }
    }
}


/* As many rows as there is room for parts at a time. */
void moe_cpu_attend(const moe_cpu_attention_t *self, const moe_kernels_t *kernels,
                    moe_pool_t *pool, const moe_attention_t *attention, const moe_rows_t *rows,
                    const moe_kv_t *cache, const float *query, float *y)
{
    attend_job_t job = {
        .self = self, .kernels = kernels, .attention = attention, .rows = rows, .cache = cache,
        .query = query, .y = y,
        .panels = group_count(attention) * group_panels(attention),
    };

    assert(cache->block_tokens <= MOE_ATTEND_ROWS);
    for (uint32_t row = 0; row < rows->n;) {
        job.n_units = 0;
        while (row < rows->n
               && job.n_units + count_splits(attention, rows->positions[row]) <= self->max_units)
        {
            const uint32_t position = rows->positions[row];

            for (uint32_t s = first_split(attention, position); s <= position / SPLIT; s++) {
                self->units[job.n_units++] = (moe_cpu_unit_t) {row, s};
            }
            row++;
        }
        assert(job.n_units > 0);
        moe_pool_run(pool, attend_units, &job, job.n_units * job.panels, 1);
        moe_pool_run(pool, join_units, &job, job.n_units * job.panels, 4);
    }
}
