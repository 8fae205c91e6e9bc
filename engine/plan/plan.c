/*
 * A roofline: each part of a layer takes the longer of its arithmetic and of its memory traffic;
 * the parts follow each other or overlap.  README.md in this folder explains every line.
 */

#include "engine/plan/plan.h"

#include <math.h>

/* The shapes of a layer as numbers of weights. */
typedef struct {
    double mixer, dense, shared, expert, router;
    double cached;              /* numbers per position in the cache */
    double attended;            /* operations per row and position that it attends to */
    double window;              /* positions that a row sees at most; 0: all */
} shapes_t;

/* Seconds of a layer for one batch of rows. */
typedef struct {
    double mixer, dense, shared, experts, dispatch, back;
} times_t;

/* Copies of a row that leave the device: to other nodes, within its own. */
typedef struct {
    double far, near;
} copies_t;


static void add_mla(shapes_t *shapes, const moe_mla_t *mla, double hidden, int expanded)
{
    const double heads = mla->heads, key = mla->nope + mla->rope, latent = mla->kv_lora;

    shapes->cached = latent + mla->rope;
    shapes->mixer = (mla->q_lora > 0 ? mla->q_lora * (hidden + heads * key) : hidden * heads * key)
                    + hidden * (latent + mla->rope) + latent * heads * (mla->nope + mla->value)
                    + heads * mla->value * hidden;
    shapes->attended = 2 * heads * (expanded ? key + mla->value : latent + mla->rope + latent);
}


static void add_gqa(shapes_t *shapes, const moe_gqa_t *gqa, double hidden)
{
    const double heads = gqa->heads, kv_heads = gqa->kv_heads, head = gqa->head;

    shapes->cached = 2 * kv_heads * head;
    shapes->mixer = 2 * hidden * head * (heads + kv_heads);
    shapes->attended = 4 * heads * head;
    shapes->window = gqa->window;
}


static shapes_t shapes_of(const moe_layer_t *layer, double hidden, int expanded)
{
    shapes_t shapes = {.cached = 0};

    if (layer->mixer == MOE_MIXER_GQA) {
        add_gqa(&shapes, &layer->gqa, hidden);
    } else {
        add_mla(&shapes, &layer->mla, hidden, expanded);
    }
    if (layer->is_moe) {
        shapes.shared = 3 * hidden * layer->moe.shared.width;
        shapes.expert = 3 * hidden * layer->moe.width;
        shapes.router = hidden * layer->moe.router.experts;
    } else {
        shapes.dense = 3 * hidden * layer->dense.width;
    }
    return shapes;
}


/* The chance that none of k draws without replacement from n hits any of m. */
static double chance_of_none(double n, double m, uint32_t k)
{
    double chance = 1;

    for (uint32_t i = 0; i < k; i++) {
        chance *= n - m - i > 0 ? (n - m - i) / (n - i) : 0;
    }
    return chance;
}


static double choose(double n, double k)
{
    return k < 0 || k > n ? 0 : exp(lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1));
}


double moe_plan_reached(const moe_router_t *router, double destinations)
{
    const double experts = router->experts, groups = router->groups, kept = router->groups_kept;
    const double group = experts / groups, own = groups / destinations;
    const double shared_by = destinations / groups;
    double reached = 0;

    if (router->group == MOE_GROUP_NONE || (own >= 1 && floor(own) < own)
        || (own < 1 && floor(shared_by) < shared_by))
    {
        return destinations * (1 - chance_of_none(experts, experts / destinations, router->top_k));
    }
    if (own < 1) {              /* a group is spread over several destinations */
        return destinations * kept / groups
               * (1 - chance_of_none(kept * group, experts / destinations, router->top_k));
    }
    for (double j = 1; j <= own && j <= kept; j++) {            /* j of its groups are kept */
        reached += choose(own, j) * choose(groups - own, kept - j) / choose(groups, kept)
                   * (1 - chance_of_none(kept * group, j * group, router->top_k));
    }
    return destinations * reached;
}


