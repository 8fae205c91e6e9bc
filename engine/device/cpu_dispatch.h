/* plan_dispatch and plan_arrival of device.h: a few numbers for each row and expert, on one
 * thread. */

#ifndef MOE_CPU_DISPATCH_H
#define MOE_CPU_DISPATCH_H

#include "engine/device/device.h"

void moe_cpu_plan_dispatch(const moe_dispatch_t *dispatch, const uint32_t *ids, uint32_t n);
void moe_cpu_plan_arrival(const moe_dispatch_t *dispatch);

#endif
