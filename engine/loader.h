/*
 * Hands a model's weights to a device, with progress.  Pages of the mapped files are given back as
 * soon as they are packed, so that loading needs little more memory than the packed weights.
 */

#ifndef MOE_LOADER_H
#define MOE_LOADER_H

#include "engine/device/device.h"
#include "engine/model/model.h"

typedef struct {
    moe_device_t *device;
    void (*progress)(void *context, uint64_t done, uint64_t total);     /* may be NULL */
    void *progress_context;
    uint64_t done, total;           /* bytes of the checkpoint */
} moe_loader_t;

/* What a weight takes in the checkpoint. */
uint64_t moe_weight_bytes(const moe_weight_t *weight);

/* Counts a weight as done that this rank leaves to others. */
void moe_load_skip(moe_loader_t *loader, const moe_weight_t *weight);

/* A whole weight; a tied one may be loaded once and used twice. */
moe_matrix_t *moe_load_matrix(moe_loader_t *loader, const moe_weight_t *weight,
                              moe_error_t *error);

/* A stack of `count` weights of one shape, `step` bytes apart in memory (a member of an array). */
moe_matrix_t *moe_load_stack(moe_loader_t *loader, const moe_weight_t *first, size_t step,
                             uint32_t count, moe_error_t *error);

/* A stack of `count` slices of a weight: slice i is `rows` rows from row first + i * step, or their
 * transpose (of a weight without bias).  The weight's pages are kept: moe_load_done gives them
 * back. */
moe_matrix_t *moe_load_slices(moe_loader_t *loader, const moe_weight_t *weight, uint32_t count,
                              uint32_t first, uint32_t step, uint32_t rows, int transposed,
                              moe_error_t *error);
void moe_load_done(moe_loader_t *loader, const moe_weight_t *weight);

/* A vector in device memory; NULL with MOE_OK when it is empty. */
const float *moe_load_vector(moe_loader_t *loader, const moe_vector_t *vector,
                             moe_error_t *error);

#endif
