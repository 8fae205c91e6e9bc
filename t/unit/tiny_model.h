/*
 * Writes tiny random models of the DeepSeek families in Hugging Face format, for tests:
 *
 *     tiny_model_t options = tiny_model_defaults();
 *     tiny_files_t files = tiny_model_make(&options);
 *     char *directory = tiny_directory();
 *     tiny_model_save(&files, directory);       (or tiny_model_save_sharded)
 *     ...
 *     tiny_directory_remove(directory);
 *     tiny_model_free(&files);
 *
 * Between make and save a test may change files.config and files.header (the safetensors header:
 * name -> {dtype, shape, data_offsets}) to damage them.  The same seed gives the same weights
 * before rounding to `dtype`.  Any failure of the file system aborts the test.
 */

#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const char *model_type, *topk_method, *scoring, *dtype;
    uint32_t hidden, vocabulary, layers, dense_layers, context;
    uint32_t heads, q_lora, kv_lora, nope, rope, value;         /* q_lora 0: null in the config */
    uint32_t kv_heads, head;                                    /* of families with GQA */
    uint32_t biases;                                            /* of attention: 1: yes */
    uint32_t window;                                            /* of attention: 0: none */
    uint32_t qk_norm, rotary;                                   /* of MiniMax-M2 and GLM-4.5: 1: yes;
                                                                 * dimensions of a head */
    uint32_t dense_width, expert_width, experts, top_k, groups, groups_kept, shared;
    int normalise, tied, yarn, interleaved, mtp;
    double scale;                                               /* routed_scaling_factor */
    uint64_t seed;
} tiny_model_t;

typedef struct {
    json_t *config, *header;
    unsigned char *data;
    size_t size;
    uint64_t random;
} tiny_files_t;


static inline tiny_model_t tiny_model_defaults(void)
{
    return (tiny_model_t) {
        .model_type = "deepseek_v3", .topk_method = "noaux_tc", .scoring = "sigmoid",
        .dtype = "BF16", .hidden = 64, .vocabulary = 96, .layers = 3, .dense_layers = 1,
        .context = 256, .heads = 4, .q_lora = 24, .kv_lora = 32, .nope = 16, .rope = 8,
        .value = 16, .dense_width = 96, .expert_width = 32, .experts = 8, .top_k = 3, .groups = 4,
        .groups_kept = 2, .shared = 1, .normalise = 1, .interleaved = 1, .mtp = 1, .scale = 2.5,
        .seed = 1
    };
}


/* DeepSeek-V2-Lite's switches: softmax, no query compression, two shared experts. */
static inline tiny_model_t tiny_model_v2(void)
{
    tiny_model_t options = tiny_model_defaults();

    options.model_type = "deepseek_v2";
    options.topk_method = "greedy";
    options.scoring = "softmax";
    options.q_lora = 0;
    options.groups = 1;
    options.groups_kept = 1;
    options.shared = 2;
    options.normalise = 0;
    options.mtp = 0;
    options.scale = 1;
    options.yarn = 1;
    return options;
}


/* A family with grouped queries: "olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "minimax_m2",
 * "glm4_moe", "gpt_oss". */
static inline tiny_model_t tiny_model_gqa(const char *model_type)
{
    const int qwen2 = strcmp(model_type, "qwen2_moe") == 0;
    const int mixtral = strcmp(model_type, "mixtral") == 0;
    const int glm = strcmp(model_type, "glm4_moe") == 0;
    const int minimax = strcmp(model_type, "minimax_m2") == 0;
    const int gpt_oss = strcmp(model_type, "gpt_oss") == 0;
    tiny_model_t options = tiny_model_defaults();

    options.model_type = model_type;
    options.topk_method = "greedy";
    options.scoring = "softmax";
    options.heads = 6;
    options.kv_heads = 2;
    options.head = 16;
    options.groups = 1;
    options.groups_kept = 1;
    options.shared = qwen2 ? 2 : 0;
    options.biases = qwen2 || gpt_oss;
    options.normalise = mixtral || gpt_oss;
    options.window = gpt_oss ? 12 : 0;
    options.yarn = gpt_oss;
    options.dense_layers = 0;
    options.mtp = 0;
    options.scale = 1;
    if (glm || minimax) {
        options.topk_method = "noaux_tc";
        options.scoring = "sigmoid";
        options.normalise = 1;
        options.qk_norm = 1;
        options.rotary = 8;
    }
    if (glm) {
        options.dense_layers = 1;
        options.shared = 1;
        options.mtp = 1;
        options.scale = 2.5;
        options.biases = 1;
    }
    return options;
}


