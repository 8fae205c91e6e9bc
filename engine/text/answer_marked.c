/*
 * Reasoning between <think> and </think>, then content with marked calls in it.
 *
 *     REASONING  --</think>-->  CONTENT  --first marker-->  BLOCK  --last marker-->  CONTENT
 *
 * Reasoning begins with the answer: with its first text, or in the prompt, whose template may have
 * opened it already.  It also ends where a special token begins a call, as some models forget to
 * close it.  A block is kept until it is whole; when it is no call it becomes content.
 */

#include <string.h>

#include "engine/text/answer_internal.h"

enum { CONTENT, REASONING, BLOCK };

#define FIRST MOE_MARKER_CALL
#define LAST (MOE_MARKER_CALL + 1)


/* Whether of both markers of reasoning the first one stands last; -1: neither is there. */
static int opens(const moe_answer_format_t *format, const char *data, size_t size)
{
    for (size_t at = size; at-- > 0;) {
        for (unsigned i = MOE_MARKER_THINK; i <= MOE_MARKER_THINK_END; i++) {
            const moe_marker_t *marker = &format->markers[i];

            if (marker->size <= size - at && memcmp(data + at, marker->text, marker->size) == 0) {
                return i == MOE_MARKER_THINK;
            }
        }
    }
    return -1;
}


/* What the client wrote must not decide, unless it is the final message that the answer goes on
 * with: then it is all that follows what the template wrote. */
static int prompt_opens(const moe_answer_format_t *format, const moe_text_t *prompt)
{
    const moe_marker_t *think = &format->markers[MOE_MARKER_THINK];
    const moe_span_t *last = prompt->n_trusted ? &prompt->trusted[prompt->n_trusted - 1] : NULL;
    const char *data = prompt->bytes.data;
    size_t end = last ? last->end : 0;
    int answer = opens(format, data + end, prompt->bytes.size - end);

    if (answer != -1 || last == NULL) {
        return answer == 1;
    }
    while (end > last->start && moe_is_json_space(data[end - 1])) {
        end--;
    }
    return end - last->start >= think->size
           && memcmp(data + end - think->size, think->text, think->size) == 0;
}


/* What follows is of another kind: white space next to the border is neither's. */
static void enter(moe_answer_t *answer, int state)
{
    answer->state = state;
    answer->pending.size = 0;
    answer->trim = 1;
}


static void begin(moe_answer_t *answer, const moe_text_t *prompt)
{
    answer->fresh = 1;
    if (answer->format->reasoning && prompt != NULL && prompt_opens(answer->format, prompt)) {
        enter(answer, REASONING);
    }
}


/* A marker that may stand before, between and after calls. */
static int is_between(const moe_answer_t *answer, unsigned marker)
{
    return answer->format->style != NULL && marker >= FIRST
           && (answer->format->style->between >> (marker - FIRST) & 1);
}


static uint32_t wanted(const moe_answer_t *answer)
{
    uint32_t calls = 0;

    if (answer->state == REASONING) {
        return 1u << MOE_MARKER_THINK_END;
    }
    if (answer->state == BLOCK) {
        return 1u << LAST;
    }
    if (answer->calls) {
        calls = (1u | answer->format->style->between) << FIRST;
    }
    return calls | (uint32_t) (answer->fresh && answer->format->reasoning) << MOE_MARKER_THINK;
}


static int put_content(moe_answer_t *answer, const char *data, size_t size)
{
    return moe_answer_put_trimmed(answer, MOE_DELTA_CONTENT, data, size);
}


/* The block is no call: it is text, as are the markers around it. */
static int give_up(moe_answer_t *answer, const moe_marker_t *last)
{
    const moe_marker_t *first = &answer->format->markers[FIRST];

    answer->state = CONTENT;
    if (put_content(answer, first->text, first->size) != 0
        || put_content(answer, answer->block.data, answer->block.size) != 0)
    {
        return -1;
    }
    return last != NULL ? put_content(answer, last->text, last->size) : 0;
}


