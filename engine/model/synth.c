/*
 * The tensors are planned first, because the file lists them before their data.  A number is a
 * function of (seed, tensor, position) alone, so threads can fill a chunk in any order.
 */

#include "engine/model/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/threads.h"
#include "engine/model/gguf_write.h"
#include "engine/model/synth_text.h"

#define CHUNK ((size_t) 1 << 20)        /* elements that are made at a time */
#define SLICE ((size_t) 1 << 14)        /* by a thread */
#define TENSORS_PER_LAYER 20u

/* Sizes as the models' configs have them.  head > 0: grouped queries, else MLA. */
typedef struct {
    const char *name, *architecture;
    moe_synth_text_t text;
    uint32_t hidden, layers, dense_layers, context, heads;
    uint32_t kv_heads, head, qk_norm;   /* qk_norm: 1 of each head, 2 of the whole projection */
    uint32_t q_lora, kv_lora, nope, rope, value;
    uint32_t window;
    int biases;                         /* of all that is computed, and sinks */
    uint32_t dense_width, expert_width, experts, top_k, groups, groups_kept, shared;
    int sigmoid, normalise;
    float scale;                        /* of the experts' weights; 0: not said */
    float norm_eps, theta;
    float yarn, multiplier;             /* factor, 0: none; yarn_log_multiplier */
} shape_t;

#define NONE MOE_SYNTH_NO_TOKEN

static const shape_t shapes[] = {
    { .name = "deepseek-v2-lite", .architecture = "deepseek2",
      .text = { "deepseek-llm", 102400, 100000, 100001 }, .hidden = 2048, .layers = 27,
      .dense_layers = 1, .context = 163840, .heads = 16, .kv_lora = 512, .nope = 128, .rope = 64,
      .value = 128, .dense_width = 10944, .expert_width = 1408, .experts = 64, .top_k = 6,
      .shared = 2, .scale = 1, .norm_eps = 1e-6f, .theta = 1e4f, .yarn = 40,
      .multiplier = 0.0707f },
    { .name = "deepseek-v3", .architecture = "deepseek2", .text = { "deepseek-v3", 129280, 0, 1 },
      .hidden = 7168, .layers = 61, .dense_layers = 3, .context = 163840, .heads = 128,
      .q_lora = 1536, .kv_lora = 512, .nope = 128, .rope = 64, .value = 128, .dense_width = 18432,
      .expert_width = 2048, .experts = 256, .top_k = 8, .groups = 8, .groups_kept = 4, .shared = 1,
      .sigmoid = 1, .normalise = 1, .scale = 2.5f, .norm_eps = 1e-6f, .theta = 1e4f, .yarn = 40,
      .multiplier = 0.1f },
    { .name = "olmoe-1b-7b", .architecture = "olmoe", .text = { "olmo", 50304, NONE, 50279 },
      .hidden = 2048, .layers = 16, .context = 4096, .heads = 16, .kv_heads = 16, .head = 128,
      .qk_norm = 2, .dense_width = 1024, .expert_width = 1024, .experts = 64, .top_k = 8,
      .norm_eps = 1e-5f, .theta = 1e4f },
    { .name = "mixtral-8x7b", .architecture = "llama", .text = { "llama-bpe", 32000, 1, 2 },
      .hidden = 4096, .layers = 32, .context = 32768, .heads = 32, .kv_heads = 8, .head = 128,
      .dense_width = 14336, .expert_width = 14336, .experts = 8, .top_k = 2, .norm_eps = 1e-5f,
      .theta = 1e6f },
    { .name = "qwen3-30b-a3b", .architecture = "qwen3moe",
      .text = { "qwen2", 151936, NONE, 151645 }, .hidden = 2048, .layers = 48, .context = 40960,
      .heads = 32, .kv_heads = 4, .head = 128, .qk_norm = 1, .dense_width = 6144,
      .expert_width = 768, .experts = 128, .top_k = 8, .norm_eps = 1e-6f, .theta = 1e6f },
    { .name = "gpt-oss-20b", .architecture = "gpt-oss",
      .text = { "gpt-4o", 201088, 199998, 200002 }, .hidden = 2880, .layers = 24, .context = 131072,
      .heads = 64, .kv_heads = 8, .head = 64, .window = 128, .biases = 1, .expert_width = 2880,
      .experts = 32, .top_k = 4, .norm_eps = 1e-5f, .theta = 15e4f, .yarn = 32 },

    /* The same switches in a few megabytes, for tests; some rows are no whole blocks of 256. */
    { .name = "deepseek-tiny", .architecture = "deepseek2", .text = { "deepseek-v3", 2560, 0, 1 },
      .hidden = 256, .layers = 4, .dense_layers = 1, .context = 16384, .heads = 4, .q_lora = 64,
      .kv_lora = 64, .nope = 32, .rope = 16, .value = 32, .dense_width = 512, .expert_width = 96,
      .experts = 32, .top_k = 4, .groups = 4, .groups_kept = 2, .shared = 1, .sigmoid = 1,
      .normalise = 1, .scale = 2.5f, .norm_eps = 1e-6f, .theta = 1e4f, .yarn = 40,
      .multiplier = 0.1f },
    { .name = "olmoe-tiny", .architecture = "olmoe", .text = { "olmo", 2560, NONE, 2000 },
      .hidden = 256, .layers = 4, .context = 4096, .heads = 4, .kv_heads = 4, .head = 64,
      .qk_norm = 2, .dense_width = 96, .expert_width = 96, .experts = 32, .top_k = 4,
      .norm_eps = 1e-5f, .theta = 1e4f },
    { .name = "mixtral-tiny", .architecture = "llama", .text = { "llama-bpe", 2560, 1, 2 },
      .hidden = 256, .layers = 4, .context = 4096, .heads = 4, .kv_heads = 2, .head = 64,
      .dense_width = 96, .expert_width = 96, .experts = 8, .top_k = 2, .norm_eps = 1e-5f,
      .theta = 1e6f },
    { .name = "qwen3-tiny", .architecture = "qwen3moe", .text = { "qwen2", 2560, NONE, 2000 },
      .hidden = 256, .layers = 4, .context = 4096, .heads = 8, .kv_heads = 2, .head = 48,
      .qk_norm = 1, .dense_width = 192, .expert_width = 96, .experts = 32, .top_k = 4,
      .norm_eps = 1e-6f, .theta = 1e6f },
    { .name = "gpt-oss-tiny", .architecture = "gpt-oss", .text = { "gpt-4o", 2560, 2000, 2001 },
      .hidden = 256, .layers = 4, .context = 131072, .heads = 8, .kv_heads = 2, .head = 64,
      .window = 128, .biases = 1, .expert_width = 96, .experts = 32, .top_k = 4, .norm_eps = 1e-5f,
      .theta = 15e4f, .yarn = 32 },
};

