/*
 * The safetensors container (github.com/huggingface/safetensors): 8 bytes little-endian header
 * length N, N bytes of JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the data
 * the offsets count into.  The header comes from a stranger: nothing in it is believed.
 */

#ifndef MOE_SAFETENSORS_H
#define MOE_SAFETENSORS_H

#include "engine/model/mapping.h"
#include "engine/model/tensor_list.h"

#define MOE_SAFETENSORS_HEADER_LIMIT 100000000u     /* the reference implementation's bound */

/* Appends the tensors of a mapped file, in the order of their data.  `name` is the file's name for
 * messages, `file` the number to note.  -1 with MOE_BAD_MODEL or MOE_LIMIT; the list then holds
 * some of them and is still to be freed. */
int moe_safetensors_read(moe_tensor_list_t *list, const moe_mapping_t *mapping, const char *name,
                         uint32_t file, moe_error_t *error);

#endif
