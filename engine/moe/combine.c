#include "engine/moe/combine.h"


void moe_combine_run(const moe_exchange_t *exchange, const float *weights, const float *shared,
                     uint32_t n, float *y)
{
    moe_device_t *device = exchange->options.device;

    device->ops->combine(device, exchange->rows, exchange->dispatch.places, weights,
                         exchange->options.top_k, shared, n, exchange->options.hidden, y);
}
