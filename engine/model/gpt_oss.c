#include "engine/model/gpt_oss.h"

#include <stdio.h>

#define NAME_SIZE 160
#define BLOCK 32u                       /* numbers that share a scale in MXFP4 */


void moe_gpt_oss_read(moe_swiglu_t *form, moe_config_t *config, uint32_t top_k,
                      const moe_rope_t *rope)
{
    form->limit = (float) moe_config_number_or(config, "swiglu_limit", 7, 1e-3, 1e6);
    form->alpha = (float) moe_config_number_or(config, "swiglu_alpha", 1.702, 1e-3, 1e3);
    form->offset = 1;
    moe_config_uint_or(config, "experts_per_token", top_k, top_k, top_k);
    if (moe_config_get(config, "rope_parameters") == NULL
        && moe_config_get(config, "rope_scaling") == NULL)
    {
        moe_config_fail(config, "rope_scaling", "missing");
    }
    if (rope->type == MOE_ROPE_YARN) {
        moe_config_number_or(config, "initial_context_length", rope->original_context,
                             rope->original_context, rope->original_context);
    }
}


/* A tensor [experts, rows, columns] whose numbers are MXFP4: NAME_blocks and NAME_scales. */
static int take_mxfp4(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                      uint32_t experts, uint32_t rows, uint32_t columns, const char *name)
{
    const uint64_t shape[4] = { experts, rows, columns / BLOCK, BLOCK / 2 };
    const moe_tensor_t *blocks, *scales;
    char full[NAME_SIZE];
    moe_tensor_t *tensor;

    if (columns % BLOCK != 0) {
        return moe_fail(error, MOE_BAD_MODEL, "%s_blocks: rows of %u numbers are not in blocks of "
                        "%u", name, columns, BLOCK);
    }
    snprintf(full, sizeof(full), "%s_blocks", name);
    if ((blocks = moe_tensors_take_bytes(model->tensors, error, 4, shape, full)) == NULL) {
        return -1;
    }
    snprintf(full, sizeof(full), "%s_scales", name);
    if ((scales = moe_tensors_take_bytes(model->tensors, error, 3, shape, full)) == NULL
        || (tensor = moe_model_allocate(model, 1, sizeof(*tensor), error)) == NULL)
    {
        return -1;
    }
    *tensor = (moe_tensor_t) {
        .name = blocks->name, .type = "MXFP4", .dtype = MOE_MXFP4_APART, .n_dims = 3,
        .shape = { experts, rows, columns }, .data = blocks->data, .size = blocks->size,
        .scales = scales->data
    };
    *weight = (moe_weight_t) { .tensor = tensor };
    model->parameters += (uint64_t) experts * rows * columns;
    return 0;
}


/* One of the two is enough to tell, the other is asked for. */
static int is_packed(const moe_model_t *model, const char *name)
{
    char blocks[NAME_SIZE], scales[NAME_SIZE];

    snprintf(blocks, sizeof(blocks), "%s_blocks", name);
    snprintf(scales, sizeof(scales), "%s_scales", name);
    return moe_tensors_find(model->tensors, blocks) != NULL
           || moe_tensors_find(model->tensors, scales) != NULL;
}


/* Rows of gate and up in turn; out: whether a row's numbers lie side by side. */
static void share_out(moe_block_t *block, uint32_t hidden, const moe_tensor_t *gate_up,
                      const moe_tensor_t *down, int out)
{
    const uint32_t width = block->width;
    const uint64_t size = (uint64_t) width * hidden;

    for (uint32_t e = 0; e < block->router.experts; e++) {
        moe_ffn_t *expert = &block->experts[e];

        expert->gate = (moe_weight_t) {
            .tensor = gate_up, .rows = width, .columns = hidden, .offset = 2 * size * e,
            .row_stride = out ? 2 * hidden : 2, .column_stride = out ? 1 : 2 * width
        };
        expert->up = expert->gate;
        expert->up.offset += out ? hidden : 1;
        expert->down = (moe_weight_t) {
            .tensor = down, .rows = hidden, .columns = width, .offset = size * e,
            .row_stride = out ? width : 1, .column_stride = out ? 1 : hidden
        };
    }
}


