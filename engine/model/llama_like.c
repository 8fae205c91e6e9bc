/*
 * Llama's layer with experts: OLMoE, Mixtral, Qwen2-MoE, Qwen3-MoE, gpt-oss, MiniMax-M2, GLM-4.5,
 * Granite-MoE, Hy3, ERNIE-4.5-MoE, Hunyuan-A13B.  What distinguishes them is a row of the table of
 * traits: names of keys and tensors, biases, windows, the norm of queries and keys, how much of a
 * head rotates, how experts are chosen and weighted, shared ones.
 */

#include "engine/model/llama_like.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/gpt_oss.h"
#include "engine/model/sparse.h"
#include "engine/model/windows.h"

/* A key of which this engine knows one value only. */
typedef struct {
    const char *key;
    int value;
} switch_t;

typedef struct {
    const moe_family_t *family;
    const char *experts_key, *width_key;
    const char *block;                  /* what a layer's network is called */
    moe_ffn_names_t expert;
    moe_qk_norm_t norm;
    const char *norm_key;               /* whether there is that norm; NULL: always */
    int norm_otherwise;
    const char *q_norm, *k_norm;        /* NULL: q_norm, k_norm */
    int interleaved;                    /* rotates pairs (2j, 2j + 1) */
    double rotary_share;                /* of a head, where the config says none; 0: always all */
    const char *bias_key;               /* of biases of q, k and v; NULL: never */
    int bias_otherwise;                 /* where the config says nothing */
    int output_bias;                    /* where the others are, the output has one, too */
    moe_windows_kind_t windows;
    double norm_eps;                    /* where the config says nothing */
    int is_tied;                        /* likewise */
    const switch_t *switches;           /* ended by a NULL; NULL: none */
    const moe_sparse_spelling_t *sparse;        /* networks are those of sparse.h; what follows is
                                                 * not used; NULL: they are not */
    moe_score_t score;
    const char *selection_bias;         /* tensor of the router's, below `block`; NULL: none */
    int normalises;                     /* always, else as norm_topk_prob says */
    int is_gpt_oss;                     /* attention has sinks; networks are those of gpt_oss.h */
    int has_dense_layers;
    int has_shared;                     /* an expert that all go through, behind a gate */
    int is_granite;                     /* scales what flows, and names experts in its own way */
} traits_t;

typedef struct {
    const traits_t *traits;
    moe_outline_t outline;
    moe_gqa_t gqa;              /* without weights and frequencies */
    moe_windows_t windows;
    moe_rope_t rope;
    float embedding_scale, residual_scale, logits_scale;        /* if traits->is_granite */
    moe_sparse_t sparse;        /* if traits->sparse, else: */
    moe_router_t router;        /* without weights */
    uint32_t dense_width, expert_width, shared_width;
    moe_swiglu_t form;          /* of experts */
    uint32_t moe_step;          /* every so-manieth layer has experts, counted from 1 ... */
    const json_t *dense_layers; /* ... but for these; NULL: none */
} settings_t;

#define COMMON_KEYS \
    "head_dim", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings", \
    "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", \
    "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", \
    "tie_word_embeddings", "vocab_size"

static const char *const olmoe_keys[] = {
    COMMON_KEYS, "attention_bias", "clip_qkv", "norm_topk_prob", "num_experts", NULL
};

/* router_jitter_noise is for training. */
static const char *const mixtral_keys[] = {
    COMMON_KEYS, "num_local_experts", "router_jitter_noise", NULL
};

static const char *const qwen2_moe_keys[] = {
    COMMON_KEYS, MOE_WINDOWS_KEYS, "decoder_sparse_step", "mlp_only_layers",
    "moe_intermediate_size", "norm_topk_prob", "num_experts", "qkv_bias",
    "shared_expert_intermediate_size", NULL
};

static const char *const qwen3_moe_keys[] = {
    COMMON_KEYS, "attention_bias", "decoder_sparse_step", "max_window_layers", "mlp_only_layers",
    "moe_intermediate_size", "norm_topk_prob", "num_experts", "num_local_experts", "qkv_bias",
    "shared_expert_intermediate_size", "use_qk_norm", "use_sliding_window", NULL
};

