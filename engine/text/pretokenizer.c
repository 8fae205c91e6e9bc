/*
 * All splitting components are one thing: a regex, what happens to its matches (the behaviour),
 * and whether matches and gaps are swapped.  Together with three rewriting steps they make a flat
 * list, whatever the nesting in the file; each step reads the pieces of the one before it.
 */

#include "engine/text/pretokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/component.h"
#include "engine/text/utf8.h"

#define STEPS_LIMIT 64u
#define TEXT_LIMIT ((size_t) 1 << 30)
#define CHUNK_CHARACTERS 400000u
#define CHUNK_RUN 25000u

static const char gpt2_regex[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Rust's \w, which Whitespace is defined with. */
static const char whitespace_regex[] =
    "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+"
    "|[^\\s\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+";

typedef enum {
    ISOLATED,
    REMOVED,
    CONTIGUOUS,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT
} behavior_t;

typedef struct step_s step_t;

typedef struct {
    moe_matcher_t *matcher;
    moe_error_t *error;
} run_t;

/* `first`: the piece starts where the whole input does. */
struct step_s {
    int (*apply)(const step_t *step, const run_t *run, const char *piece, size_t size, int first,
                 moe_pieces_t *out);
    moe_regex_t *regex;         /* split */
    behavior_t behavior;
    int invert;
    char blank[4];              /* Metaspace: the character that stands for a space */
    size_t blank_size;
    int prepend, prepend_first_only;
};

struct moe_pretokenizer_s {
    step_t steps[STEPS_LIMIT];
    unsigned n_steps;
};


void moe_pieces_free(moe_pieces_t *pieces)
{
    moe_buffer_free(&pieces->text);
    free(pieces->ends);
    pieces->ends = NULL;
    pieces->count = 0;
    pieces->capacity = 0;
}


/* Ends a piece at the end of the text so far. */
static int end_piece(moe_pieces_t *pieces, moe_error_t *error)
{
    if (pieces->count == pieces->capacity) {
        size_t capacity = pieces->capacity ? pieces->capacity * 2 : 64;
        size_t *ends = realloc(pieces->ends, capacity * sizeof(size_t));

        if (ends == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for %zu pieces of text", capacity);
        }
        pieces->ends = ends;
        pieces->capacity = capacity;
    }
    pieces->ends[pieces->count++] = pieces->text.size;
    return 0;
}


/* A new piece, or more of the last one. */
static int append_piece(moe_pieces_t *pieces, const char *data, size_t size, int joins_last,
                        moe_error_t *error)
{
    if (moe_buffer_append(&pieces->text, data, size, error) != 0) {
        return -1;
    }
    pieces->count -= (size_t) joins_last;
    return end_piece(pieces, error);
}


/* What happens to a match or gap after another, both of the same piece. */
static int joins_previous(behavior_t behavior, int is_match, int was_match)
{
    switch (behavior) {
    case CONTIGUOUS:
        return is_match == was_match;
    case MERGED_WITH_PREVIOUS:
        return is_match && !was_match;
    case MERGED_WITH_NEXT:
        return !is_match && was_match;
    default:
        return 0;
    }
}


static int split(const step_t *step, const run_t *run, const char *piece, size_t size, int first,
                 moe_pieces_t *out)
{
    size_t pieces_before = out->count, done = 0, from = 0, length;
    int was_match = 0, found = 1;

    while (done < size) {
        size_t borders[2] = { size, size };     /* where the gap ends, and the match behind it */

        found = found ? moe_regex_find(step->regex, run->matcher, piece, size, from, &borders[0],
                                       &borders[1], run->error)
                      : 0;
        if (found == -1) {
            return -1;
        }
        for (int i = 0; i < 2; i++) {
            int is_match = i ^ step->invert;

            if (borders[i] > done && !(step->behavior == REMOVED && is_match)) {
                int joins = out->count > pieces_before
                            && joins_previous(step->behavior, is_match, was_match);

                if (append_piece(out, piece + done, borders[i] - done, joins, run->error) != 0) {
                    return -1;
                }
                was_match = is_match;
            }
            done = borders[i];
        }
        from = done;
        if (borders[0] == borders[1] && done < size) {
            moe_utf8_decode(piece + done, &length);     /* an empty match: go on behind it */
            from += length;
        }
    }
    return 0;
}


/* Python's str.isspace. */
static int is_python_space(uint32_t code)
{
    return moe_is_space(code) || (code >= 0x1c && code <= 0x1f);
}


static int cut_chunks(const step_t *step, const run_t *run, const char *piece, size_t size,
                      int first, moe_pieces_t *out)
{
    size_t start = 0, n_characters = 0, run_length = 0, length;
    int was_space = 0;

    for (size_t i = 0; i < size; i += length) {
        int space = is_python_space(moe_utf8_decode(piece + i, &length));

        run_length = n_characters > 0 && space == was_space ? run_length + 1 : 1;
        if (n_characters == CHUNK_CHARACTERS || run_length > CHUNK_RUN) {
            if (append_piece(out, piece + start, i - start, 0, run->error) != 0) {
                return -1;
            }
            n_characters = n_characters == CHUNK_CHARACTERS ? 0 : n_characters;
            run_length = 1;
            start = i;
        }
        n_characters++;
        was_space = space;
    }
    return append_piece(out, piece + start, size - start, 0, run->error);
}


static int prepend_space(const step_t *step, const run_t *run, const char *piece, size_t size,
                         int first, moe_pieces_t *out)
{
    if (piece[0] != ' ' && moe_buffer_append(&out->text, " ", 1, run->error) != 0) {
        return -1;
    }
    return append_piece(out, piece, size, 0, run->error);
}


static int map_bytes(const step_t *step, const run_t *run, const char *piece, size_t size,
                     int first, moe_pieces_t *out)
{
    if (moe_buffer_reserve(&out->text, 2 * size, run->error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < size; i++) {
        out->text.size += moe_utf8_encode(moe_byte_to_character((unsigned char) piece[i]),
                                          out->text.data + out->text.size);
    }
    return end_piece(out, run->error);
}


static int replace_blanks(const step_t *step, const run_t *run, const char *piece, size_t size,
                          int first, moe_pieces_t *out)
{
    int starts_blank = piece[0] == ' '
                       || (size >= step->blank_size
                           && memcmp(piece, step->blank, step->blank_size) == 0);

    if (step->prepend && !starts_blank && (first || !step->prepend_first_only)
        && moe_buffer_append(&out->text, step->blank, step->blank_size, run->error) != 0)
    {
        return -1;
    }
    for (size_t i = 0; i < size;) {
        const char *space = memchr(piece + i, ' ', size - i);
        size_t end = space ? (size_t) (space - piece) : size;

        if (moe_buffer_append(&out->text, piece + i, end - i, run->error) != 0
            || (space && moe_buffer_append(&out->text, step->blank, step->blank_size,
                                           run->error) != 0))
        {
            return -1;
        }
        i = end + (space != NULL);
    }
    return end_piece(out, run->error);
}


const moe_pieces_t *moe_pretokenizer_split(const moe_pretokenizer_t *pretokenizer,
                                           moe_matcher_t *matcher, const char *text, size_t size,
                                           int first, moe_pieces_t workspace[2],
                                           moe_error_t *error)
{
    run_t run = { matcher, error };
    moe_pieces_t *in = &workspace[0], *out = &workspace[1];

    in->text.limit = out->text.limit = TEXT_LIMIT;
    in->text.size = in->count = 0;
    if (size > 0 && append_piece(in, text, size, 0, error) != 0) {
        return NULL;
    }
    for (unsigned i = 0; i < pretokenizer->n_steps; i++) {
        const step_t *step = &pretokenizer->steps[i];
        moe_pieces_t *swap = in;
        size_t start = 0;

        out->text.size = out->count = 0;
        for (size_t n = 0; n < in->count; n++) {
            if (step->apply(step, &run, in->text.data + start, in->ends[n] - start,
                            first && n == 0, out) != 0)
            {
                return NULL;
            }
            start = in->ends[n];
        }
        in = out;
        out = swap;
    }
    return in;
}


uint32_t moe_byte_to_character(unsigned char byte)
{
    if ((byte > 0x20 && byte < 0x7f) || (byte >= 0xa1 && byte != 0xad)) {
        return byte;
    }
    /* the 68 others, in order, from U+0100 */
    return 0x100 + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7fu + 0x21 : 0x43u);
}


int moe_character_to_byte(uint32_t code)
{
    if (code >= 0x100 && code <= 0x143) {
        code -= 0x100;
        return (int) (code <= 0x20 ? code : code == 0x43 ? 0xad : code - 0x21 + 0x7f);
    }
    return code < 0x100 && moe_byte_to_character((unsigned char) code) == code ? (int) code : -1;
}


static step_t *new_step(moe_pretokenizer_t *pretokenizer, moe_error_t *error)
{
    if (pretokenizer->n_steps == STEPS_LIMIT) {
        moe_fail(error, MOE_BAD_MODEL, "more than %u steps", STEPS_LIMIT);
        return NULL;
    }
    return &pretokenizer->steps[pretokenizer->n_steps++];
}


static int add_split(moe_pretokenizer_t *pretokenizer, moe_regex_t *regex, behavior_t behavior,
                     int invert, moe_error_t *error)
{
    step_t *step = regex ? new_step(pretokenizer, error) : NULL;

    if (step == NULL) {
        moe_regex_free(regex);
        return -1;
    }
    step->apply = split;
    step->regex = regex;
    step->behavior = behavior;
    step->invert = invert;
    return 0;
}


static int add_regex(moe_pretokenizer_t *pretokenizer, const char *pattern, behavior_t behavior,
                     int invert, moe_error_t *error)
{
    return add_split(pretokenizer, moe_regex_create(pattern, strlen(pattern), error), behavior,
                     invert, error);
}


static int read_behavior(const json_t *json, behavior_t *behavior, moe_error_t *error)
{
    static const char *const names[] = {
        "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"
    };
    size_t size;
    const char *name = moe_json_string(json, "behavior", &size, error);

    if (name == NULL) {
        return -1;
    }
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *behavior = (behavior_t) i;
            return 0;
        }
    }
    return moe_fail(error, MOE_BAD_MODEL, "unknown behavior \"%.60s\"", name);
}


