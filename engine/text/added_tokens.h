/*
 * Added tokens: tokens that are found in the text itself, before it is normalised (or after, where
 * they say so) and cut into pieces.
 */

#ifndef MOE_ADDED_TOKENS_H
#define MOE_ADDED_TOKENS_H

#include "engine/text/text.h"
#include "engine/text/vocab.h"

#define MOE_ADDED_TOKEN_BYTES_LIMIT 1024u

typedef struct {
    uint32_t id;
    int special;                /* found in trusted text only */
    int lstrip, rstrip;         /* takes the white space beside it along */
    int single_word;            /* not found inside a word */
} moe_added_token_t;

typedef struct moe_added_tokens_s moe_added_tokens_t;

/* An empty set.  NULL with MOE_LIMIT. */
moe_added_tokens_t *moe_added_tokens_create(moe_error_t *error);
void moe_added_tokens_free(moe_added_tokens_t *set);

/* Adds a token that is written as text[0..size).  -1 with MOE_BAD_MODEL when it is empty or longer
 * than MOE_ADDED_TOKEN_BYTES_LIMIT; a text that is there already keeps its first token. */
int moe_added_tokens_add(moe_added_tokens_t *set, const char *text, size_t size,
                         const moe_added_token_t *token, moe_error_t *error);

/* Finds the first token in the bytes [from, end) of `text`: leftmost, then longest.  Bytes before
 * `from` (down to `begin`) are looked at only to tell words.  Returns it with the range that it
 * takes up, or NULL and leaves `range` alone. */
const moe_added_token_t *moe_added_tokens_find(const moe_added_tokens_t *set,
                                               const moe_text_t *text, size_t begin, size_t from,
                                               size_t end, moe_span_t *range);

#endif
