#include "engine/moe/router.h"

#define MAX_EXPERTS 4096u
#define MAX_GROUPS 64u


static int check(const moe_router_t *r, moe_error_t *error)
{
    if (r->experts < 1 || r->experts > MAX_EXPERTS || r->top_k < 1 || r->top_k > r->experts) {
        return moe_fail(error, MOE_BAD_MODEL, "router: top %u of %u experts (at most %u)", r->top_k,
                        r->experts, MAX_EXPERTS);
    }
    if (r->group == MOE_GROUP_NONE || r->groups <= 1) {
        return 0;
    }
    if (r->groups > MAX_GROUPS || r->experts % r->groups != 0 || r->groups_kept < 1
        || r->groups_kept > r->groups || r->experts / r->groups * r->groups_kept < r->top_k)
    {
        return moe_fail(error, MOE_BAD_MODEL,
                        "router: top %u of %u experts in %u of %u groups (at most %u)", r->top_k,
                        r->experts, r->groups_kept, r->groups, MAX_GROUPS);
    }
    return 0;
}


int moe_router_create(moe_router_state_t *self, const moe_router_t *router, moe_loader_t *loader,
                      uint32_t batch_rows, moe_error_t *error)
{
    moe_device_t *device = loader->device;
    const size_t scores = (size_t) batch_rows * router->experts * sizeof(float);

    if (check(router, error) != 0) {
        return -1;
    }
    *self = (moe_router_state_t) {
        .device = device, .hidden = router->gate.columns,
        .routing = {
            .experts = router->experts, .top_k = router->top_k,
            .sigmoid = router->score == MOE_SCORE_SIGMOID,
            .groups = router->group == MOE_GROUP_NONE ? 0 : router->groups,
            .groups_kept = router->groups_kept,
            .group_top = router->group == MOE_GROUP_TOP2_SUM ? 2 : 1,
            .normalise = router->normalise, .scale = router->scale,
        },
    };
    self->routing.bias = moe_load_vector(loader, &router->bias, error);
    if (self->routing.bias == NULL && error->code != MOE_OK) {
        return -1;
    }
    self->gate = moe_load_matrix(loader, &router->gate, error);
    self->scores = self->gate ? device->ops->allocate(device, scores, error) : NULL;
    self->keys = self->scores ? device->ops->allocate(device, scores, error) : NULL;
    return self->keys ? 0 : -1;
}


void moe_router_run(const moe_router_state_t *self, const float *x, uint32_t n, uint32_t *ids,
                    float *weights)
{
    const moe_device_ops_t *ops = self->device->ops;
    const moe_linear_t gate = {self->gate, x, self->hidden, 0, self->scores,
                               self->routing.experts, 0};

    ops->linear(self->device, &gate, 1, n);
    ops->route(self->device, &self->routing, n, self->scores, self->keys, ids, weights);
}
