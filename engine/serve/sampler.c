/*
 * A draw walks candidates in an order that depends on their logits and ids only, and stops where
 * the running sum of weights exp((logit - largest) / temperature) passes u * sum.  u comes from
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the seed is
 * the key, the position the counter, so no state is carried from token to token.
 *
 * Nothing sorts the vocabulary.  Without top_k and top_p the order is that of the ids; with them
 * candidates come off a binary heap (built in linear time) until enough are there.  Before top_p
 * builds its heap it drops tokens lighter than (1 - p) / n of the sum: together they weigh less
 * than 1 - p, so none of them can be in the nucleus.
 */

#include "engine/serve/sampler.h"

#include <float.h>
#include <stdlib.h>

#include "engine/core/maths.h"

#define NEGLIGIBLE (-87.0)      /* ln of a weight that no sum of 2^24 others would notice */

typedef struct {
    double weight;
    uint32_t id;
} candidate_t;

struct moe_sampler_s {
    uint32_t vocabulary;
    uint32_t end;               /* usable ids are below */
    uint32_t *holes;            /* unusable ids below end */
    uint32_t n_holes;
    float *adjusted;            /* [vocabulary] */
    candidate_t *candidates;    /* [vocabulary] */
};


static uint32_t *find_slot(const moe_sampling_t *sampling, uint32_t id)
{
    uint32_t slot = (id * 2654435769u) & sampling->slot_mask;

    while (sampling->slots[slot] && sampling->seen[sampling->slots[slot] - 1].id != id) {
        slot = (slot + 1) & sampling->slot_mask;
    }
    return &sampling->slots[slot];
}


static void see(moe_sampling_t *sampling, uint32_t id, uint32_t count)
{
    uint32_t *slot = find_slot(sampling, id);

    if (*slot == 0) {
        sampling->seen[sampling->n_seen] = (moe_token_count_t) { id, 0 };
        *slot = ++sampling->n_seen;
    }
    sampling->seen[*slot - 1].count += count;
}


int moe_sampling_init(moe_sampling_t *sampling, const moe_sampling_params_t *params,
                      const uint32_t *prompt, uint32_t n_prompt, uint32_t max_tokens,
                      moe_error_t *error)
{
    size_t most = (size_t) n_prompt + max_tokens, slots = 16;

    memset(sampling, 0, sizeof(*sampling));
    sampling->params = *params;
    if (params->repetition_penalty == 1.0f && params->presence_penalty == 0.0f
        && params->frequency_penalty == 0.0f)
    {
        return 0;
    }
    while (slots < most * 2) {
        slots *= 2;
    }
    sampling->seen = malloc((most + 1) * sizeof(moe_token_count_t));
    sampling->slots = calloc(slots, sizeof(uint32_t));
    if (sampling->seen == NULL || sampling->slots == NULL) {
        moe_sampling_free(sampling);
        return moe_fail(error, MOE_LIMIT, "out of memory for the counts of %zu tokens", most);
    }
    sampling->slot_mask = (uint32_t) (slots - 1);
    for (uint32_t i = 0; i < n_prompt; i++) {
        see(sampling, prompt[i], 0);
    }
    return 0;
}


void moe_sampling_free(moe_sampling_t *sampling)
{
    free(sampling->seen);
    free(sampling->slots);
    sampling->seen = NULL;
    sampling->slots = NULL;
}


void moe_sampling_note(moe_sampling_t *sampling, uint32_t id)
{
    sampling->generated++;
    if (sampling->seen) {
        see(sampling, id, 1);
    }
}


moe_sampler_t *moe_sampler_create(uint32_t vocabulary, const uint8_t *usable, moe_error_t *error)
{
    moe_sampler_t *sampler = calloc(1, sizeof(*sampler));

    if (sampler) {
        sampler->vocabulary = vocabulary;
        sampler->end = vocabulary;
        while (usable && sampler->end > 1 && !usable[sampler->end - 1]) {
            sampler->end--;
        }
        sampler->holes = malloc(((size_t) sampler->end + 1) * sizeof(uint32_t));
        sampler->adjusted = malloc((size_t) vocabulary * sizeof(float));
        sampler->candidates = malloc((size_t) vocabulary * sizeof(candidate_t));
    }
    if (sampler == NULL || !sampler->holes || !sampler->adjusted || !sampler->candidates) {
        moe_sampler_free(sampler);
        moe_fail(error, MOE_LIMIT, "out of memory for a sampler of %u tokens", vocabulary);
        return NULL;
    }
    for (uint32_t id = 0; usable && id < sampler->end; id++) {
        if (!usable[id]) {
            sampler->holes[sampler->n_holes++] = id;
        }
    }
    return sampler;
}


void moe_sampler_free(moe_sampler_t *sampler)
{
    if (sampler) {
        free(sampler->holes);
        free(sampler->adjusted);
        free(sampler->candidates);
        free(sampler);
    }
}


static void mask(const moe_sampler_t *sampler, const uint32_t *ids, uint32_t n_ids)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        sampler->adjusted[ids[i]] = -INFINITY;
    }
}


