#include "engine/text/merges.h"

#include <stdlib.h>
#include <string.h>

#define JOINED_LIMIT 8192u              /* bytes of a token that merges make */
#define DERIVED_LIMIT 1024u             /* of one whose merges are derived, by trying all cuts */


static int append(moe_merges_t *merges, moe_merge_t merge, moe_error_t *error)
{
    if (merges->count == MOE_MERGES_LIMIT) {
        return moe_fail(error, MOE_BAD_MODEL, "more than %zu merges", MOE_MERGES_LIMIT);
    }
    if (merges->count == merges->capacity) {
        size_t capacity = merges->capacity ? merges->capacity * 2 : 4096;
        moe_merge_t *items = realloc(merges->items, capacity * sizeof(*items));

        if (items == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for %zu merges", capacity);
        }
        merges->items = items;
        merges->capacity = capacity;
    }
    merges->items[merges->count++] = merge;
    return 0;
}


static int no_token(const char *what, const char *text, size_t size, uint32_t rank,
                    moe_error_t *error)
{
    return moe_fail(error, MOE_BAD_MODEL, "%s\"%.*s\" of entry %u is not a token", what,
                    (int) (size < 60 ? size : 60), text, rank);
}


int moe_merges_add(moe_merges_t *merges, const moe_vocab_t *vocab, const char *left,
                   size_t left_size, const char *right, size_t right_size, uint32_t rank,
                   moe_error_t *error)
{
    char joined[JOINED_LIMIT];
    moe_merge_t merge = { .rank = rank };

    if (left_size + right_size > sizeof(joined)) {
        return moe_fail(error, MOE_BAD_MODEL, "entry %u makes a token of more than %u bytes", rank,
                        JOINED_LIMIT);
    }
    memcpy(joined, left, left_size);
    memcpy(joined + left_size, right, right_size);
    merge.left = moe_vocab_find(vocab, left, left_size);
    merge.right = moe_vocab_find(vocab, right, right_size);
    merge.merged = moe_vocab_find(vocab, joined, left_size + right_size);
    if (merge.left == MOE_NO_TOKEN) {
        return no_token("", left, left_size, rank, error);
    }
    if (merge.right == MOE_NO_TOKEN) {
        return no_token("", right, right_size, rank, error);
    }
    if (merge.merged == MOE_NO_TOKEN) {
        return no_token("result ", joined, left_size + right_size, rank, error);
    }
    return append(merges, merge, error);
}


int moe_merges_add_line(moe_merges_t *merges, const moe_vocab_t *vocab, const char *line,
                        size_t size, uint32_t rank, moe_error_t *error)
{
    const char *space = memchr(line, ' ', size);

    if (space == NULL) {
        return moe_fail(error, MOE_BAD_MODEL, "entry %u is not a pair", rank);
    }
    return moe_merges_add(merges, vocab, line, (size_t) (space - line), space + 1,
                          size - (size_t) (space - line) - 1, rank, error);
}


int moe_merges_derive(moe_merges_t *merges, const moe_vocab_t *vocab, const uint32_t *ranks,
                      moe_error_t *error)
{
    for (uint32_t id = 0; id < vocab->n_ids; id++) {
        const moe_token_t *token = &vocab->tokens[id];
        uint32_t rank = ranks != NULL ? ranks[id] : id;

        if (token->text == NULL || rank == MOE_NO_RANK) {
            continue;
        }
        if (token->size > DERIVED_LIMIT) {
            return moe_fail(error, MOE_BAD_MODEL, "token %u is longer than %u bytes", id,
                            DERIVED_LIMIT);
        }
        for (uint32_t cut = 1; cut < token->size; cut++) {
            moe_merge_t merge = { .rank = rank, .merged = id };

            if (((unsigned char) token->text[cut] & 0xc0) == 0x80) {
                continue;               /* inside a character */
            }
            merge.left = moe_vocab_find(vocab, token->text, cut);
            if (merge.left == MOE_NO_TOKEN) {
                continue;
            }
            merge.right = moe_vocab_find(vocab, token->text + cut, token->size - cut);
            if (merge.right != MOE_NO_TOKEN && append(merges, merge, error) != 0) {
                return -1;
            }
        }
    }
    return 0;
}


void moe_merges_free(moe_merges_t *merges)
{
    free(merges->items);
    memset(merges, 0, sizeof(*merges));
}
