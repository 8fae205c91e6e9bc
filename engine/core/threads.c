/*
 * Thread pool for data-parallel loops.
 *
 * One loop is open at a time.  The caller describes it, opens it and raises the generation, which
 * is what waiting threads watch.  A thread joins by counting itself into `state`, which works only
 * while the loop is open; then it takes chunks from `next` until none is left.  The caller takes
 * chunks too; when they are gone it closes the loop and waits for those who joined, never for a
 * thread that the system has not got round to running: a busy neighbour costs its share of the
 * work, not the step.
 */

#include "engine/core/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/core/futex.h"

#define STATE_OPEN 0x80000000u          /* threads may join */
#define STATE_WAITED 0x40000000u        /* the caller sleeps until the last one leaves */
#define STATE_JOINED 0x3fffffffu        /* number of threads inside */

typedef struct {
    moe_pool_t *pool;
    pthread_t handle;
    unsigned index;
} worker_t;

struct moe_pool_s {
    /* The loop: written by the caller while nobody is inside. */
    moe_pool_fn fn;
    void *context;
    size_t items, grain;

    _Alignas(64) _Atomic size_t next;           /* first item not handed out */
    _Alignas(64) _Atomic uint32_t state;
    _Alignas(64) _Atomic uint32_t generation;   /* raised when a loop opens, and to stop */
    _Atomic uint32_t sleepers;
    _Atomic int stopping;

    unsigned threads, started;
    worker_t *workers;
};


static void take_chunks(moe_pool_t *pool, unsigned thread)
{
    const size_t items = pool->items, grain = pool->grain;

    for (;;) {
        size_t first = atomic_fetch_add_explicit(&pool->next, grain, memory_order_relaxed);

        if (first >= items) {
            return;
        }
        pool->fn(pool->context, first, items - first < grain ? items : first + grain, thread);
    }
}


static int join_loop(moe_pool_t *pool)
{
    uint32_t state = atomic_load_explicit(&pool->state, memory_order_relaxed);

    while (state & STATE_OPEN) {
        if (atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_relaxed))
        {
            return 1;
        }
    }
    return 0;
}


static void leave_loop(moe_pool_t *pool)
{
    uint32_t state = atomic_fetch_sub_explicit(&pool->state, 1, memory_order_release) - 1;

    if ((state & STATE_WAITED) && (state & STATE_JOINED) == 0) {
        moe_futex_wake(&pool->state, 1);
    }
}


static void *run_worker(void *argument)
{
    worker_t *worker = argument;
    moe_pool_t *pool = worker->pool;
    uint32_t seen = 0;

    for (;;) {
        seen = moe_futex_await(&pool->generation, seen, &pool->sleepers);
        if (atomic_load(&pool->stopping)) {
            return NULL;
        }
        if (join_loop(pool)) {
            take_chunks(pool, worker->index);
            leave_loop(pool);
        }
    }
}


moe_pool_t *moe_pool_create(unsigned threads, moe_error_t *error)
{
    moe_pool_t *pool = NULL;
    int status;

    if (threads < 1 || threads > STATE_JOINED
        || posix_memalign((void **) &pool, 64, sizeof(*pool)) != 0)
    {
        moe_fail(error, MOE_SYSTEM, "cannot make a pool of %u threads", threads);
        return NULL;
    }
    memset(pool, 0, sizeof(*pool));
    pool->threads = threads;
    pool->workers = calloc(threads, sizeof(*pool->workers));
    if (pool->workers == NULL) {
        free(pool);
        moe_fail(error, MOE_SYSTEM, "out of memory for %u threads", threads);
        return NULL;
    }
    for (unsigned i = 1; i < threads; i++) {
        worker_t *worker = &pool->workers[pool->started];

        worker->pool = pool;
        worker->index = i;
        status = pthread_create(&worker->handle, NULL, run_worker, worker);
        if (status != 0) {
            moe_pool_free(pool);
            moe_fail(error, MOE_SYSTEM, "cannot start thread %u: %s", i, strerror(status));
            return NULL;
        }
        pool->started++;
    }
    return pool;
}


void moe_pool_free(moe_pool_t *pool)
{
    if (pool == NULL) {
        return;
    }
    atomic_store(&pool->stopping, 1);
    atomic_fetch_add(&pool->generation, 1);
    moe_futex_wake(&pool->generation, INT32_MAX);
    for (unsigned i = 0; i < pool->started; i++) {
        pthread_join(pool->workers[i].handle, NULL);
    }
    free(pool->workers);
    free(pool);
}


unsigned moe_pool_threads(const moe_pool_t *pool)
{
    return pool->threads;
}


static void close_loop(moe_pool_t *pool)
{
    uint32_t state = atomic_fetch_and(&pool->state, ~STATE_OPEN) & ~STATE_OPEN;

    for (unsigned i = 0; (state & STATE_JOINED) && i < MOE_SPINS; i++) {
        moe_cpu_relax();
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
    }
    if (state & STATE_JOINED) {
        state = atomic_fetch_or(&pool->state, STATE_WAITED) | STATE_WAITED;
        while (state & STATE_JOINED) {
            moe_futex_wait(&pool->state, state, 0);
            state = atomic_load_explicit(&pool->state, memory_order_acquire);
        }
    }
}


void moe_pool_run(moe_pool_t *pool, moe_pool_fn fn, void *context, size_t items, size_t grain)
{
    grain = grain ? grain : 1;
    if (pool->threads == 1 || items <= grain) {
        if (items > 0) {
            fn(context, 0, items, 0);
        }
        return;
    }
    pool->fn = fn;
    pool->context = context;
    pool->items = items;
    pool->grain = grain;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->state, STATE_OPEN, memory_order_release);
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        moe_futex_wake(&pool->generation, INT32_MAX);
    }
    take_chunks(pool, 0);
    close_loop(pool);
}


/* Reads a small file of whitespace-separated words; the number of longs found, at most 2;
 * "max" counts as -1. */
static int read_numbers(const char *path, long numbers[2])
{
    char text[64], *word, *rest = text;
    FILE *file = fopen(path, "re");
    int n = 0;

    if (file == NULL) {
        return 0;
    }
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    while (n < 2 && (word = strtok_r(NULL, " \n", &rest)) != NULL) {
        numbers[n++] = strcmp(word, "max") == 0 ? -1 : strtol(word, NULL, 10);
    }
    return n;
}


/* CPUs that a cgroup's quota is worth, rounded up; 0 when there is none. */
static unsigned quota_cpus(void)
{
    long numbers[2], period[2];

    if (read_numbers("/sys/fs/cgroup/cpu.max", numbers) != 2) {
        if (read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", numbers) != 1
            || read_numbers("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period) != 1)
        {
            return 0;
        }
        numbers[1] = period[0];
    }
    if (numbers[0] <= 0 || numbers[1] <= 0) {
        return 0;
    }
    return (unsigned) ((numbers[0] + numbers[1] - 1) / numbers[1]);
}


unsigned moe_cpu_count(void)
{
    unsigned quota = quota_cpus(), cpus = 1;
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        cpus = (unsigned) CPU_COUNT(&set);
    } else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) {
        cpus = (unsigned) sysconf(_SC_NPROCESSORS_ONLN);    /* more CPUs than cpu_set_t holds */
    }
    if (quota > 0 && quota < cpus) {
        cpus = quota;
    }
    return cpus > 0 ? cpus : 1;
}
