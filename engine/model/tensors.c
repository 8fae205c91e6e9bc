/*
 * All tensors of a model in one array sorted by name: lookup is a binary search, a prefix is a
 * range, duplicates over shards are neighbours.  Each entry remembers whether somebody took it, so
 * that a tensor nobody understands is found after the model is built.
 */

#include "engine/model/tensor.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/core/json.h"
#include "engine/model/config.h"
#include "engine/model/gguf.h"
#include "engine/model/safetensors.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"
#define MODEL "model."
#define LANGUAGE "language_model."
#define SHARDS_LIMIT 4096u
#define NAME_SIZE 256
#define DIGITS "0123456789"

typedef struct {
    char *name;                 /* without directory */
    moe_mapping_t mapping;
} shard_t;

struct moe_tensors_s {
    const char *source;
    const moe_tensor_names_t *names;    /* NULL: files' names are those that are asked for ... */
    const char *model, *beside;         /* ... but for what is instead of "model.", and before other
                                         * names; NULL: nothing */
    shard_t *shards;            /* sorted by name */
    uint32_t n_shards;
    moe_tensor_list_t list;     /* sorted by name */
    uint64_t bytes;
};


static int by_name(const void *a, const void *b)
{
    return strcmp(((const moe_tensor_entry_t *) a)->tensor.name,
                  ((const moe_tensor_entry_t *) b)->tensor.name);
}


