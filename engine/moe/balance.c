/*
 * The move is one walk over (slot, matrix, byte), the same on all ranks: at each stop every rank
 * takes a piece of the same length at the same place of its own spare stack, from whichever rank
 * and slot has that expert now.  So alltoallv sends and receives the packed weights themselves;
 * there is no buffer between.
 */

#include "engine/moe/balance.h"

#include <stdlib.h>
#include <string.h>

#include "engine/moe/solver.h"

#define ROWS_OF_EXPERT 512u     /* between two countings: their number is off by some 5 % */
#define STEPS_OF_ALL 512u
#define LEAST_STEP_BYTES 65536u
#define MATRICES 3u             /* of an expert */

struct moe_balance_s {
    moe_balance_options_t options;
    const moe_world_t *world;
    moe_device_t *device;
    moe_block_state_t *const *blocks;
    moe_placement_t *placement;
    moe_experts_t spare;

    uint64_t *sums;             /* [layers, experts]: rows of all ranks */
    uint64_t rows;              /* of all ranks, since they were made */

    uint32_t *next;             /* [1 + ranks * slots]: a layer and what its slots are to hold */
    int moves;                  /* towards that; then it is at: */
    uint32_t slot, matrix;
    size_t byte;
    size_t *sizes, *from, *rooms, *to;          /* [ranks]: of a transfer */

    moe_solver_t *solver;       /* of rank 0 */
};


static moe_matrix_t **matrix_of(moe_experts_t *experts, uint32_t index)
{
    return index == 0 ? &experts->gate : index == 1 ? &experts->up : &experts->down;
}


/* Every layer's stacks must be able to change roles with the spare ones.  Fills *bytes: of the
 * experts of a layer. */
static int make_spare(moe_balance_t *self, size_t *bytes, moe_error_t *error)
{
    const moe_device_ops_t *ops = self->device->ops;
    size_t size;

    *bytes = 0;
    self->spare = self->blocks[0]->experts;
    for (uint32_t m = 0; m < MATRICES; m++) {
        moe_matrix_t **spare = matrix_of(&self->spare, m);

        for (uint32_t i = 1; i < self->placement->layers; i++) {
            if (!ops->alike(*spare, *matrix_of(&self->blocks[i]->experts, m))) {
                return moe_fail(error, MOE_BAD_MODEL, "redundant_experts: the experts of layers "
                                "differ in size or type");
            }
        }
        ops->packed(*spare, &size);
        *bytes += size * self->placement->shape.slots;
        if ((*spare = ops->reserve(self->device, *spare, error)) == NULL) {
            return -1;
        }
    }
    return 0;
}


static int allocate(moe_balance_t *self, moe_error_t *error)
{
    const moe_placement_shape_t *shape = &self->placement->shape;
    const size_t slots = (size_t) shape->ranks * shape->slots;

    self->sums = calloc((size_t) self->placement->layers * shape->experts, sizeof(uint64_t));
    self->next = calloc(1 + slots, sizeof(uint32_t));
    self->sizes = calloc((size_t) shape->ranks * 4, sizeof(size_t));
    if (self->sums == NULL || self->next == NULL || self->sizes == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for the placement of %u experts",
                        shape->experts);
    }
    self->from = self->sizes + shape->ranks;
    self->rooms = self->from + shape->ranks;
    self->to = self->rooms + shape->ranks;
    return 0;
}


static void set_defaults(moe_balance_options_t *options, const moe_placement_t *placement,
                         uint32_t top_k, size_t layer_bytes)
{
    if (options->rows == 0) {
        options->rows = (uint64_t) ROWS_OF_EXPERT * placement->shape.experts / top_k;
    }
    if (options->step_bytes == 0) {
        options->step_bytes = (uint64_t) layer_bytes * placement->layers / STEPS_OF_ALL;
        if (options->step_bytes < LEAST_STEP_BYTES) {
            options->step_bytes = LEAST_STEP_BYTES;
        }
    }
}


moe_balance_t *moe_balance_create(moe_block_state_t *const *blocks, moe_placement_t *placement,
                                  uint32_t top_k, const moe_balance_options_t *options,
                                  moe_error_t *error)
{
    moe_balance_t *self = calloc(1, sizeof(*self));
    size_t layer_bytes;

    if (self == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for placement");
        return NULL;
    }
    self->options = *options;
    self->world = blocks[0]->world;
    self->device = blocks[0]->device;
    self->blocks = blocks;
    self->placement = placement;
    if (make_spare(self, &layer_bytes, error) != 0 || allocate(self, error) != 0) {
        moe_balance_free(self);
        return NULL;
    }
    set_defaults(&self->options, placement, top_k, layer_bytes);
    if (self->world->rank == 0 && (self->solver = moe_solver_create(placement, error)) == NULL) {
        moe_balance_free(self);
        return NULL;
    }
    return self;
}


void moe_balance_free(moe_balance_t *self)
{
    if (self != NULL) {
        moe_solver_free(self->solver);
        free(self->sums);
        free(self->next);
        free(self->sizes);
        free(self);
    }
}


moe_balance_task_t moe_balance_ask(moe_balance_t *self)
{
    if (self->solver == NULL || self->moves) {
        return MOE_BALANCE_NOTHING;
    }
    switch (moe_solver_state(self->solver)) {
    case MOE_SOLVER_IDLE:
        return self->rows >= self->options.rows ? MOE_BALANCE_COUNT : MOE_BALANCE_NOTHING;
    case MOE_SOLVER_DONE:
        return moe_solver_take(self->solver, &self->next[0], &self->next[1])
                   ? MOE_BALANCE_PLACE : MOE_BALANCE_NOTHING;
    case MOE_SOLVER_BUSY:
        break;
    }
    return MOE_BALANCE_NOTHING;
}


