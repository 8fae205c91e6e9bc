/* Choice of the instruction set.  The list is ordered: the first that this CPU can run is taken. */

#include "kernels/cpu/kernels.h"

#include <string.h>


static int runs_everywhere(void)
{
    return 1;
}


#if defined(__x86_64__)

/* __builtin_cpu_supports asks the operating system's part (XCR0) too. */
static int runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
           && __builtin_cpu_supports("f16c");
}


static int runs_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
           && runs_avx2();
}

#endif


static const struct {
    const moe_kernels_t *kernels;
    int (*runs)(void);
} isas[] = {
#if defined(__x86_64__)
    {&moe_kernels_avx512, runs_avx512},
    {&moe_kernels_avx2, runs_avx2},
#endif
    {&moe_kernels_c, runs_everywhere},
};

#define N_ISAS (sizeof(isas) / sizeof(isas[0]))


const moe_kernels_t *moe_kernels_find(const char *isa)
{
    for (size_t i = 0; i < N_ISAS; i++) {
        if ((isa == NULL || strcmp(isa, isas[i].kernels->name) == 0) && isas[i].runs()) {
            return isas[i].kernels;
        }
    }
    return NULL;
}


const char *moe_kernels_name(size_t index)
{
    for (size_t i = 0; i < N_ISAS; i++) {
        if (isas[i].runs() && index-- == 0) {
            return isas[i].kernels->name;
        }
    }
    return NULL;
}