static inline void tiny_check(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        abort();
    }
}


/* splitmix64, as a number in [-1, 1) */
static inline float tiny_random(tiny_files_t *files)
{
    uint64_t z = files->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (float) ((double) (z >> 11) / 4503599627370496.0 - 1.0);
}


static inline uint16_t tiny_bfloat16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}


/* Round to nearest even; values of tests never overflow. */
static inline uint16_t tiny_half(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float magnitude = fabsf(value);
    int exponent = -14;
    long mantissa;

    if (magnitude >= 0x1p-14f) {
        frexpf(magnitude, &exponent);
        exponent--;
    }
    mantissa = lrintf(ldexpf(magnitude, 10 - exponent));
    return (uint16_t) (sign + ((exponent + 14) << 10) + mantissa);
}


/* Appends `count` numbers center + width * random to the data. */
static inline void tiny_append(tiny_files_t *files, const char *dtype, size_t count, float center,
                               float width)
{
    size_t element = strcmp(dtype, "F32") == 0 ? 4 : 2;

    files->data = realloc(files->data, files->size + count * element);
    tiny_check(files->data != NULL, "realloc");
    for (size_t i = 0; i < count; i++) {
        float value = center + width * tiny_random(files);
        uint16_t bits = strcmp(dtype, "F16") == 0 ? tiny_half(value) : tiny_bfloat16(value);

        memcpy(files->data + files->size, element == 4 ? (void *) &value : (void *) &bits, element);
        files->size += element;
    }
}


/* A tensor [rows, columns], or [rows] when columns is 0. */
static inline void tiny_tensor(tiny_files_t *files, const char *dtype, const char *prefix,
                               const char *name, uint32_t rows, uint32_t columns, float center,
                               float width)
{
    json_int_t begin = (json_int_t) files->size;
    json_t *shape = json_pack("[i]", rows);
    char full[128];

    if (columns > 0) {
        json_array_append_new(shape, json_integer(columns));
    }
    tiny_append(files, dtype, (size_t) rows * (columns > 0 ? columns : 1), center, width);
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    json_object_set_new(files->header, full,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape,
                                  "data_offsets", begin, (json_int_t) files->size));
}


static inline void tiny_weight(tiny_files_t *files, const tiny_model_t *o, const char *prefix,
                               const char *name, uint32_t rows, uint32_t columns)
{
    tiny_tensor(files, o->dtype, prefix, name, rows, columns, 0, sqrtf(3.0f / (float) columns));
}


static inline void tiny_norm(tiny_files_t *files, const tiny_model_t *o, const char *prefix,
                             const char *name, uint32_t size)
{
    tiny_tensor(files, o->dtype, prefix, name, size, 0, 1, 0.25f);
}


static inline void tiny_ffn(tiny_files_t *files, const tiny_model_t *o, const char *prefix,
                            uint32_t width)
{
    tiny_weight(files, o, prefix, "gate_proj.weight", width, o->hidden);
    tiny_weight(files, o, prefix, "up_proj.weight", width, o->hidden);
    tiny_weight(files, o, prefix, "down_proj.weight", o->hidden, width);
}


