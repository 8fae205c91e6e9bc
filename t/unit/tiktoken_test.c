/* tiktoken.model: how long texts are cut, damaged files. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/evp.h>

#include "engine/text/pretokenizer.h"
#include "engine/text/tokenizer.h"


/* Kimi cuts runs of blanks, or of anything else, and whatever is longer than 400,000 characters. */
static void kimi_chunks(void **state)
{
    static const struct {
        struct {
            const char *unit;
            size_t count;
        } runs[4];
        size_t pieces[4];               /* characters; 0: no more */
    } rows[] = {
        { { { "a", 25000 } }, { 25000 } },
        { { { "a", 60001 } }, { 25000, 25000, 10001 } },
        { { { "中", 25000 }, { " ", 1 }, { "a", 25000 } }, { 50001 } },
        { { { "a", 1 }, { "\u3000", 25001 }, { "b", 25000 } }, { 25001, 25001 } },
        { { { "ab ", 150000 } }, { 400000, 50000 } },
        { { { "a ", 195000 }, { "a", 25010 } }, { 400000, 15010 } },
        { { { "a\x1c", 200000 }, { "a", 25000 } }, { 400000, 25000 } },
    };
    json_t *json = json_pack("{s:s}", "type", MOE_KIMI_CHUNKS);
    moe_pretokenizer_t *pretokenizer;
    moe_pieces_t workspace[2] = { 0 };
    moe_error_t error;

    pretokenizer = moe_pretokenizer_create(json, &error);
    assert_non_null(pretokenizer);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        moe_buffer_t text = { 0 };
        const moe_pieces_t *pieces;
        size_t start = 0, n = 0;

        for (size_t k = 0; k < 4 && rows[i].runs[k].unit != NULL; k++) {
            for (size_t c = 0; c < rows[i].runs[k].count; c++) {
                moe_buffer_append(&text, rows[i].runs[k].unit, strlen(rows[i].runs[k].unit),
                                  &error);
            }
        }
        pieces = moe_pretokenizer_split(pretokenizer, NULL, text.data, text.size, 1, workspace,
                                        &error);
        assert_non_null(pieces);
        assert_memory_equal(pieces->text.data, text.data, text.size);
        for (; n < 4 && rows[i].pieces[n] > 0; n++) {
            size_t characters = 0;

            assert_true(n < pieces->count);
            for (; start < pieces->ends[n]; start++) {
                characters += ((unsigned char) text.data[start] & 0xc0) != 0x80;
            }
            assert_int_equal(characters, rows[i].pieces[n]);
        }
        assert_int_equal(pieces->count, n);
        moe_buffer_free(&text);
    }
    moe_pieces_free(&workspace[0]);
    moe_pieces_free(&workspace[1]);
    moe_pretokenizer_free(pretokenizer);
    json_decref(json);
}


static void write_file(const char *directory, const char *name, const char *data)
{
    char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(data, file) >= 0);
    assert_int_equal(fclose(file), 0);
}


static moe_tokenizer_t *load(const char *model, const char *config, moe_error_t *error)
{
    static const char *const names[] = { "tiktoken.model", "tokenizer_config.json" };
    char directory[] = "/tmp/moe-tiktoken-test-XXXXXX", path[128];
    moe_tokenizer_t *tokenizer;

    assert_non_null(mkdtemp(directory));
    write_file(directory, names[0], model);
    if (config != NULL) {
        write_file(directory, names[1], config);
    }
    error->message[0] = '\0';
    tokenizer = moe_tokenizer_load(directory, error);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
    return tokenizer;
}


/* A line for each byte but `without`, and then `more`. */
static const char *bytes_and(const char *more, int without)
{
    static char text[8192];
    size_t n = 0;

    for (int i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char) i, encoded[5];

        if (i != without) {
            EVP_EncodeBlock(encoded, &byte, 1);
            n += (size_t) snprintf(text + n, sizeof(text) - n, "%s %d\n", encoded, i);
        }
    }
    snprintf(text + n, sizeof(text) - n, "%s", more);
    return text;
}


