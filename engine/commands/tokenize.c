/* moe-engine tokenize: how a model's tokenizer cuts a text. */

#include <stdio.h>
#include <string.h>

#include "engine/commands/commands.h"
#include "engine/core/json.h"
#include "engine/serve/texts.h"
#include "engine/text/detokenizer.h"


/* The text of one token by itself; parts of characters become U+FFFD. */
static json_t *piece_text(const moe_tokenizer_t *tokenizer, uint32_t id, moe_error_t *error)
{
    moe_detokenizer_t detokenizer;
    moe_buffer_t text = { 0 };
    json_t *json = NULL;

    moe_detokenizer_init(&detokenizer, tokenizer, 1);
    detokenizer.started = 1;            /* show the leading space */
    if (moe_detokenizer_push(&detokenizer, id, &text, error) == 0
        && moe_detokenizer_finish(&detokenizer, &text, error) == 0)
    {
        json = json_stringn(text.size ? text.data : "", text.size);
        if (json == NULL) {
            moe_fail(error, MOE_LIMIT, "out of memory for the result");
        }
    }
    moe_buffer_free(&text);
    return json;
}


static int print_ids(const moe_tokenizer_t *tokenizer, const moe_ids_t *ids, moe_error_t *error)
{
    json_t *tokens = json_array(), *pieces = json_array(), *line;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ids->count; i++) {
        json_t *piece = piece_text(tokenizer, ids->ids[i], error);

        if (piece == NULL) {
            rc = -1;
        } else if (json_array_append_new(pieces, piece) != 0
                   || json_array_append_new(tokens, json_integer(ids->ids[i])) != 0)
        {
            rc = moe_fail(error, MOE_LIMIT, "out of memory for the result");
        }
    }
    line = json_pack("{s:o, s:o}", "tokens", tokens, "pieces", pieces);
    if (rc == 0 && (line == NULL || json_dumpf(line, stdout, JSON_COMPACT) != 0
                    || putchar('\n') == EOF || fflush(stdout) != 0))
    {
        rc = moe_fail(error, MOE_SYSTEM, "result cannot be written");
    }
    json_decref(line);
    return rc;
}


static int tokenize(const char *path, const char *string, int special, unsigned flags,
                    moe_error_t *error)
{
    moe_tokenizer_t *tokenizer;
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    int rc = -1;

    if (moe_texts_open(path, NULL, &tokenizer, NULL, error) != 0) {
        return -1;
    }
    if (moe_text_append(&text, string, strlen(string), special, error) == 0
        && moe_tokenizer_encode(tokenizer, &text, flags, 0, &ids, error) == 0)
    {
        rc = print_ids(tokenizer, &ids, error);
    }
    moe_ids_free(&ids);
    moe_text_free(&text);
    moe_tokenizer_free(tokenizer);
    return rc;
}


static int run(int argc, char **argv)
{
    const char *arguments[2] = { NULL, NULL };
    unsigned flags = MOE_ENCODE_POST_PROCESS;
    int special = 0, n = 0;
    moe_error_t error;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--special") == 0) {
            special = 1;
        } else if (strcmp(argv[i], "--no-bos") == 0) {
            flags = 0;
        } else if (n < 2) {
            arguments[n++] = argv[i];
        } else {
            return moe_command_usage(&moe_command_tokenize, "too many arguments");
        }
    }
    if (n < 2) {
        return moe_command_usage(&moe_command_tokenize, "MODEL and TEXT are needed");
    }
    return tokenize(arguments[0], arguments[1], special, flags, &error) == 0
           ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_tokenize = {
    .name = "tokenize",
    .usage = "MODEL TEXT [--special] [--no-bos]",
    .help = "print the token ids of a text and their pieces as JSON",
    .run = run
};
