/* What a text goes through before it is encoded: normalisers, pre-tokenizers, regexes. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/text/known_splits.h"
#include "engine/text/normalizer.h"
#include "engine/text/pretokenizer.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define NOT_HAN "&&[^\\p{Han}]"

static const char qwen2[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char qwen35[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
static const char cl100k[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char o200k[] =
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" CONTRACTIONS "?"
    "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" CONTRACTIONS "?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char kimi[] = "[\\p{Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER NOT_HAN "]*[" LOWER NOT_HAN "]+" CONTRACTIONS "?"
    "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER NOT_HAN "]+[" LOWER NOT_HAN "]*" CONTRACTIONS "?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char deepseek[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES;

/* e + U+0301; U+0939 U+093F U+0928 */
#define ACCENT "\xcc\x81"
#define HA "\xe0\xa4\xb9"
#define I_NA "\xe0\xa4\xbf\xe0\xa4\xa8"


/* Adds a component to a Sequence of pre-tokenizers. */
static void add_split(json_t *sequence, const char *kind, const char *pattern,
                      const char *behavior, int invert)
{
    json_t *step = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", kind, pattern,
                             "behavior", behavior, "invert", invert);

    assert_non_null(step);
    assert_int_equal(json_array_append_new(json_object_get(sequence, "pretokenizers"), step), 0);
}


/* Splits a text; the pieces separated by bars. */
static void expect_pieces(const json_t *json, const char *text, const char *expected)
{
    moe_pieces_t workspace[2] = { 0 };
    const moe_pieces_t *pieces;
    moe_pretokenizer_t *pretokenizer;
    moe_matcher_t *matcher;
    moe_error_t error;
    moe_buffer_t joined = { 0 };
    size_t start = 0;

    error.message[0] = '\0';
    pretokenizer = moe_pretokenizer_create(json, &error);
    assert_string_equal(error.message, "");
    assert_non_null(pretokenizer);
    matcher = moe_matcher_create(&error);
    pieces = moe_pretokenizer_split(pretokenizer, matcher, text, strlen(text), 1, workspace,
                                    &error);
    assert_non_null(pieces);
    for (size_t i = 0; i < pieces->count; i++) {
        assert_true(pieces->ends[i] > start);
        moe_buffer_append(&joined, "|", i > 0, &error);
        moe_buffer_append(&joined, pieces->text.data + start, pieces->ends[i] - start, &error);
        start = pieces->ends[i];
    }
    moe_buffer_append(&joined, "", 1, &error);
    assert_string_equal(joined.data, expected);
    moe_buffer_free(&joined);
    moe_pieces_free(&workspace[0]);
    moe_pieces_free(&workspace[1]);
    moe_matcher_free(matcher);
    moe_pretokenizer_free(pretokenizer);
}


