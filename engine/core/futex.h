/* Waiting for a 32-bit word to change: spin a little, then sleep in the kernel. */

#ifndef MOE_FUTEX_H
#define MOE_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Some 30 microseconds: longer than the gaps between the loops of a step, shorter than a tick. */
#define MOE_SPINS 1000u

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


static inline void moe_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
