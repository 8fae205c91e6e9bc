/*
 * Lines of tiktoken.model, and after a NUL bytes to encode.  A file that loads has a token for
 * every byte, so that the tokens are the bytes again.  The lines of single bytes, without which
 * none loads, are not fuzzed.
 */

#include <openssl/evp.h>

#include "engine/text/pretokenizer.h"
#include "engine/text/tiktoken.h"
#include "engine/text/utf8.h"
#include "t/fuzz/fuzz.h"


static void append(moe_buffer_t *out, const void *data, size_t size)
{
    moe_error_t error;

    fuzz_check(moe_buffer_append(out, data, size, &error) == 0);
}


static moe_token_model_t *make_model(fuzz_input_t lines)
{
    moe_token_model_t *model;
    moe_buffer_t text = { 0 };
    moe_error_t error;

    for (unsigned i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char) i, encoded[5];
        char line[16];

        EVP_EncodeBlock(encoded, &byte, 1);
        append(&text, line, (size_t) snprintf(line, sizeof(line), "%s %u\n", encoded, i));
    }
    append(&text, lines.data, lines.size);
    model = moe_tiktoken_model(text.data, text.size, &error);
    fuzz_check(model != NULL || error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
    moe_buffer_free(&text);
    return model;
}


static void check_ids(const moe_token_model_t *model, const moe_buffer_t *piece)
{
    moe_token_scratch_t scratch;
    moe_ids_t ids = { 0 };
    size_t position = 0;
    moe_error_t error;

    fuzz_check(moe_token_scratch_init(&scratch, model, &error) == 0);
    fuzz_check(moe_token_model_encode(model, &scratch, piece->data, piece->size, &ids, &error)
               == 0);
    for (size_t i = 0; i < ids.count; i++) {
        const moe_token_t *token = &model->vocab.tokens[ids.ids[i]];

        fuzz_check(ids.ids[i] < model->vocab.n_ids && token->text != NULL);
        fuzz_check(token->size <= piece->size - position);
        fuzz_check(memcmp(token->text, piece->data + position, token->size) == 0);
        position += token->size;
    }
    fuzz_check(position == piece->size);
    moe_ids_free(&ids);
    moe_token_scratch_free(&scratch);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size }, lines = fuzz_part(&input);
    moe_token_model_t *model = make_model(lines);
    moe_buffer_t piece = { 0 };

    for (size_t i = 0; i < input.size; i++) {
        char text[4];

        append(&piece, text,
               moe_utf8_encode(moe_byte_to_character((unsigned char) input.data[i]), text));
    }
    if (model != NULL && piece.size > 0) {
        check_ids(model, &piece);
    }
    moe_buffer_free(&piece);
    moe_token_model_free(model);
    return 0;
}
