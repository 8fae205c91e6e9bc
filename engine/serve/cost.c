/*
 * time = step + decode rows * a + prompt rows * b + attended positions * c, all coefficients >= 0:
 * least squares over the last steps, older ones fading, of errors relative to what was expected (a
 * step of decodes is short, and must be predicted as well as one full of prompts).
 *
 * The normal equations are kept as sums and solved by a few rounds of coordinate descent from the
 * last solution.  What the recent steps say nothing about keeps its value, a coefficient cannot
 * become negative, and one wrong measurement moves little.  Which of the coefficients explains a
 * steady load is open, but their sum is right for it, and that is what the next step is cut by.
 *
 * The first measurement is all charged to the rows of the prompt, the only thing that the scheduler
 * decides about: until more is known, chunks are too small rather than too long.
 */

#include "engine/serve/cost.h"

#include <math.h>

#define FADE 0.95               /* weight of a step after the next one */
#define ROUNDS 6u
#define OUTLIER 2.0             /* a step this much longer than expected is counted as this long */

enum { PREFILL, DECODE, ATTENDED, STEP };      /* in the order in which they explain a time */


static void list_terms(const moe_step_size_t *size, double *x)
{
    x[PREFILL] = size->prefill_rows;
    x[DECODE] = size->decode_rows;
    x[ATTENDED] = (double) size->attended;
    x[STEP] = 1.0;
}


double moe_cost_of(const moe_cost_t *cost, const moe_step_size_t *size)
{
    double x[MOE_COST_TERMS], sum = 0.0;

    list_terms(size, x);
    for (unsigned i = 0; i < MOE_COST_TERMS; i++) {
        sum += cost->terms[i] * x[i];
    }
    return sum;
}


int moe_cost_known(const moe_cost_t *cost)
{
    return cost->terms[PREFILL] + cost->terms[ATTENDED] > 0.0;
}


static void solve(moe_cost_t *cost)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < MOE_COST_TERMS; i++) {
            double rest = cost->times[i];

            if (cost->products[i][i] < 1e-30) {     /* faded away, or never seen */
                continue;
            }
            for (unsigned j = 0; j < MOE_COST_TERMS; j++) {
                rest -= i == j ? 0.0 : cost->products[i][j] * cost->terms[j];
            }
            rest /= cost->products[i][i];
            cost->terms[i] = rest > 0.0 ? rest : 0.0;
        }
    }
}


/* Whether everything that makes up a step was measured before. */
static int is_expected(const moe_cost_t *cost, const double *x)
{
    for (unsigned i = 0; i < MOE_COST_TERMS; i++) {
        if (x[i] > 0.0 && cost->products[i][i] <= 0.0) {
            return 0;
        }
    }
    return 1;
}


void moe_cost_learn(moe_cost_t *cost, const moe_step_size_t *size, uint64_t elapsed_ns)
{
    double x[MOE_COST_TERMS], expected = moe_cost_of(cost, size), time = (double) elapsed_ns + 1.0;
    double scale = time, weight;

    list_terms(size, x);
    if (is_expected(cost, x)) {
        scale = expected > time / 8.0 ? expected : time / 8.0;
        time = time < OUTLIER * scale ? time : OUTLIER * scale;
    }
    weight = 1.0 / (scale * scale);
    for (unsigned i = 0; i < MOE_COST_TERMS; i++) {
        for (unsigned j = 0; j < MOE_COST_TERMS; j++) {
            cost->products[i][j] = FADE * cost->products[i][j] + weight * x[i] * x[j];
        }
        cost->times[i] = FADE * cost->times[i] + weight * x[i] * time;
    }
    solve(cost);
}


double moe_cost_rows(const moe_cost_t *cost, const moe_step_size_t *size, uint32_t position,
                     double time_ns)
{
    double left = time_ns - moe_cost_of(cost, size);
    double attended = cost->terms[ATTENDED];
    double row = cost->terms[PREFILL] + attended * position;

    if (left <= 0.0) {
        return 0.0;
    }
    /* r * row + r * r / 2 * attended = left, solved without a difference of large numbers. */
    return 2.0 * left / (row + sqrt(row * row + 2.0 * attended * left) + 1e-3);
}


uint64_t moe_attended(uint32_t position, uint32_t rows)
{
    return (uint64_t) rows * position + (uint64_t) rows * (rows + 1) / 2;
}
