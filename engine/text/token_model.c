#include "engine/text/token_model.h"

#include <stdlib.h>
#include <string.h>


moe_token_model_t *moe_token_model_create(moe_error_t *error)
{
    moe_token_model_t *model = calloc(1, sizeof(*model));

    if (model == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return model;
}


int moe_token_model_bpe(moe_token_model_t *model, const moe_merges_t *merges,
                        const moe_bpe_settings_t *settings, moe_error_t *error)
{
    model->bpe = moe_bpe_create(&model->vocab, merges, settings, error);
    return model->bpe != NULL ? 0 : -1;
}


int moe_token_model_unigram(moe_token_model_t *model, const double *scores,
                            const moe_unigram_settings_t *settings, moe_error_t *error)
{
    model->unigram = moe_unigram_create(&model->vocab, scores, settings, error);
    return model->unigram != NULL ? 0 : -1;
}


void moe_token_model_free(moe_token_model_t *model)
{
    if (model != NULL) {
        moe_bpe_free(model->bpe);
        moe_unigram_free(model->unigram);
        moe_vocab_free(&model->vocab);
        free(model);
    }
}


int moe_token_scratch_init(moe_token_scratch_t *scratch, const moe_token_model_t *model,
                           moe_error_t *error)
{
    memset(scratch, 0, sizeof(*scratch));
    if (model->unigram != NULL) {
        scratch->unigram = moe_unigram_scratch_create(error);
    } else {
        scratch->bpe = moe_bpe_scratch_create(error);
    }
    return scratch->unigram != NULL || scratch->bpe != NULL ? 0 : -1;
}


void moe_token_scratch_free(moe_token_scratch_t *scratch)
{
    moe_bpe_scratch_free(scratch->bpe);
    moe_unigram_scratch_free(scratch->unigram);
}


int moe_token_model_encode(const moe_token_model_t *model, moe_token_scratch_t *scratch,
                           const char *piece, size_t size, moe_ids_t *ids, moe_error_t *error)
{
    if (model->unigram != NULL) {
        return moe_unigram_encode(model->unigram, scratch->unigram, piece, size, ids, error);
    }
    return moe_bpe_encode(model->bpe, scratch->bpe, piece, size, ids, error);
}
