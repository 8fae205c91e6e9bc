/*
 * A cursor runs over the mapped file; each read checks what is left first, so that nothing behind
 * the cursor is ever believed.  Metadata becomes a JSON object, for which typed and bounded getters
 * exist (config.h); the elements of all arrays together are bounded, because a JSON value takes
 * more memory than the byte that may stand for it in the file.
 */

#include "engine/model/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/config.h"

#define KEYS_LIMIT (1u << 16)
#define NAME_LIMIT 255u                 /* bytes of a key or of a tensor's name */
#define ARRAY_DEPTH_LIMIT 4u
#define ELEMENTS_LIMIT (1u << 22)       /* of all arrays of a file */
#define DIMS_LIMIT 4u
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_LIMIT (1u << 16)

typedef enum {
    TYPE_U8, TYPE_I8, TYPE_U16, TYPE_I16, TYPE_U32, TYPE_I32, TYPE_F32, TYPE_BOOL, TYPE_STRING,
    TYPE_ARRAY, TYPE_U64, TYPE_I64, TYPE_F64, N_TYPES
} value_type_t;

static const unsigned char type_sizes[N_TYPES] = {
    [TYPE_U8] = 1, [TYPE_I8] = 1, [TYPE_U16] = 2, [TYPE_I16] = 2, [TYPE_U32] = 4, [TYPE_I32] = 4,
    [TYPE_F32] = 4, [TYPE_BOOL] = 1, [TYPE_U64] = 8, [TYPE_I64] = 8, [TYPE_F64] = 8,
};

typedef struct {
    const char *name;
    moe_dtype_t dtype;                  /* 0: the size is known, values cannot be computed with */
    uint32_t block, bytes;
} tensor_type_t;

/* By ggml's type number; the holes are types that were withdrawn. */
static const tensor_type_t tensor_types[] = {
    [0] = { "F32", MOE_F32, 1, 4 }, [1] = { "F16", MOE_F16, 1, 2 },
    [2] = { "Q4_0", MOE_Q4_0, 32, 18 }, [3] = { "Q4_1", 0, 32, 20 },
    [6] = { "Q5_0", MOE_Q5_0, 32, 22 }, [7] = { "Q5_1", 0, 32, 24 },
    [8] = { "Q8_0", MOE_Q8_0, 32, 34 }, [9] = { "Q8_1", 0, 32, 36 },
    [10] = { "Q2_K", 0, 256, 84 }, [11] = { "Q3_K", 0, 256, 110 },
    [12] = { "Q4_K", MOE_Q4_K, 256, 144 }, [13] = { "Q5_K", MOE_Q5_K, 256, 176 },
    [14] = { "Q6_K", MOE_Q6_K, 256, 210 }, [15] = { "Q8_K", 0, 256, 292 },
    [16] = { "IQ2_XXS", 0, 256, 66 }, [17] = { "IQ2_XS", 0, 256, 74 },
    [18] = { "IQ3_XXS", 0, 256, 98 }, [19] = { "IQ1_S", 0, 256, 50 },
    [20] = { "IQ4_NL", 0, 32, 18 }, [21] = { "IQ3_S", 0, 256, 110 },
    [22] = { "IQ2_S", 0, 256, 82 }, [23] = { "IQ4_XS", 0, 256, 136 },
    [24] = { "I8", 0, 1, 1 }, [25] = { "I16", 0, 1, 2 }, [26] = { "I32", 0, 1, 4 },
    [27] = { "I64", 0, 1, 8 }, [28] = { "F64", 0, 1, 8 }, [29] = { "IQ1_M", 0, 256, 56 },
    [30] = { "BF16", MOE_BF16, 1, 2 }, [34] = { "TQ1_0", 0, 256, 54 },
    [35] = { "TQ2_0", 0, 256, 66 }, [39] = { "MXFP4", MOE_MXFP4, 32, 17 },
    [40] = { "NVFP4", 0, 64, 36 },
};

