/*
 * Files mapped into memory read-only, and a process-wide record of which addresses belong to which
 * file.  A mapped file that somebody truncates, or a disk that fails, turns a plain load into
 * SIGBUS; with the record the handler can name the file instead of leaving a bare crash.
 */

#ifndef MOE_MAPPING_H
#define MOE_MAPPING_H

#include <stddef.h>

#include "engine/core/error.h"

typedef struct {
    const unsigned char *data;
    size_t size;
} moe_mapping_t;

/* Maps the regular file `path`.  -1 with MOE_BAD_MODEL "path: what" (also for an empty file) and
 * nothing mapped. */
int moe_mapping_open(moe_mapping_t *mapping, const char *path, moe_error_t *error);

/* Unmaps; does nothing for a mapping that is all zero. */
void moe_mapping_close(moe_mapping_t *mapping);

/* Gives back the memory behind [data, data + size) where it lies in a mapping: the pages are read
 * from the file again when they are touched.  Other memory is left alone. */
void moe_mapping_release(const void *data, size_t size);

/*
 * Installs a SIGBUS handler that, when the faulting address lies in a mapping, writes one line
 * "moe-engine: path: ..." to stderr and exits with code 1; any other SIGBUS keeps its default
 * action.  Async-signal-safe; call once from a command.
 */
void moe_mapping_handle_sigbus(void);

#endif
