/*
 * The requests that are alive, found by (client, id).  Not locked: the engine's lock guards it.
 */

#ifndef MOE_REGISTRY_H
#define MOE_REGISTRY_H

#include "engine/serve/sequence.h"

typedef struct {
    moe_sequence_t **buckets;
    uint32_t mask;
    uint32_t count, limit;
} moe_registry_t;

/* Room for `limit` sequences.  -1 with MOE_LIMIT (memory). */
int moe_registry_init(moe_registry_t *registry, uint32_t limit, moe_error_t *error);
void moe_registry_free(moe_registry_t *registry);

moe_sequence_t *moe_registry_find(const moe_registry_t *registry, const void *client, uint64_t id);
void moe_registry_add(moe_registry_t *registry, moe_sequence_t *sequence);
void moe_registry_remove(moe_registry_t *registry, moe_sequence_t *sequence);

/* Calls `fn` for each sequence; fn must not add or remove any. */
void moe_registry_each(const moe_registry_t *registry,
                       void (*fn)(moe_sequence_t *sequence, void *context), void *context);

#endif
