/* Stop strings: compared with a search over the whole text, for every way to cut it. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text/stop.h"

#define N_STOPS 4


static moe_stop_t *create(const char *const *stops, unsigned n, int include_stop)
{
    moe_string_t strings[N_STOPS] = { { NULL, 0 } };
    moe_error_t error;
    moe_stop_t *stop;

    for (unsigned i = 0; i < n; i++) {
        strings[i] = (moe_string_t) { stops[i], (uint32_t) strlen(stops[i]) };
    }
    stop = moe_stop_create(strings, n, include_stop, &error);
    assert_non_null(stop);
    return stop;
}


/* The definition: of all matches the one that starts first, then the one that ends first. */
static int search(const char *const *stops, unsigned n, const char *text, size_t *start)
{
    int best = -1;

    for (unsigned i = 0; i < n; i++) {
        const char *found = strstr(text, stops[i]);
        size_t at = found ? (size_t) (found - text) : 0;

        if (found && (best == -1 || at < *start
                      || (at == *start && strlen(stops[i]) < strlen(stops[best]))))
        {
            best = (int) i;
            *start = at;
        }
    }
    return best;
}


/* Pushes a text in pieces of `piece` bytes and checks what comes out. */
static void check(const char *const *stops, unsigned n, const char *text, size_t piece,
                  int include_stop)
{
    moe_stop_t *stop = create(stops, n, include_stop);
    moe_buffer_t out = { 0 };
    moe_error_t error;
    size_t size = strlen(text), start = 0, expected;
    int rc = -1, best = search(stops, n, text, &start);

    for (size_t i = 0; i < size && rc == -1; i += piece) {
        rc = moe_stop_push(stop, text + i, i + piece < size ? piece : size - i, &out, &error);
        assert_in_range(rc + 1, 0, n);
        /* nothing that is not sure may be out */
        assert_true(best == -1 || out.size <= start + (include_stop ? strlen(stops[best]) : 0));
    }
    if (rc == -1) {
        assert_int_equal(moe_stop_finish(stop, &out, &error), 0);
    }
    expected = best == -1 ? size : start + (include_stop ? strlen(stops[best]) : 0);
    if (out.size != expected || (expected > 0 && memcmp(out.data, text, expected) != 0)
        || moe_stop_matched(stop) != best)
    {
        fail_msg("\"%s\" in pieces of %zu: %zu bytes, match %d", text, piece, out.size,
                 moe_stop_matched(stop));
    }
    moe_buffer_free(&out);
    moe_stop_free(stop);
}


static void cases(void **state)
{
    static const struct {
        const char *stops[N_STOPS];
        unsigned n;
        const char *text;
    } rows[] = {
        { { "DEFGHIJ" }, 1, "ABC DEFGHIJ KL" }, { { "DEFGHIJ" }, 1, "ABC DEFGHI" },
        { { "Pari" }, 1, "the city of Paris" }, { { "aab" }, 1, "aaab" },
        { { "abab" }, 1, "abacababab" }, { { "abcd", "bc" }, 2, "xabcd" },
        { { "abcd", "bc" }, 2, "xabce" }, { { "abcd", "bc" }, 2, "xabc" },
        { { "ab", "abc" }, 2, "xxabc" }, { { "abc", "ab" }, 2, "xxabc" },
        { { "\n\n", "\n" }, 2, "line\n\n" }, { { "é" }, 1, "caf\xc3\xa8 caf\xc3\xa9!" },
        { { "x" }, 1, "" }, { { NULL }, 0, "free text" }, { { "same", "same" }, 2, "so same" },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 1; piece <= 8; piece++) {
            check(rows[i].stops, rows[i].n, rows[i].text, piece, 0);
            check(rows[i].stops, rows[i].n, rows[i].text, piece, 1);
        }
    }
}


static void random_texts(void **state)
{
    uint32_t seed = 12345;

    for (int round = 0; round < 20000; round++) {
        char text[40], strings[N_STOPS][8];
        const char *stops[N_STOPS];
        unsigned n, size;

        seed = seed * 1664525 + 1013904223;
        n = 1 + (seed >> 28) % N_STOPS;
        for (unsigned i = 0; i <= n; i++) {
            char *target = i < n ? strings[i] : text;

            seed = seed * 1664525 + 1013904223;
            size = 1 + (seed >> 20) % (i < n ? 5 : 30);
            for (unsigned k = 0; k < size; k++) {
                seed = seed * 1664525 + 1013904223;
                target[k] = "aaab"[seed >> 30];
            }
            target[size] = '\0';
            if (i < n) {
                stops[i] = strings[i];
            }
        }
        for (unsigned i = 1; i < n; i++) {      /* which of two equal ones matched is not defined */
            for (unsigned k = 0; k < i; k++) {
                if (strcmp(strings[i], strings[k]) == 0) {
                    strings[i][0] = (char) ('c' + i);
                }
            }
        }
        check(stops, n, text, 1 + (size_t) round % 7, round & 1);
    }
}


/* Only what may become a stop string waits. */
static void holds_back_no_more_than_needed(void **state)
{
    static const char *const stops[] = { "END", "NO!" };
    moe_stop_t *stop = create(stops, 2, 0);
    moe_buffer_t out = { 0 };
    moe_error_t error;

    assert_int_equal(moe_stop_push(stop, "abcEN", 5, &out, &error), -1);
    assert_int_equal(out.size, 3);
    assert_int_equal(moe_stop_push(stop, "O", 1, &out, &error), -1);
    assert_int_equal(out.size, 4);
    assert_int_equal(moe_stop_push(stop, "x", 1, &out, &error), -1);
    assert_int_equal(out.size, 7);
    out.limit = 7;
    assert_int_equal(moe_stop_push(stop, "x", 1, &out, &error), -2);
    assert_int_equal(error.code, MOE_LIMIT);
    moe_buffer_free(&out);
    moe_stop_free(stop);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(holds_back_no_more_than_needed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
