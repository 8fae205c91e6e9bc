/*
 * A model: what its config says, compiled into layer descriptors that step.c walks.  A family
 * (one file each) reads its own config keys and tensor names; nothing after it knows the family.
 */

#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include "engine/model/config.h"
#include "engine/model/tensor.h"
#include "kernels/swiglu.h"

/* One weight matrix [rows, columns] = [out, in] of the checkpoint. */
typedef struct {
    const moe_tensor_t *tensor;
    uint32_t rows, columns;
    uint64_t offset;                    /* element that it begins with, in a tensor of several */
    uint32_t row_stride, column_stride; /* in elements; 0: rows lie one behind the other */
    const float *bias;                  /* [rows], added to what the rows give; owned by the model;
                                         * NULL: none */
} moe_weight_t;

/* A vector (norm weights, biases), widened to f32 by the family; owned by the model. */
typedef struct {
    float *values;
    uint32_t size;
} moe_vector_t;

/* Rotary position embedding of the first `size` dimensions of a head, or of MLA's slice. */
typedef struct {
    uint32_t size;
    int interleaved;                    /* pairs (2j, 2j+1); else (j, j + size / 2) */
    const float *frequencies;           /* [size / 2], after scaling; owned by the model */
    float magnitude;                    /* on cos and sin */
    const float *long_frequencies;      /* NULL, or instead of these ... */
    float long_magnitude;
    uint32_t short_context;             /* ... where sequences may become longer than that */
    const char *type;                   /* what it was computed from, to be shown: the type ... */
    double theta, factor;               /* ... and its factor; 0: none */
} moe_rotary_t;

/* Multi-head latent attention, computed in the absorbed form (DeepSeek-V2, arXiv 2405.04434). */
typedef struct {
    uint32_t heads, q_lora, kv_lora, nope, rope, value;     /* q_lora 0: no query compression */
    float scale;                        /* softmax scale, YaRN's factor included */
    float q_norm_eps, kv_norm_eps;
    moe_rotary_t rotary;                /* of size `rope` */
    moe_weight_t q_a, q_b;              /* [q_lora, H], [heads * (nope + rope), q_lora]; without
                                         * compression q_b is [.., H] and q_a is empty */
    moe_vector_t q_norm, kv_norm;
    moe_weight_t kv_a;                  /* [kv_lora + rope, H] */
    moe_weight_t kv_b;                  /* [heads * (nope + value), kv_lora]: k_nope and v rows of
                                         * each head; the mixer takes the slices it needs.  Empty
                                         * where the checkpoint holds them in two: */
    moe_weight_t k_b, v_b;              /* [heads * kv_lora, nope], [heads * value, kv_lora] */
    moe_weight_t output;                /* [H, heads * value] */
} moe_mla_t;

typedef enum {
    MOE_QK_NORM_NONE = 0,
    MOE_QK_NORM_HEAD,                   /* each head for itself: Qwen3 */
    MOE_QK_NORM_ROTATED,                /* the same, but after the rotation: Hunyuan */
    MOE_QK_NORM_WHOLE                   /* the whole projection: OLMoE */
} moe_qk_norm_t;

/* Attention whose query heads share key and value heads in equal groups (GQA, arXiv 2305.13245);
 * others than MOE_QK_NORM_ROTATED come before the rotation. */
typedef struct {
    uint32_t heads, kv_heads, head;     /* head: its width; kv_heads divides heads */
    float scale;
    moe_qk_norm_t norm;
    float norm_eps;
    moe_rotary_t rotary;
    uint32_t window;                    /* positions that a token sees, its own included; 0: all */
    int biases, output_bias;            /* of q, k and v; of output */
    moe_weight_t q, k, v;               /* [heads * head, H], [kv_heads * head, H] */
    moe_vector_t q_norm, k_norm;
    moe_vector_t sinks;                 /* [heads]: a score of each head's softmax that nothing is
                                         * averaged by (arXiv 2309.17453); may be empty */
    moe_weight_t output;                /* [H, heads * head] */
} moe_gqa_t;

/* SwiGLU feed-forward: down(swiglu(gate x, up x)). */
typedef struct {
    uint32_t width;
    moe_swiglu_t form;
    moe_weight_t gate, up, down;        /* [width, H], [width, H], [H, width] */
} moe_ffn_t;

typedef enum {
    MOE_SCORE_SOFTMAX = 1,
    MOE_SCORE_SIGMOID
} moe_score_t;

typedef enum {
    MOE_GROUP_NONE = 0,
    MOE_GROUP_MAX,                      /* DeepSeek-V2: group_limited_greedy */
    MOE_GROUP_TOP2_SUM                  /* DeepSeek-V3: noaux_tc */
} moe_group_t;

