#include "engine/mixer/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>


static void fill_row(float *row, uint32_t position, const float *frequencies, uint32_t half,
                     float magnitude)
{
    for (uint32_t j = 0; j < half; j++) {
        const double angle = (double) position * (double) frequencies[j];

        row[j] = (float) (cos(angle) * (double) magnitude);
        row[half + j] = (float) (sin(angle) * (double) magnitude);
    }
}


static const float *make_table(moe_device_t *device, const float *frequencies, uint32_t size,
                               float magnitude, uint32_t context, moe_error_t *error)
{
    float *table = device->ops->allocate(device, (size_t) context * size * sizeof(float), error);
    float *row = malloc(size * sizeof(float));

    if (table == NULL || row == NULL) {
        free(row);
        moe_fail(error, MOE_LIMIT, "out of memory for rotary tables of %u positions", context);
        return NULL;
    }
    for (uint32_t p = 0; p < context; p++) {
        fill_row(row, p, frequencies, size / 2, magnitude);
        device->ops->upload(device, table + (size_t) p * size, row, size * sizeof(float));
    }
    free(row);
    return table;
}


const float *moe_rope_table(moe_rope_tables_t *tables, moe_device_t *device,
                            const moe_rotary_t *rotary, uint32_t context, moe_error_t *error)
{
    const int is_long = rotary->long_frequencies != NULL && context > rotary->short_context;
    const float *frequencies = is_long ? rotary->long_frequencies : rotary->frequencies;
    const float magnitude = is_long ? rotary->long_magnitude : rotary->magnitude;
    const uint32_t size = rotary->size;
    const float *table;

    for (uint32_t i = 0; i < tables->n_entries; i++) {
        if (tables->entries[i].size == size && tables->entries[i].magnitude == magnitude
            && memcmp(tables->entries[i].frequencies, frequencies, size / 2 * sizeof(float)) == 0)
        {
            return tables->entries[i].table;
        }
    }
    if (tables->n_entries == MOE_ROPE_TABLES) {
        moe_fail(error, MOE_LIMIT, "more than %u different rotary tables", MOE_ROPE_TABLES);
        return NULL;
    }
    table = make_table(device, frequencies, size, magnitude, context, error);
    if (table) {
        tables->entries[tables->n_entries].frequencies = frequencies;
        tables->entries[tables->n_entries].size = size;
        tables->entries[tables->n_entries].magnitude = magnitude;
        tables->entries[tables->n_entries++].table = table;
    }
    return table;
}
