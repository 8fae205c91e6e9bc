/*
 * What all formats share: text comes in, is cut into stretches and markers, and goes to the
 * format's machine.  Only a text's end that could become a spelt-out marker waits for more, so what
 * comes out depends on the text alone, not on how it was cut.
 */

#include "engine/text/answer_internal.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES 256u

/* Ids of calls: nine digits of base 62, which every chat template takes. */
#define ID_SIZE 9u
#define ID_SPACE 13537086546263552ull       /* 62^9 */
#define ID_STEP 2654435761ull               /* no common divisor: no id comes twice */


moe_answer_t *moe_answer_create(const moe_answer_format_t *format,
                                const moe_answer_options_t *options, moe_error_t *error)
{
    moe_answer_t *answer = calloc(1, sizeof(*answer));

    if (answer == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for an answer");
        return NULL;
    }
    answer->format = format;
    answer->calls = options->calls && format->calls;
    answer->one_call = options->one_call;
    answer->seed = options->seed % ID_SPACE;
    if (moe_buffer_reserve(&answer->raw, FIRST_BYTES, error) != 0
        || moe_buffer_reserve(&answer->pending, FIRST_BYTES, error) != 0)
    {
        moe_answer_free(answer);
        return NULL;
    }
    if (answer->calls && options->tools.size > 0 && format->style && !format->style->json) {
        answer->schemas = moe_call_schemas(options->tools, error);
        if (answer->schemas == NULL) {
            moe_answer_free(answer);
            return NULL;
        }
    }
    format->machine->begin(answer, options->prompt);
    return answer;
}


void moe_answer_free(moe_answer_t *answer)
{
    if (answer != NULL) {
        json_decref(answer->schemas);
        moe_buffer_free(&answer->raw);
        moe_buffer_free(&answer->pending);
        moe_buffer_free(&answer->block);
        moe_buffer_free(&answer->name);
        moe_buffer_free(&answer->scratch);
        moe_deltas_free(&answer->found);
        free(answer);
    }
}


int moe_answer_reasons(const moe_answer_t *answer)
{
    return answer->format->machine->reasons(answer);
}


int moe_answer_marker(const moe_answer_t *answer, uint32_t id)
{
    const moe_answer_format_t *format = answer->format;
    unsigned end = answer->calls || format->style == NULL ? MOE_MARKERS_LIMIT : MOE_MARKER_CALL;

    for (unsigned i = 0; i < end; i++) {
        if (format->markers[i].size > 0 && format->markers[i].id == id) {
            return (int) i;
        }
    }
    return -1;
}


int moe_answer_mark(moe_buffer_t *text, int marker, moe_error_t *error)
{
    const char mark[2] = { (char) MOE_MARK, (char) (MOE_MARK_INDEX + (unsigned) marker) };

    return moe_buffer_append(text, mark, sizeof(mark), error);
}


static int is_mark(char byte)
{
    return (unsigned char) byte == MOE_MARK;
}


/* How much of a spelt-out marker, one of `wanted`, `data` begins with: all of it sets *marker. */
static size_t match(const moe_answer_format_t *format, uint32_t wanted, const char *data,
                    size_t size, int *marker)
{
    size_t longest = 0;

    for (unsigned i = 0; i < MOE_MARKERS_LIMIT; i++) {
        const moe_marker_t *candidate = &format->markers[i];
        size_t common = candidate->size < size ? candidate->size : size;

        if ((wanted >> i & 1) && candidate->id == MOE_NO_TOKEN && common > longest
            && memcmp(candidate->text, data, common) == 0)
        {
            longest = common;
            *marker = common == candidate->size ? (int) i : -1;
        }
    }
    return longest;
}


/* The item that the text begins with.  0 when that depends on what follows. */
static int next_item(const moe_answer_t *answer, const char *data, size_t size, int final,
                     moe_item_t *item)
{
    const moe_answer_format_t *format = answer->format;
    const uint32_t wanted = format->machine->wanted(answer);
    size_t at, length = 0;
    int marker = -1, waits = 0;

    for (at = 0; at < size; at++) {
        if (is_mark(data[at])) {
            waits = at + 1 == size;
            marker = waits ? -1 : (int) ((unsigned char) data[at + 1] - MOE_MARK_INDEX);
            length = 2;
            break;
        }
        if (format->spelt[(unsigned char) data[at]]) {
            length = match(format, wanted, data + at, size - at, &marker);
            waits = length > 0 && marker == -1 && !final;
            if (marker != -1 || waits) {
                break;
            }
        }
    }
    if (at > 0) {
        *item = (moe_item_t) { -1, data, at };
        return 1;
    }
    *item = (moe_item_t) { marker, data, length };
    return size > 0 && !waits;
}