typedef struct {
    const unsigned char *data;
    size_t size, at;
    uint32_t elements;                  /* of arrays, so far */
    moe_error_t *error;
} cursor_t;

typedef struct {
    uint64_t tensors, keys;
} header_t;


/* The next `size` bytes; NULL when the file ends before. */
static const unsigned char *take(cursor_t *cursor, uint64_t size)
{
    const unsigned char *bytes = cursor->data + cursor->at;

    if (size > cursor->size - cursor->at) {
        moe_fail(cursor->error, MOE_BAD_MODEL, "ends inside its header: truncated file?");
        return NULL;
    }
    cursor->at += (size_t) size;
    return bytes;
}


static uint64_t number_of(const unsigned char *bytes, unsigned size)
{
    uint64_t number = 0;

    while (size-- > 0) {
        number = number << 8 | bytes[size];
    }
    return number;
}


static int read_number(cursor_t *cursor, unsigned size, uint64_t *number)
{
    const unsigned char *bytes = take(cursor, size);

    if (bytes == NULL) {
        return -1;
    }
    *number = number_of(bytes, size);
    return 0;
}


/* Points into the file. */
static int read_string(cursor_t *cursor, const char **text, size_t *size)
{
    uint64_t length;
    const unsigned char *bytes;

    if (read_number(cursor, 8, &length) != 0 || (bytes = take(cursor, length)) == NULL) {
        return -1;
    }
    *text = (const char *) bytes;
    *size = (size_t) length;
    return 0;
}


/* A name as a C string of at most NAME_LIMIT bytes. */
static int read_name(cursor_t *cursor, const char *what, char name[NAME_LIMIT + 1])
{
    const char *text;
    size_t size;

    if (read_string(cursor, &text, &size) != 0) {
        return -1;
    }
    if (size == 0 || size > NAME_LIMIT || memchr(text, '\0', size) != NULL) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "%s of %zu bytes, or with a NUL inside", what,
                        size);
    }
    memcpy(name, text, size);
    name[size] = '\0';
    return 0;
}


/* The shortest decimal number that rounds to `value`. */
static double decimal_of(float value)
{
    char text[32];

    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double) value);
        if (strtof(text, NULL) == value) {
            break;
        }
    }
    return strtod(text, NULL);
}


static json_t *real(cursor_t *cursor, double value)
{
    if (!isfinite(value)) {
        moe_fail(cursor->error, MOE_BAD_MODEL, "not a finite number");
        return NULL;
    }
    return json_real(value);
}


/* A value of `size` bytes, neither string nor array. */
static json_t *scalar_of(cursor_t *cursor, value_type_t type, uint64_t bits)
{
    uint32_t low = (uint32_t) bits;
    double number;
    float single;

    switch (type) {
    case TYPE_BOOL:
        if (bits > 1) {
            moe_fail(cursor->error, MOE_BAD_MODEL, "a boolean is neither 0 nor 1");
            return NULL;
        }
        return json_boolean(bits);
    case TYPE_F32:
        memcpy(&single, &low, sizeof(single));
        return real(cursor, isfinite(single) ? decimal_of(single) : (double) single);
    case TYPE_F64:
        memcpy(&number, &bits, sizeof(number));
        return real(cursor, number);
    case TYPE_I8:
        return json_integer((int8_t) bits);
    case TYPE_I16:
        return json_integer((int16_t) bits);
    case TYPE_I32:
        return json_integer((int32_t) bits);
    case TYPE_I64:
        return json_integer((int64_t) bits);
    default:
        if (bits > INT64_MAX) {
            moe_fail(cursor->error, MOE_BAD_MODEL, "%" PRIu64 " is too large", bits);
            return NULL;
        }
        return json_integer((json_int_t) bits);
    }
}


static json_t *read_text(cursor_t *cursor)
{
    const char *text;
    size_t size;
    json_t *json;

    if (read_string(cursor, &text, &size) != 0) {
        return NULL;
    }
    json = json_stringn(text, size);
    if (json == NULL) {
        moe_fail(cursor->error, MOE_BAD_MODEL, "not valid UTF-8");
    }
    return json;
}


