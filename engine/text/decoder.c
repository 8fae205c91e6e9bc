/*
 * A flat list of steps over the bytes of one token.  Components that could only be applied to the
 * whole text (a regex after Fuse, stripping at the end) are refused: text is streamed.
 */

#include "engine/text/decoder.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/component.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/utf8.h"

#define STEPS_LIMIT 64u
#define PIECE_LIMIT ((size_t) 16 << 20)

typedef struct step_s step_t;

struct step_s {
    int (*apply)(const step_t *step, moe_matcher_t *matcher, int added, const moe_buffer_t *in,
                 moe_buffer_t *out, moe_error_t *error);
    moe_regex_t *regex;         /* Replace */
    char *content;
    size_t content_size;
};

struct moe_decoder_s {
    step_t steps[STEPS_LIMIT];
    unsigned n_steps;
    int fused;                  /* what follows sees the whole text, not single tokens */
    int strips_space;
};


static int apply_byte_level(const step_t *step, moe_matcher_t *matcher, int added,
                            const moe_buffer_t *in, moe_buffer_t *out, moe_error_t *error)
{
    size_t length;

    for (size_t i = 0; i < in->size && !added; i += length) {
        int byte = moe_character_to_byte(moe_utf8_decode(in->data + i, &length));
        char c = (char) byte;

        if (byte == -1) {
            added = 1;                  /* not in the alphabet: Hugging Face keeps it as it is */
            break;
        }
        if (moe_buffer_append(out, &c, 1, error) != 0) {
            return -1;
        }
    }
    if (added) {
        out->size = 0;
        return moe_buffer_append(out, in->data, in->size, error);
    }
    return 0;
}


static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}


static int apply_byte_fallback(const step_t *step, moe_matcher_t *matcher, int added,
                               const moe_buffer_t *in, moe_buffer_t *out, moe_error_t *error)
{
    const char *text = in->data;

    if (in->size == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>'
        && hex_digit(text[3]) != -1 && hex_digit(text[4]) != -1)
    {
        char byte = (char) (hex_digit(text[3]) * 16 + hex_digit(text[4]));

        return moe_buffer_append(out, &byte, 1, error);
    }
    return moe_buffer_append(out, in->data, in->size, error);
}


static int apply_replace(const step_t *step, moe_matcher_t *matcher, int added,
                         const moe_buffer_t *in, moe_buffer_t *out, moe_error_t *error)
{
    size_t done = 0, start, end;
    int found = 1;

    while (done < in->size) {
        found = moe_regex_find(step->regex, matcher, in->data, in->size, done, &start, &end,
                               error);
        if (found == -1) {
            return -1;
        }
        if (!found) {
            break;
        }
        if (moe_buffer_append(out, in->data + done, start - done, error) != 0
            || moe_buffer_append(out, step->content, step->content_size, error) != 0)
        {
            return -1;
        }
        done = end;
    }
    return moe_buffer_append(out, in->data + done, in->size - done, error);
}


int moe_decoder_apply(const moe_decoder_t *decoder, moe_matcher_t *matcher, int added,
                      moe_buffer_t *piece, moe_error_t *error)
{
    for (unsigned i = 0; i < decoder->n_steps && piece->size > 0; i++) {
        const step_t *step = &decoder->steps[i];
        moe_buffer_t out = { .limit = PIECE_LIMIT };

        if (step->apply(step, matcher, added, piece, &out, error) != 0) {
            moe_buffer_free(&out);
            return -1;
        }
        moe_buffer_free(piece);
        *piece = out;
    }
    return 0;
}


int moe_decoder_strips_space(const moe_decoder_t *decoder)
{
    return decoder->strips_space;
}


static step_t *new_step(moe_decoder_t *decoder, moe_error_t *error)
{
    if (decoder->n_steps == STEPS_LIMIT) {
        moe_fail(error, MOE_BAD_MODEL, "more than %u steps", STEPS_LIMIT);
        return NULL;
    }
    return &decoder->steps[decoder->n_steps++];
}


static int add_replace(moe_decoder_t *decoder, moe_regex_t *regex, const char *content,
                       size_t size, moe_error_t *error)
{
    step_t *step = regex ? new_step(decoder, error) : NULL;

    if (step == NULL) {
        moe_regex_free(regex);
        return -1;
    }
    step->apply = apply_replace;
    step->regex = regex;
    step->content = malloc(size + 1);
    if (step->content == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for a decoder");
    }
    memcpy(step->content, content, size);
    step->content_size = size;
    return 0;
}


static int read_byte_level(moe_decoder_t *decoder, const json_t *json, moe_error_t *error)
{
    step_t *step = new_step(decoder, error);

    if (step == NULL) {
        return -1;
    }
    step->apply = apply_byte_level;
    decoder->fused = 1;
    return 0;
}


