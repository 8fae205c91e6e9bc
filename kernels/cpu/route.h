/*
 * The router's choice for one row.
 *
 * Selection is a walk down a total order (key falling, then index rising), so that ties and
 * infinite keys need no special case and the same expert is never taken twice.
 */

#ifndef MOE_ROUTE_H
#define MOE_ROUTE_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vector.h"


/* The element that follows (key, index) in the order; start with (INFINITY, -1). */
static size_t next_in_order(const float *keys, size_t n, float key, ptrdiff_t index)
{
    size_t best = n;

    for (size_t i = 0; i < n; i++) {
        if ((keys[i] < key || (keys[i] == key && (ptrdiff_t) i > index))
            && (best == n || keys[i] > keys[best]))
        {
            best = i;
        }
    }
    return best;
}


static void route_scores(const moe_route_t *r, float *scores)
{
    float maximum = scores[0], sum = 0.0f;

    if (r->sigmoid) {
        for (size_t i = 0; i < r->experts; i += MOE_LANES) {
            const size_t lanes = r->experts - i < MOE_LANES ? r->experts - i : MOE_LANES;

            v16_store_n(scores + i, v16_sigmoid(v16_load_n(scores + i, lanes)), lanes);
        }
        return;
    }
    for (size_t i = 1; i < r->experts; i++) {
        maximum = scores[i] > maximum ? scores[i] : maximum;
    }
    for (size_t i = 0; i < r->experts; i += MOE_LANES) {
        const size_t lanes = r->experts - i < MOE_LANES ? r->experts - i : MOE_LANES;
        v16 shifted = v16_sub(v16_load_n(scores + i, lanes), v16_set1(maximum));

        v16_store_n(scores + i, v16_exp(shifted), lanes);
    }
    for (size_t i = 0; i < r->experts; i++) {
        sum += scores[i];
    }
    for (size_t i = 0; i < r->experts; i++) {
        scores[i] /= sum;
    }
}


static float group_score(const float *keys, size_t n, size_t top)
{
    const size_t first = next_in_order(keys, n, INFINITY, -1);
    const size_t second = top > 1 ? next_in_order(keys, n, keys[first], (ptrdiff_t) first) : n;

    const float score = second < n ? keys[first] + keys[second] : keys[first];

    return score == score ? score : -INFINITY;
}


/* Puts -inf on the experts of all groups but the best ones. */
static void mask_groups(const moe_route_t *r, float *keys)
{
    const size_t size = r->experts / r->groups;
    float scores[MOE_ROUTE_GROUPS], key = INFINITY;
    unsigned char kept[MOE_ROUTE_GROUPS] = {0};
    ptrdiff_t index = -1;

    for (size_t g = 0; g < r->groups; g++) {
        scores[g] = group_score(keys + g * size, size, r->group_top);
    }
    for (size_t i = 0; i < r->groups_kept; i++) {
        index = (ptrdiff_t) next_in_order(scores, r->groups, key, index);
        key = scores[index];
        kept[index] = 1;
    }
    for (size_t i = 0; i < r->experts; i++) {
        if (!kept[i / size]) {
            keys[i] = -INFINITY;
        }
    }
}


static void route(const moe_route_t *r, float *scores, float *keys, uint32_t *ids, float *weights)
{
    float key = INFINITY, sum = 0.0f;
    ptrdiff_t index = -1;

    route_scores(r, scores);
    for (size_t i = 0; i < r->experts; i++) {
        float biased = r->bias ? scores[i] + r->bias[i] : scores[i];

        keys[i] = biased == biased ? biased : -INFINITY;        /* the order knows no NaN */
    }
    if (r->groups > 1) {
        mask_groups(r, keys);
    }
    for (size_t s = 0; s < r->top_k; s++) {
        index = (ptrdiff_t) next_in_order(keys, r->experts, key, index);
        key = keys[index];
        ids[s] = (uint32_t) index;
        weights[s] = scores[index];
        sum += scores[index];
    }
    for (size_t s = 0; s < r->top_k; s++) {
        weights[s] = (r->normalise ? weights[s] / (sum + 1e-20f) : weights[s]) * r->scale;
    }
}

#endif