#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

typedef struct {
    char name[64];
    moe_dtype_t dtype;
    unsigned n_dims;
    uint64_t shape[3], count;
    float mean, deviation;
} tensor_t;

typedef struct {
    const shape_t *shape;
    const moe_synth_options_t *options;
    uint32_t layers;
    moe_gguf_writer_t *writer;
    tensor_t *tensors;
    unsigned n_tensors;
    uint64_t bytes;
} synth_t;

typedef struct {
    const tensor_t *tensor;
    uint64_t seed, start;               /* position of the chunk */
    size_t count;
    float *values;
    unsigned char *data;
} fill_t;


/* splitmix64's output function */
static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}


/* Nearly normal, mean 0 and deviation 1: four uniform numbers. */
static float normal(uint64_t seed, uint64_t position)
{
    const uint64_t bits = mix(seed + position * 0x9e3779b97f4a7c15u);
    const uint32_t sum = (uint32_t) (bits & 0xffff) + (uint32_t) (bits >> 16 & 0xffff)
                         + (uint32_t) (bits >> 32 & 0xffff) + (uint32_t) (bits >> 48);

    return ((float) sum - 131070.0f) * (1.0f / 37837.2f);
}


static void fill_slices(void *context, size_t first, size_t last, unsigned thread)
{
    const fill_t *fill = context;

    for (size_t slice = first; slice < last; slice++) {
        const size_t begin = slice * SLICE;
        const size_t end = begin + SLICE < fill->count ? begin + SLICE : fill->count;

        for (size_t i = begin; i < end; i++) {
            fill->values[i] = fill->tensor->mean
                              + fill->tensor->deviation * normal(fill->seed, fill->start + i);
        }
        moe_narrow(fill->tensor->dtype, fill->values + begin, end - begin,
                   fill->data + moe_dtype_bytes(fill->tensor->dtype, begin));
    }
}


/* The type for rows of so many columns. */
static moe_dtype_t fitting(moe_dtype_t type, uint64_t columns)
{
    if (columns % moe_dtype_block(type) == 0) {
        return type;
    }
    type = type == MOE_Q4_K ? MOE_Q5_0 : MOE_Q8_0;
    return columns % moe_dtype_block(type) == 0 ? type : MOE_F16;
}


