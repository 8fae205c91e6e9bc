/* Parts of a model that most families have in common. */

#include "engine/model/build.h"

const moe_ffn_names_t moe_usual_names = {
    "gate_proj.weight", "up_proj.weight", "down_proj.weight"
};


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


int moe_model_take_block(moe_model_t *model, moe_error_t *error, moe_block_t *block,
                         const char *prefix, const moe_ffn_names_t *names)
{
    const uint32_t hidden = model->hidden, width = block->width, experts = block->router.experts;
    const size_t step = sizeof(moe_ffn_t);
    moe_ffn_t *first;

    first = moe_model_allocate(model, experts, sizeof(moe_ffn_t), error);
    if (first == NULL) {
        return -1;
    }
    block->experts = first;
    for (uint32_t e = 0; e < experts; e++) {
        first[e].width = width;
    }
    return moe_model_take_experts(model, error, &first->gate, step, experts, width, hidden, prefix,
                                  names->gate)
           || moe_model_take_experts(model, error, &first->up, step, experts, width, hidden, prefix,
                                     names->up)
           || moe_model_take_experts(model, error, &first->down, step, experts, hidden, width,
                                     prefix, names->down) ? -1 : 0;
}


int moe_model_take_ends(moe_model_t *model, moe_error_t *error)
{
    if (moe_model_take_weight(model, error, &model->embedding, model->vocabulary, model->hidden,
                              "model.embed_tokens.weight") != 0
        || moe_model_take_vector(model, error, &model->final_norm, model->hidden,
                                 "model.norm.weight") != 0)
    {
        return -1;
    }
    if (!model->tied) {
        return moe_model_take_weight(model, error, &model->head, model->vocabulary, model->hidden,
                                     "lm_head.weight");
    }
    model->head = model->embedding;
    moe_tensors_ignore(model->tensors, "lm_head.weight");
    return 0;
}