static json_t *read_value(cursor_t *cursor, uint64_t type, unsigned depth);


static json_t *read_array(cursor_t *cursor, unsigned depth)
{
    uint64_t type, count;
    json_t *array, *value;

    if (read_number(cursor, 4, &type) != 0 || read_number(cursor, 8, &count) != 0) {
        return NULL;
    }
    if (depth == ARRAY_DEPTH_LIMIT) {
        moe_fail(cursor->error, MOE_BAD_MODEL, "arrays nested deeper than %u", ARRAY_DEPTH_LIMIT);
        return NULL;
    }
    if (count > ELEMENTS_LIMIT - cursor->elements) {
        moe_fail(cursor->error, MOE_LIMIT, "array of %" PRIu64 ": more than %u elements in all",
                 count, ELEMENTS_LIMIT);
        return NULL;
    }
    cursor->elements += (uint32_t) count;
    array = json_array();
    for (uint64_t i = 0; array != NULL && i < count; i++) {
        value = read_value(cursor, type, depth + 1);
        if (value == NULL || json_array_append_new(array, value) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}


/* NULL: the error is set, or still MOE_OK where memory ran out. */
static json_t *read_value(cursor_t *cursor, uint64_t type, unsigned depth)
{
    uint64_t bits;

    if (type == TYPE_STRING) {
        return read_text(cursor);
    }
    if (type == TYPE_ARRAY) {
        return read_array(cursor, depth);
    }
    if (type >= N_TYPES) {
        moe_fail(cursor->error, MOE_BAD_MODEL, "unknown type %" PRIu64, type);
        return NULL;
    }
    return read_number(cursor, type_sizes[type], &bits) == 0
           ? scalar_of(cursor, (value_type_t) type, bits) : NULL;
}


static int read_key(cursor_t *cursor, json_t *metadata)
{
    char key[NAME_LIMIT + 1];
    uint64_t type;
    json_t *value;

    if (read_name(cursor, "metadata: a key", key) != 0 || read_number(cursor, 4, &type) != 0) {
        return -1;
    }
    if (json_object_get(metadata, key) != NULL) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "%s: given twice", key);
    }
    cursor->error->code = MOE_OK;
    value = read_value(cursor, type, 0);
    if (value == NULL) {
        if (cursor->error->code == MOE_OK) {
            moe_fail(cursor->error, MOE_LIMIT, "out of memory");
        }
        return moe_fail_in(cursor->error, "%s", key);
    }
    if (json_object_set_new(metadata, key, value) != 0) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "%s: the key is not valid UTF-8", key);
    }
    return 0;
}


static int read_header(cursor_t *cursor, header_t *header)
{
    const unsigned char *magic = take(cursor, 4);
    uint64_t version;

    if (magic == NULL || memcmp(magic, "GGUF", 4) != 0) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "not a GGUF file");
    }
    if (read_number(cursor, 4, &version) != 0) {
        return -1;
    }
    if (version != 2 && version != 3) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "GGUF version %" PRIu64 " is not supported%s",
                        version, version > UINT16_MAX ? ": a big-endian file?" : "");
    }
    if (read_number(cursor, 8, &header->tensors) != 0
        || read_number(cursor, 8, &header->keys) != 0)
    {
        return -1;
    }
    if (header->tensors > MOE_TENSORS_LIMIT || header->keys > KEYS_LIMIT) {
        return moe_fail(cursor->error, MOE_LIMIT, "%" PRIu64 " tensors, %" PRIu64 " metadata keys: "
                        "more than %u or %u", header->tensors, header->keys, MOE_TENSORS_LIMIT,
                        KEYS_LIMIT);
    }
    return 0;
}


