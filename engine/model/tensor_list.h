/* The tensors of a model's files, as the readers of the containers list them. */

#ifndef MOE_TENSOR_LIST_H
#define MOE_TENSOR_LIST_H

#include "engine/model/mapping.h"
#include "engine/model/tensor.h"

#define MOE_TENSORS_LIMIT (1u << 20)

typedef struct {
    moe_tensor_t tensor;        /* name and type are owned: one allocation that begins at name */
    uint32_t file;              /* number of the file it lies in */
    int used;                   /* taken or ignored */
    void *copy;                 /* owned: the data, where the file does not align it */
} moe_tensor_entry_t;

typedef struct {
    moe_tensor_entry_t *entries;        /* owned */
    size_t count, capacity;
} moe_tensor_list_t;

/* Appends a tensor named name[0..size) of file number `file`; its strings are copied.
 * -1 with MOE_LIMIT. */
int moe_tensor_list_append(moe_tensor_list_t *list, const moe_tensor_t *tensor, const char *name,
                           size_t size, uint32_t file, moe_error_t *error);

/* Sorts the tensors from number `first` on by their data and checks that they fill the file behind
 * `data_start`: each begins where the one before ends, rounded up to a multiple of `alignment`, and
 * the last ends with the file.  `key`: what the file calls their place, for messages.
 * -1 with MOE_BAD_MODEL. */
int moe_tensor_list_check(moe_tensor_list_t *list, size_t first, const moe_mapping_t *mapping,
                          size_t data_start, size_t alignment, const char *key,
                          moe_error_t *error);

void moe_tensor_list_free(moe_tensor_list_t *list);

#endif
