#include "engine/moe/combine.h"


void moe_combine_run(const moe_exchange_t *exchange, const float *results, const float *weights,
                     const float *shared, uint32_t n, float *y)
{
    exchange->device->ops->combine(exchange->device, results, exchange->places, weights,
                                   exchange->top_k, shared, n, exchange->hidden, y);
}