static void plan(synth_t *s, const char *name, moe_dtype_t dtype, unsigned n_dims,
                 const uint64_t *shape, float mean, float deviation)
{
    tensor_t *tensor = &s->tensors[s->n_tensors++];

    *tensor = (tensor_t) {
        .dtype = dtype, .n_dims = n_dims, .count = 1, .mean = mean, .deviation = deviation
    };
    snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    for (unsigned i = 0; i < n_dims; i++) {
        tensor->shape[i] = shape[i];
        tensor->count *= shape[i];
    }
    s->bytes += moe_dtype_bytes(dtype, tensor->count);
    moe_gguf_write_tensor(s->writer, tensor->name, dtype, n_dims, shape);
}


/* `count` matrices [rows, columns], one tensor of two or, for count > 0, three dimensions; products
 * have the deviation `gain`. */
static void plan_matrix(synth_t *s, const char *prefix, const char *name, uint64_t count,
                        uint64_t rows, uint64_t columns, float gain)
{
    const uint64_t shape[3] = { count, rows, columns };
    char full[64];

    snprintf(full, sizeof(full), "%s%s.weight", prefix, name);
    plan(s, full, fitting(s->options->type, columns), count > 0 ? 3 : 2, shape + (count == 0), 0,
         gain / sqrtf((float) columns));
}


/* `count` vectors, one tensor of one or, for count > 0, two dimensions. */
static void plan_vector(synth_t *s, const char *prefix, const char *name, uint64_t count,
                        uint64_t size, float mean, float deviation)
{
    const uint64_t shape[2] = { count, size };
    char full[64];

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    plan(s, full, MOE_F32, count > 0 ? 2 : 1, shape + (count == 0), mean, deviation);
}


static void plan_norm(synth_t *s, const char *prefix, const char *name, uint64_t size)
{
    char full[64];

    snprintf(full, sizeof(full), "%s.weight", name);
    plan_vector(s, prefix, full, 0, size, 1, 0.1f);
}


static void plan_bias(synth_t *s, const char *prefix, const char *name, uint64_t count,
                      uint64_t size)
{
    char full[64];

    snprintf(full, sizeof(full), "%s.bias", name);
    if (s->shape->biases) {
        plan_vector(s, prefix, full, count, size, 0, 0.1f);
    }
}


static void plan_mla(synth_t *s, const char *prefix, float residual)
{
    const shape_t *m = s->shape;
    const uint64_t queries = (uint64_t) m->heads * (m->nope + m->rope);

    if (m->q_lora > 0) {
        plan_matrix(s, prefix, "attn_q_a", 0, m->q_lora, m->hidden, 1);
        plan_norm(s, prefix, "attn_q_a_norm", m->q_lora);
        plan_matrix(s, prefix, "attn_q_b", 0, queries, m->q_lora, 1);
    } else {
        plan_matrix(s, prefix, "attn_q", 0, queries, m->hidden, 1);
    }
    plan_matrix(s, prefix, "attn_kv_a_mqa", 0, m->kv_lora + m->rope, m->hidden, 1);
    plan_norm(s, prefix, "attn_kv_a_norm", m->kv_lora);
    plan_matrix(s, prefix, "attn_k_b", m->heads, m->kv_lora, m->nope, 1);
    plan_matrix(s, prefix, "attn_v_b", m->heads, m->value, m->kv_lora, 1);
    plan_matrix(s, prefix, "attn_output", 0, m->hidden, (uint64_t) m->heads * m->value, residual);
}


static void plan_gqa(synth_t *s, const char *prefix, float residual)
{
    const shape_t *m = s->shape;
    const uint64_t queries = (uint64_t) m->heads * m->head, keys = (uint64_t) m->kv_heads * m->head;

    plan_matrix(s, prefix, "attn_q", 0, queries, m->hidden, 1);
    plan_matrix(s, prefix, "attn_k", 0, keys, m->hidden, 1);
    plan_matrix(s, prefix, "attn_v", 0, keys, m->hidden, 1);
    plan_matrix(s, prefix, "attn_output", 0, m->hidden, queries, residual);
    if (m->qk_norm > 0) {
        plan_norm(s, prefix, "attn_q_norm", m->qk_norm == 1 ? m->head : queries);
        plan_norm(s, prefix, "attn_k_norm", m->qk_norm == 1 ? m->head : keys);
    }
    plan_bias(s, prefix, "attn_q", 0, queries);
    plan_bias(s, prefix, "attn_k", 0, keys);
    plan_bias(s, prefix, "attn_v", 0, keys);
    plan_bias(s, prefix, "attn_output", 0, m->hidden);
    if (m->biases) {
        plan_vector(s, prefix, "attn_sinks.weight", 0, m->heads, 0, 1);
    }
}


