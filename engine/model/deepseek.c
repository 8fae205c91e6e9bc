/*
 * DeepSeek-V2, V3 and those that use V3's code (Kimi-K2).  The config is read into one struct of
 * checked settings first; all bounds are chosen so that products of two of them fit 32 bits, and
 * every count that sizes memory is confirmed by tensors of that shape before the next is believed.
 */

#include "engine/model/deepseek.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/build.h"

/* transformers builds the norms inside MLA with its class default, whatever rms_norm_eps says. */
#define LATENT_NORM_EPS 1e-6f

#define LORA_LIMIT (1u << 16)

typedef struct {
    moe_outline_t outline;
    moe_mla_t mla;              /* without weights and frequencies */
    moe_rope_t rope;
    int interleaved;
    uint32_t dense_width, expert_width, shared_width;
    moe_router_t router;        /* without weights */
    uint32_t first_moe, moe_frequency;
    const json_t *layer_types;  /* "dense" or "sparse" per layer; NULL: first_moe and frequency */
} settings_t;

static const char *const known_keys[] = {
    "attention_bias", "first_k_dense_replace", "head_dim", "hidden_act", "hidden_size",
    "intermediate_size", "kv_lora_rank", "max_position_embeddings", "mlp_bias", "mlp_layer_types",
    "moe_intermediate_size", "moe_layer_freq", "n_group", "n_routed_experts", "n_shared_experts",
    "norm_topk_prob", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers",
    "num_key_value_heads", "num_nextn_predict_layers", "q_lora_rank", "qk_head_dim",
    "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps", "rope_interleave", "rope_parameters",
    "rope_scaling", "rope_theta", "routed_scaling_factor", "scoring_func", "tie_word_embeddings",
    "topk_group", "topk_method", "v_head_dim", "vocab_size", NULL
};


static int is_v2(const moe_family_t *family)
{
    return family == &moe_family_deepseek_v2;
}


static void read_attention(settings_t *s, moe_config_t *config)
{
    moe_mla_t *mla = &s->mla;

    mla->heads = moe_config_uint(config, "num_attention_heads", 1, MOE_HEADS_LIMIT);
    mla->q_lora = moe_config_uint_or(config, "q_lora_rank", 0, 1, LORA_LIMIT);
    mla->kv_lora = moe_config_uint(config, "kv_lora_rank", 1, LORA_LIMIT);
    mla->nope = moe_config_uint(config, "qk_nope_head_dim", 1, MOE_HEAD_WIDTH_LIMIT);
    mla->rope = moe_config_uint(config, "qk_rope_head_dim", 2, MOE_HEAD_WIDTH_LIMIT);
    mla->value = moe_config_uint(config, "v_head_dim", 1, MOE_HEAD_WIDTH_LIMIT);
    if (mla->rope % 2 != 0) {
        moe_config_fail(config, "qk_rope_head_dim", "%u is odd", mla->rope);
    }
    /* Redundant keys of some writers: a different value would mean other maths. */
    moe_config_uint_or(config, "num_key_value_heads", mla->heads, mla->heads, mla->heads);
    moe_config_uint_or(config, "head_dim", mla->rope, mla->rope, mla->rope);
    moe_config_uint_or(config, "qk_head_dim", mla->nope + mla->rope, mla->nope + mla->rope,
                       mla->nope + mla->rope);
    if (moe_config_bool_or(config, "attention_bias", 0)) {
        moe_config_fail(config, "attention_bias", "true is not supported");
    }
    moe_rope_read(&s->rope, config, mla->rope, 0);
    s->interleaved = moe_config_bool_or(config, "rope_interleave", 1);
    mla->scale = (float) (moe_rope_softmax_factor(&s->rope) / sqrt((double) mla->nope + mla->rope));
    mla->q_norm_eps = LATENT_NORM_EPS;
    mla->kv_norm_eps = LATENT_NORM_EPS;
}


