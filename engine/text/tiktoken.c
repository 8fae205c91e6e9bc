#include "engine/text/tiktoken.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/core/file.h"
#include "engine/core/json.h"
#include "engine/text/known_splits.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/utf8.h"

#define FILE_NAME "tiktoken.model"
#define FILE_LIMIT ((size_t) 64 << 20)
#define ENCODED_LIMIT 1024u             /* characters of a token in base64 */
#define BYTES_LIMIT (ENCODED_LIMIT / 4 * 3)
#define SPECIAL_TOKENS 256u
#define SPLITS "kimi-k2"

/* A token in the byte-level alphabet, at most two bytes for each of its own. */
typedef struct {
    char text[2 * BYTES_LIMIT];
    size_t size;
    uint32_t rank;
} token_t;


int moe_tiktoken_is_in(const char *directory)
{
    char path[PATH_MAX];
    moe_error_t error;

    return moe_file_path(path, directory, "tokenizer.json", &error) == 0
           && access(path, F_OK) == -1
           && moe_file_path(path, directory, FILE_NAME, &error) == 0 && access(path, F_OK) == 0;
}


/* Bytes of `size` characters of base64, 0 when they are none: what they decode to must encode to
 * them. */
static size_t decode_base64(const char *text, size_t size, unsigned char *bytes)
{
    unsigned char again[ENCODED_LIMIT + 1];
    int n;

    if (size == 0 || size % 4 != 0 || size > ENCODED_LIMIT) {
        return 0;
    }
    n = EVP_DecodeBlock(bytes, (const unsigned char *) text, (int) size);
    n -= n > 0 ? (text[size - 1] == '=') + (text[size - 2] == '=') : 0;
    if (n <= 0 || EVP_EncodeBlock(again, bytes, n) != (int) size
        || memcmp(again, text, size) != 0)
    {
        return 0;
    }
    return (size_t) n;
}


/* "aGVsbG8= 123" */
static int read_line(token_t *token, const char *line, size_t size)
{
    const char *space = memchr(line, ' ', size);
    size_t encoded = space != NULL ? (size_t) (space - line) : 0, i = encoded + 1, n;
    unsigned char bytes[BYTES_LIMIT];

    n = decode_base64(line, encoded, bytes);
    if (n == 0 || i >= size) {
        return -1;
    }
    for (token->rank = 0; i < size && token->rank < MOE_TOKEN_ID_LIMIT; i++) {
        if (line[i] < '0' || line[i] > '9') {
            return -1;
        }
        token->rank = token->rank * 10 + (uint32_t) (line[i] - '0');
    }
    token->size = 0;
    for (size_t k = 0; k < n; k++) {
        token->size += moe_utf8_encode(moe_byte_to_character(bytes[k]), token->text + token->size);
    }
    return i == size && token->rank < MOE_TOKEN_ID_LIMIT ? 0 : -1;
}


/* One pass over the file: with `vocab` its tokens are added there.  *count and *bytes: of all. */
static int read_lines(const char *data, size_t size, moe_vocab_t *vocab, size_t *count,
                      size_t *bytes, moe_error_t *error)
{
    const char *end = data + size, *line_end;
    token_t token;
    size_t n = 1;

    *count = *bytes = 0;
    for (const char *line = data; line < end; line = line_end + 1, n++) {
        line_end = memchr(line, '\n', (size_t) (end - line));
        if (line_end == NULL) {
            line_end = end;
        }
        if (line_end == line) {
            continue;
        }
        if (read_line(&token, line, (size_t) (line_end - line)) != 0) {
            return moe_fail(error, MOE_BAD_MODEL, "line %zu is not a token in base64 and its rank",
                            n);
        }
        if (vocab != NULL && token.rank >= vocab->n_ids) {
            return moe_fail(error, MOE_BAD_MODEL, "line %zu: rank %u, but there are %u tokens", n,
                            token.rank, vocab->n_ids);
        }
        if (vocab != NULL
            && moe_vocab_add(vocab, token.text, token.size, token.rank, error) != 0)
        {
            return moe_fail_in(error, "line %zu", n);
        }
        ++*count;
        *bytes += token.size;
    }
    return *count > 0 ? 0 : moe_fail(error, MOE_BAD_MODEL, "no tokens");
}


