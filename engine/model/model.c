#include "engine/model/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/json.h"
#include "engine/model/build.h"
#include "kernels/cpu/half.h"

/* What the descriptors own: a chain of allocations that are freed together. */
typedef struct memory_block_s memory_block_t;

struct memory_block_s {
    memory_block_t *next;
    _Alignas(64) unsigned char data[];
};


void *moe_model_allocate(moe_model_t *model, size_t count, size_t size, moe_error_t *error)
{
    memory_block_t *block = NULL;
    size_t bytes;

    if (!__builtin_mul_overflow(count, size, &bytes)
        && !__builtin_add_overflow(bytes, sizeof(*block) + 63, &bytes))
    {
        block = aligned_alloc(64, bytes & ~(size_t) 63);
    }
    if (block == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for the model's description");
        return NULL;
    }
    memset(block, 0, bytes & ~(size_t) 63);
    block->next = model->memory;
    model->memory = block;
    return block->data;
}


int moe_model_take_weight(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                          uint32_t rows, uint32_t columns, const char *format, ...)
{
    const uint64_t shape[2] = { rows, columns };
    char name[256];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    *weight = (moe_weight_t) { .rows = rows, .columns = columns };
    weight->tensor = moe_tensors_take(model->tensors, error, 2, shape, "%s", name);
    model->parameters += (uint64_t) rows * columns;
    return weight->tensor != NULL ? 0 : -1;
}


static float element(const moe_tensor_t *tensor, size_t i)
{
    if (tensor->dtype == MOE_F32) {
        return ((const float *) tensor->data)[i];
    }
    if (tensor->dtype == MOE_F16) {
        return f32_from_f16(((const uint16_t *) tensor->data)[i]);
    }
    return f32_from_bf16(((const uint16_t *) tensor->data)[i]);
}


int moe_model_take_vector(moe_model_t *model, moe_error_t *error, moe_vector_t *vector,
                          uint32_t size, const char *format, ...)
{
    const uint64_t shape[1] = { size };
    const moe_tensor_t *tensor;
    char name[256];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    tensor = moe_tensors_take(model->tensors, error, 1, shape, "%s", name);
    if (tensor == NULL) {
        return -1;
    }
    vector->size = size;
    vector->values = moe_model_allocate(model, size, sizeof(float), error);
    if (vector->values == NULL) {
        return -1;
    }
    for (uint32_t i = 0; i < size; i++) {
        vector->values[i] = element(tensor, i);
        if (!isfinite(vector->values[i])) {
            return moe_fail(error, MOE_BAD_MODEL, "%s: element %u is not a finite number", name, i);
        }
    }
    model->parameters += size;
    return 0;
}


static int open_model(moe_model_t *model, const char *directory, const json_t *config,
                      moe_error_t *error)
{
    const moe_family_t *family = moe_family_find(config, error);

    if (family == NULL || family->check(family, config, error) != 0) {
        return -1;
    }
    snprintf(model->family, sizeof(model->family), "%s", family->model_type);
    model->tensors = moe_tensors_open(directory, error);
    if (model->tensors == NULL || family->build(family, model, config, error) != 0
        || moe_tensors_check_left_over(model->tensors, error) != 0)
    {
        return -1;
    }
    return moe_model_read_generation(model, directory, config, error);
}


moe_model_t *moe_model_open(const char *directory, moe_error_t *error)
{
    json_t *config = moe_json_load(directory, "config.json", 0, error);
    moe_model_t *model;

    if (config == NULL) {
        return NULL;
    }
    model = calloc(1, sizeof(*model));
    if (model == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
    } else if (open_model(model, directory, config, error) != 0) {
        moe_model_close(model);
        model = NULL;
    }
    json_decref(config);
    return model;
}


void moe_model_close(moe_model_t *model)
{
    memory_block_t *block, *next;

    if (model == NULL) {
        return;
    }
    for (block = model->memory; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    moe_tensors_close(model->tensors);
    free(model);
}


int moe_model_check(const char *directory, moe_error_t *error)
{
    json_t *config = moe_json_load(directory, "config.json", 0, error);
    const moe_family_t *family;
    moe_tensors_t *tensors;
    int result = -1;

    if (config == NULL) {
        return -1;
    }
    family = moe_family_find(config, error);
    if (family != NULL && family->check(family, config, error) == 0) {
        tensors = moe_tensors_open(directory, error);
        result = tensors != NULL ? 0 : -1;
        moe_tensors_close(tensors);
    }
    json_decref(config);
    return result;
}
