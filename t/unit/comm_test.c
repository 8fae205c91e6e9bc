/* Communication between ranks: every verb for several numbers of ranks, every way to lose one. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "engine/comm/comm.h"
#include "engine/core/clock.h"

#define MAX_RANKS 8u
#define MAX_PART 3000u
#define SECOND 1000000000u
#define LONG (60ull * SECOND)           /* a timeout that nothing here reaches */
#define ATTEMPTS 8u

typedef struct rank_s rank_t;

/* What a rank's thread does; 0, or -1 with rank->error. */
typedef int (*rank_fn)(rank_t *rank);

struct rank_s {
    moe_comm_t *comm;
    rank_fn fn;
    int result;
    unsigned faults;                    /* wrong bytes */
    unsigned number;                    /* of the case */
    moe_error_t error;
    uint64_t took_ns;
    /* Memory that verbs are given lives until all ranks have ended. */
    unsigned char send[MAX_RANKS * MAX_PART], receive[MAX_RANKS * MAX_PART];
    size_t send_sizes[MAX_RANKS], receive_sizes[MAX_RANKS], offsets[MAX_RANKS];
    union {
        float f32[MAX_PART];
        uint64_t u64[MAX_PART];
    };
    void *windows[MAX_RANKS];
};

static const unsigned rank_counts[] = {1, 2, 3, 4, 8};
static rank_t all_ranks[MAX_RANKS];


static void *run_rank(void *argument)
{
    rank_t *rank = argument;
    const uint64_t start = moe_now_ns();

    rank->result = rank->fn(rank);
    rank->took_ns = moe_now_ns() - start;
    return NULL;
}


static void start_ranks(unsigned ranks, uint64_t timeout_ns, moe_fault_t fault, unsigned number,
                        rank_fn fn, pthread_t *threads)
{
    const moe_comm_options_t options = {.timeout_ns = timeout_ns, .fault = fault};
    moe_comm_t *comms[MAX_RANKS];
    moe_error_t error;

    assert_int_equal(moe_comm_threads(comms, ranks, &options, &error), 0);
    for (unsigned r = 0; r < ranks; r++) {
        rank_t *rank = &all_ranks[r];

        assert_int_equal(comms[r]->rank, r);
        assert_int_equal(comms[r]->ranks, ranks);
        rank->comm = comms[r];
        rank->fn = fn;
        rank->number = number;
        rank->faults = 0;
        rank->error.message[0] = '\0';
    }
    for (unsigned r = 0; r < ranks; r++) {
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &all_ranks[r]), 0);
    }
}


static void end_ranks(unsigned ranks, const pthread_t *threads)
{
    for (unsigned r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
    }
    for (unsigned r = 0; r < ranks; r++) {
        all_ranks[r].comm->ops->close(all_ranks[r].comm);
    }
}


static void run_ranks(unsigned ranks, uint64_t timeout_ns, moe_fault_t fault, unsigned number,
                      rank_fn fn)
{
    pthread_t threads[MAX_RANKS];

    start_ranks(ranks, timeout_ns, fault, number, fn, threads);
    end_ranks(ranks, threads);
}


static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;

    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}


/* Bytes of the part from one rank to another in a round; often none. */
static size_t part_size(unsigned from, unsigned to, unsigned round)
{
    const uint64_t x = mix(from, to, round);

    return x % 3 == 0 ? 0 : x % 3 == 1 ? x / 3 % 9 : x / 3 % MAX_PART;
}


static unsigned char part_byte(unsigned from, unsigned to, unsigned round, size_t i)
{
    return (unsigned char) mix(from * 64 + to, round, i);
}


static int start_exchange(rank_t *rank, unsigned round)
{
    const unsigned ranks = rank->comm->ranks, self = rank->comm->rank;
    const moe_comm_parts_t send = {rank->send, rank->send_sizes, rank->offsets};
    const moe_comm_parts_t receive = {rank->receive, rank->receive_sizes, rank->offsets};

    for (unsigned r = 0; r < ranks; r++) {
        rank->offsets[r] = r * MAX_PART;
        rank->send_sizes[r] = part_size(self, r, round);
        rank->receive_sizes[r] = MAX_PART - 1;
        for (size_t i = 0; i < rank->send_sizes[r]; i++) {
            rank->send[r * MAX_PART + i] = part_byte(self, r, round, i);
        }
    }
    memset(rank->receive, 0xee, sizeof(rank->receive));
    return rank->comm->ops->alltoallv_start(rank->comm, &send, &receive, &rank->error);
}


