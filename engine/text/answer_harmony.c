/*
 * Answers in messages of several channels, as gpt-oss writes them:
 *
 *     [<|start|>assistant]<|channel|>analysis<|message|>...<|end|>                reasoning
 *     <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json
 *         <|message|>{...}<|call|>                                                a call
 *     <|start|>assistant<|channel|>final<|message|>...<|return|>                  content
 *
 * The recipient may also stand before the channel.  Commentary to nobody is content, what is told
 * to the user between calls.  The prompt ends with <|start|>assistant, so an answer begins inside a
 * header; an answer that goes on without one, or with one that is too long, is content.
 */

#include <string.h>

#include "engine/text/answer_internal.h"

#define HEADER_LIMIT 512u       /* bytes */

enum { BETWEEN, HEADER, CONTENT, REASONING, CALL };

enum {
    START = MOE_MARKER_CALL, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL_END
};


/* The template's last marker tells where the answer goes on. */
static void begin(moe_answer_t *answer, const moe_text_t *prompt)
{
    const moe_answer_format_t *format = answer->format;
    const moe_span_t *last = prompt != NULL && prompt->n_trusted
                             ? &prompt->trusted[prompt->n_trusted - 1] : NULL;

    answer->state = HEADER;
    answer->fresh = 1;
    for (size_t at = last ? last->end : 0; last && at-- > last->start;) {
        const char *data = prompt->bytes.data + at;
        size_t size = last->end - at;

        for (unsigned i = START; i <= CALL_END; i++) {
            const moe_marker_t *marker = &format->markers[i];

            if (marker->size <= size && memcmp(data, marker->text, marker->size) == 0) {
                answer->state = i == START ? HEADER : i == MESSAGE ? CONTENT : BETWEEN;
                return;
            }
        }
    }
}


static uint32_t wanted(const moe_answer_t *answer)
{
    return ((1u << (CALL_END + 1)) - 1) & ~((1u << START) - 1);
}


static moe_delta_kind_t kind_of(const moe_answer_t *answer)
{
    return answer->state == REASONING ? MOE_DELTA_REASONING : MOE_DELTA_CONTENT;
}


/* A message that follows another of its kind is a paragraph of its own. */
static int put(moe_answer_t *answer, const char *data, size_t size)
{
    moe_delta_kind_t kind = kind_of(answer);
    int separate = answer->separate && size > 0;

    if (size == 0) {
        return 0;
    }
    answer->separate = 0;
    if (separate && (answer->begun >> kind & 1)
        && moe_answer_put(answer, kind, "\n\n", 2) != 0)
    {
        return -1;
    }
    answer->begun |= 1u << kind;
    return moe_answer_put(answer, kind, data, size);
}


static void begin_header(moe_answer_t *answer)
{
    answer->state = HEADER;
    answer->block.size = 0;
}


static void end_message(moe_answer_t *answer)
{
    answer->state = BETWEEN;
    answer->separate = 1;
}


/* What was taken for a header or a call is text. */
static int give_up(moe_answer_t *answer)
{
    end_message(answer);
    return put(answer, answer->block.data, answer->block.size);
}


/* The word behind `key` in the header. */
static moe_string_t find_word(const moe_answer_t *answer, const char *key, size_t key_size)
{
    const moe_buffer_t *header = &answer->block;
    const char *word = header->size ? memmem(header->data, header->size, key, key_size) : NULL;
    const char *at;

    if (word == NULL) {
        return (moe_string_t) { .size = 0 };
    }
    word += key_size;
    for (at = word; at < header->data + header->size && !moe_is_json_space(*at) && *at != '<'
         && (unsigned char) *at != MOE_MARK; at++)
    {
        continue;
    }
    return (moe_string_t) { word, (uint32_t) (at - word) };
}


static int is(moe_string_t word, const char *text)
{
    return word.size == strlen(text) && memcmp(word.data, text, word.size) == 0;
}