static const char *const gpt_oss_keys[] = {
    COMMON_KEYS, MOE_GPT_OSS_KEYS, "attention_bias", "layer_types", "num_local_experts", NULL
};

/* Keys of the networks before it and of its draft layers say nothing of M2 itself. */
static const char *const minimax_m2_keys[] = {
    COMMON_KEYS, "attn_type_list", "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta", "layernorm_mlp_beta", "mlp_intermediate_size",
    "mtp_transformer_layers", "norm_topk_prob", "num_local_experts", "num_mtp_modules",
    "partial_rotary_factor", "qk_norm_type", "rotary_dim", "router_jitter_noise", "scoring_func",
    "shared_intermediate_size", "shared_moe_mode", "use_mtp", "use_qk_norm", "use_routing_bias",
    NULL
};

static const char *const glm4_moe_keys[] = {
    COMMON_KEYS, MOE_SPARSE_KEYS, "attention_bias", "partial_rotary_factor", "rotary_dim",
    "use_qk_norm", NULL
};

/* The sums of these models are in f32 however they are set. */
static const char *const hy_v3_keys[] = {
    COMMON_KEYS, "attention_bias", "enable_attention_fp32_softmax", "enable_lm_head_fp32",
    "enable_moe_fp32_combine", "eod_token_id", "expert_hidden_dim", "first_k_dense_replace",
    "mlp_bias", "mlp_layer_types", "moe_intermediate_size", "moe_router_enable_expert_bias",
    "moe_router_use_sigmoid", "num_experts", "num_nextn_predict_layers", "num_shared_experts",
    "qk_norm", "route_norm", "router_scaling_factor", "use_grouped_mm", NULL
};

static const switch_t hy_v3_switches[] = {
    { "mlp_bias", 0 }, { "moe_router_enable_expert_bias", 1 }, { "moe_router_use_sigmoid", 1 },
    { "qk_norm", 1 }, { NULL, 0 }
};

/* moe_norm_min is below what probabilities of chosen experts can add up to; capacities and gates
 * are for training. */
static const char *const ernie4_5_moe_keys[] = {
    COMMON_KEYS, "moe_capacity", "moe_gate", "moe_intermediate_size", "moe_k",
    "moe_layer_end_index", "moe_layer_interval", "moe_layer_start_index", "moe_norm_min",
    "moe_num_experts", "moe_num_shared_experts", "moe_use_aux_free", "num_nextn_predict_layers",
    "use_bias", NULL
};

static const switch_t ernie4_5_moe_switches[] = {
    { "moe_use_aux_free", 1 }, { "use_bias", 0 }, { NULL, 0 }
};

/* Keys of variants that see, classify or share caches say nothing here. */
static const char *const hunyuan_v1_moe_keys[] = {
    COMMON_KEYS, "add_classification_head", "attention_bias", "attention_head_dim",
    "cla_share_factor", "class_num", "dense_list", "eod_token_id", "group_limited_greedy",
    "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "mlp_bias", "moe_drop_tokens",
    "moe_intermediate_size", "moe_layer_num_skipped", "moe_random_routing_dropped_token",
    "moe_topk", "n_group", "norm_topk_prob", "norm_type", "num_experts", "num_media_embeds",
    "num_shared_expert", "org_vocab_size", "pad_id", "pool_type", "position_embedding_xdrope",
    "routed_scaling_factor", "skip_cls_token", "text_end_id", "text_start_id", "topk_group",
    "use_cla", "use_mixed_mlp_moe", "use_mla", "use_qk_norm", "use_rotary_pos_emb",
    "video_end_id", "video_start_id", NULL
};

