/*
 * tiktoken.model, and after a NUL a text.  A file that loads has a token for every byte, so that its
 * tokens are the text again.  The lines of single bytes, without which none loads, are not fuzzed.
 */

#include <openssl/evp.h>

#include "engine/text/tokenizer.h"
#include "t/fuzz/fuzz.h"


static void write_model(const char *lines, size_t size)
{
    static char text[1 << 20];
    size_t n = 0;

    for (unsigned i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char) i, encoded[5];

        EVP_EncodeBlock(encoded, &byte, 1);
        n += (size_t) snprintf(text + n, sizeof(text) - n, "%s %u\n", encoded, i);
    }
    size = size < sizeof(text) - n ? size : sizeof(text) - n;
    memcpy(text + n, lines, size);
    fuzz_write("tiktoken.model", text, n + size);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size }, lines = fuzz_part(&input);
    moe_tokenizer_t *tokenizer;
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    size_t position = 0;
    moe_error_t error;

    write_model(lines.data, lines.size);
    tokenizer = moe_tokenizer_load(fuzz_directory(), &error);
    if (tokenizer == NULL) {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        return 0;
    }
    fuzz_check(moe_text_append(&text, input.data, input.size, 0, &error) == 0);
    if (moe_tokenizer_encode(tokenizer, &text, 0, 0, &ids, &error) == 0) {
        for (size_t i = 0; i < ids.count; i++) {
            size_t length;
            const char *piece = moe_tokenizer_piece(tokenizer, ids.ids[i], &length);

            fuzz_check(piece != NULL && length <= text.bytes.size - position);
            fuzz_check(memcmp(piece, text.bytes.data + position, length) == 0);
            position += length;
        }
        fuzz_check(position == text.bytes.size);
    } else {
        fuzz_check(error.code == MOE_INVALID);
    }
    moe_ids_free(&ids);
    moe_text_free(&text);
    moe_tokenizer_free(tokenizer);
    return 0;
}
