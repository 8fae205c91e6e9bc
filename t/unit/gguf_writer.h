/*
 * Writes GGUF files, for tests: value by value, or a whole model out of a directory in Hugging Face
 * format, as llama.cpp's converter does it.
 *
 *     gguf_writer_t *w = gguf_new();
 *     gguf_string(w, "general.architecture", "deepseek2");
 *     gguf_tensor(w, "output_norm.weight", GGUF_F32, 1, (uint64_t[]) {64}, data, size);
 *     gguf_write(w, "/tmp/model.gguf");
 *     gguf_free(w);
 *
 * Dimensions are given innermost first, as the file has them.  Any failure of the file system
 * aborts the test.
 */

#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/tensor.h"
#include "engine/core/half.h"

enum {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING,
    GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_DOUBLE
};

enum {
    GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q4_0 = 2, GGUF_Q5_0 = 6, GGUF_Q8_0 = 8, GGUF_Q4_K = 12,
    GGUF_Q5_K = 13, GGUF_Q6_K = 14, GGUF_BF16 = 30, GGUF_MXFP4 = 39
};

/* The block formats: where their f16 scales stand (-1: none), and a scale that makes random blocks
 * numbers of the size of weights. */
static const struct {
    uint32_t type;
    moe_dtype_t dtype;
    int scales[2];
    float scale;
} gguf_formats[] = {
    { GGUF_Q8_0, MOE_Q8_0, { 0, -1 }, 0x1p-10f }, { GGUF_Q4_0, MOE_Q4_0, { 0, -1 }, 0x1p-6f },
    { GGUF_Q5_0, MOE_Q5_0, { 0, -1 }, 0x1p-7f }, { GGUF_Q4_K, MOE_Q4_K, { 0, 2 }, 0x1p-12f },
    { GGUF_Q5_K, MOE_Q5_K, { 0, 2 }, 0x1p-13f }, { GGUF_Q6_K, MOE_Q6_K, { 208, -1 }, 0x1p-14f },
    { GGUF_MXFP4, MOE_MXFP4, { -1, -1 }, 0 },
};

#define GGUF_N_FORMATS (sizeof(gguf_formats) / sizeof(gguf_formats[0]))

typedef struct {
    unsigned char *data;
    size_t size;
} gguf_bytes_t;

typedef struct {
    gguf_bytes_t keys, infos, data;
    uint64_t n_keys, n_tensors;
} gguf_writer_t;


static inline void gguf_check(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        abort();
    }
}


static inline void gguf_put(gguf_bytes_t *bytes, const void *data, size_t size)
{
    bytes->data = realloc(bytes->data, bytes->size + size + 1);
    gguf_check(bytes->data != NULL, "realloc");
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}


static inline void gguf_number(gguf_bytes_t *bytes, uint64_t number, size_t size)
{
    gguf_put(bytes, &number, size);     /* little-endian, as every machine that runs this */
}


static inline void gguf_text(gguf_bytes_t *bytes, const char *text, size_t size)
{
    gguf_number(bytes, size, 8);
    gguf_put(bytes, text, size);
}


static inline void gguf_pad(gguf_bytes_t *bytes, size_t alignment)
{
    while (bytes->size % alignment != 0) {
        gguf_put(bytes, "", 1);
    }
}


static inline gguf_writer_t *gguf_new(void)
{
    gguf_writer_t *w = calloc(1, sizeof(*w));

    gguf_check(w != NULL, "calloc");
    return w;
}


static inline void gguf_free(gguf_writer_t *w)
{
    free(w->keys.data);
    free(w->infos.data);
    free(w->data.data);
    free(w);
}


/* A key and the type of its value, which the caller puts behind it. */
static inline gguf_bytes_t *gguf_key(gguf_writer_t *w, const char *key, uint32_t type)
{
    gguf_text(&w->keys, key, strlen(key));
    gguf_number(&w->keys, type, 4);
    w->n_keys++;
    return &w->keys;
}


static inline void gguf_uint(gguf_writer_t *w, const char *key, uint32_t value)
{
    gguf_number(gguf_key(w, key, GGUF_U32), value, 4);
}


static inline void gguf_float(gguf_writer_t *w, const char *key, float value)
{
    gguf_put(gguf_key(w, key, GGUF_FLOAT), &value, 4);
}


static inline void gguf_bool(gguf_writer_t *w, const char *key, int value)
{
    gguf_number(gguf_key(w, key, GGUF_BOOL), value != 0, 1);
}


