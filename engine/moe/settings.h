/* What users choose of the exchange between ranks, and the names of it. */

#ifndef MOE_SETTINGS_H
#define MOE_SETTINGS_H

#include "kernels/payload.h"

/* What is computed while rows travel.  Results do not depend on it. */
typedef enum {
    MOE_OVERLAP_SHARED = 0,     /* the shared expert */
    MOE_OVERLAP_OFF,            /* nothing */
    MOE_OVERLAP_TWO_BATCH       /* the other half of a large step's rows, and the shared expert */
} moe_overlap_t;

#define MOE_PAYLOADS "f32, bf16, int8, fp8"
#define MOE_OVERLAPS "off, shared, two_batch"

const char *moe_payload_name(moe_payload_t payload);
const char *moe_overlap_name(moe_overlap_t overlap);

/* 0, or -1 when there is none of this name. */
int moe_payload_find(const char *name, moe_payload_t *payload);
int moe_overlap_find(const char *name, moe_overlap_t *overlap);

#endif
