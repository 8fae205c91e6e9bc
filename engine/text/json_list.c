/* The grammar is RFC 8259's.  Strings without escapes, nearly all, are not copied. */

#include "engine/text/json_list.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/text.h"
#include "engine/text/utf8.h"

#define NUMBER_LIMIT 64u


static int fail(moe_json_list_t *list, const char *what)
{
    size_t left = (size_t) (list->end - list->p);

    return moe_fail(list->error, MOE_BAD_MODEL, "%s at \"%.*s\"", what,
                    (int) (left < 20 ? left : 20), list->p);
}


void moe_json_list_init(moe_json_list_t *list, const char *text, size_t size, moe_error_t *error)
{
    memset(list, 0, sizeof(*list));
    list->p = text;
    list->end = text + size;
    list->error = error;
}


void moe_json_list_free(moe_json_list_t *list)
{
    moe_buffer_free(&list->unescaped);
}


/* The next character that is no blank; NUL at the end. */
static char next(moe_json_list_t *list)
{
    while (list->p < list->end
           && (*list->p == ' ' || *list->p == '\n' || *list->p == '\r' || *list->p == '\t'))
    {
        list->p++;
    }
    return list->p < list->end ? *list->p : '\0';
}


int moe_json_list_at(moe_json_list_t *list, char open)
{
    return next(list) == open;
}


int moe_json_list_item(moe_json_list_t *list, const char *brackets, size_t n)
{
    if (n == 0) {
        if (next(list) != brackets[0]) {
            return fail(list, brackets[0] == '[' ? "a list is expected" : "an object is expected");
        }
        list->p++;
    }
    if (next(list) == brackets[1]) {
        list->p++;
        return 0;
    }
    if (n > 0) {
        if (next(list) != ',') {
            return fail(list, "a comma is expected");
        }
        list->p++;
    }
    return 1;
}


static int hex_digits(const moe_json_list_t *list, uint32_t *code)
{
    *code = 0;
    if (list->end - list->p < 4) {
        return -1;
    }
    for (int i = 0; i < 4; i++) {
        char c = list->p[i], low = (char) (c | 0x20);

        if (c >= '0' && c <= '9') {
            *code = *code << 4 | (uint32_t) (c - '0');
        } else if (low >= 'a' && low <= 'f') {
            *code = *code << 4 | (uint32_t) (low - 'a' + 10);
        } else {
            return -1;
        }
    }
    return 0;
}


/* \uXXXX, or two of them for a character beyond U+FFFF; list->p is behind the u. */
static int read_code(moe_json_list_t *list, uint32_t *code)
{
    uint32_t low;

    if (hex_digits(list, code) != 0) {
        return fail(list, "\\u without four digits");
    }
    list->p += 4;
    if (*code < 0xd800 || *code > 0xdfff) {
        return 0;
    }
    if (*code > 0xdbff || list->end - list->p < 6 || list->p[0] != '\\' || list->p[1] != 'u') {
        return fail(list, "half of a surrogate pair");
    }
    list->p += 2;
    if (hex_digits(list, &low) != 0 || low < 0xdc00 || low > 0xdfff) {
        return fail(list, "half of a surrogate pair");
    }
    list->p += 4;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return 0;
}


/* Appends what an escape stands for; list->p is behind the backslash. */
static int unescape(moe_json_list_t *list)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char letter = list->p < list->end ? *list->p++ : '\0', text[4];
    const char *known = letter != '\0' ? strchr(letters, letter) : NULL;
    uint32_t code;

    if (known != NULL) {
        return moe_buffer_append(&list->unescaped, &meanings[known - letters], 1, list->error);
    }
    if (letter != 'u') {
        return fail(list, "an unknown escape");
    }
    if (read_code(list, &code) != 0) {
        return -1;
    }
    return moe_buffer_append(&list->unescaped, text, moe_utf8_encode(code, text), list->error);
}


int moe_json_list_string(moe_json_list_t *list, const char **text, size_t *size)
{
    const char *start;
    int escaped = 0;

    if (next(list) != '"') {
        return fail(list, "a string is expected");
    }
    list->unescaped.size = 0;
    start = ++list->p;
    while (list->p < list->end && *list->p != '"') {
        if ((unsigned char) *list->p < 0x20) {
            return fail(list, "a control character in a string");
        }
        if (*list->p++ != '\\') {
            continue;
        }
        escaped = 1;
        if (moe_buffer_append(&list->unescaped, start, (size_t) (list->p - 1 - start), list->error)
                != 0
            || unescape(list) != 0)
        {
            return -1;
        }
        start = list->p;
    }
    if (list->p == list->end) {
        return fail(list, "a string without an end");
    }
    *text = start;
    *size = (size_t) (list->p++ - start);
    if (escaped) {
        if (moe_buffer_append(&list->unescaped, start, *size, list->error) != 0) {
            return -1;
        }
        *text = list->unescaped.data;
        *size = list->unescaped.size;
    }
    return moe_utf8_valid_prefix(*text, *size) == *size ? 0 : fail(list, "a string not in UTF-8");
}


int moe_json_list_key(moe_json_list_t *list, const char **text, size_t *size)
{
    if (moe_json_list_string(list, text, size) != 0) {
        return -1;
    }
    if (next(list) != ':') {
        return fail(list, "a colon is expected");
    }
    list->p++;
    return 0;
}


int moe_json_list_number(moe_json_list_t *list, double *number)
{
    char text[NUMBER_LIMIT + 1], *stop;
    size_t size = 0;

    (void) next(list);
    while (list->p < list->end && size < NUMBER_LIMIT && *list->p != '\0'
           && strchr("+-.0123456789eE", *list->p) != NULL)
    {
        text[size++] = *list->p++;
    }
    text[size] = '\0';
    *number = strtod(text, &stop);
    if (size == 0 || *stop != '\0' || text[0] == '+' || text[0] == '.'
        || text[size - 1] == '.')
    {
        return fail(list, "a number is expected");
    }
    return 0;
}


int moe_json_list_end(moe_json_list_t *list)
{
    (void) next(list);
    return list->p == list->end ? 0 : fail(list, "something follows the end");
}
