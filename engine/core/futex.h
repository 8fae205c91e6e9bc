/* Waiting for a 32-bit word to change: spin a little, then sleep in the kernel. */

#ifndef MOE_FUTEX_H
#define MOE_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/core/clock.h"

/* Some 30 microseconds: longer than the gaps between the loops of a step, shorter than a tick. */
#define MOE_SPINS 1000u

/* Most that a watch counts at once.  Who waits so long may as well wake up once more. */
#define MOE_WATCH_NS 100000000u

/* Sleeps while *word == value, for `timeout_ns` at most (0: for ever).  Returns early at will. */
static inline void moe_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    const struct timespec timeout = {
        .tv_sec = (time_t) (timeout_ns / 1000000000u), .tv_nsec = (long) (timeout_ns % 1000000000u)
    };

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns ? &timeout : NULL, NULL, 0);
}


static inline void moe_futex_wake(_Atomic uint32_t *word, int threads)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}


/* Sleeps as above for a part of *left_ns (> 0) and takes off what has passed.  Time in which nothing
 * ran, for the process was stopped or its machine was, hardly counts: those it waits for had none
 * either. */
static inline void moe_futex_watch(_Atomic uint32_t *word, uint32_t value, uint64_t *left_ns)
{
    const uint64_t most = *left_ns < MOE_WATCH_NS ? *left_ns : MOE_WATCH_NS;
    const uint64_t start = moe_now_ns();
    uint64_t passed;

    moe_futex_wait(word, value, most);
    passed = moe_now_ns() - start;
    *left_ns -= passed < most ? passed : most;
}


static inline void moe_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}


/* Waits until *word is not `seen` and returns what it is then.  Who changes the word wakes the
 * waiting when there are sleepers. */
static inline uint32_t moe_futex_await(_Atomic uint32_t *word, uint32_t seen,
                                       _Atomic uint32_t *sleepers)
{
    uint32_t value;

    for (unsigned i = 0; i < MOE_SPINS; i++) {
        value = atomic_load_explicit(word, memory_order_acquire);
        if (value != seen) {
            return value;
        }
        moe_cpu_relax();
    }
    atomic_fetch_add(sleepers, 1);
    while ((value = atomic_load(word)) == seen) {
        moe_futex_wait(word, seen, 0);
    }
    atomic_fetch_sub(sleepers, 1);
    return value;
}

#endif
