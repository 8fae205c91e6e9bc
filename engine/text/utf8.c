/*
 * Table 3-7 of the Unicode Standard: the first byte gives the length, and only the second byte has
 * a range of its own.  So two bytes decide whether a sequence can still become a character.
 */

#include "engine/text/utf8.h"

#include <utf8proc.h>

#include "engine/text/text.h"


moe_utf8_kind_t moe_utf8_classify(const char *data, size_t size, size_t *length)
{
    const unsigned char *p = (const unsigned char *) data;
    unsigned low = 0x80, high = 0xbf;
    size_t needed;

    *length = 1;
    if (p[0] < 0x80) {
        return MOE_UTF8_VALID;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return MOE_UTF8_INVALID;
    }
    needed = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    /* only the second byte has a narrower range: overlong forms, surrogates, above U+10FFFF */
    if (p[0] == 0xe0) {
        low = 0xa0;
    } else if (p[0] == 0xed) {
        high = 0x9f;
    } else if (p[0] == 0xf0) {
        low = 0x90;
    } else if (p[0] == 0xf4) {
        high = 0x8f;
    }
    for (; *length < needed; ++*length) {
        if (*length == size) {
            return MOE_UTF8_INCOMPLETE;
        }
        if (p[*length] < low || p[*length] > high) {
            return MOE_UTF8_INVALID;
        }
        low = 0x80;
        high = 0xbf;
    }
    return MOE_UTF8_VALID;
}


uint32_t moe_utf8_decode(const char *data, size_t *length)
{
    const unsigned char *p = (const unsigned char *) data;

    if (p[0] < 0x80) {
        *length = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *length = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *length = 3;
        return (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *length = 4;
    return (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}


size_t moe_utf8_encode(uint32_t code, char *data)
{
    if (code < 0x80) {
        data[0] = (char) code;
        return 1;
    }
    if (code < 0x800) {
        data[0] = (char) (0xc0 | code >> 6);
        data[1] = (char) (0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        data[0] = (char) (0xe0 | code >> 12);
        data[1] = (char) (0x80 | (code >> 6 & 0x3f));
        data[2] = (char) (0x80 | (code & 0x3f));
        return 3;
    }
    data[0] = (char) (0xf0 | code >> 18);
    data[1] = (char) (0x80 | (code >> 12 & 0x3f));
    data[2] = (char) (0x80 | (code >> 6 & 0x3f));
    data[3] = (char) (0x80 | (code & 0x3f));
    return 4;
}


int moe_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0
           || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028
           || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}


int moe_is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t) code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    default:
        /* the joiners, and the circled letters that Unicode calls alphabetic */
        return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9)
               || (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169)
               || (code >= 0x1f170 && code <= 0x1f189);
    }
}


size_t moe_utf8_valid_prefix(const char *data, size_t size)
{
    size_t n = 0, length;

    while (n < size) {
        if ((unsigned char) data[n] < 0x80) {
            n++;
        } else if (moe_utf8_classify(data + n, size - n, &length) == MOE_UTF8_VALID) {
            n += length;
        } else {
            break;
        }
    }
    return n;
}
