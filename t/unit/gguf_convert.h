/*
 * A model out of its directory into GGUF, as llama.cpp's converter writes it: vectors and router in
 * f32, experts of a layer in one tensor.  DeepSeek's (architecture deepseek2): kv_b_proj cut in two
 * with its keys transposed, layers for multi-token prediction left out.  Mixtral's (llama): rows of
 * q and k in pairs.
 */

#ifndef GGUF_CONVERT_H
#define GGUF_CONVERT_H

#include <limits.h>

#include "t/unit/gguf_writer.h"

typedef struct {
    uint32_t type;              /* of the matrices */
    int legacy;                 /* as older converters: kv_b_proj whole, a head's own sizes; a
                                 * tensor for each of Mixtral's experts; keys left out */
    uint32_t parts;             /* files; 0 or 1: one */
    int prediction;             /* a block for multi-token prediction behind the last one */
    int random;                 /* matrices of any numbers: where rows are whole blocks of it, in */
    size_t format;              /* this one of gguf_formats, else in bf16 */
    int widened;                /* those numbers as bf16 */
    int fused;                  /* gate and up of a layer's experts in one tensor */
} gguf_options_t;

typedef struct {
    const gguf_options_t *options;
    const moe_tensors_t *tensors;
    const json_t *config;
    const char *model_type, *architecture;
    gguf_writer_t *writers[8];
    uint32_t n_tensors;
    uint64_t random;
} gguf_conversion_t;


static inline json_t *gguf_load_json(const char *directory, const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return json_load_file(path, JSON_ALLOW_NUL, NULL);
}


static inline uint32_t gguf_setting(const gguf_conversion_t *c, const char *key)
{
    const json_t *value = json_object_get(c->config, key);

    return (uint32_t) json_integer_value(json_is_array(value) ? json_array_get(value, 0) : value);
}


static inline uint32_t gguf_head(const gguf_conversion_t *c)
{
    const uint32_t head = gguf_setting(c, "head_dim");

    return head > 0 ? head
           : gguf_setting(c, "hidden_size") / gguf_setting(c, "num_attention_heads");
}


static inline int gguf_is(const gguf_conversion_t *c, const char *model_type)
{
    return strcmp(c->model_type, model_type) == 0;
}


/* Mixtral's names for the matrices of experts, which MiniMax took over. */
static inline int gguf_has_blocks(const gguf_conversion_t *c)
{
    return gguf_is(c, "mixtral") || gguf_is(c, "minimax_m2");
}


/* "ARCHITECTURE.key", until the next call. */
static inline const char *gguf_own(const gguf_conversion_t *c, const char *key)
{
    static char name[96];

    snprintf(name, sizeof(name), "%s.%s", c->architecture, key);
    return name;
}


/* The numbers of a tensor in f32, owned by the caller; NULL when there is none. */
static inline float *gguf_values(const gguf_conversion_t *c, const char *name, size_t *count)
{
    const moe_tensor_t *tensor = moe_tensors_find(c->tensors, name);
    float *values;

    if (tensor == NULL) {
        return NULL;
    }
    *count = 1;
    for (unsigned i = 0; i < tensor->n_dims; i++) {
        *count *= tensor->shape[i];
    }
    values = malloc(*count * sizeof(float));
    gguf_check(values != NULL, "malloc");
    moe_widen(tensor->dtype, tensor->data, *count, values);
    return values;
}


/* Parts take tensors in turn. */
static inline void gguf_add(gguf_conversion_t *c, const char *name, uint32_t type, uint32_t n_dims,
                            const uint64_t *dims, const float *values)
{
    const uint32_t parts = c->options->parts > 1 ? c->options->parts : 1;
    const moe_dtype_t dtype = gguf_formats[c->options->format].dtype;
    size_t count = 1;
    gguf_bytes_t bytes;

    for (uint32_t i = 0; i < n_dims; i++) {
        count *= dims[i];
    }
    if (c->options->random && type != GGUF_F32 && dims[0] % moe_dtype_block(dtype) == 0) {
        type = gguf_formats[c->options->format].type;
        bytes = gguf_random_blocks(c->options->format, count, &c->random);
        if (c->options->widened) {
            float *widened = malloc(count * sizeof(float));

            gguf_check(widened != NULL, "malloc");
            moe_widen(dtype, bytes.data, count, widened);
            free(bytes.data);
            type = GGUF_BF16;
            bytes = gguf_encode(type, widened, count);
            free(widened);
        }
    } else {
        type = dims[0] % 32 != 0 && type == GGUF_Q8_0 ? GGUF_BF16 : type;
        bytes = gguf_encode(type, values, count);
    }
    gguf_tensor(c->writers[c->n_tensors++ % parts], name, type, n_dims, dims, bytes.data,
                bytes.size);
    free(bytes.data);
}