static int read_split(moe_pretokenizer_t *pretokenizer, const json_t *json, moe_error_t *error)
{
    moe_regex_t *regex;
    behavior_t behavior;
    int invert;

    if (read_behavior(json, &behavior, error) != 0
        || moe_json_flag(json, "invert", 0, &invert, error) != 0)
    {
        return -1;
    }
    regex = moe_regex_from_json(json_object_get(json, "pattern"), error);
    return regex ? add_split(pretokenizer, regex, behavior, invert, error) : -1;
}


static int read_byte_level(moe_pretokenizer_t *pretokenizer, const json_t *json,
                           moe_error_t *error)
{
    int add_prefix_space, use_regex;
    step_t *step;

    if (moe_json_flag(json, "add_prefix_space", 1, &add_prefix_space, error) != 0
        || moe_json_flag(json, "use_regex", 1, &use_regex, error) != 0)
    {
        return -1;
    }
    if (add_prefix_space) {
        step = new_step(pretokenizer, error);
        if (step == NULL) {
            return -1;
        }
        step->apply = prepend_space;
    }
    if (use_regex && add_regex(pretokenizer, gpt2_regex, ISOLATED, 0, error) != 0) {
        return -1;
    }
    step = new_step(pretokenizer, error);
    if (step == NULL) {
        return -1;
    }
    step->apply = map_bytes;
    return 0;
}


