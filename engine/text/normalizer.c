/*
 * A flat list of steps, each from one text with provenance to another.  Unicode normal forms are
 * computed by stretches that cannot interact: a stretch starts at an ASCII character, which never
 * combines with what stands before it.  ASCII itself is copied.
 *
 * utf8proc supplies decomposition and composition; the sorting between the two is ours, because
 * utf8proc's is quadratic in the number of combining marks behind one character.
 */

#include "engine/text/normalizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/text/component.h"
#include "engine/text/utf8.h"

#define STEPS_LIMIT 64u
#define TEXT_LIMIT ((size_t) 1 << 30)
#define BEFORE_FINALS 0x11a7            /* the code point before the Hangul final consonants */
#define DECOMPOSITION_LIMIT 32          /* characters one character decomposes to: 18 at most */

typedef struct step_s step_t;

struct step_s {
    int (*apply)(const step_t *step, moe_matcher_t *matcher, const moe_text_t *in,
                 moe_text_t *out, moe_error_t *error);
    unsigned forms;             /* utf8proc's options */
    moe_regex_t *regex;         /* Replace */
    char *content;              /* Replace, Prepend */
    size_t content_size;
    int left, right;            /* Strip */
};

struct moe_normalizer_s {
    step_t steps[STEPS_LIMIT];
    unsigned n_steps;
};

typedef struct {
    utf8proc_int32_t *codes;
    size_t count, capacity;
} codes_t;


static int is_trusted(const moe_text_t *text, size_t start, size_t end)
{
    return moe_text_trusted_end(text, start) >= end;
}


static int append_code(moe_text_t *out, uint32_t code, int trusted, moe_error_t *error)
{
    char text[4];

    return moe_text_append(out, text, moe_utf8_encode(code, text), trusted, error);
}


static int decompose(const char *text, size_t size, unsigned forms, codes_t *codes,
                     moe_error_t *error)
{
    size_t length;
    int boundary = 0;

    codes->count = 0;
    for (size_t i = 0; i < size; i += length) {
        if (codes->capacity - codes->count < DECOMPOSITION_LIMIT) {
            size_t capacity = codes->capacity * 2 + 2 * DECOMPOSITION_LIMIT;
            void *grown = capacity * sizeof(utf8proc_int32_t) > TEXT_LIMIT
                          ? NULL : realloc(codes->codes, capacity * sizeof(utf8proc_int32_t));

            if (grown == NULL) {
                return moe_fail(error, MOE_LIMIT, "text too long to be normalised");
            }
            codes->codes = grown;
            codes->capacity = capacity;
        }
        codes->count += (size_t) utf8proc_decompose_char(
            (utf8proc_int32_t) moe_utf8_decode(text + i, &length), codes->codes + codes->count,
            DECOMPOSITION_LIMIT, (utf8proc_option_t) forms, &boundary);
    }
    return 0;
}


static int combining_class(utf8proc_int32_t code)
{
    return utf8proc_get_property(code)->combining_class;
}


/* Canonical order: every run of combining marks stably by class.  Counting, since classes are
 * below 255; short runs, the normal case, by insertion. */
static int sort_marks(utf8proc_int32_t *codes, size_t count, moe_error_t *error)
{
    size_t starts[256] = { 0 }, sum = 0;
    utf8proc_int32_t *sorted;

    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            utf8proc_int32_t code = codes[i];
            size_t k = i;

            for (; k > 0 && combining_class(codes[k - 1]) > combining_class(code); k--) {
                codes[k] = codes[k - 1];
            }
            codes[k] = code;
        }
        return 0;
    }
    sorted = malloc(count * sizeof(*sorted));
    if (sorted == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu combining marks", count);
    }
    for (size_t i = 0; i < count; i++) {
        starts[combining_class(codes[i]) & 0xff]++;
    }
    for (size_t i = 0; i < 256; i++) {
        size_t n = starts[i];

        starts[i] = sum;
        sum += n;
    }
    for (size_t i = 0; i < count; i++) {
        sorted[starts[combining_class(codes[i]) & 0xff]++] = codes[i];
    }
    memcpy(codes, sorted, count * sizeof(*sorted));
    free(sorted);
    return 0;
}


static int order(codes_t *codes, moe_error_t *error)
{
    size_t start = 0, end;

    while (start < codes->count) {
        if (combining_class(codes->codes[start]) == 0) {
            start++;
            continue;
        }
        for (end = start + 1; end < codes->count; end++) {
            if (combining_class(codes->codes[end]) == 0) {
                break;
            }
        }
        if (sort_marks(codes->codes + start, end - start, error) != 0) {
            return -1;
        }
        start = end;
    }
    return 0;
}


/* utf8proc takes U+11A7, which composes with nothing, for a Hangul final consonant when it follows
 * a syllable, so composition begins anew at each. */