static copies_t copies_of(const moe_router_t *router, const moe_plan_hardware_t *hardware,
                          moe_plan_copies_t kind, double devices)
{
    const double node = devices < hardware->node ? devices : hardware->node;
    const double others = devices - node;
    double ranks = router->top_k, nodes;                        /* that a row goes to */

    if (kind != MOE_PLAN_PER_SLOT) {
        ranks = moe_plan_reached(router, devices);
    }
    if (kind != MOE_PLAN_PER_NODE) {
        return (copies_t) {
            .far = ranks * others / devices, .near = ranks * (node - 1) / devices
        };
    }
    nodes = moe_plan_reached(router, devices / node);
    /* In another node it lands on the device with the sender's number; if that has no expert for
     * it, or others have, it is passed on. */
    return (copies_t) {
        .far = nodes * others / devices,
        .near = ranks * (node - 1) / devices + ranks * others / devices * (node - 1) / node
    };
}


static double longer(double a, double b)
{
    return a > b ? a : b;
}


/* Seconds of a product of rows with weights: arithmetic or reading the weights. */
static double product(const moe_plan_hardware_t *hardware, double rows, double weights, double size)
{
    return longer(2 * rows * weights / hardware->flops, weights * size / hardware->bandwidth);
}


static double attention(const moe_plan_hardware_t *hardware, const moe_plan_work_t *work,
                        const shapes_t *shapes, double rows)
{
    const int decode = work->mode == MOE_PLAN_DECODE;
    const double context = work->context;
    const double seen = shapes->window > 0 && shapes->window < context ? shapes->window : context;
    const double positions = decode ? seen : seen - seen * seen / (2 * context);
    const double read = decode ? rows * seen : rows;

    return longer(rows * positions * shapes->attended / hardware->attention_flops,
                  read * shapes->cached * work->kv_size / hardware->bandwidth);
}


/* Rows of all devices reach some of a device's slots only, when they are few. */
static double experts(const moe_plan_hardware_t *hardware, const moe_plan_work_t *work,
                      const shapes_t *shapes, const moe_router_t *router, const moe_plan_t *plan,
                      double rows)
{
    const double slots = (double) plan->slots * plan->devices;
    const double hit = plan->slots * (1 - pow(1 - router->top_k / slots, rows * plan->devices));
    const double arithmetic = 2 * rows * router->top_k * work->imbalance * shapes->expert
                              / hardware->flops;

    return longer(arithmetic, hit * shapes->expert * work->weight_size / hardware->bandwidth)
           + product(hardware, rows, shapes->router, work->weight_size);
}


static double travel(const moe_plan_hardware_t *hardware, const moe_plan_work_t *work,
                     const copies_t *copies, double bytes, double devices)
{
    return devices == 1 ? 0
           : hardware->latency + work->imbalance * longer(copies->far * bytes / hardware->link,
                                                          copies->near * bytes
                                                          / hardware->node_link);
}


/* A layer for `rows` rows on every device. */
static times_t times_of(const moe_model_t *model, const moe_layer_t *layer,
                        const moe_plan_hardware_t *hardware, const moe_plan_work_t *work,
                        const moe_plan_t *plan, double rows)
{
    const shapes_t shapes = shapes_of(layer, model->hidden, work->expanded);
    const moe_router_t *router = &layer->moe.router;
    const double row = rows * model->hidden;
    copies_t there, back;
    times_t times = {0};

    times.mixer = product(hardware, rows, shapes.mixer, work->weight_size)
                  + attention(hardware, work, &shapes, rows);
    times.dense = product(hardware, rows, shapes.dense, work->weight_size);
    times.shared = product(hardware, rows, shapes.shared, work->weight_size);
    if (layer->is_moe) {
        there = copies_of(router, hardware, work->dispatch_copies, plan->devices);
        back = copies_of(router, hardware, work->return_copies, plan->devices);
        times.experts = experts(hardware, work, &shapes, router, plan, rows);
        times.dispatch = travel(hardware, work, &there, row * work->dispatch_size, plan->devices);
        times.back = travel(hardware, work, &back, row * work->return_size, plan->devices);
    }
    return times;
}


static double overlapped(const times_t *t, moe_plan_overlap_t overlap)
{
    const double computed = t->mixer + t->dense + t->shared + t->experts;

    switch (overlap) {
    case MOE_PLAN_OVERLAP_SHARED:
        return computed - t->shared + longer(t->dispatch, t->shared) + t->back;
    case MOE_PLAN_OVERLAP_TWO_BATCH:
        return 2 * longer(computed, t->dispatch + t->back);     /* of half the rows */
    default:
        return computed + t->dispatch + t->back;
    }
}


