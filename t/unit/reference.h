/*
 * DeepSeek-V2/V3 in double precision, written from the published formulas: expanded attention, one
 * token at a time, tensors looked up by name.  It shares nothing with the engine but the reader of
 * safetensors.
 */

#ifndef REFERENCE_H
#define REFERENCE_H

#include "engine/model/model.h"
#include "t/unit/tiny_model.h"

#define REFERENCE_EXPERTS 64

typedef struct {
    const tiny_model_t *o;
    const moe_tensors_t *tensors;
    double scale, *frequencies;         /* [rope / 2] */
    double **keys, **values;            /* of each layer: [context, heads, ...] */
} reference_t;


static inline double *reference_zeros(size_t n)
{
    double *values = calloc(n + 1, sizeof(double));

    tiny_check(values != NULL, "calloc");
    return values;
}


static inline double reference_element(const moe_tensor_t *tensor, size_t i)
{
    uint16_t half;
    uint32_t bits;
    float value;

    if (tensor->dtype == MOE_F32) {
        return ((const float *) tensor->data)[i];
    }
    half = ((const uint16_t *) tensor->data)[i];
    if (tensor->dtype == MOE_BF16) {
        bits = (uint32_t) half << 16;
        memcpy(&value, &bits, sizeof(value));
        return value;
    }
    return ldexp(half & 0x7c00 ? 1024 + (half & 1023) : half & 1023,
                 (half & 0x7c00 ? half >> 10 & 31 : 1) - 25) * (half & 0x8000 ? -1 : 1);
}


static inline const moe_tensor_t *reference_tensor(const reference_t *r, const char *prefix,
                                                   const char *name)
{
    char full[160];

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    for (size_t i = 0; i < moe_tensors_count(r->tensors); i++) {
        if (strcmp(moe_tensors_at(r->tensors, i)->name, full) == 0) {
            return moe_tensors_at(r->tensors, i);
        }
    }
    tiny_check(0, full);
    return NULL;
}


/* y = W x; the caller frees y */
static inline double *reference_linear(const reference_t *r, const char *prefix, const char *name,
                                       const double *x)
{
    const moe_tensor_t *w = reference_tensor(r, prefix, name);
    double *y = reference_zeros(w->shape[0]);

    for (size_t o = 0; o < w->shape[0]; o++) {
        for (size_t i = 0; i < w->shape[1]; i++) {
            y[o] += reference_element(w, o * w->shape[1] + i) * x[i];
        }
    }
    return y;
}


static inline void reference_norm(const reference_t *r, const char *prefix, const char *name,
                                  double *x)
{
    const moe_tensor_t *w = reference_tensor(r, prefix, name);
    double squares = 0;

    for (size_t i = 0; i < w->shape[0]; i++) {
        squares += x[i] * x[i];
    }
    for (size_t i = 0; i < w->shape[0]; i++) {
        x[i] *= reference_element(w, i) / sqrt(squares / (double) w->shape[0] + 1e-6);
    }
}


static inline void reference_rotate(const reference_t *r, size_t position, double *x)
{
    const size_t half = r->o->rope / 2;

    for (size_t j = 0; j < half; j++) {
        const size_t a = r->o->interleaved ? 2 * j : j, b = r->o->interleaved ? a + 1 : j + half;
        const double angle = (double) position * r->frequencies[j], first = x[a];

        x[a] = first * cos(angle) - x[b] * sin(angle);
        x[b] = x[b] * cos(angle) + first * sin(angle);
    }
}


/* Keys and values of one token, for all heads. */
static inline void reference_remember(const reference_t *r, uint32_t layer, size_t position,
                                      const char *prefix, const double *x)
{
    const tiny_model_t *o = r->o;
    double *latent = reference_linear(r, prefix, "kv_a_proj_with_mqa.weight", x), *expanded;
    double *key = r->keys[layer] + position * o->heads * (o->nope + o->rope);
    double *value = r->values[layer] + position * o->heads * o->value;

    reference_norm(r, prefix, "kv_a_layernorm.weight", latent);
    reference_rotate(r, position, latent + o->kv_lora);
    expanded = reference_linear(r, prefix, "kv_b_proj.weight", latent);
    for (uint32_t h = 0; h < o->heads; h++) {
        const double *head = expanded + h * (o->nope + o->value);

        memcpy(key, head, o->nope * sizeof(double));
        memcpy(key + o->nope, latent + o->kv_lora, o->rope * sizeof(double));
        memcpy(value, head + o->nope, o->value * sizeof(double));
        key += o->nope + o->rope;
        value += o->value;
    }
    free(expanded);
    free(latent);
}