/* MODELS' golden sample for the patterns of the families. */
static void family_patterns(void **state)
{
    static const char text[] = "Hello World's 12345  x\n\n  it'S 中文abc漢字かな deux-œuvres, e" ACCENT
        " " HA I_NA " a/b//\n#tag \t end  ";
    static const struct {
        const char *patterns[3];
        const char *pre;                /* tokenizer.ggml.pre of GGUF that means the same */
        const char *expected;
    } rows[] = {
        { { qwen2 }, "qwen2",
          "Hello| World|'s| |1|2|3|4|5| | x|\n\n| | it|'S| 中文abc漢字かな| deux|-œuvres|,"
          "| e|" ACCENT "| " HA "|" I_NA "| a|/b|//\n|#tag| \t| end|  " },
        { { qwen35 }, "qwen35",
          "Hello| World|'s| |1|2|3|4|5| | x|\n\n| | it|'S| 中文abc漢字かな| deux|-œuvres|,"
          "| e" ACCENT "| " HA I_NA "| a|/b|//\n|#tag| \t| end|  " },
        { { cl100k }, "glm4",
          "Hello| World|'s| |123|45| | x|\n\n| | it|'S| 中文abc漢字かな| deux|-œuvres|,"
          "| e|" ACCENT "| " HA "|" I_NA "| a|/b|//\n|#tag| \t| end|  " },
        { { o200k }, "gpt-4o",
          "Hello| World's| |123|45| | x|\n\n| | it'S| 中文abc漢字かな| deux|-œuvres|,"
          "| e" ACCENT "| " HA I_NA "| a|/b|//\n|#tag| \t| end|  " },
        { { kimi }, "kimi-k2",
          "Hello| World's| |123|45| | x|\n\n| | it'S| |中文|abc|漢字|かな| deux|-œuvres|,"
          "| e" ACCENT "| " HA I_NA "| a|/b|//\n|#tag| \t| end|  " },
        { { "\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", deepseek }, "deepseek-v3",
          "Hello| World|'s| |123|45| | x|\n\n| | it|'S| |中文|abc|漢字かな| deux|-|œuvres|,"
          "| e" ACCENT "| " HA I_NA "| a|/b|//\n|#tag| \t| end|  " },
        { { NULL }, "deepseek-llm",
          "Hello| World|'|s| |12345| | x|\n|\n| | it|'|S| |中文|abc|漢字かな| deux|-|œ|uvres|,"
          "| e|" ACCENT " |" HA I_NA "| a|/|b|//|\n|#|tag| \t| end|  " },
        { { NULL }, "starcoder",
          "Hello| World|'s| |1|2|3|4|5| | x|\n\n | it|'|S| 中文abc漢字かな| deux|-|œuvres|,"
          "| e|" ACCENT "| " HA "|ि|न| a|/|b|//|\n|#|tag| \t| end|  " },
        { { NULL }, "default",
          "Hello| World|'|s| |123|45| | x|\n\n | it|'|S| 中文abc漢字かな| deux|-|œuvres|,"
          "| e|" ACCENT "| " HA "|ि|न| a|/|b|//|\n|#|tag| \t| end|  " },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = json_pack("{s:s, s:[]}", "type", "Sequence", "pretokenizers");
        json_t *steps;

        for (int n = 0; n < 3 && rows[i].patterns[n]; n++) {
            add_split(json, "Regex", rows[i].patterns[n], "Isolated", 0);
        }
        if (rows[i].patterns[0] != NULL) {
            expect_pieces(json, text, rows[i].expected);
        }
        json_decref(json);
        json = moe_known_splits_json(moe_known_splits(rows[i].pre), NULL, 0);
        steps = json_object_get(json, "pretokenizers");
        json_array_remove(steps, json_array_size(steps) - 1);      /* ByteLevel */
        expect_pieces(json, text, rows[i].expected);
        json_decref(json);
    }
}


/* \s is White_Space exactly: U+0085, U+00A0, U+2028 and U+3000 are in it, U+180E is not. */
static void white_space(void **state)
{
    json_t *json = json_pack("{s:s, s:[]}", "type", "Sequence", "pretokenizers");

    add_split(json, "Regex", "\\s+|[^\\s]+", "Isolated", 0);
    add_split(json, "Regex", "\\S+|[^\\S]+", "Isolated", 0);
    expect_pieces(json, "a\u00a0b\xc2\x85" "c\u2028d\u3000e\u180ef\u200bg", "a|\u00a0|b|\xc2\x85|c|\u2028"
                  "|d|\u3000|e\u180ef\u200bg");
    json_decref(json);

    /* a match of DeepSeek-V2's \s+$ ends at lines, and starts only where white space does */
    json = json_pack("{s:s, s:[]}", "type", "Sequence", "pretokenizers");
    add_split(json, "Regex", "\\s+$", "Isolated", 0);
    expect_pieces(json, "a  b \n\n c  ", "a  b| \n|\n c|  ");
    json_decref(json);
}