static inline void tiny_mixtral_moe(tiny_files_t *files, const tiny_model_t *o, const char *prefix)
{
    char name[96];

    tiny_weight(files, o, prefix, "gate.weight", o->experts, o->hidden);
    if (strcmp(o->topk_method, "noaux_tc") == 0) {
        tiny_tensor(files, "F32", prefix, "e_score_correction_bias", o->experts, 0, 0, 0.25f);
    }
    for (uint32_t e = 0; e < o->experts; e++) {
        snprintf(name, sizeof(name), "%sexperts.%u.", prefix, e);
        tiny_weight(files, o, name, "w1.weight", o->expert_width, o->hidden);
        tiny_weight(files, o, name, "w3.weight", o->expert_width, o->hidden);
        tiny_weight(files, o, name, "w2.weight", o->hidden, o->expert_width);
    }
}


static inline void tiny_moe(tiny_files_t *files, const tiny_model_t *o, const char *prefix)
{
    const int qwen2 = strcmp(o->model_type, "qwen2_moe") == 0;
    char name[96];

    tiny_weight(files, o, prefix, "gate.weight", o->experts, o->hidden);
    if (strcmp(o->topk_method, "noaux_tc") == 0) {
        tiny_tensor(files, "F32", prefix, "gate.e_score_correction_bias", o->experts, 0, 0, 0.25f);
    }
    for (uint32_t e = 0; e < o->experts; e++) {
        snprintf(name, sizeof(name), "%sexperts.%u.", prefix, e);
        tiny_ffn(files, o, name, o->expert_width);
    }
    snprintf(name, sizeof(name), "%sshared_expert%s.", prefix, qwen2 ? "" : "s");
    if (o->shared > 0) {
        tiny_ffn(files, o, name, o->shared * o->expert_width);
    }
    if (o->shared > 0 && qwen2) {
        tiny_weight(files, o, prefix, "shared_expert_gate.weight", 1, o->hidden);
    }
}


/* What a layer for multi-token prediction has besides. */
static inline void tiny_mtp(tiny_files_t *files, const tiny_model_t *o, const char *prefix)
{
    tiny_norm(files, o, prefix, "enorm.weight", o->hidden);
    tiny_norm(files, o, prefix, "hnorm.weight", o->hidden);
    tiny_weight(files, o, prefix, "eh_proj.weight", o->hidden, 2 * o->hidden);
    tiny_norm(files, o, prefix, "shared_head.norm.weight", o->hidden);
}


/* A tensor [count, rows, columns]. */
static inline void tiny_stack(tiny_files_t *files, const tiny_model_t *o, const char *prefix,
                              const char *name, uint32_t count, uint32_t rows, uint32_t columns)
{
    char full[128];

    tiny_tensor(files, o->dtype, prefix, name, count * rows, columns, 0,
                sqrtf(3.0f / (float) rows));
    snprintf(full, sizeof(full), "%s%s", prefix, name);
    json_object_set_new(json_object_get(files->header, full), "shape",
                        json_pack("[i, i, i]", count, rows, columns));
}


/* gpt-oss: experts lie [in, out], gate and up in turn. */
static inline void tiny_gpt_oss_moe(tiny_files_t *files, const tiny_model_t *o, const char *prefix)
{
    const uint32_t width = o->expert_width;

    tiny_weight(files, o, prefix, "router.weight", o->experts, o->hidden);
    tiny_tensor(files, o->dtype, prefix, "router.bias", o->experts, 0, 0, 0.5f);
    tiny_stack(files, o, prefix, "experts.gate_up_proj", o->experts, o->hidden, 2 * width);
    tiny_tensor(files, o->dtype, prefix, "experts.gate_up_proj_bias", o->experts, 2 * width, 0,
                0.5f);
    tiny_stack(files, o, prefix, "experts.down_proj", o->experts, width, o->hidden);
    tiny_tensor(files, o->dtype, prefix, "experts.down_proj_bias", o->experts, o->hidden, 0, 0.5f);
}