static void add_times(const moe_model_t *model, const moe_plan_hardware_t *hardware,
                      const moe_plan_work_t *work, moe_plan_t *plan)
{
    const moe_plan_overlap_t overlap = plan->devices > 1 ? work->overlap : MOE_PLAN_OVERLAP_NONE;
    const double parts = overlap == MOE_PLAN_OVERLAP_TWO_BATCH ? 2 : 1;
    const double head = (double) model->vocabulary * model->hidden;
    const double drawn = work->mode == MOE_PLAN_DECODE ? work->batch
                         : ceil((double) work->batch / work->context);

    plan->head = longer(2 * drawn * head / hardware->attention_flops,
                        head * longer(work->weight_size, 2) / hardware->bandwidth);
    plan->step = plan->head;
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const times_t t = times_of(model, &model->layers[i], hardware, work, plan,
                                   work->batch / parts);

        plan->mixer += parts * t.mixer;
        plan->dense += parts * t.dense;
        plan->shared += parts * t.shared;
        plan->experts += parts * t.experts;
        plan->exchange += parts * (t.dispatch + t.back);
        plan->step += overlapped(&t, overlap);
    }
    plan->rate = work->batch / plan->step;
}


/* Weights, cache and what the exchange needs, layer by layer. */
static void add_memory(const moe_model_t *model, const moe_plan_hardware_t *hardware,
                       const moe_plan_work_t *work, moe_plan_t *plan)
{
    const double positions = work->mode == MOE_PLAN_DECODE ? (double) work->batch * work->context
                             : longer(work->batch, work->context);
    double cached = 0, row = 0, free_bytes;

    plan->weights = (model->tied ? 1.0 : 2.0) * model->vocabulary * model->hidden
                    * longer(work->weight_size, 2);
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i];
        const shapes_t shapes = shapes_of(layer, model->hidden, work->expanded);

        plan->weights += (shapes.mixer + shapes.dense + shapes.shared + shapes.router
                          + plan->slots * shapes.expert) * work->weight_size;
        cached += shapes.cached * work->kv_size;
        if (layer->is_moe && plan->devices > 1) {
            row = (double) layer->moe.router.top_k * model->hidden;
        }
    }
    plan->kv = positions * cached;
    plan->buffers = work->batch * work->imbalance * row * (work->dispatch_size + work->return_size);
    free_bytes = hardware->memory - plan->weights - plan->buffers;
    plan->sequences = free_bytes > 0 ? floor(free_bytes / (cached * work->context)) : 0;
    plan->fits = plan->kv <= free_bytes;
}


/* What a MoE layer sends; all of a model's MoE layers have one shape. */
static void add_traffic(const moe_model_t *model, const moe_plan_hardware_t *hardware,
                        const moe_plan_work_t *work, moe_plan_t *plan)
{
    const double numbers = (double) work->batch * model->hidden;

    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_router_t *router = &model->layers[i].moe.router;
        copies_t there, back;

        if (!model->layers[i].is_moe) {
            continue;
        }
        there = copies_of(router, hardware, work->dispatch_copies, plan->devices);
        back = copies_of(router, hardware, work->return_copies, plan->devices);
        plan->sent_far = numbers * (there.far * work->dispatch_size + back.far * work->return_size);
        plan->sent_near = numbers * (there.near * work->dispatch_size
                                     + back.near * work->return_size);
        plan->sent += plan->sent_far + plan->sent_near;
        plan->expert_rows = (double) work->batch * router->top_k / plan->slots;
    }
}


int moe_plan(const moe_model_t *model, const moe_plan_hardware_t *hardware,
             const moe_plan_work_t *work, uint32_t devices, moe_plan_t *plan, moe_error_t *error)
{
    *plan = (moe_plan_t) {.devices = devices};
    if (devices < 1 || (devices > hardware->node && devices % hardware->node != 0)) {
        return moe_fail(error, MOE_INVALID, "%u devices are no whole number of nodes with %u "
                        "devices", devices, hardware->node);
    }
    for (uint32_t i = 0; i < model->n_layers; i++) {
        if (model->layers[i].is_moe) {
            const uint32_t experts = model->layers[i].moe.router.experts;
            const uint32_t slots = (experts + work->redundant + devices - 1) / devices;

            plan->slots = slots < experts ? slots : experts;
        }
    }
    add_memory(model, hardware, work, plan);
    add_traffic(model, hardware, work, plan);
    add_times(model, hardware, work, plan);
    return 0;
}
