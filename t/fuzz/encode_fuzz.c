/*
 * Any text, any parts of it trusted, through the demo tokenizer.  The pieces of the ids are the text
 * again; a special token stands only where all its bytes are trusted.
 *
 * An input is a list of parts: a byte whose lowest bit says "trusted" and whose other bits are the
 * part's length, then the part.
 */

#include "engine/text/tokenizer.h"
#include "t/fuzz/fuzz.h"

static moe_tokenizer_t *tokenizer;


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    moe_error_t error;

    tokenizer = moe_tokenizer_load(FUZZ_MODEL, &error);
    fuzz_check(tokenizer != NULL);
    return 0;
}


static void read_text(fuzz_input_t input, moe_text_t *text)
{
    moe_error_t error;

    while (input.size) {
        uint8_t control = fuzz_byte(&input);
        size_t size = (size_t) (control >> 1) < input.size ? control >> 1 : input.size;

        fuzz_check(moe_text_append(text, input.data, size, control & 1, &error) == 0);
        input.data += size;
        input.size -= size;
    }
}


static void check_ids(const moe_text_t *text, const moe_ids_t *ids)
{
    size_t position = 0;

    for (size_t i = 0; i < ids->count; i++) {
        size_t size;
        const char *piece = moe_tokenizer_piece(tokenizer, ids->ids[i], &size);

        fuzz_check(piece != NULL && size > 0 && size <= text->bytes.size - position);
        fuzz_check(memcmp(piece, text->bytes.data + position, size) == 0);
        if (moe_tokenizer_is_special(tokenizer, ids->ids[i])) {
            fuzz_check(moe_text_trusted_end(text, position) >= position + size);
        }
        position += size;
    }
    fuzz_check(position == text->bytes.size);
}


static void check_limit(const moe_text_t *text, size_t count)
{
    moe_ids_t ids = { 0 };
    moe_error_t error;

    if (count > 1) {
        fuzz_check(moe_tokenizer_encode(tokenizer, text, 0, count - 1, &ids, &error) == -1
                   && error.code == MOE_TOO_LONG);
        ids.count = 0;
    }
    fuzz_check(count == 0 || moe_tokenizer_encode(tokenizer, text, 0, count, &ids, &error) == 0);
    fuzz_check(ids.count == count);
    moe_ids_free(&ids);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    moe_error_t error;

    read_text((fuzz_input_t) { (const char *) data, size }, &text);
    if (moe_tokenizer_encode(tokenizer, &text, 0, 0, &ids, &error) == 0) {
        check_ids(&text, &ids);
        check_limit(&text, ids.count);
    } else {
        fuzz_check(error.code == MOE_INVALID);
        fuzz_check(moe_utf8_valid_prefix(text.bytes.data, text.bytes.size) < text.bytes.size);
    }
    moe_ids_free(&ids);
    moe_text_free(&text);
    return 0;
}