/* Rows of each head: [2][head / 2] becomes [head / 2][2]. */
static inline void gguf_pair_rows(const gguf_conversion_t *c, float *values, size_t rows,
                                  size_t columns)
{
    const size_t head = gguf_head(c), size = rows * columns * sizeof(float);
    float *copy = malloc(size);

    gguf_check(copy != NULL, "malloc");
    memcpy(copy, values, size);
    for (size_t h = 0; h < rows; h += head) {
        for (size_t half = 0; half < 2; half++) {
            for (size_t j = 0; j < head / 2; j++) {
                memcpy(values + (h + 2 * j + half) * columns,
                       copy + (h + half * head / 2 + j) * columns, columns * sizeof(float));
            }
        }
    }
    free(copy);
}


/* A tensor that only changes its name; none where the model has none. */
static inline void gguf_copy(gguf_conversion_t *c, const char *name, const char *stored)
{
    const moe_tensor_t *tensor = moe_tensors_find(c->tensors, name);
    size_t count;
    float *values = gguf_values(c, name, &count);
    const int plain = tensor != NULL
                      && (tensor->n_dims == 1 || tensor->shape[0] == 1
                          || strstr(stored, "ffn_gate_inp") != NULL);

    if (values != NULL) {
        uint64_t dims[2] = { tensor->shape[tensor->n_dims - 1], tensor->shape[0] };

        if (gguf_is(c, "mixtral") && (strstr(stored, "attn_q.") || strstr(stored, "attn_k."))) {
            gguf_pair_rows(c, values, dims[1], dims[0]);
        }
        gguf_add(c, stored, plain ? GGUF_F32 : c->options->type,
                 dims[1] > 1 ? tensor->n_dims : 1, dims, values);
    }
    free(values);
}


static inline uint32_t gguf_experts_count(const gguf_conversion_t *c)
{
    static const char *const keys[] = {
        "moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts"
    };
    uint32_t experts = 0;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        experts = experts > 0 ? experts : gguf_setting(c, keys[i]);
    }
    return experts;
}


/* One matrix of all experts, owned by the caller: dims says [columns, rows, experts], *count the
 * numbers of one expert.  NULL where the layer has none. */
static inline float *gguf_expert_values(gguf_conversion_t *c, uint32_t layer, const char *name,
                                        uint64_t dims[3], size_t *count)
{
    const uint32_t experts = gguf_experts_count(c);
    float *all = NULL, *values;
    char text[160];

    for (uint32_t e = 0; e < experts; e++) {
        snprintf(text, sizeof(text), "model.layers.%u.%s.experts.%u.%s.weight", layer,
                 gguf_has_blocks(c) ? "block_sparse_moe" : "mlp", e, name);
        values = gguf_values(c, text, count);
        if (values == NULL) {
            return NULL;
        }
        dims[0] = moe_tensors_find(c->tensors, text)->shape[1];
        dims[1] = *count / dims[0];
        dims[2] = experts;
        all = realloc(all, experts * *count * sizeof(float));
        gguf_check(all != NULL, "realloc");
        memcpy(all + e * *count, values, *count * sizeof(float));
        free(values);
    }
    return all;
}


static inline void gguf_experts(gguf_conversion_t *c, uint32_t layer, const char *name,
                                const char *stored)
{
    uint64_t dims[3];
    size_t count;
    float *all = gguf_expert_values(c, layer, name, dims, &count);
    char text[160];

    if (all == NULL) {
        return;
    }
    snprintf(text, sizeof(text), "blk.%u.%s_exps.weight", layer, stored);
    if (c->options->legacy && gguf_is(c, "mixtral")) {
        for (uint32_t e = 0; e < dims[2]; e++) {
            snprintf(text, sizeof(text), "blk.%u.%s.%u.weight", layer, stored, e);
            gguf_add(c, text, c->options->type, 2, dims, all + e * count);
        }
    } else {
        gguf_add(c, text, c->options->type, 3, dims, all);
    }
    free(all);
}


