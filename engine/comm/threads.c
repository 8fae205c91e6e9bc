/*
 * Ranks that are threads of one process.  Nothing is sent: a rank publishes where its data lies,
 * all meet, each copies what it needs out of the others' memory, and all meet again, after which
 * buffers may change.
 *
 * They meet at a counter: the last to arrive raises the generation, which the others watch (first
 * spinning, then asleep on a futex, so that ranks may outnumber processors).  The lowest bit of the
 * generation says that the group was aborted and is never cleared: one word wakes the waiting for
 * either reason, and a full circle of the counter does no harm.  Each rank also counts its own
 * arrivals: that is how a rank which waited too long knows who is missing.
 */

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/comm/comm.h"
#include "engine/core/futex.h"

#define ABORTED 1u              /* bit of the generation, which counts in twos */

typedef enum {
    VERB_NONE = 0,
    VERB_BARRIER,
    VERB_ALLGATHER,
    VERB_ALLTOALLV,
    VERB_ALLREDUCE,
    VERB_BCAST,
    VERB_WINDOW
} verb_t;

static const char *const verb_names[] = {
    "no verb", "barrier", "allgather", "alltoallv", "allreduce", "bcast", "window"
};

/* What a rank is about to do.  Written by it between two verbs, read by all inside of one. */
typedef struct {
    verb_t verb;
    uint32_t detail;            /* root of a bcast, kind of a reduction */
    size_t size;                /* bytes of a part, or elements; equal on all ranks */
    const void *send;
    const size_t *sizes, *offsets;
    void *receive;
    size_t *rooms;
    const size_t *places;
} call_t;

typedef struct group_s group_t;

typedef struct {
    _Alignas(64) moe_comm_t comm;
    group_t *group;
    call_t call;
    uint32_t met;                               /* generation at the last arrival */
    _Alignas(64) _Atomic uint32_t arrivals;
} end_t;

struct group_s {
    uint32_t ranks;
    uint64_t timeout_ns;
    moe_fault_t fault;
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t open;                      /* ends that are not closed */
    pthread_mutex_t lock;                       /* of the reason */
    moe_error_t reason;
    end_t ends[];
};


static end_t *end_of(moe_comm_t *comm)
{
    return (end_t *) comm;
}


static int is_aborted(group_t *group)
{
    return (atomic_load_explicit(&group->generation, memory_order_acquire) & ABORTED) != 0;
}


/* The first reason wins. */
static void abort_group(group_t *group, const moe_error_t *reason)
{
    pthread_mutex_lock(&group->lock);
    if (!is_aborted(group)) {
        group->reason = *reason;
        atomic_fetch_or(&group->generation, ABORTED);
        moe_futex_wake(&group->generation, INT32_MAX);
    }
    pthread_mutex_unlock(&group->lock);
}


/* Of an aborted group: gives its reason; returns -1. */
static int give_reason(group_t *group, moe_error_t *error)
{
    pthread_mutex_lock(&group->lock);
    *error = group->reason;
    pthread_mutex_unlock(&group->lock);
    return -1;
}


/* Aborts the group for a reason that this rank has found; returns -1 with the first reason. */
__attribute__((format(printf, 3, 4)))
static int fail_group(end_t *end, moe_error_t *error, const char *format, ...)
{
    char what[256];
    moe_error_t reason;
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    moe_fail(&reason, MOE_UNAVAILABLE, "step %llu: %s", (unsigned long long) end->comm.step, what);
    abort_group(end->group, &reason);
    return give_reason(end->group, error);
}


/* Lists the ranks that have arrived less often than this one; returns their number. */
static uint32_t list_missing(const end_t *end, char *list, size_t size)
{
    const uint32_t mine = atomic_load(&end->arrivals);
    uint32_t missing = 0;
    size_t used = 0;

    for (uint32_t r = 0; r < end->comm.ranks; r++) {
        if ((int32_t) (atomic_load(&end->group->ends[r].arrivals) - mine) < 0) {
            if (used < size) {
                used += (size_t) snprintf(list + used, size - used, "%s%u", missing ? ", " : "", r);
            }
            missing++;
        }
    }
    return missing;
}


