/* A list of mappings.  Huge pages need both ends aligned, so a large piece is mapped with one huge
 * page to spare and trimmed. */

#include "engine/device/cpu_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t) 2 << 20)

struct moe_piece_s {
    moe_piece_t *next;
    void *address;
    size_t size;
};


static void *map_small(size_t size)
{
    void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return address == MAP_FAILED ? NULL : address;
}


static void *map_huge(size_t size)
{
    char *start = map_small(size + HUGE_PAGE), *aligned;
    size_t before;

    if (start == NULL) {
        return NULL;
    }
    before = -(uintptr_t) start % HUGE_PAGE;
    aligned = start + before;
    if (before > 0) {
        munmap(start, before);
    }
    munmap(aligned + size, HUGE_PAGE - before);
    madvise(aligned, size, MADV_HUGEPAGE);
    return aligned;
}


void *moe_arena_allocate(moe_arena_t *arena, size_t size, moe_error_t *error)
{
    const int huge = size >= 2 * HUGE_PAGE;
    const size_t unit = huge ? HUGE_PAGE : 4096, wanted = size;
    moe_piece_t *piece = malloc(sizeof(*piece));

    size = size <= SIZE_MAX / 2 ? (size + (size == 0) + unit - 1) / unit * unit : 0;
    if (piece == NULL || size == 0
        || (piece->address = huge ? map_huge(size) : map_small(size)) == NULL)
    {
        free(piece);
        moe_fail(error, MOE_LIMIT, "out of memory for %zu bytes", wanted);
        return NULL;
    }
    piece->size = size;
    piece->next = arena->pieces;
    arena->pieces = piece;
    return piece->address;
}


void moe_arena_free(moe_arena_t *arena)
{
    while (arena->pieces) {
        moe_piece_t *piece = arena->pieces;

        arena->pieces = piece->next;
        munmap(piece->address, piece->size);
        free(piece);
    }
}