static void penalise(const moe_sampler_t *sampler, const moe_sampling_t *sampling)
{
    const moe_sampling_params_t *params = &sampling->params;

    for (uint32_t i = 0; sampling->seen && i < sampling->n_seen; i++) {
        const moe_token_count_t *seen = &sampling->seen[i];
        float logit = sampler->adjusted[seen->id];

        if (!(logit > -INFINITY)) {
            continue;
        }
        logit = logit > 0.0f ? logit / params->repetition_penalty
                             : logit * params->repetition_penalty;
        if (seen->count > 0) {
            logit -= params->frequency_penalty * (float) seen->count;
            logit -= params->presence_penalty;
        }
        /* Overflow orders the token last or first, it does not exclude it. */
        sampler->adjusted[seen->id] = fmaxf(fminf(logit, FLT_MAX), -FLT_MAX);
    }
}


/* The logits as masks, bias and penalties leave them; the given ones when nothing changes them. */
static const float *adjust(const moe_sampler_t *sampler, const moe_sampling_t *sampling,
                           const float *logits)
{
    const moe_sampling_params_t *params = &sampling->params;
    int too_short = sampling->generated < params->min_tokens;
    float *adjusted = sampler->adjusted;

    if (!sampler->n_holes && !params->n_allowed_ids && !params->n_biases && !too_short
        && !sampling->seen)
    {
        return logits;
    }
    if (params->n_allowed_ids) {
        for (uint32_t id = 0; id < sampler->end; id++) {
            adjusted[id] = -INFINITY;
        }
        for (uint32_t i = 0; i < params->n_allowed_ids; i++) {
            adjusted[params->allowed_ids[i]] = logits[params->allowed_ids[i]];
        }
    } else {
        memcpy(adjusted, logits, sampler->end * sizeof(float));
    }
    mask(sampler, sampler->holes, sampler->n_holes);
    for (uint32_t i = 0; i < params->n_biases; i++) {
        adjusted[params->biases[i].id] += params->biases[i].bias;
    }
    penalise(sampler, sampling);
    if (too_short) {
        mask(sampler, params->end_ids, params->n_end_ids);
        mask(sampler, params->stop_ids, params->n_stop_ids);
    }
    return adjusted;
}


/* Everything is masked: the lowest id that exists and is allowed. */
static uint32_t last_resort(const moe_sampler_t *sampler, const moe_sampling_t *sampling)
{
    const moe_sampling_params_t *params = &sampling->params;
    uint32_t lowest = 0;

    if (params->n_allowed_ids) {
        lowest = params->allowed_ids[0];
        for (uint32_t i = 1; i < params->n_allowed_ids; i++) {
            lowest = params->allowed_ids[i] < lowest ? params->allowed_ids[i] : lowest;
        }
        return lowest;
    }
    while (lowest < sampler->n_holes && sampler->holes[lowest] == lowest) {
        lowest++;
    }
    return lowest;
}


/* Index of the largest logit, UINT32_MAX when none is above -inf. */
static uint32_t largest(const float *logits, uint32_t n)
{
    float best = -INFINITY;
    uint32_t at = UINT32_MAX;

    for (uint32_t id = 0; id < n; id++) {
        if (logits[id] > best) {
            best = logits[id];
            at = id;
        }
    }
    return at;
}


static int heavier(const candidate_t *a, const candidate_t *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}


