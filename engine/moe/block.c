#include "engine/moe/block.h"

#include "engine/moe/combine.h"


int moe_block_create(moe_block_state_t *self, const moe_block_t *block, moe_loader_t *loader,
                     uint32_t batch_rows, moe_error_t *error)
{
    *self = (moe_block_state_t) {.device = loader->device};
    if (moe_router_create(&self->router, &block->router, loader, batch_rows, error) != 0
        || moe_experts_create(&self->experts, block->experts, block->router.experts, loader,
                              error) != 0)
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


size_t moe_block_scratch(const moe_block_state_t *self, uint32_t batch_rows)
{
    const size_t routed = moe_experts_scratch(&self->experts,
                                              (size_t) batch_rows * self->router.routing.top_k);
    const size_t shared = moe_experts_scratch(&self->shared, batch_rows);

    return routed > shared ? routed : shared;
}


int moe_block_run(const moe_block_state_t *self, const moe_block_memory_t *memory, const float *x,
                  uint32_t n, float *y, moe_error_t *error)
{
    const moe_exchange_t *exchange = &self->exchange;
    const float *shared = NULL;

    moe_router_run(&self->router, x, n, memory->ids, memory->weights);
    moe_exchange_run(exchange, x, memory->ids, n, self->counts);
    if (self->shared.width > 0) {
        moe_experts_run(&self->shared, x, n, NULL, memory->scratch, memory->shared);
        shared = memory->shared;
    }
    moe_experts_run(&self->experts, exchange->rows, n * exchange->top_k, exchange->offsets,
                    memory->scratch, exchange->rows);
    moe_combine_run(exchange, exchange->rows, memory->weights, shared, n, y);
    return 0;
}
