#include "engine/model/model.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/json.h"
#include "engine/core/model_path.h"
#include "engine/model/build.h"
#include "engine/model/gguf_config.h"

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


int moe_model_take_parts(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                         uint32_t count, uint32_t rows, uint32_t columns, const char *format, ...)
{
    const uint64_t shape[3] = { count, rows, columns };
    char name[256];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    *weight = (moe_weight_t) { .rows = count * rows, .columns = columns };
    weight->tensor = moe_tensors_take(model->tensors, error, 3, shape, "%s", name);
    model->parameters += (uint64_t) count * rows * columns;
    return weight->tensor != NULL ? 0 : -1;
}


static moe_weight_t *weight_at(moe_weight_t *first, size_t step, uint32_t i)
{
    return (void *) ((char *) first + i * step);
}


int moe_model_take_experts(moe_model_t *model, moe_error_t *error, moe_weight_t *first, size_t step,
                           uint32_t count, uint32_t rows, uint32_t columns, const char *prefix,
                           const char *name)
{
    moe_weight_t all;
    char single[256];

    snprintf(single, sizeof(single), "%s0.%s", prefix, name);
    if (!moe_tensors_merges_experts(model->tensors, single)) {
        for (uint32_t i = 0; i < count; i++) {
            if (moe_model_take_weight(model, error, weight_at(first, step, i), rows, columns,
                                      "%s%u.%s", prefix, i, name) != 0)
            {
                return -1;
            }
        }
        return 0;
    }
    if (moe_model_take_parts(model, error, &all, count, rows, columns, "%s%s", prefix, name) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < count; i++) {
        *weight_at(first, step, i) = (moe_weight_t) {
            .tensor = all.tensor, .rows = rows, .columns = columns,
            .offset = (uint64_t) i * rows * columns
        };
    }
    return 0;
}


static int take_values(moe_model_t *model, moe_error_t *error, moe_vector_t *vector,
                       unsigned n_dims, const uint64_t *shape, const char *name)
{
    const moe_tensor_t *tensor = moe_tensors_take(model->tensors, error, n_dims, shape, "%s", name);
    const uint64_t count = n_dims == 2 ? shape[0] * shape[1] : shape[0];
    const uint32_t size = (uint32_t) count;

    if (tensor == NULL) {
        return -1;
    }
    if (count > UINT32_MAX) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: more than %u numbers", name, UINT32_MAX);
    }
    vector->size = size;
    vector->values = moe_model_allocate(model, size, sizeof(float), error);
    if (vector->values == NULL) {
        return -1;
    }
    moe_widen(tensor->dtype, tensor->data, size, vector->values);
    for (uint32_t i = 0; i < size; i++) {
        if (!isfinite(vector->values[i])) {
            return moe_fail(error, MOE_BAD_MODEL, "%s: element %u is not a finite number", name, i);
        }
    }
    model->parameters += size;
    return 0;
}


int moe_model_take_vector(moe_model_t *model, moe_error_t *error, moe_vector_t *vector,
                          uint32_t size, const char *format, ...)
{
    const uint64_t shape[2] = { 1, size };
    const moe_tensor_t *tensor;
    char name[256];
    va_list args;
    int is_row;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    tensor = moe_tensors_find(model->tensors, name);
    is_row = tensor != NULL && tensor->n_dims == 2;
    return take_values(model, error, vector, is_row ? 2 : 1, is_row ? shape : shape + 1, name);
}


int moe_model_take_table(moe_model_t *model, moe_error_t *error, moe_vector_t *table,
                         uint32_t rows, uint32_t columns, const char *name)
{
    const uint64_t shape[2] = { rows, columns };

    return take_values(model, error, table, 2, shape, name);
}


int moe_model_take_bias(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                        const char *format, ...)
{
    moe_vector_t bias;
    char name[256];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    if (moe_model_take_vector(model, error, &bias, weight->rows, "%s", name) != 0) {
        return -1;
    }
    weight->bias = bias.values;
    return 0;
}


