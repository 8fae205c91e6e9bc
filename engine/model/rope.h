/*
 * Rotary position embedding: base frequencies and YaRN (arXiv 2309.00071), as configs spell them:
 * `rope_theta` + `rope_scaling` (old) or `rope_parameters` (new).
 */

#ifndef MOE_ROPE_H
#define MOE_ROPE_H

#include "engine/model/config.h"

typedef struct {
    double theta;
    int yarn;                   /* else plain, and the rest is unused */
    int truncate;               /* correction range floored and ceiled to whole dimensions */
    double factor, original_context, beta_fast, beta_slow;
    double mscale, mscale_all_dim;      /* 0: not given */
    double attention_factor;            /* 0: not given */
} moe_rope_t;

/* Reads the rope keys of a config; failures are noted in it. */
void moe_rope_read(moe_rope_t *rope, moe_config_t *config);

/* frequencies[j], j < width / 2: angle per position of pair j, computed in double. */
void moe_rope_frequencies(const moe_rope_t *rope, uint32_t width, float *frequencies);

/* Factor on cos and sin. */
double moe_rope_magnitude(const moe_rope_t *rope);

/* Factor on the softmax scale (DeepSeek's use of mscale_all_dim). */
double moe_rope_softmax_factor(const moe_rope_t *rope);

#endif
