/*
 * Rotary position embedding as configs spell it: `rope_theta` + `rope_scaling` (old) or
 * `rope_parameters` (new), and how large a share of a head rotates.
 *
 * Types: default; linear (positions divided by a factor); llama3; yarn (arXiv 2309.00071); longrope
 * (arXiv 2402.13753); dynamic with alpha (Hunyuan), which is another theta.
 */

#ifndef MOE_ROPE_H
#define MOE_ROPE_H

#include "engine/model/config.h"

typedef enum {
    MOE_ROPE_DEFAULT = 0,
    MOE_ROPE_LINEAR,
    MOE_ROPE_LLAMA3,
    MOE_ROPE_YARN,
    MOE_ROPE_LONGROPE,
    MOE_ROPE_ALPHA
} moe_rope_type_t;

typedef struct {
    moe_rope_type_t type;
    const char *name;                   /* of the type, as configs spell it */
    double theta;
    uint32_t width;                     /* dimensions that rotate, even */
    double factor;
    double original_context;            /* of llama3, yarn and longrope */
    double attention_factor;            /* of yarn and longrope; 0: not given */
    int truncate;                       /* yarn: correction range in whole dimensions */
    double beta_fast, beta_slow;
    double mscale, mscale_all_dim;      /* 0: not given */
    double low_factor, high_factor;     /* llama3 */
    double alpha;
    const json_t *short_factors, *long_factors;         /* longrope: [width / 2], the config's */
    double short_mscale, long_mscale;   /* 0: not given */
} moe_rope_t;

/*
 * Reads the rope keys of a config; failures are noted in it.  share: of the `head` dimensions of a
 * head, how many rotate where the config does not say (as `rotary_dim` or `partial_rotary_factor`);
 * 0: all, whatever it says otherwise is refused.
 */
void moe_rope_read(moe_rope_t *rope, moe_config_t *config, uint32_t head, double share);

/* frequencies[j], j < rope->width / 2: angle per position of pair j, computed in double.  is_long:
 * of sequences that may outgrow original_context, which only longrope tells apart. */
void moe_rope_frequencies(const moe_rope_t *rope, int is_long, float *frequencies);

/* Factor on cos and sin. */
double moe_rope_magnitude(const moe_rope_t *rope, int is_long);

/* Factor on the softmax scale (DeepSeek's use of mscale_all_dim). */
double moe_rope_softmax_factor(const moe_rope_t *rope);

#endif
