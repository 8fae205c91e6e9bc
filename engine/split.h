/*
 * Output rows of a matrix, divided among the ranks of a tensor-parallel group.  Each computes its
 * rows of every product for all of the group's rows of a step, then they gather what they have:
 * partial products are never added up, so that results are those of a rank alone, bit by bit.
 *
 * An only rank has all of it: its results lie where they belong at once, and nothing is gathered.
 */

#ifndef MOE_SPLIT_H
#define MOE_SPLIT_H

#include "engine/comm/world.h"
#include "engine/device/device.h"
#include "engine/loader.h"

/* `units` units (heads, rows) of `unit` output rows each, of which a rank has some.  Parts differ
 * by one unit at most. */
typedef struct {
    const moe_world_t *world;           /* not owned */
    uint32_t units, unit;
    uint32_t first, count;              /* units of this rank */
} moe_split_t;

/* `units` are at least the world's parts: moe_forward_create has looked. */
moe_split_t moe_split_of(const moe_world_t *world, uint32_t units, uint32_t unit);

/* This rank's rows of a weight of split->units * split->unit rows. */
moe_matrix_t *moe_split_load(const moe_split_t *split, moe_loader_t *loader,
                             const moe_weight_t *weight, moe_error_t *error);

/* Results of all ranks, [n, units * unit] in y: each writes its own into rows that begin at
 * moe_split_own and are moe_split_stride floats apart, and has them gathered after that.  `scratch`
 * has room for moe_split_scratch floats and is not needed any more then. */
size_t moe_split_scratch(const moe_split_t *split, size_t n);
size_t moe_split_stride(const moe_split_t *split);
float *moe_split_own(const moe_split_t *split, uint32_t n, float *scratch, float *y);

/* 0, or -1 with MOE_UNAVAILABLE when another rank is lost. */
int moe_split_gather(const moe_split_t *split, moe_device_t *device, uint32_t n, float *scratch,
                     float *y, moe_error_t *error);

#endif