static void behaviors(void **state)
{
    static const struct {
        const char *behavior;
        int invert;
        const char *expected;
    } rows[] = {
        { "Isolated", 0, "-|a|-|-|bc|-" }, { "Isolated", 1, "-|a|-|-|bc|-" },
        { "Removed", 0, "a|bc" }, { "Removed", 1, "-|-|-|-" },
        { "Contiguous", 0, "-|a|--|bc|-" }, { "Contiguous", 1, "-|a|--|bc|-" },
        { "MergedWithPrevious", 0, "-|a-|-|bc-" }, { "MergedWithPrevious", 1, "-a|-|-bc|-" },
        { "MergedWithNext", 0, "-a|-|-bc|-" }, { "MergedWithNext", 1, "-|a-|-|bc-" },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = json_pack("{s:s, s:[]}", "type", "Sequence", "pretokenizers");

        add_split(json, "String", "-", rows[i].behavior, rows[i].invert);
        expect_pieces(json, "-a--bc-", rows[i].expected);
        json_decref(json);
    }
}


static void components(void **state)
{
    static const struct {
        const char *json, *text, *expected;
    } rows[] = {
        { "{'type':'Digits','individual_digits':true}", "ab12\u00b2c", "ab|1|2|\u00b2|c" },
        { "{'type':'Digits','individual_digits':false}", "ab12\u00b2c", "ab|12\u00b2|c" },
        { "{'type':'Punctuation'}", "a,b$$ «c»", "a|,|b|$|$| |«|c|»" },
        { "{'type':'Punctuation','behavior':'Removed'}", "a,b", "a|b" },
        { "{'type':'Whitespace'}", "it's a_b  ½ é.. x", "it|'|s|a_b|½|é|..|x" },
        { "{'type':'WhitespaceSplit'}", " a  b.", "a|b." },
        { "{'type':'Metaspace','replacement':'▁','prepend_scheme':'always','split':true}",
          "a  b", "▁a|▁|▁b" },
        { "{'type':'Metaspace','replacement':'▁','prepend_scheme':'first','split':true}",
          " a", "▁a" },
        { "{'type':'Metaspace','replacement':'▁','add_prefix_space':false}", "a b", "a|▁b" },
        { "{'type':'Metaspace','replacement':'▁','prepend_scheme':'always','split':false}",
          "a b", "▁a▁b" },
        { "{'type':'ByteLevel','add_prefix_space':true,'use_regex':true}", "it's é",
          "Ġit|'s|ĠÃ©" },
        { "{'type':'ByteLevel','add_prefix_space':false,'use_regex':true}", "a  b\n",
          "a|Ġ|Ġb|Ċ" },
        { "{'type':'ByteLevel','add_prefix_space':false,'use_regex':false}", "a \x7f\u00ad",
          "aĠ\u0121Â\u0143" },
        { "null", "a b", "a b" },
        { "{'type':'WhitespaceSplit'}", "", "" },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char json[256];
        json_error_t where;
        json_t *parsed;

        snprintf(json, sizeof(json), "%s", rows[i].json);
        for (char *p = json; *p; p++) {
            *p = *p == '\'' ? '"' : *p;
        }
        parsed = json_loads(json, JSON_DECODE_ANY, &where);
        assert_non_null(parsed);
        expect_pieces(parsed, rows[i].text, rows[i].expected);
        json_decref(parsed);
    }
}


