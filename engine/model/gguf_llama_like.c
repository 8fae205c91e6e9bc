/*
 * GGUF's architectures of models with grouped-query attention: Llama's layer with experts.  There
 * is none for Mixtral: its files are "llama" with experts, whose rows of q and k are stored in
 * pairs, as that architecture's rotary embedding wants them.
 */

#include <stdio.h>

#include "engine/model/build.h"
#include "engine/model/gguf_config.h"

static const moe_gguf_key_t gqa_keys[] = {
    { "attention.head_count_kv", "num_key_value_heads" },
    { "attention.key_length", "head_dim" },
    { "attention.value_length", NULL },
    { "expert_gating_func", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t llama_keys[] = {
    { "expert_count", "num_local_experts" },
    { "expert_weights_norm", NULL },
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t olmoe_keys[] = {
    { "attention.clamp_kqv", "clip_qkv" },
    { "expert_count", "num_experts" },
    { "expert_weights_norm", "norm_topk_prob" },
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t qwen2moe_keys[] = {
    { "expert_count", "num_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_shared_feed_forward_length", "shared_expert_intermediate_size" },
    { "expert_weights_norm", "norm_topk_prob" },
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t qwen3moe_keys[] = {
    { "expert_count", "num_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_weights_norm", "norm_topk_prob" },
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t minimax_m2_keys[] = {
    { "expert_count", "num_local_experts" },
    { "expert_feed_forward_length", "intermediate_size" },
    { "expert_weights_norm", NULL },
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", "rotary_dim" },
    { NULL, NULL }
};

static const moe_gguf_key_t glm4moe_keys[] = {
    { "expert_count", "n_routed_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_group_count", "n_group" },
    { "expert_group_used_count", "topk_group" },
    { "expert_shared_count", "n_shared_experts" },
    { "expert_weights_norm", "norm_topk_prob" },
    { "expert_weights_scale", "routed_scaling_factor" },
    { "leading_dense_block_count", "first_k_dense_replace" },
    { "rope.dimension_count", "rotary_dim" },
    { NULL, NULL }
};

static const moe_gguf_key_t gpt_oss_keys[] = {
    { "attention.sliding_window", "sliding_window" },
    { "expert_count", "num_local_experts" },
    { "expert_feed_forward_length", "intermediate_size" },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t hy_v3_keys[] = {
    { "expert_count", "num_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_shared_count", "num_shared_experts" },
    { "expert_shared_feed_forward_length", NULL },
    { "expert_weights_norm", "route_norm" },
    { "expert_weights_scale", "router_scaling_factor" },
    { "leading_dense_block_count", "first_k_dense_replace" },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

/* The width of the shared expert is not what it seems in these files; its tensors have it. */
static const moe_gguf_key_t ernie4_5_moe_keys[] = {
    { "expert_count", "moe_num_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_shared_count", "moe_num_shared_experts" },
    { "expert_shared_feed_forward_length", NULL },
    { "expert_used_count", "moe_k" },
    { "expert_weights_norm", NULL },
    { "expert_weights_scale", NULL },
    { "interleave_moe_layer_step", "moe_layer_interval" },
    { "leading_dense_block_count", "moe_layer_start_index" },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t hunyuan_moe_keys[] = {
    { "expert_count", "num_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_shared_count", "num_shared_expert" },
    { "expert_shared_feed_forward_length", "intermediate_size" },
    { "expert_used_count", "moe_topk" },
    { "expert_weights_norm", NULL },
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

/* Of Mixtral and MiniMax.  The first files of Mixtral had a tensor for each expert. */
static const moe_tensor_name_t block_in_layer[] = {
    { "block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias" },
    { "block_sparse_moe.gate.weight", "ffn_gate_inp.weight" },
    { "block_sparse_moe.experts.down_proj", "ffn_down_exps.weight" },
    { "block_sparse_moe.experts.gate_up_proj", "ffn_gate_up_exps.weight" },
    { "block_sparse_moe.experts.w1.weight", "ffn_gate_exps.weight" },
    { "block_sparse_moe.experts.w2.weight", "ffn_down_exps.weight" },
    { "block_sparse_moe.experts.w3.weight", "ffn_up_exps.weight" },
    { "block_sparse_moe.experts.*.w1.weight", "ffn_gate.*.weight" },
    { "block_sparse_moe.experts.*.w2.weight", "ffn_down.*.weight" },
    { "block_sparse_moe.experts.*.w3.weight", "ffn_up.*.weight" },
    { NULL, NULL }
};

static const moe_tensor_name_t qwen2moe_in_layer[] = {
    { "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight" },
    { "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight" },
    { "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight" },
    { "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight" },
    { NULL, NULL }
};

static const moe_tensor_name_t gpt_oss_in_layer[] = {
    { "mlp.experts.down_proj.bias", "ffn_down_exps.bias" },
    { "mlp.experts.gate_proj.bias", "ffn_gate_exps.bias" },
    { "mlp.experts.up_proj.bias", "ffn_up_exps.bias" },
    { "mlp.router.bias", "ffn_gate_inp.bias" },
    { "mlp.router.weight", "ffn_gate_inp.weight" },
    { "post_attention_layernorm.weight", "post_attention_norm.weight" },
    { "self_attn.sinks", "attn_sinks.weight" },
    { NULL, NULL }
};

/* Of both models by Tencent. */
static const moe_tensor_name_t hunyuan_in_layer[] = {
    { "mlp.expert_bias", "exp_probs_b" },
    { "mlp.expert_bias", "exp_probs_b.bias" },
    { "mlp.gate.wg.weight", "ffn_gate_inp.weight" },
    { "mlp.router.gate.weight", "ffn_gate_inp.weight" },
    { "mlp.shared_mlp.down_proj.weight", "ffn_down_shexp.weight" },
    { "mlp.shared_mlp.gate_proj.weight", "ffn_gate_shexp.weight" },
    { "mlp.shared_mlp.up_proj.weight", "ffn_up_shexp.weight" },
    { "self_attn.key_layernorm.weight", "attn_k_norm.weight" },
    { "self_attn.query_layernorm.weight", "attn_q_norm.weight" },
    { NULL, NULL }
};

static const moe_tensor_name_t ernie4_5_moe_in_layer[] = {
    { "mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias" },
    { NULL, NULL }
};

static const moe_tensor_name_t glm4moe_in_layer[] = {
    { "post_attention_layernorm.weight", "post_attention_norm.weight" },
    { NULL, NULL }
};


/* A head's keys and values are of one width, which is returned. */
static uint32_t check_heads(moe_gguf_translation_t *t)
{
    const uint32_t hidden = moe_gguf_uint(t, "embedding_length", 1, MOE_WIDTH_LIMIT);
    const uint32_t heads = moe_gguf_uint(t, "attention.head_count", 1, MOE_HEADS_LIMIT);
    const uint32_t head = moe_gguf_uint_or(t, "attention.key_length", hidden / heads, 1,
                                           MOE_HEAD_WIDTH_LIMIT);

    moe_gguf_uint_or(t, "attention.value_length", head, head, head);
    return head;
}


/* The same of those that rotate whole. */
static uint32_t check_whole_heads(moe_gguf_translation_t *t)
{
    const uint32_t head = check_heads(t);

    moe_gguf_uint_or(t, "rope.dimension_count", head, head, head);
    return head;
}


static void check_gating(moe_gguf_translation_t *t, uint32_t function)
{
    char name[MOE_GGUF_NAME_SIZE];
    const uint32_t given = moe_gguf_uint_or(t, "expert_gating_func", function, 0, UINT32_MAX);

    if (given != 0 && given != function) {
        moe_config_fail(&t->metadata, moe_gguf_name(t, "expert_gating_func", name),
                        "%u is not supported here", given);
    }
}


/* The experts' weights are taken as they come out. */
static void check_scale(moe_gguf_translation_t *t)
{
    char name[MOE_GGUF_NAME_SIZE];
    double scale = moe_config_number_or(&t->metadata,
                                        moe_gguf_name(t, "expert_weights_scale", name), 1, 0, 1e6);

    if (scale != 0 && scale != 1) {
        moe_config_fail(&t->metadata, name, "%g is not supported", scale);
    }
}


/* They are normalised, whether or not the file says so. */
static void check_normalised(moe_gguf_translation_t *t)
{
    char name[MOE_GGUF_NAME_SIZE];

    if (!moe_config_bool_or(&t->metadata, moe_gguf_name(t, "expert_weights_norm", name), 1)) {
        moe_config_fail(&t->metadata, name, "false is not supported");
    }
}


static void complete_softmax(moe_gguf_translation_t *t, const char *model_type, int normalises)
{
    check_whole_heads(t);
    check_gating(t, MOE_GGUF_SOFTMAX);
    check_scale(t);
    moe_gguf_set(t, t->config, "model_type", json_string(model_type), NULL);
    moe_gguf_default(t, "norm_topk_prob", json_boolean(normalises), "expert_weights_norm");
}


static void complete_olmoe(moe_gguf_translation_t *translation)
{
    complete_softmax(translation, "olmoe", 0);
    moe_gguf_drop_zero(translation, "clip_qkv");
}


/* The first files give the width of the shared expert only: the chosen ones together have it. */
static void complete_qwen2moe(moe_gguf_translation_t *translation)
{
    const uint32_t width = moe_gguf_uint(translation, "feed_forward_length", 1, MOE_WIDTH_LIMIT);
    const uint32_t chosen = moe_gguf_uint(translation, "expert_used_count", 1, MOE_EXPERTS_LIMIT);

    complete_softmax(translation, "qwen2_moe", 0);
    moe_gguf_default(translation, "moe_intermediate_size", json_integer(width / chosen),
                     "expert_feed_forward_length");
    moe_gguf_default(translation, "shared_expert_intermediate_size", json_integer(width),
                     "expert_shared_feed_forward_length");
}


static void complete_qwen3moe(moe_gguf_translation_t *translation)
{
    complete_softmax(translation, "qwen3_moe", 1);
}


/* Routers that always normalise and never scale. */
static void complete_normalised(moe_gguf_translation_t *t, const char *model_type, uint32_t gating)
{
    check_gating(t, gating);
    check_scale(t);
    check_normalised(t);
    moe_gguf_set(t, t->config, "model_type", json_string(model_type), NULL);
}


static void pair_rows(moe_gguf_translation_t *t, uint32_t head)
{
    static const char *const rotated[] = { "q_proj", "k_proj" };
    const uint32_t layers = moe_gguf_uint(t, "block_count", 1, MOE_LAYERS_LIMIT);
    char name[64];

    for (uint32_t i = 0; i < 2 * layers; i++) {
        snprintf(name, sizeof(name), "model.layers.%u.self_attn.%s.weight", i / 2, rotated[i % 2]);
        moe_tensors_set_paired(t->tensors, name, head);
    }
}


static void complete_llama(moe_gguf_translation_t *translation)
{
    if (moe_gguf_uint_or(translation, "expert_count", 0, 0, MOE_EXPERTS_LIMIT) == 0) {
        moe_config_fail(&translation->metadata, "general.architecture",
                        "\"llama\" without experts is not a supported family");
    }
    pair_rows(translation, check_whole_heads(translation));
    complete_normalised(translation, "mixtral", MOE_GGUF_SOFTMAX);
}


static void complete_minimax_m2(moe_gguf_translation_t *translation)
{
    check_heads(translation);
    complete_normalised(translation, "minimax_m2", MOE_GGUF_SIGMOID);
    moe_gguf_set(translation, translation->config, "scoring_func", json_string("sigmoid"), NULL);
}


static void complete_ernie4_5_moe(moe_gguf_translation_t *translation)
{
    check_whole_heads(translation);
    complete_normalised(translation, "ernie4_5_moe", MOE_GGUF_SOFTMAX);
    moe_gguf_default(translation, "moe_layer_start_index", json_integer(0),
                     "leading_dense_block_count");
}


/* The base frequency is the scaled one. */
static void complete_hunyuan_moe(moe_gguf_translation_t *translation)
{
    check_whole_heads(translation);
    complete_normalised(translation, "hunyuan_v1_moe", MOE_GGUF_SOFTMAX);
}


static void complete_hy_v3(moe_gguf_translation_t *translation)
{
    check_whole_heads(translation);
    check_gating(translation, MOE_GGUF_SIGMOID);
    moe_gguf_count_layers(translation);
    moe_gguf_drop_zero(translation, "router_scaling_factor");
    moe_gguf_set(translation, translation->config, "model_type", json_string("hy_v3"), NULL);
}


/* Experts are chosen by their scores, of which the chosen ones then go through a softmax.  The ends
 * of YaRN's ramp, which files do not tell, are not rounded. */
static void complete_gpt_oss(moe_gguf_translation_t *translation)
{
    check_whole_heads(translation);
    check_gating(translation, MOE_GGUF_SOFTMAX_WEIGHT);
    moe_gguf_set(translation, translation->config, "model_type", json_string("gpt_oss"), NULL);
    if (translation->scaling != NULL) {
        moe_gguf_set(translation, translation->scaling, "truncate", json_false(), NULL);
    }
}


static json_t *has_tensor(const moe_gguf_translation_t *t, const char *name)
{
    return json_boolean(moe_tensors_find(t->tensors, name) != NULL);
}


/* Of the models only some have biases or norms of queries and keys. */
static void complete_glm4moe(moe_gguf_translation_t *translation)
{
    json_t *config = translation->config;

    moe_gguf_default(translation, "rotary_dim", json_integer(check_heads(translation)),
                     "rope.dimension_count");
    check_gating(translation, MOE_GGUF_SIGMOID);
    moe_gguf_count_layers(translation);
    moe_gguf_drop_zero(translation, "routed_scaling_factor");
    moe_gguf_set(translation, config, "model_type", json_string("glm4_moe"), NULL);
    moe_gguf_set(translation, config, "attention_bias",
                 has_tensor(translation, "model.layers.0.self_attn.q_proj.bias"), NULL);
    moe_gguf_set(translation, config, "use_qk_norm",
                 has_tensor(translation, "model.layers.0.self_attn.q_norm.weight"), NULL);
}


const moe_gguf_architecture_t moe_gguf_glm4moe = {
    .architecture = "glm4moe", .keys = { glm4moe_keys, gqa_keys },
    .tensors = { { glm4moe_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_glm4moe
};

const moe_gguf_architecture_t moe_gguf_ernie4_5_moe = {
    .architecture = "ernie4_5-moe", .keys = { ernie4_5_moe_keys, gqa_keys },
    .tensors = { { ernie4_5_moe_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_ernie4_5_moe
};

const moe_gguf_architecture_t moe_gguf_gpt_oss = {
    .architecture = "gpt-oss", .keys = { gpt_oss_keys, gqa_keys },
    .tensors = { { gpt_oss_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_gpt_oss
};

const moe_gguf_architecture_t moe_gguf_hunyuan_moe = {
    .architecture = "hunyuan-moe", .keys = { hunyuan_moe_keys, gqa_keys },
    .tensors = { { hunyuan_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_hunyuan_moe
};

const moe_gguf_architecture_t moe_gguf_hy_v3 = {
    .architecture = "hy_v3", .keys = { hy_v3_keys, gqa_keys },
    .tensors = { { hunyuan_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_hy_v3
};

const moe_gguf_architecture_t moe_gguf_llama = {
    .architecture = "llama", .keys = { llama_keys, gqa_keys },
    .tensors = { { block_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_llama
};

const moe_gguf_architecture_t moe_gguf_minimax_m2 = {
    .architecture = "minimax-m2", .keys = { minimax_m2_keys, gqa_keys },
    .tensors = { { block_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_minimax_m2
};

const moe_gguf_architecture_t moe_gguf_olmoe = {
    .architecture = "olmoe", .keys = { olmoe_keys, gqa_keys },
    .tensors = { { moe_gguf_in_layer }, moe_gguf_outside }, .complete = complete_olmoe
};

const moe_gguf_architecture_t moe_gguf_qwen2moe = {
    .architecture = "qwen2moe", .keys = { qwen2moe_keys, gqa_keys },
    .tensors = { { qwen2moe_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_qwen2moe
};

const moe_gguf_architecture_t moe_gguf_qwen3moe = {
    .architecture = "qwen3moe", .keys = { qwen3moe_keys, gqa_keys },
    .tensors = { { moe_gguf_in_layer }, moe_gguf_outside }, .complete = complete_qwen3moe
};
