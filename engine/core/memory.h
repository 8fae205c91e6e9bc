/* How much memory there is. */

#ifndef MOE_MEMORY_H
#define MOE_MEMORY_H

#include <stdint.h>

/*
 * Bytes that this process can take now: what the kernel estimates to be available, swap included,
 * and no more than the limits of its control groups (version 2) leave.  UINT64_MAX when the kernel
 * does not say.
 */
uint64_t moe_memory_available(void);

#endif