static const switch_t hunyuan_v1_moe_switches[] = {
    { "add_classification_head", 0 }, { "group_limited_greedy", 0 }, { "mlp_bias", 0 },
    { "n_group", 0 }, { "norm_topk_prob", 1 }, { "position_embedding_xdrope", 0 },
    { "topk_group", 0 }, { "use_cla", 0 }, { "use_mixed_mlp_moe", 1 }, { "use_mla", 0 },
    { "use_qk_norm", 1 }, { "use_rotary_pos_emb", 1 }, { NULL, 0 }
};

static const char *const granite_keys[] = {
    COMMON_KEYS, "attention_bias", "attention_multiplier", "embedding_multiplier",
    "logits_scaling", "num_local_experts", "residual_multiplier", "shared_intermediate_size", NULL
};

static const traits_t all_traits[] = {
    {
        .family = &moe_family_olmoe, .experts_key = "num_experts",
        .width_key = "intermediate_size", .block = "mlp",
        .expert = { "gate_proj.weight", "up_proj.weight", "down_proj.weight" },
        .norm = MOE_QK_NORM_WHOLE, .bias_key = "attention_bias", .output_bias = 1, .norm_eps = 1e-5,
        .score = MOE_SCORE_SOFTMAX
    },
    {
        .family = &moe_family_mixtral, .experts_key = "num_local_experts",
        .width_key = "intermediate_size", .block = "block_sparse_moe",
        .expert = { "w1.weight", "w3.weight", "w2.weight" },
        .norm = MOE_QK_NORM_NONE, .windows = MOE_WINDOWS_ALL, .norm_eps = 1e-5,
        .score = MOE_SCORE_SOFTMAX, .normalises = 1
    },
    {
        .family = &moe_family_qwen2_moe, .experts_key = "num_experts",
        .width_key = "moe_intermediate_size", .block = "mlp",
        .expert = { "gate_proj.weight", "up_proj.weight", "down_proj.weight" },
        .norm = MOE_QK_NORM_NONE, .bias_key = "qkv_bias", .bias_otherwise = 1,
        .windows = MOE_WINDOWS_SOME, .norm_eps = 1e-6, .score = MOE_SCORE_SOFTMAX,
        .has_dense_layers = 1, .has_shared = 1
    },
    {
        .family = &moe_family_qwen3_moe, .experts_key = "num_experts",
        .width_key = "moe_intermediate_size", .block = "mlp",
        .expert = { "gate_proj.weight", "up_proj.weight", "down_proj.weight" },
        .norm = MOE_QK_NORM_HEAD, .norm_key = "use_qk_norm", .norm_otherwise = 1,
        .bias_key = "attention_bias", .output_bias = 1, .windows = MOE_WINDOWS_SWITCHED,
        .norm_eps = 1e-6, .score = MOE_SCORE_SOFTMAX, .has_dense_layers = 1
    },
    {
        .family = &moe_family_qwen3_vl_moe, .experts_key = "num_experts",
        .width_key = "moe_intermediate_size", .block = "mlp",
        .expert = { "gate_proj.weight", "up_proj.weight", "down_proj.weight" },
        .norm = MOE_QK_NORM_HEAD, .norm_key = "use_qk_norm", .norm_otherwise = 1,
        .bias_key = "attention_bias", .output_bias = 1, .windows = MOE_WINDOWS_SWITCHED,
        .norm_eps = 1e-6, .score = MOE_SCORE_SOFTMAX, .has_dense_layers = 1
    },
    {
        .family = &moe_family_gpt_oss, .experts_key = "num_local_experts",
        .width_key = "intermediate_size", .block = "mlp",
        .norm = MOE_QK_NORM_NONE, .bias_key = "attention_bias", .bias_otherwise = 1,
        .output_bias = 1, .windows = MOE_WINDOWS_ALTERNATING, .norm_eps = 1e-5,
        .score = MOE_SCORE_SOFTMAX, .normalises = 1, .is_gpt_oss = 1
    },
    {
        .family = &moe_family_minimax_m2, .experts_key = "num_local_experts",
        .width_key = "intermediate_size", .block = "block_sparse_moe",
        .expert = { "w1.weight", "w3.weight", "w2.weight" },
        .norm = MOE_QK_NORM_WHOLE, .norm_key = "use_qk_norm", .norm_otherwise = 1,
        .rotary_share = 1, .norm_eps = 1e-6, .score = MOE_SCORE_SIGMOID,
        .selection_bias = "e_score_correction_bias", .normalises = 1
    },
    {
        .family = &moe_family_glm4_moe, .block = "mlp",
        .norm = MOE_QK_NORM_HEAD, .norm_key = "use_qk_norm", .rotary_share = 0.5,
        .bias_key = "attention_bias", .norm_eps = 1e-5, .sparse = &moe_sparse_deepseek_v3
    },
    {
        .family = &moe_family_granitemoe, .experts_key = "num_local_experts",
        .width_key = "intermediate_size", .block = "block_sparse_moe", .norm = MOE_QK_NORM_NONE,
        .bias_key = "attention_bias", .output_bias = 1, .norm_eps = 1e-6,
        .score = MOE_SCORE_SOFTMAX, .normalises = 1, .is_granite = 1
    },
    {
        .family = &moe_family_granitemoeshared, .experts_key = "num_local_experts",
        .width_key = "intermediate_size", .block = "block_sparse_moe", .norm = MOE_QK_NORM_NONE,
        .bias_key = "attention_bias", .output_bias = 1, .norm_eps = 1e-6,
        .score = MOE_SCORE_SOFTMAX, .normalises = 1, .is_granite = 1
    },
    {
        .family = &moe_family_hy_v3, .block = "mlp",
        .norm = MOE_QK_NORM_HEAD, .bias_key = "attention_bias", .output_bias = 1,
        .norm_eps = 1e-5, .switches = hy_v3_switches, .sparse = &moe_sparse_hy3
    },
    {
        .family = &moe_family_ernie4_5_moe, .block = "mlp",
        .norm = MOE_QK_NORM_NONE, .interleaved = 1, .norm_eps = 1e-5, .is_tied = 1,
        .switches = ernie4_5_moe_switches, .sparse = &moe_sparse_ernie
    },
    {
        .family = &moe_family_hunyuan_v1_moe, .block = "mlp",
        .norm = MOE_QK_NORM_ROTATED, .q_norm = "query_layernorm", .k_norm = "key_layernorm",
        .bias_key = "attention_bias", .output_bias = 1, .norm_eps = 1e-5,
        .switches = hunyuan_v1_moe_switches, .sparse = &moe_sparse_hunyuan
    }
};


