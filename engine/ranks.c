/*
 * Rank 0 is the calling thread, the others are drivers: threads that wait for the generation of
 * work to be raised, do their rank's part of it and count themselves as finished.  What they wait
 * for between two steps is short, so both sides spin a little before they sleep, like the threads
 * of a pool; in an idle engine all of them sleep.
 *
 * The caller waits for the drivers no longer than ranks wait for each other inside a step: who is
 * late then is lost, whatever it does.  After that no work is given out any more.
 */

#include "engine/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/futex.h"
#include "engine/core/topology.h"
#include "engine/loader.h"
#include "engine/spread.h"

typedef struct {
    moe_ranks_t *ranks;
    moe_world_t world;
    unsigned first_thread, threads;     /* of all ranks' threads */
    moe_forward_t *forward;
    pthread_t driver;
    int has_driver;
    uint64_t loaded;                    /* bytes; guarded by the lock */

    /* Of the work in progress. */
    const float *logits;
    moe_error_t error;
    _Atomic uint32_t finished;          /* generation of the last work done */
} rank_t;

/* What all ranks do, each its part. */
typedef struct {
    int (*run)(rank_t *rank);           /* -1 with the rank's error: it is lost; NULL: the end */
    const moe_batch_t *const *batches;
    moe_ranks_fn fn;
    void *fn_context;
    const size_t *items;
} work_t;

struct moe_ranks_s {
    moe_ranks_options_t options;
    moe_model_t *model;
    moe_topology_t *topology;           /* NULL: one rank */
    uint32_t count, groups;
    rank_t *all;                        /* [count] */
    moe_comm_t **ends;                  /* [count + count]: over all; of groups */

    work_t work;                        /* written while all drivers wait */

    uint64_t *arrived;                  /* [count, layers]: at the end of the last step */
    moe_ranks_rows_t rows;

    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) _Atomic uint32_t pending;      /* drivers that have not finished */
    _Atomic uint32_t sleepers;          /* drivers */
    _Atomic uint32_t caller_sleeps;
    _Atomic uint32_t is_lost;

    pthread_mutex_t lock;
    uint64_t loaded;                    /* bytes, by all ranks */
    moe_error_t reason;                 /* once is_lost */
};


static uint32_t or_one(uint32_t value)
{
    return value ? value : 1;
}


int moe_ranks_check(uint32_t ranks, uint32_t tensor_parallel, unsigned threads,
                    moe_error_t *error)
{
    ranks = or_one(ranks);
    tensor_parallel = or_one(tensor_parallel);
    if (ranks > MOE_RANKS_LIMIT) {
        return moe_fail(error, MOE_INVALID, "%u ranks are more than %u", ranks, MOE_RANKS_LIMIT);
    }
    if (ranks % tensor_parallel != 0) {
        return moe_fail(error, MOE_INVALID, "tensor_parallel %u does not divide %u ranks",
                        tensor_parallel, ranks);
    }
    if (threads < ranks) {
        return moe_fail(error, MOE_INVALID, "%u ranks need a thread each: threads is %u",
                        ranks, threads);
    }
    return 0;
}


int moe_ranks_check_model(const moe_model_t *model, uint32_t ranks, uint32_t tensor_parallel,
                          uint32_t redundant, moe_error_t *error)
{
    moe_placement_shape_t shape;
    uint32_t layers;

    return moe_forward_check_parts(model, or_one(tensor_parallel), error) != 0
           || moe_spread(model, or_one(ranks), redundant, &shape, &layers, error) != 0 ? -1 : 0;
}


unsigned moe_ranks_share(unsigned threads, uint32_t rank, uint32_t ranks)
{
    return threads / ranks + (rank < threads % ranks);
}


/* The first reason wins. */
static void lose(moe_ranks_t *ranks, const moe_error_t *reason)
{
    int first;

    pthread_mutex_lock(&ranks->lock);
    first = !atomic_load(&ranks->is_lost);
    if (first) {
        ranks->reason = *reason;
        atomic_store(&ranks->is_lost, 1);
    }
    pthread_mutex_unlock(&ranks->lock);
    for (uint32_t i = 0; first && i < 2 * ranks->count; i++) {
        if (ranks->ends[i]) {
            ranks->ends[i]->ops->abort(ranks->ends[i], reason);
        }
    }
    if (first && ranks->options.lost) {
        ranks->options.lost(ranks->options.lost_context, reason);
    }
}


