/*
 * A file's layout is one comparison per tensor, in the order of the data: whether it begins exactly
 * where the one before ends.  That finds overlaps and holes alike, and the last end against the
 * file's size finds truncated and over-long files.
 */

#include "engine/model/tensor_list.h"

#include <stdlib.h>
#include <string.h>


int moe_tensor_list_append(moe_tensor_list_t *list, const moe_tensor_t *tensor, const char *name,
                           size_t size, uint32_t file, moe_error_t *error)
{
    size_t type_size = strlen(tensor->type) + 1;
    moe_tensor_entry_t *entry;
    char *strings;

    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;

        if (capacity > MOE_TENSORS_LIMIT) {
            return moe_fail(error, MOE_LIMIT, "more than %u tensors", MOE_TENSORS_LIMIT);
        }
        entry = realloc(list->entries, capacity * sizeof(*entry));
        if (entry == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for %zu tensors", capacity);
        }
        list->entries = entry;
        list->capacity = capacity;
    }
    strings = malloc(size + 1 + type_size);
    if (strings == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory");
    }
    memcpy(strings, name, size);
    strings[size] = '\0';
    memcpy(strings + size + 1, tensor->type, type_size);
    entry = &list->entries[list->count++];
    *entry = (moe_tensor_entry_t) { .tensor = *tensor, .file = file };
    entry->tensor.name = strings;
    entry->tensor.type = strings + size + 1;
    return 0;
}


static int by_data(const void *a, const void *b)
{
    const moe_tensor_t *left = &((const moe_tensor_entry_t *) a)->tensor;
    const moe_tensor_t *right = &((const moe_tensor_entry_t *) b)->tensor;

    if (left->data != right->data) {
        return (uintptr_t) left->data < (uintptr_t) right->data ? -1 : 1;
    }
    return (left->size > right->size) - (left->size < right->size);
}


int moe_tensor_list_check(moe_tensor_list_t *list, size_t first, const moe_mapping_t *mapping,
                          size_t data_start, size_t alignment, const char *key,
                          moe_error_t *error)
{
    moe_tensor_entry_t *entries = list->count > first ? &list->entries[first] : NULL;
    size_t count = list->count - first, size = mapping->size - data_start, end = 0, padded = 0;

    if (count > 0) {
        qsort(entries, count, sizeof(*entries), by_data);
    }
    for (size_t i = 0; i < count; i++) {
        const moe_tensor_t *tensor = &entries[i].tensor;
        size_t begin = (size_t) ((const unsigned char *) tensor->data - mapping->data) - data_start;

        if (begin != padded) {
            return moe_fail(error, MOE_BAD_MODEL, "%s: %s: %s %s", tensor->name, key,
                            begin < padded ? "overlap with" : "leave a gap after",
                            i > 0 ? entries[i - 1].tensor.name : "the header");
        }
        end = begin + tensor->size;
        padded = (end + alignment - 1) / alignment * alignment;
    }
    if (size > padded) {
        return moe_fail(error, MOE_BAD_MODEL, "the file is %zu bytes longer than its header says",
                        size - end);
    }
    return 0;
}


void moe_tensor_list_free(moe_tensor_list_t *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free((char *) (uintptr_t) list->entries[i].tensor.name);
        free(list->entries[i].copy);
    }
    free(list->entries);
    *list = (moe_tensor_list_t) { 0 };
}
