/*
 * A hash table of records.  A record outlives its last request because the scheduler's count in it
 * does: who asks in small bites would be new each time, with a full credit.  Records without
 * requests are in the order in which they fell idle, which is about the order in which they settle,
 * so looking at the first is enough.
 */

#include "engine/serve/tenants.h"

#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024u           /* a power of two */
#define IDLE_LIMIT 1024u        /* records kept without requests */


int moe_tenants_init(moe_tenants_t *tenants, uint32_t groups, moe_error_t *error)
{
    memset(tenants, 0, sizeof(*tenants));
    tenants->groups = groups;
    tenants->buckets = calloc(BUCKETS, sizeof(moe_tenant_t *));
    if (tenants->buckets == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u tenants", BUCKETS);
    }
    return 0;
}


static void append(moe_tenant_list_t *list, moe_tenant_t *tenant)
{
    tenant->previous = list->last;
    tenant->next = NULL;
    *(list->last ? &list->last->next : &list->first) = tenant;
    list->last = tenant;
    list->count++;
}


static void take_out(moe_tenant_list_t *list, moe_tenant_t *tenant)
{
    *(tenant->previous ? &tenant->previous->next : &list->first) = tenant->next;
    *(tenant->next ? &tenant->next->previous : &list->last) = tenant->previous;
    list->count--;
}


static moe_tenant_t **find_link(const moe_tenants_t *tenants, moe_string_t name)
{
    uint32_t hash = 2166136261u;        /* FNV-1a */
    moe_tenant_t **link;

    for (uint32_t i = 0; i < name.size; i++) {
        hash = (hash ^ (uint8_t) name.data[i]) * 16777619u;
    }
    link = &tenants->buckets[hash & (BUCKETS - 1)];
    while (*link && ((*link)->size != name.size
                     || (name.size && memcmp((*link)->name, name.data, name.size) != 0)))
    {
        link = &(*link)->hash_next;
    }
    return link;
}


moe_tenant_t *moe_tenants_find(const moe_tenants_t *tenants, moe_string_t name)
{
    return *find_link(tenants, name);
}


moe_tenant_t *moe_tenants_enter(moe_tenants_t *tenants, moe_string_t name, moe_error_t *error)
{
    moe_tenant_t **link = find_link(tenants, name), *tenant = *link;

    if (tenant == NULL) {
        if (name.size <= MOE_TENANT_LIMIT) {
            tenant = calloc(1, sizeof(*tenant) + tenants->groups * sizeof(moe_share_t));
        }
        if (tenant == NULL) {
            moe_fail(error, MOE_LIMIT, "out of memory for a tenant");
            return NULL;
        }
        tenant->size = name.size;
        if (name.size) {
            memcpy(tenant->name, name.data, name.size);
        }
        *link = tenant;
    } else if (tenant->alive == 0) {
        take_out(&tenants->idle, tenant);
    }
    tenants->active += tenant->alive++ == 0;
    return tenant;
}


void moe_tenants_leave(moe_tenants_t *tenants, moe_tenant_t *tenant)
{
    if (--tenant->alive == 0) {
        tenants->active--;
        append(&tenants->idle, tenant);
    }
}


void moe_tenants_push(moe_tenants_t *tenants, moe_sequence_t *sequence)
{
    moe_tenant_t *tenant = sequence->tenant;

    if (tenant->submitted.first == NULL) {
        append(&tenants->submitting, tenant);
    }
    moe_sequence_queue_push(&tenant->submitted, sequence);
}


moe_sequence_t *moe_tenants_pop(moe_tenants_t *tenants)
{
    moe_tenant_t *tenant = tenants->submitting.first;
    moe_sequence_t *sequence;

    if (tenant == NULL) {
        return NULL;
    }
    sequence = moe_sequence_queue_pop(&tenant->submitted);
    take_out(&tenants->submitting, tenant);
    if (tenant->submitted.first) {
        append(&tenants->submitting, tenant);
    }
    return sequence;
}


static void forget_first(moe_tenants_t *tenants)
{
    moe_tenant_t *tenant = tenants->idle.first;

    *find_link(tenants, (moe_string_t) { tenant->name, tenant->size }) = tenant->hash_next;
    take_out(&tenants->idle, tenant);
    free(tenant);
}


void moe_tenants_forget(moe_tenants_t *tenants, const moe_groups_t *groups)
{
    while (tenants->idle.first
           && (tenants->idle.count > IDLE_LIMIT
               || moe_groups_settled(groups, tenants->idle.first->shares)))
    {
        forget_first(tenants);
    }
}


void moe_tenants_free(moe_tenants_t *tenants)
{
    while (tenants->idle.first) {
        forget_first(tenants);
    }
    free(tenants->buckets);
    tenants->buckets = NULL;
}