static void normalizers(void **state)
{
    static const struct {
        const char *json, *text, *expected;
    } rows[] = {
        { "{'type':'NFC'}", "e" ACCENT " \u1100\u1161\u11a8", "\u00e9 \uac01" },
        { "{'type':'NFC'}", "\uac00\u11a7\u1100\u1161\u11a7\u11a8",
          "\uac00\u11a7\uac00\u11a7\u11a8" },
        { "{'type':'NFD'}", "\u00e9", "e" ACCENT },
        { "{'type':'NFKC'}", "\ufb01 \uff21", "fi A" },
        { "{'type':'NFKD'}", "\u00bd", "1\u20442" },
        { "{'type':'NFC'}", "q\u0307\u0323", "q\u0323\u0307" },
        { "{'type':'Lowercase'}", "ÀB\u0130", "àbi\u0307" },
        { "{'type':'Strip','strip_left':true,'strip_right':false}", " \u3000 a ", "a " },
        { "{'type':'Strip','strip_left':false,'strip_right':true}", " a \u00a0", " a" },
        { "{'type':'Replace','pattern':{'Regex':' {2,}'},'content':'_'}", "a   b c", "a_b c" },
        { "{'type':'Replace','pattern':{'String':'.'},'content':''}", "a.b.", "ab" },
        { "{'type':'Replace','pattern':{'Regex':'x*'},'content':'-'}", "ab", "-a-b-" },
        { "{'type':'Prepend','prepend':'_'}", "a", "_a" },
        { "{'type':'Prepend','prepend':'_'}", "", "" },
        { "{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':' '},{'type':'Replace',"
          "'pattern':{'String':' '},'content':'_'}]}", "a b", "_a_b" },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        moe_text_t in = { 0 }, out = { 0 };
        moe_normalizer_t *normalizer;
        moe_matcher_t *matcher;
        moe_error_t error;
        json_error_t where;
        char json[256];
        json_t *parsed;

        snprintf(json, sizeof(json), "%s", rows[i].json);
        for (char *p = json; *p; p++) {
            *p = *p == '\'' ? '"' : *p;
        }
        parsed = json_loads(json, 0, &where);
        normalizer = moe_normalizer_create(parsed, &error);
        assert_non_null(normalizer);
        matcher = moe_matcher_create(&error);
        moe_text_append(&in, rows[i].text, strlen(rows[i].text), 0, &error);
        assert_int_equal(moe_normalizer_apply(normalizer, matcher, &in, 0, in.bytes.size, &out,
                                              &error), 0);
        moe_text_append(&out, "", 1, 0, &error);
        assert_string_equal(out.bytes.data, rows[i].expected);
        moe_text_free(&in);
        moe_text_free(&out);
        moe_matcher_free(matcher);
        moe_normalizer_free(normalizer);
        json_decref(parsed);
    }
}


/* A group for each letter needs memory for each; what would take for ever is an error. */
static void regex_limits(void **state)
{
    enum { SIZE = 300000 };
    static const struct {
        const char *pattern;
        size_t size;
        const char *message;            /* NULL: all but the last letter match */
    } rows[] = {
        { "(?:(?!x)[a-z])+", SIZE, NULL },
        { "(?:(?!x)[a-z])*+", SIZE, NULL },
        { "(?:a|aa|aaa)+$", 100, "text cannot be split into words: match limit exceeded" },
    };
    char *text = malloc(SIZE + 1);

    assert_non_null(text);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        moe_error_t error;
        moe_matcher_t *matcher = moe_matcher_create(&error);
        moe_regex_t *regex = moe_regex_create(rows[i].pattern, strlen(rows[i].pattern), &error);
        size_t start, end;
        int rc;

        memset(text, 'a', rows[i].size);
        text[rows[i].size] = 'x';
        rc = moe_regex_find(regex, matcher, text, rows[i].size + 1, 0, &start, &end, &error);
        assert_int_equal(rc, rows[i].message == NULL ? 1 : -1);
        if (rows[i].message == NULL) {
            assert_true(start == 0 && end == rows[i].size);
        } else {
            assert_int_equal(error.code, MOE_LIMIT);
            assert_string_equal(error.message, rows[i].message);
        }
        moe_regex_free(regex);
        moe_matcher_free(matcher);
    }
    free(text);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(family_patterns),
        cmocka_unit_test(white_space),
        cmocka_unit_test(behaviors),
        cmocka_unit_test(components),
        cmocka_unit_test(normalizers),
        cmocka_unit_test(regex_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
