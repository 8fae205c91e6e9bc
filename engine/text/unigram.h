/*
 * The unigram language model (Kudo 2018, arXiv:1804.10959): of all ways to cut a piece into tokens
 * the one with the highest sum of scores (log probabilities).
 */

#ifndef MOE_UNIGRAM_H
#define MOE_UNIGRAM_H

#include "engine/text/text.h"
#include "engine/text/vocab.h"

typedef struct moe_unigram_s moe_unigram_t;             /* immutable */
typedef struct moe_unigram_scratch_s moe_unigram_scratch_t;

typedef struct {
    uint32_t unknown;           /* id for characters without a token */
    int byte_fallback;          /* <0x00>..<0xFF> for their bytes instead, where these are tokens */
} moe_unigram_settings_t;

/* scores[id]: of every token of `vocab`; -INFINITY: no text is cut into this one.  They are copied;
 * `vocab` must outlive the result.  NULL with MOE_LIMIT. */
moe_unigram_t *moe_unigram_create(const moe_vocab_t *vocab, const double *scores,
                                  const moe_unigram_settings_t *settings, moe_error_t *error);
void moe_unigram_free(moe_unigram_t *unigram);

/* Memory of one thread, for any number of encodings.  NULL with MOE_LIMIT. */
moe_unigram_scratch_t *moe_unigram_scratch_create(moe_error_t *error);
void moe_unigram_scratch_free(moe_unigram_scratch_t *scratch);

/* Appends the ids of a piece of valid UTF-8.  -1 with MOE_LIMIT. */
int moe_unigram_encode(const moe_unigram_t *unigram, moe_unigram_scratch_t *scratch,
                       const char *piece, size_t size, moe_ids_t *ids, moe_error_t *error);

#endif
