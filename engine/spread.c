#include "engine/spread.h"


static int is_alike(const moe_weight_t *a, const moe_weight_t *b)
{
    return a->tensor->dtype == b->tensor->dtype && a->rows == b->rows && a->columns == b->columns
           && (a->bias == NULL) == (b->bias == NULL);
}


/* Whether any slot of a layer can hold any of its experts. */
static int check_layer(const moe_model_t *model, uint32_t index, moe_error_t *error)
{
    const moe_block_t *block = &model->layers[index].moe;
    const moe_ffn_t *first = &block->experts[0];

    for (uint32_t e = 1; e < block->router.experts; e++) {
        const moe_ffn_t *expert = &block->experts[e];

        if (!is_alike(&expert->gate, &first->gate) || !is_alike(&expert->up, &first->up)
            || !is_alike(&expert->down, &first->down))
        {
            return moe_fail(error, MOE_INVALID, "redundant_experts: layer %u: expert %u has another"
                            " size or type than expert 0", index, e);
        }
    }
    return 0;
}


static int add_redundant(const moe_model_t *model, uint32_t redundant,
                         moe_placement_shape_t *shape, moe_error_t *error)
{
    const uint32_t experts = shape->experts, ranks = shape->ranks;

    if (experts == 0) {
        return moe_fail(error, MOE_INVALID, "redundant_experts %u: the model has no experts",
                        redundant);
    }
    if (ranks == 1) {
        return moe_fail(error, MOE_INVALID, "redundant_experts %u: there is one rank only",
                        redundant);
    }
    if (redundant > UINT32_MAX - experts || (experts + redundant) % ranks != 0) {
        return moe_fail(error, MOE_INVALID, "redundant_experts %u: %u experts and these cannot be "
                        "divided evenly among %u ranks", redundant, experts, ranks);
    }
    shape->slots = (experts + redundant) / ranks;
    if (shape->slots > experts) {
        return moe_fail(error, MOE_INVALID, "redundant_experts %u: each of %u ranks would have %u "
                        "slots for %u experts", redundant, ranks, shape->slots, experts);
    }
    for (uint32_t i = 0; i < model->n_layers; i++) {
        if (model->layers[i].is_moe && check_layer(model, i, error) != 0) {
            return -1;
        }
    }
    return 0;
}


int moe_spread(const moe_model_t *model, uint32_t ranks, uint32_t redundant,
               moe_placement_shape_t *shape, uint32_t *layers, moe_error_t *error)
{
    const moe_router_t *first = NULL;

    *layers = 0;
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_router_t *router = &model->layers[i].moe.router;

        if (!model->layers[i].is_moe) {
            continue;
        }
        if ((*layers)++ == 0) {
            first = router;
        } else if (router->experts != first->experts || router->top_k != first->top_k) {
            return moe_fail(error, MOE_BAD_MODEL, "layer %u: top %u of %u experts, where others "
                            "have top %u of %u", i, router->top_k, router->experts, first->top_k,
                            first->experts);
        }
    }
    /* One domain: between the nodes of a machine equal work is worth more than short ways. */
    *shape = (moe_placement_shape_t) {.groups = 1, .domains = 1, .ranks = ranks};
    if (first != NULL) {
        shape->experts = first->experts;
        shape->slots = first->experts / ranks + (first->experts % ranks > 0);
    }
    return redundant > 0 ? add_redundant(model, redundant, shape, error) : 0;
}