static void damaged_files(void **state)
{
    static const char not_a_token[] = "line 257 is not a token in base64 and its rank";
    static const struct {
        const char *more, *config, *message;
        int without;
    } rows[] = {
        { "YWI=", NULL, not_a_token, -1 },
        { "YWI= ", NULL, not_a_token, -1 },
        { " 256", NULL, not_a_token, -1 },
        { "YWI 256", NULL, not_a_token, -1 },
        { "YW=I 256", NULL, not_a_token, -1 },
        { "YWJ= 256", NULL, not_a_token, -1 },          /* bits that belong to no byte */
        { "==== 256", NULL, not_a_token, -1 },
        { "YW!= 256", NULL, not_a_token, -1 },
        { "YWI= 256x", NULL, not_a_token, -1 },
        { "YWI= -1", NULL, not_a_token, -1 },
        { "YWI= 99999999999999999999", NULL, not_a_token, -1 },
        { "YWI= 257", NULL, "line 257: rank 257, but there are 257 tokens", -1 },
        { "YWI= 0", NULL, "line 257: tokens ", -1 },
        { "YWI= 256\nYWI= 257", NULL, "line 258: token \"ab\" is there twice", -1 },
        { "YWI= 255", NULL, "no token for the byte 0xFF", 255 },
        { "", "[]", "tokenizer_config.json: not a JSON object", -1 },
        { "", "{\"added_tokens_decoder\": {\"256\": 1}}", "\"256\" is not an object", -1 },
        { "", "{\"added_tokens_decoder\": {\"300\": {}}}", "added_tokens: \"content\"", -1 },
        { "", "{\"added_tokens_decoder\": {\"256\": {\"content\": \"<|reserved_token_257|>\"}}}",
          "added_tokens: token \"<|reserved_token_257|>\" is there twice", -1 },
    };
    moe_error_t error;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_null(load(bytes_and(rows[i].more, rows[i].without), rows[i].config, &error));
        assert_int_equal(error.code, MOE_BAD_MODEL);
        if (strstr(error.message, rows[i].message) == NULL) {
            fail_msg("row %zu: %s", i, error.message);
        }
    }
    assert_null(load("", NULL, &error));
    assert_string_equal(error.message, "tiktoken.model: no tokens");
}


/* Ranks are ids; tokenizer_config.json names some of the 256 special tokens behind the others. */
static void tokens(void **state)
{
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    moe_error_t error;
    moe_tokenizer_t *tokenizer;

    tokenizer = load(bytes_and("YWI= 256\n\nYWJj 257", -1), "{\"added_tokens_decoder\":"
                     "{\"260\": {\"content\": \"[EOS]\", \"special\": true}}}", &error);
    assert_string_equal(error.message, "");
    assert_non_null(tokenizer);
    assert_int_equal(moe_tokenizer_size(tokenizer), 258 + 256);
    assert_int_equal(moe_text_append(&text, "abcab[EOS]<|reserved_token_258|>", 32, 1, &error), 0);
    assert_int_equal(moe_tokenizer_encode(tokenizer, &text, 0, 0, &ids, &error), 0);
    assert_int_equal(ids.count, 4);
    assert_int_equal(ids.ids[0], 257);
    assert_int_equal(ids.ids[1], 256);
    assert_int_equal(ids.ids[2], 260);
    assert_int_equal(ids.ids[3], 258);
    assert_true(moe_tokenizer_is_special(tokenizer, 260));
    assert_true(moe_tokenizer_is_special(tokenizer, 513));
    moe_ids_free(&ids);
    moe_text_free(&text);
    moe_tokenizer_free(tokenizer);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kimi_chunks),
        cmocka_unit_test(tokens),
        cmocka_unit_test(damaged_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