/* gpt-oss's experts, whose gate and up lie in turn: rows of them where numbers are MXFP4, else
 * columns.  The numbers [experts][rows][columns], owned by the caller. */
static inline float *gguf_turns(gguf_conversion_t *c, const char *name, size_t rows, size_t columns)
{
    const size_t count = gguf_experts_count(c) * rows * columns;
    float *values = malloc(count * sizeof(float)), *turned;
    const moe_tensor_t *blocks, *scales;
    char text[128];
    size_t n;

    gguf_check(values != NULL, "malloc");
    snprintf(text, sizeof(text), "%s_blocks", name);
    if ((blocks = moe_tensors_find(c->tensors, text)) != NULL) {
        snprintf(text, sizeof(text), "%s_scales", name);
        scales = moe_tensors_find(c->tensors, text);
        gguf_check(scales != NULL, text);
        moe_widen_apart(blocks->data, scales->data, count, values);
        return values;
    }
    turned = gguf_values(c, name, &n);
    gguf_check(turned != NULL && n == count, name);
    for (size_t i = 0; i < count; i++) {
        const size_t row = i / columns % rows, e = i / columns / rows;

        values[i] = turned[(e * columns + i % columns) * rows + row];
    }
    free(turned);
    return values;
}


/* Every second row from `first` on, and every second bias, of a layer's gates and ups. */
static inline void gguf_every_second(gguf_conversion_t *c, uint32_t layer, const char *stored,
                                     const float *rows, const float *biases, size_t first)
{
    const size_t hidden = gguf_setting(c, "hidden_size"), n = gguf_experts_count(c);
    const size_t width = gguf_setting(c, "intermediate_size");
    const uint64_t dims[3] = { hidden, width, n }, of_bias[2] = { width, n };
    float *values = malloc(n * width * hidden * sizeof(float));
    float *bias = malloc(n * width * sizeof(float));
    char text[64];

    gguf_check(values != NULL && bias != NULL, "malloc");
    for (size_t i = 0; i < n * width; i++) {
        memcpy(values + i * hidden, rows + (2 * i + first) * hidden, hidden * sizeof(float));
        bias[i] = biases[2 * i + first];
    }
    snprintf(text, sizeof(text), "blk.%u.%s.weight", layer, stored);
    gguf_add(c, text, c->options->type, 3, dims, values);
    snprintf(text, sizeof(text), "blk.%u.%s.bias", layer, stored);
    gguf_add(c, text, GGUF_F32, 2, of_bias, bias);
    free(values);
    free(bias);
}


static inline void gguf_oss_experts(gguf_conversion_t *c, uint32_t layer)
{
    const uint64_t hidden = gguf_setting(c, "hidden_size"), n = gguf_experts_count(c);
    const uint64_t width = gguf_setting(c, "intermediate_size");
    const uint64_t dims[3] = { width, hidden, n };
    float *rows, *biases;
    char name[96];
    size_t count;

    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.gate_up_proj_bias", layer);
    biases = gguf_values(c, name, &count);
    gguf_check(biases != NULL, name);
    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.gate_up_proj", layer);
    rows = gguf_turns(c, name, 2 * width, hidden);
    gguf_every_second(c, layer, "ffn_gate_exps", rows, biases, 0);
    gguf_every_second(c, layer, "ffn_up_exps", rows, biases, 1);
    free(rows);
    free(biases);
    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.down_proj_bias", layer);
    biases = gguf_values(c, name, &count);
    gguf_check(biases != NULL, name);
    snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.down_proj", layer);
    rows = gguf_turns(c, name, hidden, width);
    snprintf(name, sizeof(name), "blk.%u.ffn_down_exps.weight", layer);
    gguf_add(c, name, c->options->type, 3, dims, rows);
    snprintf(name, sizeof(name), "blk.%u.ffn_down_exps.bias", layer);
    gguf_add(c, name, GGUF_F32, 2, dims + 1, biases);
    free(rows);
    free(biases);
}