static void plan_ffn(synth_t *s, const char *prefix, const char *ending, uint64_t count,
                     uint64_t width, float residual)
{
    static const char *const names[] = { "ffn_gate", "ffn_up", "ffn_down" };
    char name[32];

    for (int i = 0; i < 3; i++) {
        const int down = i == 2;

        snprintf(name, sizeof(name), "%s%s", names[i], ending);
        plan_matrix(s, prefix, name, count, down ? s->shape->hidden : width,
                    down ? width : s->shape->hidden, down ? residual : 1);
        plan_bias(s, prefix, name, count, down ? s->shape->hidden : width);
    }
}


static void plan_layer(synth_t *s, uint32_t layer)
{
    const shape_t *m = s->shape;
    const float residual = 1 / sqrtf(2 * (float) s->layers);
    char prefix[32];

    snprintf(prefix, sizeof(prefix), "blk.%u.", layer);
    plan_norm(s, prefix, "attn_norm", m->hidden);
    (m->head > 0 ? plan_gqa : plan_mla)(s, prefix, residual);
    plan_norm(s, prefix, m->biases ? "post_attention_norm" : "ffn_norm", m->hidden);
    if (layer < m->dense_layers) {
        plan_ffn(s, prefix, "", 0, m->dense_width, residual);
        return;
    }
    plan_vector(s, prefix, "ffn_gate_inp.weight", m->experts, m->hidden, 0,
                1 / sqrtf((float) m->hidden));
    plan_bias(s, prefix, "ffn_gate_inp", 0, m->experts);
    if (m->sigmoid) {
        plan_vector(s, prefix, "exp_probs_b.bias", 0, m->experts, 0, 0.01f);
    }
    plan_ffn(s, prefix, "_exps", m->experts, m->expert_width, residual);
    if (m->shared > 0) {
        plan_ffn(s, prefix, "_shexp", 0, (uint64_t) m->expert_width * m->shared, residual);
    }
}


/* "ARCHITECTURE.key" */
static const char *own(const synth_t *s, const char *key, char name[64])
{
    snprintf(name, 64, "%s.%s", s->shape->architecture, key);
    return name;
}


static void write_sizes(const synth_t *s)
{
    const shape_t *m = s->shape;
    const int gqa = m->head > 0;
    const struct {
        const char *key;
        uint32_t value;                 /* 0: left out */
    } keys[] = {
        { "block_count", s->layers }, { "context_length", m->context },
        { "embedding_length", m->hidden }, { "feed_forward_length", m->dense_width },
        { "vocab_size", m->text.vocabulary }, { "attention.head_count", m->heads },
        { "attention.head_count_kv", gqa ? m->kv_heads : 1 },
        { "attention.q_lora_rank", m->q_lora }, { "attention.kv_lora_rank", m->kv_lora },
        { "attention.key_length", gqa ? m->head : m->kv_lora + m->rope },
        { "attention.value_length", gqa ? m->head : m->kv_lora },
        { "attention.key_length_mla", gqa ? 0 : m->nope + m->rope },
        { "attention.value_length_mla", gqa ? 0 : m->value },
        { "attention.sliding_window", m->window },
        { "rope.dimension_count", gqa ? m->head : m->rope },
        { "rope.scaling.original_context_length", m->yarn > 0 ? 4096 : 0 },
        { "leading_dense_block_count", m->dense_layers }, { "expert_count", m->experts },
        { "expert_used_count", m->top_k }, { "expert_shared_count", m->shared },
        { "expert_feed_forward_length", m->expert_width != m->dense_width ? m->expert_width : 0 },
        { "expert_gating_func", gqa ? 0 : m->sigmoid ? 2 : 1 },
        { "expert_group_count", m->groups }, { "expert_group_used_count", m->groups_kept },
    };
    char name[64];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (keys[i].value > 0) {
            moe_gguf_write_uint(s->writer, own(s, keys[i].key, name), keys[i].value);
        }
    }
}