static inline void gguf_string(gguf_writer_t *w, const char *key, const char *value)
{
    gguf_text(gguf_key(w, key, GGUF_STRING), value, strlen(value));
}


static inline gguf_bytes_t *gguf_array(gguf_writer_t *w, const char *key, uint32_t type,
                                       uint64_t count)
{
    gguf_bytes_t *bytes = gguf_key(w, key, GGUF_ARRAY);

    gguf_number(bytes, type, 4);
    gguf_number(bytes, count, 8);
    return bytes;
}


static inline void gguf_tensor(gguf_writer_t *w, const char *name, uint32_t type, uint32_t n_dims,
                               const uint64_t *dims, const void *data, size_t size)
{
    gguf_pad(&w->data, 32);
    gguf_text(&w->infos, name, strlen(name));
    gguf_number(&w->infos, n_dims, 4);
    gguf_put(&w->infos, dims, n_dims * sizeof(*dims));
    gguf_number(&w->infos, type, 4);
    gguf_number(&w->infos, w->data.size, 8);
    gguf_put(&w->data, data, size);
    w->n_tensors++;
}


/* The whole file; owned by the caller. */
static inline gguf_bytes_t gguf_file(const gguf_writer_t *w)
{
    gguf_bytes_t file = { 0 };

    gguf_put(&file, "GGUF", 4);
    gguf_number(&file, 3, 4);
    gguf_number(&file, w->n_tensors, 8);
    gguf_number(&file, w->n_keys, 8);
    gguf_put(&file, w->keys.data ? (void *) w->keys.data : "", w->keys.size);
    gguf_put(&file, w->infos.data ? (void *) w->infos.data : "", w->infos.size);
    gguf_pad(&file, 32);
    gguf_put(&file, w->data.data ? (void *) w->data.data : "", w->data.size);
    gguf_pad(&file, 32);
    return file;
}


static inline void gguf_save(const void *data, size_t size, const char *path)
{
    FILE *file = fopen(path, "wb");

    gguf_check(file != NULL && fwrite(data, 1, size, file) == size && fclose(file) == 0, path);
}


static inline void gguf_write(const gguf_writer_t *w, const char *path)
{
    gguf_bytes_t file = gguf_file(w);

    gguf_save(file.data, file.size, path);
    free(file.data);
}


/* Blocks of a format that mean any numbers; `state` draws them. */
static inline gguf_bytes_t gguf_random_blocks(size_t format, size_t count, uint64_t *state)
{
    const size_t block = moe_dtype_block(gguf_formats[format].dtype);
    const size_t bytes = moe_dtype_bytes(gguf_formats[format].dtype, block);
    const uint16_t scale = f16_from_f32(gguf_formats[format].scale);
    gguf_bytes_t out = { malloc(count / block * bytes + 1), count / block * bytes };

    gguf_check(out.data != NULL, "malloc");
    for (size_t i = 0; i < out.size; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        out.data[i] = (unsigned char) (*state >> 56);
    }
    for (size_t at = 0; at < out.size; at += bytes) {
        for (int i = 0; i < 2; i++) {
            if (gguf_formats[format].scales[i] >= 0) {
                memcpy(out.data + at + gguf_formats[format].scales[i], &scale, 2);
            }
        }
        if (gguf_formats[format].type == GGUF_MXFP4) {
            out.data[at] = (unsigned char) (120 + out.data[at] % 4);
        }
    }
    return out;
}


static inline moe_dtype_t gguf_dtype(uint32_t type)
{
    size_t i = 0;

    if (type == GGUF_F32 || type == GGUF_F16 || type == GGUF_BF16) {
        return type == GGUF_F32 ? MOE_F32 : type == GGUF_F16 ? MOE_F16 : MOE_BF16;
    }
    while (gguf_formats[i].type != type) {
        i++;
    }
    return gguf_formats[i].dtype;
}


/* Numbers as a tensor's data of `type`. */
static inline gguf_bytes_t gguf_encode(uint32_t type, const float *values, size_t count)
{
    const moe_dtype_t dtype = gguf_dtype(type);
    const size_t size = moe_dtype_bytes(dtype, count);
    gguf_bytes_t bytes = { malloc(size + 1), size };

    gguf_check(bytes.data != NULL, "malloc");
    moe_narrow(dtype, values, count, bytes.data);
    return bytes;
}

#endif