static void read_groups(settings_t *s, moe_config_t *config, moe_group_t group)
{
    moe_router_t *router = &s->router;
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


static void read_router(settings_t *s, moe_config_t *config, int v2)
{
    const char *method = moe_config_string_or(config, "topk_method", v2 ? "greedy" : "noaux_tc");
    const char *score = v2 ? "softmax" : "sigmoid";
    const char *given = moe_config_string_or(config, "scoring_func", score);
    moe_router_t *router = &s->router;
    moe_group_t group = MOE_GROUP_NONE;

    router->experts = moe_config_uint(config, "n_routed_experts", 1, MOE_EXPERTS_LIMIT);
    router->top_k = moe_config_uint(config, "num_experts_per_tok", 1, router->experts);
    router->scale = (float) moe_config_number_or(config, "routed_scaling_factor", 1, 1e-6, 1e6);
    router->normalise = moe_config_bool_or(config, "norm_topk_prob", !v2);
    router->score = v2 ? MOE_SCORE_SOFTMAX : MOE_SCORE_SIGMOID;
    if (strcmp(given, score) != 0) {
        moe_config_fail(config, "scoring_func", "\"%.64s\" is not supported here", given);
    }
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
    read_groups(s, config, group);
}


static void read_layer_types(settings_t *s, moe_config_t *config)
{
    const json_t *type;
    size_t i;

    s->first_moe = moe_config_uint_or(config, "first_k_dense_replace", 0, 0, s->outline.layers);
    s->moe_frequency = moe_config_uint_or(config, "moe_layer_freq", 1, 1, MOE_LAYERS_LIMIT);
    s->layer_types = moe_config_get(config, "mlp_layer_types");
    if (s->layer_types == NULL) {
        return;
    }
    if (json_array_size(s->layer_types) != s->outline.layers) {
        moe_config_fail(config, "mlp_layer_types", "not an array of num_hidden_layers entries");
    }
    json_array_foreach(s->layer_types, i, type) {
        const char *name = json_string_value(type);

        if (name == NULL || (strcmp(name, "dense") != 0 && strcmp(name, "sparse") != 0)) {
            moe_config_fail(config, "mlp_layer_types", "entry %zu is neither dense nor sparse", i);
            return;
        }
    }
}


static int is_moe_layer(const settings_t *s, uint32_t i)
{
    if (s->layer_types != NULL) {
        return strcmp(json_string_value(json_array_get(s->layer_types, i)), "sparse") == 0;
    }
    return i >= s->first_moe && i % s->moe_frequency == 0;
}


static int read_settings(settings_t *s, const moe_family_t *family, const moe_config_t *source)
{
    moe_config_t config = *source;

    *s = (settings_t) { 0 };
    moe_outline_read(&s->outline, &config, 1e-6);
    read_attention(s, &config);
    moe_activation_read(&config);
    if (moe_config_bool_or(&config, "mlp_bias", 0)) {
        moe_config_fail(&config, "mlp_bias", "true is not supported");
    }
    s->dense_width = moe_config_uint(&config, "intermediate_size", 1, MOE_WIDTH_LIMIT);
    s->expert_width = moe_config_uint(&config, "moe_intermediate_size", 1, MOE_WIDTH_LIMIT);
    s->shared_width = s->expert_width * moe_config_uint_or(&config, "n_shared_experts", 0, 0, 256);
    read_router(s, &config, is_v2(family));
    read_layer_types(s, &config);
    return config.failed ? -1 : 0;
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


static int take_queries(moe_model_t *model, moe_mla_t *mla, const char *prefix,
                        moe_error_t *error)
{
    uint32_t rows = mla->heads * (mla->nope + mla->rope);

    if (mla->q_lora == 0) {
        return moe_model_take_weight(model, error, &mla->q_b, rows, model->hidden,
                                     "%sq_proj.weight", prefix);
    }
    return moe_model_take_weight(model, error, &mla->q_a, mla->q_lora, model->hidden,
                                 "%sq_a_proj.weight", prefix)
           || moe_model_take_vector(model, error, &mla->q_norm, mla->q_lora,
                                    "%sq_a_layernorm.weight", prefix)
           || moe_model_take_weight(model, error, &mla->q_b, rows, mla->q_lora,
                                    "%sq_b_proj.weight", prefix) ? -1 : 0;
}


/* In one tensor or in two; where a file holds both forms, the second needs no transposing. */
static int take_keys_and_values(moe_model_t *model, moe_mla_t *mla, const char *prefix,
                                moe_error_t *error)
{
    char name[128];

    snprintf(name, sizeof(name), "%sk_b_proj.weight", prefix);
    if (moe_tensors_find(model->tensors, name) == NULL) {
        return moe_model_take_weight(model, error, &mla->kv_b,
                                     mla->heads * (mla->nope + mla->value), mla->kv_lora,
                                     "%skv_b_proj.weight", prefix);
    }
    snprintf(name, sizeof(name), "%skv_b_proj.weight", prefix);
    moe_tensors_ignore(model->tensors, name);
    return moe_model_take_parts(model, error, &mla->k_b, mla->heads, mla->kv_lora, mla->nope,
                                "%sk_b_proj.weight", prefix)
           || moe_model_take_parts(model, error, &mla->v_b, mla->heads, mla->value, mla->kv_lora,
                                   "%sv_b_proj.weight", prefix) ? -1 : 0;
}


static int take_attention(moe_model_t *model, moe_mla_t *mla, const char *prefix,
                          moe_error_t *error)
{
    return take_queries(model, mla, prefix, error) != 0
        || moe_model_take_weight(model, error, &mla->kv_a, mla->kv_lora + mla->rope,
                                 model->hidden, "%skv_a_proj_with_mqa.weight", prefix) != 0
        || moe_model_take_vector(model, error, &mla->kv_norm, mla->kv_lora,
                                 "%skv_a_layernorm.weight", prefix) != 0
        || take_keys_and_values(model, mla, prefix, error) != 0
        || moe_model_take_weight(model, error, &mla->output, model->hidden,
                                 mla->heads * mla->value, "%so_proj.weight", prefix) != 0 ? -1 : 0;
}


static int take_layer(const moe_family_t *family, moe_model_t *model, uint32_t i,
                      moe_error_t *error)
{
    moe_layer_t *layer = &model->layers[i];
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.", i);
    if (moe_model_take_norms(model, layer, prefix, error) != 0) {
        return -1;
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.self_attn.", i);
    if (take_attention(model, &layer->mla, prefix, error) != 0) {
        return -1;
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.mlp.", i);
    return layer->is_moe ? take_moe(model, &layer->moe, prefix, error)
           : moe_model_take_ffn(model, error, &layer->dense, prefix, &moe_usual_names);
}


static int describe(const moe_family_t *family, moe_model_t *model, const moe_config_t *config,
                    moe_error_t *error)
{
    settings_t s;

    if (read_settings(&s, family, config) != 0
        || moe_model_take_outline(model, &s.outline, error) != 0
        || moe_model_make_rotary(model, &s.rope, s.interleaved, &s.mla.rotary, error) != 0)
    {
        return -1;
    }
    for (uint32_t i = 0; i < s.outline.layers; i++) {
        moe_layer_t *layer = &model->layers[i];

        layer->mixer = MOE_MIXER_MLA;
        layer->mla = s.mla;
        layer->is_moe = is_moe_layer(&s, i);
        if (layer->is_moe) {
            layer->moe.router = s.router;
            layer->moe.width = s.expert_width;
            layer->moe.shared.width = s.shared_width;
        } else {
            layer->dense.width = s.dense_width;
        }
    }
    return 0;
}


const moe_family_t moe_family_deepseek_v2 = {
    .model_type = "deepseek_v2", .known_keys = known_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_deepseek_v3 = {
    .model_type = "deepseek_v3", .known_keys = known_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_kimi_k2 = {
    .model_type = "kimi_k2", .known_keys = known_keys, .describe = describe,
    .take_layer = take_layer
};