static inline void tiny_gqa_layer(tiny_files_t *files, const tiny_model_t *o, uint32_t i)
{
    const uint32_t q = o->heads * o->head, kv = o->kv_heads * o->head;
    const int minimax = strcmp(o->model_type, "minimax_m2") == 0;
    const int glm = strcmp(o->model_type, "glm4_moe") == 0;
    const int whole = strcmp(o->model_type, "olmoe") == 0 || minimax;
    const int mixtral = strcmp(o->model_type, "mixtral") == 0;
    const int qwen2 = strcmp(o->model_type, "qwen2_moe") == 0;
    const int gpt_oss = strcmp(o->model_type, "gpt_oss") == 0;
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.", i);
    tiny_norm(files, o, prefix, "input_layernorm.weight", o->hidden);
    tiny_norm(files, o, prefix, "post_attention_layernorm.weight", o->hidden);
    if (i >= o->layers) {
        tiny_mtp(files, o, prefix);
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.self_attn.", i);
    tiny_weight(files, o, prefix, "q_proj.weight", q, o->hidden);
    tiny_weight(files, o, prefix, "k_proj.weight", kv, o->hidden);
    tiny_weight(files, o, prefix, "v_proj.weight", kv, o->hidden);
    tiny_weight(files, o, prefix, "o_proj.weight", o->hidden, q);
    if (o->biases) {
        tiny_tensor(files, o->dtype, prefix, "q_proj.bias", q, 0, 0, 0.5f);
        tiny_tensor(files, o->dtype, prefix, "k_proj.bias", kv, 0, 0, 0.5f);
        tiny_tensor(files, o->dtype, prefix, "v_proj.bias", kv, 0, 0, 0.5f);
    }
    if (o->biases && !glm && !qwen2) {
        tiny_tensor(files, o->dtype, prefix, "o_proj.bias", o->hidden, 0, 0, 0.5f);
    }
    if (gpt_oss) {
        tiny_tensor(files, o->dtype, prefix, "sinks", o->heads, 0, 0, 2);
    }
    if (!mixtral && !qwen2 && !gpt_oss && (o->qk_norm || !(glm || minimax))) {
        tiny_norm(files, o, prefix, "q_norm.weight", whole ? q : o->head);
        tiny_norm(files, o, prefix, "k_norm.weight", whole ? kv : o->head);
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.%s.", i,
             mixtral || minimax ? "block_sparse_moe" : "mlp");
    if (i < o->dense_layers) {
        tiny_ffn(files, o, prefix, o->dense_width);
    } else {
        (mixtral || minimax ? tiny_mixtral_moe : gpt_oss ? tiny_gpt_oss_moe : tiny_moe)(files, o,
                                                                                        prefix);
    }
}


static inline void tiny_layer(tiny_files_t *files, const tiny_model_t *o, uint32_t i)
{
    uint32_t query = o->heads * (o->nope + o->rope);
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.", i);
    tiny_norm(files, o, prefix, "input_layernorm.weight", o->hidden);
    tiny_norm(files, o, prefix, "post_attention_layernorm.weight", o->hidden);
    if (i >= o->layers) {
        tiny_mtp(files, o, prefix);
    }
    snprintf(prefix, sizeof(prefix), "model.layers.%u.self_attn.", i);
    if (o->q_lora > 0) {
        tiny_weight(files, o, prefix, "q_a_proj.weight", o->q_lora, o->hidden);
        tiny_norm(files, o, prefix, "q_a_layernorm.weight", o->q_lora);
        tiny_weight(files, o, prefix, "q_b_proj.weight", query, o->q_lora);
    } else {
        tiny_weight(files, o, prefix, "q_proj.weight", query, o->hidden);
    }
    tiny_weight(files, o, prefix, "kv_a_proj_with_mqa.weight", o->kv_lora + o->rope, o->hidden);
    tiny_norm(files, o, prefix, "kv_a_layernorm.weight", o->kv_lora);
    tiny_weight(files, o, prefix, "kv_b_proj.weight", o->heads * (o->nope + o->value), o->kv_lora);
    tiny_weight(files, o, prefix, "o_proj.weight", o->hidden, o->heads * o->value);
    snprintf(prefix, sizeof(prefix), "model.layers.%u.mlp.", i);
    if (i < o->dense_layers) {
        tiny_ffn(files, o, prefix, o->dense_width);
    } else {
        tiny_moe(files, o, prefix);
    }
}


/* What MiniMax-M2's and GLM-4.5's configs say otherwise than those of the older families. */
static inline void tiny_sigmoid_config(json_t *config, const tiny_model_t *o)
{
    json_object_set_new(config, "use_qk_norm", json_boolean(o->qk_norm));
    if (strcmp(o->model_type, "minimax_m2") == 0) {
        json_object_update_new(config, json_pack(
            "{s:i, s:i, s:s, s:b, s:s, s:i, s:b, s:i}", "num_local_experts", o->experts,
            "rotary_dim", o->rotary, "scoring_func", o->scoring, "use_routing_bias", 1,
            "qk_norm_type", "per_layer", "shared_intermediate_size", 0, "use_mtp", 1,
            "num_mtp_modules", 3));
        return;
    }
    json_object_update_new(config, json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:i, s:b}", "intermediate_size",
        o->dense_width, "moe_intermediate_size", o->expert_width, "n_routed_experts", o->experts,
        "n_group", o->groups, "topk_group", o->groups_kept, "n_shared_experts", o->shared,
        "first_k_dense_replace", o->dense_layers, "routed_scaling_factor", o->scale,
        "partial_rotary_factor", (double) o->rotary / o->head, "num_nextn_predict_layers", o->mtp,
        "norm_topk_prob", o->normalise));
}


