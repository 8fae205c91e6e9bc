/*
 * GGUF's architecture "deepseek2": DeepSeek-V2, V3 and what uses V3's code (Kimi-K2).
 *
 * Its files describe MLA in one of two ways.  Newer ones give the sizes of the absorbed form as
 * key_length and value_length, those of a head as key_length_mla and value_length_mla, one key
 * head, and kv_b_proj cut in two: attn_k_b (transposed) and attn_v_b.  Older ones give a head's
 * sizes as key_length and value_length, and keep attn_kv_b.
 */

#include <stdio.h>
#include <stdlib.h>

#include "engine/model/gguf_config.h"

#define SIZE_LIMIT (1u << 16)

static const moe_gguf_key_t keys[] = {
    { "attention.head_count_kv", NULL },
    { "attention.key_length", NULL },
    { "attention.key_length_mla", NULL },
    { "attention.kv_lora_rank", "kv_lora_rank" },
    { "attention.q_lora_rank", "q_lora_rank" },
    { "attention.value_length", NULL },
    { "attention.value_length_mla", NULL },
    { "expert_count", "n_routed_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_gating_func", NULL },
    { "expert_group_count", "n_group" },
    { "expert_group_used_count", "topk_group" },
    { "expert_shared_count", "n_shared_experts" },
    { "expert_weights_norm", "norm_topk_prob" },
    { "expert_weights_scale", "routed_scaling_factor" },
    { "leading_dense_block_count", "first_k_dense_replace" },
    { "rope.dimension_count", "qk_rope_head_dim" },
    { "rope.scaling.yarn_log_multiplier", NULL },
    { NULL, NULL }
};

static const moe_tensor_name_t in_layer[] = {
    { "self_attn.k_b_proj.weight", "attn_k_b.weight" },
    { "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight" },
    { "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight" },
    { "self_attn.kv_b_proj.weight", "attn_kv_b.weight" },
    { "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight" },
    { "self_attn.q_a_proj.weight", "attn_q_a.weight" },
    { "self_attn.q_b_proj.weight", "attn_q_b.weight" },
    { "self_attn.v_b_proj.weight", "attn_v_b.weight" },
    { NULL, NULL }
};

/* Older files leave out the groups that these models' experts are chosen from. */
static const struct {
    json_int_t experts, hidden, groups, groups_kept;
} known_groups[] = {
    { 256, 7168, 8, 4 },                /* V3, R1 */
    { 160, 5120, 8, 3 },                /* V2 */
};


static json_int_t number_of(const moe_gguf_translation_t *t, const char *key)
{
    return json_integer_value(json_object_get(t->config, key));
}


static void set_heads(moe_gguf_translation_t *t)
{
    const int absorbed = moe_gguf_has(t, "attention.key_length_mla");
    const char *key = absorbed ? "attention.key_length_mla" : "attention.key_length";
    const char *value = absorbed ? "attention.value_length_mla" : "attention.value_length";
    const uint32_t rope = moe_gguf_uint(t, "rope.dimension_count", 2, SIZE_LIMIT);
    const uint32_t latent = moe_gguf_uint(t, "attention.kv_lora_rank", 1, SIZE_LIMIT);
    const uint32_t heads = moe_gguf_uint(t, "attention.head_count", 1, SIZE_LIMIT);
    const uint32_t width = moe_gguf_uint(t, key, rope + 1, 2 * SIZE_LIMIT);
    const uint32_t key_heads = absorbed ? 1 : heads;

    moe_gguf_uint_or(t, "attention.head_count_kv", key_heads, key_heads, key_heads);
    if (absorbed) {
        moe_gguf_uint_or(t, "attention.key_length", latent + rope, latent + rope, latent + rope);
        moe_gguf_uint_or(t, "attention.value_length", latent, latent, latent);
    }
    moe_gguf_set(t, t->config, "qk_nope_head_dim", json_integer(width - rope), key);
    moe_gguf_set(t, t->config, "v_head_dim",
                 json_integer(moe_gguf_uint(t, value, 1, SIZE_LIMIT)), value);
}


static void set_groups(moe_gguf_translation_t *t)
{
    for (size_t i = 0; i < sizeof(known_groups) / sizeof(known_groups[0]); i++) {
        if (!moe_gguf_has(t, "expert_group_count")
            && number_of(t, "n_routed_experts") == known_groups[i].experts
            && number_of(t, "hidden_size") == known_groups[i].hidden)
        {
            moe_gguf_set(t, t->config, "n_group", json_integer(known_groups[i].groups),
                         "expert_group_count");
            moe_gguf_set(t, t->config, "topk_group", json_integer(known_groups[i].groups_kept),
                         "expert_group_used_count");
        }
    }
}


/* V3 chooses experts by sigmoid and bias, V2 by softmax; old files do not say which. */
static void set_router(moe_gguf_translation_t *t)
{
    char bias[64];
    int sigmoid;

    snprintf(bias, sizeof(bias), "model.layers.%u.mlp.gate.e_score_correction_bias",
             (unsigned) number_of(t, "num_hidden_layers") - 1);
    switch (moe_gguf_uint_or(t, "expert_gating_func", 0, 0, MOE_GGUF_SIGMOID)) {
    case 0:
        sigmoid = moe_tensors_find(t->tensors, bias) != NULL;
        break;
    case MOE_GGUF_SOFTMAX:
        sigmoid = 0;
        break;
    default:
        sigmoid = 1;
    }
    set_groups(t);
    moe_gguf_set(t, t->config, "model_type", json_string(sigmoid ? "deepseek_v3" : "deepseek_v2"),
                 "expert_gating_func");
    moe_gguf_set(t, t->config, "topk_method",
                 json_string(sigmoid ? "noaux_tc"
                             : number_of(t, "n_group") > 1 ? "group_limited_greedy" : "greedy"),
                 "expert_gating_func");
    moe_gguf_default(t, "norm_topk_prob", json_false(), "expert_weights_norm");
    moe_gguf_drop_zero(t, "routed_scaling_factor");
}


/* The multiplier is a tenth of mscale_all_dim, in f32; these models' mscale is the same number. */
static void set_temperature(moe_gguf_translation_t *t)
{
    static const char multiplier[] = "rope.scaling.yarn_log_multiplier";
    char name[MOE_GGUF_NAME_SIZE], text[32];
    double value = moe_config_number_or(&t->metadata, moe_gguf_name(t, multiplier, name), 0, 0, 10);

    if (t->scaling == NULL || value == 0) {
        return;
    }
    snprintf(text, sizeof(text), "%.7g", value * 10);
    value = strtod(text, NULL);
    moe_gguf_set(t, t->scaling, "mscale", json_real(value), multiplier);
    moe_gguf_set(t, t->scaling, "mscale_all_dim", json_real(value), multiplier);
}


static void complete(moe_gguf_translation_t *translation)
{
    moe_gguf_drop_zero(translation, "q_lora_rank");
    set_heads(translation);
    moe_gguf_count_layers(translation);
    set_router(translation);
    set_temperature(translation);
}


const moe_gguf_architecture_t moe_gguf_deepseek2 = {
    .architecture = "deepseek2", .keys = { keys },
    .tensors = { { in_layer, moe_gguf_in_layer }, moe_gguf_outside }, .complete = complete
};
