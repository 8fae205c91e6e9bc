#include "engine/mixer/mixer.h"

static const moe_mixer_t *const mixers[] = {
    &moe_mixer_mla,
    &moe_mixer_gqa,
};


const moe_mixer_t *moe_mixer_find(moe_mixer_kind_t kind)
{
    for (size_t i = 0; i < sizeof(mixers) / sizeof(mixers[0]); i++) {
        if (mixers[i]->kind == kind) {
            return mixers[i];
        }
    }
    return NULL;
}
