/*
 * From a request to token ids and checked sampling parameters.  Runs off the scheduler's thread.
 * All functions: 0, or -1 with MOE_INVALID or MOE_TOO_LONG, *field (the OpenAI name of the
 * request's field at fault, or NULL) and a message for the client.
 */

#ifndef MOE_PROMPT_H
#define MOE_PROMPT_H

#include "engine/serve/sequence.h"

/* Template and tokeniser.  Fills `ids` and, with MOE_REQUEST_ECHO, the sequence's prompt_text. */
int moe_prompt_encode(moe_sequence_t *sequence, moe_ids_t *ids, const char **field,
                      moe_error_t *error);

/* The length that the request may have: *max_tokens. */
int moe_prompt_measure(const moe_sequence_t *sequence, size_t n_prompt, uint32_t *max_tokens,
                       const char **field, moe_error_t *error);

/* Parameters with the model's defaults where the request gives none; draws a seed when none is
 * given.  `params` points into the request and the model. */
int moe_prompt_sampling(const moe_sequence_t *sequence, moe_sampling_params_t *params,
                        const char **field, moe_error_t *error);

#endif