static void sift_down(candidate_t *heap, uint32_t n, uint32_t at)
{
    candidate_t moving = heap[at];
    uint32_t child;

    while ((child = 2 * at + 1) < n) {
        if (child + 1 < n && heavier(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!heavier(&heap[child], &moving)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}


/* Moves the heaviest candidates to the end of the array, heaviest last, until there are `count` or
 * they weigh `weight` together.  Returns their number and their sum. */
static uint32_t select_heaviest(candidate_t *heap, uint32_t n, uint32_t count, double weight,
                                double *sum)
{
    uint32_t left = n;

    for (uint32_t i = n / 2; i-- > 0;) {
        sift_down(heap, n, i);
    }
    *sum = 0.0;
    while (left > 0 && n - left < count && *sum < weight) {
        candidate_t top = heap[0];

        heap[0] = heap[--left];
        heap[left] = top;
        sift_down(heap, left, 0);
        *sum += top.weight;
    }
    return n - left;
}


/* Candidates that min_p leaves, in the order of ids. */
static uint32_t collect(const moe_sampler_t *sampler, const moe_sampling_params_t *params,
                        const float *logits, float top, double *sum)
{
    double inverse = 1.0 / (double) params->temperature;
    uint32_t n = 0;

    *sum = 0.0;
    for (uint32_t id = 0; id < sampler->end; id++) {
        double x, weight;

        x = logits[id] == top ? 0.0 : ((double) logits[id] - (double) top) * inverse;
        if (!(x >= NEGLIGIBLE)) {
            continue;
        }
        weight = moe_exp(x);
        if (weight >= (double) params->min_p) {
            sampler->candidates[n++] = (candidate_t) { weight, id };
            *sum += weight;
        }
    }
    return n;
}


static uint32_t drop_light(candidate_t *candidates, uint32_t n, double least)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (candidates[i].weight >= least) {
            candidates[kept++] = candidates[i];
        }
    }
    return kept;
}


uint32_t moe_sampler_draw(moe_sampler_t *sampler, const moe_sampling_t *sampling,
                          const float *logits, uint32_t position)
{
    const moe_sampling_params_t *params = &sampling->params;
    const float *adjusted = adjust(sampler, sampling, logits);
    candidate_t *candidates = sampler->candidates;
    uint32_t top = largest(adjusted, sampler->end), n, kept;
    double sum, nucleus, target, passed = 0.0;

    if (top == UINT32_MAX) {
        return last_resort(sampler, sampling);
    }
    if (params->temperature == 0.0f) {
        return top;
    }
    n = collect(sampler, params, adjusted, adjusted[top], &sum);
    target = moe_sampler_uniform(params->seed, position);
    if (params->top_k == 0 && params->top_p >= 1.0f) {
        for (uint32_t i = 0; i < n; i++) {
            passed += candidates[i].weight;
            if (passed > target * sum) {
                return candidates[i].id;
            }
        }
        return candidates[n - 1].id;
    }
    kept = params->top_k ? params->top_k : n;
    nucleus = INFINITY;
    if (params->top_p < 1.0f && kept >= n) {
        nucleus = (double) params->top_p * sum;
        n = drop_light(candidates, n, (1.0 - (double) params->top_p) * sum / n);
    }
    kept = select_heaviest(candidates, n, kept, nucleus, &sum);
    if (params->top_p < 1.0f && nucleus == INFINITY) {
        /* top_k came first: the nucleus is taken of its sum. */
        nucleus = (double) params->top_p * sum;
        sum = 0.0;
        for (uint32_t i = 0; i < kept && sum < nucleus; i++) {
            sum += candidates[n - 1 - i].weight;
        }
    }
    for (uint32_t i = 0; i < kept; i++) {
        passed += candidates[n - 1 - i].weight;
        if (passed > target * sum) {
            return candidates[n - 1 - i].id;
        }
    }
    return candidates[n - kept].id;
}


static float clamped(double logprob)
{
    return logprob >= (double) MOE_LOGPROB_FLOOR ? (float) logprob : MOE_LOGPROB_FLOOR;
}


static int usable(const moe_sampler_t *sampler, uint32_t id)
{
    uint32_t low = 0, high = sampler->n_holes;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (sampler->holes[middle] == id) {
            return 0;
        }
        if (sampler->holes[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return 1;
}


void moe_sampler_logprobs(const moe_sampler_t *sampler, const float *logits, uint32_t token,
                          uint32_t n_top, moe_logprob_t *record)
{
    uint32_t at = largest(logits, sampler->vocabulary), n = 0;
    float top = at == UINT32_MAX ? 0.0f : logits[at];
    moe_candidate_t *best = record->top;
    double sum = 0.0, log_sum;

    for (uint32_t id = 0; id < sampler->vocabulary; id++) {
        double x = logits[id] == top ? 0.0 : (double) logits[id] - (double) top;

        if (x >= NEGLIGIBLE) {
            sum += moe_exp(x);
        }
    }
    log_sum = sum > 0.0 ? moe_log_natural(sum) : INFINITY;
    for (uint32_t id = 0; n_top > 0 && id < sampler->end; id++) {
        float logit = isnan(logits[id]) ? -INFINITY : logits[id];
        uint32_t place = n;

        if ((n == n_top && logit <= best[n - 1].logprob) || !usable(sampler, id)) {
            continue;
        }
        n += n < n_top;
        if (place == n) {
            place--;
        }
        for (; place > 0 && best[place - 1].logprob < logit; place--) {
            best[place] = best[place - 1];
        }
        best[place] = (moe_candidate_t) { .id = id, .logprob = logit };
    }
    for (uint32_t i = 0; i < n; i++) {
        float logit = best[i].logprob;

        best[i].logprob = clamped((logit == top ? 0.0 : (double) logit - (double) top) - log_sum);
    }
    record->n_top = n;
    record->token = (moe_candidate_t) {
        .id = token,
        .logprob = clamped((logits[token] == top ? 0.0 : (double) logits[token] - (double) top)
                           - log_sum)
    };
}


double moe_sampler_uniform(uint64_t seed, uint32_t position)
{
    uint32_t counter[4] = { position, 0, 0, 0 };
    uint32_t key[2] = { (uint32_t) seed, (uint32_t) (seed >> 32) };

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t) 0xd2511f53u * counter[0];
        uint64_t b = (uint64_t) 0xcd9e8d57u * counter[2];

        counter[0] = (uint32_t) (b >> 32) ^ counter[1] ^ key[0];
        counter[1] = (uint32_t) b;
        counter[2] = (uint32_t) (a >> 32) ^ counter[3] ^ key[1];
        counter[3] = (uint32_t) a;
        key[0] += 0x9e3779b9u;
        key[1] += 0xbb67ae85u;
    }
    return (double) ((((uint64_t) counter[0] << 32) | counter[1]) >> 11) * 0x1p-53;
}
