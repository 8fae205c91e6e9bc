/*
 * The GGUF container (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian:
 *
 *     "GGUF", u32 version, u64 tensors, u64 keys
 *     key:     string name, u32 type, value           (string: u64 size, bytes; array: u32 type,
 *     tensor:  string name, u32 n_dims, u64 dims[],    u64 count, values)
 *              u32 type, u64 offset                   (dims innermost first)
 *     padding to general.alignment, then the data the offsets count into
 *
 * The file comes from a stranger: every count, length, type, offset and overlap is checked.
 */

#ifndef MOE_GGUF_H
#define MOE_GGUF_H

#include <jansson.h>

#include "engine/model/mapping.h"
#include "engine/model/tensor_list.h"

#define MOE_GGUF_PARTS_LIMIT 4096u

/*
 * Appends the tensors of a mapped file, in the order of their data, with their dimensions turned
 * round (outermost first).  `name` is the file's name for messages, `file` the number to note.
 *
 * *metadata is a new object: metadata key -> string, boolean, number or array of such.  An f32 is
 * the shortest decimal number that means it, so that 0.1 is 0.1 again.
 * -1 with MOE_BAD_MODEL or MOE_LIMIT: *metadata is NULL, the list holds some of the tensors and is
 * still to be freed.
 */
int moe_gguf_read(moe_tensor_list_t *list, const moe_mapping_t *mapping, const char *name,
                  uint32_t file, json_t **metadata, moe_error_t *error);

/* The metadata of the file `path` alone.  NULL with MOE_BAD_MODEL or MOE_LIMIT. */
json_t *moe_gguf_metadata(const char *path, moe_error_t *error);

/*
 * A model in parts: split.count files "NAME-00001-of-0000N.gguf".  Returns N of the file `name`
 * whose metadata is given (1: not split); `stem` gets NAME.  0 with MOE_BAD_MODEL when it is not
 * the first part, or its name does not fit.
 */
uint32_t moe_gguf_parts(const json_t *metadata, const char *name, char *stem, size_t size,
                        moe_error_t *error);

/* Checks that a file is part `number` (from 0) of `count`.  -1 with MOE_BAD_MODEL. */
int moe_gguf_check_part(const json_t *metadata, const char *name, uint32_t number, uint32_t count,
                        moe_error_t *error);

#endif
