/*
 * Who asks: a record for each tenant that has requests, and for a while after.  Prompts are
 * prepared in turn, one of each tenant that has some.  Not locked: the engine's lock guards all but
 * `shares`, which are the scheduler thread's.
 */

#ifndef MOE_TENANTS_H
#define MOE_TENANTS_H

#include "engine/serve/groups.h"
#include "engine/serve/sequence.h"

typedef struct moe_tenant_s {
    uint32_t alive;                     /* requests */
    moe_sequence_queue_t submitted;     /* to be prepared */
    struct moe_tenant_s *hash_next;
    struct moe_tenant_s *previous, *next;       /* in `submitting` or `idle` */
    uint32_t size;
    char name[MOE_TENANT_LIMIT];
    moe_share_t shares[];               /* one of each group of ranks */
} moe_tenant_t;

typedef struct {
    moe_tenant_t *first, *last;
    uint32_t count;
} moe_tenant_list_t;

typedef struct {
    moe_tenant_t **buckets;
    uint32_t groups;
    uint32_t active;                    /* tenants with requests */
    moe_tenant_list_t submitting;       /* with prompts to prepare; the first is next */
    moe_tenant_list_t idle;             /* without requests, the longest so first */
} moe_tenants_t;

/* -1 with MOE_LIMIT (memory). */
int moe_tenants_init(moe_tenants_t *tenants, uint32_t groups, moe_error_t *error);
void moe_tenants_free(moe_tenants_t *tenants);          /* when none has requests */

/* NULL when there is no record. */
moe_tenant_t *moe_tenants_find(const moe_tenants_t *tenants, moe_string_t name);

/* Counts a request of a tenant, whose record is made if there is none.  NULL with MOE_LIMIT. */
moe_tenant_t *moe_tenants_enter(moe_tenants_t *tenants, moe_string_t name, moe_error_t *error);
void moe_tenants_leave(moe_tenants_t *tenants, moe_tenant_t *tenant);

/* The queue of sequences to be prepared; NULL when there is none. */
void moe_tenants_push(moe_tenants_t *tenants, moe_sequence_t *sequence);
moe_sequence_t *moe_tenants_pop(moe_tenants_t *tenants);

/* Frees records without requests that a new one would stand for as well, and the oldest of too
 * many. */
void moe_tenants_forget(moe_tenants_t *tenants, const moe_groups_t *groups);

#endif