static void check_exchange(rank_t *rank, unsigned round)
{
    for (unsigned r = 0; r < rank->comm->ranks; r++) {
        const size_t size = part_size(r, rank->comm->rank, round);

        rank->faults += rank->receive_sizes[r] != size;
        for (size_t i = 0; i < MAX_PART; i++) {
            rank->faults += rank->receive[r * MAX_PART + i]
                            != (i < size ? part_byte(r, rank->comm->rank, round, i) : 0xee);
        }
    }
}


static int exchange(rank_t *rank, unsigned round)
{
    if (start_exchange(rank, round) != 0
        || rank->comm->ops->alltoallv_finish(rank->comm, &rank->error) != 0)
    {
        return -1;
    }
    check_exchange(rank, round);
    return 0;
}


/* Every other round in place. */
static int gather(rank_t *rank, unsigned round)
{
    const unsigned ranks = rank->comm->ranks, self = rank->comm->rank;
    const size_t size = part_size(0, 0, round);
    unsigned char *send = round % 2 ? rank->send : rank->receive + self * size;

    for (size_t i = 0; i < size; i++) {
        send[i] = part_byte(self, 0, round, i);
    }
    if (rank->comm->ops->allgather(rank->comm, size ? send : NULL, size,
                                   size ? rank->receive : NULL, &rank->error) != 0)
    {
        return -1;
    }
    for (size_t i = 0; i < ranks * size; i++) {
        rank->faults += rank->receive[i] != part_byte((unsigned) (i / size), 0, round, i % size);
    }
    return 0;
}


/* Sums whose value depends on their order. */
static float addend(unsigned rank, unsigned round, size_t i)
{
    return (float) (int32_t) mix(rank, round, i) * (i % 3 ? 1.0f : 1e-6f);
}


