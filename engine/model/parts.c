/* Parts of a model that most families have in common. */

#include <stdio.h>
#include <string.h>

#include "engine/model/build.h"

const moe_ffn_names_t moe_usual_names = {
    "gate_proj.weight", "up_proj.weight", "down_proj.weight"
};


void moe_outline_read(moe_outline_t *outline, moe_config_t *config, double norm_eps)
{
    outline->hidden = moe_config_uint(config, "hidden_size", 1, MOE_WIDTH_LIMIT);
    outline->vocabulary = moe_config_uint(config, "vocab_size", 1, 1u << 24);
    outline->layers = moe_config_uint(config, "num_hidden_layers", 1, MOE_LAYERS_LIMIT);
    outline->context = moe_config_uint(config, "max_position_embeddings", 1, 1u << 30);
    outline->norm_eps = (float) moe_config_number_or(config, "rms_norm_eps", norm_eps, 1e-12, 1);
    outline->tied = moe_config_bool_or(config, "tie_word_embeddings", 0);
}


void moe_activation_read(moe_config_t *config)
{
    moe_config_expect(config, "hidden_act", "silu");
}


int moe_model_take_outline(moe_model_t *model, const moe_outline_t *outline, moe_error_t *error)
{
    model->hidden = outline->hidden;
    model->vocabulary = outline->vocabulary;
    model->n_layers = outline->layers;
    model->context = outline->context;
    model->norm_eps = outline->norm_eps;
    model->tied = outline->tied;
    model->embedding_scale = 1;
    model->residual_scale = 1;
    model->logits_scale = 1;
    model->layers = moe_model_allocate(model, outline->layers, sizeof(*model->layers), error);
    return model->layers ? 0 : -1;
}


int moe_model_make_rotary(moe_model_t *model, const moe_rope_t *rope, int interleaved,
                          moe_rotary_t *rotary, moe_error_t *error)
{
    float *frequencies = moe_model_allocate(model, rope->width, sizeof(*frequencies), error);

    if (frequencies == NULL) {
        return -1;
    }
    *rotary = (moe_rotary_t) {
        .size = rope->width, .interleaved = interleaved, .frequencies = frequencies,
        .magnitude = (float) moe_rope_magnitude(rope, 0), .type = rope->name,
        .theta = rope->theta, .factor = rope->factor
    };
    moe_rope_frequencies(rope, 0, frequencies);
    if (rope->type == MOE_ROPE_LONGROPE) {
        rotary->long_frequencies = frequencies + rope->width / 2;
        rotary->long_magnitude = (float) moe_rope_magnitude(rope, 1);
        rotary->short_context = (uint32_t) rope->original_context;
        moe_rope_frequencies(rope, 1, frequencies + rope->width / 2);
    }
    return 0;
}


int moe_model_take_norms(moe_model_t *model, moe_layer_t *layer, const char *prefix,
                         moe_error_t *error)
{
    return moe_model_take_vector(model, error, &layer->input_norm, model->hidden,
                                 "%sinput_layernorm.weight", prefix)
           || moe_model_take_vector(model, error, &layer->post_norm, model->hidden,
                                    "%spost_attention_layernorm.weight", prefix) ? -1 : 0;
}


int moe_model_take_ffn(moe_model_t *model, moe_error_t *error, moe_ffn_t *ffn, const char *prefix,
                       const moe_ffn_names_t *names)
{
    const uint32_t hidden = model->hidden, width = ffn->width;

    return moe_model_take_weight(model, error, &ffn->gate, width, hidden, "%s%s", prefix,
                                 names->gate)
           || moe_model_take_weight(model, error, &ffn->up, width, hidden, "%s%s", prefix,
                                    names->up)
           || moe_model_take_weight(model, error, &ffn->down, hidden, width, "%s%s", prefix,
                                    names->down) ? -1 : 0;
}


static int has_shape(const moe_model_t *model, const char *prefix, const char *name, uint32_t first,
                     uint32_t second, uint32_t third)
{
    const moe_tensor_t *tensor;
    char full[160];

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    tensor = moe_tensors_find(model->tensors, full);
    return tensor != NULL && tensor->n_dims == 3 && tensor->shape[0] == first
           && tensor->shape[1] == second && tensor->shape[2] == third;
}


/* All experts in two tensors, each one's gate before its up: [experts, 2 width, H] and
 * [experts, H, width], or each expert transposed.  One of the two always tells. */
static int take_fused(moe_model_t *model, moe_error_t *error, moe_block_t *block,
                      const char *prefix, const moe_fused_names_t *names)
{
    const uint32_t hidden = model->hidden, width = block->width, experts = block->router.experts;
    const int turned = has_shape(model, prefix, names->both, experts, hidden, 2 * width)
                       && has_shape(model, prefix, names->down, experts, width, hidden);
    const uint64_t size = (uint64_t) width * hidden;
    moe_weight_t up, down;

    if (moe_model_take_parts(model, error, &up, experts, turned ? hidden : 2 * width,
                             turned ? 2 * width : hidden, "%s%s", prefix, names->both) != 0
        || moe_model_take_parts(model, error, &down, experts, turned ? width : hidden,
                                turned ? hidden : width, "%s%s", prefix, names->down) != 0)
    {
        return -1;
    }
    for (uint32_t e = 0; e < experts; e++) {
        moe_ffn_t *expert = &block->experts[e];

        expert->gate = (moe_weight_t) {
            .tensor = up.tensor, .rows = width, .columns = hidden, .offset = 2 * size * e,
            .row_stride = turned ? 1 : hidden, .column_stride = turned ? 2 * width : 1
        };
        expert->up = expert->gate;
        expert->up.offset += turned ? width : size;
        expert->down = (moe_weight_t) {
            .tensor = down.tensor, .rows = hidden, .columns = width, .offset = size * e,
            .row_stride = turned ? 1 : width, .column_stride = turned ? hidden : 1
        };
    }
    return 0;
}