static const traits_t *traits_of(const moe_family_t *family)
{
    const traits_t *traits = all_traits;

    while (traits->family != family) {
        traits++;
    }
    return traits;
}


static void read_attention(settings_t *s, moe_config_t *config)
{
    moe_gqa_t *gqa = &s->gqa;

    gqa->heads = moe_config_uint(config, "num_attention_heads", 1, MOE_HEADS_LIMIT);
    gqa->kv_heads = moe_config_uint_or(config, "num_key_value_heads", gqa->heads, 1, gqa->heads);
    gqa->head = moe_config_uint_or(config, "head_dim", s->outline.hidden / gqa->heads, 2,
                                   MOE_HEAD_WIDTH_LIMIT);
    if (gqa->heads % gqa->kv_heads != 0) {
        moe_config_fail(config, "num_key_value_heads", "%u does not divide num_attention_heads %u",
                        gqa->kv_heads, gqa->heads);
    }
    if (gqa->head % 2 != 0 || gqa->head < 2 || gqa->head > MOE_HEAD_WIDTH_LIMIT) {
        moe_config_fail(config, "head_dim", "%u is not an even number within 2..%u", gqa->head,
                        MOE_HEAD_WIDTH_LIMIT);
    }
    if (s->traits->bias_key != NULL) {
        gqa->biases = moe_config_bool_or(config, s->traits->bias_key, s->traits->bias_otherwise);
        gqa->output_bias = gqa->biases && s->traits->output_bias;
    }
    if (moe_config_get(config, "clip_qkv") != NULL) {
        moe_config_fail(config, "clip_qkv", "clipping is not supported");
    }
    moe_windows_read(&s->windows, config, s->traits->windows, s->outline.layers,
                     s->outline.context);
    if (moe_config_get(config, "rope_theta") == NULL
        && json_object_get(moe_config_get(config, "rope_parameters"), "rope_theta") == NULL)
    {
        moe_config_fail(config, "rope_theta", "missing");
    }
    moe_rope_read(&s->rope, config, gqa->head, s->traits->rotary_share);
    gqa->sinks.size = s->traits->is_gpt_oss ? gqa->heads : 0;
    gqa->scale = (float) (1 / sqrt((double) gqa->head));
    gqa->norm = s->traits->norm;
    if (s->traits->norm_key != NULL
        && !moe_config_bool_or(config, s->traits->norm_key, s->traits->norm_otherwise))
    {
        gqa->norm = MOE_QK_NORM_NONE;
    }
    gqa->norm_eps = s->outline.norm_eps;
}