static int reduce_f32(rank_t *rank, unsigned round)
{
    const size_t count = part_size(1, 1, round);

    for (size_t i = 0; i < count; i++) {
        rank->f32[i] = addend(rank->comm->rank, round, i);
    }
    if (rank->comm->ops->allreduce(rank->comm, rank->f32, count, MOE_SUM_F32, &rank->error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        float sum = addend(0, round, i);

        for (unsigned r = 1; r < rank->comm->ranks; r++) {
            sum += addend(r, round, i);
        }
        rank->faults += rank->f32[i] != sum;
    }
    return 0;
}


static int reduce_u64(rank_t *rank, unsigned round)
{
    const moe_reduction_t reduction = round % 2 ? MOE_SUM_U64 : MOE_MAX_U64;
    const size_t count = part_size(2, 2, round);

    for (size_t i = 0; i < count; i++) {
        rank->u64[i] = mix(rank->comm->rank, round, i);
    }
    if (rank->comm->ops->allreduce(rank->comm, rank->u64, count, reduction, &rank->error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t sum = 0, most = 0;

        for (unsigned r = 0; r < rank->comm->ranks; r++) {
            const uint64_t x = mix(r, round, i);

            sum += x;
            most = x > most ? x : most;
        }
        rank->faults += rank->u64[i] != (reduction == MOE_SUM_U64 ? sum : most);
    }
    return 0;
}


static int broadcast(rank_t *rank, unsigned round)
{
    const unsigned root = round % rank->comm->ranks;
    const size_t size = part_size(3, 3, round);

    for (size_t i = 0; i < size; i++) {
        rank->send[i] = part_byte(rank->comm->rank, 3, round, i);
    }
    if (rank->comm->ops->bcast(rank->comm, root, rank->send, size, &rank->error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < size; i++) {
        rank->faults += rank->send[i] != part_byte(root, 3, round, i);
    }
    return 0;
}


/* Each rank stores into all others' memory. */
static int store(rank_t *rank, unsigned round)
{
    const moe_comm_ops_t *ops = rank->comm->ops;
    const unsigned ranks = rank->comm->ranks, self = rank->comm->rank;

    if (ops->window(rank->comm, rank->u64, rank->windows, &rank->error) != 0) {
        return -1;
    }
    for (unsigned r = 0; r < ranks; r++) {
        ((uint64_t *) rank->windows[r])[self] = mix(self, r, round);
    }
    if (ops->barrier(rank->comm, &rank->error) != 0) {
        return -1;
    }
    for (unsigned r = 0; r < ranks; r++) {
        rank->faults += rank->u64[r] != mix(r, self, round);
    }
    return 0;
}


static int (*const verbs[])(rank_t *rank, unsigned round) = {
    exchange, gather, reduce_f32, reduce_u64, broadcast, store
};

#define N_VERBS (sizeof(verbs) / sizeof(verbs[0]))


/* Rounds of all verbs until one fails; a round is a step. */
static int run_steps(rank_t *rank, unsigned steps)
{
    for (unsigned step = 0; step < steps; step++) {
        rank->comm->step = step;
        for (size_t v = 0; v < N_VERBS; v++) {
            if (verbs[v](rank, step) != 0) {
                return -1;
            }
        }
    }
    return 0;
}


static int run_60_steps(rank_t *rank)
{
    return run_steps(rank, 60);
}


static void test_verbs(void **state)
{
    for (size_t i = 0; i < sizeof(rank_counts) / sizeof(rank_counts[0]); i++) {
        run_ranks(rank_counts[i], LONG, (moe_fault_t) {0}, 0, run_60_steps);
        for (unsigned r = 0; r < rank_counts[i]; r++) {
            assert_int_equal(all_ranks[r].result, 0);
            assert_int_equal(all_ranks[r].faults, 0);
        }
    }
}


/* Between start and finish nobody waits: rank 0 finishes only when all others have started. */
static _Atomic unsigned started;


static int compute_meanwhile(rank_t *rank)
{
    for (unsigned round = 0; round < 50; round++) {
        if (start_exchange(rank, round) != 0) {
            return -1;
        }
        atomic_fetch_add(&started, 1);
        while (rank->comm->rank == 0 && atomic_load(&started) < rank->comm->ranks * (round + 1)) {
            usleep(10);
        }
        if (rank->comm->ops->alltoallv_finish(rank->comm, &rank->error) != 0) {
            return -1;
        }
        check_exchange(rank, round);
    }
    return 0;
}


static void test_overlap(void **state)
{
    atomic_store(&started, 0);
    run_ranks(4, LONG, (moe_fault_t) {0}, 0, compute_meanwhile);
    for (unsigned r = 0; r < 4; r++) {
        assert_int_equal(all_ranks[r].result, 0);
        assert_int_equal(all_ranks[r].faults, 0);
    }
}


/* Ranks that do not call the same. */
static const struct {
    const char *message;
    const char *other;              /* as another rank may see it first */
} misuses[] = {
    {"step 7: rank 0 calls allgather (0) of 8, rank 1 allgather (0) of 16",
     "step 7: rank 1 calls allgather (0) of 16, rank 0 allgather (0) of 8"},
    {"step 7: rank 0 calls bcast (0) of 8, rank 1 barrier (0) of 0",
     "step 7: rank 1 calls barrier (0) of 0, rank 0 bcast (0) of 8"},
    {"step 7: rank 0 calls allreduce (1) of 4, rank 1 allreduce (2) of 4",
     "step 7: rank 1 calls allreduce (2) of 4, rank 0 allreduce (1) of 4"},
    {"step 7: rank 1 sends 21 bytes to rank 0, which has room for 20", NULL},
    {"step 7: rank 0 calls barrier before its alltoallv has ended", NULL},
    {"step 7: rank 0 finishes an alltoallv that it has not started", NULL},
    {"step 7: bcast from rank 2 of 2", NULL},
};


static int misuse(rank_t *rank)
{
    const moe_comm_ops_t *ops = rank->comm->ops;
    const moe_comm_parts_t send = {rank->send, rank->send_sizes, rank->offsets};
    const moe_comm_parts_t receive = {rank->receive, rank->receive_sizes, rank->offsets};
    const unsigned self = rank->comm->rank;

    rank->comm->step = 7;
    for (unsigned r = 0; r < 2; r++) {
        rank->offsets[r] = r * 100;
        rank->send_sizes[r] = 20 + self;
        rank->receive_sizes[r] = 20 + self;
    }
    memset(rank->receive, 0, sizeof(rank->receive));
    memset(rank->send, 1, sizeof(rank->send));
    switch (rank->number) {
    case 0:
        return ops->allgather(rank->comm, rank->send, self ? 16 : 8, rank->receive, &rank->error);
    case 1:
        return self ? ops->barrier(rank->comm, &rank->error)
               : ops->bcast(rank->comm, 0, rank->send, 8, &rank->error);
    case 2:
        return ops->allreduce(rank->comm, rank->u64, 4, self ? MOE_SUM_U64 : MOE_SUM_F32,
                              &rank->error);
    case 3:
    case 4:
        if (ops->alltoallv_start(rank->comm, &send, &receive, &rank->error) != 0) {
            return -1;
        }
        return rank->number == 4 && self == 0 ? ops->barrier(rank->comm, &rank->error)
               : ops->alltoallv_finish(rank->comm, &rank->error);
    case 5:
        return self ? ops->barrier(rank->comm, &rank->error)
               : ops->alltoallv_finish(rank->comm, &rank->error);
    default:
        return ops->bcast(rank->comm, self ? 0 : 2, rank->send, 8, &rank->error);
    }
}


static void test_misuse(void **state)
{
    for (unsigned i = 0; i < sizeof(misuses) / sizeof(misuses[0]); i++) {
        run_ranks(2, LONG, (moe_fault_t) {0}, i, misuse);
        for (unsigned r = 0; r < 2; r++) {
            assert_int_equal(all_ranks[r].result, -1);
            assert_int_equal(all_ranks[r].error.code, MOE_UNAVAILABLE);
            if (strcmp(all_ranks[r].error.message, misuses[i].message) != 0
                && (misuses[i].other == NULL
                    || strcmp(all_ranks[r].error.message, misuses[i].other) != 0))
            {
                fail_msg("%s: %s", misuses[i].message, all_ranks[r].error.message);
            }
        }
        assert_string_equal(all_ranks[0].error.message, all_ranks[1].error.message);
        for (size_t b = 0; i == 3 && b < sizeof(all_ranks[0].receive); b++) {
            assert_int_equal(all_ranks[0].receive[b], 0);
        }
    }
}


static int run_verb_for_ever(rank_t *rank)
{
    for (unsigned step = 0;; step++) {
        rank->comm->step = step;
        if (verbs[rank->number](rank, step) != 0) {
            return -1;
        }
    }
}


static int heard_by_all(unsigned ranks, const char *message)
{
    for (unsigned r = 0; r < ranks; r++) {
        const rank_t *rank = &all_ranks[r];

        if (rank->result == -1 && strcmp(rank->error.message, message) != 0) {
            return 0;
        }
        assert_true(rank->took_ns < LONG);
        assert_int_equal(rank->faults, 0);
    }
    return 1;
}


/* Runs ranks of which some will not come to a verb: all others must say so.  On a busy machine a
 * rank may be late that was meant to come; then again with more patience. */
static void expect_missing(unsigned ranks, moe_fault_t fault, unsigned number, rank_fn fn,
                           const char *format)
{
    char message[128];

    for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
        const unsigned timeout_ms = 30u << attempt;

        run_ranks(ranks, timeout_ms * 1000000ull, fault, number, fn);
        snprintf(message, sizeof(message), "%s within %u ms", format, timeout_ms);
        if (heard_by_all(ranks, message)) {
            return;
        }
    }
    fail_msg("%s: %s", message, all_ranks[0].error.message);
}


static const char *const verb_names[] = {
    "alltoallv", "allgather", "allreduce", "allreduce", "bcast", "window"
};


/* Every verb, every kind of loss: all ranks hear of it, with the name of the lost one. */
static void test_faults(void **state)
{
    for (size_t i = 0; i < sizeof(rank_counts) / sizeof(rank_counts[0]); i++) {
        for (unsigned number = 0; number < N_VERBS; number++) {
            const unsigned ranks = rank_counts[i], lost = (number + 1) % ranks;
            moe_fault_t fault = {MOE_FAULT_EXIT, lost, 5};
            char message[64];

            snprintf(message, sizeof(message), "step 5: fault: rank %u has left", lost);
            run_ranks(ranks, LONG, fault, number, run_verb_for_ever);
            assert_true(heard_by_all(ranks, message));
            assert_int_equal(all_ranks[0].error.code, MOE_UNAVAILABLE);
            if (ranks > 1 && number % 2 == i % 2) {
                fault.kind = MOE_FAULT_STALL;
                snprintf(message, sizeof(message), "step 5: rank %u did not come to %s", lost,
                         verb_names[number]);
                expect_missing(ranks, fault, number, run_verb_for_ever, message);
            }
        }
    }
}


/* Where nobody waits for a rank that stalls. */
static void test_stall_alone(void **state)
{
    run_ranks(1, 1000000, (moe_fault_t) {MOE_FAULT_STALL, 0, 2}, 0, run_verb_for_ever);
    assert_int_equal(all_ranks[0].result, -1);
    assert_string_equal(all_ranks[0].error.message, "step 2: fault: rank 0 has stalled");
}


/* Two ranks simply end. */
static int two_stay_away(rank_t *rank)
{
    return rank->comm->rank % 2 ? rank->comm->ops->barrier(rank->comm, &rank->error) : 0;
}


static void test_missing_ranks(void **state)
{
    expect_missing(4, (moe_fault_t) {0}, 0, two_stay_away,
                   "step 0: ranks 0, 2 did not come to barrier");
    assert_int_equal(all_ranks[0].result, 0);
    assert_int_equal(all_ranks[1].result, -1);
    assert_int_equal(all_ranks[3].result, -1);
}


/* ---- a process that is stopped ---- */

static int heard[2], told[2];           /* pipes: from the child, to it */

/* Rank 1 comes when it is told to. */
static int come_when_told(rank_t *rank)
{
    char byte = 0;

    if (rank->comm->rank == 0 && write(heard[1], &byte, 1) != 1) {
        return -1;
    }
    if (rank->comm->rank == 1 && read(told[0], &byte, 1) != 1) {
        return -1;
    }
    return rank->comm->ops->barrier(rank->comm, &rank->error);
}


/* While the process of all ranks stands still no rank is late. */
static void test_stopped_process(void **state)
{
    const uint64_t timeout_ns = 2ull * SECOND;
    char byte = 0;
    int status;
    pid_t child;

    assert_int_equal(pipe(heard), 0);
    assert_int_equal(pipe(told), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run_ranks(2, timeout_ns, (moe_fault_t) {0}, 0, come_when_told);
        _exit(all_ranks[0].result == 0 && all_ranks[1].result == 0 ? 0 : 1);
    }
    assert_int_equal(read(heard[0], &byte, 1), 1);
    usleep(50000);                      /* rank 0 sleeps by now; if not, the test proves less */
    kill(child, SIGSTOP);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    usleep((useconds_t) (timeout_ns / 1000 + 200000));
    kill(child, SIGCONT);
    usleep(200000);
    assert_int_equal(write(told[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (int i = 0; i < 2; i++) {
        close(heard[i]);
        close(told[i]);
    }
}


static int run_until_aborted(rank_t *rank)
{
    return run_steps(rank, UINT32_MAX);
}


/* At any moment, from a thread that is no rank: everybody stops, with the given reason. */
static void test_abort_anywhere(void **state)
{
    for (unsigned round = 0; round < 1000; round++) {
        const unsigned ranks = rank_counts[1 + round % 4];
        moe_error_t first, second, seen;
        pthread_t threads[MAX_RANKS];
        moe_comm_t *comm;

        moe_fail(&first, MOE_UNAVAILABLE, "stop %u", round);
        moe_fail(&second, MOE_LIMIT, "too late");
        start_ranks(ranks, LONG, (moe_fault_t) {0}, 0, run_until_aborted, threads);
        comm = all_ranks[round % ranks].comm;
        assert_int_equal(comm->ops->error(comm, &seen), 0);
        usleep((useconds_t) (mix(round, 1, 2) % 400));
        comm->ops->abort(comm, &first);
        comm->ops->abort(comm, &second);
        assert_int_equal(comm->ops->error(comm, &seen), -1);
        assert_string_equal(seen.message, first.message);
        end_ranks(ranks, threads);
        for (unsigned r = 0; r < ranks; r++) {
            assert_int_equal(all_ranks[r].result, -1);
            assert_int_equal(all_ranks[r].faults, 0);
            assert_string_equal(all_ranks[r].error.message, first.message);
        }
    }
}


/* A rank that closes its end while another waits for it. */
static int close_or_wait(rank_t *rank)
{
    rank->comm->step = 3;
    if (rank->comm->rank == 1) {
        rank->comm->ops->close(rank->comm);
        return 0;
    }
    return rank->comm->ops->barrier(rank->comm, &rank->error);
}


static void test_close(void **state)
{
    pthread_t threads[MAX_RANKS];

    start_ranks(2, LONG, (moe_fault_t) {0}, 0, close_or_wait, threads);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(all_ranks[0].result, -1);
    assert_string_equal(all_ranks[0].error.message, "step 3: rank 1 has left");
    all_ranks[0].comm->ops->close(all_ranks[0].comm);
}


static int meet_and_close(rank_t *rank)
{
    const int result = rank->comm->ops->barrier(rank->comm, &rank->error);

    rank->comm->ops->close(rank->comm);
    return result;
}


/* The last verb succeeds for all, though the first to return closes its end at once. */
static void test_orderly_end(void **state)
{
    for (unsigned round = 0; round < 1000; round++) {
        const unsigned ranks = rank_counts[round % 5];
        pthread_t threads[MAX_RANKS];

        start_ranks(ranks, LONG, (moe_fault_t) {0}, 0, meet_and_close, threads);
        for (unsigned r = 0; r < ranks; r++) {
            pthread_join(threads[r], NULL);
        }
        for (unsigned r = 0; r < ranks; r++) {
            assert_int_equal(all_ranks[r].result, 0);
        }
    }
}


static void test_parse_fault(void **state)
{
    static const struct {
        const char *text, *message;
        moe_fault_t fault;
    } cases[] = {
        {NULL, NULL, {0}},
        {"", NULL, {0}},
        {"rank2:step100:stall", NULL, {MOE_FAULT_STALL, 2, 100}},
        {"rank0:step0:exit", NULL, {MOE_FAULT_EXIT, 0, 0}},
        {"rank4:step1:exit", "MOE_FAULT: there is no rank 4 among 4", {0}},
        {"rank-1:step1:exit", "MOE_FAULT: \"rank-1:step1:exit\" is not rankR:stepS:stall or "
         "rankR:stepS:exit", {0}},
        {"rank1:step99999999999999999999:exit", "MOE_FAULT: "
         "\"rank1:step99999999999999999999:exit\" is not rankR:stepS:stall or rankR:stepS:exit",
         {0}},
        {"rank1:step1", "MOE_FAULT: \"rank1:step1\" is not rankR:stepS:stall or rankR:stepS:exit",
         {0}},
        {"rank1:step1:exit ", "MOE_FAULT: \"rank1:step1:exit \" is not rankR:stepS:stall or "
         "rankR:stepS:exit", {0}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_fault_t fault = {MOE_FAULT_EXIT, 9, 9};
        moe_error_t error;

        assert_int_equal(moe_fault_parse(cases[i].text, 4, &fault, &error),
                         cases[i].message ? -1 : 0);
        if (cases[i].message) {
            assert_int_equal(error.code, MOE_INVALID);
            assert_string_equal(error.message, cases[i].message);
        }
        assert_int_equal(fault.kind, cases[i].fault.kind);
        assert_int_equal(fault.rank, cases[i].fault.rank);
        assert_int_equal(fault.step, cases[i].fault.step);
    }
}


static void test_limits(void **state)
{
    const moe_comm_options_t options = {.timeout_ns = 1}, endless = {0};
    moe_comm_t *comms[MAX_RANKS];
    moe_error_t error;

    assert_int_equal(moe_comm_threads(comms, 0, &options, &error), -1);
    assert_string_equal(error.message, "0 ranks are not within 1..1024");
    assert_int_equal(moe_comm_threads(comms, 1025, &options, &error), -1);
    assert_int_equal(error.code, MOE_INVALID);
    assert_int_equal(moe_comm_threads(comms, 2, &endless, &error), -1);
    assert_string_equal(error.message, "ranks that wait for each other need a timeout");
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verbs),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_stall_alone),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_stopped_process),
        cmocka_unit_test(test_abort_anywhere),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_orderly_end),
        cmocka_unit_test(test_parse_fault),
        cmocka_unit_test(test_limits),
    };

    alarm(250);                         /* a hang is a failure */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
