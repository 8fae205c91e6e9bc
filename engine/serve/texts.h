/* The texts of a model, whatever its path holds: tokenizer and chat format. */

#ifndef MOE_TEXTS_H
#define MOE_TEXTS_H

#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"

/* Opens the tokenizer and, unless `chat` is NULL, the chat format of the model `path`
 * (core/model_path.h), with the template of the file `chat_template` in the place of its own unless
 * that is NULL; both belong to the caller.  -1 with MOE_BAD_MODEL or MOE_LIMIT, and NULL in both. */
int moe_texts_open(const char *path, const char *chat_template, moe_tokenizer_t **tokenizer,
                   moe_chat_t **chat, moe_error_t *error);

#endif
