#include "engine/moe/exchange.h"


int moe_exchange_create(moe_exchange_t *self, moe_device_t *device, uint32_t experts,
                        uint32_t top_k, uint32_t hidden, uint32_t batch_rows, moe_error_t *error)
{
    const size_t slots = (size_t) batch_rows * top_k;

    *self = (moe_exchange_t) {
        .device = device, .experts = experts, .top_k = top_k, .hidden = hidden,
    };
    if (slots > UINT32_MAX) {
        return moe_fail(error, MOE_LIMIT, "%u rows to %u experts each: too many", batch_rows,
                        top_k);
    }
    if ((self->rows = device->ops->allocate(device, slots * hidden * sizeof(float), error)) == NULL
        || (self->places = device->ops->allocate(device, slots * sizeof(uint32_t), error)) == NULL
        || (self->offsets = device->ops->allocate(device, ((size_t) experts + 1) * sizeof(uint32_t),
                                                  error)) == NULL)
    {
        return -1;
    }
    return 0;
}


void moe_exchange_run(const moe_exchange_t *self, const float *x, const uint32_t *ids, uint32_t n,
                      uint64_t *counts)
{
    const moe_device_ops_t *ops = self->device->ops;

    ops->group(self->device, ids, n * self->top_k, self->experts, self->places, self->offsets,
               counts);
    ops->scatter(self->device, x, self->places, n, self->top_k, self->hidden, self->rows);
}
