/* The merges of a BPE vocabulary: which two adjacent tokens become which, and in what order. */

#ifndef MOE_MERGES_H
#define MOE_MERGES_H

#include "engine/text/vocab.h"

typedef struct {
    uint32_t left, right, merged;       /* ids */
    uint32_t rank;                      /* lower ones first, leftmost on ties */
} moe_merge_t;

typedef struct {
    moe_merge_t *items;                 /* owned */
    size_t count, capacity;
} moe_merges_t;

#define MOE_MERGES_LIMIT (4 * (size_t) MOE_TOKEN_ID_LIMIT)
#define MOE_NO_RANK UINT32_MAX

/* Appends the merge of two texts, each and their concatenation a token; its rank is `rank`.
 * -1 with MOE_BAD_MODEL. */
int moe_merges_add(moe_merges_t *merges, const moe_vocab_t *vocab, const char *left,
                   size_t left_size, const char *right, size_t right_size, uint32_t rank,
                   moe_error_t *error);

/* Appends the merge that "left right" stands for, divided at its first space. */
int moe_merges_add_line(moe_merges_t *merges, const moe_vocab_t *vocab, const char *line,
                        size_t size, uint32_t rank, moe_error_t *error);

/* Appends, for vocabularies without a list of merges, every way to make a token of two others;
 * ranks[id] is the rank of all ways to make `id`, MOE_NO_RANK for a token that is never made.
 * `ranks` NULL: ids are ranks.  -1 with MOE_BAD_MODEL when they are too many. */
int moe_merges_derive(moe_merges_t *merges, const moe_vocab_t *vocab, const uint32_t *ranks,
                      moe_error_t *error);

void moe_merges_free(moe_merges_t *merges);

#endif
