/* Each tensor is checked alone (type, shape, byte count, offsets within the data), then all
 * together (tensor_list.h). */

#include "engine/model/safetensors.h"

#include <jansson.h>
#include <string.h>

typedef struct {
    const char *name;
    moe_dtype_t dtype;          /* 0: sizes are known, values cannot be computed with */
    unsigned bits;              /* of an element */
} type_info_t;

static const type_info_t types[] = {
    { "F32", MOE_F32, 32 },
    { "F16", MOE_F16, 16 },
    { "BF16", MOE_BF16, 16 },
    { "F64", 0, 64 }, { "C64", 0, 64 }, { "I64", 0, 64 }, { "U64", 0, 64 },
    { "I32", 0, 32 }, { "U32", 0, 32 }, { "I16", 0, 16 }, { "U16", 0, 16 },
    { "I8", 0, 8 }, { "U8", 0, 8 }, { "BOOL", 0, 8 },
    { "F8_E4M3", 0, 8 }, { "F8_E5M2", 0, 8 }, { "F8_E8M0", 0, 8 },
    { "F8_E4M3FNUZ", 0, 8 }, { "F8_E5M2FNUZ", 0, 8 },
    { "F6_E2M3", 0, 6 }, { "F6_E3M2", 0, 6 }, { "F4", 0, 4 },
};


static const type_info_t *find_type(const char *name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, name) == 0) {
            return &types[i];
        }
    }
    return NULL;
}


static int read_shape(moe_tensor_t *tensor, const json_t *shape, uint64_t *count,
                      moe_error_t *error)
{
    const json_t *value;
    size_t i;

    if (!json_is_array(shape)) {
        return moe_fail(error, MOE_BAD_MODEL, "shape: missing or not an array");
    }
    if (json_array_size(shape) > MOE_TENSOR_DIMS) {
        return moe_fail(error, MOE_BAD_MODEL, "shape: more than %d dimensions", MOE_TENSOR_DIMS);
    }
    *count = 1;
    json_array_foreach(shape, i, value) {
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            return moe_fail(error, MOE_BAD_MODEL, "shape: dimension %zu is not a size", i);
        }
        tensor->shape[i] = (uint64_t) json_integer_value(value);
        if (__builtin_mul_overflow(*count, tensor->shape[i], count)) {
            return moe_fail(error, MOE_BAD_MODEL, "shape: the number of elements overflows");
        }
    }
    tensor->n_dims = (unsigned) json_array_size(shape);
    return 0;
}


static int read_offsets(const json_t *offsets, uint64_t data_size, uint64_t *begin, uint64_t *end,
                        moe_error_t *error)
{
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last)
        || json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
    {
        return moe_fail(error, MOE_BAD_MODEL, "data_offsets: missing or not [begin, end]");
    }
    *begin = (uint64_t) json_integer_value(first);
    *end = (uint64_t) json_integer_value(last);
    if (*end > data_size) {
        return moe_fail(error, MOE_BAD_MODEL, "data_offsets: end %llu lies beyond the file's %llu "
                        "bytes of data: truncated file?", (unsigned long long) *end,
                        (unsigned long long) data_size);
    }
    return 0;
}


/* Bytes of `count` elements; whole bytes for the types smaller than one. */
static int check_size(const type_info_t *type, uint64_t count, uint64_t size, moe_error_t *error)
{
    uint64_t bits;

    if (__builtin_mul_overflow(count, (uint64_t) type->bits, &bits)) {
        return moe_fail(error, MOE_BAD_MODEL, "shape: the number of bytes overflows");
    }
    if (bits % 8 != 0 || bits / 8 != size) {
        return moe_fail(error, MOE_BAD_MODEL, "data_offsets: %llu bytes, its shape needs %llu",
                        (unsigned long long) size, (unsigned long long) (bits / 8 + !!(bits % 8)));
    }
    return 0;
}


static int read_tensor(moe_tensor_t *tensor, const json_t *info, const moe_mapping_t *mapping,
                       size_t data_start, moe_error_t *error)
{
    const char *dtype = json_string_value(json_object_get(info, "dtype"));
    uint64_t count = 0, begin = 0, end = 0;
    const type_info_t *type;

    if (dtype == NULL) {
        return moe_fail(error, MOE_BAD_MODEL, "dtype: missing or not a string");
    }
    if (read_shape(tensor, json_object_get(info, "shape"), &count, error) != 0
        || read_offsets(json_object_get(info, "data_offsets"), mapping->size - data_start, &begin,
                        &end, error) != 0)
    {
        return -1;
    }
    type = find_type(dtype);
    if (type != NULL && check_size(type, count, end - begin, error) != 0) {
        return -1;
    }
    tensor->type = dtype;
    tensor->dtype = type != NULL ? type->dtype : 0;
    tensor->data = mapping->data + data_start + begin;
    tensor->size = (size_t) (end - begin);
    return 0;
}


static json_t *parse_header(const moe_mapping_t *mapping, size_t *data_start, moe_error_t *error)
{
    json_error_t where;
    uint64_t size = 0;
    json_t *header;

    if (mapping->size < 8) {
        moe_fail(error, MOE_BAD_MODEL, "too short for a safetensors file");
        return NULL;
    }
    for (int i = 7; i >= 0; i--) {
        size = size << 8 | mapping->data[i];
    }
    if (size < 2 || size > MOE_SAFETENSORS_HEADER_LIMIT || size > mapping->size - 8) {
        moe_fail(error, MOE_BAD_MODEL, "header length %llu: not a safetensors file, or truncated",
                 (unsigned long long) size);
        return NULL;
    }
    header = json_loadb((const char *) mapping->data + 8, (size_t) size, JSON_REJECT_DUPLICATES,
                        &where);
    if (header == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "header: %s", where.text);
        return NULL;
    }
    if (!json_is_object(header)) {
        moe_fail(error, MOE_BAD_MODEL, "header: not a JSON object");
        json_decref(header);
        return NULL;
    }
    *data_start = 8 + (size_t) size;
    return header;
}


static int read_header(moe_tensor_list_t *list, const json_t *header, const moe_mapping_t *mapping,
                       size_t data_start, uint32_t file, moe_error_t *error)
{
    size_t first = list->count;
    const char *name;
    json_t *info;

    json_object_foreach((json_t *) (uintptr_t) header, name, info) {
        moe_tensor_t tensor = { 0 };

        if (!json_is_object(info)) {
            return moe_fail(error, MOE_BAD_MODEL, "%s: not an object", name);
        }
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        if (read_tensor(&tensor, info, mapping, data_start, error) != 0) {
            return moe_fail_in(error, "%s", name);
        }
        if (moe_tensor_list_append(list, &tensor, name, strlen(name), file, error) != 0) {
            return -1;
        }
    }
    return moe_tensor_list_check(list, first, mapping, data_start, 1, "data_offsets", error);
}


int moe_safetensors_read(moe_tensor_list_t *list, const moe_mapping_t *mapping, const char *name,
                         uint32_t file, moe_error_t *error)
{
    size_t data_start;
    json_t *header;
    int result;

    header = parse_header(mapping, &data_start, error);
    if (header == NULL) {
        return moe_fail_in(error, "%s", name);
    }
    result = read_header(list, header, mapping, data_start, file, error);
    json_decref(header);
    return result == 0 ? 0 : moe_fail_in(error, "%s", name);
}
