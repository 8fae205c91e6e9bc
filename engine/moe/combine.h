/* The way back from the experts: weighted rows, added in slot order, and the shared expert's. */

#ifndef MOE_COMBINE_H
#define MOE_COMBINE_H

#include "engine/moe/exchange.h"

/* y[i] = sum over slots s of weights[i, s] * the result for (i, s) (+ shared[i] unless NULL), after
 * moe_exchange_return_recv. */
void moe_combine_run(const moe_exchange_t *exchange, const float *weights, const float *shared,
                     uint32_t n, float *y);

#endif
