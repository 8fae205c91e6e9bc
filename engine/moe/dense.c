#include "engine/moe/dense.h"


int moe_dense_create(moe_dense_t *self, const moe_ffn_t *network, const moe_world_t *world,
                     moe_loader_t *loader, moe_error_t *error)
{
    *self = (moe_dense_t) {
        .device = loader->device, .width = network->width, .hidden = network->gate.columns,
        .form = network->form,
        .inner = moe_split_of(world, network->width, 1),
        .outer = moe_split_of(world, network->down.rows, 1),
    };
    if ((self->gate = moe_split_load(&self->inner, loader, &network->gate, error)) == NULL
        || (self->up = moe_split_load(&self->inner, loader, &network->up, error)) == NULL
        || (self->down = moe_split_load(&self->outer, loader, &network->down, error)) == NULL)
    {
        return -1;
    }
    return 0;
}


/* Floats to gather either product in. */
static size_t gathered(const moe_dense_t *self, size_t rows)
{
    const size_t inner = moe_split_scratch(&self->inner, rows);
    const size_t outer = moe_split_scratch(&self->outer, rows);

    return inner > outer ? inner : outer;
}


size_t moe_dense_scratch(const moe_dense_t *self, size_t rows)
{
    return rows * (self->width + moe_split_stride(&self->inner)) + gathered(self, rows);
}


int moe_dense_run(const moe_dense_t *self, const float *x, uint32_t n, float *scratch, float *y,
                  moe_error_t *error)
{
    const moe_device_ops_t *ops = self->device->ops;
    const size_t inner = moe_split_stride(&self->inner), outer = moe_split_stride(&self->outer);
    float *active = scratch, *up = active + (size_t) n * self->width;
    float *parts = up + (size_t) n * inner;
    float *gate = moe_split_own(&self->inner, n, parts, active);
    const moe_linear_t in[2] = {
        {self->gate, x, self->hidden, 0, gate, inner, 0},
        {self->up, x, self->hidden, 0, up, inner, 0},
    };

    ops->linear(self->device, in, 2, n);
    ops->swiglu(self->device, &self->form, gate, up, n, NULL, (uint32_t) inner, gate);
    if (moe_split_gather(&self->inner, self->device, n, parts, active, error) != 0) {
        return -1;
    }
    const moe_linear_t out = {
        self->down, active, self->width, 0, moe_split_own(&self->outer, n, parts, y), outer, 0
    };

    ops->linear(self->device, &out, 1, n);
    return moe_split_gather(&self->outer, self->device, n, parts, y, error);
}
