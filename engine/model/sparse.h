/*
 * The network of a layer that is dense in some layers, and routed experts with shared ones in the
 * others: DeepSeek's, and what later families made of it.
 */

#ifndef MOE_SPARSE_H
#define MOE_SPARSE_H

#include "engine/model/build.h"

/* How a family spells it. */
typedef struct {
    const char *experts_key, *top_k_key, *shared_key;   /* numbers, or one per layer, the same */
    const char *shared_width_key;                       /* width of a shared expert */
    const char *scale_key, *normalise_key;              /* NULL: 1; always */
    int normalise_otherwise;                            /* where the config says nothing */
    int dense_layers;                                   /* first ones, likewise */
    int scales_or_normalises;                           /* never both */
    moe_score_t score;
    int has_groups;                                     /* says topk_method, n_group, topk_group */
    const char *gate, *bias, *shared;                   /* names of tensors, `shared` a prefix; bias
                                                         * NULL: none */
} moe_sparse_spelling_t;

extern const moe_sparse_spelling_t moe_sparse_deepseek_v2;
extern const moe_sparse_spelling_t moe_sparse_deepseek_v3;     /* GLM's, too */
extern const moe_sparse_spelling_t moe_sparse_hy3;
extern const moe_sparse_spelling_t moe_sparse_ernie;
extern const moe_sparse_spelling_t moe_sparse_hunyuan;

/* The config keys of DeepSeek's spelling. */
#define MOE_SPARSE_KEYS \
    "first_k_dense_replace", "intermediate_size", "mlp_layer_types", "moe_intermediate_size", \
    "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", \
    "num_experts_per_tok", "num_nextn_predict_layers", "routed_scaling_factor", "scoring_func", \
    "topk_group", "topk_method"

typedef struct {
    uint32_t dense_width, expert_width, shared_width;
    moe_router_t router;        /* without weights */
    uint32_t first_moe, last_moe, moe_frequency;
    uint32_t phase;             /* layer i has experts if i + phase is a multiple of that */
    const json_t *layer_types;  /* the config's: "dense" or "sparse" per layer; NULL: as above */
} moe_sparse_t;

/* Reads it, of a model with so many layers; failures are noted in config. */
void moe_sparse_read(moe_sparse_t *sparse, const moe_sparse_spelling_t *spelling,
                     moe_config_t *config, uint32_t layers);

/* The shapes of layer i. */
void moe_sparse_describe(const moe_sparse_t *sparse, moe_layer_t *layer, uint32_t i);

/* Takes the tensors "PREFIX..." of a described layer's network.  0 or -1. */
int moe_sparse_take(moe_model_t *model, moe_layer_t *layer, const moe_sparse_spelling_t *spelling,
                    const char *prefix, moe_error_t *error);

#endif