/* Writers of today rename the key, or give both. */
static uint32_t read_experts(moe_config_t *config, const char *key)
{
    static const char other[] = "num_local_experts";
    const char *name = moe_config_get(config, key) == NULL && moe_config_get(config, other) != NULL
                       ? other : key;
    const uint32_t experts = moe_config_uint(config, name, 1, MOE_EXPERTS_LIMIT);

    return moe_config_uint_or(config, other, experts, experts, experts);
}


static void read_router(settings_t *s, moe_config_t *config)
{
    moe_router_t *router = &s->router;

    router->experts = read_experts(config, s->traits->experts_key);
    router->top_k = moe_config_uint(config, "num_experts_per_tok", 1, router->experts);
    router->score = s->traits->score;
    router->group = MOE_GROUP_NONE;
    router->groups = 1;
    router->groups_kept = 1;
    router->scale = 1;
    router->normalise = s->traits->normalises || moe_config_bool_or(config, "norm_topk_prob", 0);
    moe_config_expect(config, "scoring_func",
                      router->score == MOE_SCORE_SIGMOID ? "sigmoid" : "softmax");
    if (s->traits->selection_bias != NULL && moe_config_bool_or(config, "use_routing_bias", 1)) {
        router->bias.size = router->experts;
    }
    s->expert_width = moe_config_uint(config, s->traits->width_key, 1, MOE_WIDTH_LIMIT);
    if (s->traits->has_shared) {
        s->shared_width = moe_config_uint(config, "shared_expert_intermediate_size", 1,
                                          MOE_WIDTH_LIMIT);
    }
}


/* Configs still say what set other models of a family apart; what only one says is absent in the
 * others, whose unknown keys were refused. */
static void refuse_variants(const settings_t *s, moe_config_t *config)
{
    static const char *const scales[] = {
        "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"
    };
    const json_t *type, *types = moe_config_get(config, "attn_type_list");
    size_t i;

    for (const switch_t *w = s->traits->switches; w != NULL && w->key != NULL; w++) {
        moe_config_expect_bool(config, w->key, w->value);
    }
    moe_config_uint_or(config, "attention_head_dim", s->gqa.head, s->gqa.head, s->gqa.head);
    moe_config_uint_or(config, "expert_hidden_dim", s->sparse.expert_width, s->sparse.expert_width,
                       s->sparse.expert_width);
    moe_config_uint_or(config, "moe_layer_num_skipped", 0, 0, 0);
    moe_config_expect(config, "norm_type", "rms");
    moe_config_expect(config, "qk_norm_type", "per_layer");
    for (i = 0; i < sizeof(scales) / sizeof(scales[0]); i++) {
        moe_config_number_or(config, scales[i], 1, 1, 1);
    }
    if (types != NULL && json_array_size(types) != s->outline.layers) {
        moe_config_fail(config, "attn_type_list", "not an array of num_hidden_layers entries");
    }
    json_array_foreach(types, i, type) {
        if (json_integer_value(type) != 1) {
            moe_config_fail(config, "attn_type_list", "entry %zu is not 1, full attention", i);
        }
    }
}


