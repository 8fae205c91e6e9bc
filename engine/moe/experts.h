/*
 * SwiGLU networks, down(swiglu(gate x, up x)), over rows that are grouped by expert: one result row
 * per row, not weighted.
 */

#ifndef MOE_EXPERTS_H
#define MOE_EXPERTS_H

#include "engine/loader.h"

typedef struct {
    moe_device_t *device;
    uint32_t count, width, hidden;
    moe_swiglu_t form;
    moe_matrix_t *gate, *up, *down;     /* stacks of `count` */
} moe_experts_t;

/* Loads `count` networks of one shape.  0, or -1 with MOE_LIMIT. */
int moe_experts_create(moe_experts_t *self, const moe_ffn_t *networks, uint32_t count,
                       moe_loader_t *loader, moe_error_t *error);

/* Floats of scratch memory for `rows` rows. */
size_t moe_experts_scratch(const moe_experts_t *self, size_t rows);

/* y = network(x), [n, hidden] both; y may be x.  Network i works on rows [offsets[i],
 * offsets[i + 1]); offsets [count + 1] are in device memory, and n is their total at most, so that
 * the host need not know it. */
void moe_experts_run(const moe_experts_t *self, const float *x, uint32_t n,
                     const uint32_t *offsets, float *scratch, float *y);

#endif
