/*
 * Any ids, any stop strings: the streamed text is what a naive decoder and a naive search make of
 * all bytes at once.
 *
 * Input: flags, then up to three stop strings each after its length, then ids of two bytes.
 */

#include "engine/text/detokenizer.h"
#include "engine/text/stop.h"
#include "t/fuzz/fuzz.h"

#define STOPS 3

static moe_tokenizer_t *tokenizer;


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    moe_error_t error;

    tokenizer = moe_tokenizer_load(FUZZ_MODEL, &error);
    fuzz_check(tokenizer != NULL);
    return 0;
}


/* Table 3-7 of the Unicode Standard: what the second byte of a sequence may be, and the length. */
static size_t sequence_of(uint8_t lead, uint8_t *low, uint8_t *high)
{
    *low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    return lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
}


static void append(moe_buffer_t *out, const void *data, size_t size)
{
    moe_error_t error;

    fuzz_check(moe_buffer_append(out, data, size, &error) == 0);
}


/* Valid characters as they are, U+FFFD for each maximal part of an invalid one. */
static void decode(const moe_buffer_t *bytes, moe_buffer_t *text)
{
    const uint8_t *data = (const uint8_t *) bytes->data;

    for (size_t i = 0; i < bytes->size; ) {
        uint8_t low, high;
        size_t length = sequence_of(data[i], &low, &high), n = 1;

        while (n < length && i + n < bytes->size && data[i + n] >= low && data[i + n] <= high) {
            low = 0x80;
            high = 0xbf;
            n++;
        }
        append(text, n == length ? (const char *) data + i : "\xef\xbf\xbd", n == length ? n : 3);
        i += n;
    }
}


/* Cuts the text at the match that starts first (of those, that ends first); its index or -1. */
static int cut(moe_buffer_t *text, const moe_string_t *stops, uint32_t n, int include_stop)
{
    size_t start = text->size;
    int best = -1;

    for (uint32_t i = 0; i < n; i++) {
        const char *found = text->size ? memmem(text->data, text->size, stops[i].data, stops[i].size)
                                       : NULL;
        size_t at = found ? (size_t) (found - text->data) : 0;

        if (found && (at < start || (at == start && stops[i].size < stops[best].size))) {
            start = at;
            best = (int) i;
        }
    }
    if (best != -1) {
        text->size = start + (include_stop ? stops[best].size : 0);
    }
    return best;
}


static void stream(moe_stop_t *stop, fuzz_input_t ids, int keep_special, moe_buffer_t *out)
{
    moe_detokenizer_t detokenizer;
    moe_buffer_t text = { 0 };
    moe_error_t error;
    int matched = -1;

    moe_detokenizer_init(&detokenizer, tokenizer, keep_special);
    while (ids.size >= 2 && matched == -1) {
        uint32_t id = fuzz_byte(&ids) | (uint32_t) fuzz_byte(&ids) << 8;

        text.size = 0;
        fuzz_check(moe_detokenizer_push(&detokenizer, id % moe_tokenizer_size(tokenizer), &text,
                                        &error) == 0);
        matched = moe_stop_push(stop, text.data, text.size, out, &error);
        fuzz_check(matched >= -1);
        fuzz_check(moe_utf8_valid_prefix(text.data, text.size) == text.size);
    }
    if (matched == -1) {
        text.size = 0;
        fuzz_check(moe_detokenizer_finish(&detokenizer, &text, &error) == 0);
        matched = moe_stop_push(stop, text.data, text.size, out, &error);
        fuzz_check(matched != -1 || moe_stop_finish(stop, out, &error) == 0);
    }
    moe_buffer_free(&text);
}


static void naive_bytes(fuzz_input_t ids, int keep_special, moe_buffer_t *bytes)
{
    while (ids.size >= 2) {
        uint32_t id = fuzz_byte(&ids) | (uint32_t) fuzz_byte(&ids) << 8;
        size_t size;
        const char *piece;

        id %= moe_tokenizer_size(tokenizer);
        piece = moe_tokenizer_piece(tokenizer, id, &size);
        if (piece && (keep_special || !moe_tokenizer_is_special(tokenizer, id))) {
            append(bytes, piece, size);
        }
    }
}


static uint32_t read_stops(fuzz_input_t *input, moe_string_t *stops)
{
    uint32_t n = 0;

    while (n < STOPS) {
        uint32_t size = fuzz_byte(input) & 31;

        if (size == 0 || size > input->size) {
            break;
        }
        stops[n++] = (moe_string_t) { input->data, size };
        input->data += size;
        input->size -= size;
    }
    return n;
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size };
    uint8_t flags = fuzz_byte(&input);
    int keep_special = flags & 1, include_stop = flags >> 1 & 1, best;
    moe_string_t stops[STOPS];
    uint32_t n = read_stops(&input, stops);
    moe_buffer_t out = { 0 }, bytes = { 0 }, text = { 0 };
    moe_error_t error;
    moe_stop_t *stop = moe_stop_create(stops, n, include_stop, &error);

    fuzz_check(stop != NULL);
    stream(stop, input, keep_special, &out);
    naive_bytes(input, keep_special, &bytes);
    decode(&bytes, &text);
    best = cut(&text, stops, n, include_stop);
    fuzz_check(moe_stop_matched(stop) == best);
    fuzz_check(out.size == text.size && (out.size == 0 || memcmp(out.data, text.data, out.size) == 0));
    moe_stop_free(stop);
    moe_buffer_free(&out);
    moe_buffer_free(&bytes);
    moe_buffer_free(&text);
    return 0;
}