/* Each expert's gate before its up. */
static inline void gguf_fused_experts(gguf_conversion_t *c, uint32_t layer)
{
    uint64_t dims[3];
    size_t count;
    float *gate = gguf_expert_values(c, layer, gguf_has_blocks(c) ? "w1" : "gate_proj", dims,
                                     &count);
    float *up = gguf_expert_values(c, layer, gguf_has_blocks(c) ? "w3" : "up_proj", dims, &count);
    float *both;
    char text[64];

    if (gate == NULL || up == NULL) {
        return;
    }
    both = malloc(2 * dims[2] * count * sizeof(float));
    gguf_check(both != NULL, "malloc");
    for (size_t e = 0; e < dims[2]; e++) {
        memcpy(both + 2 * e * count, gate + e * count, count * sizeof(float));
        memcpy(both + (2 * e + 1) * count, up + e * count, count * sizeof(float));
    }
    dims[1] *= 2;
    snprintf(text, sizeof(text), "blk.%u.ffn_gate_up_exps.weight", layer);
    gguf_add(c, text, c->options->type, 3, dims, both);
    free(gate);
    free(up);
    free(both);
}


/* kv_b_proj [heads][nope + value][latent] as attn_k_b [heads][latent][nope], attn_v_b. */
static inline void gguf_keys_and_values(gguf_conversion_t *c, uint32_t layer)
{
    const uint32_t heads = gguf_setting(c, "num_attention_heads");
    const uint32_t nope = gguf_setting(c, "qk_nope_head_dim");
    const uint32_t value = gguf_setting(c, "v_head_dim"), latent = gguf_setting(c, "kv_lora_rank");
    float *keys = calloc((size_t) heads * latent * nope, sizeof(float));
    float *values = calloc((size_t) heads * latent * value, sizeof(float)), *both;
    char text[96];
    size_t count;

    snprintf(text, sizeof(text), "model.layers.%u.self_attn.kv_b_proj.weight", layer);
    both = gguf_values(c, text, &count);
    gguf_check(both != NULL && keys != NULL && values != NULL, text);
    for (uint32_t h = 0; h < heads; h++) {
        const float *head = both + (size_t) h * (nope + value) * latent;

        for (uint32_t r = 0; r < nope; r++) {
            for (uint32_t l = 0; l < latent; l++) {
                keys[((size_t) h * latent + l) * nope + r] = head[(size_t) r * latent + l];
            }
        }
        memcpy(values + (size_t) h * value * latent, head + (size_t) nope * latent,
               (size_t) value * latent * sizeof(float));
    }
    snprintf(text, sizeof(text), "blk.%u.attn_k_b.weight", layer);
    gguf_add(c, text, c->options->type, 3, (uint64_t[]) {nope, latent, heads}, keys);
    snprintf(text, sizeof(text), "blk.%u.attn_v_b.weight", layer);
    gguf_add(c, text, c->options->type, 3, (uint64_t[]) {latent, value, heads}, values);
    free(both);
    free(keys);
    free(values);
}