static inline json_t *tiny_gqa_config(const tiny_model_t *o)
{
    const int mixtral = strcmp(o->model_type, "mixtral") == 0;
    const int sigmoid = strcmp(o->scoring, "sigmoid") == 0;
    const int gpt_oss = strcmp(o->model_type, "gpt_oss") == 0;
    const int qwen2 = strcmp(o->model_type, "qwen2_moe") == 0;
    const int qwen = qwen2 || strcmp(o->model_type, "qwen3_moe") == 0;
    json_t *dense = json_array(), *config = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:i, s:i}",
        "model_type", o->model_type, "hidden_act", "silu", "hidden_size", o->hidden, "vocab_size",
        o->vocabulary, "num_hidden_layers", o->layers, "max_position_embeddings", o->context,
        "num_attention_heads", o->heads, "num_key_value_heads", o->kv_heads, "head_dim", o->head,
        "num_experts_per_tok", o->top_k, "tie_word_embeddings", o->tied, "rms_norm_eps", 1e-6,
        "rope_theta", 10000.0, "eos_token_id", 1, "intermediate_size",
        qwen ? o->dense_width : o->expert_width);

    tiny_check(config != NULL, "json_pack");
    if (sigmoid) {
        tiny_sigmoid_config(config, o);
    } else {
        json_object_set_new(config, mixtral || gpt_oss ? "num_local_experts" : "num_experts",
                            json_integer(o->experts));
    }
    if (!mixtral && !sigmoid && !gpt_oss) {
        json_object_set_new(config, "norm_topk_prob", json_boolean(o->normalise));
    }
    for (uint32_t i = 0; i < o->dense_layers; i++) {
        json_array_append_new(dense, json_integer(i));
    }
    if ((o->biases || gpt_oss) && !qwen2) {
        json_object_set_new(config, "attention_bias", json_boolean(o->biases));
    }
    if (qwen2) {
        json_object_set_new(config, "qkv_bias", json_boolean(o->biases));
        json_object_set_new(config, "shared_expert_intermediate_size",
                            json_integer(o->shared * o->expert_width));
    }
    if (qwen) {
        json_object_set_new(config, "moe_intermediate_size", json_integer(o->expert_width));
        json_object_set(config, "mlp_only_layers", dense);
    }
    if (o->window > 0) {
        json_object_set_new(config, "sliding_window", json_integer(o->window));
    }
    if (qwen) {
        json_object_set_new(config, "use_sliding_window", json_boolean(o->window > 0));
    }
    if (o->yarn) {
        json_object_set_new(config, "rope_scaling", json_pack(
            "{s:s, s:f, s:i}", "rope_type", "yarn", "factor", 4.0,
            "original_max_position_embeddings", 64));
    }
    if (gpt_oss) {                      /* a limit that is met often */
        json_object_set_new(config, "swiglu_limit", json_real(0.75));
        json_object_set_new(json_object_get(config, "rope_scaling"), "truncate", json_false());
    }
    json_decref(dense);
    return config;
}


