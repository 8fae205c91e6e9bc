/* What a path that a user gives as MODEL stands for. */

#ifndef MOE_MODEL_PATH_H
#define MOE_MODEL_PATH_H

#include <stddef.h>

#include "engine/core/error.h"

typedef enum {
    MOE_PATH_DIRECTORY = 1,     /* Hugging Face's layout, with a config.json */
    MOE_PATH_GGUF               /* a GGUF file, or the first one of its parts */
} moe_path_kind_t;

/*
 * A directory that holds no config.json but one model in GGUF (mmproj-*.gguf, vision encoders,
 * aside) stands for that file; `file` gets the path of a GGUF model.  A directory that holds
 * neither is MOE_PATH_DIRECTORY.  -1 with MOE_BAD_MODEL: path: what.
 */
int moe_model_path(const char *path, char *file, size_t size, moe_error_t *error);

#endif
