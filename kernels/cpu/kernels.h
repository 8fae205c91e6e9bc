/*
 * CPU kernels: the inner loops of the device operations, one file per operation, each compiled for
 * every instruction set (kernels_<isa>.c) and chosen at run time.  They know arrays, no model and
 * no threads; the caller cuts work into calls.
 *
 * All instruction sets give the same bits (vector.h), and no result depends on how many rows a call
 * works on.
 */

#ifndef MOE_KERNELS_H
#define MOE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kv.h"
#include "kernels/payload.h"
#include "kernels/swiglu.h"

#define MOE_PANEL 16u               /* output rows of a weight panel */

typedef enum {
    MOE_ELEMENT_F32 = 1,
    MOE_ELEMENT_F16,
    MOE_ELEMENT_BF16
} moe_element_t;

/*
 * y[r][c] = bias[c] + sum over i of x[r][i] * w[c][i], fused multiply-adds in the order of i, which
 * begin with the bias.
 *
 * The weights lie in panels of 16 output columns c, [panel][i][16], so that one vector of weights
 * meets one broadcast element of x; the last panel is padded with zeros.
 */
typedef struct {
    const void *panels;
    moe_element_t element;
    size_t depth;                   /* terms of each sum */
    size_t columns;                 /* output columns, not padded */
    const float *bias;              /* [columns]; NULL: none */
    const float *x;
    size_t x_stride;                /* floats between rows of x */
    float *y;
    size_t y_stride;
    size_t rows;
} moe_product_t;

#define MOE_ATTEND_ROWS 16u

/* One row of attention over positions [first, last) of a paged cache, for up to 16 heads. */
typedef struct {
    const float *query;             /* [heads, width] */
    size_t heads;
    size_t key, width;              /* numbers of a cache row that meet the query: its last
                                     * ones, [key, key + width) */
    size_t latent;                  /* its first numbers: what is averaged */
    const void *cache;              /* of this layer, in block 0 */
    moe_kv_type_t type;             /* of its rows, of key + width numbers */
    size_t block_stride;            /* bytes between blocks */
    size_t row_stride;              /* bytes between tokens of a block */
    size_t block_tokens;            /* at most MOE_ATTEND_ROWS */
    const uint32_t *blocks;         /* of the sequence */
    size_t first, last;             /* last > first */
    float scale;
    float *scratch;                 /* moe_attend_scratch floats */
    float *part;                    /* out: moe_attend_part floats */
} moe_attend_t;

/* [16] largest scores, [16] sums, [16][latent rounded up to 16] weighted sums. */
static inline size_t moe_attend_part(size_t latent)
{
    return 2 * MOE_PANEL + MOE_PANEL * ((latent + MOE_PANEL - 1) / MOE_PANEL * MOE_PANEL);
}


/* A panel of queries, scores, and a block of the cache as floats: rows of `size` numbers. */
static inline size_t moe_attend_scratch(size_t size, size_t positions)
{
    return MOE_PANEL * (size + positions) + MOE_ATTEND_ROWS * moe_kv_row_size(MOE_KV_Q8_0, size);
}


#define MOE_ROUTE_GROUPS 64u

/* Which experts, and with which weights. */
typedef struct {
    size_t experts, top_k;          /* top_k <= experts; a multiple of groups */
    int sigmoid;                    /* score: sigmoid, else softmax */
    size_t groups, groups_kept;     /* groups <= 1: no group limit; groups <=
                                     * MOE_ROUTE_GROUPS, groups_kept <= groups */
    size_t group_top;               /* a group's score: sum of its 1 or 2 largest keys */
    int normalise;                  /* divide by the sum + 1e-20 */
    float scale;
    const float *bias;              /* [experts], selection only; NULL: none */
} moe_route_t;

typedef struct {
    const char *name;

    void (*product)(const moe_product_t *product);

    /* y = row `row` of packed weights, widened. */
    void (*embed)(const void *panels, moe_element_t element, size_t depth, size_t row, float *y);

    /* y = weight * x / sqrt(mean(x^2) + eps); y may be x. */
    void (*rms_norm)(const float *x, const float *weight, float eps, size_t n, float *y);

    /* y = what `form` makes of gate and up; y may be either. */
    void (*swiglu)(const moe_swiglu_t *form, const float *gate, const float *up, size_t n,
                   float *y);

    /* y *= sigmoid(score) */
    void (*gate_row)(float score, size_t n, float *y);

    /* y += scale * x */
    void (*add)(const float *x, float scale, size_t n, float *y);

    /* y = sum of weights[s] * x[index[s]] in the order of s, then + shared unless that is NULL.
     * x: rows of n floats. */
    void (*combine)(const float *x, const uint32_t *index, const float *weights, size_t top_k,
                    const float *shared, size_t n, float *y);

    /* Rotates pairs of x into y (may be x): (2j, 2j+1) interleaved, else (j, j + n / 2).
     * table: [n / 2] cos, then [n / 2] sin. */
    void (*rope)(const float *x, const float *table, int interleaved, size_t n, float *y);

    /* x: [n] into a cache row. */
    void (*store_row)(moe_kv_type_t type, const float *x, size_t n, void *row);

    /* x: [n] into a row that travels, and out of one. */
    void (*encode_row)(moe_payload_t type, const float *x, size_t n, void *row);
    void (*decode_row)(moe_payload_t type, const void *row, size_t n, float *y);

    void (*attend)(const moe_attend_t *attend);

    /* Joins the parts of one row in their order into y: [heads, latent], y_stride between heads.
     * Their maxima are overwritten.  sinks: [heads] scores that count in the sums of weights only;
     * NULL: none. */
    void (*attend_join)(float *parts, size_t n_parts, size_t heads, size_t latent,
                        const float *sinks, float *y, size_t y_stride);

    /* scores: logits in, scores out; keys: scratch; both [experts].  ids, weights: [top_k], by
     * falling key; ties go to the lower index. */
    void (*route)(const moe_route_t *route, float *scores, float *keys, uint32_t *ids,
                  float *weights);
} moe_kernels_t;

extern const moe_kernels_t moe_kernels_c;
#if defined(__x86_64__)
extern const moe_kernels_t moe_kernels_avx2;
extern const moe_kernels_t moe_kernels_avx512;
#endif

/* The kernels of an instruction set ("avx512", "avx2", "c"), or the best for NULL.  NULL when the
 * name is unknown or this CPU cannot run them. */
const moe_kernels_t *moe_kernels_find(const char *isa);

/* The names this CPU can run, best first: the i-th, or NULL past the end. */
const char *moe_kernels_name(size_t index);

#endif