/* First entry whose name is not before `name`. */
static size_t lower_bound(const moe_tensors_t *tensors, const char *name)
{
    size_t low = 0, high = tensors->list.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(tensors->list.entries[middle].tensor.name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}


static moe_tensor_entry_t *find(const moe_tensors_t *tensors, const char *name)
{
    size_t i = lower_bound(tensors, name);

    if (i == tensors->list.count || strcmp(tensors->list.entries[i].tensor.name, name) != 0) {
        return NULL;
    }
    return &tensors->list.entries[i];
}


/* 1 when `name` is what the pattern says; the `digits` that its '*' stands for begin at *number. */
static int fits(const char *pattern, const char *name, const char **number, size_t *digits)
{
    const char *star = strchr(pattern, '*');
    size_t length = star != NULL ? (size_t) (star - pattern) : 0;

    if (star == NULL || strncmp(pattern, name, length) != 0) {
        return strcmp(pattern, name) == 0;
    }
    *number = name + length;
    *digits = strspn(*number, DIGITS);
    return *digits > 0 && strcmp(*number + *digits, star + 1) == 0;
}


/* Puts `prefix` and the stored name of `name` into `text`: by the first row whose tensor is there,
 * then it returns 1; else by the first one that fits, unless there is a text already. */
static int find_name(const moe_tensors_t *tensors, const moe_tensor_name_t *names, const char *name,
                     const char *prefix, char text[NAME_SIZE])
{
    for (; names->name != NULL; names++) {
        const char *number = "", *star = strchr(names->stored, '*');
        const char *rest = star != NULL ? star + 1 : "";
        const size_t length = star != NULL ? (size_t) (star - names->stored)
                                           : strlen(names->stored);
        char stored[NAME_SIZE];
        size_t digits = 0;
        int found;

        if (!fits(names->name, name, &number, &digits)) {
            continue;
        }
        snprintf(stored, sizeof(stored), "%s%.*s%.*s%s", prefix, (int) length, names->stored,
                 (int) digits, number, rest);
        found = find(tensors, stored) != NULL;
        if (found || text[0] == '\0') {
            memcpy(text, stored, sizeof(stored));
        }
        if (found) {
            return 1;
        }
    }
    return 0;
}


/* The same in a layer. */
static void find_name_in_layer(const moe_tensors_t *tensors, const char *name, const char *prefix,
                               char text[NAME_SIZE])
{
    for (size_t i = 0; i < MOE_TENSOR_TABLES && tensors->names->in_layer[i] != NULL; i++) {
        if (find_name(tensors, tensors->names->in_layer[i], name, prefix, text)) {
            return;
        }
    }
}


/* The files' name of a tensor, or of the prefix "model.layers.N.", put into `text` where it is
 * another one.  A name without translation stays as it is. */
static const char *translate(const moe_tensors_t *tensors, const char *name, char text[NAME_SIZE])
{
    static const char layers[] = "model.layers.";
    const char *layer = name + strlen(layers);
    char prefix[32];
    size_t digits;

    text[0] = '\0';
    if (tensors->model != NULL) {
        const int inside = strncmp(name, MODEL, strlen(MODEL)) == 0;

        snprintf(text, NAME_SIZE, "%s%s", inside ? tensors->model : tensors->beside,
                 inside ? name + strlen(MODEL) : name);
        return text;
    }
    if (tensors->names == NULL) {
        return name;
    }
    if (strncmp(name, layers, strlen(layers)) != 0) {
        find_name(tensors, tensors->names->outside, name, "", text);
        return text[0] != '\0' ? text : name;
    }
    digits = strspn(layer, DIGITS);
    if (layer[digits] != '.' || digits > 10) {
        return name;
    }
    snprintf(prefix, sizeof(prefix), "blk.%.*s.", (int) digits, layer);
    if (layer[digits + 1] == '\0') {
        snprintf(text, NAME_SIZE, "%s", prefix);
    } else {
        find_name_in_layer(tensors, layer + digits + 1, prefix, text);
    }
    return text[0] != '\0' ? text : name;
}


static int add_shard(moe_tensors_t *tensors, const char *name, moe_error_t *error)
{
    shard_t *shards = realloc(tensors->shards, (tensors->n_shards + 1) * sizeof(*shards));

    if (shards == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory");
    }
    tensors->shards = shards;
    shards[tensors->n_shards] = (shard_t) { .name = strdup(name) };
    if (shards[tensors->n_shards].name == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory");
    }
    tensors->n_shards++;
    return 0;
}


static int find_shard(const moe_tensors_t *tensors, const char *name)
{
    for (uint32_t i = 0; i < tensors->n_shards; i++) {
        if (strcmp(tensors->shards[i].name, name) == 0) {
            return (int) i;
        }
    }
    return -1;
}


/* A shard's name comes from a file: it must not lead out of the directory. */
static int is_file_name(const json_t *value)
{
    const char *name = json_string_value(value);

    return name != NULL && name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL
           && strlen(name) == json_string_length(value) && strlen(name) < NAME_SIZE;
}


static int list_shards(moe_tensors_t *tensors, const json_t *weight_map, moe_error_t *error)
{
    const char *previous = "", *tensor;
    json_t *value;

    json_object_foreach((json_t *) (uintptr_t) weight_map, tensor, value) {
        const char *name = json_string_value(value);

        if (!is_file_name(value)) {
            return moe_fail(error, MOE_BAD_MODEL, INDEX_FILE ": weight_map: %s: \"%.64s\" is not a "
                            "plain file name", tensor, name ? name : "");
        }
        if (strcmp(name, previous) == 0 || find_shard(tensors, name) >= 0) {
            previous = name;
            continue;
        }
        previous = name;
        if (tensors->n_shards == SHARDS_LIMIT) {
            return moe_fail(error, MOE_LIMIT, INDEX_FILE ": more than %u files", SHARDS_LIMIT);
        }
        if (add_shard(tensors, name, error) != 0) {
            return -1;
        }
    }
    if (tensors->n_shards == 0) {
        return moe_fail(error, MOE_BAD_MODEL, INDEX_FILE ": weight_map: empty");
    }
    return 0;
}


static int map_shard(shard_t *shard, const char *directory, moe_error_t *error)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s", directory, shard->name) >= (int) sizeof(path)) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: path too long", shard->name);
    }
    return moe_mapping_open(&shard->mapping, path, error);
}


static int open_shards(moe_tensors_t *tensors, const char *directory, moe_error_t *error)
{
    for (uint32_t i = 0; i < tensors->n_shards; i++) {
        shard_t *shard = &tensors->shards[i];

        if (map_shard(shard, directory, error) != 0
            || moe_safetensors_read(&tensors->list, &shard->mapping, shard->name, i, error) != 0)
        {
            return -1;
        }
    }
    return 0;
}


static int sort_by_name(moe_tensors_t *tensors, moe_error_t *error)
{
    moe_tensor_entry_t *entries = tensors->list.entries;

    if (tensors->list.count == 0) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: no tensors", tensors->source);
    }
    qsort(entries, tensors->list.count, sizeof(*entries), by_name);
    for (size_t i = 0; i < tensors->list.count; i++) {
        tensors->bytes += entries[i].tensor.size;
        if (i > 0 && by_name(&entries[i - 1], &entries[i]) == 0) {
            return moe_fail(error, MOE_BAD_MODEL, "%s: %s: also in %s",
                            tensors->shards[entries[i].file].name, entries[i].tensor.name,
                            tensors->shards[entries[i - 1].file].name);
        }
    }
    return 0;
}


