/*
 * How families write calls of tools.  A style knows the markers around a call; between them it gets
 * a whole text and says which calls that is.
 */

#ifndef MOE_CALL_H
#define MOE_CALL_H

#include <jansson.h>

#include "engine/core/delta.h"

#define MOE_CALL_MARKERS_LIMIT 9u
#define MOE_CALL_NAME_LIMIT 256u            /* bytes */
#define MOE_CALL_BYTES_LIMIT (1u << 20)     /* of all that is between its markers */

/* A marker inside a text that was pushed: this byte and 0x80 + its index. */
#define MOE_MARK 0xffu
#define MOE_MARK_INDEX 0x80u

typedef struct {
    const char *text;
    uint32_t size;              /* 0: there is no such marker */
    uint32_t id;                /* the added token that it is, or MOE_NO_TOKEN: it is spelt out */
    int special;
    uint8_t index;
} moe_marker_t;

/* What came between two markers of a style. */
typedef struct {
    const char *data;
    size_t size;
    int closed;                 /* 0: the answer ended before the second marker */
    const moe_marker_t *markers;        /* the style's, in its order */
    const json_t *schemas;      /* moe_call_schemas, or NULL */
    uint64_t *next_number;      /* for ids that count */
    moe_deltas_t *calls;        /* to be added to; ids may be empty */
    moe_buffer_t *scratch;
    moe_error_t *error;
} moe_call_text_t;

typedef struct {
    const char *name;
    const char *sign;           /* what only chat templates of this style contain */
    const char *markers[MOE_CALL_MARKERS_LIMIT + 1];    /* first, last ("": none), its own */
    unsigned between;           /* bits of those that stand before, between and after calls */
    int json;                   /* what is between is, or ends with, JSON: its strings may contain
                                 * the spelt-out last marker; without one, its end ends the call */
    /* 1 with all calls added; 0 when this is none; -1 with MOE_LIMIT. */
    int (*parse)(const moe_call_text_t *text);
} moe_call_style_t;

extern const moe_call_style_t moe_call_hermes, moe_call_mistral, moe_call_deepseek, moe_call_kimi;
extern const moe_call_style_t moe_call_qwen3_coder, moe_call_minimax, moe_call_glm, moe_call_hy3;

/* For styles. */

moe_string_t moe_call_trim(const char *data, size_t size);

/* Where marker `i` of the style is in the text at or behind `from`, and where it ends; SIZE_MAX
 * when it is not. */
size_t moe_call_find(const moe_call_text_t *text, size_t from, unsigned i, size_t *end);

/* Adds a call if it has a name and its arguments are an object, nothing or null (both: {}), or a
 * string that holds an object.  As moe_call_style_t.parse. */
int moe_call_add(const moe_call_text_t *text, moe_string_t id, moe_string_t name,
                 moe_string_t arguments);

/* What the request's `tools` say of arguments: name of the tool -> its properties.  New reference;
 * NULL with MOE_INVALID or MOE_LIMIT. */
json_t *moe_call_schemas(moe_string_t tools, moe_error_t *error);

/* Any JSON value without duplicate keys; NULL when it is none. */
json_t *moe_call_json(moe_string_t text);

/* Appends the value of an argument given as text: as the tool's schema wants it, where it tells. */
int moe_call_value(const moe_call_text_t *text, moe_string_t tool, moe_string_t parameter,
                   moe_string_t value, moe_buffer_t *out);
int moe_call_append_string(moe_buffer_t *out, moe_string_t string, moe_error_t *error);

#endif