int moe_model_make_experts(moe_model_t *model, moe_block_t *block, moe_error_t *error)
{
    const uint32_t experts = block->router.experts;

    block->experts = moe_model_allocate(model, experts, sizeof(*block->experts), error);
    if (block->experts == NULL) {
        return -1;
    }
    for (uint32_t e = 0; e < experts; e++) {
        block->experts[e].width = block->width;
        block->experts[e].form = block->form;
    }
    return 0;
}


int moe_model_take_block(moe_model_t *model, moe_error_t *error, moe_block_t *block,
                         const char *prefix, const moe_ffn_names_t *names)
{
    static const moe_fused_names_t fused = { "gate_up_proj", "down_proj" };
    const uint32_t hidden = model->hidden, width = block->width, experts = block->router.experts;
    const size_t step = sizeof(moe_ffn_t);
    char name[160];

    if (moe_model_make_experts(model, block, error) != 0) {
        return -1;
    }
    snprintf(name, sizeof(name), "%s%s", prefix, fused.both);
    if (moe_tensors_find(model->tensors, name) != NULL) {
        return take_fused(model, error, block, prefix, &fused);
    }
    return moe_model_take_experts(model, error, &block->experts->gate, step, experts, width,
                                  hidden, prefix, names->gate)
           || moe_model_take_experts(model, error, &block->experts->up, step, experts, width,
                                     hidden, prefix, names->up)
           || moe_model_take_experts(model, error, &block->experts->down, step, experts, hidden,
                                     width, prefix, names->down) ? -1 : 0;
}


int moe_model_take_fused_block(moe_model_t *model, moe_error_t *error, moe_block_t *block,
                               const char *prefix, const moe_fused_names_t *names)
{
    return moe_model_make_experts(model, block, error) != 0
           || take_fused(model, error, block, prefix, names) != 0 ? -1 : 0;
}


int moe_model_take_fused_ffn(moe_model_t *model, moe_error_t *error, moe_ffn_t *ffn,
                             const char *prefix, const moe_fused_names_t *names)
{
    if (moe_model_take_weight(model, error, &ffn->gate, 2 * ffn->width, model->hidden, "%s%s",
                              prefix, names->both) != 0)
    {
        return -1;
    }
    ffn->gate.rows = ffn->width;
    ffn->up = ffn->gate;
    ffn->up.offset += (uint64_t) ffn->width * model->hidden;
    return moe_model_take_weight(model, error, &ffn->down, model->hidden, ffn->width, "%s%s",
                                 prefix, names->down);
}


static int take_ends(moe_model_t *model, moe_error_t *error)
{
    if (moe_model_take_weight(model, error, &model->embedding, model->vocabulary, model->hidden,
                              "model.embed_tokens.weight") != 0
        || moe_model_take_vector(model, error, &model->final_norm, model->hidden,
                                 "model.norm.weight") != 0)
    {
        return -1;
    }
    for (uint32_t i = 0; i < model->hidden; i++) {
        model->final_norm.values[i] *= model->logits_scale;
    }
    if (!model->tied) {
        return moe_model_take_weight(model, error, &model->head, model->vocabulary, model->hidden,
                                     "lm_head.weight");
    }
    model->head = model->embedding;
    moe_tensors_ignore(model->tensors, "lm_head.weight");
    return 0;
}


static uint64_t count_weight(const moe_weight_t *weight)
{
    return (uint64_t) weight->rows * (weight->columns + (weight->bias != NULL));
}


/* Parameters behind one token: experts that it does not go to are left out. */
static void count_active(moe_model_t *model)
{
    model->active_parameters = model->parameters;
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_block_t *block = &model->layers[i].moe;

        if (model->layers[i].is_moe) {
            const moe_ffn_t *expert = &block->experts[0];

            model->active_parameters -= (block->router.experts - block->router.top_k)
                                        * (count_weight(&expert->gate) + count_weight(&expert->up)
                                           + count_weight(&expert->down));
        }
    }
}


/* Layers for multi-token prediction lie behind the last one and are told by their eh_proj: an
 * ordinary layer there means that num_hidden_layers is wrong, and stays left over. */
static void ignore_mtp_layers(moe_model_t *model)
{
    char name[64];

    for (uint32_t i = model->n_layers; i < 2 * MOE_LAYERS_LIMIT; i++) {
        snprintf(name, sizeof(name), "model.layers.%u.eh_proj.weight", i);
        if (moe_tensors_find(model->tensors, name) == NULL) {
            return;
        }
        snprintf(name, sizeof(name), "model.layers.%u.", i);
        moe_tensors_ignore(model->tensors, name);
    }
}


int moe_model_take_all(moe_model_t *model, const moe_family_t *family, moe_error_t *error)
{
    char name[64];

    if (take_ends(model, error) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < model->n_layers; i++) {
        if (family->take_layer(family, model, i, error) != 0) {
            return -1;
        }
        /* Old writers saved the table of rotary frequencies; it is computed here. */
        snprintf(name, sizeof(name), "model.layers.%u.self_attn.rotary_emb.inv_freq", i);
        moe_tensors_ignore(model->tensors, name);
    }
    moe_tensors_ignore(model->tensors, "model.rotary_emb.inv_freq");
    ignore_mtp_layers(model);
    moe_tensors_ignore(model->tensors, "model.mtp_");
    moe_tensors_ignore(model->tensors, "mtp.");
    count_active(model);
    return 0;
}
