/*
 * Ids of ten thousand texts by tokenizers of each configuration in tokenizers.py, against hashes
 * over those of the reference libraries: from tokenizer.json, and the same told in the metadata of
 * a GGUF file.  Ids are turned back into text, too.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include <openssl/evp.h>

#include "engine/text/detokenizer.h"
#include "engine/text/gguf_text.h"
#include "t/golden/tokenizer_lines.h"

#define FOLDER "t/golden/tokenizers"
#define GROUP 100u

static json_t *golden, *tables;


static json_t *read_file(const char *name)
{
    char path[256];
    json_t *json;

    snprintf(path, sizeof(path), FOLDER "/%s", name);
    json = json_load_file(path, JSON_ALLOW_NUL, NULL);
    if (json == NULL) {
        fail_msg("%s", path);
    }
    return json;
}


static int setup(void **state)
{
    golden = read_file("ids.json");
    tables = read_file("lines.json");
    return 0;
}


static int teardown(void **state)
{
    json_decref(golden);
    json_decref(tables);
    return 0;
}


static void expect_hash(const moe_buffer_t *data, const json_t *expected, const char *name,
                        const char *what, size_t first)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[17];

    assert_int_equal(EVP_Digest(data->data, data->size, digest, NULL, EVP_sha256(), NULL), 1);
    for (int i = 0; i < 8; i++) {
        sprintf(text + 2 * i, "%02x", digest[i]);
    }
    if (!json_is_string(expected) || strcmp(text, json_string_value(expected)) != 0) {
        fail_msg("%s: %s of the texts %zu to %zu", name, what, first, first + GROUP - 1);
    }
}


/* Appends the ids of a text to one buffer and what they decode to to the other. */
static void encode(const moe_tokenizer_t *tokenizer, const line_t *line, int trusted,
                   moe_buffer_t *ids_out, moe_buffer_t *text_out)
{
    static const unsigned char end[4] = { 0xff, 0xff, 0xff, 0xff };
    moe_detokenizer_t detokenizer;
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    moe_error_t error;

    assert_int_equal(moe_text_append(&text, line->text, line->size, trusted, &error), 0);
    assert_int_equal(moe_tokenizer_encode(tokenizer, &text, MOE_ENCODE_POST_PROCESS, 0, &ids,
                                          &error), 0);
    moe_detokenizer_init(&detokenizer, tokenizer, 1);
    for (size_t i = 0; i < ids.count; i++) {
        unsigned char bytes[4] = {
            ids.ids[i] & 0xff, ids.ids[i] >> 8 & 0xff, ids.ids[i] >> 16 & 0xff, ids.ids[i] >> 24
        };

        moe_buffer_append(ids_out, bytes, sizeof(bytes), &error);
        assert_int_equal(moe_detokenizer_push(&detokenizer, ids.ids[i], text_out, &error), 0);
    }
    assert_int_equal(moe_detokenizer_finish(&detokenizer, text_out, &error), 0);
    moe_buffer_append(ids_out, end, sizeof(end), &error);
    moe_buffer_append(text_out, end, 1, &error);
    moe_ids_free(&ids);
    moe_text_free(&text);
}


/* SentencePiece knows no special tokens in a text: `trusted` is 0. */
static void compare(const moe_tokenizer_t *tokenizer, const json_t *expected, const char *name,
                    int trusted)
{
    const json_t *ids = json_object_get(expected, "ids");
    const json_t *texts = json_object_get(expected, "texts");
    moe_buffer_t ids_out = { 0 }, text_out = { 0 };
    line_t line = {
        .words = json_object_get(tables, "words"), .spaces = json_object_get(tables, "spaces"),
        .ranges = json_object_get(tables, "ranges")
    };

    assert_int_equal(json_array_size(ids), 100);
    for (size_t group = 0; group < json_array_size(ids); group++) {
        ids_out.size = text_out.size = 0;
        for (size_t i = 0; i < GROUP; i++) {
            line_make(&line, group * GROUP + i);
            encode(tokenizer, &line, trusted, &ids_out, &text_out);
        }
        expect_hash(&ids_out, json_array_get(ids, group), name, "ids", group * GROUP);
        expect_hash(&text_out, json_array_get(texts, group), name, "text from the ids",
                    group * GROUP);
    }
    moe_buffer_free(&ids_out);
    moe_buffer_free(&text_out);
}


static void compare_gguf(const json_t *metadata, const json_t *expected, const char *name,
                         int trusted)
{
    moe_tokenizer_t *tokenizer;
    moe_error_t error = { 0 };

    tokenizer = moe_gguf_tokenizer(metadata, name, &error);
    assert_string_equal(error.message, "");
    assert_non_null(tokenizer);
    compare(tokenizer, expected, name, trusted);
    moe_tokenizer_free(tokenizer);
}


enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };


static void put(json_t *metadata, size_t id, json_t *text, int type, double score)
{
    json_array_set(json_object_get(metadata, "tokenizer.ggml.tokens"), id, text);
    json_array_set_new(json_object_get(metadata, "tokenizer.ggml.token_type"), id,
                       json_integer(type));
    json_array_set_new(json_object_get(metadata, "tokenizer.ggml.scores"), id, json_real(score));
}


static void put_tokens(json_t *metadata, const json_t *json)
{
    json_t *vocab = json_object_get(json_object_get(json, "model"), "vocab"), *item, *text;
    const json_t *added = json_object_get(json, "added_tokens");
    const char *key;
    size_t i, count = json_object_size(vocab) + json_array_size(vocab) + json_array_size(added);

    text = json_string("[PAD]");
    for (i = 0; i < count; i++) {
        json_array_append_new(json_object_get(metadata, "tokenizer.ggml.tokens"), json_null());
        json_array_append_new(json_object_get(metadata, "tokenizer.ggml.token_type"), json_null());
        json_array_append_new(json_object_get(metadata, "tokenizer.ggml.scores"), json_null());
        put(metadata, i, text, UNUSED, 0);
    }
    json_decref(text);
    json_object_foreach(vocab, key, item) {
        text = json_string(key);
        put(metadata, (size_t) json_integer_value(item), text, NORMAL, 0);
        json_decref(text);
    }
    json_array_foreach(vocab, i, item) {
        text = json_array_get(item, 0);
        put(metadata, i, text, strncmp(json_string_value(text), "<0x", 3) == 0 ? BYTE : NORMAL,
            json_number_value(json_array_get(item, 1)));
    }
    json_array_foreach(added, i, item) {
        put(metadata, (size_t) json_integer_value(json_object_get(item, "id")),
            json_object_get(item, "content"),
            json_is_true(json_object_get(item, "special")) ? CONTROL : USER_DEFINED, 0);
    }
}


/* The metadata of the GGUF file that a converter makes of tokenizer.json. */
static json_t *to_gguf(const json_t *json, const char *pre)
{
    int scored = strcmp(pre, "t5") == 0;
    const json_t *merges = json_object_get(json_object_get(json, "model"), "merges"), *merge;
    json_t *lines = json_array(), *metadata;
    size_t i;

    json_array_foreach(merges, i, merge) {
        json_array_append_new(lines,
                              json_sprintf("%s %s", json_string_value(json_array_get(merge, 0)),
                                           json_string_value(json_array_get(merge, 1))));
    }
    metadata = json_pack("{s:s, s:s, s:o, s:[], s:[], s:[], s:i, s:i}",
                         "tokenizer.ggml.model", scored ? pre : "gpt2",
                         "tokenizer.ggml.pre", scored ? "default" : pre,
                         "tokenizer.ggml.merges", lines, "tokenizer.ggml.tokens",
                         "tokenizer.ggml.token_type", "tokenizer.ggml.scores",
                         "tokenizer.ggml.eos_token_id", 1, "tokenizer.ggml.unknown_token_id", 0);
    json_object_set(metadata, "tokenizer.ggml.bos_token_id",
                    json_object_get(json_array_get(json_object_get(json, "added_tokens"), 0),
                                    "id"));
    put_tokens(metadata, json);
    return metadata;
}


static void compare_directory(const char *name)
{
    moe_error_t error = { 0 };
    moe_tokenizer_t *tokenizer;
    char path[256];

    snprintf(path, sizeof(path), FOLDER "/%s", name);
    tokenizer = moe_tokenizer_load(path, &error);
    assert_string_equal(error.message, "");
    assert_non_null(tokenizer);
    compare(tokenizer, json_object_get(golden, name), name, 1);
    moe_tokenizer_free(tokenizer);
}


static void from_tokenizer_json(void **state)
{
    const char *name;
    json_t *expected;
    size_t count = 0;

    json_object_foreach(golden, name, expected) {
        if (json_object_get(expected, "pre") != NULL) {
            compare_directory(name);
            count++;
        }
    }
    assert_int_equal(count, 16);
}


static void from_tiktoken_model(void **state)
{
    compare_directory("tiktoken");
}


static void from_gguf(void **state)
{
    const char *name;
    json_t *expected;

    json_object_foreach(golden, name, expected) {
        const json_t *pre = json_object_get(expected, "pre");
        json_t *json, *metadata;
        char path[256];

        if (json_is_string(pre)) {
            snprintf(path, sizeof(path), "%s/tokenizer.json", name);
            json = read_file(path);
            metadata = to_gguf(json, json_string_value(pre));
            compare_gguf(metadata, expected, name, 1);
            json_decref(metadata);
            json_decref(json);
        }
    }
}


static void from_gguf_of_sentence_piece(void **state)
{
    json_t *metadata = read_file("spm-bpe.gguf.json");

    compare_gguf(metadata, json_object_get(golden, "spm-bpe"), "spm-bpe", 0);
    json_decref(metadata);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_tokenizer_json),
        cmocka_unit_test(from_tiktoken_model),
        cmocka_unit_test(from_gguf),
        cmocka_unit_test(from_gguf_of_sentence_piece),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