/* Configs of Qwen3-Coder still have keys of Qwen2-MoE, for what there is no more. */
static void refuse_forerunners(const settings_t *s, moe_config_t *config)
{
    if (s->traits->has_shared) {
        return;
    }
    moe_config_uint_or(config, "shared_expert_intermediate_size", 0, 0, 0);
    if (moe_config_bool_or(config, "qkv_bias", 0)) {
        moe_config_fail(config, "qkv_bias", "true is not supported here, see attention_bias");
    }
}


/* Scales are of embeddings, of sums of products of q and k, of what is added to the residual, and
 * logits are divided by theirs. */
static void read_granite(settings_t *s, moe_config_t *config)
{
    if (!s->traits->is_granite) {
        moe_config_uint_or(config, "shared_intermediate_size", 0, 0, 0);
        return;
    }
    s->gqa.scale = (float) moe_config_number_or(config, "attention_multiplier", 1, 1e-6, 1e6);
    s->embedding_scale = (float) moe_config_number_or(config, "embedding_multiplier", 1, 1e-6, 1e6);
    s->residual_scale = (float) moe_config_number_or(config, "residual_multiplier", 1, 1e-6, 1e6);
    s->logits_scale = (float) (1 / moe_config_number_or(config, "logits_scaling", 1, 1e-6, 1e6));
    s->shared_width = moe_config_uint_or(config, "shared_intermediate_size", 0, 0,
                                         MOE_WIDTH_LIMIT);
}


static void read_dense_layers(settings_t *s, moe_config_t *config)
{
    const json_t *index;
    size_t i;

    s->moe_step = 1;
    if (!s->traits->has_dense_layers) {
        return;
    }
    s->dense_width = moe_config_uint(config, "intermediate_size", 1, MOE_WIDTH_LIMIT);
    s->moe_step = moe_config_uint_or(config, "decoder_sparse_step", 1, 1, MOE_LAYERS_LIMIT);
    s->dense_layers = moe_config_get(config, "mlp_only_layers");
    if (s->dense_layers != NULL
        && (!json_is_array(s->dense_layers)
            || json_array_size(s->dense_layers) > s->outline.layers))
    {
        moe_config_fail(config, "mlp_only_layers", "not an array of at most num_hidden_layers "
                        "entries");
        s->dense_layers = NULL;
    }
    json_array_foreach(s->dense_layers, i, index) {
        if (!json_is_integer(index) || json_integer_value(index) < 0
            || json_integer_value(index) >= s->outline.layers)
        {
            moe_config_fail(config, "mlp_only_layers", "entry %zu is no layer", i);
        }
    }
}


static int is_moe_layer(const settings_t *s, uint32_t layer)
{
    const json_t *index;
    size_t i;

    json_array_foreach(s->dense_layers, i, index) {
        if (json_integer_value(index) == layer) {
            return 0;
        }
    }
    return (layer + 1) % s->moe_step == 0;
}


static int read_settings(settings_t *s, const moe_family_t *family, const moe_config_t *source)
{
    moe_config_t config = *source;

    *s = (settings_t) { .traits = traits_of(family) };
    moe_outline_read(&s->outline, &config, s->traits->norm_eps);
    if (moe_config_get(&config, "tie_word_embeddings") == NULL) {
        s->outline.tied = s->traits->is_tied;
    }
    moe_activation_read(&config);
    read_attention(s, &config);
    if (s->traits->sparse) {
        moe_sparse_read(&s->sparse, s->traits->sparse, &config, s->outline.layers);
    } else {
        read_router(s, &config);
        read_dense_layers(s, &config);
        read_granite(s, &config);
        refuse_forerunners(s, &config);
    }
    if (s->traits->is_gpt_oss) {
        moe_gpt_oss_read(&s->form, &config, s->router.top_k, &s->rope);
    }
    refuse_variants(s, &config);
    return config.failed ? -1 : 0;
}