/* Tensors that the index does not list are no error here: if nothing needs them, they are found as
 * left over. */
static int check_index(const moe_tensors_t *tensors, const json_t *weight_map, moe_error_t *error)
{
    const char *name;
    json_t *file;

    json_object_foreach((json_t *) (uintptr_t) weight_map, name, file) {
        const moe_tensor_entry_t *entry = find(tensors, name);
        const char *shard = json_string_value(file);

        if (entry == NULL || strcmp(tensors->shards[entry->file].name, shard) != 0) {
            return moe_fail(error, MOE_BAD_MODEL, "%s: %s: missing, though " INDEX_FILE
                            " says it is there", shard, name);
        }
    }
    return 0;
}


static int open_indexed(moe_tensors_t *tensors, const char *directory, moe_error_t *error)
{
    json_t *index = moe_json_load(directory, INDEX_FILE, 1, error), *weight_map;
    int result = -1;

    if (index == NULL) {
        return error->code != MOE_OK ? -1
               : moe_fail(error, MOE_BAD_MODEL, "%s: neither " SINGLE_FILE " nor " INDEX_FILE,
                          directory);
    }
    tensors->source = INDEX_FILE;
    weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map)) {
        moe_fail(error, MOE_BAD_MODEL, INDEX_FILE ": weight_map: missing or not an object");
    } else if (list_shards(tensors, weight_map, error) == 0
               && open_shards(tensors, directory, error) == 0 && sort_by_name(tensors, error) == 0)
    {
        result = check_index(tensors, weight_map, error);
    }
    json_decref(index);
    return result;
}


static int open_single(moe_tensors_t *tensors, const char *directory, moe_error_t *error)
{
    tensors->source = SINGLE_FILE;
    return add_shard(tensors, SINGLE_FILE, error) != 0
           || open_shards(tensors, directory, error) != 0
           || sort_by_name(tensors, error) != 0 ? -1 : 0;
}


