/*
 * REQUEST: the one large message.  Scalars first, in the order of the struct, then the lists.
 * The ids to resume behind come at the very end and their number at the very beginning, so that the
 * worker keeps a request that may have to be sent again as its frame, and appends.
 * A decoded request is a single block: struct, lists, copy of the payload that strings point into.
 */

#include "engine/channel/message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>


void moe_request_defaults(moe_request_t *request)
{
    memset(request, 0, sizeof(*request));
    request->kind = MOE_PROMPT_TEXT;
    request->temperature = 1.0f;
    request->top_p = 1.0f;
    request->repetition_penalty = 1.0f;
    request->logprobs = -1;
    request->prompt_logprobs = -1;
}


static int write_string(moe_buffer_t *out, moe_string_t string, moe_error_t *error)
{
    return moe_write_bytes(out, string.data, string.size, error);
}


static int write_ids(moe_buffer_t *out, const uint32_t *ids, uint32_t count, moe_error_t *error)
{
    if (moe_write_u32(out, count, error) != 0) {
        return -1;
    }
    return moe_buffer_append(out, ids, (size_t) count * sizeof(uint32_t), error);
}


static int write_scalars(moe_buffer_t *out, const moe_request_t *r, moe_error_t *error)
{
    return moe_write_u32(out, r->n_resume_ids, error)
           || moe_write_u8(out, (uint8_t) r->kind, error)
           || moe_write_u32(out, r->flags, error)
           || moe_write_u32(out, r->given, error)
           || moe_write_u32(out, r->max_tokens, error)
           || moe_write_u32(out, r->min_tokens, error)
           || moe_write_f32(out, r->temperature, error)
           || moe_write_f32(out, r->top_p, error)
           || moe_write_u32(out, r->top_k, error)
           || moe_write_f32(out, r->min_p, error)
           || moe_write_f32(out, r->repetition_penalty, error)
           || moe_write_f32(out, r->presence_penalty, error)
           || moe_write_f32(out, r->frequency_penalty, error)
           || moe_write_u64(out, r->seed, error)
           || moe_write_u32(out, (uint32_t) r->logprobs, error)
           || moe_write_u32(out, (uint32_t) r->prompt_logprobs, error)
           || moe_write_u32(out, (uint32_t) r->priority, error);
}


static int write_lists(moe_buffer_t *out, const moe_request_t *r, moe_error_t *error)
{
    if (write_string(out, r->prompt, error) || write_string(out, r->template_arguments, error)
        || write_string(out, r->tools, error) || write_string(out, r->tenant, error)
        || write_string(out, r->salt, error)
        || write_ids(out, r->prompt_ids, r->n_prompt_ids, error)
        || moe_write_u32(out, r->n_stops, error))
    {
        return -1;
    }
    for (uint32_t i = 0; i < r->n_stops; i++) {
        if (write_string(out, r->stops[i], error)) {
            return -1;
        }
    }
    if (write_ids(out, r->stop_ids, r->n_stop_ids, error)
        || write_ids(out, r->allowed_ids, r->n_allowed_ids, error)
        || moe_write_u32(out, r->n_biases, error))
    {
        return -1;
    }
    for (uint32_t i = 0; i < r->n_biases; i++) {
        if (moe_write_u32(out, r->biases[i].id, error)
            || moe_write_f32(out, r->biases[i].bias, error))
        {
            return -1;
        }
    }
    return moe_buffer_append(out, r->resume_ids, (size_t) r->n_resume_ids * 4, error);
}


