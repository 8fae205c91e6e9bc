/*
 * Tokenizer and chat format of a GGUF file, from its metadata (an object of metadata keys): told in
 * the words of tokenizer.json and tokenizer_config.json, whose readers do the rest.
 */

#ifndef MOE_GGUF_TEXT_H
#define MOE_GGUF_TEXT_H

#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"

/* Byte-level BPE ("gpt2"), SentencePiece's BPE ("llama") and Unigram ("t5").  Unused tokens have no
 * text.  `where`: the file, for messages.  NULL with MOE_BAD_MODEL: where: key: what. */
moe_tokenizer_t *moe_gguf_tokenizer(const json_t *metadata, const char *where, moe_error_t *error);

/* As moe_chat_load. */
moe_chat_t *moe_gguf_chat(const json_t *metadata, const char *where, const char *override,
                          moe_error_t *error);

#endif
