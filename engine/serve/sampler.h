/*
 * From logits to a token.
 *
 * The stages and their order are vLLM's: allowed ids, minimum length, logit bias, penalties, then
 * temperature, min_p, top_k, top_p (each over what the one before left), then a draw.  Temperature
 * 0 takes the largest logit instead; the lower id wins a tie.
 *
 * The draw is a function of (seed, position) alone: position is the token's index in the sequence,
 * so a request that is cut and continued draws the same numbers.  See sampler.c for the generator.
 */

#ifndef MOE_SAMPLER_H
#define MOE_SAMPLER_H

#include "engine/channel/message.h"

#define MOE_LOGPROB_FLOOR (-9999.0f)        /* stands for -inf and NaN */

/* What a request asks for; the lists belong to the caller and must outlive the sampling. */
typedef struct {
    float temperature;                      /* >= 0 */
    float top_p;                            /* (0, 1] */
    float min_p;                            /* [0, 1] */
    uint32_t top_k;                         /* 0: off */
    float repetition_penalty;               /* > 0; 1: off; over prompt and output */
    float presence_penalty;                 /* over output */
    float frequency_penalty;                /* over output */
    uint64_t seed;
    uint32_t min_tokens;                    /* the ids below are masked until so many are there */
    const uint32_t *end_ids;                /* EOS of the model */
    uint32_t n_end_ids;
    const uint32_t *stop_ids;               /* of the request */
    uint32_t n_stop_ids;
    const moe_logit_bias_t *biases;
    uint32_t n_biases;
    const uint32_t *allowed_ids;            /* none: all */
    uint32_t n_allowed_ids;
} moe_sampling_params_t;

/* How often a token was generated; 0: it is in the prompt only. */
typedef struct {
    uint32_t id;
    uint32_t count;
} moe_token_count_t;

/* A sequence's side: parameters, and the tokens seen so far when a penalty needs them. */
typedef struct {
    moe_sampling_params_t params;
    moe_token_count_t *seen;            /* [n_seen], in order of first sight; NULL: no penalty */
    uint32_t n_seen;
    uint32_t *slots;                        /* hash table: index into seen + 1 */
    uint32_t slot_mask;
    uint32_t generated;
} moe_sampling_t;

/* Ids of `params` and the prompt are < vocabulary.  At most max_tokens are noted later.
 * -1 with MOE_LIMIT (memory). */
int moe_sampling_init(moe_sampling_t *sampling, const moe_sampling_params_t *params,
                      const uint32_t *prompt, uint32_t n_prompt, uint32_t max_tokens,
                      moe_error_t *error);
void moe_sampling_free(moe_sampling_t *sampling);

/* Counts a generated token. */
void moe_sampling_note(moe_sampling_t *sampling, uint32_t id);

/* Scratch memory for one caller at a time, and the ids that may be sampled at all. */
typedef struct moe_sampler_s moe_sampler_t;

/* `usable[id]` is 0 for ids without a token (padding of the vocabulary); NULL: all are usable.
 * NULL with MOE_LIMIT. */
moe_sampler_t *moe_sampler_create(uint32_t vocabulary, const uint8_t *usable, moe_error_t *error);
void moe_sampler_free(moe_sampler_t *sampler);

/* Draws the token at `position` from logits [vocabulary].  Always a usable, allowed id: when every
 * one of these is masked or NaN, the lowest. */
uint32_t moe_sampler_draw(moe_sampler_t *sampler, const moe_sampling_t *sampling,
                          const float *logits, uint32_t position);

/* Log-probabilities of `token` and of the n_top (<= MOE_TOP_LOGPROBS_LIMIT) likeliest usable tokens
 * by the raw logits; equal ones by id.  Fills ids and numbers of `record`, not the texts. */
void moe_sampler_logprobs(const moe_sampler_t *sampler, const float *logits, uint32_t token,
                          uint32_t n_top, moe_logprob_t *record);

/* The generator: a number in [0, 1) with 53 random bits. */
double moe_sampler_uniform(uint64_t seed, uint32_t position);

#endif
