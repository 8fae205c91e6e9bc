/*
 * The activation of a gated network, from what its gate and its other half (up) give:
 *
 *     usual           silu(gate) * up
 *     limit > 0       g * sigmoid(alpha * g) * (u + offset), where g is gate, at most the limit,
 *                     and u is up within +-limit
 */

#ifndef MOE_SWIGLU_H
#define MOE_SWIGLU_H

typedef struct {
    float limit;                /* 0: the usual one, and the rest is not used */
    float alpha, offset;
} moe_swiglu_t;

#endif
