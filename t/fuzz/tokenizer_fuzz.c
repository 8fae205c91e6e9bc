/* tokenizer.json, and after a NUL a text: whatever loads can encode any text and decode any ids. */

#include "engine/text/detokenizer.h"
#include "t/fuzz/fuzz.h"

#define TEXT "Hello  World's 12345\r\n\tabc \xe4\xb8\xad\xe6\x96\x87 e\xcc\x81<end> \xf0\x9f\x98\x80"


static void decode(const moe_tokenizer_t *tokenizer, const moe_ids_t *ids)
{
    moe_detokenizer_t detokenizer;
    moe_buffer_t out = { 0 };
    moe_error_t error;

    moe_detokenizer_init(&detokenizer, tokenizer, 1);
    for (size_t i = 0; i < ids->count; i++) {
        fuzz_check(ids->ids[i] < moe_tokenizer_size(tokenizer));
        fuzz_check(moe_detokenizer_push(&detokenizer, ids->ids[i], &out, &error) == 0);
    }
    fuzz_check(moe_detokenizer_finish(&detokenizer, &out, &error) == 0);
    fuzz_check(moe_utf8_valid_prefix(out.data, out.size) == out.size);
    moe_buffer_free(&out);
}


static void encode(const moe_tokenizer_t *tokenizer, const char *data, size_t size, int trusted)
{
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    moe_error_t error;

    fuzz_check(moe_text_append(&text, data, size, trusted, &error) == 0);
    if (moe_tokenizer_encode(tokenizer, &text, MOE_ENCODE_POST_PROCESS, 100000, &ids, &error) == 0) {
        decode(tokenizer, &ids);
    } else {
        fuzz_check(strlen(error.message) > 0);
    }
    moe_ids_free(&ids);
    moe_text_free(&text);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size }, json = fuzz_part(&input);
    moe_tokenizer_t *tokenizer;
    moe_error_t error;

    fuzz_write("tokenizer.json", json.data, json.size);
    tokenizer = moe_tokenizer_load(fuzz_directory(), &error);
    if (tokenizer == NULL) {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        return 0;
    }
    for (int trusted = 0; trusted < 2; trusted++) {
        encode(tokenizer, TEXT, strlen(TEXT), trusted);
        encode(tokenizer, input.data, input.size, trusted);
    }
    moe_tokenizer_free(tokenizer);
    return 0;
}
