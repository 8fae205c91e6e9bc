/* The unigram model: against all ways to cut a text, unknown characters, byte fallback. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "engine/text/unigram.h"

#define TOKENS_LIMIT 300u
#define BOUND -1e9

typedef struct {
    moe_vocab_t vocab;
    double scores[TOKENS_LIMIT];
    double lowest;
    moe_unigram_t *unigram;
    moe_unigram_scratch_t *scratch;
} fixture_t;

typedef struct {
    const char *text;
    double score;
} token_t;

/* Scores are binary fractions: sums are exact in any order. */
static const token_t tokens[] = {
    { "?", 0 }, { "a", -2 }, { "b", -2.5 }, { "c", -3 }, { "ab", -3.25 }, { "bc", -4 },
    { "abc", -7 }, { "aaaa", -5 }, { "é", -6 }, { "éa", -6.5 }, { "ca", -5.5 }, { "cab", -8.25 },
};


static void start(fixture_t *fixture, const token_t *list, size_t n, int bytes)
{
    moe_unigram_settings_t settings = { .unknown = 0, .byte_fallback = bytes };
    moe_error_t error;

    memset(fixture, 0, sizeof(*fixture));
    assert_int_equal(moe_vocab_init(&fixture->vocab, n + 256, 4096, (uint32_t) n + 256, &error), 0);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(moe_vocab_add(&fixture->vocab, list[i].text, strlen(list[i].text),
                                       (uint32_t) i, &error), 0);
        fixture->scores[i] = list[i].score;
        fixture->lowest = fmin(fixture->lowest, list[i].score);
    }
    for (unsigned byte = 0; bytes && byte < 256; byte++) {
        char text[8];

        snprintf(text, sizeof(text), "<0x%02X>", byte);
        assert_int_equal(moe_vocab_add(&fixture->vocab, text, 6, (uint32_t) n + byte, &error), 0);
        fixture->scores[n + byte] = -INFINITY;
    }
    fixture->unigram = moe_unigram_create(&fixture->vocab, fixture->scores, &settings, &error);
    assert_non_null(fixture->unigram);
    fixture->scratch = moe_unigram_scratch_create(&error);
    assert_non_null(fixture->scratch);
}


static void stop(fixture_t *fixture)
{
    moe_unigram_scratch_free(fixture->scratch);
    moe_unigram_free(fixture->unigram);
    moe_vocab_free(&fixture->vocab);
}


static void expect_ids(fixture_t *fixture, const char *text, const char *expected)
{
    moe_ids_t ids = { 0 };
    moe_error_t error;
    char out[256] = "";
    size_t n = 0;

    assert_int_equal(moe_unigram_encode(fixture->unigram, fixture->scratch, text, strlen(text),
                                        &ids, &error), 0);
    for (size_t i = 0; i < ids.count; i++) {
        n += (size_t) snprintf(out + n, sizeof(out) - n, "%s%u", i ? " " : "", ids.ids[i]);
    }
    if (strcmp(out, expected) != 0) {
        fail_msg("\"%s\": %s", text, out);
    }
    moe_ids_free(&ids);
}


/* The highest sum of scores of all ways to cut a text into known tokens. */
static double best_sum(const char *text)
{
    double best = *text == '\0' ? 0 : BOUND;

    for (size_t i = 1; i < sizeof(tokens) / sizeof(tokens[0]) && *text != '\0'; i++) {
        size_t size = strlen(tokens[i].text);

        if (strncmp(text, tokens[i].text, size) == 0) {
            best = fmax(best, tokens[i].score + best_sum(text + size));
        }
    }
    return best;
}


/* All texts of up to seven of a, b, c and é. */
static void all_cuts(void **state)
{
    static const char *const letters[] = { "a", "b", "c", "é" };
    fixture_t fixture;
    moe_error_t error;

    start(&fixture, tokens, sizeof(tokens) / sizeof(tokens[0]), 0);
    for (unsigned length = 1; length <= 7; length++) {
        for (unsigned n = 0; n < 1u << 2 * length; n++) {
            char text[16] = "", joined[16] = "";
            moe_ids_t ids = { 0 };
            double sum = 0;

            for (unsigned i = 0; i < length; i++) {
                strcat(text, letters[n >> 2 * i & 3]);
            }
            assert_int_equal(moe_unigram_encode(fixture.unigram, fixture.scratch, text,
                                                strlen(text), &ids, &error), 0);
            for (size_t i = 0; i < ids.count; i++) {
                strcat(joined, tokens[ids.ids[i]].text);
                sum += tokens[ids.ids[i]].score;
            }
            assert_string_equal(joined, text);
            assert_true(sum == best_sum(text));
            moe_ids_free(&ids);
        }
    }
    stop(&fixture);
}


static void ties(void **state)
{
    static const token_t list[] = {
        { "?", 0 }, { "a", -1 }, { "aa", -2 }, { "aaa", -3 }, { "b", -1 }, { "ab", -2 },
    };
    fixture_t fixture;

    start(&fixture, list, sizeof(list) / sizeof(list[0]), 0);
    expect_ids(&fixture, "aaa", "3");           /* the way that was found first stays */
    expect_ids(&fixture, "aab", "1 5");
    expect_ids(&fixture, "", "");
    stop(&fixture);
}


static void unknown_characters(void **state)
{
    fixture_t fixture;

    start(&fixture, tokens, sizeof(tokens) / sizeof(tokens[0]), 0);
    expect_ids(&fixture, "axyb", "1 0 2");      /* a stretch of them is one */
    expect_ids(&fixture, "中a中", "0 1 0");
    expect_ids(&fixture, "x?y", "0");           /* the token itself is no better known */
    expect_ids(&fixture, "?", "0");
    stop(&fixture);

    start(&fixture, tokens, sizeof(tokens) / sizeof(tokens[0]), 1);
    expect_ids(&fixture, "axb", "1 132 2");
    expect_ids(&fixture, "中\u00e8", "240 196 185 207 180");
    expect_ids(&fixture, "<0x41>", "72 60 132 64 61 74");
    expect_ids(&fixture, "?", "0");
    stop(&fixture);
}


/* The penalty is 10 below the worst token: known tokens are left for it only where they must be. */
static void penalty(void **state)
{
    static const token_t list[] = {
        { "?", 0 }, { "a", -1 }, { "xa", -12 }, { "ya", -11.5 }, { "b", -12 },
    };
    fixture_t fixture;

    start(&fixture, list, sizeof(list) / sizeof(list[0]), 0);
    expect_ids(&fixture, "xa", "2");            /* -12 against -22 - 1 */
    expect_ids(&fixture, "ya", "3");
    expect_ids(&fixture, "xb", "0 4");
    stop(&fixture);
}


/* Linear in the length of the text. */
static void long_texts(void **state)
{
    enum { SIZE = 1000000 };
    char *text = malloc(SIZE);
    fixture_t fixture;
    moe_ids_t ids = { 0 };
    moe_error_t error;

    assert_non_null(text);
    memset(text, 'a', SIZE);
    start(&fixture, tokens, sizeof(tokens) / sizeof(tokens[0]), 0);
    assert_int_equal(moe_unigram_encode(fixture.unigram, fixture.scratch, text, SIZE, &ids,
                                        &error), 0);
    assert_int_equal(ids.count, SIZE / 4);
    moe_ids_free(&ids);
    stop(&fixture);
    free(text);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_cuts),
        cmocka_unit_test(ties),
        cmocka_unit_test(unknown_characters),
        cmocka_unit_test(penalty),
        cmocka_unit_test(long_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
