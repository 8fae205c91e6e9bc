/*
 * The state says whose the data is: the thread's while busy, else the caller's.  A step only looks
 * at the state; nothing of it ever waits for the thread.
 */

#include "engine/moe/solver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/core/futex.h"

#define KEEP 0.5                /* of the loads at the next counting */
#define GAIN 1.05               /* of the balance, at least, to be worth a move */
#define NICE 10                 /* steps go first */
#define ENDING 3u               /* a state beyond moe_solver_state_t */

struct moe_solver_s {
    const moe_placement_t *in_use;
    moe_placement_t *solved;
    double *loads;                      /* [layers, experts] */
    uint64_t *seen;                     /* [layers, experts] */
    const uint64_t *counts;             /* [layers, experts], not owned */
    unsigned char *wanted;              /* [layers]: to be taken */
    pthread_t thread;
    int has_thread;
    _Atomic uint32_t state;
};


static void solve_layer(moe_solver_t *self, uint32_t layer)
{
    const moe_placement_shape_t *shape = &self->in_use->shape;
    const size_t first = (size_t) layer * shape->experts;
    double *loads = self->loads + first, now;

    moe_placement_age(loads, self->seen + first, self->counts + first, shape->experts, KEEP);
    moe_placement_solve(self->solved, layer, loads);
    now = moe_placement_balance(shape, &self->in_use->maps[layer], loads);
    self->wanted[layer] = moe_placement_balance(shape, &self->solved->maps[layer], loads)
                          >= GAIN * now;
}


static void *run(void *argument)
{
    moe_solver_t *self = argument;
    uint32_t state;

    setpriority(PRIO_PROCESS, (id_t) gettid(), NICE);
    while ((state = atomic_load(&self->state)) != ENDING) {
        if (state != MOE_SOLVER_BUSY) {
            moe_futex_wait(&self->state, state, 0);
            continue;
        }
        for (uint32_t i = 0; i < self->in_use->layers && atomic_load(&self->state) != ENDING; i++) {
            solve_layer(self, i);
        }
        atomic_compare_exchange_strong(&self->state, &state, MOE_SOLVER_DONE);
    }
    return NULL;
}


moe_solver_t *moe_solver_create(const moe_placement_t *in_use, moe_error_t *error)
{
    const size_t counts = (size_t) in_use->layers * in_use->shape.experts;
    moe_solver_t *self = calloc(1, sizeof(*self));

    if (self == NULL || (self->loads = calloc(counts, sizeof(double))) == NULL
        || (self->seen = calloc(counts, sizeof(uint64_t))) == NULL
        || (self->wanted = calloc(in_use->layers, 1)) == NULL)
    {
        moe_solver_free(self);
        moe_fail(error, MOE_LIMIT, "out of memory for the loads of %zu experts", counts);
        return NULL;
    }
    self->in_use = in_use;
    self->solved = moe_placement_create(&in_use->shape, in_use->layers, error);
    if (self->solved == NULL) {
        moe_solver_free(self);
        return NULL;
    }
    if (pthread_create(&self->thread, NULL, run, self) != 0) {
        moe_solver_free(self);
        moe_fail(error, MOE_SYSTEM, "a thread that places experts cannot be started");
        return NULL;
    }
    self->has_thread = 1;
    return self;
}


void moe_solver_free(moe_solver_t *self)
{
    if (self == NULL) {
        return;
    }
    if (self->has_thread) {
        atomic_store(&self->state, ENDING);
        moe_futex_wake(&self->state, 1);
        pthread_join(self->thread, NULL);
    }
    moe_placement_free(self->solved);
    free(self->loads);
    free(self->seen);
    free(self->wanted);
    free(self);
}


moe_solver_state_t moe_solver_state(moe_solver_t *self)
{
    return (moe_solver_state_t) atomic_load(&self->state);
}


void moe_solver_begin(moe_solver_t *self, const uint64_t *counts)
{
    self->counts = counts;
    atomic_store(&self->state, MOE_SOLVER_BUSY);
    moe_futex_wake(&self->state, 1);
}


int moe_solver_take(moe_solver_t *self, uint32_t *layer, uint32_t *experts)
{
    const moe_placement_shape_t *shape = &self->in_use->shape;
    uint32_t i = 0;

    while (i < self->in_use->layers && !self->wanted[i]) {
        i++;
    }
    if (i == self->in_use->layers) {
        atomic_store(&self->state, MOE_SOLVER_IDLE);
        return 0;
    }
    self->wanted[i] = 0;
    *layer = i;
    memcpy(experts, self->solved->maps[i].experts,
           (size_t) shape->ranks * shape->slots * sizeof(uint32_t));
    moe_placement_settle(shape, &self->in_use->maps[i], experts);
    return 1;
}
