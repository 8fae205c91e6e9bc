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
    { "expert_weights_scale", NULL },
    { "rope.dimension_count", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t llama_keys[] = {
    { "expert_count", "num_local_experts" },
    { "expert_weights_norm", NULL },
    { NULL, NULL }
};

static const moe_gguf_key_t olmoe_keys[] = {
    { "attention.clamp_kqv", "clip_qkv" },
    { "expert_count", "num_experts" },
    { "expert_weights_norm", "norm_topk_prob" },
    { NULL, NULL }
};

static const moe_gguf_key_t qwen3moe_keys[] = {
    { "expert_count", "num_experts" },
    { "expert_feed_forward_length", "moe_intermediate_size" },
    { "expert_weights_norm", "norm_topk_prob" },
    { NULL, NULL }
};

/* The first files had a tensor for each expert. */
static const moe_tensor_name_t mixtral_in_layer[] = {
    { "block_sparse_moe.gate.weight", "ffn_gate_inp.weight" },
    { "block_sparse_moe.experts.w1.weight", "ffn_gate_exps.weight" },
    { "block_sparse_moe.experts.w2.weight", "ffn_down_exps.weight" },
    { "block_sparse_moe.experts.w3.weight", "ffn_up_exps.weight" },
    { "block_sparse_moe.experts.*.w1.weight", "ffn_gate.*.weight" },
    { "block_sparse_moe.experts.*.w2.weight", "ffn_down.*.weight" },
    { "block_sparse_moe.experts.*.w3.weight", "ffn_up.*.weight" },
    { NULL, NULL }
};


/* A head's keys, values and rotated part are all of one width, which is returned. */
static uint32_t check_heads(moe_gguf_translation_t *t)
{
    const uint32_t hidden = moe_gguf_uint(t, "embedding_length", 1, MOE_WIDTH_LIMIT);
    const uint32_t heads = moe_gguf_uint(t, "attention.head_count", 1, MOE_HEADS_LIMIT);
    const uint32_t head = moe_gguf_uint_or(t, "attention.key_length", hidden / heads, 1,
                                           MOE_HEAD_WIDTH_LIMIT);

    moe_gguf_uint_or(t, "attention.value_length", head, head, head);
    moe_gguf_uint_or(t, "rope.dimension_count", head, head, head);
    return head;
}


/* Experts are chosen by softmax, and their weights taken as they come out. */
static void check_router(moe_gguf_translation_t *t)
{
    char name[MOE_GGUF_NAME_SIZE];
    double scale = moe_config_number_or(&t->metadata,
                                        moe_gguf_name(t, "expert_weights_scale", name), 1, 0, 1e6);

    moe_gguf_uint_or(t, "expert_gating_func", 1, 0, 1);
    if (scale != 0 && scale != 1) {
        moe_config_fail(&t->metadata, moe_gguf_name(t, "expert_weights_scale", name),
                        "%g is not supported", scale);
    }
}


static void complete_gqa(moe_gguf_translation_t *t, const char *model_type, int normalises)
{
    check_heads(t);
    check_router(t);
    moe_gguf_set(t, t->config, "model_type", json_string(model_type), NULL);
    moe_gguf_default(t, "norm_topk_prob", json_boolean(normalises), "expert_weights_norm");
}


static void complete_olmoe(moe_gguf_translation_t *translation)
{
    complete_gqa(translation, "olmoe", 0);
    moe_gguf_drop_zero(translation, "clip_qkv");
}


static void complete_qwen3moe(moe_gguf_translation_t *translation)
{
    complete_gqa(translation, "qwen3_moe", 1);
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
    char name[MOE_GGUF_NAME_SIZE];

    if (moe_gguf_uint_or(translation, "expert_count", 0, 0, MOE_EXPERTS_LIMIT) == 0) {
        moe_config_fail(&translation->metadata, "general.architecture",
                        "\"llama\" without experts is not a supported family");
    }
    if (!moe_config_bool_or(&translation->metadata,
                            moe_gguf_name(translation, "expert_weights_norm", name), 1))
    {
        moe_config_fail(&translation->metadata, name, "false is not supported");
    }
    check_router(translation);
    pair_rows(translation, check_heads(translation));
    moe_gguf_set(translation, translation->config, "model_type", json_string("mixtral"), NULL);
}


const moe_gguf_architecture_t moe_gguf_llama = {
    .architecture = "llama", .keys = { llama_keys, gqa_keys },
    .tensors = { { mixtral_in_layer, moe_gguf_in_layer }, moe_gguf_outside },
    .complete = complete_llama
};

const moe_gguf_architecture_t moe_gguf_olmoe = {
    .architecture = "olmoe", .keys = { olmoe_keys, gqa_keys },
    .tensors = { { moe_gguf_in_layer }, moe_gguf_outside }, .complete = complete_olmoe
};

const moe_gguf_architecture_t moe_gguf_qwen3moe = {
    .architecture = "qwen3moe", .keys = { qwen3moe_keys, gqa_keys },
    .tensors = { { moe_gguf_in_layer }, moe_gguf_outside }, .complete = complete_qwen3moe
};