/* Waits until the generation is another one (0), the group is aborted (-1) or time is up (1). */
static int wait_for_change(group_t *group, uint32_t seen, uint64_t timeout_ns)
{
    uint32_t generation = seen;
    uint64_t left_ns = timeout_ns;

    for (unsigned i = 0; i < MOE_SPINS && generation == seen; i++) {
        moe_cpu_relax();
        generation = atomic_load_explicit(&group->generation, memory_order_acquire);
    }
    if (generation == seen) {
        atomic_fetch_add(&group->sleepers, 1);
        while ((generation = atomic_load(&group->generation)) == seen && left_ns > 0) {
            moe_futex_watch(&group->generation, seen, &left_ns);
        }
        atomic_fetch_sub(&group->sleepers, 1);
    }
    /* All have met, even if one of them has left the group since. */
    return generation == seen ? 1 : generation == (seen | ABORTED) ? -1 : 0;
}


/* Says that this rank has come this far. */
static void arrive(end_t *end)
{
    group_t *group = end->group;

    end->met = atomic_load_explicit(&group->generation, memory_order_relaxed) & ~ABORTED;
    atomic_fetch_add(&end->arrivals, 1);
    if (atomic_fetch_add(&group->arrived, 1) + 1 == group->ranks) {
        atomic_store(&group->arrived, 0);
        atomic_fetch_add(&group->generation, 2);
        if (atomic_load(&group->sleepers) > 0) {
            moe_futex_wake(&group->generation, INT32_MAX);
        }
    }
}


/* Waits until all others have come as far as this rank's last arrival. */
static int wait_for_all(end_t *end, moe_error_t *error)
{
    group_t *group = end->group;
    char list[128];
    uint32_t missing;
    int late;

    do {
        late = wait_for_change(group, end->met, group->timeout_ns);
        if (late < 0) {
            return give_reason(group, error);
        }
        /* The last one may come at this moment. */
        missing = late ? list_missing(end, list, sizeof(list)) : 0;
        if (missing > 0) {
            return fail_group(end, error, "rank%s %s did not come to %s within %llu ms",
                              missing > 1 ? "s" : "", list, verb_names[end->call.verb],
                              (unsigned long long) (group->timeout_ns / 1000000u));
        }
    } while (late);
    return 0;
}


static int meet(end_t *end, moe_error_t *error)
{
    arrive(end);
    return wait_for_all(end, error);
}


/* Behaves as the fault says.  A rank that stalls comes back when the others have given it up; where
 * nobody waits for it, after a while that would be enough for any who does. */
static int run_fault(end_t *end, moe_error_t *error)
{
    group_t *group = end->group;
    const uint32_t seen = atomic_load(&group->generation);

    if (group->fault.kind == MOE_FAULT_EXIT) {
        return fail_group(end, error, "fault: rank %u has left", end->comm.rank);
    }
    if (!(seen & ABORTED)) {
        wait_for_change(group, seen, 4 * group->timeout_ns);
    }
    return fail_group(end, error, "fault: rank %u has stalled", end->comm.rank);
}


/* Begins a verb: publishes the call and arrives. */
static int enter(end_t *end, const call_t *call, moe_error_t *error)
{
    const moe_fault_t *fault = &end->group->fault;

    if (is_aborted(end->group)) {
        return give_reason(end->group, error);
    }
    if (end->call.verb != VERB_NONE) {
        return fail_group(end, error, "rank %u calls %s before its %s has ended", end->comm.rank,
                          verb_names[call->verb], verb_names[end->call.verb]);
    }
    if (fault->kind != MOE_FAULT_NONE && fault->rank == end->comm.rank
        && end->comm.step >= fault->step)
    {
        return run_fault(end, error);
    }
    end->call = *call;
    arrive(end);
    return 0;
}


/* All have called; the same? */
static int check_calls(end_t *end, moe_error_t *error)
{
    const call_t *mine = &end->call;

    for (uint32_t r = 0; r < end->group->ranks; r++) {
        const call_t *call = &end->group->ends[r].call;

        if (call->verb != mine->verb || call->detail != mine->detail || call->size != mine->size) {
            return fail_group(end, error, "rank %u calls %s (%u) of %zu, rank %u %s (%u) of %zu",
                              end->comm.rank, verb_names[mine->verb], mine->detail, mine->size, r,
                              verb_names[call->verb], call->detail, call->size);
        }
    }
    return 0;
}


/* Begins a verb and waits until all ranks' calls can be read. */
static int open_verb(end_t *end, const call_t *call, moe_error_t *error)
{
    return enter(end, call, error) != 0 || wait_for_all(end, error) != 0
           || check_calls(end, error) != 0 ? -1 : 0;
}