static inline double *reference_query(const reference_t *r, const char *prefix, const double *x)
{
    double *latent, *query;

    if (r->o->q_lora == 0) {
        return reference_linear(r, prefix, "q_proj.weight", x);
    }
    latent = reference_linear(r, prefix, "q_a_proj.weight", x);
    reference_norm(r, prefix, "q_a_layernorm.weight", latent);
    query = reference_linear(r, prefix, "q_b_proj.weight", latent);
    free(latent);
    return query;
}


static inline double *reference_attention(const reference_t *r, uint32_t layer, size_t position,
                                          const double *x)
{
    const tiny_model_t *o = r->o;
    const size_t width = o->nope + o->rope;
    double *query, *y, *weights = reference_zeros(position + 1);
    double *out = reference_zeros((size_t) o->heads * o->value);
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.self_attn.", layer);
    reference_remember(r, layer, position, prefix, x);
    query = reference_query(r, prefix, x);
    for (uint32_t h = 0; h < o->heads; h++) {
        double *q = query + h * width, maximum = -INFINITY, sum = 0;

        reference_rotate(r, position, q + o->nope);
        for (size_t p = 0; p <= position; p++) {
            const double *key = r->keys[layer] + (p * o->heads + h) * width;

            weights[p] = 0;
            for (size_t i = 0; i < width; i++) {
                weights[p] += q[i] * key[i] * r->scale;
            }
            maximum = fmax(maximum, weights[p]);
        }
        for (size_t p = 0; p <= position; p++) {
            weights[p] = exp(weights[p] - maximum);
            sum += weights[p];
        }
        for (size_t p = 0; p <= position; p++) {
            const double *value = r->values[layer] + (p * o->heads + h) * o->value;

            for (size_t i = 0; i < o->value; i++) {
                out[h * o->value + i] += weights[p] / sum * value[i];
            }
        }
    }
    y = reference_linear(r, prefix, "o_proj.weight", out);
    free(out);
    free(weights);
    free(query);
    return y;
}


/* y += weight * down(silu(gate x) * up x) */
static inline void reference_ffn(const reference_t *r, const char *prefix, const double *x,
                                 double weight, double *y)
{
    const size_t width = reference_tensor(r, prefix, "gate_proj.weight")->shape[0];
    double *gate = reference_linear(r, prefix, "gate_proj.weight", x), *down;
    double *up = reference_linear(r, prefix, "up_proj.weight", x);

    for (size_t i = 0; i < width; i++) {
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    }
    down = reference_linear(r, prefix, "down_proj.weight", gate);
    for (size_t i = 0; i < r->o->hidden; i++) {
        y[i] += weight * down[i];
    }
    free(down);
    free(up);
    free(gate);
}


/* Sets keys of all groups but the best ones to -inf. */
static inline void reference_groups(const tiny_model_t *o, double *keys)
{
    const uint32_t size = o->experts / o->groups;
    double score[REFERENCE_EXPERTS];

    for (uint32_t g = 0; g < o->groups; g++) {
        double best = -INFINITY, second = -INFINITY;

        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            second = fmax(second, fmin(best, keys[i]));
            best = fmax(best, keys[i]);
        }
        score[g] = strcmp(o->topk_method, "noaux_tc") == 0 ? best + second : best;
    }
    for (uint32_t g = 0; g < o->groups; g++) {
        uint32_t better = 0;

        for (uint32_t i = 0; i < o->groups; i++) {
            better += score[i] > score[g];
        }
        for (uint32_t i = g * size; better >= o->groups_kept && i < (g + 1) * size; i++) {
            keys[i] = -INFINITY;
        }
    }
}


static inline void reference_moe(const reference_t *r, const char *prefix, const double *x,
                                 double *y)
{
    const tiny_model_t *o = r->o;
    double *scores = reference_linear(r, prefix, "gate.weight", x), total = 0, sum = 0;
    double keys[REFERENCE_EXPERTS];
    int chosen[REFERENCE_EXPERTS];
    char name[96];

    for (uint32_t i = 0; i < o->experts; i++) {
        scores[i] = strcmp(o->scoring, "sigmoid") == 0 ? 1 / (1 + exp(-scores[i]))
                                                       : exp(scores[i]);
        total += scores[i];
    }
    for (uint32_t i = 0; i < o->experts; i++) {
        scores[i] /= strcmp(o->scoring, "sigmoid") == 0 ? 1 : total;
        keys[i] = scores[i];
        if (strcmp(o->topk_method, "noaux_tc") == 0) {
            keys[i] += reference_element(
                reference_tensor(r, prefix, "gate.e_score_correction_bias"), i);
        }
    }
    if (o->groups > 1 && strcmp(o->topk_method, "greedy") != 0) {
        reference_groups(o, keys);
    }
    for (uint32_t i = 0; i < o->experts; i++) {
        uint32_t better = 0;

        for (uint32_t k = 0; k < o->experts; k++) {
            better += keys[k] > keys[i];
        }
        chosen[i] = better < o->top_k;
        sum += chosen[i] ? scores[i] : 0;
    }
    for (uint32_t i = 0; i < o->experts; i++) {
        snprintf(name, sizeof(name), "%sexperts.%u.", prefix, i);
        if (chosen[i]) {
            reference_ffn(r, name, x, scores[i] / (o->normalise ? sum : 1) * o->scale, y);
        }
    }
    snprintf(name, sizeof(name), "%sshared_experts.", prefix);
    if (o->shared > 0) {
        reference_ffn(r, name, x, 1, y);
    }
    free(scores);
}


