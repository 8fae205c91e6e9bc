#include "engine/moe/experts.h"


int moe_experts_create(moe_experts_t *self, const moe_ffn_t *networks, uint32_t count,
                       moe_loader_t *loader, moe_error_t *error)
{
    const size_t step = sizeof(*networks);

    *self = (moe_experts_t) {
        .device = loader->device, .count = count, .width = networks->width,
        .hidden = networks->gate.columns, .form = networks->form,
    };
    if ((self->gate = moe_load_stack(loader, &networks->gate, step, count, error)) == NULL
        || (self->up = moe_load_stack(loader, &networks->up, step, count, error)) == NULL
        || (self->down = moe_load_stack(loader, &networks->down, step, count, error)) == NULL)
    {
        return -1;
    }
    return 0;
}


size_t moe_experts_scratch(const moe_experts_t *self, size_t rows)
{
    return 2 * rows * self->width;
}


void moe_experts_run(const moe_experts_t *self, const float *x, uint32_t n,
                     const uint32_t *offsets, float *scratch, float *y)
{
    const moe_device_ops_t *ops = self->device->ops;
    float *gate = scratch, *up = scratch + (size_t) n * self->width;
    const moe_linear_t in[2] = {
        {self->gate, x, self->hidden, 0, gate, self->width, 0},
        {self->up, x, self->hidden, 0, up, self->width, 0},
    };
    const moe_linear_t out = {self->down, gate, self->width, 0, y, self->hidden, 0};

    ops->grouped(self->device, in, 2, offsets);
    ops->swiglu(self->device, &self->form, gate, up, n, offsets + self->count, self->width, gate);
    ops->grouped(self->device, &out, 1, offsets);
}