static inline json_t *tiny_config(const tiny_model_t *o)
{
    if (o->kv_heads > 0) {
        return tiny_gqa_config(o);
    }

    json_t *config = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}",
        "model_type", o->model_type, "topk_method", o->topk_method, "scoring_func", o->scoring,
        "hidden_act", "silu", "hidden_size", o->hidden, "vocab_size", o->vocabulary,
        "num_hidden_layers", o->layers, "first_k_dense_replace", o->dense_layers,
        "max_position_embeddings", o->context, "num_attention_heads", o->heads,
        "num_key_value_heads", o->heads, "kv_lora_rank", o->kv_lora, "qk_nope_head_dim", o->nope,
        "qk_rope_head_dim", o->rope, "v_head_dim", o->value, "intermediate_size", o->dense_width);

    json_object_update_new(config, json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:b, s:i, s:f, s:f, s:i}",
        "moe_intermediate_size", o->expert_width, "n_routed_experts", o->experts,
        "num_experts_per_tok", o->top_k, "n_group", o->groups, "topk_group", o->groups_kept,
        "n_shared_experts", o->shared, "norm_topk_prob", o->normalise, "tie_word_embeddings",
        o->tied, "rope_interleave", o->interleaved, "num_nextn_predict_layers", o->mtp,
        "routed_scaling_factor", o->scale, "rms_norm_eps", 1e-6, "eos_token_id", 1));
    json_object_set_new(config, "rope_theta", json_integer(10000));
    json_object_set_new(config, "q_lora_rank", o->q_lora ? json_integer(o->q_lora) : json_null());
    json_object_set_new(config, "rope_scaling", !o->yarn ? json_null() : json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:f, s:f}", "type", "yarn", "factor", 40,
        "original_max_position_embeddings", 64, "beta_fast", 32, "beta_slow", 1, "mscale", 0.707,
        "mscale_all_dim", 0.707));
    tiny_check(config != NULL, "json_pack");
    return config;
}


static inline tiny_files_t tiny_model_make(const tiny_model_t *o)
{
    tiny_files_t files = {
        .config = tiny_config(o), .header = json_object(), .random = o->seed
    };

    tiny_tensor(&files, o->dtype, "", "model.embed_tokens.weight", o->vocabulary, o->hidden, 0, 1);
    tiny_norm(&files, o, "", "model.norm.weight", o->hidden);
    if (!o->tied) {
        tiny_weight(&files, o, "", "lm_head.weight", o->vocabulary, o->hidden);
    }
    for (uint32_t i = 0; i < o->layers + (o->mtp != 0); i++) {
        (o->kv_heads > 0 ? tiny_gqa_layer : tiny_layer)(&files, o, i);
    }
    return files;
}


static inline void tiny_model_free(tiny_files_t *files)
{
    json_decref(files->config);
    json_decref(files->header);
    free(files->data);
    memset(files, 0, sizeof(*files));
}


/* A new empty directory. */
static inline char *tiny_directory(void)
{
    char *directory = strdup("/tmp/moe-test-XXXXXX");

    tiny_check(directory != NULL && mkdtemp(directory) != NULL, "mkdtemp");
    return directory;
}


