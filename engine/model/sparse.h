/*
 * The network of a layer as DeepSeek's configs spell it, which Kimi and GLM took over: dense in
 * some layers, routed experts with shared ones in the others.
 */

#ifndef MOE_SPARSE_H
#define MOE_SPARSE_H

#include "engine/model/build.h"

/* The config keys that moe_sparse_read understands. */
#define MOE_SPARSE_KEYS \
    "first_k_dense_replace", "intermediate_size", "mlp_layer_types", "moe_intermediate_size", \
    "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", \
    "num_experts_per_tok", "num_nextn_predict_layers", "routed_scaling_factor", "scoring_func", \
    "topk_group", "topk_method"

typedef struct {
    uint32_t dense_width, expert_width, shared_width;
    moe_router_t router;        /* without weights */
    uint32_t first_moe, moe_frequency;
    const json_t *layer_types;  /* the config's: "dense" or "sparse" per layer; NULL: the two above */
} moe_sparse_t;

/* Reads it, of a model with so many layers; failures are noted in config.  v2: DeepSeek-V2's router
 * (softmax, no bias) instead of V3's. */
void moe_sparse_read(moe_sparse_t *sparse, moe_config_t *config, uint32_t layers, int v2);

/* The shapes of layer i. */
void moe_sparse_describe(const moe_sparse_t *sparse, moe_layer_t *layer, uint32_t i);

/* Takes the tensors "PREFIX..." of a described layer's network.  0 or -1. */
int moe_sparse_take(moe_model_t *model, moe_layer_t *layer, const char *prefix,
                    moe_error_t *error);

#endif
