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


size_t moe_mixer_scratch(const size_t *rows, size_t arrays, size_t n)
{
    size_t floats = 0;

    for (size_t i = 0; i < arrays; i++) {
        floats += n * rows[i];
    }
    return floats;
}


void moe_mixer_lay_out(const size_t *rows, size_t arrays, size_t n, float *memory,
                       float **const *begins)
{
    for (size_t i = 0; i < arrays; i++) {
        *begins[i] = memory;
        memory += n * rows[i];
    }
}
