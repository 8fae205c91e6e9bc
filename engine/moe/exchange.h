/*
 * Moves rows to the experts that want them: copy (row, slot) of a token's row gets a place such that
 * all rows of an expert are adjacent, in the order of rows and slots.  The way back is the list of
 * places, which moe/combine.h reads through.
 */

#ifndef MOE_EXCHANGE_H
#define MOE_EXCHANGE_H

#include "engine/device/device.h"

typedef struct {
    moe_device_t *device;
    uint32_t experts, top_k, hidden;
    float *rows;                    /* [batch_rows * top_k, hidden], by expert */
    uint32_t *places;               /* [batch_rows, top_k]: index into rows */
    uint32_t *offsets;              /* [experts + 1]: first row of each expert */
} moe_exchange_t;

/* 0, or -1 with MOE_LIMIT. */
int moe_exchange_create(moe_exchange_t *self, moe_device_t *device, uint32_t experts,
                        uint32_t top_k, uint32_t hidden, uint32_t batch_rows, moe_error_t *error);

/* Fills rows, places and offsets from x [n, hidden] and ids [n, top_k] < experts.
 * counts [experts] grows by the rows of each expert. */
void moe_exchange_run(const moe_exchange_t *self, const float *x, const uint32_t *ids, uint32_t n,
                      uint64_t *counts);

#endif
