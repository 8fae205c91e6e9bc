/*
 * Memory of the CPU device: zeroed, aligned, freed all at once.  Large pieces are mapped on their
 * own, on huge pages where the system has them: reading weights is bound by memory, and small pages
 * cost a third of its bandwidth.
 */

#ifndef MOE_CPU_MEMORY_H
#define MOE_CPU_MEMORY_H

#include <stddef.h>

#include "engine/core/error.h"

typedef struct moe_piece_s moe_piece_t;

typedef struct {
    moe_piece_t *pieces;
} moe_arena_t;

/* Aligned to 64 bytes at least.  NULL with MOE_LIMIT. */
void *moe_arena_allocate(moe_arena_t *arena, size_t size, moe_error_t *error);
void moe_arena_free(moe_arena_t *arena);

#endif
