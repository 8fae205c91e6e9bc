/* A hash table with chains through the sequences themselves: nothing is allocated per request. */

#include "engine/serve/registry.h"

#include <stdlib.h>


int moe_registry_init(moe_registry_t *registry, uint32_t limit, moe_error_t *error)
{
    size_t buckets = 16;

    while (buckets < limit) {
        buckets *= 2;
    }
    registry->buckets = calloc(buckets, sizeof(moe_sequence_t *));
    registry->mask = (uint32_t) (buckets - 1);
    registry->count = 0;
    registry->limit = limit;
    if (registry->buckets == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u requests", limit);
    }
    return 0;
}


void moe_registry_free(moe_registry_t *registry)
{
    free(registry->buckets);
    registry->buckets = NULL;
}


static moe_sequence_t **bucket(const moe_registry_t *registry, const void *client, uint64_t id)
{
    uint64_t hash = (id ^ (uintptr_t) client >> 4) * 0x9e3779b97f4a7c15u;

    return &registry->buckets[(hash >> 32) & registry->mask];
}


moe_sequence_t *moe_registry_find(const moe_registry_t *registry, const void *client, uint64_t id)
{
    moe_sequence_t *sequence = *bucket(registry, client, id);

    while (sequence && (sequence->client != client || sequence->id != id)) {
        sequence = sequence->hash_next;
    }
    return sequence;
}


void moe_registry_add(moe_registry_t *registry, moe_sequence_t *sequence)
{
    moe_sequence_t **head = bucket(registry, sequence->client, sequence->id);

    sequence->hash_next = *head;
    *head = sequence;
    registry->count++;
}


void moe_registry_remove(moe_registry_t *registry, moe_sequence_t *sequence)
{
    moe_sequence_t **link = bucket(registry, sequence->client, sequence->id);

    while (*link != sequence) {
        link = &(*link)->hash_next;
    }
    *link = sequence->hash_next;
    sequence->hash_next = NULL;
    registry->count--;
}


void moe_registry_each(const moe_registry_t *registry,
                       void (*fn)(moe_sequence_t *sequence, void *context), void *context)
{
    for (uint32_t i = 0; i <= registry->mask; i++) {
        for (moe_sequence_t *s = registry->buckets[i]; s; s = s->hash_next) {
            fn(s, context);
        }
    }
}