/* The header is whole. */
static int end_header(moe_answer_t *answer)
{
    static const char functions[] = "functions.";
    static const char mark[2] = { (char) MOE_MARK, (char) (MOE_MARK_INDEX + CHANNEL) };
    const size_t prefix = sizeof(functions) - 1;
    const moe_marker_t *marker = &answer->format->markers[CHANNEL];
    const int spelt = marker->id == MOE_NO_TOKEN;
    moe_string_t channel = find_word(answer, spelt ? marker->text : mark,
                                     spelt ? marker->size : sizeof(mark));
    moe_string_t recipient = find_word(answer, "to=", 3);

    answer->separate = 1;
    answer->state = is(channel, "analysis") && answer->format->reasoning ? REASONING : CONTENT;
    answer->name.size = 0;
    if (answer->calls && recipient.size > prefix
        && memcmp(recipient.data, functions, prefix) == 0)
    {
        answer->state = CALL;
        if (moe_buffer_append(&answer->name, recipient.data + prefix, recipient.size - prefix,
                              answer->error) != 0)
        {
            return -1;
        }
    }
    answer->block.size = 0;
    memset(&answer->scan, 0, sizeof(answer->scan));
    return 0;
}


/* `closed`: a marker ended the call. */
static int end_call(moe_answer_t *answer, int closed)
{
    const moe_call_text_t text = { .calls = &answer->found, .error = answer->error };
    moe_string_t name = { answer->name.data, (uint32_t) answer->name.size };
    moe_string_t arguments = moe_call_trim(answer->block.data, answer->block.size);
    int rc;

    moe_deltas_clear(&answer->found);
    rc = arguments.size > 0 || closed
         ? moe_call_add(&text, (moe_string_t) { .size = 0 }, name, arguments) : 0;
    if (rc <= 0) {
        return rc == 0 ? give_up(answer) : -1;
    }
    end_message(answer);
    return moe_answer_put_calls(answer);
}


static int take_in_call(moe_answer_t *answer, const moe_item_t *item)
{
    if (item->marker == -1) {
        for (size_t i = 0; i < item->size; i++) {
            (void) moe_json_scan(&answer->scan, item->data[i]);
        }
    }
    if (moe_buffer_append(&answer->block, item->data, item->size, answer->error) != 0) {
        return -1;
    }
    return answer->block.size > MOE_CALL_BYTES_LIMIT ? give_up(answer) : 0;
}


static int take_text(moe_answer_t *answer, const moe_item_t *item)
{
    if (answer->state == CALL) {
        return take_in_call(answer, item);
    }
    if (answer->state != HEADER) {
        return put(answer, item->data, item->size);
    }
    if (moe_buffer_append(&answer->block, item->data, item->size, answer->error) != 0) {
        return -1;
    }
    return answer->block.size > HEADER_LIMIT ? give_up(answer) : 0;
}


/* A marker where it means nothing is text. */
static int take_marker(moe_answer_t *answer, const moe_item_t *item)
{
    const int in_header = answer->state == HEADER;
    const int quoted = answer->state == CALL && answer->scan.in_string
                       && answer->format->markers[item->marker].id == MOE_NO_TOKEN;

    if (item->marker == MESSAGE && in_header) {
        return end_header(answer);
    }
    if (quoted || item->marker == MESSAGE || item->marker == CONSTRAIN
        || (item->marker == CHANNEL && in_header))
    {
        return take_text(answer, item);
    }
    if (answer->state == CALL && end_call(answer, 1) != 0) {
        return -1;
    }
    end_message(answer);
    if (item->marker == START || item->marker == CHANNEL) {
        begin_header(answer);
    }
    return item->marker == CHANNEL ? take_text(answer, item) : 0;
}


static int take(moe_answer_t *answer, const moe_item_t *item, size_t *used)
{
    (void) used;
    if (item->marker == -1) {
        return take_text(answer, item);
    }
    answer->fresh = 0;
    return take_marker(answer, item);
}


/* An answer without any marker is text, not the header that the prompt began. */
static int finish(moe_answer_t *answer)
{
    switch (answer->state) {
    case HEADER:
        return answer->fresh ? give_up(answer) : 0;
    case CALL:
        return end_call(answer, 0);
    default:
        return 0;
    }
}


static int reasons(const moe_answer_t *answer)
{
    return answer->state == REASONING;
}


const moe_answer_machine_t moe_answer_harmony = { begin, wanted, take, finish, reasons };
