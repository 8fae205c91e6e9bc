/* Tables of cos and sin by position, shared by all layers with the same frequencies. */

#ifndef MOE_MIXER_ROPE_H
#define MOE_MIXER_ROPE_H

#include "engine/device/device.h"
#include "engine/model/model.h"

#define MOE_ROPE_TABLES 8u

typedef struct {
    struct {
        const float *frequencies;
        uint32_t size;
        float magnitude;
        const float *table;
    } entries[MOE_ROPE_TABLES];
    uint32_t n_entries;
} moe_rope_tables_t;

/* [context, size] in device memory: each row [size / 2] cos, [size / 2] sin of position times
 * frequency, in double precision, times magnitude.  NULL with MOE_LIMIT. */
const float *moe_rope_table(moe_rope_tables_t *tables, moe_device_t *device,
                            const moe_rotary_t *rotary, uint32_t context, moe_error_t *error);

#endif
