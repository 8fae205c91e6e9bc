#include "engine/serve/texts.h"

#include <limits.h>
#include <string.h>

#include "engine/core/model_path.h"
#include "engine/model/gguf.h"
#include "engine/text/gguf_text.h"


static void open_gguf(const char *file, const char *chat_template, moe_tokenizer_t **tokenizer,
                      moe_chat_t **chat, moe_error_t *error)
{
    const char *slash = strrchr(file, '/'), *name = slash != NULL ? slash + 1 : file;
    json_t *metadata = moe_gguf_metadata(file, error);

    if (metadata != NULL) {
        *tokenizer = moe_gguf_tokenizer(metadata, name, error);
        if (*tokenizer != NULL && chat != NULL) {
            *chat = moe_gguf_chat(metadata, name, chat_template, error);
        }
    }
    json_decref(metadata);
}


int moe_texts_open(const char *path, const char *chat_template, moe_tokenizer_t **tokenizer,
                   moe_chat_t **chat, moe_error_t *error)
{
    char file[PATH_MAX];

    *tokenizer = NULL;
    if (chat != NULL) {
        *chat = NULL;
    }
    switch (moe_model_path(path, file, sizeof(file), error)) {
    case MOE_PATH_GGUF:
        open_gguf(file, chat_template, tokenizer, chat, error);
        break;
    case MOE_PATH_DIRECTORY:
        *tokenizer = moe_tokenizer_load(path, error);
        if (*tokenizer != NULL && chat != NULL) {
            *chat = moe_chat_load(path, chat_template, error);
        }
    }
    if (*tokenizer != NULL && (chat == NULL || *chat != NULL)) {
        return 0;
    }
    if (*tokenizer != NULL) {
        moe_tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    return -1;
}
