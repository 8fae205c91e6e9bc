/*
 * Strings with provenance: construction, slices, searches.  Positions are bytes unless named
 * character positions; all strings are valid UTF-8 and all cuts fall on character borders.
 */

#ifndef MOE_TEMPLATE_STRING_H
#define MOE_TEMPLATE_STRING_H

#include "engine/text/template_value.h"

/* A view of memory that outlives the job. */
const moe_string_t *moe_string_view(moe_job_t *job, const char *data, size_t size, int trusted);
/* A copy of a C string, untrusted: what the evaluator itself writes (numbers, names). */
const moe_string_t *moe_string_copy(moe_job_t *job, const char *text);
const moe_string_t *moe_string_slice(moe_job_t *job, const moe_string_t *string, size_t start,
                                     size_t end);
int moe_string_equal(const moe_string_t *a, const moe_string_t *b);
int moe_string_is(const moe_string_t *string, const char *text);
int moe_string_compare(const moe_string_t *a, const moe_string_t *b);
/* First occurrence at or after `from`, last occurrence; SIZE_MAX when there is none. */
size_t moe_string_find(const moe_string_t *string, const moe_string_t *needle, size_t from);
/* Byte position of a character position (0..length). */
size_t moe_string_offset(const moe_string_t *string, size_t character);
/* Bytes of the character at byte position `at`, and its code point. */
size_t moe_string_character(const moe_string_t *string, size_t at, uint32_t *code_point);

enum { MOE_TRIM_START = 1, MOE_TRIM_END = 2 };

/* Without leading or trailing characters of `set` (NULL: whitespace as Python sees it). */
const moe_string_t *moe_string_trim(moe_job_t *job, const moe_string_t *string,
                                    const moe_string_t *set, int ends);
int moe_is_blank(uint32_t code_point);
/* Size of `data` without the whitespace at its end. */
size_t moe_trim_end(const char *data, size_t size);

typedef struct {
    moe_job_t *job;
    const char *data;           /* "" as long as nothing was added, then `room` */
    char *room;
    uint8_t *marks;
    size_t size, capacity;
    int mixed;                  /* 0 as long as all bytes are of one kind */
} moe_builder_t;

void moe_builder_start(moe_builder_t *builder, moe_job_t *job);
int moe_builder_add(moe_builder_t *builder, const moe_string_t *string);
int moe_builder_add_slice(moe_builder_t *builder, const moe_string_t *string, size_t start,
                          size_t end);
int moe_builder_add_bytes(moe_builder_t *builder, const char *data, size_t size, int trusted);
int moe_builder_add_text(moe_builder_t *builder, const char *text);
int moe_builder_add_character(moe_builder_t *builder, uint32_t code_point, int trusted);
const moe_string_t *moe_builder_finish(moe_builder_t *builder);
/* 1 when byte `at` of the string is trusted. */
int moe_string_trusted_at(const moe_string_t *string, size_t at);

/* str(value) and repr(value) of Python. */
const moe_string_t *moe_value_string(moe_job_t *job, const moe_value_t *value);
int moe_builder_add_repr(moe_builder_t *builder, const moe_value_t *value);

typedef struct {
    const moe_string_t *indent;         /* NULL: all on one line */
    const moe_string_t *item_separator, *key_separator;
    int ensure_ascii, sort_keys;
} moe_json_style_t;

/* json.dumps(value). */
int moe_builder_add_json(moe_builder_t *builder, const moe_value_t *value,
                         const moe_json_style_t *style);

#endif