static json_t *read_metadata(cursor_t *cursor, uint64_t count)
{
    json_t *metadata = json_object();

    if (metadata == NULL) {
        moe_fail(cursor->error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (read_key(cursor, metadata) != 0) {
            json_decref(metadata);
            return NULL;
        }
    }
    return metadata;
}


static int read_shape(cursor_t *cursor, moe_tensor_t *tensor, uint64_t *count)
{
    uint64_t n_dims, dim;

    if (read_number(cursor, 4, &n_dims) != 0) {
        return -1;
    }
    if (n_dims == 0 || n_dims > DIMS_LIMIT) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "%" PRIu64 " dimensions, not 1 to %u", n_dims,
                        DIMS_LIMIT);
    }
    tensor->n_dims = (unsigned) n_dims;
    *count = 1;
    for (unsigned i = 0; i < n_dims; i++) {
        if (read_number(cursor, 8, &dim) != 0) {
            return -1;
        }
        if (dim == 0 || __builtin_mul_overflow(*count, dim, count)) {
            return moe_fail(cursor->error, MOE_BAD_MODEL, "dimension %u is %" PRIu64, i, dim);
        }
        tensor->shape[n_dims - 1 - i] = dim;
    }
    return 0;
}


/* Type and size: rows are whole numbers of blocks. */
static int read_type(cursor_t *cursor, moe_tensor_t *tensor, uint64_t count)
{
    const tensor_type_t *type;
    uint64_t number, size;

    if (read_number(cursor, 4, &number) != 0) {
        return -1;
    }
    if (number >= sizeof(tensor_types) / sizeof(tensor_types[0])
        || tensor_types[number].name == NULL)
    {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "unknown type %" PRIu64, number);
    }
    type = &tensor_types[number];
    if (tensor->shape[tensor->n_dims - 1] % type->block != 0) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "rows of %" PRIu64 " elements, not a "
                        "multiple of the %u of a block of %s", tensor->shape[tensor->n_dims - 1],
                        type->block, type->name);
    }
    if (__builtin_mul_overflow(count / type->block, (uint64_t) type->bytes, &size)
        || size > cursor->size)
    {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "larger than the file: truncated file?");
    }
    tensor->type = type->name;
    tensor->dtype = type->dtype;
    tensor->size = (size_t) size;
    return 0;
}


/* Appends the tensor with its offset; where the data begin is known after the last one. */
static int read_tensor(cursor_t *cursor, moe_tensor_list_t *list, size_t alignment, uint32_t file)
{
    char name[NAME_LIMIT + 1];
    moe_tensor_t tensor = { 0 };
    uint64_t count = 0, offset;

    if (read_name(cursor, "a tensor's name", name) != 0) {
        return -1;
    }
    if (read_shape(cursor, &tensor, &count) != 0 || read_type(cursor, &tensor, count) != 0
        || read_number(cursor, 8, &offset) != 0)
    {
        return moe_fail_in(cursor->error, "%s", name);
    }
    if (offset > cursor->size || offset % alignment != 0) {
        return moe_fail(cursor->error, MOE_BAD_MODEL, "%s: offset %" PRIu64 " %s", name, offset,
                        offset > cursor->size ? "lies beyond the file: truncated file?"
                                              : "is not a multiple of the alignment");
    }
    tensor.data = cursor->data + offset;
    return moe_tensor_list_append(list, &tensor, name, strlen(name), file, cursor->error);
}


static int read_alignment(cursor_t *cursor, const json_t *metadata, size_t *alignment)
{
    moe_config_t config = { .object = metadata, .where = "metadata", .error = cursor->error };

    *alignment = moe_config_uint_or(&config, "general.alignment", ALIGNMENT_DEFAULT, 1,
                                    ALIGNMENT_LIMIT);
    if ((*alignment & (*alignment - 1)) != 0) {
        moe_config_fail(&config, "general.alignment", "%zu is not a power of two", *alignment);
    }
    return config.failed ? -1 : 0;
}


