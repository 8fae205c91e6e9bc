/*
 * DeepSeek-V2, V3 and those that use V3's code (Kimi-K2, GLM-4.7-Flash).  The config is read into
 * one struct of checked settings first; all bounds are chosen so that products of two of them fit
 * 32 bits, and every count that sizes memory is confirmed by tensors of that shape before the next
 * is believed.
 */

#include "engine/model/deepseek.h"

#include <math.h>
#include <stdio.h>

#include "engine/model/sparse.h"

/* transformers builds the norms inside MLA with its class default, whatever rms_norm_eps says. */
#define LATENT_NORM_EPS 1e-6f

#define LORA_LIMIT (1u << 16)

typedef struct {
    moe_outline_t outline;
    moe_mla_t mla;              /* without weights and frequencies */
    moe_rope_t rope;
    int interleaved;
    moe_sparse_t sparse;
} settings_t;

static const char *const known_keys[] = {
    MOE_SPARSE_KEYS, "attention_bias", "head_dim", "hidden_act", "hidden_size", "kv_lora_rank",
    "max_position_embeddings", "mlp_bias", "num_attention_heads", "num_hidden_layers",
    "num_key_value_heads", "partial_rotary_factor", "q_lora_rank", "qk_head_dim",
    "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps", "rope_interleave", "rope_parameters",
    "rope_scaling", "rope_theta", "tie_word_embeddings", "v_head_dim", "vocab_size", NULL
};


static const moe_sparse_spelling_t *spelling_of(const moe_family_t *family)
{
    return family == &moe_family_deepseek_v2 ? &moe_sparse_deepseek_v2 : &moe_sparse_deepseek_v3;
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
    moe_sparse_read(&s->sparse, spelling_of(family), &config, s->outline.layers);
    return config.failed ? -1 : 0;
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
                                    mla->heads * mla->value, "%so_proj.weight", prefix) != 0
           ? -1 : 0;
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
    return moe_sparse_take(model, layer, spelling_of(family), prefix, error);
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
        moe_sparse_describe(&s.sparse, layer, i);
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

const moe_family_t moe_family_glm4_moe_lite = {
    .model_type = "glm4_moe_lite", .known_keys = known_keys, .describe = describe,
    .take_layer = take_layer
};
