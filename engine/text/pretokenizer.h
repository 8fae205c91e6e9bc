/*
 * Pre-tokenisers of tokenizer.json: cut a text into the pieces that BPE works on, and rewrite them
 * (byte-level alphabet, SentencePiece's blanks).
 */

#ifndef MOE_PRETOKENIZER_H
#define MOE_PRETOKENIZER_H

#include <stdint.h>

#include "engine/core/buffer.h"
#include "engine/core/json.h"
#include "engine/text/regex.h"

typedef struct moe_pretokenizer_s moe_pretokenizer_t;   /* immutable */

/* A "type" of our own: Kimi's code cuts texts into 400,000 characters, and runs of more than
 * 25,000 blanks or non-blanks, before anything else. */
#define MOE_KIMI_CHUNKS "KimiChunks"

/* Pieces lie one behind the other in `text`; piece i ends at ends[i]. */
typedef struct {
    moe_buffer_t text;
    size_t *ends;
    size_t count, capacity;
} moe_pieces_t;

void moe_pieces_free(moe_pieces_t *pieces);

/* `json`: the value of "pre_tokenizer"; null or NULL keeps a text in one piece.
 * NULL with MOE_BAD_MODEL. */
moe_pretokenizer_t *moe_pretokenizer_create(const json_t *json, moe_error_t *error);
void moe_pretokenizer_free(moe_pretokenizer_t *pretokenizer);

/* Splits valid UTF-8.  `first`: the text starts where the whole input does.  `workspace`: zeroed
 * before its first use, freed by the caller.  Returns the one of the two that holds the result,
 * no piece of which is empty; NULL with MOE_LIMIT. */
const moe_pieces_t *moe_pretokenizer_split(const moe_pretokenizer_t *pretokenizer,
                                           moe_matcher_t *matcher, const char *text, size_t size,
                                           int first, moe_pieces_t workspace[2],
                                           moe_error_t *error);

/* The byte-level alphabet of GPT-2: the character that stands for a byte, and back (-1: none). */
uint32_t moe_byte_to_character(unsigned char byte);
int moe_character_to_byte(uint32_t code);

#endif
