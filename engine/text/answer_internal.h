/*
 * Inside answers: one struct, and the machines that differ by format.
 *
 *     pushed text -> raw -> items (stretches of text, markers) -> machine -> deltas
 */

#ifndef MOE_ANSWER_INTERNAL_H
#define MOE_ANSWER_INTERNAL_H

#include "engine/text/answer.h"
#include "engine/text/call.h"
#include "engine/text/vocab.h"

/* Markers of a format: two of reasoning, then those of calls. */
#define MOE_MARKER_THINK 0u
#define MOE_MARKER_THINK_END 1u
#define MOE_MARKER_CALL 2u
#define MOE_MARKERS_LIMIT (MOE_MARKER_CALL + MOE_CALL_MARKERS_LIMIT)

/* A stretch of text without markers, or a marker. */
typedef struct {
    int marker;                 /* -1: text */
    const char *data;
    size_t size;
} moe_item_t;

typedef struct {
    void (*begin)(moe_answer_t *answer, const moe_text_t *prompt);
    /* Spelt-out markers that count here, as bits. */
    uint32_t (*wanted)(const moe_answer_t *answer);
    /* Takes an item, or of a text the first *used bytes. */
    int (*take)(moe_answer_t *answer, const moe_item_t *item, size_t *used);
    int (*finish)(moe_answer_t *answer);
    int (*reasons)(const moe_answer_t *answer);
} moe_answer_machine_t;

extern const moe_answer_machine_t moe_answer_marked, moe_answer_harmony;

struct moe_answer_format_s {
    const moe_answer_machine_t *machine;
    const moe_call_style_t *style;      /* of the marked machine; NULL: calls are not known */
    int calls, reasoning;               /* looked for at all */
    moe_marker_t markers[MOE_MARKERS_LIMIT];
    uint8_t spelt[256];                 /* bytes that spelt-out markers begin with */
};

/* Where a text is that is a JSON array or object, or a name and an object. */
typedef struct {
    int named, begun, in_string, escaped;
    uint32_t depth;
} moe_json_scan_t;

struct moe_answer_s {
    const moe_answer_format_t *format;
    int calls, one_call;
    json_t *schemas;
    uint64_t seed, next_number;
    uint32_t n_calls;

    moe_buffer_t raw;           /* not understood yet: it may become a marker */
    moe_buffer_t pending;       /* white space and markers that count only if text follows */
    moe_buffer_t block;         /* of a call or a header */
    moe_json_scan_t scan;       /* of the block */
    moe_deltas_t found;         /* calls in the block */
    moe_buffer_t scratch;

    int state;                  /* the machine's */
    int fresh;                  /* nothing but white space came */
    int trim;                   /* white space that comes next is dropped */
    unsigned begun;             /* harmony: kinds of which there was a message, as bits */
    int separate;               /* harmony: the next text begins a message behind another */
    moe_buffer_t name;          /* harmony: of the call whose arguments come */

    moe_deltas_t *out;          /* of the push in progress */
    moe_error_t *error;
};

int moe_is_json_space(char byte);

/* Text with marks in it, written out. */
int moe_answer_put(moe_answer_t *answer, moe_delta_kind_t kind, const char *data, size_t size);

/* The same, white space before and after it dropped where a neighbour is no text. */
int moe_answer_put_trimmed(moe_answer_t *answer, moe_delta_kind_t kind, const char *data,
                           size_t size);
int moe_answer_flush(moe_answer_t *answer, moe_delta_kind_t kind);

/* Outputs the calls in `found`, with ids. */
int moe_answer_put_calls(moe_answer_t *answer);

/* Goes on by a byte; 1 when it ends the array or object. */
int moe_json_scan(moe_json_scan_t *scan, char byte);

#endif