/* Ends a verb: nobody reads this rank's buffers any more. */
static int close_verb(end_t *end, moe_error_t *error)
{
    if (meet(end, error) != 0) {
        return -1;
    }
    end->call.verb = VERB_NONE;
    return 0;
}


static void copy(void *to, const void *from, size_t size)
{
    if (size > 0 && to != from) {
        memcpy(to, from, size);
    }
}


static int barrier(moe_comm_t *comm, moe_error_t *error)
{
    end_t *end = end_of(comm);
    const call_t call = {.verb = VERB_BARRIER};

    return open_verb(end, &call, error) != 0 || close_verb(end, error) != 0 ? -1 : 0;
}


static int allgather(moe_comm_t *comm, const void *send, size_t size, void *receive,
                     moe_error_t *error)
{
    end_t *end = end_of(comm);
    const call_t call = {.verb = VERB_ALLGATHER, .send = send, .size = size};

    if (open_verb(end, &call, error) != 0) {
        return -1;
    }
    for (uint32_t r = 0; size > 0 && r < comm->ranks; r++) {
        copy((char *) receive + r * size, end->group->ends[r].call.send, size);
    }
    return close_verb(end, error);
}


static int alltoallv_start(moe_comm_t *comm, const moe_comm_parts_t *send,
                           const moe_comm_parts_t *receive, moe_error_t *error)
{
    const call_t call = {
        .verb = VERB_ALLTOALLV, .send = send->data, .sizes = send->sizes,
        .offsets = send->offsets, .receive = receive->data, .rooms = receive->sizes,
        .places = receive->offsets,
    };

    return enter(end_of(comm), &call, error);
}


/* Checks all rooms first, so that an error leaves the receiver's memory alone. */
static int check_rooms(end_t *end, moe_error_t *error)
{
    for (uint32_t r = 0; r < end->comm.ranks; r++) {
        const size_t size = end->group->ends[r].call.sizes[end->comm.rank];

        if (size > end->call.rooms[r]) {
            return fail_group(end, error, "rank %u sends %zu bytes to rank %u, which has room for "
                              "%zu", r, size, end->comm.rank, end->call.rooms[r]);
        }
    }
    return 0;
}


static int alltoallv_finish(moe_comm_t *comm, moe_error_t *error)
{
    end_t *end = end_of(comm);

    if (is_aborted(end->group)) {
        return give_reason(end->group, error);
    }
    if (end->call.verb != VERB_ALLTOALLV) {
        return fail_group(end, error, "rank %u finishes an alltoallv that it has not started",
                          comm->rank);
    }
    if (wait_for_all(end, error) != 0 || check_calls(end, error) != 0
        || check_rooms(end, error) != 0)
    {
        return -1;
    }
    for (uint32_t r = 0; r < comm->ranks; r++) {
        const call_t *from = &end->group->ends[r].call;
        const size_t size = from->sizes[comm->rank];

        end->call.rooms[r] = size;
        if (size > 0) {
            copy((char *) end->call.receive + end->call.places[r],
                 (const char *) from->send + from->offsets[comm->rank], size);
        }
    }
    return close_verb(end, error);
}


/* name(): elements [first, last) of all ranks' data, in the order of ranks, into those of `data`,
 * which may be one of theirs. */
#define REDUCTION(name, type, add)                                                              \
    static void name(const group_t *group, size_t first, size_t last, void *data)               \
    {                                                                                           \
        for (size_t i = first; i < last; i++) {                                                 \
            type sum = ((const type *) group->ends[0].call.receive)[i];                         \
                                                                                                \
            for (uint32_t r = 1; r < group->ranks; r++) {                                       \
                const type x = ((const type *) group->ends[r].call.receive)[i];                 \
                                                                                                \
                sum = add;                                                                      \
            }                                                                                   \
            ((type *) data)[i] = sum;                                                           \
        }                                                                                       \
    }

REDUCTION(sum_f32, float, sum + x)
REDUCTION(sum_u64, uint64_t, sum + x)
REDUCTION(max_u64, uint64_t, x > sum ? x : sum)

static const struct {
    void (*run)(const group_t *group, size_t first, size_t last, void *data);
    size_t size;                /* of an element */
} reductions[] = {
    [MOE_SUM_F32] = {sum_f32, sizeof(float)},
    [MOE_SUM_U64] = {sum_u64, sizeof(uint64_t)},
    [MOE_MAX_U64] = {max_u64, sizeof(uint64_t)}
};