static void compose(const step_t *step, codes_t *codes)
{
    size_t count = 0, end;

    for (size_t start = 0; start < codes->count; start = end) {
        utf8proc_ssize_t n;

        for (end = start + 1; end < codes->count && codes->codes[end] != BEFORE_FINALS; end++) {
            /* up to the next one */
        }
        n = utf8proc_normalize_utf32(codes->codes + start, (utf8proc_ssize_t) (end - start),
                                     (utf8proc_option_t) step->forms);
        memmove(codes->codes + count, codes->codes + start, (size_t) n * sizeof(*codes->codes));
        count += (size_t) n;
    }
    codes->count = count;
}


static int normalize_stretch(const step_t *step, codes_t *codes, const char *text, size_t size,
                             int trusted, moe_text_t *out, moe_error_t *error)
{
    if (decompose(text, size, step->forms, codes, error) != 0 || order(codes, error) != 0) {
        return -1;
    }
    if (step->forms & UTF8PROC_COMPOSE) {
        compose(step, codes);
    }
    for (size_t i = 0; i < codes->count; i++) {
        if (append_code(out, (uint32_t) codes->codes[i], trusted, error) != 0) {
            return -1;
        }
    }
    return 0;
}


static int apply_form(const step_t *step, moe_matcher_t *matcher, const moe_text_t *in,
                      moe_text_t *out, moe_error_t *error)
{
    const char *data = in->bytes.data;
    size_t size = in->bytes.size, start = 0, end;
    codes_t codes = { 0 };
    int rc = 0;

    while (start < size && rc == 0) {
        end = start;
        while (end < size && (unsigned char) data[end] < 0x80) {
            end++;
        }
        if (end < size && end > start) {
            end--;                      /* it may combine with what follows */
        }
        if (end > start) {
            rc = moe_text_append_range(out, in, start, end, error);
            start = end;
            continue;
        }
        for (end = start + 1; end < size && (unsigned char) data[end] >= 0x80; end++) {
            /* up to the next ASCII character */
        }
        rc = normalize_stretch(step, &codes, data + start, end - start,
                               is_trusted(in, start, end), out, error);
        start = end;
    }
    free(codes.codes);
    return rc;
}


static int apply_replace(const step_t *step, moe_matcher_t *matcher, const moe_text_t *in,
                         moe_text_t *out, moe_error_t *error)
{
    size_t done = 0, from = 0, start, end, length;
    int found;

    while (from <= in->bytes.size) {
        found = moe_regex_find(step->regex, matcher, in->bytes.data, in->bytes.size, from, &start,
                               &end, error);
        if (found == -1) {
            return -1;
        }
        if (!found) {
            break;
        }
        if (moe_text_append_range(out, in, done, start, error) != 0
            || moe_text_append(out, step->content, step->content_size,
                               is_trusted(in, start, end), error) != 0)
        {
            return -1;
        }
        done = from = end;
        if (start == end) {
            length = 1;
            if (end < in->bytes.size) {
                moe_utf8_decode(in->bytes.data + end, &length);
            }
            from += length;
        }
    }
    return moe_text_append_range(out, in, done, in->bytes.size, error);
}


static int apply_prepend(const step_t *step, moe_matcher_t *matcher, const moe_text_t *in,
                         moe_text_t *out, moe_error_t *error)
{
    return moe_text_append(out, step->content, step->content_size, 1, error) == 0
           ? moe_text_append_range(out, in, 0, in->bytes.size, error) : -1;
}


static int apply_lowercase(const step_t *step, moe_matcher_t *matcher, const moe_text_t *in,
                           moe_text_t *out, moe_error_t *error)
{
    size_t length;

    for (size_t i = 0; i < in->bytes.size; i += length) {
        uint32_t code = moe_utf8_decode(in->bytes.data + i, &length);
        int trusted = is_trusted(in, i, i + length);

        /* the only character whose lower case is two characters */
        if (code == 0x130) {
            if (moe_text_append(out, "i\xcc\x87", 3, trusted, error) != 0) {
                return -1;
            }
        } else if (append_code(out, (uint32_t) utf8proc_tolower((utf8proc_int32_t) code), trusted,
                               error) != 0)
        {
            return -1;
        }
    }
    return 0;
}


static int apply_strip(const step_t *step, moe_matcher_t *matcher, const moe_text_t *in,
                       moe_text_t *out, moe_error_t *error)
{
    const char *data = in->bytes.data;
    size_t start = 0, end = in->bytes.size, length;

    while (step->left && start < end && moe_is_space(moe_utf8_decode(data + start, &length))) {
        start += length;
    }
    while (step->right && end > start) {
        size_t last = end - 1;

        while (((unsigned char) data[last] & 0xc0) == 0x80) {
            last--;
        }
        if (!moe_is_space(moe_utf8_decode(data + last, &length))) {
            break;
        }
        end = last;
    }
    return moe_text_append_range(out, in, start, end, error);
}


