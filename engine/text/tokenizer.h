/*
 * Tokenizers of Hugging Face's tokenizer.json: normaliser, pre-tokeniser, model, post-processor and
 * decoder are read from the file; nothing about a family is built in.  A component that is not
 * known is refused by name when loading.  Other files are told in its words.
 *
 * A loaded tokenizer is immutable and may be used by many threads at once.
 */

#ifndef MOE_TOKENIZER_H
#define MOE_TOKENIZER_H

#include <jansson.h>

#include "engine/text/token_model.h"

typedef struct moe_tokenizer_s moe_tokenizer_t;

/* Loads `directory`/tokenizer.json or, where there is none, tiktoken.model.  NULL with
 * MOE_BAD_MODEL. */
moe_tokenizer_t *moe_tokenizer_load(const char *directory, moe_error_t *error);

/* The tokenizer that an object as in tokenizer.json describes around a model of its own, which is
 * taken over.  NULL with MOE_BAD_MODEL. */
moe_tokenizer_t *moe_tokenizer_create(const json_t *json, moe_token_model_t *model,
                                      moe_error_t *error);

void moe_tokenizer_free(moe_tokenizer_t *tokenizer);

enum {
    MOE_ENCODE_POST_PROCESS = 1u << 0   /* apply the post-processor (adds BOS where it says so) */
};

/* Appends the ids of `text`.  Special tokens are matched inside trusted spans only; other added
 * tokens anywhere.  Text must be valid UTF-8: -1 with MOE_INVALID.  At most `limit` ids in all
 * (0: no limit): MOE_TOO_LONG. */
int moe_tokenizer_encode(const moe_tokenizer_t *tokenizer, const moe_text_t *text, unsigned flags,
                         size_t limit, moe_ids_t *ids, moe_error_t *error);

/* What makes ids of pieces: "BPE" or "Unigram". */
const char *moe_tokenizer_kind(const moe_tokenizer_t *tokenizer);

/* Number of ids: the highest id in use + 1 (there may be holes). */
uint32_t moe_tokenizer_size(const moe_tokenizer_t *tokenizer);

/* The raw bytes a token adds to the text (byte-level alphabet undone, SentencePiece's U+2581 a
 * space, <0xNN> a byte); owned by the tokenizer.  NULL when no token has this id. */
const char *moe_tokenizer_piece(const moe_tokenizer_t *tokenizer, uint32_t id, size_t *size);

/* 1 for added tokens flagged special. */
int moe_tokenizer_is_special(const moe_tokenizer_t *tokenizer, uint32_t id);

/* The id of the added token that is written as text[0..size), or MOE_NO_TOKEN (text/vocab.h). */
uint32_t moe_tokenizer_added(const moe_tokenizer_t *tokenizer, const char *text, size_t size);

/* 1 when decoding takes one leading space off a text (SentencePiece). */
int moe_tokenizer_strips_space(const moe_tokenizer_t *tokenizer);

#endif
