/*
 * Tensors as they lie in a checkpoint: names, types and shapes over memory-mapped files.
 */

#ifndef MOE_TENSOR_H
#define MOE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/error.h"

typedef enum {
    MOE_F32 = 1,
    MOE_F16,
    MOE_BF16
} moe_dtype_t;

#define MOE_TENSOR_DIMS 8

typedef struct {
    const char *name;
    const char *type;                   /* the dtype as the file spells it */
    moe_dtype_t dtype;                  /* 0: a type that cannot be computed with */
    unsigned n_dims;                    /* at most MOE_TENSOR_DIMS */
    uint64_t shape[MOE_TENSOR_DIMS];    /* outermost first: a linear layer is [out, in] */
    const void *data;                   /* into the mapping, row-major; once taken it is aligned to
                                         * its element (copied where the file does not align it) */
    size_t size;                        /* bytes */
} moe_tensor_t;

size_t moe_dtype_size(moe_dtype_t dtype);
const char *moe_dtype_name(moe_dtype_t dtype);

/* The set of tensors of a model directory. */
typedef struct moe_tensors_s moe_tensors_t;

/*
 * Opens model.safetensors, or the shards of model.safetensors.index.json, and checks every header:
 * sizes, types, shapes, offsets in range, none overlapping, no gaps, names unique over all shards,
 * shard names without directories.  NULL with MOE_BAD_MODEL "file: tensor: what".
 * Unknown dtypes are refused by name only when the tensor is used.
 */
moe_tensors_t *moe_tensors_open(const char *directory, moe_error_t *error);
void moe_tensors_close(moe_tensors_t *tensors);

size_t moe_tensors_count(const moe_tensors_t *tensors);
uint64_t moe_tensors_bytes(const moe_tensors_t *tensors);

/* What was opened: "model.safetensors" or "model.safetensors.index.json". */
const char *moe_tensors_source(const moe_tensors_t *tensors);

/* The i-th tensor in name order (for inspect). */
const moe_tensor_t *moe_tensors_at(const moe_tensors_t *tensors, size_t index);

/* Finds a tensor and marks it used.  NULL with MOE_BAD_MODEL when missing, of another shape (give
 * n_dims and the dims) or of a type that cannot be computed with. */
const moe_tensor_t *moe_tensors_take(moe_tensors_t *tensors, moe_error_t *error, unsigned n_dims,
                                     const uint64_t *shape, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* 1 when a tensor of that name exists (does not mark it). */
int moe_tensors_has(const moe_tensors_t *tensors, const char *name);

/* Marks all tensors with this prefix as known though not used (MTP layers, vision towers). */
void moe_tensors_ignore(moe_tensors_t *tensors, const char *prefix);

/* -1 with MOE_BAD_MODEL naming the first tensor nobody took or ignored, and their number. */
int moe_tensors_check_left_over(const moe_tensors_t *tensors, moe_error_t *error);

#endif
