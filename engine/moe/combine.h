/* The way back from the experts: weighted rows, added in slot order, and the shared expert's. */

#ifndef MOE_COMBINE_H
#define MOE_COMBINE_H

#include "engine/moe/exchange.h"

/* y[i] = sum over slots s of weights[i, s] * results[places[i, s]] (+ shared[i] unless NULL);
 * results: [slots, hidden] in the order of exchange->rows. */
void moe_combine_run(const moe_exchange_t *exchange, const float *results, const float *weights,
                     const float *shared, uint32_t n, float *y);

#endif