static int count_rows(moe_balance_t *self, moe_error_t *error)
{
    const uint32_t experts = self->placement->shape.experts, layers = self->placement->layers;
    const moe_device_ops_t *ops = self->device->ops;
    moe_comm_t *all = self->world->all;

    for (uint32_t i = 0; i < layers; i++) {
        memcpy(self->sums + (size_t) i * experts,
               ops->read(self->device, self->blocks[i]->map.counts, experts * sizeof(uint64_t)),
               experts * sizeof(uint64_t));
    }
    if (all->ops->allreduce(all, self->sums, (size_t) layers * experts, MOE_SUM_U64, error) != 0) {
        return -1;
    }
    self->rows = 0;
    if (self->solver) {
        moe_solver_begin(self->solver, self->sums);
    }
    return 0;
}


/* What another rank sent that cannot be right ends the group. */
static int refuse(moe_balance_t *self, moe_error_t *error)
{
    moe_comm_t *all = self->world->all;

    all->ops->abort(all, error);
    return -1;
}


static int begin_moves(moe_balance_t *self, moe_error_t *error)
{
    const moe_placement_shape_t *shape = &self->placement->shape;
    const size_t words = 1 + (size_t) shape->ranks * shape->slots;
    moe_comm_t *all = self->world->all;

    if (all->ops->bcast(all, 0, self->next, words * sizeof(uint32_t), error) != 0) {
        return -1;
    }
    if (self->next[0] >= self->placement->layers) {
        moe_fail(error, MOE_UNAVAILABLE, "rank 0 places experts of layer %u, of %u",
                 self->next[0], self->placement->layers);
        return refuse(self, error);
    }
    if (moe_placement_check_experts(shape, &self->next[1], error) != 0) {
        error->code = MOE_UNAVAILABLE;
        return refuse(self, error);
    }
    self->moves = 1;
    self->slot = self->matrix = 0;
    self->byte = 0;
    return 0;
}


/* Which of all slots a rank takes what its next slot is to hold from: from its own where it can,
 * else ranks take turns. */
static uint32_t source_of(const moe_balance_t *self, uint32_t rank)
{
    const uint32_t slots = self->placement->shape.slots;
    const moe_placement_map_t *map = &self->placement->maps[self->next[0]];
    const uint32_t expert = self->next[1 + (size_t) rank * slots + self->slot];

    for (uint32_t i = map->offsets[expert]; i < map->offsets[expert + 1]; i++) {
        if (map->replicas[i] / slots == rank) {
            return map->replicas[i];
        }
    }
    return moe_placement_slot(map, expert, rank);
}


/* The next piece, at most `limit` bytes of one matrix.  Sets *taken. */
static int move_piece(moe_balance_t *self, size_t limit, size_t *taken, moe_error_t *error)
{
    const uint32_t slots = self->placement->shape.slots, own = self->world->rank;
    const moe_device_ops_t *ops = self->device->ops;
    moe_comm_t *all = self->world->all;
    moe_comm_parts_t send = {NULL, self->sizes, self->from};
    moe_comm_parts_t receive = {NULL, self->rooms, self->to};
    const uint32_t giver = source_of(self, own) / slots;
    size_t size;

    send.data = ops->packed(*matrix_of(&self->blocks[self->next[0]]->experts, self->matrix), &size);
    receive.data = ops->packed(*matrix_of(&self->spare, self->matrix), &size);
    *taken = size - self->byte < limit ? size - self->byte : limit;
    for (uint32_t r = 0; r < self->world->ranks; r++) {
        const uint32_t source = source_of(self, r);

        self->sizes[r] = source / slots == own ? *taken : 0;
        self->from[r] = source % slots * size + self->byte;
        self->rooms[r] = r == giver ? *taken : 0;
        self->to[r] = self->slot * size + self->byte;
    }
    if (all->ops->alltoallv_start(all, &send, &receive, error) != 0
        || all->ops->alltoallv_finish(all, error) != 0)
    {
        return -1;
    }
    if (self->rooms[giver] != *taken) {
        moe_fail(error, MOE_UNAVAILABLE, "rank %u sent %zu bytes of weights instead of %zu", giver,
                 self->rooms[giver], *taken);
        return refuse(self, error);
    }
    self->byte += *taken;
    if (self->byte == size) {
        self->byte = 0;
        self->matrix = (self->matrix + 1) % MATRICES;
        self->slot += self->matrix == 0;
    }
    return 0;
}


/* The spare stack is full: it and the layer's change roles. */
static void switch_layer(moe_balance_t *self)
{
    moe_block_state_t *block = self->blocks[self->next[0]];
    const moe_experts_t old = block->experts;

    block->experts = self->spare;
    self->spare = old;
    moe_placement_assign(self->placement, self->next[0], &self->next[1]);
    moe_block_place(block, &self->placement->shape, &self->placement->maps[self->next[0]]);
    self->placement->version++;
    self->moves = 0;
}


static int go_on(moe_balance_t *self, moe_error_t *error)
{
    size_t left = self->options.step_bytes, taken;

    while (self->moves && left > 0) {
        if (move_piece(self, left, &taken, error) != 0) {
            return -1;
        }
        left -= taken;
        if (self->slot == self->placement->shape.slots) {
            switch_layer(self);
        }
    }
    return 0;
}


int moe_balance_step(moe_balance_t *self, moe_balance_task_t task, uint64_t rows,
                     moe_error_t *error)
{
    self->rows += rows;
    if (task == MOE_BALANCE_COUNT && count_rows(self, error) != 0) {
        return -1;
    }
    if (task == MOE_BALANCE_PLACE && begin_moves(self, error) != 0) {
        return -1;
    }
    return go_on(self, error);
}
