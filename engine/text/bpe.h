/* Byte-pair encoding: the model of tokenizer.json. */

#ifndef MOE_BPE_H
#define MOE_BPE_H

#include "engine/core/json.h"
#include "engine/text/text.h"
#include "engine/text/vocab.h"

typedef struct moe_bpe_s moe_bpe_t;             /* immutable */
typedef struct moe_bpe_scratch_s moe_bpe_scratch_t;

/* `json`: the value of "model".  NULL with MOE_BAD_MODEL. */
moe_bpe_t *moe_bpe_create(const json_t *json, moe_error_t *error);
void moe_bpe_free(moe_bpe_t *bpe);

const moe_vocab_t *moe_bpe_vocab(const moe_bpe_t *bpe);

/* Memory of one thread, for any number of encodings.  NULL with MOE_LIMIT. */
moe_bpe_scratch_t *moe_bpe_scratch_create(moe_error_t *error);
void moe_bpe_scratch_free(moe_bpe_scratch_t *scratch);

/* Appends the ids of a piece of valid UTF-8.  -1 with MOE_LIMIT. */
int moe_bpe_encode(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *piece,
                   size_t size, moe_ids_t *ids, moe_error_t *error);

#endif