/* Every byte must have a token: then there is no text without ids. */
static int check_bytes(const moe_vocab_t *vocab, moe_error_t *error)
{
    char text[4];

    for (unsigned byte = 0; byte < 256; byte++) {
        size_t size = moe_utf8_encode(moe_byte_to_character((unsigned char) byte), text);

        if (moe_vocab_find(vocab, text, size) == MOE_NO_TOKEN) {
            return moe_fail(error, MOE_BAD_MODEL, "no token for the byte 0x%02X", byte);
        }
    }
    return 0;
}


static int make_model(moe_token_model_t *model, moe_error_t *error)
{
    const moe_bpe_settings_t settings = { .unknown = MOE_NO_TOKEN, .ignore_merges = 1 };
    moe_merges_t merges = { 0 };
    int rc = moe_merges_derive(&merges, &model->vocab, NULL, error);

    if (rc == 0) {
        rc = moe_token_model_bpe(model, &merges, &settings, error);
    }
    moe_merges_free(&merges);
    return rc;
}


moe_token_model_t *moe_tiktoken_model(const char *text, size_t size, moe_error_t *error)
{
    moe_token_model_t *model = moe_token_model_create(error);
    size_t count, bytes;

    if (model != NULL && read_lines(text, size, NULL, &count, &bytes, error) == 0
        && moe_vocab_init(&model->vocab, count, bytes, (uint32_t) count, error) == 0
        && read_lines(text, size, &model->vocab, &count, &bytes, error) == 0
        && check_bytes(&model->vocab, error) == 0 && make_model(model, error) == 0)
    {
        return model;
    }
    moe_token_model_free(model);
    return NULL;
}


static moe_token_model_t *load_model(const char *directory, moe_error_t *error)
{
    moe_token_model_t *model = NULL;
    char path[PATH_MAX], *text;
    size_t size;

    if (moe_file_path(path, directory, FILE_NAME, error) != 0) {
        return NULL;
    }
    text = moe_file_load(path, 0, FILE_LIMIT, &size, error);
    if (text != NULL) {
        model = moe_tiktoken_model(text, size, error);
    }
    free(text);
    return model;
}


/* The special tokens: those that tokenizer_config.json names, reserved ones between them. */
static json_t *added_tokens(const json_t *config, uint32_t first, moe_error_t *error)
{
    const json_t *named = json_object_get(config, "added_tokens_decoder");
    json_t *list = json_array();

    for (uint32_t id = first; id < first + SPECIAL_TOKENS; id++) {
        char key[16], reserved[40];
        json_t *token;

        snprintf(key, sizeof(key), "%u", id);
        snprintf(reserved, sizeof(reserved), "<|reserved_token_%u|>", id);
        token = json_deep_copy(json_object_get(named, key));
        if (token == NULL) {
            token = json_pack("{s:s, s:b, s:b}", "content", reserved, "special", 1, "normalized",
                              0);
        }
        if (!json_is_object(token)) {
            moe_fail(error, MOE_BAD_MODEL, "tokenizer_config.json: added_tokens_decoder: \"%s\" is "
                     "not an object", key);
            json_decref(token);
            json_decref(list);
            return NULL;
        }
        json_object_set_new(token, "id", json_integer(id));
        json_array_append_new(list, token);
    }
    return list;
}


/* The tokenizer in the words of tokenizer.json. */
static json_t *describe(const json_t *config, uint32_t n_tokens, moe_error_t *error)
{
    json_t *added = added_tokens(config, n_tokens, error), *json;

    if (added == NULL) {
        return NULL;
    }
    json = json_pack("{s:o, s:o, s:{s:s}}", "added_tokens", added, "pre_tokenizer",
                     moe_known_splits_json(moe_known_splits(SPLITS),
                                           json_pack("{s:s}", "type", MOE_KIMI_CHUNKS), 0),
                     "decoder", "type", "ByteLevel");
    if (json == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return json;
}


moe_tokenizer_t *moe_tiktoken_load(const char *directory, moe_error_t *error)
{
    json_t *config = moe_json_load(directory, "tokenizer_config.json", 1, error), *json;
    moe_tokenizer_t *tokenizer = NULL;
    moe_token_model_t *model;

    if (config == NULL && error->code != MOE_OK) {
        return NULL;
    }
    model = load_model(directory, error);
    json = model != NULL ? describe(config, model->vocab.n_ids, error) : NULL;
    if (json != NULL) {
        tokenizer = moe_tokenizer_create(json, model, error);
    } else {
        moe_token_model_free(model);
    }
    json_decref(json);
    json_decref(config);
    if (tokenizer == NULL) {
        error->code = MOE_BAD_MODEL;
        moe_fail_in(error, FILE_NAME);
    }
    return tokenizer;
}
