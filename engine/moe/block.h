/*
 * A Mixture-of-Experts block: router → exchange → experts → combine, and the shared expert, which
 * every row goes through.  The combination owns the router's weights and adds in slot order.
 */

#ifndef MOE_BLOCK_H
#define MOE_BLOCK_H

#include "engine/moe/exchange.h"
#include "engine/moe/experts.h"
#include "engine/moe/router.h"

/* Memory that all blocks of a model use in turn. */
typedef struct {
    uint32_t *ids;                  /* [batch_rows, top_k] */
    float *weights;                 /* [batch_rows, top_k] */
    float *shared;                  /* [batch_rows, hidden] */
    float *scratch;                 /* of the experts */
} moe_block_memory_t;

typedef struct {
    moe_device_t *device;
    moe_router_state_t router;
    moe_experts_t experts, shared;      /* shared.width 0: none */
    moe_exchange_t exchange;            /* its memory is shared by all blocks */
    uint64_t *counts;                   /* [experts] rows so far, not owned */
} moe_block_state_t;

/* Loads a block; exchange and counts are shared with others.  0, or -1 with MOE_LIMIT or
 * MOE_BAD_MODEL. */
int moe_block_create(moe_block_state_t *self, const moe_block_t *block, moe_loader_t *loader,
                     uint32_t batch_rows, moe_error_t *error);

/* Floats of moe_block_memory_t.scratch. */
size_t moe_block_scratch(const moe_block_state_t *self, uint32_t batch_rows);

/* y = block(x), [n, hidden] both; y is not x.  -1 with MOE_UNAVAILABLE when another rank is lost. */
int moe_block_run(const moe_block_state_t *self, const moe_block_memory_t *memory, const float *x,
                  uint32_t n, float *y, moe_error_t *error);

#endif