int moe_request_encode(moe_buffer_t *out, uint64_t id, const moe_request_t *request,
                       moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_REQUEST, id, &start, error)
        || write_scalars(out, request, error) || write_lists(out, request, error))
    {
        return -1;
    }
    if (out->size - start - MOE_FRAME_HEADER > MOE_FRAME_LIMIT) {
        return moe_fail(error, MOE_LIMIT, "request exceeds %u bytes", MOE_FRAME_LIMIT);
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_request_resume(moe_buffer_t *frame, const uint8_t *ids, uint32_t n_ids,
                       moe_error_t *error)
{
    size_t size = (size_t) n_ids * sizeof(uint32_t);
    uint32_t count;

    if (frame->size - MOE_FRAME_HEADER + size > MOE_FRAME_LIMIT) {
        return moe_fail(error, MOE_LIMIT, "request exceeds %u bytes", MOE_FRAME_LIMIT);
    }
    if (moe_buffer_append(frame, ids, size, error) != 0) {
        return -1;
    }
    memcpy(&count, frame->data + MOE_FRAME_HEADER, sizeof(count));
    count += n_ids;
    memcpy(frame->data + MOE_FRAME_HEADER, &count, sizeof(count));
    moe_frame_end(frame, 0);
    return 0;
}


static void read_scalars(moe_reader_t *reader, moe_request_t *r)
{
    r->n_resume_ids = moe_read_u32(reader);
    r->kind = moe_read_u8(reader);
    r->flags = moe_read_u32(reader);
    r->given = moe_read_u32(reader);
    r->max_tokens = moe_read_u32(reader);
    r->min_tokens = moe_read_u32(reader);
    r->temperature = moe_read_f32(reader);
    r->top_p = moe_read_f32(reader);
    r->top_k = moe_read_u32(reader);
    r->min_p = moe_read_f32(reader);
    r->repetition_penalty = moe_read_f32(reader);
    r->presence_penalty = moe_read_f32(reader);
    r->frequency_penalty = moe_read_f32(reader);
    r->seed = moe_read_u64(reader);
    r->logprobs = (int32_t) moe_read_u32(reader);
    r->prompt_logprobs = (int32_t) moe_read_u32(reader);
    r->priority = (int32_t) moe_read_u32(reader);
}


static const char *scalars_fault(const moe_request_t *r)
{
    const float numbers[] = {
        r->temperature, r->top_p, r->min_p, r->repetition_penalty, r->presence_penalty,
        r->frequency_penalty
    };

    if (r->kind < MOE_PROMPT_TEXT || r->kind > MOE_PROMPT_CHAT) {
        return "prompt kind";
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (!isfinite(numbers[i])) {
            return "a number that is not finite";
        }
    }
    if (r->logprobs < -1 || r->logprobs > (int32_t) MOE_TOP_LOGPROBS_LIMIT
        || r->prompt_logprobs < -1 || r->prompt_logprobs > (int32_t) MOE_TOP_LOGPROBS_LIMIT)
    {
        return "logprobs";
    }
    return NULL;
}


#define ID_LISTS 4u

/* Where the lists lie inside the payload; found in a first pass that sizes the block. */
typedef struct {
    const uint8_t *ids[ID_LISTS];   /* prompt, stop, allowed, resume */
    uint32_t n_ids[ID_LISTS];
    const uint8_t *stops, *biases;
    uint32_t n_stops, n_biases;
} layout_t;


static const uint8_t *skip_elements(moe_reader_t *reader, size_t element, uint32_t *count)
{
    const uint8_t *data;

    *count = moe_read_count(reader, element);
    data = reader->next;
    reader->next += *count * element;
    return data;
}


static const char *read_layout(moe_reader_t *reader, moe_request_t *r, layout_t *layout)
{
    uint32_t size;

    r->prompt.data = moe_read_bytes(reader, &r->prompt.size);
    r->template_arguments.data = moe_read_bytes(reader, &r->template_arguments.size);
    r->tools.data = moe_read_bytes(reader, &r->tools.size);
    r->tenant.data = moe_read_bytes(reader, &r->tenant.size);
    r->salt.data = moe_read_bytes(reader, &r->salt.size);
    if (r->tenant.size > MOE_TENANT_LIMIT || r->salt.size > MOE_SALT_LIMIT) {
        return "tenant or salt";
    }
    layout->ids[0] = skip_elements(reader, 4, &layout->n_ids[0]);

    layout->n_stops = moe_read_count(reader, 4);
    layout->stops = reader->next;
    if (layout->n_stops > MOE_STOPS_LIMIT) {
        return "stop strings";
    }
    for (uint32_t i = 0; i < layout->n_stops; i++) {
        moe_read_bytes(reader, &size);
        if (size == 0 || size > MOE_STOP_BYTES_LIMIT) {
            return "a stop string";
        }
    }
    layout->ids[1] = skip_elements(reader, 4, &layout->n_ids[1]);
    layout->ids[2] = skip_elements(reader, 4, &layout->n_ids[2]);
    layout->biases = skip_elements(reader, 8, &layout->n_biases);

    if (layout->n_ids[1] > MOE_ID_LIST_LIMIT || layout->n_ids[2] > MOE_ID_LIST_LIMIT
        || layout->n_biases > MOE_ID_LIST_LIMIT)
    {
        return "a list of ids";
    }
    layout->ids[3] = reader->next;
    layout->n_ids[3] = r->n_resume_ids;
    return reader->failed || (size_t) (reader->end - reader->next) != (size_t) r->n_resume_ids * 4
               ? "length" : NULL;
}


static const uint32_t *copy_ids(uint8_t **next, const layout_t *layout, unsigned list)
{
    size_t size = (size_t) layout->n_ids[list] * sizeof(uint32_t);
    uint32_t *ids = (uint32_t *) *next;

    if (size > 0) {
        memcpy(ids, layout->ids[list], size);
    }
    *next += size;
    return ids;
}


static int copy_biases(moe_logit_bias_t *biases, const layout_t *layout)
{
    for (uint32_t i = 0; i < layout->n_biases; i++) {
        memcpy(&biases[i].id, layout->biases + (size_t) i * 8, 4);
        memcpy(&biases[i].bias, layout->biases + (size_t) i * 8 + 4, 4);
        if (!isfinite(biases[i].bias)) {
            return -1;
        }
    }
    return 0;
}


static const char *copied(const uint8_t *copy, moe_string_t string, const uint8_t *payload)
{
    return (const char *) copy + (string.data - (const char *) payload);
}


/* Builds the block.  Lists come in order of alignment: strings, biases, ids, then the bytes. */
static moe_request_t *build_block(const moe_request_t *parsed, const layout_t *layout,
                                  const uint8_t *payload, size_t size, moe_error_t *error)
{
    size_t bytes = sizeof(moe_request_t) + layout->n_stops * sizeof(moe_string_t)
                   + layout->n_biases * sizeof(moe_logit_bias_t) + size;
    moe_request_t *request;
    moe_string_t *stops;
    moe_logit_bias_t *biases;
    moe_reader_t reader;
    uint8_t *next, *copy;

    for (unsigned i = 0; i < ID_LISTS; i++) {
        bytes += (size_t) layout->n_ids[i] * sizeof(uint32_t);
    }
    request = malloc(bytes);
    if (request == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a request of %zu bytes", bytes);
        return NULL;
    }
    copy = (uint8_t *) request + bytes - size;
    memcpy(copy, payload, size);

    *request = *parsed;
    request->prompt.data = copied(copy, parsed->prompt, payload);
    request->template_arguments.data = copied(copy, parsed->template_arguments, payload);
    request->tools.data = copied(copy, parsed->tools, payload);
    request->tenant.data = copied(copy, parsed->tenant, payload);
    request->salt.data = copied(copy, parsed->salt, payload);

    next = (uint8_t *) (request + 1);
    stops = (moe_string_t *) next;
    reader = (moe_reader_t) {copy + (layout->stops - payload), copy + size, 0};
    for (uint32_t i = 0; i < layout->n_stops; i++) {
        stops[i].data = moe_read_bytes(&reader, &stops[i].size);
    }
    next += layout->n_stops * sizeof(moe_string_t);
    biases = (moe_logit_bias_t *) next;
    if (copy_biases(biases, layout) != 0) {
        moe_fail(error, MOE_INVALID, "channel: request: logit bias that is not finite");
        free(request);
        return NULL;
    }
    next += layout->n_biases * sizeof(moe_logit_bias_t);

    request->stops = stops;
    request->n_stops = layout->n_stops;
    request->biases = biases;
    request->n_biases = layout->n_biases;
    request->prompt_ids = copy_ids(&next, layout, 0);
    request->n_prompt_ids = layout->n_ids[0];
    request->stop_ids = copy_ids(&next, layout, 1);
    request->n_stop_ids = layout->n_ids[1];
    request->allowed_ids = copy_ids(&next, layout, 2);
    request->n_allowed_ids = layout->n_ids[2];
    request->resume_ids = copy_ids(&next, layout, 3);
    request->n_resume_ids = layout->n_ids[3];
    return request;
}


moe_request_t *moe_request_decode(const void *payload, size_t size, moe_error_t *error)
{
    moe_reader_t reader = {payload, (const uint8_t *) payload + size, 0};
    moe_request_t parsed;
    layout_t layout;
    const char *fault;

    memset(&parsed, 0, sizeof(parsed));
    memset(&layout, 0, sizeof(layout));
    read_scalars(&reader, &parsed);
    fault = reader.failed ? "length" : scalars_fault(&parsed);
    if (fault == NULL) {
        fault = read_layout(&reader, &parsed, &layout);
    }
    if (fault != NULL) {
        moe_fail(error, MOE_INVALID, "channel: request: wrong %s", fault);
        return NULL;
    }
    return build_block(&parsed, &layout, payload, size, error);
}
