/*
 * A model's chat format: its template and special tokens, and how a request's messages become
 * template variables.
 */

#ifndef MOE_CHAT_H
#define MOE_CHAT_H

#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

typedef struct moe_chat_s moe_chat_t;

/*
 * Reads chat_template.jinja, or chat_template of tokenizer_config.json (string or list of named
 * templates: "default", and "tool_use" for chats with tools), and the special tokens of
 * tokenizer_config.json / special_tokens_map.json.
 * `override`: path of a template file that wins over both, or NULL.
 * A model without any template loads; its chat requests fail with MOE_INVALID.
 */
moe_chat_t *moe_chat_load(const char *directory, const char *override, moe_error_t *error);

/* The same from an object as in tokenizer_config.json; `where`: its file, for messages. */
moe_chat_t *moe_chat_create(const json_t *config, const char *where, const char *override,
                            moe_error_t *error);

void moe_chat_free(moe_chat_t *chat);

/* The text of the template, owned by the chat format; empty when there is none. */
const char *moe_chat_source(const moe_chat_t *chat, size_t *size);

typedef struct {
    const char *data;
    size_t size;                /* 0: not given */
} moe_chat_json_t;

typedef struct {
    moe_chat_json_t messages;   /* array as sent by the client; contents given as lists of text
                                 * parts are joined where the template does not handle lists */
    moe_chat_json_t tools;      /* array of what the model may call */
    moe_chat_json_t arguments;  /* object of further template variables; they cannot replace the
                                 * above or the special tokens */
    int add_generation_prompt;
    int continue_final;         /* the last message must be the assistant's; the text ends where its
                                 * content ends */
} moe_chat_request_t;

/* Whether the template shows the model what it may call. */
int moe_chat_takes_tools(const moe_chat_t *chat);

/* Errors: MOE_INVALID with a message that names what is wrong. */
int moe_chat_render(const moe_chat_t *chat, const moe_chat_request_t *request, moe_text_t *out,
                    moe_error_t *error);

#endif
