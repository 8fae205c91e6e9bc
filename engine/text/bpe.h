/* Byte-pair encoding. */

#ifndef MOE_BPE_H
#define MOE_BPE_H

#include "engine/text/merges.h"
#include "engine/text/text.h"
#include "engine/text/vocab.h"

typedef struct moe_bpe_s moe_bpe_t;             /* immutable */
typedef struct moe_bpe_scratch_s moe_bpe_scratch_t;

typedef struct {
    uint32_t unknown;           /* id for a character without a token, or MOE_NO_TOKEN */
    int byte_fallback;          /* its bytes <0x00>..<0xFF> instead */
    int fuse_unknown;           /* one id for several of them in a row */
    int ignore_merges;          /* a piece that is a token is taken whole */
} moe_bpe_settings_t;

/* `vocab` stays the caller's and must outlive the result; the merges are copied, the last one of a
 * pair counts.  NULL with MOE_BAD_MODEL or MOE_LIMIT. */
moe_bpe_t *moe_bpe_create(const moe_vocab_t *vocab, const moe_merges_t *merges,
                          const moe_bpe_settings_t *settings, moe_error_t *error);
void moe_bpe_free(moe_bpe_t *bpe);

/* Memory of one thread, for any number of encodings.  NULL with MOE_LIMIT. */
moe_bpe_scratch_t *moe_bpe_scratch_create(moe_error_t *error);
void moe_bpe_scratch_free(moe_bpe_scratch_t *scratch);

/* Appends the ids of a piece of valid UTF-8.  -1 with MOE_LIMIT. */
int moe_bpe_encode(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *piece,
                   size_t size, moe_ids_t *ids, moe_error_t *error);

#endif