static int give_reason(moe_ranks_t *ranks, moe_error_t *error)
{
    pthread_mutex_lock(&ranks->lock);
    *error = ranks->reason;
    pthread_mutex_unlock(&ranks->lock);
    return -1;
}


static void do_part(rank_t *rank)
{
    if (rank->ranks->work.run(rank) != 0) {
        lose(rank->ranks, &rank->error);
    }
}


static void *drive(void *argument)
{
    rank_t *rank = argument;
    moe_ranks_t *ranks = rank->ranks;
    uint32_t seen = 0;

    for (;;) {
        seen = moe_futex_await(&ranks->generation, seen, &ranks->sleepers);
        if (ranks->work.run == NULL) {
            return NULL;
        }
        do_part(rank);
        atomic_store(&rank->finished, seen);
        if (atomic_fetch_sub(&ranks->pending, 1) == 1 && atomic_load(&ranks->caller_sleeps)) {
            moe_futex_wake(&ranks->pending, 1);
        }
    }
}


/* 0 when no driver is at work any more, -1 when some still are after `timeout_ns` (0: never). */
static int wait_for_drivers(moe_ranks_t *ranks, uint64_t timeout_ns)
{
    uint32_t pending = atomic_load_explicit(&ranks->pending, memory_order_acquire);
    uint64_t left_ns = timeout_ns;

    for (unsigned i = 0; i < MOE_SPINS && pending > 0; i++) {
        moe_cpu_relax();
        pending = atomic_load_explicit(&ranks->pending, memory_order_acquire);
    }
    atomic_store(&ranks->caller_sleeps, 1);
    while ((pending = atomic_load(&ranks->pending)) > 0 && (timeout_ns == 0 || left_ns > 0)) {
        if (timeout_ns == 0) {
            moe_futex_wait(&ranks->pending, pending, 0);
        } else {
            moe_futex_watch(&ranks->pending, pending, &left_ns);
        }
    }
    atomic_store(&ranks->caller_sleeps, 0);
    return pending > 0 ? -1 : 0;
}


static void give_out(moe_ranks_t *ranks, const work_t *work)
{
    ranks->work = *work;
    atomic_store(&ranks->pending, ranks->count - 1);
    atomic_fetch_add(&ranks->generation, 1);
    if (atomic_load(&ranks->sleepers) > 0) {
        moe_futex_wake(&ranks->generation, INT32_MAX);
    }
}


/* One late rank is named: it is enough to look for. */
static void lose_late(moe_ranks_t *ranks)
{
    const uint32_t generation = atomic_load(&ranks->generation);
    moe_error_t error;

    for (uint32_t r = 1; r < ranks->count; r++) {
        if (atomic_load(&ranks->all[r].finished) != generation) {
            moe_fail(&error, MOE_UNAVAILABLE, "rank %u did not end its step within %llu ms", r,
                     (unsigned long long) (ranks->options.timeout_ns / 1000000u));
            lose(ranks, &error);
        }
    }
}


/* All ranks do some work; waits for them.  -1 with the reason when one is lost. */
static int run_all(moe_ranks_t *ranks, const work_t *work, uint64_t timeout_ns,
                   moe_error_t *error)
{
    if (atomic_load(&ranks->is_lost)) {
        return give_reason(ranks, error);
    }
    give_out(ranks, work);
    do_part(&ranks->all[0]);
    if (wait_for_drivers(ranks, timeout_ns) != 0) {
        lose_late(ranks);
    }
    return atomic_load(&ranks->is_lost) ? give_reason(ranks, error) : 0;
}