/* The block is over.  `last`: the marker that ended it, if one did. */
static int end_block(moe_answer_t *answer, const moe_marker_t *last)
{
    const moe_answer_format_t *format = answer->format;
    const moe_call_text_t text = {
        .data = answer->block.data,
        .size = answer->block.size,
        .closed = last != NULL,
        .markers = format->markers + MOE_MARKER_CALL,
        .schemas = answer->schemas,
        .next_number = &answer->next_number,
        .calls = &answer->found,
        .scratch = &answer->scratch,
        .error = answer->error
    };
    int rc;

    moe_deltas_clear(&answer->found);
    rc = answer->block.size > 0 ? format->style->parse(&text) : 0;
    if (rc <= 0) {
        return rc == 0 ? give_up(answer, last) : -1;
    }
    enter(answer, CONTENT);
    return moe_answer_put_calls(answer);
}


static int begin_block(moe_answer_t *answer)
{
    answer->state = BLOCK;
    answer->block.size = 0;
    memset(&answer->scan, 0, sizeof(answer->scan));
    return 0;
}


/* Adds to the block up to where its JSON ends it, if it does. */
static int add_to_block(moe_answer_t *answer, const moe_item_t *item, size_t *used)
{
    const moe_call_style_t *style = answer->format->style;
    const int has_last = answer->format->markers[LAST].size > 0;
    int ends = 0;

    if (style->json && item->marker == -1) {
        for (*used = 0; *used < item->size && !ends; ++*used) {
            ends = moe_json_scan(&answer->scan, item->data[*used]) && !has_last;
        }
    }
    if (moe_buffer_append(&answer->block, item->data, *used, answer->error) != 0) {
        return -1;
    }
    if (ends) {
        return end_block(answer, NULL);
    }
    return answer->block.size > MOE_CALL_BYTES_LIMIT ? give_up(answer, NULL) : 0;
}


static int take_in_block(moe_answer_t *answer, const moe_item_t *item, size_t *used)
{
    const moe_marker_t *marker = item->marker == -1 ? NULL
                                                    : &answer->format->markers[item->marker];

    if (item->marker == FIRST && marker->id != MOE_NO_TOKEN) {
        return give_up(answer, NULL) != 0 ? -1 : begin_block(answer);
    }
    if (item->marker == LAST && (marker->id != MOE_NO_TOKEN || !answer->scan.in_string)) {
        return end_block(answer, marker);
    }
    return add_to_block(answer, item, used);
}


static int take_in_reasoning(moe_answer_t *answer, const moe_item_t *item)
{
    if (item->marker == MOE_MARKER_THINK_END) {
        enter(answer, CONTENT);
        return 0;
    }
    return moe_answer_put_trimmed(answer, MOE_DELTA_REASONING, item->data, item->size);
}


static int take_in_content(moe_answer_t *answer, const moe_item_t *item)
{
    if (item->marker == MOE_MARKER_THINK && answer->fresh) {
        enter(answer, REASONING);
        answer->fresh = 0;
        return 0;
    }
    if (item->marker == FIRST) {
        return begin_block(answer);
    }
    if (item->marker != -1 && is_between(answer, (unsigned) item->marker)) {
        return answer->trim ? 0 : moe_buffer_append(&answer->pending, item->data, item->size,
                                                    answer->error);
    }
    return put_content(answer, item->data, item->size);
}


static int take(moe_answer_t *answer, const moe_item_t *item, size_t *used)
{
    int begins_call = item->marker == FIRST
                      || (item->marker != -1 && is_between(answer, (unsigned) item->marker));
    int rc;

    if (answer->state == BLOCK) {
        return take_in_block(answer, item, used);
    }
    if (answer->state == REASONING && begins_call
        && answer->format->markers[item->marker].special)
    {
        enter(answer, CONTENT);
    }
    if (answer->state == REASONING) {
        rc = take_in_reasoning(answer, item);
    } else {
        rc = take_in_content(answer, item);
    }
    for (size_t i = 0; i < item->size && answer->fresh; i++) {
        answer->fresh = moe_is_json_space(item->data[i]);
    }
    return rc;
}


static int finish(moe_answer_t *answer)
{
    if (answer->state == BLOCK && end_block(answer, NULL) != 0) {
        return -1;
    }
    if (answer->trim) {
        return 0;
    }
    return moe_answer_flush(answer, answer->state == REASONING ? MOE_DELTA_REASONING
                                                               : MOE_DELTA_CONTENT);
}


static int reasons(const moe_answer_t *answer)
{
    return answer->state == REASONING;
}


const moe_answer_machine_t moe_answer_marked = { begin, wanted, take, finish, reasons };
