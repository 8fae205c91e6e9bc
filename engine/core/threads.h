/*
 * The one thread pool.  It runs data-parallel loops: the items 0..n-1 of a loop are handed out in
 * chunks of `grain` to the calling thread and the pool's threads, whoever is free takes the next.
 * Which thread runs an item never changes a result: each item writes its own output.
 *
 * Waiting threads spin briefly (a decode step has dozens of loops of some microseconds each) and
 * then sleep on a futex, so an idle engine uses no CPU and a busy neighbour does not stall a step.
 */

#ifndef MOE_THREADS_H
#define MOE_THREADS_H

#include <stddef.h>

#include "engine/core/error.h"

typedef struct moe_pool_s moe_pool_t;

/* Runs items [first, last) of a loop.  `thread` is 0..threads-1 and unique among those that run at
 * the same time: an index into per-thread scratch memory. */
typedef void (*moe_pool_fn)(void *context, size_t first, size_t last, unsigned thread);

/* A pool of `threads` (>= 1) including the caller.  NULL with MOE_SYSTEM. */
moe_pool_t *moe_pool_create(unsigned threads, moe_error_t *error);
void moe_pool_free(moe_pool_t *pool);

unsigned moe_pool_threads(const moe_pool_t *pool);

/* Runs the loop and returns when all items are done.  Not reentrant: one loop at a time. */
void moe_pool_run(moe_pool_t *pool, moe_pool_fn fn, void *context, size_t items, size_t grain);

/* Number of CPUs this process may run on (affinity and cgroup quota), at least 1. */
unsigned moe_cpu_count(void);

#endif