static int read_byte_fallback(moe_decoder_t *decoder, const json_t *json, moe_error_t *error)
{
    step_t *step = new_step(decoder, error);

    if (step == NULL) {
        return -1;
    }
    step->apply = apply_byte_fallback;
    return 0;
}


static int read_fuse(moe_decoder_t *decoder, const json_t *json, moe_error_t *error)
{
    decoder->fused = 1;
    return 0;
}


/* Only a single character is the same to replace in tokens as in the whole text. */
static int read_replace(moe_decoder_t *decoder, const json_t *json, moe_error_t *error)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *literal = json_object_get(pattern, "String");
    size_t size, length = 0;
    const char *content = moe_json_string(json, "content", &size, error);

    if (content == NULL) {
        return -1;
    }
    if (json_string_length(literal) > 0) {
        moe_utf8_decode(json_string_value(literal), &length);
    }
    if (length == 0 || (decoder->fused && length != json_string_length(literal))) {
        return moe_fail(error, MOE_BAD_MODEL, "pattern is not supported");
    }
    return add_replace(decoder, moe_regex_from_json(pattern, error), content, size, error);
}


static int read_strip(moe_decoder_t *decoder, const json_t *json, moe_error_t *error)
{
    const json_t *start = json_object_get(json, "start"), *stop = json_object_get(json, "stop");
    size_t size;
    const char *content = moe_json_string(json, "content", &size, error);

    if (content == NULL) {
        return -1;
    }
    if (!decoder->fused || size != 1 || content[0] != ' ' || json_integer_value(stop) != 0
        || json_integer_value(start) < 0 || json_integer_value(start) > 1)
    {
        return moe_fail(error, MOE_BAD_MODEL, "only one space at the start of a fused text can be"
                        " stripped");
    }
    decoder->strips_space |= json_integer_value(start) == 1;
    return 0;
}


static int read_metaspace(moe_decoder_t *decoder, const json_t *json, moe_error_t *error)
{
    const json_t *scheme = json_object_get(json, "prepend_scheme");
    size_t size, length;
    const char *blank = moe_json_string(json, "replacement", &size, error);
    int add_prefix_space;

    if (blank == NULL
        || moe_json_flag(json, "add_prefix_space", 1, &add_prefix_space, error) != 0)
    {
        return -1;
    }
    if (size == 0 || (moe_utf8_decode(blank, &length), length != size)) {
        return moe_fail(error, MOE_BAD_MODEL, "\"replacement\" is not one character");
    }
    decoder->strips_space |= json_is_string(scheme)
                             ? strcmp(json_string_value(scheme), "never") != 0
                             : add_prefix_space;
    return add_replace(decoder, moe_regex_create_literal(blank, size, error), " ", 1, error);
}


static const struct {
    const char *type;
    int (*read)(moe_decoder_t *decoder, const json_t *json, moe_error_t *error);
} components[] = {
    { "ByteLevel", read_byte_level },
    { "ByteFallback", read_byte_fallback },
    { "Replace", read_replace },
    { "Fuse", read_fuse },
    { "Strip", read_strip },
    { "Metaspace", read_metaspace },
};


static int read_component(void *owner, const char *type, const json_t *json, moe_error_t *error)
{
    moe_decoder_t *decoder = owner;

    for (size_t i = 0; i < sizeof(components) / sizeof(components[0]); i++) {
        if (strcmp(type, components[i].type) == 0) {
            return components[i].read(decoder, json, error) == 0
                   ? 0 : moe_fail_in(error, "%s", type);
        }
    }
    return moe_fail(error, MOE_BAD_MODEL, "unknown type \"%.60s\"", type);
}


moe_decoder_t *moe_decoder_create(const json_t *json, moe_error_t *error)
{
    moe_decoder_t *decoder = calloc(1, sizeof(*decoder));

    if (decoder == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a decoder");
        return NULL;
    }
    /* without one Hugging Face joins tokens with blanks, which no model served wants */
    if (json == NULL || json_is_null(json)) {
        moe_fail(error, MOE_BAD_MODEL, "missing");
    } else if (moe_component_walk(json, "decoders", read_component, decoder, error) == 0) {
        return decoder;
    }
    moe_decoder_free(decoder);
    return NULL;
}


void moe_decoder_free(moe_decoder_t *decoder)
{
    if (decoder != NULL) {
        for (unsigned i = 0; i < decoder->n_steps; i++) {
            moe_regex_free(decoder->steps[i].regex);
            free(decoder->steps[i].content);
        }
        free(decoder);
    }
}
