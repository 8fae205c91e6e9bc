/* Attention on the CPU: the operations `reserve_attention` and `attend` of device.h. */

#ifndef MOE_CPU_ATTENTION_H
#define MOE_CPU_ATTENTION_H

#include "engine/device/cpu_memory.h"
#include "engine/device/device.h"
#include "kernels/cpu/kernels.h"

typedef struct moe_cpu_unit_s moe_cpu_unit_t;

/* Memory that a device's attentions use in turn, as large as the largest needs. */
typedef struct {
    size_t max_units;               /* a row's splits at least */
    moe_cpu_unit_t *units;
    float *parts, *scratch;         /* [max_units, head panels, part]; [threads, scratch] */
    size_t parts_floats, scratch_floats;
} moe_cpu_attention_t;

/* 0, or -1 with MOE_LIMIT. */
int moe_cpu_reserve_attention(moe_cpu_attention_t *self, moe_arena_t *arena, unsigned threads,
                              const moe_attention_t *attention, uint32_t context,
                              moe_error_t *error);

void moe_cpu_attend(const moe_cpu_attention_t *self, const moe_kernels_t *kernels,
                    moe_pool_t *pool, const moe_attention_t *attention, const moe_rows_t *rows,
                    const moe_kv_t *cache, const float *query, float *y);

#endif
