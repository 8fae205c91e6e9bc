#include "engine/model/sparse.h"

#include <stdio.h>
#include <string.h>


const moe_sparse_spelling_t moe_sparse_deepseek_v2 = {
    .experts_key = "n_routed_experts", .top_k_key = "num_experts_per_tok",
    .shared_key = "n_shared_experts", .shared_width_key = "moe_intermediate_size",
    .scale_key = "routed_scaling_factor", .normalise_key = "norm_topk_prob",
    .scales_or_normalises = 1, .score = MOE_SCORE_SOFTMAX, .has_groups = 1,
    .gate = "gate.weight", .shared = "shared_experts."
};

const moe_sparse_spelling_t moe_sparse_deepseek_v3 = {
    .experts_key = "n_routed_experts", .top_k_key = "num_experts_per_tok",
    .shared_key = "n_shared_experts", .shared_width_key = "moe_intermediate_size",
    .scale_key = "routed_scaling_factor", .normalise_key = "norm_topk_prob",
    .normalise_otherwise = 1, .score = MOE_SCORE_SIGMOID, .has_groups = 1,
    .gate = "gate.weight", .bias = "gate.e_score_correction_bias", .shared = "shared_experts."
};

const moe_sparse_spelling_t moe_sparse_hy3 = {
    .experts_key = "num_experts", .top_k_key = "num_experts_per_tok",
    .shared_key = "num_shared_experts", .shared_width_key = "moe_intermediate_size",
    .scale_key = "router_scaling_factor", .normalise_key = "route_norm",
    .normalise_otherwise = 1, .dense_layers = 1, .score = MOE_SCORE_SIGMOID,
    .gate = "router.gate.weight", .bias = "expert_bias", .shared = "shared_mlp."
};

const moe_sparse_spelling_t moe_sparse_ernie = {
    .experts_key = "moe_num_experts", .top_k_key = "moe_k", .shared_key = "moe_num_shared_experts",
    .shared_width_key = "moe_intermediate_size", .score = MOE_SCORE_SOFTMAX,
    .gate = "gate.weight", .bias = "moe_statics.e_score_correction_bias",
    .shared = "shared_experts."
};

const moe_sparse_spelling_t moe_sparse_hunyuan = {
    .experts_key = "num_experts", .top_k_key = "moe_topk", .shared_key = "num_shared_expert",
    .shared_width_key = "intermediate_size", .scale_key = "routed_scaling_factor",
    .score = MOE_SCORE_SOFTMAX, .gate = "gate.wg.weight", .shared = "shared_mlp."
};


/* A number, or as many as there are layers: then they must be the same. */
static uint32_t read_uniform(moe_config_t *config, const char *key, uint32_t minimum,
                             uint32_t maximum)
{
    json_t *list = moe_config_get(config, key), *entry;
    moe_config_t first = *config;
    uint32_t value;
    size_t i;

    if (!json_is_array(list)) {
        return moe_config_uint(config, key, minimum, maximum);
    }
    json_array_foreach(list, i, entry) {
        if (!json_equal(entry, json_array_get(list, 0))) {
            moe_config_fail(config, key, "layers that differ are not supported");
        }
    }
    first.object = json_pack("{s:O?}", key, json_array_get(list, 0));
    value = moe_config_uint(&first, key, minimum, maximum);
    config->failed |= first.failed;
    json_decref((json_t *) (uintptr_t) first.object);
    return value;
}


static void read_groups(moe_router_t *router, const moe_sparse_spelling_t *spelling,
                        moe_config_t *config, moe_group_t group)
{
    uint32_t size;

    router->groups = moe_config_uint_or(config, "n_group", 1, 1, router->experts);
    router->groups_kept = moe_config_uint_or(config, "topk_group", 1, 1, router->groups);
    size = router->experts / router->groups;
    if (router->experts % router->groups != 0) {
        moe_config_fail(config, "n_group", "%u does not divide %s %u", router->groups,
                        spelling->experts_key, router->experts);
    }
    if (group == MOE_GROUP_NONE || router->groups == 1) {
        router->groups = 1;
        router->groups_kept = 1;
        return;
    }
    if (group == MOE_GROUP_TOP2_SUM && size < 2) {
        moe_config_fail(config, "n_group", "%u leaves fewer than 2 experts in a group",
                        router->groups);
    }
    if (router->top_k > size * router->groups_kept) {
        moe_config_fail(config, spelling->top_k_key, "%u is more than the %u experts of the "
                        "topk_group groups", router->top_k, size * router->groups_kept);
    }
    router->group = group;
}


/* How the groups of experts are chosen follows from how experts are scored. */
static moe_group_t read_method(moe_config_t *config, int sigmoid)
{
    const char *method = moe_config_string_or(config, "topk_method",
                                              sigmoid ? "noaux_tc" : "greedy");

    if (sigmoid && strcmp(method, "noaux_tc") == 0) {
        return MOE_GROUP_TOP2_SUM;
    }
    if (!sigmoid && strcmp(method, "group_limited_greedy") == 0) {
        return MOE_GROUP_MAX;
    }
    if (sigmoid || strcmp(method, "greedy") != 0) {
        moe_config_fail(config, "topk_method", "\"%.64s\" is not supported here", method);
    }
    return MOE_GROUP_NONE;
}


