#include "engine/model/sparse.h"

#include <stdio.h>
#include <string.h>


static void read_groups(moe_router_t *router, moe_config_t *config, moe_group_t group)
{
    uint32_t size;

    router->groups = moe_config_uint_or(config, "n_group", 1, 1, router->experts);
    router->groups_kept = moe_config_uint_or(config, "topk_group", 1, 1, router->groups);
    size = router->experts / router->groups;
    if (router->experts % router->groups != 0) {
        moe_config_fail(config, "n_group", "%u does not divide n_routed_experts %u",
                        router->groups, router->experts);
    }
    if (group == MOE_GROUP_NONE || router->groups == 1) {
        router->group = MOE_GROUP_NONE;
        router->groups = 1;
        router->groups_kept = 1;
        return;
    }
    if (group == MOE_GROUP_TOP2_SUM && size < 2) {
        moe_config_fail(config, "n_group", "%u leaves fewer than 2 experts in a group",
                        router->groups);
    }
    if (router->top_k > size * router->groups_kept) {
        moe_config_fail(config, "num_experts_per_tok", "%u is more than the %u experts of the "
                        "topk_group groups", router->top_k, size * router->groups_kept);
    }
    router->group = group;
}


static void read_router(moe_router_t *router, moe_config_t *config, int v2)
{
    const char *method = moe_config_string_or(config, "topk_method", v2 ? "greedy" : "noaux_tc");
    moe_group_t group = MOE_GROUP_NONE;

    router->experts = moe_config_uint(config, "n_routed_experts", 1, MOE_EXPERTS_LIMIT);
    router->top_k = moe_config_uint(config, "num_experts_per_tok", 1, router->experts);
    router->scale = (float) moe_config_number_or(config, "routed_scaling_factor", 1, 1e-6, 1e6);
    router->normalise = moe_config_bool_or(config, "norm_topk_prob", !v2);
    router->score = v2 ? MOE_SCORE_SOFTMAX : MOE_SCORE_SIGMOID;
    moe_config_expect(config, "scoring_func", v2 ? "softmax" : "sigmoid");
    if (!v2 && strcmp(method, "noaux_tc") == 0) {
        group = MOE_GROUP_TOP2_SUM;
        router->bias.size = router->experts;
    } else if (v2 && strcmp(method, "group_limited_greedy") == 0) {
        group = MOE_GROUP_MAX;
    } else if (!v2 || strcmp(method, "greedy") != 0) {
        moe_config_fail(config, "topk_method", "\"%.64s\" is not supported here", method);
    }
    if (v2 && router->normalise) {
        /* V2's own code either normalises (more than one expert) or scales, never both. */
        router->normalise = router->top_k > 1;
        router->scale = router->normalise ? 1 : router->scale;
    }
    read_groups(router, config, group);
}


static void read_layer_types(moe_sparse_t *sparse, moe_config_t *config, uint32_t layers)
{
    const json_t *type;
    size_t i;

    sparse->first_moe = moe_config_uint_or(config, "first_k_dense_replace", 0, 0, layers);
    sparse->moe_frequency = moe_config_uint_or(config, "moe_layer_freq", 1, 1, MOE_LAYERS_LIMIT);
    sparse->layer_types = moe_config_get(config, "mlp_layer_types");
    if (sparse->layer_types == NULL) {
        return;
    }
    if (json_array_size(sparse->layer_types) != layers) {
        moe_config_fail(config, "mlp_layer_types", "not an array of num_hidden_layers entries");
    }
    json_array_foreach(sparse->layer_types, i, type) {
        const char *name = json_string_value(type);

        if (name == NULL || (strcmp(name, "dense") != 0 && strcmp(name, "sparse") != 0)) {
            moe_config_fail(config, "mlp_layer_types", "entry %zu is neither dense nor sparse", i);
            return;
        }
    }
}


void moe_sparse_read(moe_sparse_t *sparse, moe_config_t *config, uint32_t layers, int v2)
{
    *sparse = (moe_sparse_t) {
        .dense_width = moe_config_uint(config, "intermediate_size", 1, MOE_WIDTH_LIMIT),
        .expert_width = moe_config_uint(config, "moe_intermediate_size", 1, MOE_WIDTH_LIMIT)
    };
    sparse->shared_width = sparse->expert_width
                           * moe_config_uint_or(config, "n_shared_experts", 0, 0, 256);
    read_router(&sparse->router, config, v2);
    read_layer_types(sparse, config, layers);
}


static int is_moe_layer(const moe_sparse_t *sparse, uint32_t i)
{
    if (sparse->layer_types != NULL) {
        return strcmp(json_string_value(json_array_get(sparse->layer_types, i)), "sparse") == 0;
    }
    return i >= sparse->first_moe && i % sparse->moe_frequency == 0;
}


void moe_sparse_describe(const moe_sparse_t *sparse, moe_layer_t *layer, uint32_t i)
{
    layer->is_moe = is_moe_layer(sparse, i);
    if (layer->is_moe) {
        layer->moe.router = sparse->router;
        layer->moe.width = sparse->expert_width;
        layer->moe.shared.width = sparse->shared_width;
    } else {
        layer->dense.width = sparse->dense_width;
    }
}


static int take_moe(moe_model_t *model, moe_block_t *block, const char *prefix,
                    moe_error_t *error)
{
    const uint32_t experts = block->router.experts;
    char name[128];

    if (moe_model_take_weight(model, error, &block->router.gate, experts, model->hidden,
                              "%sgate.weight", prefix) != 0
        || (block->router.bias.size > 0
            && moe_model_take_vector(model, error, &block->router.bias, experts,
                                     "%sgate.e_score_correction_bias", prefix) != 0))
    {
        return -1;
    }
    snprintf(name, sizeof(name), "%sexperts.", prefix);
    if (moe_model_take_block(model, error, block, name, &moe_usual_names) != 0) {
        return -1;
    }
    snprintf(name, sizeof(name), "%sshared_experts.", prefix);
    return block->shared.width == 0 ? 0
           : moe_model_take_ffn(model, error, &block->shared, name, &moe_usual_names);
}


int moe_sparse_take(moe_model_t *model, moe_layer_t *layer, const char *prefix,
                    moe_error_t *error)
{
    return layer->is_moe ? take_moe(model, &layer->moe, prefix, error)
           : moe_model_take_ffn(model, error, &layer->dense, prefix, &moe_usual_names);
}
