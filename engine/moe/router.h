/* Which experts a row goes to, and with which weights.  Scores are f32 from the gate product on. */

#ifndef MOE_ROUTER_H
#define MOE_ROUTER_H

#include "engine/loader.h"

typedef struct {
    moe_device_t *device;
    moe_matrix_t *gate;
    moe_routing_t routing;
    uint32_t hidden;
    float *scores, *keys;           /* [batch_rows, experts] scratch */
} moe_router_state_t;

/* 0, or -1 with MOE_LIMIT, or MOE_BAD_MODEL when the numbers of experts and groups do not fit. */
int moe_router_create(moe_router_state_t *self, const moe_router_t *router, moe_loader_t *loader,
                      uint32_t batch_rows, moe_error_t *error);

/* x: [n, hidden]; ids, weights: [n, top_k] by falling selection key. */
void moe_router_run(const moe_router_state_t *self, const float *x, uint32_t n, uint32_t *ids,
                    float *weights);

#endif
