#include "engine/core/buffer.h"

#include <stdlib.h>
#include <string.h>


int moe_buffer_reserve(moe_buffer_t *buffer, size_t extra, moe_error_t *error)
{
    size_t needed, capacity;
    char *data;

    if (extra > (size_t) -1 - buffer->size
        || (buffer->limit && buffer->size + extra > buffer->limit))
    {
        return moe_fail(error, MOE_LIMIT, "output exceeds %zu bytes", buffer->limit);
    }
    needed = buffer->size + extra;
    if (needed <= buffer->capacity) {
        return 0;
    }
    capacity = buffer->capacity ? buffer->capacity : 256;
    while (capacity < needed) {
        capacity = capacity > (size_t) -1 / 2 ? needed : capacity * 2;
    }
    data = realloc(buffer->data, capacity);
    if (data == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu bytes", capacity);
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return 0;
}


int moe_buffer_append(moe_buffer_t *buffer, const void *data, size_t size, moe_error_t *error)
{
    if (moe_buffer_reserve(buffer, size, error) != 0) {
        return -1;
    }
    if (size > 0) {
        memcpy(buffer->data + buffer->size, data, size);
        buffer->size += size;
    }
    return 0;
}


void moe_buffer_consume(moe_buffer_t *buffer, size_t size)
{
    buffer->size -= size;
    if (buffer->size > 0) {
        memmove(buffer->data, buffer->data + size, buffer->size);
    }
}


void moe_buffer_free(moe_buffer_t *buffer)
{
    free(buffer->data);
    buffer->data = NULL;
    buffer->size = 0;
    buffer->capacity = 0;
}
