#include "engine/moe/block.h"

#include <stdlib.h>

#include "engine/moe/combine.h"


static void skip_expert(moe_loader_t *loader, const moe_ffn_t *network)
{
    moe_load_skip(loader, &network->gate);
    moe_load_skip(loader, &network->up);
    moe_load_skip(loader, &network->down);
}


/* The experts that the placement gives this rank. */
static int load_experts(moe_block_state_t *self, const moe_block_t *block, moe_loader_t *loader,
                        const moe_block_env_t *env, moe_error_t *error)
{
    const uint32_t slots = env->placement->shape.slots;
    const uint32_t *held = env->placement->maps[env->layer].experts + env->world->rank * slots;
    moe_ffn_t *networks = calloc(slots, sizeof(*networks));
    int result;

    if (networks == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u experts", slots);
    }
    for (uint32_t e = 0; e < block->router.experts; e++) {
        uint32_t s = 0;

        while (s < slots && held[s] != e) {
            s++;
        }
        if (s < slots) {
            networks[s] = block->experts[e];
        } else {
            skip_expert(loader, &block->experts[e]);
        }
    }
    result = moe_experts_create(&self->experts, networks, slots, loader, error);
    free(networks);
    return result;
}


static int make_map(moe_block_state_t *self, const moe_block_env_t *env, moe_error_t *error)
{
    const moe_placement_shape_t *shape = &env->placement->shape;
    const size_t slots = (size_t) shape->ranks * shape->slots, word = sizeof(uint32_t);
    moe_exchange_map_t *map = &self->map;

    map->counts = env->counts;
    map->arrived = env->arrived;
    map->replicas = self->device->ops->allocate(self->device, slots * word, error);
    map->offsets = map->replicas ? self->device->ops->allocate(
                                       self->device, (shape->experts + 1u) * word, error)
                                 : NULL;
    if (map->offsets == NULL) {
        return -1;
    }
    moe_block_place(self, shape, &env->placement->maps[env->layer]);
    return 0;
}


int moe_block_create(moe_block_state_t *self, const moe_block_t *block, moe_loader_t *loader,
                     const moe_block_env_t *env, moe_error_t *error)
{
    const uint32_t rows = moe_block_rows(env->world, env->batch_rows);

    *self = (moe_block_state_t) {.device = loader->device, .world = env->world};
    if (moe_router_create(&self->router, &block->router, loader, rows, error) != 0
        || load_experts(self, block, loader, env, error) != 0 || make_map(self, env, error) != 0)
    {
        return -1;
    }
    if (block->shared.width > 0
        && moe_dense_create(&self->shared, &block->shared, env->world, loader, error) != 0)
    {
        return -1;
    }
    if (block->shared_gate.tensor) {
        self->shared_gate = moe_load_matrix(loader, &block->shared_gate, error);
        return self->shared_gate ? 0 : -1;
    }
    return 0;
}


void moe_block_place(const moe_block_state_t *self, const moe_placement_shape_t *shape,
                     const moe_placement_map_t *map)
{
    const moe_device_ops_t *ops = self->device->ops;

    ops->upload(self->device, self->map.replicas, map->replicas,
                (size_t) shape->ranks * shape->slots * sizeof(uint32_t));
    ops->upload(self->device, self->map.offsets, map->offsets,
                (shape->experts + (size_t) 1) * sizeof(uint32_t));
}


uint32_t moe_block_rows(const moe_world_t *world, uint32_t batch_rows)
{
    const uint32_t parts = world->parts > 1 ? world->parts : 1;

    return batch_rows / parts + (batch_rows % parts > 0);
}


int moe_block_batch_create(moe_block_batch_t *batch, const moe_exchange_options_t *options,
                           float *scratch, moe_error_t *error)
{
    moe_device_t *device = options->device;
    const moe_device_ops_t *ops = device->ops;
    const size_t entries = (size_t) options->rows * options->top_k;
    const size_t parts = options->world->parts > 1 ? options->world->parts : 1;
    const size_t floats = parts * options->rows * options->hidden;

    *batch = (moe_block_batch_t) {.scratch = scratch};
    return moe_exchange_create(&batch->exchange, options, error) != 0
                   || (batch->ids = ops->allocate(device, entries * sizeof(uint32_t), error))
                          == NULL
                   || (batch->weights = ops->allocate(device, entries * sizeof(float), error))
                          == NULL
                   || (batch->shared = ops->allocate(device, floats * sizeof(float), error))
                          == NULL
                   || (batch->shared_scores =
                           ops->allocate(device, options->rows * sizeof(float), error)) == NULL
               ? -1 : 0;
}


void moe_block_batch_free(moe_block_batch_t *batch)
{
    moe_exchange_free(&batch->exchange);
}


