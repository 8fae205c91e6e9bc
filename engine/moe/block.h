/*
 * A Mixture-of-Experts block: router → exchange → experts → combine, and the shared expert, which
 * every row goes through.  The combination owns the router's weights and adds in slot order.
 *
 * A rank holds the experts of its slots.  The ranks of a tensor-parallel group hold the same rows:
 * each takes its share of them through the block, and they gather what comes out.
 */

#ifndef MOE_BLOCK_H
#define MOE_BLOCK_H

#include "engine/moe/exchange.h"
#include "engine/moe/experts.h"
#include "engine/moe/placement.h"
#include "engine/moe/router.h"

/* Memory that all blocks of a model use in turn. */
typedef struct {
    uint32_t *ids;                  /* [moe_block_rows, top_k] */
    float *weights;                 /* [moe_block_rows, top_k] */
    float *shared;                  /* [moe_block_rows, hidden] */
    float *scratch;                 /* of the experts */
    moe_exchange_t exchange;
} moe_block_memory_t;

typedef struct {
    moe_device_t *device;
    const moe_world_t *world;
    moe_router_state_t router;
    moe_experts_t experts, shared;      /* experts: of this rank's slots; shared.width 0: none */
    moe_exchange_map_t map;             /* counts: not owned */
} moe_block_state_t;

typedef struct {
    const moe_world_t *world;           /* lives as long as the block */
    const moe_placement_t *placement;
    uint32_t layer;                     /* of the placement */
    uint32_t batch_rows;                /* of the group */
    uint64_t *counts;                   /* [experts] rows that this rank has sent to each */
} moe_block_env_t;

/* Loads a block: the router, the shared expert and the experts that the placement gives this rank.
 * 0, or -1 with MOE_LIMIT or MOE_BAD_MODEL. */
int moe_block_create(moe_block_state_t *self, const moe_block_t *block, moe_loader_t *loader,
                     const moe_block_env_t *env, moe_error_t *error);

/* Sends by another map from now on: between two steps, on all ranks at the same. */
void moe_block_place(const moe_block_state_t *self, const moe_placement_shape_t *shape,
                     const moe_placement_map_t *map);

/* Rows of a group of `parts` ranks that are each one's share. */
uint32_t moe_block_rows(const moe_world_t *world, uint32_t batch_rows);

/* Floats of moe_block_memory_t.scratch, when the exchange is made with these options. */
size_t moe_block_scratch(const moe_block_state_t *self, const moe_exchange_options_t *options);

/* y = block(x), [n, hidden] both; y is not x and has room for n rounded up to a multiple of the
 * group's parts.  -1 with MOE_UNAVAILABLE when another rank is lost. */
int moe_block_run(const moe_block_state_t *self, moe_block_memory_t *memory, const float *x,
                  uint32_t n, float *y, moe_error_t *error);

#endif
