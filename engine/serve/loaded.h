/*
 * Everything that exists once a model is loaded: made together, freed together, immutable but for
 * what the scheduler thread runs.
 */

#ifndef MOE_LOADED_H
#define MOE_LOADED_H

#include "engine/ranks.h"
#include "engine/serve/engine.h"
#include "engine/serve/groups.h"

typedef struct {
    moe_model_t *model;
    moe_tokenizer_t *tokenizer;
    moe_chat_t *chat;
    moe_answer_format_t *answers;
    moe_ranks_t *ranks;
    moe_groups_t groups;                /* of ranks */
    const float **logits;               /* [groups] of the step in progress */
    size_t *drawn;                      /* [groups] sequences of it */
    uint64_t drawn_ns;                  /* when */
    uint32_t batch_tokens, batch_sequences;     /* effective */
    moe_sampler_t **samplers;           /* [n_samplers] one per thread of all ranks */
    unsigned n_samplers;
    uint8_t *usable;
    moe_prefix_key_t prefix_key;
    moe_lexicon_t lexicon;
} moe_loaded_t;

/* Zeroes of `options` stand for the defaults of engine.h.  -1 with the error of what failed, and
 * nothing left to close. */
typedef struct {
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void (*lost)(void *context, const moe_error_t *reason);     /* a rank, later; see ranks.h */
    void *context;
} moe_loaded_events_t;

int moe_loaded_open(moe_loaded_t *loaded, const moe_engine_options_t *options,
                    const moe_loaded_events_t *events, moe_error_t *error);
void moe_loaded_close(moe_loaded_t *loaded);

/* For a loaded->model that is open already: its tokenizer, chat template, form of answers and
 * usable ids, no weights.  -1 with MOE_BAD_MODEL, MOE_INVALID or MOE_LIMIT; either way
 * moe_loaded_close ends it, the model included. */
int moe_loaded_open_texts(moe_loaded_t *loaded, const moe_engine_options_t *options,
                          moe_error_t *error);

#endif