static inline void gguf_layer(gguf_conversion_t *c, uint32_t layer)
{
    const char *const names[][2] = {
        { "input_layernorm.weight", "attn_norm.weight" },
        { "post_attention_layernorm.weight",
          gguf_is(c, "glm4_moe") || gguf_is(c, "gpt_oss") ? "post_attention_norm.weight"
                                                          : "ffn_norm.weight" },
        { "self_attn.q_proj.weight", "attn_q.weight" },
        { "self_attn.k_proj.weight", "attn_k.weight" },
        { "self_attn.v_proj.weight", "attn_v.weight" },
        { "self_attn.q_proj.bias", "attn_q.bias" },
        { "self_attn.k_proj.bias", "attn_k.bias" },
        { "self_attn.v_proj.bias", "attn_v.bias" },
        { "self_attn.o_proj.bias", "attn_output.bias" },
        { "self_attn.sinks", "attn_sinks.weight" },
        { "self_attn.q_norm.weight", "attn_q_norm.weight" },
        { "self_attn.k_norm.weight", "attn_k_norm.weight" },
        { "self_attn.query_layernorm.weight", "attn_q_norm.weight" },
        { "self_attn.key_layernorm.weight", "attn_k_norm.weight" },
        { "self_attn.q_a_proj.weight", "attn_q_a.weight" },
        { "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight" },
        { "self_attn.q_b_proj.weight", "attn_q_b.weight" },
        { "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight" },
        { "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight" },
        { "self_attn.o_proj.weight", "attn_output.weight" },
        { "mlp.gate_proj.weight", "ffn_gate.weight" },
        { "mlp.up_proj.weight", "ffn_up.weight" },
        { "mlp.down_proj.weight", "ffn_down.weight" },
        { "mlp.gate.weight", "ffn_gate_inp.weight" },
        { "block_sparse_moe.gate.weight", "ffn_gate_inp.weight" },
        { "block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias" },
        { "mlp.gate.wg.weight", "ffn_gate_inp.weight" },
        { "mlp.router.gate.weight", "ffn_gate_inp.weight" },
        { "mlp.router.weight", "ffn_gate_inp.weight" },
        { "mlp.router.bias", "ffn_gate_inp.bias" },
        { "mlp.gate.e_score_correction_bias", "exp_probs_b.bias" },
        { "mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias" },
        { "mlp.expert_bias", c->options->legacy ? "exp_probs_b.bias" : "exp_probs_b" },
        { "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight" },
        { "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight" },
        { "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight" },
        { "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight" },
        { "mlp.shared_mlp.gate_proj.weight", "ffn_gate_shexp.weight" },
        { "mlp.shared_mlp.up_proj.weight", "ffn_up_shexp.weight" },
        { "mlp.shared_mlp.down_proj.weight", "ffn_down_shexp.weight" },
        { "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight" },
        { "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight" },
        { "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight" },
    };
    char name[96], stored[96];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, names[i][0]);
        snprintf(stored, sizeof(stored), "blk.%u.%s", layer, names[i][1]);
        gguf_copy(c, name, stored);
    }
    if (gguf_setting(c, "kv_lora_rank") == 0 || c->options->legacy) {
        snprintf(name, sizeof(name), "model.layers.%u.self_attn.kv_b_proj.weight", layer);
        snprintf(stored, sizeof(stored), "blk.%u.attn_kv_b.weight", layer);
        gguf_copy(c, name, stored);
    } else {
        gguf_keys_and_values(c, layer);
    }
    if (gguf_is(c, "gpt_oss")) {
        gguf_oss_experts(c, layer);
        return;
    }
    if (c->options->fused) {
        gguf_fused_experts(c, layer);
    } else {
        gguf_experts(c, layer, gguf_has_blocks(c) ? "w1" : "gate_proj", "ffn_gate");
        gguf_experts(c, layer, gguf_has_blocks(c) ? "w3" : "up_proj", "ffn_up");
    }
    gguf_experts(c, layer, gguf_has_blocks(c) ? "w2" : "down_proj", "ffn_down");
}


/* Some of such a block's tensors: nobody reads more than their names. */
static inline void gguf_prediction(gguf_conversion_t *c)
{
    static const char *const names[] = { "nextn.eh_proj", "nextn.enorm", "attn_norm" };
    const float values[32] = { 0 };
    char text[96];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(text, sizeof(text), "blk.%u.%s.weight", gguf_setting(c, "num_hidden_layers"),
                 names[i]);
        gguf_add(c, text, GGUF_F32, 1, (uint64_t[]) {32}, values);
    }
}


static inline void gguf_sizes(gguf_conversion_t *c, gguf_writer_t *w)
{
    static const char *const keys[][2] = {
        { "max_position_embeddings", "context_length" },
        { "hidden_size", "embedding_length" },
        { "intermediate_size", "feed_forward_length" },
        { "num_attention_heads", "attention.head_count" },
        { "num_experts_per_tok", "expert_used_count" },
        { "first_k_dense_replace", "leading_dense_block_count" },
        { "vocab_size", "vocab_size" },
        { "q_lora_rank", "attention.q_lora_rank" },
        { "kv_lora_rank", "attention.kv_lora_rank" },
        { "moe_intermediate_size", "expert_feed_forward_length" },
        { "n_routed_experts", "expert_count" },
        { "num_experts", "expert_count" },
        { "num_local_experts", "expert_count" },
        { "moe_num_experts", "expert_count" },
        { "n_shared_experts", "expert_shared_count" },
        { "num_shared_experts", "expert_shared_count" },
        { "num_shared_expert", "expert_shared_count" },
        { "moe_num_shared_experts", "expert_shared_count" },
        { "moe_layer_start_index", "leading_dense_block_count" },
        { "moe_layer_interval", "interleave_moe_layer_step" },
        { "shared_expert_intermediate_size", "expert_shared_feed_forward_length" },
        { "qk_rope_head_dim", "rope.dimension_count" },
        { "n_group", "expert_group_count" },
        { "topk_group", "expert_group_used_count" },
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (gguf_setting(c, keys[i][0]) > 0) {
            gguf_uint(w, gguf_own(c, keys[i][1]), gguf_setting(c, keys[i][0]));
        }
    }
    if (gguf_is(c, "hunyuan_v1_moe") || gguf_is(c, "ernie4_5_moe")) {
        gguf_uint(w, gguf_own(c, "expert_shared_feed_forward_length"),
                  gguf_setting(c, "intermediate_size")
                  / (gguf_is(c, "ernie4_5_moe") ? gguf_setting(c, "num_key_value_heads") : 1));
    }
    if (gguf_is(c, "gpt_oss")) {
        gguf_uint(w, gguf_own(c, "attention.sliding_window"), gguf_setting(c, "sliding_window"));
    }
    if (gguf_is(c, "minimax_m2") || gguf_is(c, "gpt_oss")) {
        gguf_uint(w, gguf_own(c, "expert_feed_forward_length"),
                  gguf_setting(c, "intermediate_size"));
    }
    gguf_uint(w, gguf_own(c, "block_count"),
              gguf_setting(c, "num_hidden_layers") + (c->options->prediction != 0));
}


