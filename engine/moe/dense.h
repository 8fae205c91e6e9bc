/*
 * The SwiGLU network that all rows go through: down(swiglu(gate x, up x)), of a dense layer or as
 * the shared expert.  Its output rows are divided among the ranks of a tensor-parallel group, those
 * of gate and up as well as those of down.
 */

#ifndef MOE_DENSE_H
#define MOE_DENSE_H

#include "engine/split.h"

typedef struct {
    moe_device_t *device;
    uint32_t width, hidden;             /* of the whole network */
    moe_swiglu_t form;
    moe_split_t inner, outer;           /* rows of gate and up; of down */
    moe_matrix_t *gate, *up, *down;
} moe_dense_t;

/* 0, or -1 with MOE_LIMIT. */
int moe_dense_create(moe_dense_t *self, const moe_ffn_t *network, const moe_world_t *world,
                     moe_loader_t *loader, moe_error_t *error);

/* Floats of scratch memory for `rows` rows. */
size_t moe_dense_scratch(const moe_dense_t *self, size_t rows);

/* y = network(x), [n, hidden] both, not the same.  All ranks of the group call it with the same
 * rows.  0, or -1 with MOE_UNAVAILABLE when one of them is lost. */
int moe_dense_run(const moe_dense_t *self, const float *x, uint32_t n, float *scratch, float *y,
                  moe_error_t *error);

#endif