static inline void reference_layer(const reference_t *r, uint32_t layer, size_t position, double *x)
{
    const size_t hidden = r->o->hidden;
    double *normed = reference_zeros(hidden), *attended;
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "model.layers.%u.", layer);
    memcpy(normed, x, hidden * sizeof(double));
    reference_norm(r, prefix, "input_layernorm.weight", normed);
    attended = reference_attention(r, layer, position, normed);
    for (size_t i = 0; i < hidden; i++) {
        x[i] += attended[i];
    }
    memcpy(normed, x, hidden * sizeof(double));
    reference_norm(r, prefix, "post_attention_layernorm.weight", normed);
    snprintf(prefix, sizeof(prefix), "model.layers.%u.mlp.", layer);
    if (layer < r->o->dense_layers) {
        reference_ffn(r, prefix, normed, 1, x);
    } else {
        reference_moe(r, prefix, normed, x);
    }
    free(attended);
    free(normed);
}


/* YaRN as tiny_config writes it: factor 40 over 64 positions, beta 32 and 1, mscale 0.707 twice,
 * which leaves cos and sin alone and goes into the softmax scale squared. */
static inline void reference_rope(reference_t *r)
{
    const double width = r->o->rope, pi = 3.14159265358979323846, base = log(10000);
    double low = floor(width * log(64 / (2 * pi * 32)) / (2 * base));
    double high = ceil(width * log(64 / (2 * pi * 1)) / (2 * base));
    const double g = 0.1 * 0.707 * log(40) + 1;

    low = fmax(low, 0);
    high = fmin(high, width - 1);
    high += low == high ? 0.001 : 0;
    r->frequencies = reference_zeros(r->o->rope / 2);
    for (uint32_t j = 0; j < r->o->rope / 2; j++) {
        const double f = exp(-2.0 * j / width * base);
        const double ramp = fmin(fmax((j - low) / (high - low), 0), 1);

        r->frequencies[j] = r->o->yarn ? f / 40 * ramp + f * (1 - ramp) : f;
    }
    r->scale = 1 / sqrt(r->o->nope + r->o->rope) * (r->o->yarn ? g * g : 1);
}


/* Logits [n, vocabulary] after each token; the caller frees them. */
static inline double *reference_logits(const tiny_model_t *o, const moe_tensors_t *tensors,
                                       const uint32_t *tokens, size_t n)
{
    reference_t r = {.o = o, .tensors = tensors};
    double *logits = reference_zeros(n * o->vocabulary), *x = reference_zeros(o->hidden);
    const moe_tensor_t *embedding;

    embedding = reference_tensor(&r, "", "model.embed_tokens.weight");
    reference_rope(&r);
    r.keys = calloc(o->layers, sizeof(*r.keys));
    r.values = calloc(o->layers, sizeof(*r.values));
    for (uint32_t i = 0; i < o->layers; i++) {
        r.keys[i] = reference_zeros(n * o->heads * (o->nope + o->rope));
        r.values[i] = reference_zeros(n * o->heads * o->value);
    }
    for (size_t p = 0; p < n; p++) {
        double *out;

        for (size_t i = 0; i < o->hidden; i++) {
            x[i] = reference_element(embedding, tokens[p] * o->hidden + i);
        }
        for (uint32_t i = 0; i < o->layers; i++) {
            reference_layer(&r, i, p, x);
        }
        reference_norm(&r, "", "model.norm.weight", x);
        out = reference_linear(&r, "", o->tied ? "model.embed_tokens.weight" : "lm_head.weight", x);
        memcpy(logits + p * o->vocabulary, out, o->vocabulary * sizeof(double));
        free(out);
    }
    for (uint32_t i = 0; i < o->layers; i++) {
        free(r.keys[i]);
        free(r.values[i]);
    }
    free(r.keys);
    free(r.values);
    free(r.frequencies);
    free(x);
    return logits;
}

#endif