static int take_biases(moe_model_t *model, moe_gqa_t *gqa, const char *prefix, moe_error_t *error)
{
    return moe_model_take_bias(model, error, &gqa->q, "%sq_proj.bias", prefix) != 0
           || moe_model_take_bias(model, error, &gqa->k, "%sk_proj.bias", prefix) != 0
           || moe_model_take_bias(model, error, &gqa->v, "%sv_proj.bias", prefix) != 0
           || (gqa->output_bias
               && moe_model_take_bias(model, error, &gqa->output, "%so_proj.bias", prefix) != 0)
           ? -1 : 0;
}


static int take_attention(moe_model_t *model, moe_gqa_t *gqa, const traits_t *traits,
                          const char *prefix, moe_error_t *error)
{
    const char *q_norm = traits->q_norm != NULL ? traits->q_norm : "q_norm";
    const char *k_norm = traits->k_norm != NULL ? traits->k_norm : "k_norm";
    const uint32_t q = gqa->heads * gqa->head, kv = gqa->kv_heads * gqa->head;
    const int whole = gqa->norm == MOE_QK_NORM_WHOLE;

    if (moe_model_take_weight(model, error, &gqa->q, q, model->hidden, "%sq_proj.weight",
                              prefix) != 0
        || moe_model_take_weight(model, error, &gqa->k, kv, model->hidden, "%sk_proj.weight",
                                 prefix) != 0
        || moe_model_take_weight(model, error, &gqa->v, kv, model->hidden, "%sv_proj.weight",
                                 prefix) != 0
        || moe_model_take_weight(model, error, &gqa->output, model->hidden, q, "%so_proj.weight",
                                 prefix) != 0)
    {
        return -1;
    }
    if ((gqa->biases && take_biases(model, gqa, prefix, error) != 0)
        || (gqa->sinks.size > 0
            && moe_model_take_vector(model, error, &gqa->sinks, gqa->heads, "%ssinks", prefix)
               != 0))
    {
        return -1;
    }
    if (gqa->norm != MOE_QK_NORM_NONE
        && (moe_model_take_vector(model, error, &gqa->q_norm, whole ? q : gqa->head,
                                  "%s%s.weight", prefix, q_norm) != 0
            || moe_model_take_vector(model, error, &gqa->k_norm, whole ? kv : gqa->head,
                                     "%s%s.weight", prefix, k_norm) != 0))
    {
        return -1;
    }
    return 0;
}


