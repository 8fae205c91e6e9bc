/*
 * Tensors as they lie in a checkpoint: names, types and shapes over memory-mapped files.
 */

#ifndef MOE_TENSOR_H
#define MOE_TENSOR_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/core/error.h"
#include "engine/model/format.h"

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
    const unsigned char *scales;        /* of MOE_MXFP4_APART: one of each block; else NULL */
    uint32_t paired;                    /* > 0: the rows of each head of so many lie in the order 0,
                                         * paired / 2, 1, paired / 2 + 1, ... */
} moe_tensor_t;

/* The set of tensors of a model. */
typedef struct moe_tensors_s moe_tensors_t;

/*
 * Opens model.safetensors, or the shards of model.safetensors.index.json, and checks every header:
 * sizes, types, shapes, offsets in range, none overlapping, no gaps, names unique over all shards,
 * shard names without directories.  NULL with MOE_BAD_MODEL "file: tensor: what".
 * Unknown dtypes are refused by name only when the tensor is used.
 */
moe_tensors_t *moe_tensors_open(const char *directory, moe_error_t *error);

/*
 * Opens the GGUF file `path`, with its other parts where it is the first of several, and checks
 * every header likewise.  *metadata is a new reference to the first file's (gguf.h).
 */
moe_tensors_t *moe_tensors_open_gguf(const char *path, json_t **metadata, moe_error_t *error);

/*
 * Families ask for tensors by the names of Hugging Face's layout.  A set whose files name them
 * otherwise translates: in a layer ("model.layers.N." against "blk.N."), and outside.  A '*' stands
 * for a number, the same in both names.  Tables end with a NULL and live as long as the set.  Of
 * several rows for a name the first one whose tensor is there counts; a name that is in none is not
 * there.  Dimensions of one element in front are not told apart from none in such files.
 */
typedef struct {
    const char *name, *stored;
} moe_tensor_name_t;

#define MOE_TENSOR_TABLES 3u

typedef struct {
    const moe_tensor_name_t *in_layer[MOE_TENSOR_TABLES];       /* NULL: no more */
    const moe_tensor_name_t *outside;
} moe_tensor_names_t;

void moe_tensors_translate(moe_tensors_t *tensors, const moe_tensor_names_t *names);

/* The set is that of a model of several kinds of input: names mean those of its language model, and
 * the tensors of its other parts are marked as known though not used. */
void moe_tensors_enter_text(moe_tensors_t *tensors);

/* 1 when a layer's experts lie in one tensor [experts, rows, columns], as in most GGUF files: not
 * where there is a tensor `single`, the first expert's own. */
int moe_tensors_merges_experts(const moe_tensors_t *tensors, const char *single);

/* Says of the tensor, where there is one, how its rows lie: see moe_tensor_t. */
void moe_tensors_set_paired(moe_tensors_t *tensors, const char *name, uint32_t paired);

void moe_tensors_close(moe_tensors_t *tensors);

size_t moe_tensors_count(const moe_tensors_t *tensors);
uint64_t moe_tensors_bytes(const moe_tensors_t *tensors);

/* What was opened: "model.safetensors", "model.safetensors.index.json", or a GGUF file's name. */
const char *moe_tensors_source(const moe_tensors_t *tensors);

/* The i-th tensor in name order (for inspect). */
const moe_tensor_t *moe_tensors_at(const moe_tensors_t *tensors, size_t index);

/* Finds a tensor and marks it used.  NULL with MOE_BAD_MODEL when missing, of another shape (give
 * n_dims and the dims) or of a type that cannot be computed with. */
const moe_tensor_t *moe_tensors_take(moe_tensors_t *tensors, moe_error_t *error, unsigned n_dims,
                                     const uint64_t *shape, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The same for a tensor of bytes (U8), whatever they stand for. */
const moe_tensor_t *moe_tensors_take_bytes(moe_tensors_t *tensors, moe_error_t *error,
                                           unsigned n_dims, const uint64_t *shape,
                                           const char *name);

/* The tensor of that name, unmarked and unchecked; NULL when there is none. */
const moe_tensor_t *moe_tensors_find(const moe_tensors_t *tensors, const char *name);

/* Marks all tensors with this prefix as known though not used (MTP layers, vision towers). */
void moe_tensors_ignore(moe_tensors_t *tensors, const char *prefix);

/* -1 with MOE_BAD_MODEL naming the first tensor nobody took or ignored, and their number. */
int moe_tensors_check_left_over(const moe_tensors_t *tensors, moe_error_t *error);

#endif