moe_tensors_t *moe_tensors_open(const char *directory, moe_error_t *error)
{
    moe_tensors_t *tensors = calloc(1, sizeof(*tensors));
    char path[PATH_MAX];
    struct stat st;
    int result;

    if (tensors == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    if (snprintf(path, sizeof(path), "%s/" SINGLE_FILE, directory) < (int) sizeof(path)
        && (stat(path, &st) == 0 || errno != ENOENT))
    {
        result = open_single(tensors, directory, error);
    } else {
        result = open_indexed(tensors, directory, error);
    }
    if (result != 0) {
        moe_tensors_close(tensors);
        return NULL;
    }
    return tensors;
}


/* Opens the file `name` as the next shard. */
static int open_part(moe_tensors_t *tensors, const char *directory, const char *name,
                     json_t **metadata, moe_error_t *error)
{
    const uint32_t i = tensors->n_shards;

    return add_shard(tensors, name, error) != 0
           || map_shard(&tensors->shards[i], directory, error) != 0
           || moe_gguf_read(&tensors->list, &tensors->shards[i].mapping, name, i, metadata, error)
              != 0 ? -1 : 0;
}


/* The parts behind the first one. */
static int open_parts(moe_tensors_t *tensors, const char *directory, const json_t *first,
                      moe_error_t *error)
{
    moe_config_t config = { .object = first, .where = tensors->source, .error = error };
    char stem[NAME_SIZE], name[NAME_SIZE + 32];
    uint32_t count = moe_gguf_parts(first, tensors->source, stem, sizeof(stem), error);
    uint32_t expected;
    json_t *metadata;
    int result;

    for (uint32_t i = 1; i < count; i++) {
        snprintf(name, sizeof(name), "%s-%05u-of-%05u.gguf", stem, i + 1, count);
        if (open_part(tensors, directory, name, &metadata, error) != 0) {
            return -1;
        }
        result = moe_gguf_check_part(metadata, name, i, count, error);
        json_decref(metadata);
        if (result != 0) {
            return -1;
        }
    }
    if (count == 0 || sort_by_name(tensors, error) != 0) {
        return -1;
    }
    expected = moe_config_uint_or(&config, "split.tensors.count", (uint32_t) tensors->list.count, 0,
                                  INT32_MAX);
    if (count > 1 && expected != tensors->list.count) {
        moe_config_fail(&config, "split.tensors.count", "%u, but the parts hold %zu", expected,
                        tensors->list.count);
    }
    return config.failed ? -1 : 0;
}


moe_tensors_t *moe_tensors_open_gguf(const char *path, json_t **metadata, moe_error_t *error)
{
    moe_tensors_t *tensors = calloc(1, sizeof(*tensors));
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    char directory[PATH_MAX] = ".";

    *metadata = NULL;
    if (tensors == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    if (slash != NULL) {
        snprintf(directory, sizeof(directory), "%.*s", (int) (name - path), path);
    }
    if (open_part(tensors, directory, name, metadata, error) == 0) {
        tensors->source = tensors->shards[0].name;
        if (open_parts(tensors, directory, *metadata, error) == 0) {
            return tensors;
        }
    }
    json_decref(*metadata);
    *metadata = NULL;
    moe_tensors_close(tensors);
    return NULL;
}


void moe_tensors_translate(moe_tensors_t *tensors, const moe_tensor_names_t *names)
{
    tensors->names = names;
}


int moe_tensors_merges_experts(const moe_tensors_t *tensors, const char *single)
{
    return tensors->names != NULL && moe_tensors_find(tensors, single) == NULL;
}


void moe_tensors_set_paired(moe_tensors_t *tensors, const char *name, uint32_t paired)
{
    char text[NAME_SIZE];
    moe_tensor_entry_t *entry = find(tensors, translate(tensors, name, text));

    if (entry != NULL) {
        entry->tensor.paired = paired;
    }
}


void moe_tensors_close(moe_tensors_t *tensors)
{
    if (tensors == NULL) {
        return;
    }
    moe_tensor_list_free(&tensors->list);
    for (uint32_t i = 0; i < tensors->n_shards; i++) {
        moe_mapping_close(&tensors->shards[i].mapping);
        free(tensors->shards[i].name);
    }
    free(tensors->shards);
    free(tensors);
}


size_t moe_tensors_count(const moe_tensors_t *tensors)
{
    return tensors->list.count;
}


uint64_t moe_tensors_bytes(const moe_tensors_t *tensors)
{
    return tensors->bytes;
}


const char *moe_tensors_source(const moe_tensors_t *tensors)
{
    return tensors->source;
}


const moe_tensor_t *moe_tensors_at(const moe_tensors_t *tensors, size_t index)
{
    return &tensors->list.entries[index].tensor;
}


static void print_shape(char *text, size_t size, unsigned n_dims, const uint64_t *shape)
{
    size_t length = (size_t) snprintf(text, size, "[");

    for (unsigned i = 0; i < n_dims && length < size; i++) {
        length += (size_t) snprintf(text + length, size - length, "%s%llu", i ? ", " : "",
                                    (unsigned long long) shape[i]);
    }
    if (length < size) {
        snprintf(text + length, size - length, "]");
    }
}


static int has_shape(const moe_tensors_t *tensors, const moe_tensor_t *tensor, unsigned n_dims,
                     const uint64_t *shape)
{
    while (tensors->names != NULL && n_dims > tensor->n_dims && shape[0] == 1) {
        n_dims--;
        shape++;
    }
    return tensor->n_dims == n_dims && memcmp(tensor->shape, shape, n_dims * sizeof(*shape)) == 0;
}


static int check_taken(const moe_tensors_t *tensors, const moe_tensor_entry_t *entry, int bytes,
                       unsigned n_dims, const uint64_t *shape, moe_error_t *error)
{
    const moe_tensor_t *tensor = &entry->tensor;
    char found[192], expected[192];

    if (!has_shape(tensors, tensor, n_dims, shape)) {
        print_shape(found, sizeof(found), tensor->n_dims, tensor->shape);
        print_shape(expected, sizeof(expected), n_dims, shape);
        return moe_fail(error, MOE_BAD_MODEL, "%s: shape %s, expected %s", tensor->name, found,
                        expected);
    }
    if (bytes ? strcmp(tensor->type, "U8") != 0 : tensor->dtype == 0) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: dtype %.32s is not supported", tensor->name,
                        tensor->type);
    }
    return 0;
}