static int read_chunks(moe_pretokenizer_t *pretokenizer, const json_t *json, moe_error_t *error)
{
    step_t *step = new_step(pretokenizer, error);

    if (step == NULL) {
        return -1;
    }
    step->apply = cut_chunks;
    return 0;
}


static int read_digits(moe_pretokenizer_t *pretokenizer, const json_t *json, moe_error_t *error)
{
    int individual;

    if (moe_json_flag(json, "individual_digits", 0, &individual, error) != 0) {
        return -1;
    }
    return add_regex(pretokenizer, "\\p{N}", individual ? ISOLATED : CONTIGUOUS, 0, error);
}


static int read_prepend_scheme(step_t *step, const json_t *json, moe_error_t *error)
{
    const json_t *scheme = json_object_get(json, "prepend_scheme");
    const char *name = json_string_value(scheme);
    int add_prefix_space;

    if (moe_json_flag(json, "add_prefix_space", 1, &add_prefix_space, error) != 0) {
        return -1;
    }
    if (scheme == NULL) {
        name = add_prefix_space ? "always" : "never";
    }
    if (name == NULL || (strcmp(name, "always") != 0 && strcmp(name, "first") != 0
                         && strcmp(name, "never") != 0))
    {
        return moe_fail(error, MOE_BAD_MODEL, "unknown prepend_scheme");
    }
    step->prepend = strcmp(name, "never") != 0;
    step->prepend_first_only = strcmp(name, "first") == 0;
    return 0;
}


