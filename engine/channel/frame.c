/*
 * Frame headers and the primitive readers and writers.  Values go through memcpy: payloads are
 * unaligned.  Both ends live on one host, so the host's byte order is used; a build for a
 * big-endian machine would still agree with itself.
 */

#include "engine/channel/frame.h"

#include <string.h>


int moe_frame_parse(const void *data, size_t size, moe_frame_header_t *header, moe_error_t *error)
{
    const uint8_t *bytes = data;

    if (size < MOE_FRAME_HEADER) {
        return 0;
    }
    memcpy(&header->size, bytes, 4);
    memcpy(&header->type, bytes + 4, 2);
    memcpy(&header->version, bytes + 6, 2);
    memcpy(&header->id, bytes + 8, 8);
    if (header->version != MOE_CHANNEL_VERSION) {
        return moe_fail(error, MOE_INVALID, "channel: version %u, expected %u", header->version,
                        MOE_CHANNEL_VERSION);
    }
    if (header->size > MOE_FRAME_LIMIT) {
        return moe_fail(error, MOE_INVALID, "channel: frame of %u bytes", header->size);
    }
    return size - MOE_FRAME_HEADER >= header->size;
}


int moe_frame_begin(moe_buffer_t *out, moe_frame_type_t type, uint64_t id, size_t *start,
                    moe_error_t *error)
{
    uint8_t bytes[MOE_FRAME_HEADER] = {0};
    uint16_t type16 = (uint16_t) type, version = MOE_CHANNEL_VERSION;

    memcpy(bytes + 4, &type16, 2);
    memcpy(bytes + 6, &version, 2);
    memcpy(bytes + 8, &id, 8);
    *start = out->size;
    return moe_buffer_append(out, bytes, sizeof(bytes), error);
}


void moe_frame_end(moe_buffer_t *out, size_t start)
{
    uint32_t size = (uint32_t) (out->size - start - MOE_FRAME_HEADER);

    memcpy(out->data + start, &size, 4);
}


int moe_frame_empty(moe_buffer_t *out, moe_frame_type_t type, uint64_t id, moe_error_t *error)
{
    size_t start;

    return moe_frame_begin(out, type, id, &start, error);
}


static void read_raw(moe_reader_t *reader, void *value, size_t size)
{
    if (reader->failed || (size_t) (reader->end - reader->next) < size) {
        reader->failed = 1;
        memset(value, 0, size);
        return;
    }
    memcpy(value, reader->next, size);
    reader->next += size;
}


uint8_t moe_read_u8(moe_reader_t *reader)
{
    uint8_t value;

    read_raw(reader, &value, sizeof(value));
    return value;
}


uint32_t moe_read_u32(moe_reader_t *reader)
{
    uint32_t value;

    read_raw(reader, &value, sizeof(value));
    return value;
}


uint64_t moe_read_u64(moe_reader_t *reader)
{
    uint64_t value;

    read_raw(reader, &value, sizeof(value));
    return value;
}


float moe_read_f32(moe_reader_t *reader)
{
    float value;

    read_raw(reader, &value, sizeof(value));
    return value;
}


const char *moe_read_bytes(moe_reader_t *reader, uint32_t *size)
{
    const char *data;

    *size = moe_read_count(reader, 1);
    data = (const char *) reader->next;
    reader->next += *size;
    return data;
}


uint32_t moe_read_count(moe_reader_t *reader, size_t element)
{
    uint32_t count = moe_read_u32(reader);

    if ((size_t) (reader->end - reader->next) / element < count) {
        reader->failed = 1;
        return 0;
    }
    return count;
}


int moe_write_u8(moe_buffer_t *out, uint8_t value, moe_error_t *error)
{
    return moe_buffer_append(out, &value, sizeof(value), error);
}


int moe_write_u32(moe_buffer_t *out, uint32_t value, moe_error_t *error)
{
    return moe_buffer_append(out, &value, sizeof(value), error);
}


int moe_write_u64(moe_buffer_t *out, uint64_t value, moe_error_t *error)
{
    return moe_buffer_append(out, &value, sizeof(value), error);
}


int moe_write_f32(moe_buffer_t *out, float value, moe_error_t *error)
{
    return moe_buffer_append(out, &value, sizeof(value), error);
}


int moe_write_bytes(moe_buffer_t *out, const char *data, uint32_t size, moe_error_t *error)
{
    if (moe_write_u32(out, size, error) != 0) {
        return -1;
    }
    return moe_buffer_append(out, data, size, error);
}
