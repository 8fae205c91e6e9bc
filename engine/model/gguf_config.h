/*
 * GGUF metadata told as the config.json of the same model, so that a family reads one kind of
 * config whatever the file.  An architecture is mostly two tables of names; what is no renaming it
 * computes in `complete`.  Adding one is adding a file and a row in gguf_config.c.
 */

#ifndef MOE_GGUF_CONFIG_H
#define MOE_GGUF_CONFIG_H

#include "engine/model/config.h"
#include "engine/model/tensor.h"

/* A metadata key without "ARCHITECTURE." and the config's key; `key` NULL: read by `complete`, or
 * without meaning for what is computed. */
typedef struct {
    const char *stored, *key;
} moe_gguf_key_t;

typedef struct moe_gguf_architecture_s moe_gguf_architecture_t;

typedef struct {
    const moe_gguf_architecture_t *architecture;
    moe_config_t metadata;              /* for typed reading, keys by moe_gguf_name */
    moe_tensors_t *tensors;
    json_t *config, *names;             /* what comes out: see moe_config_t */
    json_t *scaling;                    /* config's rope_scaling; borrowed, NULL: none */
} moe_gguf_translation_t;

#define MOE_GGUF_KEY_TABLES 2u

/* expert_gating_func; 0: not given. */
#define MOE_GGUF_SOFTMAX 1u
#define MOE_GGUF_SIGMOID 2u
#define MOE_GGUF_SOFTMAX_WEIGHT 3u

struct moe_gguf_architecture_s {
    const char *architecture;           /* general.architecture */
    /* Besides those of every architecture; each ends with a NULL.  NULL: no more. */
    const moe_gguf_key_t *keys[MOE_GGUF_KEY_TABLES];
    moe_tensor_names_t tensors;
    /* After the tables.  Failures are noted in metadata. */
    void (*complete)(moe_gguf_translation_t *translation);
};

extern const moe_gguf_architecture_t moe_gguf_deepseek2;
extern const moe_gguf_architecture_t moe_gguf_ernie4_5_moe, moe_gguf_glm4moe, moe_gguf_gpt_oss;
extern const moe_gguf_architecture_t moe_gguf_hunyuan_moe, moe_gguf_hy_v3, moe_gguf_llama;
extern const moe_gguf_architecture_t moe_gguf_minimax_m2;
extern const moe_gguf_architecture_t moe_gguf_olmoe, moe_gguf_qwen2moe, moe_gguf_qwen3moe;

/* Names of tensors that architectures have in common. */
extern const moe_tensor_name_t moe_gguf_in_layer[], moe_gguf_outside[];

/*
 * Translates the metadata of the file `where` and names the set's tensors.  The caller owns the
 * references config->object and config->names, and keeps `where`.  -1 with MOE_BAD_MODEL (an
 * unknown architecture, a key that may change what is computed) or MOE_LIMIT, and nothing to
 * release.
 */
int moe_gguf_config(moe_config_t *config, const json_t *metadata, const char *where,
                    moe_tensors_t *tensors, moe_error_t *error);

/* For `complete`: "ARCHITECTURE.stored" in `text`. */
#define MOE_GGUF_NAME_SIZE 128
const char *moe_gguf_name(const moe_gguf_translation_t *translation, const char *stored,
                          char text[MOE_GGUF_NAME_SIZE]);
int moe_gguf_has(const moe_gguf_translation_t *translation, const char *stored);
uint32_t moe_gguf_uint(moe_gguf_translation_t *translation, const char *stored, uint32_t minimum,
                       uint32_t maximum);
uint32_t moe_gguf_uint_or(moe_gguf_translation_t *translation, const char *stored,
                          uint32_t otherwise, uint32_t minimum, uint32_t maximum);

/* Sets `key` of `object` (the config or its scaling), which stands for `stored`; NULL: for nothing
 * in the file.  Takes over the value. */
void moe_gguf_set(moe_gguf_translation_t *translation, json_t *object, const char *key,
                  json_t *value, const char *stored);

/* Sets `key` of the config where the file has no `stored`.  Takes over the value. */
void moe_gguf_default(moe_gguf_translation_t *translation, const char *key, json_t *value,
                      const char *stored);

/* Blocks for multi-token prediction, where the file has them, are counted as layers: sets how many
 * there are without. */
void moe_gguf_count_layers(moe_gguf_translation_t *translation);

/* Writers put 0 where a key has no value. */
void moe_gguf_drop_zero(moe_gguf_translation_t *translation, const char *key);

#endif
