/* What a family needs to turn its config into descriptors. */

#ifndef MOE_BUILD_H
#define MOE_BUILD_H

#include "engine/model/config.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"

/* Bounds of what a config says; heads times their width fit 32 bits. */
#define MOE_WIDTH_LIMIT (1u << 20)
#define MOE_HEADS_LIMIT 4096u
#define MOE_HEAD_WIDTH_LIMIT 4096u
#define MOE_EXPERTS_LIMIT (1u << 16)
#define MOE_LAYERS_LIMIT 1024u

/* What every family's config says of the model as a whole. */
typedef struct {
    uint32_t hidden, vocabulary, layers, context;
    float norm_eps;
    int tied;
} moe_outline_t;

/* Reads it; norm_eps where the config has none.  What is wrong the config remembers. */
void moe_outline_read(moe_outline_t *outline, moe_config_t *config, double norm_eps);

/* The activation of the networks must be silu. */
void moe_activation_read(moe_config_t *config);

/* Takes it over and makes room for the layers.  0, or -1 with MOE_LIMIT. */
int moe_model_take_outline(moe_model_t *model, const moe_outline_t *outline, moe_error_t *error);

/* What a mixer needs of rope.  0, or -1 with MOE_LIMIT. */
int moe_model_make_rotary(moe_model_t *model, const moe_rope_t *rope, int interleaved,
                          moe_rotary_t *rotary, moe_error_t *error);

/*
 * Takes the weights of a described model: embedding, norm and head, the layers', and lets lie what
 * checkpoints hold besides: tables of rotary frequencies, layers for multi-token prediction.
 * Counts the parameters behind one token.  0 or -1.
 */
int moe_model_take_all(moe_model_t *model, const moe_family_t *family, moe_error_t *error);

/* Zeroed memory that lives as long as the model.  NULL with MOE_LIMIT. */
void *moe_model_allocate(moe_model_t *model, size_t count, size_t size, moe_error_t *error);

/* Takes the matrix [rows, columns] and counts its parameters.  0 or -1. */
int moe_model_take_weight(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                          uint32_t rows, uint32_t columns, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/*
 * Takes `count` matrices [rows, columns] as one: a tensor [count, rows, columns], of which matrix i
 * is rows i * rows to (i + 1) * rows of *weight.  0 or -1.
 */
int moe_model_take_parts(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                         uint32_t count, uint32_t rows, uint32_t columns, const char *format, ...)
    __attribute__((format(printf, 7, 8)));

/*
 * Takes the same matrix [rows, columns] of `count` experts: the tensors "PREFIX0.NAME" and so on,
 * or "PREFIXNAME" [count, rows, columns] where the files hold all experts in one.  The weight of
 * expert e lies e * step bytes behind `first`.  0 or -1.
 */
int moe_model_take_experts(moe_model_t *model, moe_error_t *error, moe_weight_t *first, size_t step,
                           uint32_t count, uint32_t rows, uint32_t columns, const char *prefix,
                           const char *name);

/* Takes the vector [size] or [1, size], widens it to f32 and counts its parameters; NaN and
 * infinity are refused.  0 or -1. */
int moe_model_take_vector(moe_model_t *model, moe_error_t *error, moe_vector_t *vector,
                          uint32_t size, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The same for a table [rows, columns], of at most 2^32 - 1 numbers, row by row. */
int moe_model_take_table(moe_model_t *model, moe_error_t *error, moe_vector_t *table,
                         uint32_t rows, uint32_t columns, const char *name);

/* The same for the bias [weight->rows] of a weight.  0 or -1. */
int moe_model_take_bias(moe_model_t *model, moe_error_t *error, moe_weight_t *weight,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Takes "PREFIXinput_layernorm.weight" and "PREFIXpost_attention_layernorm.weight".  0 or -1. */
int moe_model_take_norms(moe_model_t *model, moe_layer_t *layer, const char *prefix,
                         moe_error_t *error);

/* What the matrices of a feed-forward network are called. */
typedef struct {
    const char *gate, *up, *down;
} moe_ffn_names_t;

extern const moe_ffn_names_t moe_usual_names;   /* gate_proj, up_proj, down_proj */

/* Takes the matrices of a network of ffn->width, "PREFIX" + name.  0 or -1. */
int moe_model_take_ffn(moe_model_t *model, moe_error_t *error, moe_ffn_t *ffn, const char *prefix,
                       const moe_ffn_names_t *names);

/* The same for all experts of a block: block->router.experts of block->width; or
 * "PREFIXgate_up_proj" and "PREFIXdown_proj" of all of them, as newer writers store experts.  0 or
 * -1. */
int moe_model_take_block(moe_model_t *model, moe_error_t *error, moe_block_t *block,
                         const char *prefix, const moe_ffn_names_t *names);

/* The experts of a block, without weights.  0, or -1 with MOE_LIMIT. */
int moe_model_make_experts(moe_model_t *model, moe_block_t *block, moe_error_t *error);

/* What they are called where gate and up are one tensor, in this order. */
typedef struct {
    const char *both, *down;
} moe_fused_names_t;

/* All experts of a block so, and a single network.  0 or -1. */
int moe_model_take_fused_block(moe_model_t *model, moe_error_t *error, moe_block_t *block,
                               const char *prefix, const moe_fused_names_t *names);
int moe_model_take_fused_ffn(moe_model_t *model, moe_error_t *error, moe_ffn_t *ffn,
                             const char *prefix, const moe_fused_names_t *names);

/* Reads generation_config.json and collects the EOS ids, of the config and of what it is a part of,
 * too; model->vocabulary must be set. */
int moe_model_read_generation(moe_model_t *model, const char *directory, moe_config_t *config,
                              moe_config_t *outer, moe_error_t *error);

/* The same from the metadata of the GGUF file `where`. */
int moe_model_read_gguf_generation(moe_model_t *model, const json_t *metadata, const char *where,
                                   moe_error_t *error);

#endif