static int read_metaspace(moe_pretokenizer_t *pretokenizer, const json_t *json,
                          moe_error_t *error)
{
    size_t size, length;
    const char *blank = moe_json_string(json, "replacement", &size, error);
    step_t *step;
    int split_words;

    if (blank == NULL || moe_json_flag(json, "split", 1, &split_words, error) != 0) {
        return -1;
    }
    if (size == 0 || (moe_utf8_decode(blank, &length), length != size)) {
        return moe_fail(error, MOE_BAD_MODEL, "\"replacement\" is not one character");
    }
    step = new_step(pretokenizer, error);
    if (step == NULL || read_prepend_scheme(step, json, error) != 0) {
        return -1;
    }
    step->apply = replace_blanks;
    memcpy(step->blank, blank, size);
    step->blank_size = size;
    if (!split_words) {
        return 0;
    }
    return add_split(pretokenizer, moe_regex_create_literal(blank, size, error),
                     MERGED_WITH_NEXT, 0, error);
}


static int read_whitespace(moe_pretokenizer_t *pretokenizer, const json_t *json,
                           moe_error_t *error)
{
    return add_regex(pretokenizer, whitespace_regex, REMOVED, 1, error);
}


static int read_whitespace_split(moe_pretokenizer_t *pretokenizer, const json_t *json,
                                 moe_error_t *error)
{
    return add_regex(pretokenizer, "\\s", REMOVED, 0, error);
}


static int read_punctuation(moe_pretokenizer_t *pretokenizer, const json_t *json,
                            moe_error_t *error)
{
    behavior_t behavior = ISOLATED;

    if (json_object_get(json, "behavior") != NULL && read_behavior(json, &behavior, error) != 0) {
        return -1;
    }
    return add_regex(pretokenizer, "[\\p{P}$+<=>^`|~]", behavior, 0, error);
}


static const struct {
    const char *type;
    int (*read)(moe_pretokenizer_t *pretokenizer, const json_t *json, moe_error_t *error);
} components[] = {
    { "Split", read_split },
    { "ByteLevel", read_byte_level },
    { "Digits", read_digits },
    { MOE_KIMI_CHUNKS, read_chunks },
    { "Metaspace", read_metaspace },
    { "Whitespace", read_whitespace },
    { "WhitespaceSplit", read_whitespace_split },
    { "Punctuation", read_punctuation },
};


static int read_component(void *owner, const char *type, const json_t *json, moe_error_t *error)
{
    moe_pretokenizer_t *pretokenizer = owner;

    for (size_t i = 0; i < sizeof(components) / sizeof(components[0]); i++) {
        if (strcmp(type, components[i].type) == 0) {
            return components[i].read(pretokenizer, json, error) == 0
                   ? 0 : moe_fail_in(error, "%s", type);
        }
    }
    return moe_fail(error, MOE_BAD_MODEL, "unknown type \"%.60s\"", type);
}


moe_pretokenizer_t *moe_pretokenizer_create(const json_t *json, moe_error_t *error)
{
    moe_pretokenizer_t *pretokenizer = calloc(1, sizeof(*pretokenizer));

    if (pretokenizer == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a pre-tokenizer");
        return NULL;
    }
    if (json != NULL && !json_is_null(json)
        && moe_component_walk(json, "pretokenizers", read_component, pretokenizer, error) != 0)
    {
        moe_pretokenizer_free(pretokenizer);
        return NULL;
    }
    return pretokenizer;
}


void moe_pretokenizer_free(moe_pretokenizer_t *pretokenizer)
{
    if (pretokenizer != NULL) {
        for (unsigned i = 0; i < pretokenizer->n_steps; i++) {
            moe_regex_free(pretokenizer->steps[i].regex);
        }
        free(pretokenizer);
    }
}