static void read_router(moe_router_t *router, const moe_sparse_spelling_t *spelling,
                        moe_config_t *config)
{
    const int sigmoid = spelling->score == MOE_SCORE_SIGMOID;

    router->experts = read_uniform(config, spelling->experts_key, 1, MOE_EXPERTS_LIMIT);
    router->top_k = read_uniform(config, spelling->top_k_key, 1, router->experts);
    /* which is also what writers of today call it */
    moe_config_uint_or(config, "num_experts_per_tok", router->top_k, router->top_k, router->top_k);
    router->scale = spelling->scale_key == NULL ? 1
                    : (float) moe_config_number_or(config, spelling->scale_key, 1, 1e-6, 1e6);
    router->normalise = spelling->normalise_key == NULL
                        || moe_config_bool_or(config, spelling->normalise_key,
                                              spelling->normalise_otherwise);
    router->score = spelling->score;
    router->groups = 1;
    router->groups_kept = 1;
    moe_config_expect(config, "scoring_func", sigmoid ? "sigmoid" : "softmax");
    if (spelling->bias != NULL) {
        router->bias.size = router->experts;
    }
    if (spelling->scales_or_normalises && router->normalise) {
        /* V2's own code either normalises (more than one expert) or scales, never both. */
        router->normalise = router->top_k > 1;
        router->scale = router->normalise ? 1 : router->scale;
    }
    if (spelling->has_groups) {
        read_groups(router, spelling, config, read_method(config, sigmoid));
    }
}


static void read_layer_types(moe_sparse_t *sparse, moe_config_t *config, uint32_t layers)
{
    const json_t *type;
    size_t i;

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


/* Which layers have experts: DeepSeek's keys, or ERNIE's, of which -1 means the last layer. */
static void read_layers(moe_sparse_t *sparse, const moe_sparse_spelling_t *spelling,
                        moe_config_t *config, uint32_t layers)
{
    static const char start[] = "moe_layer_start_index", end[] = "moe_layer_end_index";

    sparse->last_moe = layers - 1;
    if (moe_config_get(config, start) != NULL) {
        sparse->first_moe = moe_config_uint(config, start, 0, layers);
        sparse->moe_frequency = moe_config_uint_or(config, "moe_layer_interval", 1, 1,
                                                   MOE_LAYERS_LIMIT);
        sparse->phase = 1;
        if (json_integer_value(moe_config_get(config, end)) != -1) {
            sparse->last_moe = moe_config_uint_or(config, end, layers - 1, 0, layers - 1);
        }
        return;
    }
    sparse->first_moe = moe_config_uint_or(config, "first_k_dense_replace",
                                           (uint32_t) spelling->dense_layers, 0, layers);
    sparse->moe_frequency = moe_config_uint_or(config, "moe_layer_freq", 1, 1, MOE_LAYERS_LIMIT);
    read_layer_types(sparse, config, layers);
}


void moe_sparse_read(moe_sparse_t *sparse, const moe_sparse_spelling_t *spelling,
                     moe_config_t *config, uint32_t layers)
{
    uint32_t shared = 0;

    *sparse = (moe_sparse_t) {
        .dense_width = moe_config_uint(config, "intermediate_size", 1, MOE_WIDTH_LIMIT),
        .expert_width = read_uniform(config, "moe_intermediate_size", 1, MOE_WIDTH_LIMIT)
    };
    if (moe_config_get(config, spelling->shared_key) != NULL) {
        shared = read_uniform(config, spelling->shared_key, 0, 256);
    }
    sparse->shared_width = shared * read_uniform(config, spelling->shared_width_key, 1,
                                                 MOE_WIDTH_LIMIT);
    read_router(&sparse->router, spelling, config);
    read_layers(sparse, spelling, config, layers);
}


static int is_moe_layer(const moe_sparse_t *sparse, uint32_t i)
{
    if (sparse->layer_types != NULL) {
        return strcmp(json_string_value(json_array_get(sparse->layer_types, i)), "sparse") == 0;
    }
    return i >= sparse->first_moe && i <= sparse->last_moe
           && (i + sparse->phase) % sparse->moe_frequency == 0;
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


static int take_moe(moe_model_t *model, moe_block_t *block, const moe_sparse_spelling_t *spelling,
                    const char *prefix, moe_error_t *error)
{
    const uint32_t experts = block->router.experts;
    char name[128];

    if (moe_model_take_weight(model, error, &block->router.gate, experts, model->hidden, "%s%s",
                              prefix, spelling->gate) != 0
        || (block->router.bias.size > 0
            && moe_model_take_vector(model, error, &block->router.bias, experts, "%s%s", prefix,
                                     spelling->bias) != 0))
    {
        return -1;
    }
    snprintf(name, sizeof(name), "%sexperts.", prefix);
    if (moe_model_take_block(model, error, block, name, &moe_usual_names) != 0) {
        return -1;
    }
    snprintf(name, sizeof(name), "%s%s", prefix, spelling->shared);
    return block->shared.width == 0 ? 0
           : moe_model_take_ffn(model, error, &block->shared, name, &moe_usual_names);
}


int moe_sparse_take(moe_model_t *model, moe_layer_t *layer, const moe_sparse_spelling_t *spelling,
                    const char *prefix, moe_error_t *error)
{
    return layer->is_moe ? take_moe(model, &layer->moe, spelling, prefix, error)
           : moe_model_take_ffn(model, error, &layer->dense, prefix, &moe_usual_names);
}
