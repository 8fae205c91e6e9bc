/* Whole files into memory. */

#ifndef MOE_FILE_H
#define MOE_FILE_H

#include <stddef.h>

#include "engine/core/error.h"

/* A path's limit is PATH_MAX.  -1 with MOE_BAD_MODEL: name: path too long. */
int moe_file_path(char *path, const char *directory, const char *name, moe_error_t *error);

/* The bytes of a regular file of at most `limit` bytes, which the caller frees.  On failure NULL
 * with MOE_BAD_MODEL; when the file does not exist and `optional` is set: NULL with error->code ==
 * MOE_OK. */
char *moe_file_load(const char *path, int optional, size_t limit, size_t *size,
                    moe_error_t *error);

#endif
