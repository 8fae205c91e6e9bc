/*
 * A pattern is translated once, when a tokenizer is loaded, into PCRE2's dialect; matching is then
 * plain pcre2_match with JIT.  Where PCRE2 has no equivalent (an intersection of classes), the set
 * is found by trying every code point and written out as ranges: no look-ahead per character is
 * left for the matcher, whose work stays linear on long runs of letters.
 */

#define PCRE2_CODE_UNIT_WIDTH 8

#include "engine/text/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/buffer.h"
#include "engine/text/utf8.h"

#define PATTERN_LIMIT (256u << 10)
#define CLASS_DEPTH_LIMIT 8u
#define HEAP_LIMIT_KIB (256u << 10)
#define MATCH_LIMIT 20000000u
#define DEPTH_LIMIT 1000000u
#define JIT_STACK_START ((size_t) 32 << 10)
#define JIT_STACK_LIMIT ((size_t) 8 << 20)
#define LAST_CODE_POINT 0x10ffffu

/* Insides of classes. */
#define SPACE "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}" \
    "\\x{202F}\\x{205F}\\x{3000}"
#define NOT_SPACE "\\x00-\\x08\\x0E-\\x1F\\x21-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}" \
    "\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}" \
    "\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX "0-9a-fA-F"

struct moe_regex_s {
    pcre2_code *code;
};

struct moe_matcher_s {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

typedef struct {
    const char *p, *end;        /* what is left of the pattern */
    moe_error_t *error;
} translator_t;

static const struct {
    char letter;
    const char *outside, *inside;       /* inside a class; NULL: cannot be written there */
} shorthands[] = {
    { 's', "[" SPACE "]", SPACE },
    { 'S', "[^" SPACE "]", NOT_SPACE },
    { 'w', "[" WORD "]", WORD },
    { 'W', "[^" WORD "]", NULL },
    { 'h', "[" HEX "]", HEX },
    { 'H', "[^" HEX "]", NULL },
};


static pcre2_code *compile(const char *pattern, size_t size, uint32_t options,
                           moe_error_t *error)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE offset;
    PCRE2_UCHAR text[160];
    pcre2_code *code;
    int rc;

