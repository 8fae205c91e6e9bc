/*
 * Matrix products over panels.
 *
 * A tile keeps ROWS x PANELS accumulators in registers and walks the whole depth: each vector of
 * weights is widened once and meets ROWS broadcast elements of x.  Few rows take more panels at a
 * time, so that there are always enough independent chains to hide the latency of the multiply-add.
 * Each output is one chain over the depth whatever the tile: a row's result does not depend on its
 * neighbours.
 */

#ifndef MOE_PRODUCT_H
#define MOE_PRODUCT_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"

/* With few rows the weights stream from memory, and the hardware's prefetcher, which stops at page
 * borders, is too slow for several panels at a time: it reaches half of the bandwidth. */
#define STREAMED_ROWS 4u
#define PREFETCH_BYTES 2048u

typedef struct {
    const char *w;              /* first panel of the tile */
    size_t w_panel, w_step;     /* elements between panels, between terms */
    size_t depth;
    const float *bias;          /* of the tile's columns; NULL: none */
    const float *x;
    size_t x_row, x_step;       /* floats between rows, between terms */
    float *y;
    size_t y_row;
    size_t last_lanes;          /* columns of the last panel of the tile that exist */
    int accumulate;             /* go on from what y holds */
} tile_t;


MOE_INLINE v16 load_weights(const char *w, const moe_element_t element)
{
    switch (element) {
    case MOE_ELEMENT_BF16:
        return v16_load_bf16((const uint16_t *) w);
    case MOE_ELEMENT_F16:
        return v16_load_f16((const uint16_t *) w);
    default:
        return v16_load((const float *) w);
    }
}


MOE_INLINE size_t element_size(const moe_element_t element)
{
    return element == MOE_ELEMENT_F32 ? sizeof(float) : sizeof(uint16_t);
}


/* What the sums of a panel begin with. */
MOE_INLINE v16 first_sum(const tile_t *t, size_t panel, size_t panels)
{
    if (t->bias == NULL) {
        return v16_set1(0.0f);
    }
    return panel + 1 == panels && t->last_lanes < MOE_PANEL
               ? v16_load_n(t->bias + panel * MOE_PANEL, t->last_lanes)
               : v16_load(t->bias + panel * MOE_PANEL);
}


/* All arguments but `t` are constants where this is inlined: the loops over rows and panels unroll
 * and the sums live in registers. */
MOE_INLINE void run_tile(const tile_t *t, const moe_element_t element, const size_t rows,
                         const size_t panels, const int strided)
{
    const size_t w_step = strided ? t->w_step : MOE_PANEL, x_step = strided ? t->x_step : 1;
    const float *x = t->x;
    const char *w = t->w;
    v16 sum[MOE_TILE_ROWS][MOE_TILE_PANELS];

#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (size_t p = 0; p < panels; p++) {
            sum[r][p] = strided && t->accumulate ? v16_load(t->y + r * t->y_row + p * MOE_PANEL)
                                                 : first_sum(t, p, panels);
        }
    }
    for (size_t i = 0; i < t->depth; i++) {
        v16 weights[MOE_TILE_PANELS];

#pragma GCC unroll 16
        for (size_t p = 0; p < panels; p++) {
            const char *panel = w + p * t->w_panel * element_size(element);

            if (!strided && rows <= STREAMED_ROWS) {
                __builtin_prefetch(panel + PREFETCH_BYTES);
            }
            weights[p] = load_weights(panel, element);
        }
#pragma GCC unroll 16
        for (size_t r = 0; r < rows; r++) {
            v16 broadcast = v16_set1(x[r * t->x_row]);

#pragma GCC unroll 16
            for (size_t p = 0; p < panels; p++) {
                sum[r][p] = v16_fma(broadcast, weights[p], sum[r][p]);
            }
        }
        w += w_step * element_size(element);
        x += x_step;
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (size_t p = 0; p < panels; p++) {
            float *y = t->y + r * t->y_row + p * MOE_PANEL;

            if (p + 1 == panels && t->last_lanes < MOE_PANEL) {
                v16_store_n(y, sum[r][p], t->last_lanes);
            } else {
                v16_store(y, sum[r][p]);
            }
        }
    }
}


/* Goes on to the columns behind `panels` panels. */
MOE_INLINE void next_panels(tile_t *tile, size_t panels, size_t panel_bytes)
{
    tile->w += panels * panel_bytes;
    tile->y += panels * MOE_PANEL;
    if (tile->bias) {
        tile->bias += panels * MOE_PANEL;
    }
}


/* `rows` rows of x against all columns, `panels` panels at a time. */
MOE_INLINE void run_rows(const tile_t *all, size_t columns, const moe_element_t element,
                         const size_t rows, const size_t panels, const int strided)
{
    const size_t panel_bytes = all->w_panel * element_size(element);
    tile_t tile = *all;

    for (; columns >= panels * MOE_PANEL && panels > 1; columns -= panels * MOE_PANEL) {
        tile.last_lanes = MOE_PANEL;
        run_tile(&tile, element, rows, panels, strided);
        next_panels(&tile, panels, panel_bytes);
    }
    while (columns > 0) {
        tile.last_lanes = columns < MOE_PANEL ? columns : MOE_PANEL;
        run_tile(&tile, element, rows, 1, strided);
        columns -= tile.last_lanes;
        next_panels(&tile, 1, panel_bytes);
    }
}


MOE_INLINE void run_product(tile_t tile, size_t rows, size_t columns, const moe_element_t element,
                            const int strided)
{
#define TILE(tile_rows, tile_panels)                                                              \
    while (rows >= (tile_rows)) {                                                                 \
        run_rows(&tile, columns, element, tile_rows, tile_panels, strided);                       \
        tile.x += (tile_rows) * tile.x_row;                                                       \
        tile.y += (tile_rows) * tile.y_row;                                                       \
        rows -= (tile_rows);                                                                      \
    }
    MOE_TILES
#undef TILE
}


static void product(const moe_product_t *p)
{
    tile_t tile = {
        .w = p->panels, .w_panel = p->depth * MOE_PANEL, .w_step = MOE_PANEL, .depth = p->depth,
        .bias = p->bias, .x = p->x, .x_row = p->x_stride, .x_step = 1, .y = p->y,
        .y_row = p->y_stride,
    };

    switch (p->element) {
    case MOE_ELEMENT_BF16:
        run_product(tile, p->rows, p->columns, MOE_ELEMENT_BF16, 0);
        break;
    case MOE_ELEMENT_F16:
        run_product(tile, p->rows, p->columns, MOE_ELEMENT_F16, 0);
        break;
    case MOE_ELEMENT_F32:
        run_product(tile, p->rows, p->columns, MOE_ELEMENT_F32, 0);
        break;
    }
}


static void embed(const void *panels, moe_element_t element, size_t depth, size_t row, float *y)
{
    const size_t start = row / MOE_PANEL * depth * MOE_PANEL + row % MOE_PANEL;

    for (size_t i = 0; i < depth; i++) {
        const size_t at = start + i * MOE_PANEL;

        y[i] = element == MOE_ELEMENT_F32    ? ((const float *) panels)[at]
               : element == MOE_ELEMENT_BF16 ? f32_from_bf16(((const uint16_t *) panels)[at])
                                             : f32_from_f16(((const uint16_t *) panels)[at]);
    }
}

#endif
