#include "engine/loader.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/model/mapping.h"


static const char *weight_data(const moe_weight_t *weight)
{
    return (const char *) weight->tensor->data
           + moe_dtype_bytes(weight->tensor->dtype, weight->offset);
}


uint64_t moe_weight_bytes(const moe_weight_t *weight)
{
    const size_t count = (size_t) weight->rows * weight->columns;
    const moe_dtype_t dtype = weight->tensor->dtype;

    return moe_dtype_bytes(dtype, count)
           + (weight->tensor->scales ? count / moe_dtype_block(dtype) : 0);
}


/* From the first element to behind the last: more than the weight's own where its rows or columns
 * take turns with those of another one. */
static size_t weight_span(const moe_weight_t *weight)
{
    const size_t row = weight->row_stride ? weight->row_stride : weight->columns;
    const size_t column = weight->row_stride ? weight->column_stride : 1;

    return (weight->rows - 1) * row + (weight->columns - 1) * column + 1;
}


static const unsigned char *weight_scales(const moe_weight_t *weight)
{
    const moe_tensor_t *tensor = weight->tensor;

    return tensor->scales ? tensor->scales + weight->offset / moe_dtype_block(tensor->dtype) : NULL;
}


static moe_source_t weight_source(const moe_weight_t *weight)
{
    return (moe_source_t) {
        .data = weight_data(weight), .dtype = weight->tensor->dtype,
        .row_stride = weight->row_stride ? weight->row_stride : weight->columns,
        .column_stride = weight->row_stride ? weight->column_stride : 1,
        .scales = weight_scales(weight), .bias = weight->bias, .paired = weight->tensor->paired
    };
}


void moe_load_skip(moe_loader_t *loader, const moe_weight_t *weight)
{
    loader->done += moe_weight_bytes(weight);
    if (loader->progress) {
        loader->progress(loader->progress_context, loader->done, loader->total);
    }
}


void moe_load_done(moe_loader_t *loader, const moe_weight_t *weight)
{
    const moe_dtype_t dtype = weight->tensor->dtype;
    const size_t block = moe_dtype_block(dtype), blocks = (weight_span(weight) + block - 1) / block;

    moe_mapping_release(weight_data(weight), moe_dtype_bytes(dtype, blocks * block));
    if (weight->tensor->scales) {
        moe_mapping_release(weight_scales(weight), blocks);
    }
    moe_load_skip(loader, weight);
}


moe_matrix_t *moe_load_matrix(moe_loader_t *loader, const moe_weight_t *weight, moe_error_t *error)
{
    return moe_load_stack(loader, weight, 0, 1, error);
}


moe_matrix_t *moe_load_stack(moe_loader_t *loader, const moe_weight_t *first, size_t step,
                             uint32_t count, moe_error_t *error)
{
    moe_source_t *sources = calloc(count, sizeof(*sources));
    moe_matrix_t *matrix;

    if (sources == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u weights", count);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        sources[i] = weight_source((const void *) ((const char *) first + i * step));
    }
    matrix = loader->device->ops->pack(loader->device, sources, count, first->rows, first->columns,
                                       error);
    free(sources);
    if (matrix == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        moe_load_done(loader, (const void *) ((const char *) first + i * step));
    }
    return matrix;
}


moe_matrix_t *moe_load_slices(moe_loader_t *loader, const moe_weight_t *weight, uint32_t count,
                              uint32_t first, uint32_t step, uint32_t rows, int transposed,
                              moe_error_t *error)
{
    const moe_source_t whole = weight_source(weight);
    moe_source_t *sources = calloc(count, sizeof(*sources));
    moe_matrix_t *matrix;

    assert(!transposed || weight->bias == NULL);
    if (sources == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u slices", count);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        const size_t row = first + (size_t) i * step;

        sources[i] = whole;
        sources[i].data = (const char *) whole.data
                          + moe_dtype_bytes(whole.dtype, row * whole.row_stride);
        sources[i].bias = whole.bias ? whole.bias + row : NULL;
        sources[i].scales = whole.scales
                                ? whole.scales + row * whole.row_stride
                                                     / moe_dtype_block(whole.dtype)
                                : NULL;
        if (transposed) {
            sources[i].row_stride = whole.column_stride;
            sources[i].column_stride = whole.row_stride;
        }
    }
    matrix = loader->device->ops->pack(loader->device, sources, count,
                                       transposed ? weight->columns : rows,
                                       transposed ? rows : weight->columns, error);
    free(sources);
    return matrix;
}


const float *moe_load_vector(moe_loader_t *loader, const moe_vector_t *vector, moe_error_t *error)
{
    const size_t size = vector->size * sizeof(float);
    float *values;

    error->code = MOE_OK;
    if (size == 0) {
        return NULL;
    }
    values = loader->device->ops->allocate(loader->device, size, error);
    if (values) {
        loader->device->ops->upload(loader->device, values, vector->values, size);
    }
    return values;
}