/* The block of layer i. */
static int take_granite(moe_model_t *model, moe_block_t *block, uint32_t i, moe_error_t *error)
{
    static const moe_fused_names_t names = { "input_linear.weight", "output_linear.weight" };
    char prefix[96];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.block_sparse_moe.", i);
    if (moe_model_take_weight(model, error, &block->router.gate, block->router.experts,
                              model->hidden, "%srouter.layer.weight", prefix) != 0
        || moe_model_take_fused_block(model, error, block, prefix, &names) != 0)
    {
        return -1;
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.shared_mlp.", i);
    return block->shared.width == 0 ? 0
           : moe_model_take_fused_ffn(model, error, &block->shared, prefix, &names);
}


static int take_block(moe_model_t *model, moe_block_t *block, const traits_t *traits,
                      const char *prefix, moe_error_t *error)
{
    moe_router_t *router = &block->router;
    char name[128];

    if (moe_model_take_weight(model, error, &router->gate, router->experts, model->hidden,
                              "%sgate.weight", prefix) != 0
        || (router->bias.size > 0
            && moe_model_take_vector(model, error, &router->bias, router->experts, "%s%s", prefix,
                                     traits->selection_bias) != 0))
    {
        return -1;
    }
    snprintf(name, sizeof(name), "%sexperts.", prefix);
    if (moe_model_take_block(model, error, block, name, &traits->expert) != 0) {
        return -1;
    }
    if (block->shared.width == 0) {
        return 0;
    }
    snprintf(name, sizeof(name), "%sshared_expert.", prefix);
    if (moe_model_take_ffn(model, error, &block->shared, name, &moe_usual_names) != 0) {
        return -1;
    }
    return moe_model_take_weight(model, error, &block->shared_gate, 1, model->hidden,
                                 "%sshared_expert_gate.weight", prefix);
}


static int take_layer(const moe_family_t *family, moe_model_t *model, uint32_t i,
                      moe_error_t *error)
{
    const traits_t *traits = traits_of(family);
    moe_layer_t *layer = &model->layers[i];
    char prefix[96];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.", i);
    if (moe_model_take_norms(model, layer, prefix, error) != 0) {
        return -1;
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.self_attn.", i);
    if (take_attention(model, &layer->gqa, traits, prefix, error) != 0) {
        return -1;
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.%s.", i, traits->block);
    if (traits->sparse) {
        return moe_sparse_take(model, layer, traits->sparse, prefix, error);
    }
    if (traits->is_gpt_oss) {
        return moe_gpt_oss_take(model, &layer->moe, prefix, error);
    }
    if (traits->is_granite) {
        return take_granite(model, &layer->moe, i, error);
    }
    return layer->is_moe ? take_block(model, &layer->moe, traits, prefix, error)
           : moe_model_take_ffn(model, error, &layer->dense, prefix, &moe_usual_names);
}


static int describe(const moe_family_t *family, moe_model_t *model, const moe_config_t *config,
                    moe_error_t *error)
{
    settings_t s;

    if (read_settings(&s, family, config) != 0
        || moe_model_take_outline(model, &s.outline, error) != 0
        || moe_model_make_rotary(model, &s.rope, s.traits->interleaved, &s.gqa.rotary, error) != 0)
    {
        return -1;
    }
    if (s.traits->is_granite) {
        model->embedding_scale = s.embedding_scale;
        model->residual_scale = s.residual_scale;
        model->logits_scale = s.logits_scale;
    }
    for (uint32_t i = 0; i < s.outline.layers; i++) {
        moe_layer_t *layer = &model->layers[i];

        layer->mixer = MOE_MIXER_GQA;
        layer->gqa = s.gqa;
        layer->gqa.window = moe_windows_of(&s.windows, i);
        if (s.traits->sparse) {
            moe_sparse_describe(&s.sparse, layer, i);
            continue;
        }
        layer->is_moe = is_moe_layer(&s, i);
        if (layer->is_moe) {
            layer->moe.router = s.router;
            layer->moe.width = s.expert_width;
            layer->moe.shared.width = s.shared_width;
            layer->moe.form = s.form;
        } else {
            layer->dense.width = s.dense_width;
        }
    }
    return 0;
}


const moe_family_t moe_family_olmoe = {
    .model_type = "olmoe", .known_keys = olmoe_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_mixtral = {
    .model_type = "mixtral", .known_keys = mixtral_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_qwen2_moe = {
    .model_type = "qwen2_moe", .known_keys = qwen2_moe_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_qwen3_moe = {
    .model_type = "qwen3_moe", .known_keys = qwen3_moe_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_gpt_oss = {
    .model_type = "gpt_oss", .known_keys = gpt_oss_keys, .quantised = "mxfp4",
    .describe = describe, .take_layer = take_layer
};

const moe_family_t moe_family_minimax_m2 = {
    .model_type = "minimax_m2", .known_keys = minimax_m2_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_glm4_moe = {
    .model_type = "glm4_moe", .known_keys = glm4_moe_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_hy_v3 = {
    .model_type = "hy_v3", .known_keys = hy_v3_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_ernie4_5_moe = {
    .model_type = "ernie4_5_moe", .known_keys = ernie4_5_moe_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_hunyuan_v1_moe = {
    .model_type = "hunyuan_v1_moe", .known_keys = hunyuan_v1_moe_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_granitemoe = {
    .model_type = "granitemoe", .known_keys = granite_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_granitemoeshared = {
    .model_type = "granitemoeshared", .known_keys = granite_keys, .describe = describe,
    .take_layer = take_layer
};

const moe_family_t moe_family_qwen3_vl_moe = {
    .model_type = "qwen3_vl_moe_text", .known_keys = qwen3_moe_keys, .describe = describe,
    .take_layer = take_layer
};
