/*
 * What makes ids of the pieces of a text: BPE or Unigram, with its vocabulary.  Every file that
 * holds a tokenizer is read into one of these.
 */

#ifndef MOE_TOKEN_MODEL_H
#define MOE_TOKEN_MODEL_H

#include "engine/text/bpe.h"
#include "engine/text/unigram.h"

typedef struct {
    moe_vocab_t vocab;
    moe_bpe_t *bpe;             /* one of the two */
    moe_unigram_t *unigram;
} moe_token_model_t;

/* Memory of one thread, for any number of encodings. */
typedef struct {
    moe_bpe_scratch_t *bpe;
    moe_unigram_scratch_t *unigram;
} moe_token_scratch_t;

/* An empty one, whose vocabulary the caller fills before one of the next two makes the rest.  NULL
 * with MOE_LIMIT. */
moe_token_model_t *moe_token_model_create(moe_error_t *error);

/* -1 with MOE_BAD_MODEL or MOE_LIMIT. */
int moe_token_model_bpe(moe_token_model_t *model, const moe_merges_t *merges,
                        const moe_bpe_settings_t *settings, moe_error_t *error);
int moe_token_model_unigram(moe_token_model_t *model, const double *scores,
                            const moe_unigram_settings_t *settings, moe_error_t *error);

void moe_token_model_free(moe_token_model_t *model);

/* -1 with MOE_LIMIT; moe_token_scratch_free is due in any case. */
int moe_token_scratch_init(moe_token_scratch_t *scratch, const moe_token_model_t *model,
                           moe_error_t *error);
void moe_token_scratch_free(moe_token_scratch_t *scratch);

/* Appends the ids of a piece of valid UTF-8.  -1 with MOE_LIMIT. */
int moe_token_model_encode(const moe_token_model_t *model, moe_token_scratch_t *scratch,
                           const char *piece, size_t size, moe_ids_t *ids, moe_error_t *error);

#endif
