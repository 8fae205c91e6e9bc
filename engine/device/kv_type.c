#include "engine/device/kv_type.h"

#include <string.h>

static const char *const names[] = {
    [MOE_KV_F32] = "f32",
    [MOE_KV_BF16] = "bf16",
    [MOE_KV_Q8_0] = "q8_0"
};


const char *moe_kv_type_name(moe_kv_type_t type)
{
    return names[type];
}


int moe_kv_type_find(const char *name, moe_kv_type_t *type)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *type = (moe_kv_type_t) i;
            return 0;
        }
    }
    return -1;
}