/* Takes what is sure of the raw text. */
static int take_raw(moe_answer_t *answer, int final)
{
    moe_buffer_t *raw = &answer->raw;
    size_t at = 0, used;
    moe_item_t item;
    int rc = 0;

    while (rc == 0 && next_item(answer, raw->data + at, raw->size - at, final, &item)) {
        used = item.size;
        rc = answer->format->machine->take(answer, &item, &used);
        at += used;
    }
    moe_buffer_consume(raw, at);
    return rc;
}


int moe_answer_push(moe_answer_t *answer, const char *text, size_t size, moe_deltas_t *out,
                    moe_error_t *error)
{
    answer->out = out;
    answer->error = error;
    if (size == 0) {
        return 0;
    }
    return moe_buffer_append(&answer->raw, text, size, error) != 0 ? -1 : take_raw(answer, 0);
}


int moe_answer_finish(moe_answer_t *answer, moe_deltas_t *out, moe_error_t *error)
{
    answer->out = out;
    answer->error = error;
    if (answer->raw.size > 0 && take_raw(answer, 1) != 0) {
        return -1;
    }
    return answer->format->machine->finish(answer);
}


int moe_is_json_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}


int moe_answer_put(moe_answer_t *answer, moe_delta_kind_t kind, const char *data, size_t size)
{
    const char *mark;

    while ((mark = size > 1 ? memchr(data, (int) MOE_MARK, size - 1) : NULL) != NULL) {
        const moe_marker_t *marker =
            &answer->format->markers[(unsigned char) mark[1] - MOE_MARK_INDEX];
        size_t before = (size_t) (mark - data);

        if (moe_deltas_add(answer->out, kind, data, before, answer->error) != 0
            || moe_deltas_add(answer->out, kind, marker->text, marker->size, answer->error) != 0)
        {
            return -1;
        }
        data += before + 2;
        size -= before + 2;
    }
    return moe_deltas_add(answer->out, kind, data, size, answer->error);
}


int moe_answer_flush(moe_answer_t *answer, moe_delta_kind_t kind)
{
    int rc = moe_answer_put(answer, kind, answer->pending.data, answer->pending.size);

    answer->pending.size = 0;
    return rc;
}


int moe_answer_put_trimmed(moe_answer_t *answer, moe_delta_kind_t kind, const char *data,
                           size_t size)
{
    size_t end = size, start = 0;

    if (size == 0) {
        return 0;
    }
    while (end > 0 && moe_is_json_space(data[end - 1])) {
        end--;
    }
    if (end > 0) {
        while (answer->trim && moe_is_json_space(data[start])) {
            start++;
        }
        if (answer->trim) {
            answer->pending.size = 0;
        }
        answer->trim = 0;
        if (moe_answer_flush(answer, kind) != 0
            || moe_answer_put(answer, kind, data + start, end - start) != 0)
        {
            return -1;
        }
    }
    return answer->trim ? 0 : moe_buffer_append(&answer->pending, data + end, size - end,
                                                answer->error);
}


static void write_id(uint64_t value, char id[ID_SIZE])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

    for (unsigned i = 0; i < ID_SIZE; i++) {
        id[i] = digits[value % 62];
        value /= 62;
    }
}


int moe_answer_put_calls(moe_answer_t *answer)
{
    for (uint32_t i = 0; i < answer->found.count; i++) {
        moe_delta_t call = moe_deltas_at(&answer->found, i);
        char id[ID_SIZE];

        if (answer->n_calls == UINT32_MAX || (answer->one_call && answer->n_calls > 0)) {
            break;
        }
        if (call.id.size == 0) {
            write_id((answer->seed + answer->n_calls * ID_STEP) % ID_SPACE, id);
            call.id = (moe_string_t) { id, ID_SIZE };
        }
        if (moe_deltas_add_call(answer->out, call.id, call.name, call.text, answer->error) != 0) {
            return -1;
        }
        answer->n_calls++;
    }
    return 0;
}


int moe_json_scan(moe_json_scan_t *scan, char byte)
{
    if (!scan->begun) {
        scan->begun = byte == '{' || (byte == '[' && !scan->named);
        scan->named = scan->named || !moe_is_json_space(byte);
        scan->depth = (uint32_t) scan->begun;
        return 0;
    }
    if (scan->escaped) {
        scan->escaped = 0;
    } else if (scan->in_string) {
        scan->escaped = byte == '\\';
        scan->in_string = byte != '"';
    } else if (byte == '"') {
        scan->in_string = 1;
    } else if (byte == '{' || byte == '[') {
        scan->depth++;
    } else if (byte == '}' || byte == ']') {
        scan->depth--;
        return scan->depth == 0;
    }
    return 0;
}