/* The format does not promise that data is aligned, loads of floats need it. */
static int align(moe_tensor_entry_t *entry, moe_error_t *error)
{
    moe_tensor_t *tensor = &entry->tensor;

    if ((uintptr_t) tensor->data % moe_dtype_alignment(tensor->dtype) == 0) {
        return 0;
    }
    entry->copy = malloc(tensor->size);
    if (entry->copy == NULL) {
        return moe_fail(error, MOE_LIMIT, "%s: out of memory for %zu unaligned bytes", tensor->name,
                        tensor->size);
    }
    memcpy(entry->copy, tensor->data, tensor->size);
    tensor->data = entry->copy;
    return 0;
}


static const moe_tensor_t *take(moe_tensors_t *tensors, moe_error_t *error, int bytes,
                                unsigned n_dims, const uint64_t *shape, const char *asked)
{
    char text[NAME_SIZE];
    const char *name = translate(tensors, asked, text);
    moe_tensor_entry_t *entry = find(tensors, name);

    if (entry == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "%s: %s: missing", tensors->source, name);
        return NULL;
    }
    if (check_taken(tensors, entry, bytes, n_dims, shape, error) != 0
        || (!bytes && align(entry, error) != 0))
    {
        moe_fail_in(error, "%s", tensors->shards[entry->file].name);
        return NULL;
    }
    entry->used = 1;
    return &entry->tensor;
}


const moe_tensor_t *moe_tensors_take(moe_tensors_t *tensors, moe_error_t *error, unsigned n_dims,
                                     const uint64_t *shape, const char *format, ...)
{
    char name[NAME_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    return take(tensors, error, 0, n_dims, shape, name);
}


const moe_tensor_t *moe_tensors_take_bytes(moe_tensors_t *tensors, moe_error_t *error,
                                           unsigned n_dims, const uint64_t *shape,
                                           const char *name)
{
    return take(tensors, error, 1, n_dims, shape, name);
}


const moe_tensor_t *moe_tensors_find(const moe_tensors_t *tensors, const char *name)
{
    char text[NAME_SIZE];
    const moe_tensor_entry_t *entry = find(tensors, translate(tensors, name, text));

    return entry != NULL ? &entry->tensor : NULL;
}


static void ignore_stored(moe_tensors_t *tensors, const char *prefix)
{
    const size_t length = strlen(prefix);

    for (size_t i = lower_bound(tensors, prefix); i < tensors->list.count; i++) {
        if (strncmp(tensors->list.entries[i].tensor.name, prefix, length) != 0) {
            break;
        }
        tensors->list.entries[i].used = 1;
    }
}


void moe_tensors_ignore(moe_tensors_t *tensors, const char *prefix)
{
    char text[NAME_SIZE];

    ignore_stored(tensors, translate(tensors, prefix, text));
}


/* Two forms are in use, of which the newer keeps the head outside. */
void moe_tensors_enter_text(moe_tensors_t *tensors)
{
    static const char *const others[] = {
        "audio_tower.", "mm_projector.", "multi_modal_projector.", "vision_model.",
        "vision_tower.", "visual."
    };
    const int newer = find(tensors, MODEL LANGUAGE "embed_tokens.weight") != NULL;
    char inside[64];

    tensors->model = newer ? MODEL LANGUAGE : LANGUAGE MODEL;
    tensors->beside = newer ? "" : LANGUAGE;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        ignore_stored(tensors, others[i]);
        snprintf(inside, sizeof(inside), MODEL "%s", others[i]);
        ignore_stored(tensors, inside);
    }
}


int moe_tensors_check_left_over(const moe_tensors_t *tensors, moe_error_t *error)
{
    const moe_tensor_entry_t *first = NULL;
    size_t count = 0;

    for (size_t i = 0; i < tensors->list.count; i++) {
        const moe_tensor_entry_t *entry = &tensors->list.entries[i];

        if (!entry->used) {
            first = first ? first : entry;
            count++;
        }
    }
    if (first == NULL) {
        return 0;
    }
    return moe_fail(error, MOE_BAD_MODEL, "%s: %s: not part of this model (%zu such tensors)",
                    tensors->shards[first->file].name, first->tensor.name, count);
}
