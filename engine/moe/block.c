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
        && moe_experts_create(&self->shared, &block->shared, 1, loader, error) != 0)
    {
        return -1;
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


size_t moe_block_scratch(const moe_block_state_t *self, const moe_exchange_options_t *options)
{
    const size_t routed = moe_experts_scratch(&self->experts, moe_exchange_capacity(options));
    const size_t shared = moe_experts_scratch(&self->shared, options->rows);

    return routed > shared ? routed : shared;
}


/* y = block(x) for n rows of this rank alone. */
static int run_rows(const moe_block_state_t *self, moe_block_memory_t *memory, const float *x,
                    uint32_t n, float *y, moe_error_t *error)
{
    moe_exchange_t *exchange = &memory->exchange;
    const float *shared = NULL;

    moe_router_run(&self->router, x, n, memory->ids, memory->weights);
    if (moe_exchange_dispatch_send(exchange, &self->map, x, memory->ids, n, error) != 0) {
        return -1;
    }
    if (self->shared.width > 0) {
        moe_experts_run(&self->shared, x, n, NULL, memory->scratch, memory->shared);
        shared = memory->shared;
    }
    if (moe_exchange_dispatch_recv(exchange, error) != 0) {
        return -1;
    }
    moe_experts_run(&self->experts, exchange->rows, exchange->capacity,
                    exchange->dispatch.slot_offsets, memory->scratch, exchange->rows);
    if (moe_exchange_return_send(exchange, error) != 0
        || moe_exchange_return_recv(exchange, error) != 0)
    {
        return -1;
    }
    moe_combine_run(exchange, memory->weights, shared, n, y);
    return 0;
}


int moe_block_run(const moe_block_state_t *self, moe_block_memory_t *memory, const float *x,
                  uint32_t n, float *y, moe_error_t *error)
{
    moe_comm_t *group = self->world->group;
    const size_t hidden = memory->exchange.options.hidden;
    const uint32_t share = moe_block_rows(self->world, n);
    const uint32_t before = self->world->part * share, first = before < n ? before : n;
    const uint32_t rest = n - first, own = rest < share ? rest : share;

    if (run_rows(self, memory, x + first * hidden, own, y + before * hidden, error) != 0) {
        return -1;
    }
    return group == NULL ? 0
                         : group->ops->allgather(group, y + before * hidden,
                                                 share * hidden * sizeof(float), y, error);
}