/* Removes the directory with the files in it and frees its name. */
static inline void tiny_directory_remove(char *directory)
{
    DIR *dir = opendir(directory);
    struct dirent *entry;

    tiny_check(dir != NULL, directory);
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            tiny_check(unlinkat(dirfd(dir), entry->d_name, 0) == 0, entry->d_name);
        }
    }
    closedir(dir);
    tiny_check(rmdir(directory) == 0, directory);
    free(directory);
}


static inline void tiny_write(const char *directory, const char *name, const void *data,
                              size_t size)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    file = fopen(path, "w");
    tiny_check(file != NULL, path);
    tiny_check(fwrite(data, 1, size, file) == size, path);
    tiny_check(fclose(file) == 0, path);
}


static inline void tiny_write_json(const char *directory, const char *name, const json_t *json)
{
    char *text = json_dumps(json, 0);

    tiny_check(text != NULL, name);
    tiny_write(directory, name, text, strlen(text));
    free(text);
}


/* Writes a safetensors file; the header is padded with blanks until the data begins at a multiple
 * of 8 plus `misalign`. */
static inline void tiny_write_safetensors(const char *directory, const char *name,
                                          const json_t *header, const void *data, size_t size,
                                          size_t misalign)
{
    char *text = json_dumps(header, JSON_COMPACT);
    size_t length = strlen(text), padded = (length + 7) / 8 * 8 + misalign;
    unsigned char *file = malloc(8 + padded + size);

    tiny_check(file != NULL, "malloc");
    for (int i = 0; i < 8; i++) {
        file[i] = (unsigned char) ((uint64_t) padded >> 8 * i);
    }
    memset(file + 8, ' ', padded);
    memcpy(file + 8, text, length);
    memcpy(file + 8 + padded, data, size);
    tiny_write(directory, name, file, 8 + padded + size);
    free(file);
    free(text);
}


/* Writes config.json and model.safetensors. */
static inline void tiny_model_save(const tiny_files_t *files, const char *directory)
{
    tiny_write_json(directory, "config.json", files->config);
    tiny_write_safetensors(directory, "model.safetensors", files->header, files->data, files->size,
                           0);
}


/* The same, into a new directory `name` below another. */
static inline void tiny_model_save_below(const tiny_files_t *files, const char *directory,
                                         const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    tiny_check(mkdir(path, 0755) == 0, path);
    tiny_model_save(files, path);
}


/* Writes config.json and n shards with an index, tensors dealt in turn. */
static inline void tiny_model_save_sharded(const tiny_files_t *files, const char *directory,
                                           unsigned n_shards)
{
    json_t *map = json_object();
    const char *tensor;
    json_t *info;

    for (unsigned s = 0; s < n_shards; s++) {
        unsigned char *data = malloc(files->size);
        json_t *header = json_object();
        size_t size = 0;
        unsigned i = 0;
        char name[64];

        snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", s + 1, n_shards);
        json_object_foreach(files->header, tensor, info) {
            json_t *offsets = json_object_get(info, "data_offsets");
            size_t begin = (size_t) json_integer_value(json_array_get(offsets, 0));
            size_t length = (size_t) json_integer_value(json_array_get(offsets, 1)) - begin;
            json_t *copy;

            if (i++ % n_shards != s) {
                continue;
            }
            copy = json_deep_copy(info);
            json_object_set_new(copy, "data_offsets", json_pack("[I, I]", (json_int_t) size,
                                                                (json_int_t) (size + length)));
            json_object_set_new(header, tensor, copy);
            json_object_set_new(map, tensor, json_string(name));
            memcpy(data + size, files->data + begin, length);
            size += length;
        }
        tiny_write_safetensors(directory, name, header, data, size, 0);
        json_decref(header);
        free(data);
    }
    info = json_pack("{s:o}", "weight_map", map);
    tiny_write_json(directory, "model.safetensors.index.json", info);
    json_decref(info);
    tiny_write_json(directory, "config.json", files->config);
}

#endif