typedef struct {
    uint32_t experts, top_k;
    moe_score_t score;
    moe_group_t group;
    uint32_t groups, groups_kept;
    int normalise;                      /* selected weights divided by their sum + 1e-20 */
    float scale;                        /* routed_scaling_factor */
    moe_weight_t gate;                  /* [experts, H]; computed in f32 */
    moe_vector_t bias;                  /* e_score_correction_bias: selection only; may be empty */
} moe_router_t;

typedef struct {
    moe_router_t router;
    uint32_t width;
    moe_swiglu_t form;                  /* of the experts */
    moe_ffn_t *experts;                 /* [router.experts] */
    moe_ffn_t shared;                   /* width 0: none */
    moe_weight_t shared_gate;           /* [1, H]: what comes out of `shared` is multiplied by
                                         * sigmoid(shared_gate x); tensor NULL: it is not */
} moe_block_t;

typedef enum {
    MOE_MIXER_MLA = 1,
    MOE_MIXER_GQA
} moe_mixer_kind_t;

typedef struct {
    moe_vector_t input_norm, post_norm;
    moe_mixer_kind_t mixer;
    union {
        moe_mla_t mla;
        moe_gqa_t gqa;
    };
    int is_moe;
    union {
        moe_ffn_t dense;
        moe_block_t moe;
    };
} moe_layer_t;

/* Sampling defaults of generation_config.json; `given` holds MOE_GIVEN_* bits. */
typedef struct {
    uint32_t given;
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
} moe_generation_t;

typedef struct {
    char family[32];                    /* model_type */
    uint32_t hidden, vocabulary, n_layers, context;     /* context: max_position_embeddings */
    float norm_eps;
    float embedding_scale;              /* on what the embedding gives */
    float residual_scale;               /* on what a mixer or a network adds to a row */
    float logits_scale;                 /* on logits: the final norm has it in its weights */
    int tied;                           /* the head is the embedding */
    moe_weight_t embedding;             /* [vocabulary, H] */
    moe_weight_t head;                  /* [vocabulary, H]; tied: the embedding's tensor */
    moe_vector_t final_norm;
    moe_layer_t *layers;
    uint32_t *eos_ids;                  /* union of config, generation_config, tokenizer_config */
    uint32_t n_eos_ids;
    moe_generation_t generation;
    uint64_t parameters;                /* of the layers above: MTP layers are not counted */
    uint64_t active_parameters;         /* those behind one token: its experts and all that is no
                                         * expert, embedding and head included */
    moe_tensors_t *tensors;
    void *memory;                       /* what the descriptors own */
} moe_model_t;

/* Opens a model, a directory or a GGUF file (core/model_path.h): config, tensors, descriptors;
 * reads no weights yet.  NULL with MOE_BAD_MODEL: the message names file and key or tensor. */
moe_model_t *moe_model_open(const char *path, moe_error_t *error);
void moe_model_close(moe_model_t *model);

/* The descriptors alone, from a config.json: shapes without weights, no tensors, no parameters
 * counted, however the weights are quantised.  NULL with MOE_BAD_MODEL or MOE_LIMIT. */
moe_model_t *moe_model_describe(const json_t *config, moe_error_t *error);

/* A family: adding one is adding a file and a row in model/family.c. */
typedef struct moe_family_s moe_family_t;

struct moe_family_s {
    const char *model_type;
    /* Config keys that the family understands; keys that change the maths of no family are in
     * family.c; others are refused. */
    const char *const *known_keys;
    const char *quantised;      /* quant_method of quantised weights that it takes; NULL: none */
    /* Reads the whole config, without looking at the weights: fills the model's sizes and the
     * shapes of its layers, vectors that are to be taken with their size among them.  Failures are
     * said to config->error. */
    int (*describe)(const moe_family_t *family, moe_model_t *model, const moe_config_t *config,
                    moe_error_t *error);
    /* Takes the tensors of a layer that was described from model->tensors. */
    int (*take_layer)(const moe_family_t *family, moe_model_t *model, uint32_t layer,
                      moe_error_t *error);
};

extern const moe_family_t *const moe_families[];        /* NULL-terminated */

/* Where the config is that of a model of several kinds of input, it becomes that of its language
 * model, and its own keys are checked: 1.  0: it stays as it is.  -1 with MOE_BAD_MODEL. */
int moe_family_enter_text(moe_config_t *config);

/* The family of the config's model_type, after its keys were checked.  NULL with MOE_BAD_MODEL. */
const moe_family_t *moe_family_find(const moe_config_t *config);

#endif
