/*
 * A Mixture-of-Experts block: router → exchange → experts → combine, and the shared expert, which
 * every row goes through.  The combination owns the router's weights and adds in slot order.
 *
 * A rank holds the experts of its slots.  The ranks of a tensor-parallel group hold the same rows:
 * each takes its share of them to the experts, all of them through its part of the shared expert,
 * and they gather what comes out.
 */

#ifndef MOE_BLOCK_H
#define MOE_BLOCK_H

#include "engine/moe/dense.h"
#include "engine/moe/exchange.h"
#include "engine/moe/experts.h"
#include "engine/moe/placement.h"
#include "engine/moe/router.h"
#include "engine/moe/settings.h"

/* One batch on its way through a block; all blocks of a model use it in turn. */
typedef struct {
    moe_exchange_t exchange;
    uint32_t *ids;                  /* [moe_block_rows, top_k] */
    float *weights;                 /* [moe_block_rows, top_k] */
    float *shared;                  /* [rows of the group, hidden] */
    float *shared_scores;           /* [moe_block_rows] of the gate of the shared expert */
    float *scratch;                 /* of the experts; not owned: nothing is in it between verbs */

    const float *x;                 /* [n, hidden]: the group's rows ... */
    uint32_t n;
    uint32_t first, rows;           /* ... and this rank's share of them */
    uint32_t share;                 /* of each rank of the group, rounded up */
} moe_block_batch_t;

typedef struct {
    moe_device_t *device;
    const moe_world_t *world;
    moe_router_state_t router;
    moe_experts_t experts;              /* of this rank's slots */
    moe_dense_t shared;                 /* width 0: none */
    moe_matrix_t *shared_gate;          /* NULL: none */
    moe_exchange_map_t map;             /* counts: not owned */
} moe_block_state_t;

typedef struct {
    const moe_world_t *world;           /* lives as long as the block */
    const moe_placement_t *placement;
    uint32_t layer;                     /* of the placement */
    uint32_t batch_rows;                /* of the group */
    uint64_t *counts;                   /* [experts] rows that this rank has sent to each */
    uint64_t *arrived;                  /* of the host: rows that its experts have had from all */
} moe_block_env_t;

/* Loads a block: the router, the shared expert and the experts that the placement gives this rank.
 * 0, or -1 with MOE_LIMIT or MOE_BAD_MODEL. */
int moe_block_create(moe_block_state_t *self, const moe_block_t *block, moe_loader_t *loader,
                     const moe_block_env_t *env, moe_error_t *error);

/* Sends by another map from now on: between two steps, on all ranks at the same. */
void moe_block_place(const moe_block_state_t *self, const moe_placement_shape_t *shape,
                     const moe_placement_map_t *map);

/* Rows of a group of `parts` ranks that are each one's share, rounded up. */
uint32_t moe_block_rows(const moe_world_t *world, uint32_t batch_rows);

/* Memory for batches of options->rows rows a rank.  0, or -1 with MOE_LIMIT; to be freed in either
 * case. */
int moe_block_batch_create(moe_block_batch_t *batch, const moe_exchange_options_t *options,
                           float *scratch, moe_error_t *error);
void moe_block_batch_free(moe_block_batch_t *batch);

/* Floats of scratch memory, when the exchange is made with these options. */
size_t moe_block_scratch(const moe_block_state_t *self, const moe_exchange_options_t *options);

/*
 * The steps of a block, in this order, for y = block(x), [n, hidden] both.  x stays until recv and
 * shared have returned; y has room for n rounded up to a multiple of the group's parts.  A rank has
 * one batch under way between send and recv, and one between return_send and return_recv, but not
 * both: the other one may compute meanwhile.  -1 with MOE_UNAVAILABLE when another rank is lost.
 */
int moe_block_send(const moe_block_state_t *self, moe_block_batch_t *batch, const float *x,
                   uint32_t n, moe_error_t *error);
int moe_block_recv(const moe_block_state_t *self, moe_block_batch_t *batch, moe_error_t *error);
void moe_block_experts(const moe_block_state_t *self, moe_block_batch_t *batch);
int moe_block_return_send(const moe_block_state_t *self, moe_block_batch_t *batch,
                          moe_error_t *error);
int moe_block_return_recv(const moe_block_state_t *self, moe_block_batch_t *batch, float *y,
                          moe_error_t *error);

/* The shared expert: any time between send and return_recv, the same on all ranks of a group. */
int moe_block_shared(const moe_block_state_t *self, moe_block_batch_t *batch, moe_error_t *error);

/* All of it at once. */
int moe_block_run(const moe_block_state_t *self, moe_block_batch_t *batch, moe_overlap_t overlap,
                  const float *x, uint32_t n, float *y, moe_error_t *error);

#endif
