/*
 * Attention of one row over a stretch of the cache, 16 heads at a time.
 *
 * Heads are the lanes: the transposed queries form a panel, so the scores of a cache block are an
 * ordinary product of its rows with that panel, and every cache row read serves all heads.  The
 * average is a product as well, of the weights with the cache rows taken as panels.  Softmax is
 * relative to the largest score of the stretch; attend_join rescales the stretches, whose borders
 * depend on nothing but the position.
 */

#ifndef MOE_ATTEND_H
#define MOE_ATTEND_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector.h"


static size_t round_to_panels(size_t n)
{
    return (n + MOE_PANEL - 1) / MOE_PANEL * MOE_PANEL;
}


/* The rows of one block as floats. */
typedef struct {
    const float *rows;
    size_t n, stride;
} block_t;


/* The block at a position, from there on as far as the stretch goes: in place, or widened into
 * memory.  That costs little, since all 16 heads use it. */
static block_t cache_block(const moe_attend_t *a, size_t position, float *memory)
{
    const size_t before = position % a->block_tokens;
    const char *rows = (const char *) a->cache
                       + a->blocks[position / a->block_tokens] * a->block_stride
                       + before * a->row_stride;
    const size_t rest = a->last - position, room = a->block_tokens - before;
    const size_t n = rest < room ? rest : room;
    block_t block = { memory, n, moe_kv_row_size(a->type, a->key + a->width) };

    if (a->type == MOE_KV_F32) {
        return (block_t) { (const float *) rows, n, a->row_stride / sizeof(float) };
    }
    for (size_t i = 0; i < n; i++) {
        load_row(a->type, rows + i * a->row_stride, a->key + a->width, memory + i * block.stride);
    }
    return block;
}


/* Scores [last - first][16]: lanes of missing heads are zero. */
static void attend_scores(const moe_attend_t *a, float *panel, float *scores, float *memory)
{
    memset(panel, 0, a->width * MOE_PANEL * sizeof(float));
    for (size_t h = 0; h < a->heads; h++) {
        for (size_t i = 0; i < a->width; i++) {
            panel[i * MOE_PANEL + h] = a->query[h * a->width + i];
        }
    }
    for (size_t p = a->first, n; p < a->last; p += n) {
        const block_t block = cache_block(a, p, memory);
        const tile_t tile = {
            .w = (const char *) panel, .w_panel = a->width * MOE_PANEL, .w_step = MOE_PANEL,
            .depth = a->width, .x = block.rows + a->key, .x_row = block.stride, .x_step = 1,
            .y = scores + (p - a->first) * MOE_PANEL, .y_row = MOE_PANEL,
        };

        run_product(tile, block.n, MOE_PANEL, MOE_ELEMENT_F32, 0);
        n = block.n;
    }
}


/* Scores to weights relative to their maximum; both statistics go to the head of the part. */
static void attend_softmax(const moe_attend_t *a, float *scores)
{
    const size_t n = a->last - a->first;
    const v16 scale = v16_set1(a->scale);
    v16 maximum = v16_mul(v16_load(scores), scale), sum = v16_set1(0.0f);

    for (size_t i = 0; i < n; i++) {
        v16 score = v16_mul(v16_load(scores + i * MOE_PANEL), scale);

        v16_store(scores + i * MOE_PANEL, score);
        maximum = v16_max(score, maximum);
    }
    for (size_t i = 0; i < n; i++) {
        v16 weight = v16_exp(v16_sub(v16_load(scores + i * MOE_PANEL), maximum));

        v16_store(scores + i * MOE_PANEL, weight);
        sum = v16_add(sum, weight);
    }
    v16_store(a->part, maximum);
    v16_store(a->part + MOE_PANEL, sum);
}


static void attend(const moe_attend_t *a)
{
    float *panel = a->scratch, *scores = panel + a->width * MOE_PANEL;
    float *memory = scores + (a->last - a->first) * MOE_PANEL;
    const size_t latent = round_to_panels(a->latent);

    attend_scores(a, panel, scores, memory);
    attend_softmax(a, scores);
    for (size_t p = a->first, n; p < a->last; p += n) {
        const block_t block = cache_block(a, p, memory);
        const tile_t tile = {
            .w = (const char *) block.rows, .w_panel = MOE_PANEL, .w_step = block.stride,
            .depth = block.n,
            .x = scores + (p - a->first) * MOE_PANEL, .x_row = 1, .x_step = MOE_PANEL,
            .y = a->part + 2 * MOE_PANEL, .y_row = latent, .accumulate = p > a->first,
        };

        run_product(tile, a->heads, latent, MOE_ELEMENT_F32, 1);
        n = block.n;
    }
}


/* The sum of all parts relative to their largest score, sinks included; the parts' maxima become
 * their factors. */
static void join_factors(float *parts, size_t n_parts, size_t part_size, const float *sinks,
                         size_t heads, float *inverse)
{
    const v16 sink = sinks ? v16_load_n(sinks, heads) : v16_set1(0.0f);
    v16 maximum = sinks ? v16_max(sink, v16_load(parts)) : v16_load(parts);
    v16 sum = v16_set1(0.0f);

    for (size_t i = 1; i < n_parts; i++) {
        maximum = v16_max(v16_load(parts + i * part_size), maximum);
    }
    for (size_t i = 0; i < n_parts; i++) {
        float *part = parts + i * part_size;
        v16 factor = v16_exp(v16_sub(v16_load(part), maximum));

        v16_store(part, factor);
        sum = v16_fma(factor, v16_load(part + MOE_PANEL), sum);
    }
    if (sinks) {
        sum = v16_add(sum, v16_exp(v16_sub(sink, maximum)));
    }
    v16_store(inverse, v16_div(v16_set1(1.0f), sum));
}


static void attend_join(float *parts, size_t n_parts, size_t heads, size_t latent,
                        const float *sinks, float *y, size_t y_stride)
{
    const size_t part_size = moe_attend_part(latent), row = round_to_panels(latent);
    float inverse[MOE_PANEL];

    join_factors(parts, n_parts, part_size, sinks, heads, inverse);
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < latent; i += MOE_PANEL) {
            v16 sum = v16_set1(0.0f);

            for (size_t k = 0; k < n_parts; k++) {
                const float *part = parts + k * part_size;

                sum = v16_fma(v16_set1(part[h]), v16_load(part + 2 * MOE_PANEL + h * row + i), sum);
            }
            v16_store_n(y + h * y_stride + i, v16_mul(sum, v16_set1(inverse[h])),
                        latent - i < MOE_PANEL ? latent - i : MOE_PANEL);
        }
    }
}

#endif
