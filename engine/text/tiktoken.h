/*
 * tiktoken.model, the tokenizer of Kimi-K2: a token per line, its bytes in base64 and its rank,
 * which is its id.  There are no merges: the pair whose bytes are the token of the lowest rank
 * comes first.  What else the tokenizer is made of is fixed in Kimi's code: its regex, how long
 * texts are cut, 256 special tokens behind the others, which tokenizer_config.json names.
 */

#ifndef MOE_TIKTOKEN_H
#define MOE_TIKTOKEN_H

#include "engine/text/tokenizer.h"

/* 1 when a directory holds tiktoken.model and no tokenizer.json. */
int moe_tiktoken_is_in(const char *directory);

/* The model that the text of such a file describes, its tokens in the byte-level alphabet.  NULL
 * with MOE_BAD_MODEL or MOE_LIMIT. */
moe_token_model_t *moe_tiktoken_model(const char *text, size_t size, moe_error_t *error);

/* NULL with MOE_BAD_MODEL. */
moe_tokenizer_t *moe_tiktoken_load(const char *directory, moe_error_t *error);

#endif