static int take_weights(moe_model_t *model, moe_block_t *block, const char *prefix,
                        moe_error_t *error)
{
    const uint32_t hidden = model->hidden, width = block->width, experts = block->router.experts;
    char gate_up[NAME_SIZE], down[NAME_SIZE];
    moe_weight_t up, back;
    int packed;

    snprintf(gate_up, sizeof(gate_up), "%sgate_up_proj", prefix);
    snprintf(down, sizeof(down), "%sdown_proj", prefix);
    packed = is_packed(model, gate_up);
    if (packed) {
        if (take_mxfp4(model, error, &up, experts, 2 * width, hidden, gate_up) != 0
            || take_mxfp4(model, error, &back, experts, hidden, width, down) != 0)
        {
            return -1;
        }
    } else if (moe_model_take_parts(model, error, &up, experts, hidden, 2 * width, "%s",
                                    gate_up) != 0
               || moe_model_take_parts(model, error, &back, experts, width, hidden, "%s", down)
                  != 0)
    {
        return -1;
    }
    if (moe_model_make_experts(model, block, error) != 0) {
        return -1;
    }
    share_out(block, hidden, up.tensor, back.tensor, packed);
    return 0;
}


/* Biases of gate and up in turn, [experts, 2 width]; each one's own rows then lie together. */
static int take_biases(moe_model_t *model, moe_block_t *block, const char *prefix,
                       moe_error_t *error)
{
    const uint32_t hidden = model->hidden, width = block->width, experts = block->router.experts;
    moe_vector_t gate_up, down;
    char name[NAME_SIZE];
    float *halves;

    snprintf(name, sizeof(name), "%sgate_up_proj_bias", prefix);
    if (moe_model_take_table(model, error, &gate_up, experts, 2 * width, name) != 0) {
        return -1;
    }
    snprintf(name, sizeof(name), "%sdown_proj_bias", prefix);
    if (moe_model_take_table(model, error, &down, experts, hidden, name) != 0
        || (halves = moe_model_allocate(model, gate_up.size, sizeof(*halves), error)) == NULL)
    {
        return -1;
    }
    for (size_t e = 0; e < experts; e++) {
        float *gate = halves + 2 * e * width, *up = gate + width;

        for (size_t i = 0; i < width; i++) {
            gate[i] = gate_up.values[2 * (e * width + i)];
            up[i] = gate_up.values[2 * (e * width + i) + 1];
        }
        block->experts[e].gate.bias = gate;
        block->experts[e].up.bias = up;
        block->experts[e].down.bias = down.values + e * hidden;
    }
    return 0;
}


/* Gate and up apart, as other formats have them. */
static int take_apart(moe_model_t *model, moe_block_t *block, const char *prefix,
                      moe_error_t *error)
{
    const uint32_t hidden = model->hidden, width = block->width, experts = block->router.experts;
    static const char *const names[] = { "gate_proj.bias", "up_proj.bias", "down_proj.bias" };
    const uint32_t sizes[] = { width, width, hidden };
    moe_vector_t biases[3];
    char name[NAME_SIZE];

    if (moe_model_take_block(model, error, block, prefix, &moe_usual_names) != 0) {
        return -1;
    }
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "%s%s", prefix, names[i]);
        if (moe_model_take_table(model, error, &biases[i], experts, sizes[i], name) != 0) {
            return -1;
        }
    }
    for (size_t e = 0; e < experts; e++) {
        block->experts[e].gate.bias = biases[0].values + e * width;
        block->experts[e].up.bias = biases[1].values + e * width;
        block->experts[e].down.bias = biases[2].values + e * hidden;
    }
    return 0;
}


int moe_gpt_oss_take(moe_model_t *model, moe_block_t *block, const char *prefix,
                     moe_error_t *error)
{
    moe_router_t *router = &block->router;
    char experts[NAME_SIZE], single[NAME_SIZE + 32];

    if (moe_model_take_weight(model, error, &router->gate, router->experts, model->hidden,
                              "%srouter.weight", prefix) != 0
        || moe_model_take_bias(model, error, &router->gate, "%srouter.bias", prefix) != 0)
    {
        return -1;
    }
    snprintf(experts, sizeof(experts), "%sexperts.", prefix);
    snprintf(single, sizeof(single), "%s0.gate_proj.weight", experts);
    if (moe_tensors_merges_experts(model->tensors, single)) {
        return take_apart(model, block, experts, error);
    }
    return take_weights(model, block, experts, error) != 0
           || take_biases(model, block, experts, error) != 0 ? -1 : 0;
}