    if (context == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a regex");
        return NULL;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    code = pcre2_compile((PCRE2_SPTR) pattern, size, PCRE2_UTF | options, &rc, &offset, context);
    pcre2_compile_context_free(context);
    if (code == NULL) {
        pcre2_get_error_message(rc, text, sizeof(text));
        moe_fail(error, MOE_BAD_MODEL, "regex \"%.*s\": %s", (int) (size < 120 ? size : 120),
                 pattern, (const char *) text);
        return NULL;
    }
    /* without JIT (no executable memory) the interpreter gives the same matches */
    (void) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}


static int append(moe_buffer_t *out, const char *text, moe_error_t *error)
{
    return moe_buffer_append(out, text, strlen(text), error);
}


/* Appends the code points start..last as a class range. */
static int append_range(moe_buffer_t *out, uint32_t start, uint32_t last, moe_error_t *error)
{
    char text[32];

    snprintf(text, sizeof(text), "\\x{%X}-\\x{%X}", start, last);
    return append(out, text, error);
}


/* All characters in order. */
static int append_all_characters(moe_buffer_t *out, moe_error_t *error)
{
    if (moe_buffer_reserve(out, 4 * (size_t) LAST_CODE_POINT, error) != 0) {
        return -1;
    }
    for (uint32_t c = 0; c <= LAST_CODE_POINT; c++) {
        if (c == 0xd800) {
            c = 0xe000;         /* surrogates are no characters; a range may span them */
        }
        out->size += moe_utf8_encode(c, out->data + out->size);
    }
    return 0;
}


/* Appends the ranges of characters that `code` matches, a run of them at a time. */
static int append_matching(pcre2_code *code, moe_matcher_t *matcher, moe_buffer_t *out,
                           moe_error_t *error)
{
    moe_regex_t regex = { .code = code };
    moe_buffer_t all = { 0 };
    size_t start, end = 0, last, length;
    int rc = append_all_characters(&all, error);

    while (rc == 0) {
        rc = moe_regex_find(&regex, matcher, all.data, all.size, end, &start, &end, error);
        if (rc != 1) {
            break;
        }
        for (last = end - 1; ((unsigned char) all.data[last] & 0xc0) == 0x80; last--) {
            /* back to where the last character starts */
        }
        rc = append_range(out, moe_utf8_decode(all.data + start, &length),
                          moe_utf8_decode(all.data + last, &length), error);
    }
    moe_buffer_free(&all);
    return rc;
}


/* `operands`: look-aheads "(?=[A])(?=[B])"; appends the class of what is in all of them. */
static int append_intersection(const moe_buffer_t *operands, int negated, moe_buffer_t *out,
                               moe_error_t *error)
{
    moe_buffer_t run = { .limit = PATTERN_LIMIT };
    moe_matcher_t *matcher = NULL;
    pcre2_code *code = NULL;
    int rc = -1;

    if (append(&run, "(?:", error) == 0
        && moe_buffer_append(&run, operands->data, operands->size, error) == 0
        && append(&run, "(?s:.))++", error) == 0)
    {
        code = compile(run.data, run.size, PCRE2_UCP, error);
    }
    if (code != NULL) {
        matcher = moe_matcher_create(error);
    }
    if (matcher != NULL && append(out, negated ? "[^" : "[", error) == 0
        && append_matching(code, matcher, out, error) == 0)
    {
        rc = append(out, "]", error);
    }
    moe_buffer_free(&run);
    moe_matcher_free(matcher);
    pcre2_code_free(code);
    return rc;
}


/* \p{Name}: for PCRE2 the bare name of a script means Script_Extensions. */
static int translate_property(translator_t *t, moe_buffer_t *out)
{
    const char *start = t->p, *close, *name;
    char script[64];
    size_t size;
    moe_error_t ignored;
    pcre2_code *code = NULL;

    t->p += 2;
    if (t->p == t->end || *t->p != '{') {
        return moe_buffer_append(out, start, 2, t->error);
    }
    close = memchr(t->p, '}', (size_t) (t->end - t->p));
    if (close == NULL) {
        return moe_fail(t->error, MOE_BAD_MODEL, "regex: \\p without a closing brace");
    }
    name = t->p + 1 + (t->p[1] == '^');
    size = (size_t) (close - name);
    t->p = close + 1;
    if (size > 2 && size < 40) {
        snprintf(script, sizeof(script), "\\p{sc:%.*s}", (int) size, name);
        code = compile(script, strlen(script), 0, &ignored);
    }
    if (code == NULL) {
        return moe_buffer_append(out, start, (size_t) (t->p - start), t->error);
    }
    pcre2_code_free(code);
    script[1] = (start[1] == 'P') != (name[-1] == '^') ? 'P' : 'p';
    return append(out, script, t->error);
}


/* t->p is at a backslash. */
static int translate_escape(translator_t *t, int in_class, moe_buffer_t *out)
{
    char letter = t->p + 1 < t->end ? t->p[1] : '\0';

    if (letter == 'p' || letter == 'P') {
        return translate_property(t, out);
    }
    for (size_t i = 0; i < sizeof(shorthands) / sizeof(shorthands[0]); i++) {
        if (letter == shorthands[i].letter) {
            const char *text = in_class ? shorthands[i].inside : shorthands[i].outside;

            if (text == NULL) {
                return moe_fail(t->error, MOE_BAD_MODEL, "regex: \\%c in a class is not supported",
                                letter);
            }
            t->p += 2;
            return append(out, text, t->error);
        }
    }
    if (moe_buffer_append(out, t->p, letter ? 2 : 1, t->error) != 0) {
        return -1;
    }
    t->p += letter ? 2 : 1;
    return 0;
}


static int translate_class(translator_t *t, moe_buffer_t *out, unsigned depth);


static int at_text(const translator_t *t, const char *text)
{
    size_t size = strlen(text);

    return (size_t) (t->end - t->p) >= size && memcmp(t->p, text, size) == 0;
}


/* One operand of a class, up to && or the closing bracket, as a class of its own. */
static int translate_operand(translator_t *t, moe_buffer_t *out, unsigned depth)
{
    const char *start = t->p;
    int rc;

    if (at_text(t, "[") && !at_text(t, "[:")) {
        t->p++;
        if (translate_class(t, out, depth + 1) != 0) {
            return -1;
        }
        if (!at_text(t, "&&") && !at_text(t, "]")) {
            return moe_fail(t->error, MOE_BAD_MODEL, "regex: union of classes is not supported");
        }
        return 0;
    }
    if (append(out, "[", t->error) != 0) {
        return -1;
    }
    while (t->p < t->end && !at_text(t, "&&") && (*t->p != ']' || t->p == start)) {
        if (*t->p == '\\') {
            rc = translate_escape(t, 1, out);
        } else if (at_text(t, "[:")) {
            const char *close = strstr(t->p, ":]");

            if (close == NULL) {
                return moe_fail(t->error, MOE_BAD_MODEL, "regex: [: without :]");
            }
            rc = moe_buffer_append(out, t->p, (size_t) (close + 2 - t->p), t->error);
            t->p = close + 2;
        } else if (*t->p == '[') {
            return moe_fail(t->error, MOE_BAD_MODEL, "regex: union of classes is not supported");
        } else {
            rc = moe_buffer_append(out, t->p, 1, t->error);
            t->p++;
        }
        if (rc != 0) {
            return -1;
        }
    }
    return append(out, "]", t->error);
}


/* t->p is behind the opening bracket; afterwards it is behind the closing one. */
static int translate_class(translator_t *t, moe_buffer_t *out, unsigned depth)
{
    moe_buffer_t operand = { .limit = PATTERN_LIMIT }, operands = { .limit = PATTERN_LIMIT };
    int negated = at_text(t, "^"), rc = -1;
    unsigned n = 0;

    if (depth > CLASS_DEPTH_LIMIT) {
        return moe_fail(t->error, MOE_BAD_MODEL, "regex: classes nested too deeply");
    }
    t->p += negated;
    do {
        t->p += n > 0 ? 2 : 0;
        operand.size = 0;
        if (translate_operand(t, &operand, depth) != 0
            || append(&operands, "(?=", t->error) != 0
            || moe_buffer_append(&operands, operand.data, operand.size, t->error) != 0
            || append(&operands, ")", t->error) != 0)
        {
            goto done;
        }
        n++;
    } while (at_text(t, "&&"));
    if (!at_text(t, "]")) {
        moe_fail(t->error, MOE_BAD_MODEL, "regex: class without a closing bracket");
        goto done;
    }
    t->p++;
    if (n > 1) {
        rc = append_intersection(&operands, negated, out, t->error);
    } else if (!negated) {
        rc = moe_buffer_append(out, operand.data, operand.size, t->error);
    } else if (operand.size > 1 && operand.data[1] != '^') {
        rc = append(out, "[^", t->error) != 0
             ? -1 : moe_buffer_append(out, operand.data + 1, operand.size - 1, t->error);
    } else {
        moe_fail(t->error, MOE_BAD_MODEL, "regex: negation of a nested class is not supported");
    }

done:
    moe_buffer_free(&operand);
    moe_buffer_free(&operands);
    return rc;
}


static int translate(const char *pattern, size_t size, moe_buffer_t *out, moe_error_t *error)
{
    translator_t t = { pattern, pattern + size, error };
    int rc = 0;

    while (rc == 0 && t.p < t.end) {
        if (*t.p == '\\') {
            rc = translate_escape(&t, 0, out);
        } else if (*t.p == '[') {
            t.p++;
            rc = translate_class(&t, out, 0);
        } else {
            rc = moe_buffer_append(out, t.p, 1, error);
            t.p++;
        }
    }
    return rc == 0 ? moe_buffer_append(out, "", 1, error) : -1;
}


static moe_regex_t *wrap(pcre2_code *code, moe_error_t *error)
{
    moe_regex_t *regex;

    if (code == NULL) {
        return NULL;
    }
    regex = malloc(sizeof(*regex));
    if (regex == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a regex");
        pcre2_code_free(code);
        return NULL;
    }
    regex->code = code;
    return regex;
}


moe_regex_t *moe_regex_create(const char *pattern, size_t size, moe_error_t *error)
{
    /* DeepSeek-V2's "\s+$" would be tried at each blank of a run that ends in the middle of a line:
     * quadratic.  A match can only start where a run does. */
    static const char trailing_space[] = "\\s+$", same_from_start_of_run[] = "(?<!\\s)\\s+$";
    moe_buffer_t translated = { .limit = PATTERN_LIMIT };
    moe_regex_t *regex = NULL;

    if (memchr(pattern, '\0', size) != NULL) {
        moe_fail(error, MOE_BAD_MODEL, "regex with a NUL");
        return NULL;
    }
    if (size == sizeof(trailing_space) - 1 && memcmp(pattern, trailing_space, size) == 0) {
        pattern = same_from_start_of_run;
        size = sizeof(same_from_start_of_run) - 1;
    }
    if (translate(pattern, size, &translated, error) == 0) {
        regex = wrap(compile(translated.data, translated.size - 1,
                             PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, error),
                     error);
    }
    moe_buffer_free(&translated);
    return regex;
}


moe_regex_t *moe_regex_create_literal(const char *text, size_t size, moe_error_t *error)
{
    return wrap(compile(text, size, PCRE2_LITERAL, error), error);
}


moe_regex_t *moe_regex_from_json(const json_t *pattern, moe_error_t *error)
{
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *regex = json_object_get(pattern, "Regex");

    if (json_object_size(pattern) == 1 && json_string_length(literal) > 0) {
        return moe_regex_create_literal(json_string_value(literal), json_string_length(literal),
                                        error);
    }
    if (json_object_size(pattern) == 1 && json_string_length(regex) > 0) {
        return moe_regex_create(json_string_value(regex), json_string_length(regex), error);
    }
    moe_fail(error, MOE_BAD_MODEL, "pattern is not one non-empty String or Regex");
    return NULL;
}


void moe_regex_free(moe_regex_t *regex)
{
    if (regex != NULL) {
        pcre2_code_free(regex->code);
        free(regex);
    }
}


moe_matcher_t *moe_matcher_create(moe_error_t *error)
{
    moe_matcher_t *matcher = calloc(1, sizeof(*matcher));

    if (matcher != NULL) {
        matcher->data = pcre2_match_data_create(1, NULL);
        matcher->context = pcre2_match_context_create(NULL);
        matcher->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    }
    if (matcher == NULL || matcher->data == NULL || matcher->context == NULL
        || matcher->stack == NULL)
    {
        moe_fail(error, MOE_LIMIT, "out of memory for a regex match");
        moe_matcher_free(matcher);
        return NULL;
    }
    pcre2_set_match_limit(matcher->context, MATCH_LIMIT);
    pcre2_set_depth_limit(matcher->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(matcher->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return matcher;
}


void moe_matcher_free(moe_matcher_t *matcher)
{
    if (matcher != NULL) {
        pcre2_match_data_free(matcher->data);
        pcre2_match_context_free(matcher->context);
        pcre2_jit_stack_free(matcher->stack);
        free(matcher);
    }
}


int moe_regex_find(const moe_regex_t *regex, moe_matcher_t *matcher, const char *subject,
                   size_t size, size_t from, size_t *start, size_t *end, moe_error_t *error)
{
    const PCRE2_SIZE *range;
    PCRE2_UCHAR text[160];
    int rc;

    rc = pcre2_match(regex->code, (PCRE2_SPTR) subject, size, from, PCRE2_NO_UTF_CHECK,
                     matcher->data, matcher->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(regex->code, (PCRE2_SPTR) subject, size, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    if (rc < 0) {
        pcre2_get_error_message(rc, text, sizeof(text));
        return moe_fail(error, MOE_LIMIT, "text cannot be split into words: %s",
                        (const char *) text);
    }
    range = pcre2_get_ovector_pointer(matcher->data);
    if (range[1] < range[0] || range[0] < from) {
        return moe_fail(error, MOE_LIMIT, "text cannot be split into words: regex goes backwards");
    }
    *start = range[0];
    *end = range[1];
    return 1;
}
