/*
 * What is gathered is [parts, n, stride]: equal sizes, as the verb wants them, with room for the
 * largest part in each row.  The device then puts the parts of each row side by side.
 */

#include "engine/split.h"


static uint32_t parts_of(const moe_world_t *world)
{
    return world->parts > 1 ? world->parts : 1;
}


static uint32_t first_unit(const moe_split_t *split, uint32_t part)
{
    return (uint32_t) ((uint64_t) split->units * part / parts_of(split->world));
}


moe_split_t moe_split_of(const moe_world_t *world, uint32_t units, uint32_t unit)
{
    moe_split_t split = {.world = world, .units = units, .unit = unit};

    split.first = first_unit(&split, world->part);
    split.count = first_unit(&split, world->part + 1) - split.first;
    return split;
}


moe_matrix_t *moe_split_load(const moe_split_t *split, moe_loader_t *loader,
                             const moe_weight_t *weight, moe_error_t *error)
{
    moe_matrix_t *matrix = moe_load_slices(loader, weight, 1, split->first * split->unit, 0,
                                           split->count * split->unit, 0, error);

    if (matrix) {
        moe_load_done(loader, weight);
    }
    return matrix;
}


size_t moe_split_stride(const moe_split_t *split)
{
    const uint32_t parts = parts_of(split->world);

    return (split->units / parts + (split->units % parts > 0)) * (size_t) split->unit;
}


size_t moe_split_scratch(const moe_split_t *split, size_t n)
{
    const uint32_t parts = parts_of(split->world);

    return parts > 1 ? parts * n * moe_split_stride(split) : 0;
}


float *moe_split_own(const moe_split_t *split, uint32_t n, float *scratch, float *y)
{
    return split->world->group == NULL
               ? y : scratch + split->world->part * n * moe_split_stride(split);
}


int moe_split_gather(const moe_split_t *split, moe_device_t *device, uint32_t n, float *scratch,
                     float *y, moe_error_t *error)
{
    moe_comm_t *group = split->world->group;
    const size_t stride = moe_split_stride(split), size = (size_t) split->units * split->unit;

    if (group == NULL) {
        return 0;
    }
    if (group->ops->allgather(group, moe_split_own(split, n, scratch, y),
                              n * stride * sizeof(float), scratch, error) != 0)
    {
        return -1;
    }
    for (uint32_t p = 0; p < group->ranks; p++) {
        const size_t first = (size_t) first_unit(split, p) * split->unit;
        const size_t end = (size_t) first_unit(split, p + 1) * split->unit;

        device->ops->copy(device, scratch + p * n * stride, stride, n, (uint32_t) (end - first),
                          y + first, size);
    }
    return 0;
}
