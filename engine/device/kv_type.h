/* Names of the forms that cache rows are kept in (kernels/kv.h). */

#ifndef MOE_KV_TYPE_H
#define MOE_KV_TYPE_H

#include "kernels/kv.h"

#define MOE_KV_TYPES "bf16, f32, q8_0"

const char *moe_kv_type_name(moe_kv_type_t type);

/* 0, or -1 when there is none of this name. */
int moe_kv_type_find(const char *name, moe_kv_type_t *type);

#endif