static inline void gguf_mla_heads(gguf_conversion_t *c, gguf_writer_t *w)
{
    const uint32_t rope = gguf_setting(c, "qk_rope_head_dim");
    const uint32_t head = gguf_setting(c, "qk_nope_head_dim") + rope;
    const uint32_t value = gguf_setting(c, "v_head_dim"), latent = gguf_setting(c, "kv_lora_rank");
    const int legacy = c->options->legacy;

    gguf_uint(w, gguf_own(c, "attention.head_count_kv"),
              legacy ? gguf_setting(c, "num_attention_heads") : 1);
    gguf_uint(w, gguf_own(c, "attention.key_length"), legacy ? head : latent + rope);
    gguf_uint(w, gguf_own(c, "attention.value_length"), legacy ? value : latent);
    if (!legacy) {
        gguf_uint(w, gguf_own(c, "attention.key_length_mla"), head);
        gguf_uint(w, gguf_own(c, "attention.value_length_mla"), value);
    }
}


static inline void gguf_gqa_heads(gguf_conversion_t *c, gguf_writer_t *w)
{
    const json_t *share = json_object_get(c->config, "partial_rotary_factor");
    const uint32_t head = gguf_head(c);

    gguf_uint(w, gguf_own(c, "attention.head_count_kv"), gguf_setting(c, "num_key_value_heads"));
    if (gguf_setting(c, "hidden_size") / gguf_setting(c, "num_attention_heads") != head) {
        gguf_uint(w, gguf_own(c, "attention.key_length"), head);
        gguf_uint(w, gguf_own(c, "attention.value_length"), head);
    }
    if (gguf_setting(c, "rotary_dim") > 0) {
        gguf_uint(w, gguf_own(c, "rope.dimension_count"), gguf_setting(c, "rotary_dim"));
    } else if (share != NULL) {
        gguf_uint(w, gguf_own(c, "rope.dimension_count"),
                  (uint32_t) (head * json_number_value(share)));
    } else if (!c->options->legacy) {
        gguf_uint(w, gguf_own(c, "rope.dimension_count"), head);
    }
}


static inline const json_t *gguf_either(const gguf_conversion_t *c, const char *key,
                                        const char *other)
{
    const json_t *value = json_object_get(c->config, key);

    return value != NULL ? value : json_object_get(c->config, other);
}


/* Hunyuan's scaling is another base frequency; YaRN's and linear scaling are told. */
static inline void gguf_rope(gguf_conversion_t *c, gguf_writer_t *w)
{
    const json_t *scaling = json_object_get(c->config, "rope_scaling");
    const double alpha = json_number_value(json_object_get(scaling, "alpha"));
    const double head = gguf_head(c);
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    double theta = json_number_value(json_object_get(c->config, "rope_theta"));

    type = type != NULL ? type : json_string_value(json_object_get(scaling, "type"));
    if (alpha > 0) {
        theta *= pow(alpha, head / (head - 2));
    }
    gguf_float(w, gguf_own(c, "rope.freq_base"), (float) theta);
    if (type == NULL || alpha > 0) {
        return;
    }
    gguf_string(w, gguf_own(c, "rope.scaling.type"), type);
    gguf_float(w, gguf_own(c, "rope.scaling.factor"),
               (float) json_number_value(json_object_get(scaling, "factor")));
    if (strcmp(type, "yarn") == 0) {
        const double multiplier = 0.1 * json_number_value(
            json_object_get(scaling, "mscale_all_dim"));

        gguf_uint(w, gguf_own(c, "rope.scaling.original_context_length"),
                  (uint32_t) json_integer_value(
                      json_object_get(scaling, "original_max_position_embeddings")));
        if (multiplier > 0) {
            gguf_float(w, gguf_own(c, "rope.scaling.yarn_log_multiplier"), (float) multiplier);
        }
    }
}


