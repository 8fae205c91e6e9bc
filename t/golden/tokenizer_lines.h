/*
 * Texts for tokenizers, made from a seed and the tables of tokenizers/lines.json: pieces of many
 * languages and of code, emoji, control characters, runs, noise.  Characters are those of Unicode
 * 13 (libraries that are compared may know other versions of Unicode).  tokenizers.py makes the
 * same texts; the arithmetic is of integers only.
 */

#ifndef MOE_TOKENIZER_LINES_H
#define MOE_TOKENIZER_LINES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <jansson.h>

#include "engine/text/utf8.h"

#define LINE_LIMIT 8192u

typedef struct {
    const json_t *words, *spaces, *ranges;
    uint64_t state;
    char text[LINE_LIMIT];
    size_t size;
} line_t;


/* splitmix64 */
static inline uint32_t line_random(line_t *line, uint32_t below)
{
    uint64_t z = line->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t) ((z ^ z >> 31) >> 32) % below;
}


/* What does not fit is left out whole. */
static inline void line_add(line_t *line, const char *text, size_t size)
{
    if (size <= LINE_LIMIT - line->size) {
        memcpy(line->text + line->size, text, size);
        line->size += size;
    }
}


static inline void line_add_one_of(line_t *line, const json_t *texts)
{
    const json_t *text = json_array_get(texts,
                                        line_random(line, (uint32_t) json_array_size(texts)));

    line_add(line, json_string_value(text), json_string_length(text));
}


static inline void line_add_character(line_t *line, uint32_t first, uint32_t last)
{
    char text[4];

    line_add(line, text, moe_utf8_encode(first + line_random(line, last - first + 1), text));
}


/* Several characters of one range. */
static inline void line_add_noise(line_t *line)
{
    const json_t *range = json_array_get(line->ranges,
                                         line_random(line,
                                                     (uint32_t) json_array_size(line->ranges)));
    uint32_t first = (uint32_t) json_integer_value(json_array_get(range, 0));
    uint32_t last = (uint32_t) json_integer_value(json_array_get(range, 1));

    for (uint32_t n = 1 + line_random(line, 8); n > 0; n--) {
        line_add_character(line, first, last);
    }
}


/* A word, a blank or a character many times. */
static inline void line_add_run(line_t *line)
{
    uint32_t n = 2 + line_random(line, line_random(line, 8) == 0 ? 400 : 20);
    size_t start = line->size, size;

    switch (line_random(line, 3)) {
    case 0:
        line_add_one_of(line, line->words);
        break;
    case 1:
        line_add_one_of(line, line->spaces);
        break;
    default:
        line_add_character(line, 0x20, 0x7e);
    }
    size = line->size - start;
    for (; n > 1; n--) {
        line_add(line, line->text + start, size);
    }
}


/* A word that is thousands of letters long. */
static inline void line_add_long_word(line_t *line)
{
    for (uint32_t n = 500 + line_random(line, 3000); n > 0; n--) {
        line_add_character(line, 'a', 'e');
    }
}


static inline void line_add_part(line_t *line)
{
    uint32_t kind = line_random(line, 20);

    if (kind < 12) {
        line_add_one_of(line, line->words);
    } else if (kind < 14) {
        line_add_noise(line);
    } else if (kind < 15) {
        line_add_run(line);
    } else if (kind < 17) {
        for (uint32_t digits = 1 + line_random(line, 12); digits > 0; digits--) {
            line_add_character(line, '0', '9');
        }
    }
    if (line_random(line, 3) > 0) {
        line_add_one_of(line, line->spaces);
    }
}


/* Text number n. */
static inline void line_make(line_t *line, uint64_t n)
{
    line->size = 0;
    line->state = n * 0xd1342543de82ef95u;
    if (line_random(line, 200) == 0) {
        line_add_long_word(line);
    }
    for (uint32_t parts = 1 + line_random(line, line_random(line, 10) == 0 ? 60 : 10); parts > 0;
         parts--)
    {
        line_add_part(line);
    }
}

#endif
