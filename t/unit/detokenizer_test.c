/* The detokenizer: whole characters however tokens cut them, U+FFFD per maximal invalid part. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text/detokenizer.h"
#include "engine/text/utf8.h"

static moe_tokenizer_t *demo;
static uint32_t byte_ids[256];

#define FFFD "\xef\xbf\xbd"


static int load_demo(void **state)
{
    moe_error_t error;
    int found = 0;

    demo = moe_tokenizer_load("conf/models/nginx-directives-moe", &error);
    if (demo == NULL) {
        return -1;
    }
    for (uint32_t id = 0; id < moe_tokenizer_size(demo); id++) {
        size_t size;
        const char *piece = moe_tokenizer_piece(demo, id, &size);

        if (piece && size == 1) {
            byte_ids[(unsigned char) *piece] = id;
            found++;
        }
    }
    return found == 256 ? 0 : -1;
}


static int free_demo(void **state)
{
    moe_tokenizer_free(demo);
    return 0;
}


static void expect(const char *bytes, size_t size, const char *expected)
{
    moe_detokenizer_t detokenizer;
    moe_buffer_t out = { 0 };
    moe_error_t error;

    moe_detokenizer_init(&detokenizer, demo, 0);
    for (size_t i = 0; i < size; i++) {
        assert_int_equal(moe_detokenizer_push(&detokenizer, byte_ids[(unsigned char) bytes[i]],
                                              &out, &error), 0);
        assert_int_equal(moe_utf8_valid_prefix(out.data, out.size), out.size);
    }
    assert_int_equal(moe_detokenizer_finish(&detokenizer, &out, &error), 0);
    assert_int_equal(out.size, strlen(expected));
    assert_memory_equal(out.data, expected, out.size);
    moe_buffer_free(&out);
}


static void invalid_bytes(void **state)
{
    static const struct {
        const char *bytes, *expected;
    } rows[] = {
        { "a\xc3\xa9" "b", "a\xc3\xa9" "b" },
        { "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80" },
        { "\x80", FFFD }, { "\xff" "a", FFFD "a" }, { "\xc3", FFFD }, { "\xc3(", FFFD "(" },
        { "\xe4\xb8", FFFD }, { "\xe4\xb8\xe4\xb8\xad", FFFD "\xe4\xb8\xad" },
        { "\xf0\x9f\x98", FFFD }, { "\xf0\x9f\x98" "x", FFFD "x" },
        { "\xc0\xaf", FFFD FFFD }, { "\xe0\x80\xaf", FFFD FFFD FFFD },
        { "\xed\xa0\x80", FFFD FFFD FFFD }, { "\xf4\x91\x92\x93", FFFD FFFD FFFD FFFD },
        { "\xf5\x80", FFFD FFFD }, { "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf" "A",
          FFFD FFFD FFFD FFFD "A" },
        { "\xc3\xc3\xa9", FFFD "\xc3\xa9" }, { "", "" },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        expect(rows[i].bytes, strlen(rows[i].bytes), rows[i].expected);
    }
}


/* A stream of any ids is the same text as their bytes at once. */
static void stream_equals_whole(void **state)
{
    uint32_t seed = 7;
    moe_error_t error;

    for (int round = 0; round < 2000; round++) {
        moe_detokenizer_t stream;
        moe_buffer_t out = { 0 }, bytes = { 0 };
        size_t at = 0, length;

        moe_detokenizer_init(&stream, demo, 0);
        for (int i = 0; i < 20; i++) {
            size_t size;
            const char *piece;
            uint32_t id;

            seed = seed * 1664525 + 1013904223;
            /* mostly single bytes from 0x80 up: broken and whole characters */
            id = (seed >> 30) ? byte_ids[0x80 | (seed >> 16 & 0x7f)] : seed >> 8 & 2047;
            piece = moe_tokenizer_piece(demo, id, &size);
            if (!moe_tokenizer_is_special(demo, id)) {
                assert_int_equal(moe_buffer_append(&bytes, piece, size, &error), 0);
            }
            assert_int_equal(moe_detokenizer_push(&stream, id, &out, &error), 0);
        }
        assert_int_equal(moe_detokenizer_finish(&stream, &out, &error), 0);
        for (size_t i = 0; i < bytes.size; i += length) {
            size_t part, valid = moe_utf8_valid_prefix(bytes.data + i, bytes.size - i);

            assert_memory_equal(out.data + at, bytes.data + i, valid);
            at += valid;
            length = valid;
            if (valid == 0) {
                assert_memory_equal(out.data + at, FFFD, 3);
                at += 3;
                /* a maximal part: the longest that is the beginning of a character, else 1 */
                for (length = 3; length > 1; length--) {
                    if (i + length <= bytes.size
                        && moe_utf8_classify(bytes.data + i, length, &part)
                           == MOE_UTF8_INCOMPLETE)
                    {
                        break;
                    }
                }
            }
        }
        assert_int_equal(at, out.size);
        moe_buffer_free(&out);
        moe_buffer_free(&bytes);
    }
}


static void special_tokens(void **state)
{
    moe_detokenizer_t detokenizer;
    moe_buffer_t out = { 0 };
    moe_error_t error;

    for (int keep = 0; keep < 2; keep++) {
        out.size = 0;
        moe_detokenizer_init(&detokenizer, demo, keep);
        /* a character cut by a special token, and an id that is no token */
        moe_detokenizer_push(&detokenizer, byte_ids[0xc3], &out, &error);
        moe_detokenizer_push(&detokenizer, 1, &out, &error);
        assert_int_equal(moe_detokenizer_push(&detokenizer, 1000000, &out, &error), 0);
        moe_detokenizer_push(&detokenizer, byte_ids[0xa9], &out, &error);
        moe_detokenizer_finish(&detokenizer, &out, &error);
        moe_buffer_append(&out, "", 1, &error);
        assert_string_equal(out.data, keep ? FFFD "<|eos|>" FFFD : "\xc3\xa9");
    }
    out.size = 0;
    out.limit = 4;
    moe_detokenizer_init(&detokenizer, demo, 1);
    assert_int_equal(moe_detokenizer_push(&detokenizer, 1, &out, &error), -1);
    assert_int_equal(error.code, MOE_LIMIT);
    moe_buffer_free(&out);
}


static void valid_prefixes(void **state)
{
    static const struct {
        const char *bytes;
        size_t valid;
    } rows[] = {
        { "", 0 }, { "abc", 3 }, { "a\xc3", 1 }, { "a\xc3\xa9", 3 }, { "\xe4\xb8", 0 },
        { "\xf0\x9f\x98", 0 }, { "\xf0\x9f\x98\x80", 4 }, { "a\x80", 1 }, { "\xe0\x80", 0 },
        { "\xed\xa0", 0 }, { "\xf4\x90", 0 }, { "\xf0\xe4\xb8", 0 }, { "\xff", 0 },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t size = strlen(rows[i].bytes);

        assert_int_equal(moe_utf8_valid_prefix(rows[i].bytes, size), rows[i].valid);
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_bytes),
        cmocka_unit_test(stream_equals_whole),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(valid_prefixes),
    };

    return cmocka_run_group_tests(tests, load_demo, free_demo);
}