static int read_tensors(cursor_t *cursor, moe_tensor_list_t *list, uint64_t count,
                        const json_t *metadata, const moe_mapping_t *mapping, uint32_t file)
{
    size_t first = list->count, alignment, start;

    if (read_alignment(cursor, metadata, &alignment) != 0) {
        return -1;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (read_tensor(cursor, list, alignment, file) != 0) {
            return -1;
        }
    }
    start = (cursor->at + alignment - 1) / alignment * alignment;
    start = start < mapping->size ? start : mapping->size;
    for (size_t i = first; i < list->count; i++) {
        moe_tensor_t *tensor = &list->entries[i].tensor;
        size_t offset = (size_t) ((const unsigned char *) tensor->data - mapping->data);

        if (offset > mapping->size - start || tensor->size > mapping->size - start - offset) {
            return moe_fail(cursor->error, MOE_BAD_MODEL, "%s: lies beyond the file's %zu bytes of "
                            "data: truncated file?", tensor->name, mapping->size - start);
        }
        tensor->data = (const unsigned char *) tensor->data + start;
    }
    return moe_tensor_list_check(list, first, mapping, start, alignment, "offset", cursor->error);
}


int moe_gguf_read(moe_tensor_list_t *list, const moe_mapping_t *mapping, const char *name,
                  uint32_t file, json_t **metadata, moe_error_t *error)
{
    cursor_t cursor = { .data = mapping->data, .size = mapping->size, .error = error };
    header_t header = { 0 };

    *metadata = NULL;
    if (read_header(&cursor, &header) == 0) {
        *metadata = read_metadata(&cursor, header.keys);
    }
    if (*metadata == NULL
        || read_tensors(&cursor, list, header.tensors, *metadata, mapping, file) != 0)
    {
        json_decref(*metadata);
        *metadata = NULL;
        return moe_fail_in(error, "%s", name);
    }
    return 0;
}


json_t *moe_gguf_metadata(const char *path, moe_error_t *error)
{
    const char *slash = strrchr(path, '/');
    moe_mapping_t mapping = { 0 };
    moe_tensor_list_t list = { 0 };
    json_t *metadata = NULL;

    if (moe_mapping_open(&mapping, path, error) == 0) {
        moe_gguf_read(&list, &mapping, slash != NULL ? slash + 1 : path, 0, &metadata, error);
    }
    moe_tensor_list_free(&list);
    moe_mapping_close(&mapping);
    return metadata;
}


uint32_t moe_gguf_parts(const json_t *metadata, const char *name, char *stem, size_t size,
                        moe_error_t *error)
{
    moe_config_t config = { .object = metadata, .where = name, .error = error };
    uint32_t count = moe_config_uint_or(&config, "split.count", 1, 0, MOE_GGUF_PARTS_LIMIT);
    uint32_t number = moe_config_uint_or(&config, "split.no", 0, 0, MOE_GGUF_PARTS_LIMIT);
    size_t length = strlen(name);
    char ending[32];

    if (config.failed) {
        return 0;
    }
    if (count <= 1) {
        return 1;
    }
    if (number != 0) {
        moe_fail(error, MOE_BAD_MODEL, "%s: split.no: part %u of %u: the model is named by its "
                 "first part", name, number + 1, count);
        return 0;
    }
    snprintf(ending, sizeof(ending), "-00001-of-%05u.gguf", count);
    if (length <= strlen(ending) || length - strlen(ending) >= size
        || strcmp(name + length - strlen(ending), ending) != 0)
    {
        moe_fail(error, MOE_BAD_MODEL, "%s: split.count: the first of %u parts, but its name does "
                 "not end with %s", name, count, ending);
        return 0;
    }
    memcpy(stem, name, length - strlen(ending));
    stem[length - strlen(ending)] = '\0';
    return count;
}


int moe_gguf_check_part(const json_t *metadata, const char *name, uint32_t number, uint32_t count,
                        moe_error_t *error)
{
    moe_config_t config = { .object = metadata, .where = name, .error = error };

    moe_config_uint(&config, "split.count", count, count);
    moe_config_uint(&config, "split.no", number, number);
    return config.failed ? -1 : 0;
}