static void note_progress(void *context, uint64_t done, uint64_t total)
{
    rank_t *rank = context;
    moe_ranks_t *ranks = rank->ranks;
    const moe_forward_options_t *forward = &ranks->options.forward;

    pthread_mutex_lock(&ranks->lock);
    ranks->loaded += done - rank->loaded;
    rank->loaded = done;
    forward->progress(forward->progress_context, ranks->loaded, total * ranks->count);
    pthread_mutex_unlock(&ranks->lock);
}


static int make_forward(rank_t *rank)
{
    moe_ranks_t *ranks = rank->ranks;
    moe_forward_options_t options = ranks->options.forward;

    if (ranks->topology
        && moe_topology_bind(ranks->topology, rank->world.rank, ranks->count, &rank->error) != 0)
    {
        return -1;
    }
    options.world = rank->world;
    options.threads = rank->threads;
    if (options.progress) {
        options.progress = note_progress;
        options.progress_context = rank;
    }
    rank->forward = moe_forward_create(ranks->model, &options, &rank->error);
    return rank->forward ? 0 : -1;
}


static uint32_t group_of(const rank_t *rank)
{
    return rank->world.rank / rank->world.parts;
}


static int run_forward(rank_t *rank)
{
    rank->logits = moe_forward_step(rank->forward,
                                    rank->ranks->work.batches[group_of(rank)], &rank->error);
    return rank->logits ? 0 : -1;
}


static void run_range(void *context, size_t first, size_t last, unsigned thread)
{
    const rank_t *rank = context;
    const work_t *work = &rank->ranks->work;
    const uint32_t group = group_of(rank);
    const size_t begin = work->items[group] * rank->world.part / rank->world.parts;

    work->fn(work->fn_context, group, begin + first, begin + last, rank->first_thread + thread);
}


/* Its part of the group's items. */
static int run_loop(rank_t *rank)
{
    const size_t items = rank->ranks->work.items[group_of(rank)];
    const size_t begin = items * rank->world.part / rank->world.parts;
    const size_t end = items * (rank->world.part + 1) / rank->world.parts;

    moe_pool_run(moe_forward_pool(rank->forward), run_range, rank, end - begin, 1);
    return 0;
}


/* Places of the ranks in the world and among the threads. */
static void place_ranks(moe_ranks_t *ranks)
{
    const unsigned threads = ranks->options.forward.threads;
    const uint32_t parts = ranks->options.tensor_parallel;
    unsigned used = 0;

    for (uint32_t r = 0; r < ranks->count; r++) {
        ranks->all[r] = (rank_t) {
            .ranks = ranks,
            .world = { .rank = r, .ranks = ranks->count, .part = r % parts, .parts = parts },
            .first_thread = used,
            .threads = moe_ranks_share(threads, r, ranks->count),
        };
        used += ranks->all[r].threads;
    }
}


static int connect_ranks(moe_ranks_t *ranks, moe_error_t *error)
{
    const uint32_t parts = ranks->options.tensor_parallel;
    const moe_comm_options_t options = {
        .timeout_ns = ranks->options.timeout_ns, .fault = ranks->options.fault
    };
    const moe_comm_options_t of_groups = { .timeout_ns = ranks->options.timeout_ns };
    moe_comm_t **groups = ranks->ends + ranks->count;

    if (moe_comm_threads(ranks->ends, ranks->count, &options, error) != 0) {
        return -1;
    }
    for (uint32_t g = 0; parts > 1 && g < ranks->groups; g++) {
        if (moe_comm_threads(groups + g * parts, parts, &of_groups, error) != 0) {
            return -1;
        }
    }
    for (uint32_t r = 0; r < ranks->count; r++) {
        ranks->all[r].world.all = ranks->ends[r];
        ranks->all[r].world.group = groups[r];
    }
    return 0;
}


static int start_drivers(moe_ranks_t *ranks, moe_error_t *error)
{
    for (uint32_t r = 1; r < ranks->count; r++) {
        if (pthread_create(&ranks->all[r].driver, NULL, drive, &ranks->all[r]) != 0) {
            return moe_fail(error, MOE_SYSTEM, "rank %u: a thread cannot be started", r);
        }
        ranks->all[r].has_driver = 1;
    }
    return 0;
}


