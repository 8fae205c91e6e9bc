#include "engine/model/gguf_write.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/buffer.h"

#define ALIGNMENT 32u

enum {
    TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8, TYPE_ARRAY = 9
};

struct moe_gguf_writer_s {
    moe_buffer_t keys, tensors;
    uint64_t n_keys, n_tensors;
    uint64_t offset;                    /* of the next tensor's data */
    uint64_t written;                   /* bytes of data */
    FILE *out;
    char path[PATH_MAX], temporary[PATH_MAX];
    int failed;
    moe_error_t *error;
};


moe_gguf_writer_t *moe_gguf_writer_create(moe_error_t *error)
{
    moe_gguf_writer_t *writer = calloc(1, sizeof(*writer));

    if (writer == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    writer->error = error;
    return writer;
}


static void put(moe_gguf_writer_t *writer, moe_buffer_t *buffer, const void *data, size_t size)
{
    if (!writer->failed && moe_buffer_append(buffer, data, size, writer->error) != 0) {
        writer->failed = 1;
    }
}


/* Little-endian, as every processor that this is built for. */
static void put_number(moe_gguf_writer_t *writer, moe_buffer_t *buffer, uint64_t number,
                       size_t size)
{
    put(writer, buffer, &number, size);
}


static void put_text(moe_gguf_writer_t *writer, moe_buffer_t *buffer, const char *text, size_t size)
{
    put_number(writer, buffer, size, 8);
    put(writer, buffer, text, size);
}


static void put_key(moe_gguf_writer_t *writer, const char *key, uint32_t type)
{
    put_text(writer, &writer->keys, key, strlen(key));
    put_number(writer, &writer->keys, type, 4);
    writer->n_keys++;
}


static void put_array(moe_gguf_writer_t *writer, const char *key, uint32_t type, size_t count)
{
    put_key(writer, key, TYPE_ARRAY);
    put_number(writer, &writer->keys, type, 4);
    put_number(writer, &writer->keys, count, 8);
}


void moe_gguf_write_uint(moe_gguf_writer_t *writer, const char *key, uint32_t value)
{
    put_key(writer, key, TYPE_U32);
    put_number(writer, &writer->keys, value, 4);
}


void moe_gguf_write_float(moe_gguf_writer_t *writer, const char *key, float value)
{
    put_key(writer, key, TYPE_F32);
    put(writer, &writer->keys, &value, 4);
}


void moe_gguf_write_bool(moe_gguf_writer_t *writer, const char *key, int value)
{
    put_key(writer, key, TYPE_BOOL);
    put_number(writer, &writer->keys, value != 0, 1);
}


void moe_gguf_write_string(moe_gguf_writer_t *writer, const char *key, const char *value)
{
    put_key(writer, key, TYPE_STRING);
    moe_gguf_write_text(writer, value, strlen(value));
}


void moe_gguf_write_ints(moe_gguf_writer_t *writer, const char *key, const int32_t *values,
                         size_t count)
{
    put_array(writer, key, TYPE_I32, count);
    put(writer, &writer->keys, values, count * sizeof(*values));
}


void moe_gguf_write_strings(moe_gguf_writer_t *writer, const char *key, size_t count)
{
    put_array(writer, key, TYPE_STRING, count);
}


void moe_gguf_write_text(moe_gguf_writer_t *writer, const char *text, size_t size)
{
    put_text(writer, &writer->keys, text, size);
}


/* ggml's numbers of the types. */
static uint32_t type_number(moe_dtype_t dtype)
{
    static const uint32_t numbers[] = {
        [MOE_F32] = 0, [MOE_F16] = 1, [MOE_BF16] = 30, [MOE_Q4_0] = 2, [MOE_Q5_0] = 6,
        [MOE_Q8_0] = 8, [MOE_Q4_K] = 12, [MOE_Q5_K] = 13, [MOE_Q6_K] = 14, [MOE_MXFP4] = 39,
    };

    return numbers[dtype];
}


void moe_gguf_write_tensor(moe_gguf_writer_t *writer, const char *name, moe_dtype_t dtype,
                           unsigned n_dims, const uint64_t *shape)
{
    uint64_t size = 1;

    put_text(writer, &writer->tensors, name, strlen(name));
    put_number(writer, &writer->tensors, n_dims, 4);
    for (unsigned i = n_dims; i-- > 0;) {
        put_number(writer, &writer->tensors, shape[i], 8);
        size *= shape[i];
    }
    put_number(writer, &writer->tensors, type_number(dtype), 4);
    put_number(writer, &writer->tensors, writer->offset, 8);
    writer->n_tensors++;
    writer->offset += (moe_dtype_bytes(dtype, size) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}


static void fail_file(moe_gguf_writer_t *writer)
{
    writer->failed = 1;
    moe_fail(writer->error, MOE_SYSTEM, "%s: %s", writer->temporary, strerror(errno));
}


static void write_out(moe_gguf_writer_t *writer, const void *data, size_t size)
{
    if (!writer->failed && size > 0 && fwrite(data, 1, size, writer->out) != size) {
        fail_file(writer);
    }
}


/* The file takes the place of an older one, but not of a device such as /dev/null. */
static void open_file(moe_gguf_writer_t *writer, const char *path)
{
    struct stat st;

    if (snprintf(writer->path, sizeof(writer->path), "%s", path) >= (int) sizeof(writer->path)
        || snprintf(writer->temporary, sizeof(writer->temporary), "%s.part", path)
           >= (int) sizeof(writer->temporary))
    {
        writer->failed = 1;
        moe_fail(writer->error, MOE_INVALID, "%s: path too long", path);
        return;
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        writer->failed = 1;
        moe_fail(writer->error, MOE_INVALID, "%s: is no regular file", path);
        return;
    }
    writer->out = fopen(writer->temporary, "wbe");
    if (writer->out == NULL) {
        fail_file(writer);
    }
}


void moe_gguf_writer_begin(moe_gguf_writer_t *writer, const char *path)
{
    moe_buffer_t head = { 0 };
    static const char zeros[ALIGNMENT];
    size_t size;

    if (!writer->failed) {
        open_file(writer, path);
    }
    if (writer->failed) {
        return;
    }
    put(writer, &head, "GGUF", 4);
    put_number(writer, &head, 3, 4);
    put_number(writer, &head, writer->n_tensors, 8);
    put_number(writer, &head, writer->n_keys, 8);
    size = head.size + writer->keys.size + writer->tensors.size;
    write_out(writer, head.data, head.size);
    write_out(writer, writer->keys.data, writer->keys.size);
    write_out(writer, writer->tensors.data, writer->tensors.size);
    write_out(writer, zeros, (ALIGNMENT - size % ALIGNMENT) % ALIGNMENT);
    moe_buffer_free(&head);
}


void moe_gguf_write_data(moe_gguf_writer_t *writer, const void *data, size_t size)
{
    write_out(writer, data, size);
    writer->written += size;
}


void moe_gguf_write_pad(moe_gguf_writer_t *writer)
{
    static const char zeros[ALIGNMENT];

    moe_gguf_write_data(writer, zeros, (size_t) (-writer->written % ALIGNMENT));
}


int moe_gguf_writer_close(moe_gguf_writer_t *writer)
{
    int failed;

    if (writer->out != NULL) {
        if (fclose(writer->out) != 0 && !writer->failed) {
            fail_file(writer);
        }
        if (!writer->failed && rename(writer->temporary, writer->path) != 0) {
            fail_file(writer);
        }
        if (writer->failed) {
            unlink(writer->temporary);
        }
    }
    failed = writer->failed;
    moe_buffer_free(&writer->keys);
    moe_buffer_free(&writer->tensors);
    free(writer);
    return failed ? -1 : 0;
}