static inline void gguf_numbers(gguf_conversion_t *c, gguf_writer_t *w)
{
    const char *scoring = json_string_value(json_object_get(c->config, "scoring_func"));
    const json_t *scale = gguf_either(c, "routed_scaling_factor", "router_scaling_factor");
    const json_t *normalise = gguf_either(c, "norm_topk_prob", "route_norm");

    gguf_float(w, gguf_own(c, "attention.layer_norm_rms_epsilon"),
               (float) json_number_value(json_object_get(c->config, "rms_norm_eps")));
    if (scale != NULL) {
        gguf_float(w, gguf_own(c, "expert_weights_scale"), (float) json_number_value(scale));
    }
    if (normalise != NULL && (scoring != NULL || scale != NULL)) {
        gguf_bool(w, gguf_own(c, "expert_weights_norm"), json_is_true(normalise));
    }
    if (scoring != NULL) {
        gguf_uint(w, gguf_own(c, "expert_gating_func"), strcmp(scoring, "sigmoid") == 0 ? 2 : 1);
    }
}


/* Ids as in the directory's tokenizer.json; holes are unused. */
static inline void gguf_tokens(gguf_writer_t *w, const json_t *tokenizer, uint32_t vocabulary)
{
    const json_t *model = json_object_get(tokenizer, "model"), *item;
    const json_t *merges = json_object_get(model, "merges");
    const char **texts = calloc(vocabulary, sizeof(*texts)), *text;
    uint32_t *types = calloc(vocabulary, sizeof(*types));
    gguf_bytes_t *bytes;
    json_t *id;
    size_t i;

    gguf_check(texts != NULL && types != NULL, "calloc");
    json_object_foreach(json_object_get(model, "vocab"), text, id) {
        texts[json_integer_value(id)] = text;
        types[json_integer_value(id)] = 1;
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, item) {
        const size_t number = (size_t) json_integer_value(json_object_get(item, "id"));

        texts[number] = json_string_value(json_object_get(item, "content"));
        types[number] = json_is_true(json_object_get(item, "special")) ? 3 : 4;
    }
    bytes = gguf_array(w, "tokenizer.ggml.tokens", GGUF_STRING, vocabulary);
    for (i = 0; i < vocabulary; i++) {
        text = texts[i] ? texts[i] : "[PAD]";
        gguf_text(bytes, text, strlen(text));
    }
    bytes = gguf_array(w, "tokenizer.ggml.token_type", GGUF_I32, vocabulary);
    for (i = 0; i < vocabulary; i++) {
        gguf_number(bytes, types[i] ? types[i] : 5, 4);
    }
    bytes = gguf_array(w, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, item) {
        gguf_text(bytes, json_string_value(item), json_string_length(item));
    }
    free(texts);
    free(types);
}


/* Directories without a tokenizer.json give files without one. */
static inline void gguf_tokenizer(gguf_conversion_t *c, gguf_writer_t *w, const char *directory)
{
    json_t *tokenizer = gguf_load_json(directory, "tokenizer.json");
    json_t *settings = gguf_load_json(directory, "tokenizer_config.json");
    const char *template = json_string_value(json_object_get(settings, "chat_template"));

    if (tokenizer != NULL) {
        gguf_string(w, "tokenizer.ggml.model", "gpt2");
        gguf_string(w, "tokenizer.ggml.pre", "deepseek-v3");
        gguf_tokens(w, tokenizer, gguf_setting(c, "vocab_size"));
        gguf_uint(w, "tokenizer.ggml.bos_token_id", gguf_setting(c, "bos_token_id"));
        gguf_uint(w, "tokenizer.ggml.eos_token_id", gguf_setting(c, "eos_token_id"));
        gguf_uint(w, "tokenizer.ggml.padding_token_id", gguf_setting(c, "pad_token_id"));
        gguf_bool(w, "tokenizer.ggml.add_bos_token", 1);
        gguf_bool(w, "tokenizer.ggml.add_eos_token", 0);
    }
    if (template != NULL) {
        gguf_string(w, "tokenizer.chat_template", template);
    }
    json_decref(tokenizer);
    json_decref(settings);
}