static int write_metadata(const synth_t *s, moe_error_t *error)
{
    const shape_t *m = s->shape;
    char name[64];

    moe_gguf_write_string(s->writer, "general.architecture", m->architecture);
    snprintf(name, sizeof(name), "%s, random weights", m->name);
    moe_gguf_write_string(s->writer, "general.name", name);
    write_sizes(s);
    moe_gguf_write_float(s->writer, own(s, "attention.layer_norm_rms_epsilon", name), m->norm_eps);
    moe_gguf_write_float(s->writer, own(s, "rope.freq_base", name), m->theta);
    if (m->yarn > 0) {
        moe_gguf_write_string(s->writer, own(s, "rope.scaling.type", name), "yarn");
        moe_gguf_write_float(s->writer, own(s, "rope.scaling.factor", name), m->yarn);
    }
    if (m->multiplier > 0) {
        moe_gguf_write_float(s->writer, own(s, "rope.scaling.yarn_log_multiplier", name),
                             m->multiplier);
    }
    if (m->scale > 0) {
        moe_gguf_write_float(s->writer, own(s, "expert_weights_scale", name), m->scale);
        moe_gguf_write_bool(s->writer, own(s, "expert_weights_norm", name), m->normalise);
    }
    return moe_synth_text_write(&m->text, s->writer, error);
}


static void write_data(synth_t *s, moe_pool_t *pool, float *values, unsigned char *data)
{
    uint64_t done = 0;

    for (unsigned t = 0; t < s->n_tensors; t++) {
        fill_t fill = {
            .tensor = &s->tensors[t], .seed = mix(s->options->seed + t + 1), .values = values,
            .data = data
        };

        for (; fill.start < fill.tensor->count; fill.start += fill.count) {
            const uint64_t left = fill.tensor->count - fill.start;
            size_t size;

            fill.count = left < CHUNK ? (size_t) left : CHUNK;
            moe_pool_run(pool, fill_slices, &fill, (fill.count + SLICE - 1) / SLICE, 1);
            size = moe_dtype_bytes(fill.tensor->dtype, fill.count);
            moe_gguf_write_data(s->writer, data, size);
            done += size;
            if (s->options->progress != NULL) {
                s->options->progress(s->options->progress_context, done, s->bytes);
            }
        }
        moe_gguf_write_pad(s->writer);
    }
}


static int write_file(synth_t *s, const char *path, moe_error_t *error)
{
    const shape_t *m = s->shape;
    const uint64_t embedding[2] = { m->text.vocabulary, m->hidden };
    moe_pool_t *pool = moe_pool_create(s->options->threads, error);
    float *values = malloc(CHUNK * sizeof(float));
    unsigned char *data = malloc(CHUNK * sizeof(float));
    int rc = -1;

    if (pool != NULL && (values == NULL || data == NULL)) {
        moe_fail(error, MOE_LIMIT, "out of memory");
    } else if (pool != NULL && write_metadata(s, error) == 0) {
        plan(s, "token_embd.weight", fitting(s->options->type, m->hidden), 2, embedding, 0, 1);
        plan_norm(s, "", "output_norm", m->hidden);
        plan_matrix(s, "", "output", 0, m->text.vocabulary, m->hidden, 1);
        for (uint32_t i = 0; i < s->layers; i++) {
            plan_layer(s, i);
        }
        moe_gguf_writer_begin(s->writer, path);
        write_data(s, pool, values, data);
        rc = 0;
    }
    free(values);
    free(data);
    if (pool != NULL) {
        moe_pool_free(pool);
    }
    return rc;
}


static int refuse_shape(const char *shape, moe_error_t *error)
{
    char names[256] = "";
    size_t size = 0;

    for (size_t i = 0; i < N_SHAPES && size < sizeof(names); i++) {
        size += (size_t) snprintf(names + size, sizeof(names) - size, "%s%s", i > 0 ? ", " : "",
                                  shapes[i].name);
    }
    return moe_fail(error, MOE_INVALID, "no shape \"%.64s\"; there are %s", shape, names);
}


int moe_synth(const moe_synth_options_t *options, const char *path, moe_error_t *error)
{
    synth_t s = { .options = options };
    int rc = -1, closed;

    for (size_t i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, options->shape) == 0) {
            s.shape = &shapes[i];
        }
    }
    if (s.shape == NULL) {
        return refuse_shape(options->shape, error);
    }
    s.layers = options->layers > 0 ? options->layers : s.shape->layers;
    if (s.layers > s.shape->layers) {
        return moe_fail(error, MOE_INVALID, "%s has %u layers, not %u", s.shape->name,
                        s.shape->layers, s.layers);
    }
    s.writer = moe_gguf_writer_create(error);
    if (s.writer == NULL) {
        return -1;
    }
    s.tensors = calloc(s.layers * TENSORS_PER_LAYER + 3, sizeof(*s.tensors));
    if (s.tensors == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
    } else {
        rc = write_file(&s, path, error);
    }
    closed = moe_gguf_writer_close(s.writer);
    free(s.tensors);
    return rc == 0 ? closed : -1;
}
