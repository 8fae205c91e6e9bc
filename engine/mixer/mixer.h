/*
 * Token mixers: the part of a layer in which a token sees earlier ones.  Each kind is one file that
 * registers one table; the forward pass knows nothing else about it.
 */

#ifndef MOE_MIXER_H
#define MOE_MIXER_H

#include "engine/device/device.h"
#include "engine/loader.h"
#include "engine/mixer/rope.h"
#include "engine/model/model.h"
#include "engine/split.h"

/* What all mixers of a model share. */
typedef struct {
    moe_loader_t *loader;
    const moe_world_t *world;           /* lives as long as the mixers */
    moe_rope_tables_t *ropes;
    uint32_t hidden, context, batch_rows;
} moe_mixer_env_t;

typedef struct {
    moe_mixer_kind_t kind;

    /* Among how many ranks of a group a layer can be divided at most. */
    uint32_t (*most_parts)(const moe_layer_t *layer);

    /* Bytes of a layer's weights that are not divided. */
    uint64_t (*whole_bytes)(const moe_layer_t *layer);

    /* How many numbers a layer keeps of each token. */
    uint32_t (*cache_numbers)(const moe_layer_t *layer);

    /* Floats of scratch memory that `run` needs; layers share it. */
    size_t (*scratch_floats)(const moe_layer_t *layer, const moe_mixer_env_t *env);

    /* Loads the weights of a layer.  The state lives as long as the device's memory; `layer` must
     * stay.  NULL with MOE_LIMIT or MOE_BAD_MODEL. */
    void *(*create)(const moe_layer_t *layer, const moe_mixer_env_t *env, moe_error_t *error);

    /* y = mixer(x) for all rows, [n, hidden] both; writes the rows' cache entries first.  All ranks
     * of a group call it with the same rows.  0, or -1 with MOE_UNAVAILABLE when one is lost. */
    int (*run)(void *state, const moe_rows_t *rows, const moe_kv_t *cache, const float *x, float *y,
               float *scratch, moe_error_t *error);
} moe_mixer_t;

/* Scratch memory of a mixer holds its arrays one behind the other, for n rows each: rows[i] floats
 * of a row are array i's.  Floats of all arrays; where each begins. */
size_t moe_mixer_scratch(const size_t *rows, size_t arrays, size_t n);
void moe_mixer_lay_out(const size_t *rows, size_t arrays, size_t n, float *memory,
                       float **const *begins);

/* NULL when there is no such kind. */
const moe_mixer_t *moe_mixer_find(moe_mixer_kind_t kind);

extern const moe_mixer_t moe_mixer_mla;
extern const moe_mixer_t moe_mixer_gqa;

#endif