static inline void gguf_save_parts(const gguf_conversion_t *c, const char *path)
{
    const size_t length = strlen(path) - strlen(".gguf");
    char part[PATH_MAX];

    if (c->options->parts <= 1) {
        gguf_write(c->writers[0], path);
        return;
    }
    for (uint32_t i = 0; i < c->options->parts; i++) {
        gguf_number(gguf_key(c->writers[i], "split.no", GGUF_U16), i, 2);
        gguf_number(gguf_key(c->writers[i], "split.count", GGUF_U16), c->options->parts, 2);
        gguf_number(gguf_key(c->writers[i], "split.tensors.count", GGUF_I32), c->n_tensors, 4);
        snprintf(part, sizeof(part), "%.*s-%05u-of-%05u.gguf", (int) length, path, i + 1,
                 c->options->parts);
        gguf_write(c->writers[i], part);
    }
}


/* NULL: GGUF has none. */
static inline const char *gguf_architecture(const char *model_type)
{
    static const char *const architectures[][2] = {
        { "mixtral", "llama" }, { "olmoe", "olmoe" }, { "qwen2_moe", "qwen2moe" },
        { "qwen3_moe", "qwen3moe" },
        { "glm4_moe", "glm4moe" }, { "minimax_m2", "minimax-m2" }, { "hy_v3", "hy_v3" },
        { "gpt_oss", "gpt-oss" }, { "ernie4_5_moe", "ernie4_5-moe" },
        { "hunyuan_v1_moe", "hunyuan-moe" },
        { "deepseek_v2", "deepseek2" }, { "deepseek_v3", "deepseek2" },
        { "glm4_moe_lite", "deepseek2" },
    };
    size_t i = 0;

    while (i < sizeof(architectures) / sizeof(architectures[0])
           && strcmp(architectures[i][0], model_type) != 0)
    {
        i++;
    }
    return i < sizeof(architectures) / sizeof(architectures[0]) ? architectures[i][1] : NULL;
}


/* Writes the model of `directory` to `path`, which ends with ".gguf"; the parts of a split one are
 * named after it. */
static inline void gguf_convert(const char *directory, const char *path,
                                const gguf_options_t *options)
{
    moe_error_t error;
    moe_tensors_t *tensors = moe_tensors_open(directory, &error);
    json_t *config = gguf_load_json(directory, "config.json");
    gguf_conversion_t c = {
        .options = options, .tensors = tensors, .config = config,
        .model_type = json_string_value(json_object_get(config, "model_type"))
    };

    gguf_check(tensors != NULL && config != NULL && options->parts <= 8, directory);
    for (uint32_t i = 0; i < 8; i++) {
        c.writers[i] = gguf_new();
    }
    c.architecture = gguf_architecture(c.model_type);
    gguf_check(c.architecture != NULL, c.model_type);
    gguf_string(c.writers[0], "general.architecture", c.architecture);
    gguf_string(c.writers[0], "general.name", "test");
    gguf_sizes(&c, c.writers[0]);
    if (gguf_setting(&c, "kv_lora_rank") > 0) {
        gguf_mla_heads(&c, c.writers[0]);
    } else {
        gguf_gqa_heads(&c, c.writers[0]);
    }
    gguf_numbers(&c, c.writers[0]);
    gguf_rope(&c, c.writers[0]);
    gguf_tokenizer(&c, c.writers[0], directory);
    gguf_copy(&c, "model.embed_tokens.weight", "token_embd.weight");
    gguf_copy(&c, "model.norm.weight", "output_norm.weight");
    gguf_copy(&c, "lm_head.weight", "output.weight");
    for (uint32_t i = 0; i < gguf_setting(&c, "num_hidden_layers"); i++) {
        gguf_layer(&c, i);
    }
    if (options->prediction) {
        gguf_prediction(&c);
    }
    gguf_save_parts(&c, path);
    for (uint32_t i = 0; i < 8; i++) {
        gguf_free(c.writers[i]);
    }
    json_decref(config);
    moe_tensors_close(tensors);
}

#endif
