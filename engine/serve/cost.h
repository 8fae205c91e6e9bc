/*
 * How long a step will take, learned from those that were.  Only the cutting of prompts depends on
 * it, never a result.
 */

#ifndef MOE_COST_H
#define MOE_COST_H

#include <stdint.h>

#define MOE_COST_TERMS 4u

/* What makes a step long. */
typedef struct {
    uint32_t decode_rows;
    uint32_t prefill_rows;
    uint64_t attended;          /* positions that rows look back at, summed over all rows */
} moe_step_size_t;

/* All zero: nothing is known yet. */
typedef struct {
    double terms[MOE_COST_TERMS];                       /* ns */
    double products[MOE_COST_TERMS][MOE_COST_TERMS];
    double times[MOE_COST_TERMS];
} moe_cost_t;

/* A step of this size took so long. */
void moe_cost_learn(moe_cost_t *cost, const moe_step_size_t *size, uint64_t elapsed_ns);

/* Expected duration in ns; 0 while nothing is known. */
double moe_cost_of(const moe_cost_t *cost, const moe_step_size_t *size);

/* Whether the price of a row of a prompt is known. */
int moe_cost_known(const moe_cost_t *cost);

/* How many rows of a prompt, from `position` on, fit into so much time beside a step of this size:
 * possibly fewer than one, possibly huge.  The price must be known. */
double moe_cost_rows(const moe_cost_t *cost, const moe_step_size_t *size, uint32_t position,
                     double time_ns);

/* Positions that `rows` rows from `position` on look back at. */
uint64_t moe_attended(uint32_t position, uint32_t rows);

#endif