int moe_normalizer_apply(const moe_normalizer_t *normalizer, moe_matcher_t *matcher,
                         const moe_text_t *text, size_t start, size_t end, moe_text_t *out,
                         moe_error_t *error)
{
    moe_text_t texts[2] = { { .bytes.limit = TEXT_LIMIT }, { .bytes.limit = TEXT_LIMIT } };
    moe_text_t *in = &texts[0], *next = &texts[1];
    int rc = moe_text_append_range(in, text, start, end, error);

    for (unsigned i = 0; rc == 0 && i < normalizer->n_steps && in->bytes.size > 0; i++) {
        const step_t *step = &normalizer->steps[i];
        moe_text_t *swap = in;

        moe_text_clear(next);
        rc = step->apply(step, matcher, in, next, error);
        in = next;
        next = swap;
    }
    if (rc == 0) {
        rc = moe_text_append_range(out, in, 0, in->bytes.size, error);
    }
    moe_text_free(&texts[0]);
    moe_text_free(&texts[1]);
    return rc;
}


static int read_content(step_t *step, const json_t *json, const char *key, moe_error_t *error)
{
    const char *content = moe_json_string(json, key, &step->content_size, error);

    if (content == NULL) {
        return -1;
    }
    step->content = malloc(step->content_size + 1);
    if (step->content == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for a normalizer");
    }
    memcpy(step->content, content, step->content_size + 1);
    return 0;
}


static int read_form(step_t *step, const json_t *json, unsigned forms)
{
    step->apply = apply_form;
    step->forms = UTF8PROC_STABLE | forms;
    return 0;
}


static int read_nfc(step_t *step, const json_t *json, moe_error_t *error)
{
    return read_form(step, json, UTF8PROC_COMPOSE);
}


static int read_nfd(step_t *step, const json_t *json, moe_error_t *error)
{
    return read_form(step, json, UTF8PROC_DECOMPOSE);
}


static int read_nfkc(step_t *step, const json_t *json, moe_error_t *error)
{
    return read_form(step, json, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
}


static int read_nfkd(step_t *step, const json_t *json, moe_error_t *error)
{
    return read_form(step, json, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
}


static int read_lowercase(step_t *step, const json_t *json, moe_error_t *error)
{
    step->apply = apply_lowercase;
    return 0;
}


static int read_prepend(step_t *step, const json_t *json, moe_error_t *error)
{
    step->apply = apply_prepend;
    return read_content(step, json, "prepend", error);
}


static int read_replace(step_t *step, const json_t *json, moe_error_t *error)
{
    step->apply = apply_replace;
    step->regex = moe_regex_from_json(json_object_get(json, "pattern"), error);
    return step->regex ? read_content(step, json, "content", error) : -1;
}


static int read_strip(step_t *step, const json_t *json, moe_error_t *error)
{
    step->apply = apply_strip;
    return moe_json_flag(json, "strip_left", 1, &step->left, error) != 0
           || moe_json_flag(json, "strip_right", 1, &step->right, error) != 0 ? -1 : 0;
}


static const struct {
    const char *type;
    int (*read)(step_t *step, const json_t *json, moe_error_t *error);
} components[] = {
    { "NFC", read_nfc },
    { "NFD", read_nfd },
    { "NFKC", read_nfkc },
    { "NFKD", read_nfkd },
    { "Lowercase", read_lowercase },
    { "Prepend", read_prepend },
    { "Replace", read_replace },
    { "Strip", read_strip },
};


static int read_component(void *owner, const char *type, const json_t *json, moe_error_t *error)
{
    moe_normalizer_t *normalizer = owner;

    for (size_t i = 0; i < sizeof(components) / sizeof(components[0]); i++) {
        if (strcmp(type, components[i].type) != 0) {
            continue;
        }
        if (normalizer->n_steps == STEPS_LIMIT) {
            return moe_fail(error, MOE_BAD_MODEL, "more than %u steps", STEPS_LIMIT);
        }
        return components[i].read(&normalizer->steps[normalizer->n_steps++], json, error) == 0
               ? 0 : moe_fail_in(error, "%s", type);
    }
    return moe_fail(error, MOE_BAD_MODEL, "unknown type \"%.60s\"", type);
}


moe_normalizer_t *moe_normalizer_create(const json_t *json, moe_error_t *error)
{
    moe_normalizer_t *normalizer = calloc(1, sizeof(*normalizer));

    if (normalizer == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a normalizer");
        return NULL;
    }
    if (json != NULL && !json_is_null(json)
        && moe_component_walk(json, "normalizers", read_component, normalizer, error) != 0)
    {
        moe_normalizer_free(normalizer);
        return NULL;
    }
    return normalizer;
}


void moe_normalizer_free(moe_normalizer_t *normalizer)
{
    if (normalizer != NULL) {
        for (unsigned i = 0; i < normalizer->n_steps; i++) {
            moe_regex_free(normalizer->steps[i].regex);
            free(normalizer->steps[i].content);
        }
        free(normalizer);
    }
}