/* First element of a rank's share of `count`. */
static size_t share(size_t count, uint32_t rank, uint32_t ranks)
{
    return count / ranks * rank + (rank < count % ranks ? rank : count % ranks);
}


/* Each rank reduces its share, in place; then all collect the shares of all. */
static int allreduce(moe_comm_t *comm, void *data, size_t count, moe_reduction_t reduction,
                     moe_error_t *error)
{
    end_t *end = end_of(comm);
    const size_t size = reductions[reduction].size;
    const call_t call = {
        .verb = VERB_ALLREDUCE, .detail = reduction, .size = count, .receive = data
    };

    if (open_verb(end, &call, error) != 0) {
        return -1;
    }
    reductions[reduction].run(end->group, share(count, comm->rank, comm->ranks),
                              share(count, comm->rank + 1, comm->ranks), data);
    if (meet(end, error) != 0) {
        return -1;
    }
    for (uint32_t r = 0; count > 0 && r < comm->ranks; r++) {
        const size_t first = share(count, r, comm->ranks) * size;

        copy((char *) data + first, (const char *) end->group->ends[r].call.receive + first,
             share(count, r + 1, comm->ranks) * size - first);
    }
    return close_verb(end, error);
}


static int bcast(moe_comm_t *comm, uint32_t root, void *data, size_t size, moe_error_t *error)
{
    end_t *end = end_of(comm);
    const call_t call = {.verb = VERB_BCAST, .detail = root, .size = size, .send = data};

    if (root >= comm->ranks) {
        return fail_group(end, error, "bcast from rank %u of %u", root, comm->ranks);
    }
    if (open_verb(end, &call, error) != 0) {
        return -1;
    }
    copy(data, end->group->ends[root].call.send, size);
    return close_verb(end, error);
}


static int window(moe_comm_t *comm, void *memory, void **windows, moe_error_t *error)
{
    end_t *end = end_of(comm);
    const call_t call = {.verb = VERB_WINDOW, .receive = memory};

    if (open_verb(end, &call, error) != 0) {
        return -1;
    }
    for (uint32_t r = 0; r < comm->ranks; r++) {
        windows[r] = end->group->ends[r].call.receive;
    }
    return close_verb(end, error);
}


static int get_error(moe_comm_t *comm, moe_error_t *error)
{
    group_t *group = end_of(comm)->group;

    return is_aborted(group) ? give_reason(group, error) : 0;
}


static void abort_comm(moe_comm_t *comm, const moe_error_t *reason)
{
    abort_group(end_of(comm)->group, reason);
}


static void close_end(moe_comm_t *comm)
{
    end_t *end = end_of(comm);
    group_t *group = end->group;
    moe_error_t error;

    fail_group(end, &error, "rank %u has left", comm->rank);
    if (atomic_fetch_sub(&group->open, 1) == 1) {
        pthread_mutex_destroy(&group->lock);
        free(group);
    }
}


static const moe_comm_ops_t ops = {
    .name = "threads",
    .barrier = barrier,
    .allgather = allgather,
    .alltoallv_start = alltoallv_start,
    .alltoallv_finish = alltoallv_finish,
    .allreduce = allreduce,
    .bcast = bcast,
    .window = window,
    .error = get_error,
    .abort = abort_comm,
    .close = close_end
};


int moe_comm_threads(moe_comm_t **comms, uint32_t ranks, const moe_comm_options_t *options,
                     moe_error_t *error)
{
    const size_t size = sizeof(group_t) + ranks * sizeof(end_t);
    group_t *group;

    if (ranks < 1 || ranks > MOE_RANKS_LIMIT) {
        return moe_fail(error, MOE_INVALID, "%u ranks are not within 1..%u", ranks,
                        MOE_RANKS_LIMIT);
    }
    if (options->timeout_ns < 1) {
        return moe_fail(error, MOE_INVALID, "ranks that wait for each other need a timeout");
    }
    group = aligned_alloc(_Alignof(group_t), size);
    if (group == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u ranks", ranks);
    }
    memset(group, 0, size);
    pthread_mutex_init(&group->lock, NULL);
    group->ranks = ranks;
    group->timeout_ns = options->timeout_ns;
    group->fault = options->fault;
    atomic_store(&group->open, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        end_t *end = &group->ends[r];

        end->group = group;
        end->comm = (moe_comm_t) {.ops = &ops, .rank = r, .ranks = ranks};
        comms[r] = &end->comm;
    }
    return 0;
}
