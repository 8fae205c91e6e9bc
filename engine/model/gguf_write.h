/*
 * Writes a GGUF file (version 3): first all keys and the list of tensors, then the tensors' data,
 * in that order.  A failure is kept: later calls do nothing, moe_gguf_writer_close reports it.
 */

#ifndef MOE_GGUF_WRITE_H
#define MOE_GGUF_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/error.h"
#include "engine/model/format.h"

typedef struct moe_gguf_writer_s moe_gguf_writer_t;

/* NULL with MOE_LIMIT.  `error` is kept for what fails later. */
moe_gguf_writer_t *moe_gguf_writer_create(moe_error_t *error);

void moe_gguf_write_uint(moe_gguf_writer_t *writer, const char *key, uint32_t value);
void moe_gguf_write_float(moe_gguf_writer_t *writer, const char *key, float value);
void moe_gguf_write_bool(moe_gguf_writer_t *writer, const char *key, int value);
void moe_gguf_write_string(moe_gguf_writer_t *writer, const char *key, const char *value);
void moe_gguf_write_ints(moe_gguf_writer_t *writer, const char *key, const int32_t *values,
                         size_t count);

/* An array of strings: its head, then `count` of them. */
void moe_gguf_write_strings(moe_gguf_writer_t *writer, const char *key, size_t count);
void moe_gguf_write_text(moe_gguf_writer_t *writer, const char *text, size_t size);

/* A tensor with its dimensions outermost first. */
void moe_gguf_write_tensor(moe_gguf_writer_t *writer, const char *name, moe_dtype_t dtype,
                           unsigned n_dims, const uint64_t *shape);

/* Ends keys and tensors: creates `path` (anew, beside it until it is complete). */
void moe_gguf_writer_begin(moe_gguf_writer_t *writer, const char *path);

/* The next bytes of the data; a tensor's data may come in pieces.  After its last one:
 * moe_gguf_write_pad. */
void moe_gguf_write_data(moe_gguf_writer_t *writer, const void *data, size_t size);
void moe_gguf_write_pad(moe_gguf_writer_t *writer);

/* Completes the file and frees the writer.  -1 with the error of what failed first, and no file. */
int moe_gguf_writer_close(moe_gguf_writer_t *writer);

#endif