/* What a path holds, of either kind. */
typedef struct {
    moe_config_t config;
    json_t *object, *names, *metadata;  /* owned; metadata NULL: a directory */
    moe_config_t outer;                 /* what `config` is a part of; object NULL: it is all */
    moe_tensors_t *tensors;             /* owned until a model takes it */
    const moe_family_t *family;
    char where[NAME_MAX + sizeof("/config.json")];
} source_t;


static void close_source(source_t *source)
{
    json_decref(source->object);
    json_decref(source->names);
    json_decref(source->metadata);
    moe_tensors_close(source->tensors);
}


static int open_gguf(source_t *source, const char *file, moe_error_t *error)
{
    source->tensors = moe_tensors_open_gguf(file, &source->metadata, error);
    if (source->tensors == NULL
        || moe_gguf_config(&source->config, source->metadata, moe_tensors_source(source->tensors),
                           source->tensors, error) != 0)
    {
        return -1;
    }
    source->object = (json_t *) (uintptr_t) source->config.object;
    source->names = (json_t *) (uintptr_t) source->config.names;
    return 0;
}


/* "MODEL/config.json", the last name of the path: messages say whose it is. */
static void name_config(source_t *source, const char *directory)
{
    size_t end = strlen(directory), begin;

    while (end > 1 && directory[end - 1] == '/') {
        end--;
    }
    begin = end;
    while (begin > 0 && directory[begin - 1] != '/') {
        begin--;
    }
    snprintf(source->where, sizeof(source->where), "%.*s/config.json", (int) (end - begin),
             directory + begin);
}


static int open_directory(source_t *source, const char *directory, moe_error_t *error)
{
    name_config(source, directory);
    source->object = moe_json_load(directory, "config.json", 0, error);
    source->config = (moe_config_t) {
        .object = source->object, .where = source->where, .error = error
    };
    source->outer = source->config;
    switch (source->object != NULL ? moe_family_enter_text(&source->config) : -1) {
    case 0:
        source->outer.object = NULL;
        return 0;
    case 1:
        return 0;
    default:
        return -1;
    }
}


/* A directory's config is judged before its weights are opened. */
static int open_source(source_t *source, moe_model_t *model, const char *path, moe_error_t *error)
{
    char file[PATH_MAX];
    int kind = moe_model_path(path, file, sizeof(file), error);

    if (kind == -1
        || (kind == MOE_PATH_GGUF ? open_gguf(source, file, error)
                                  : open_directory(source, path, error)) != 0)
    {
        return -1;
    }
    source->family = moe_family_find(&source->config);
    if (source->family == NULL
        || source->family->describe(source->family, model, &source->config, error) != 0)
    {
        return -1;
    }
    if (source->tensors == NULL) {
        source->tensors = moe_tensors_open(path, error);
    }
    if (source->tensors != NULL && source->outer.object != NULL) {
        moe_tensors_enter_text(source->tensors);
    }
    return source->tensors != NULL ? 0 : -1;
}


static int build_model(moe_model_t *model, source_t *source, const char *path, moe_error_t *error)
{
    const moe_family_t *family = source->family;

    snprintf(model->family, sizeof(model->family), "%s", family->model_type);
    model->tensors = source->tensors;
    source->tensors = NULL;
    if (moe_model_take_all(model, family, error) != 0
        || moe_tensors_check_left_over(model->tensors, error) != 0)
    {
        return -1;
    }
    return source->metadata != NULL
           ? moe_model_read_gguf_generation(model, source->metadata, source->config.where, error)
           : moe_model_read_generation(model, path, &source->config, &source->outer, error);
}


moe_model_t *moe_model_open(const char *path, moe_error_t *error)
{
    source_t source = { 0 };
    moe_model_t *model = calloc(1, sizeof(*model));

    if (model == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
    } else if (open_source(&source, model, path, error) != 0
               || build_model(model, &source, path, error) != 0)
    {
        moe_model_close(model);
        model = NULL;
    }
    close_source(&source);
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