size_t moe_block_scratch(const moe_block_state_t *self, const moe_exchange_options_t *options)
{
    const size_t routed = moe_experts_scratch(&self->experts, moe_exchange_capacity(options));
    const size_t parts = options->world->parts > 1 ? options->world->parts : 1;
    size_t shared = 0;

    if (self->shared.width > 0) {
        shared = moe_dense_scratch(&self->shared, parts * options->rows);
    }
    return routed > shared ? routed : shared;
}


/* This rank's share of n rows. */
static void take_share(const moe_block_state_t *self, moe_block_batch_t *batch, const float *x,
                       uint32_t n)
{
    const uint32_t share = moe_block_rows(self->world, n);
    const uint32_t first = self->world->part * share, rest = first < n ? n - first : 0;

    batch->x = x;
    batch->n = n;
    batch->share = share;
    batch->first = first;
    batch->rows = rest < share ? rest : share;
}


int moe_block_send(const moe_block_state_t *self, moe_block_batch_t *batch, const float *x,
                   uint32_t n, moe_error_t *error)
{
    const size_t hidden = batch->exchange.options.hidden;
    const float *own;

    take_share(self, batch, x, n);
    own = batch->rows > 0 ? x + batch->first * hidden : x;
    moe_router_run(&self->router, own, batch->rows, batch->ids, batch->weights);
    return moe_exchange_dispatch_send(&batch->exchange, &self->map, own, batch->ids, batch->rows,
                                      error);
}


int moe_block_recv(const moe_block_state_t *self, moe_block_batch_t *batch, moe_error_t *error)
{
    return moe_exchange_dispatch_recv(&batch->exchange, error);
}


/* Of this rank's share of the rows, which are all that it combines. */
static void gate_shared(const moe_block_state_t *self, const moe_block_batch_t *batch)
{
    const moe_device_ops_t *ops = self->device->ops;
    const size_t first = (size_t) batch->first * self->shared.hidden;
    const moe_linear_t gate = {
        self->shared_gate, batch->x + first, self->shared.hidden, 0, batch->shared_scores, 1, 0
    };

    ops->linear(self->device, &gate, 1, batch->rows);
    ops->gate_rows(self->device, batch->shared_scores, batch->rows, self->shared.hidden,
                   batch->shared + first);
}


int moe_block_shared(const moe_block_state_t *self, moe_block_batch_t *batch, moe_error_t *error)
{
    if (self->shared.width == 0) {
        return 0;
    }
    if (moe_dense_run(&self->shared, batch->x, batch->n, batch->scratch, batch->shared, error)
        != 0)
    {
        return -1;
    }
    if (self->shared_gate && batch->rows > 0) {
        gate_shared(self, batch);
    }
    return 0;
}


void moe_block_experts(const moe_block_state_t *self, moe_block_batch_t *batch)
{
    const moe_exchange_t *exchange = &batch->exchange;

    moe_experts_run(&self->experts, exchange->rows, exchange->capacity,
                    exchange->dispatch.slot_offsets, batch->scratch, exchange->rows);
}


int moe_block_return_send(const moe_block_state_t *self, moe_block_batch_t *batch,
                          moe_error_t *error)
{
    return moe_exchange_return_send(&batch->exchange, error);
}


int moe_block_return_recv(const moe_block_state_t *self, moe_block_batch_t *batch, float *y,
                          moe_error_t *error)
{
    moe_comm_t *group = self->world->group;
    const size_t hidden = batch->exchange.options.hidden, first = batch->first * hidden;
    const float *shared = self->shared.width > 0 ? batch->shared + first : NULL;

    if (moe_exchange_return_recv(&batch->exchange, error) != 0) {
        return -1;
    }
    moe_combine_run(&batch->exchange, batch->weights, shared, batch->rows, y + first);
    return group == NULL ? 0 : group->ops->allgather(group, y + first, batch->share * hidden
                                                                           * sizeof(float), y,
                                                     error);
}


int moe_block_run(const moe_block_state_t *self, moe_block_batch_t *batch, moe_overlap_t overlap,
                  const float *x, uint32_t n, float *y, moe_error_t *error)
{
    if (moe_block_send(self, batch, x, n, error) != 0) {
        return -1;
    }
    if (overlap != MOE_OVERLAP_OFF && moe_block_shared(self, batch, error) != 0) {
        return -1;
    }
    if (moe_block_recv(self, batch, error) != 0) {
        return -1;
    }
    if (overlap == MOE_OVERLAP_OFF && moe_block_shared(self, batch, error) != 0) {
        return -1;
    }
    moe_block_experts(self, batch);
    return moe_block_return_send(self, batch, error) != 0
           || moe_block_return_recv(self, batch, y, error) != 0 ? -1 : 0;
}
