/*
 * UTF-8, character by character: what detokenizer, normaliser and pre-tokeniser share.  Validity
 * is Unicode's (no surrogates, no overlong forms, nothing above U+10FFFF).
 */

#ifndef MOE_UTF8_H
#define MOE_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    MOE_UTF8_VALID,             /* a character */
    MOE_UTF8_INVALID,           /* bytes that can never become one: a maximal subpart */
    MOE_UTF8_INCOMPLETE         /* the beginning of one, cut off by the end of the data */
} moe_utf8_kind_t;

/* What data[0..size) (size > 0) starts with, and how many bytes that is. */
moe_utf8_kind_t moe_utf8_classify(const char *data, size_t size, size_t *length);

/* The character at `data`, which must be valid, and its length. */
uint32_t moe_utf8_decode(const char *data, size_t *length);

/* Writes a character (1..4 bytes); returns its length. */
size_t moe_utf8_encode(uint32_t code, char *data);

/* 1 for the characters of Unicode's White_Space. */
int moe_is_space(uint32_t code);

/* 1 for the characters of words: letters, marks, decimal digits, connectors, joiners (UTS 18). */
int moe_is_word(uint32_t code);

#endif
