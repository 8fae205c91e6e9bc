/*
 * Ids back to text, one at a time, as a stream of valid UTF-8.
 *
 * Bytes of an unfinished character are held back until it is whole; bytes that can no longer
 * become a character turn into U+FFFD (one per maximal invalid part, as Unicode recommends); at
 * the end an unfinished rest becomes one U+FFFD.  The concatenation of all pieces does not depend
 * on how often it was called.
 */

#ifndef MOE_DETOKENIZER_H
#define MOE_DETOKENIZER_H

#include "engine/text/tokenizer.h"

typedef struct {
    const moe_tokenizer_t *tokenizer;
    int keep_special;           /* text of special tokens is output as well */
    int started;                /* SentencePiece: the leading space was dealt with */
    char tail[4];               /* bytes of an unfinished character */
    unsigned n_tail;
} moe_detokenizer_t;

void moe_detokenizer_init(moe_detokenizer_t *detokenizer, const moe_tokenizer_t *tokenizer,
                          int keep_special);

/* Appends what `id` makes certain. */
int moe_detokenizer_push(moe_detokenizer_t *detokenizer, uint32_t id, moe_buffer_t *out,
                         moe_error_t *error);

/* Appends what is left. */
int moe_detokenizer_finish(moe_detokenizer_t *detokenizer, moe_buffer_t *out, moe_error_t *error);

#endif
