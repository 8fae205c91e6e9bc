/*
 * Shared by forward.c (what a forward pass consists of) and step.c (what it does with a batch).
 */

#ifndef MOE_FORWARD_INTERNAL_H
#define MOE_FORWARD_INTERNAL_H

#include "engine/comm/step.h"
#include "engine/device/device.h"
#include "engine/forward.h"
#include "engine/mixer/mixer.h"
#include "engine/moe/block.h"
#include "engine/moe/dense.h"

typedef struct {
    const moe_mixer_t *mixer;
    void *mixer_state;
    const float *input_norm, *post_norm;
    moe_kv_t cache;
    int is_moe;
    moe_dense_t dense;
    moe_block_state_t moe;
} moe_forward_layer_t;

/* A step's rows as the host puts them together, before they go to the device. */
typedef struct {
    uint32_t *tokens, *positions, *sequences, *tables, *outputs;
} moe_staging_t;

struct moe_forward_s {
    const moe_model_t *model;
    moe_forward_options_t options;
    moe_pool_t *pool;
    moe_device_t *device;
    const moe_device_ops_t *ops;
    moe_forward_layer_t *layers;

    moe_matrix_t *embedding, *head;
    moe_split_t vocabulary;             /* of the head */
    const float *final_norm;
    moe_rope_tables_t ropes;

    uint32_t n_blocks, table_stride;
    int cuts_steps;                     /* into halves, when they are large */

    moe_staging_t host, rows;           /* the same arrays on host and device */
    float *hidden, *normed, *mixed;     /* [batch_rows, H] */
    float *picked, *logits;             /* [batch_outputs, H], [batch_outputs, vocabulary] */
    float *mixer_scratch, *ffn_scratch, *head_scratch;
    moe_block_batch_t blocks[2];        /* the second one: of the other half */
    moe_placement_t *placement;         /* of the layers with experts; NULL: there are none */
    uint32_t experts, top_k;            /* of those layers */
    uint64_t *counts;                   /* [layers, experts] */
    uint64_t *arrived;                  /* [layers]: rows for the experts of this rank */
    moe_block_state_t **moe_blocks;     /* [layers with experts] */
    moe_balance_t *balance;             /* NULL: experts stay where they are */

    uint64_t steps;
    moe_step_word_t *words;             /* [ranks] of the step; NULL: an only rank */
};

#endif