/* What an only rank does without. */
static int start_others(moe_ranks_t *ranks, moe_error_t *error)
{
    ranks->topology = moe_topology_create(error);
    return ranks->topology == NULL || connect_ranks(ranks, error) != 0
           || start_drivers(ranks, error) != 0 ? -1 : 0;
}


static moe_ranks_t *allocate(moe_model_t *model, const moe_ranks_options_t *options,
                             moe_error_t *error)
{
    moe_ranks_t *ranks = aligned_alloc(_Alignof(moe_ranks_t), sizeof(*ranks));

    if (ranks == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for ranks");
        return NULL;
    }
    memset(ranks, 0, sizeof(*ranks));
    pthread_mutex_init(&ranks->lock, NULL);
    ranks->model = model;
    ranks->options = *options;
    ranks->count = or_one(options->ranks);
    ranks->options.tensor_parallel = or_one(options->tensor_parallel);
    ranks->groups = ranks->count / ranks->options.tensor_parallel;
    if (options->timeout_ns == 0) {
        ranks->options.timeout_ns = MOE_RANKS_TIMEOUT_NS;
    }
    ranks->all = calloc(ranks->count, sizeof(rank_t));
    ranks->ends = calloc((size_t) ranks->count * 2, sizeof(moe_comm_t *));
    ranks->arrived = calloc((size_t) ranks->count * model->n_layers, sizeof(uint64_t));
    if (ranks->all == NULL || ranks->ends == NULL || ranks->arrived == NULL) {
        moe_ranks_free(ranks);
        moe_fail(error, MOE_LIMIT, "out of memory for %u ranks", ranks->count);
        return NULL;
    }
    return ranks;
}


moe_ranks_t *moe_ranks_create(moe_model_t *model, const moe_ranks_options_t *options,
                              moe_error_t *error)
{
    const work_t making = { .run = make_forward };
    moe_ranks_t *ranks;

    if (moe_ranks_check(options->ranks, options->tensor_parallel, options->forward.threads, error)
        != 0)
    {
        return NULL;
    }
    ranks = allocate(model, options, error);
    if (ranks == NULL) {
        return NULL;
    }
    place_ranks(ranks);
    /* Who cannot be made is not lost: nobody is told but the caller. */
    ranks->options.lost = NULL;
    if ((ranks->count > 1 && start_others(ranks, error) != 0)
        || run_all(ranks, &making, 0, error) != 0)
    {
        moe_ranks_free(ranks);
        return NULL;
    }
    ranks->options.lost = options->lost;
    return ranks;
}


void moe_ranks_free(moe_ranks_t *ranks)
{
    const work_t end = { .run = NULL };

    if (ranks == NULL) {
        return;
    }
    if (ranks->count > 1) {
        wait_for_drivers(ranks, 0);
        give_out(ranks, &end);
    }
    for (uint32_t r = 0; ranks->all && r < ranks->count; r++) {
        if (ranks->all[r].has_driver) {
            pthread_join(ranks->all[r].driver, NULL);
        }
    }
    for (uint32_t r = 0; ranks->all && r < ranks->count; r++) {
        moe_forward_free(ranks->all[r].forward);
    }
    for (uint32_t i = 0; ranks->ends && i < 2 * ranks->count; i++) {
        if (ranks->ends[i]) {
            ranks->ends[i]->ops->close(ranks->ends[i]);
        }
    }
    moe_topology_free(ranks->topology);
    pthread_mutex_destroy(&ranks->lock);
    free(ranks->all);
    free(ranks->ends);
    free(ranks->arrived);
    free(ranks);
}


uint32_t moe_ranks_count(const moe_ranks_t *ranks)
{
    return ranks->count;
}


uint32_t moe_ranks_groups(const moe_ranks_t *ranks)
{
    return ranks->groups;
}


unsigned moe_ranks_threads(const moe_ranks_t *ranks)
{
    return ranks->options.forward.threads;
}


unsigned moe_ranks_nodes(const moe_ranks_t *ranks)
{
    return ranks->topology ? moe_topology_nodes(ranks->topology) : 1;
}


const moe_forward_t *moe_ranks_forward(const moe_ranks_t *ranks, uint32_t rank)
{
    return ranks->all[rank].forward;
}


