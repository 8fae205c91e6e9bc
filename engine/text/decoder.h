/*
 * Decoders of tokenizer.json.  All that are known work on each token alone but for one blank at the
 * start of the text, so decoding is a table of bytes per token, made when loading.
 */

#ifndef MOE_DECODER_H
#define MOE_DECODER_H

#include "engine/core/buffer.h"
#include "engine/core/json.h"
#include "engine/text/regex.h"

typedef struct moe_decoder_s moe_decoder_t;

/* `json`: the value of "decoder".  NULL with MOE_BAD_MODEL. */
moe_decoder_t *moe_decoder_create(const json_t *json, moe_error_t *error);
void moe_decoder_free(moe_decoder_t *decoder);

/* Replaces the text of a token in `piece` by the bytes it stands for.  `added`: an added token,
 * which is not written in the byte-level alphabet. */
int moe_decoder_apply(const moe_decoder_t *decoder, moe_matcher_t *matcher, int added,
                      moe_buffer_t *piece, moe_error_t *error);

/* 1 when one leading space is taken off the whole text. */
int moe_decoder_strips_space(const moe_decoder_t *decoder);

#endif