/* What the step has added. */
static void note_arrived(moe_ranks_t *ranks)
{
    const uint32_t layers = ranks->model->n_layers;

    for (uint32_t l = 0; l < layers; l++) {
        uint64_t most = 0;

        for (uint32_t r = 0; r < ranks->count; r++) {
            uint64_t *seen = &ranks->arrived[(size_t) r * layers + l];
            const uint64_t now = moe_forward_arrived(ranks->all[r].forward)[l];

            ranks->rows.rows += now - *seen;
            most = now - *seen > most ? now - *seen : most;
            *seen = now;
        }
        ranks->rows.most += most * ranks->count;
    }
}


int moe_ranks_step(moe_ranks_t *ranks, const moe_batch_t *const *batches, const float **logits,
                   moe_error_t *error)
{
    const work_t step = { .run = run_forward, .batches = batches };

    if (run_all(ranks, &step, ranks->options.timeout_ns, error) != 0) {
        return -1;
    }
    for (uint32_t g = 0; g < ranks->groups; g++) {
        logits[g] = ranks->all[g * ranks->options.tensor_parallel].logits;
    }
    if (ranks->count > 1) {
        note_arrived(ranks);
    }
    return 0;
}


int moe_ranks_run(moe_ranks_t *ranks, moe_ranks_fn fn, void *context, const size_t *items,
                  moe_error_t *error)
{
    const work_t loop = { .run = run_loop, .fn = fn, .fn_context = context, .items = items };

    return run_all(ranks, &loop, ranks->options.timeout_ns, error);
}


static uint64_t ffn_bytes(const moe_ffn_t *ffn)
{
    return moe_weight_bytes(&ffn->gate) + moe_weight_bytes(&ffn->up) + moe_weight_bytes(&ffn->down);
}


uint64_t moe_ranks_weights_needed(const moe_model_t *model, uint32_t ranks,
                                  uint32_t tensor_parallel, uint32_t redundant)
{
    const uint64_t all = moe_tensors_bytes(model->tensors);
    const uint32_t groups = or_one(ranks) / or_one(tensor_parallel);
    uint64_t spread = 0, held = 0, spare = 0;

    ranks = or_one(ranks);
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i];
        const uint32_t experts = layer->is_moe ? layer->moe.router.experts : 0;
        const uint64_t slots = ((uint64_t) experts + redundant + ranks - 1) / ranks;

        for (uint32_t e = 0; e < experts; e++) {
            spread += ffn_bytes(&layer->moe.experts[e]);
        }
        if (experts > 0) {
            spare = redundant > 0 ? ffn_bytes(&layer->moe.experts[0]) * slots * ranks : 0;
            held += ffn_bytes(&layer->moe.experts[0]) * slots * ranks;
        }
    }
    return held + spare + (all - spread) * groups
           + moe_forward_whole_bytes(model) * (ranks - groups);
}


void moe_ranks_expert_load(const moe_ranks_t *ranks, uint64_t *counts)
{
    const size_t n = (size_t) ranks->model->n_layers * moe_forward_experts(ranks->all[0].forward);

    memset(counts, 0, n * sizeof(*counts));
    for (uint32_t r = 0; r < ranks->count; r++) {
        const uint64_t *of_rank = moe_forward_expert_load(ranks->all[r].forward);

        for (size_t i = 0; i < n; i++) {
            counts[i] += of_rank[i];
        }
    }
}


moe_ranks_rows_t moe_ranks_rows(const moe_ranks_t *ranks)
{
    return ranks->rows;
}


moe_exchange_bytes_t moe_ranks_exchanged(const moe_ranks_t *ranks)
{
    moe_exchange_bytes_t sum = { 0 };

    for (uint32_t r = 0; r < ranks->count; r++) {
        const moe_exchange_bytes_t sent = moe_forward_exchanged(ranks->all[r].forward);

        sum.dispatch_rows += sent.dispatch_rows;
        sum.dispatch_lists += sent.dispatch_lists;
        sum.return_rows += sent.return_rows;
    }
    return sum;
}
