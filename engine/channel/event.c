/* Everything the engine sends: events of a request, state and statistics. */

#include "engine/channel/message.h"

#include <string.h>


static moe_reader_t reader_of(const void *payload, size_t size)
{
    return (moe_reader_t) {payload, (const uint8_t *) payload + size, 0};
}


/* A message must end exactly where its payload ends. */
static int finish(const moe_reader_t *reader)
{
    return reader->failed || reader->next != reader->end ? -1 : 0;
}


static moe_string_t read_string(moe_reader_t *reader)
{
    moe_string_t string;

    string.data = moe_read_bytes(reader, &string.size);
    return string;
}


static int write_string(moe_buffer_t *out, moe_string_t string, moe_error_t *error)
{
    return moe_write_bytes(out, string.data, string.size, error);
}


uint32_t moe_id_at(const uint8_t *ids, uint32_t index)
{
    uint32_t id;

    memcpy(&id, ids + (size_t) index * sizeof(id), sizeof(id));
    return id;
}


uint64_t moe_count_at(const uint8_t *counts, size_t index)
{
    uint64_t count;

    memcpy(&count, counts + index * sizeof(count), sizeof(count));
    return count;
}


static const uint8_t *read_ids(moe_reader_t *reader, uint32_t *count)
{
    const uint8_t *ids;

    *count = moe_read_count(reader, sizeof(uint32_t));
    ids = reader->next;
    reader->next += (size_t) *count * sizeof(uint32_t);
    return ids;
}


static int write_ids(moe_buffer_t *out, const uint32_t *ids, uint32_t count, moe_error_t *error)
{
    if (moe_write_u32(out, count, error) != 0) {
        return -1;
    }
    return moe_buffer_append(out, ids, (size_t) count * sizeof(uint32_t), error);
}


static void read_candidate(moe_reader_t *reader, moe_candidate_t *candidate)
{
    candidate->id = moe_read_u32(reader);
    candidate->logprob = moe_read_f32(reader);
    candidate->text = read_string(reader);
}


static int write_candidate(moe_buffer_t *out, const moe_candidate_t *candidate, moe_error_t *error)
{
    return moe_write_u32(out, candidate->id, error)
           || moe_write_f32(out, candidate->logprob, error)
           || write_string(out, candidate->text, error);
}


int moe_logprob_next(moe_reader_t *reader, moe_logprob_t *record)
{
    read_candidate(reader, &record->token);
    record->n_top = moe_read_u8(reader);
    if (record->n_top > MOE_TOP_LOGPROBS_LIMIT) {
        reader->failed = 1;
        record->n_top = 0;
    }
    for (uint32_t i = 0; i < record->n_top; i++) {
        read_candidate(reader, &record->top[i]);
    }
    return reader->failed ? -1 : 0;
}


int moe_logprob_write(moe_buffer_t *out, const moe_logprob_t *record, moe_error_t *error)
{
    if (write_candidate(out, &record->token, error)
        || moe_write_u8(out, (uint8_t) record->n_top, error))
    {
        return -1;
    }
    for (uint32_t i = 0; i < record->n_top; i++) {
        if (write_candidate(out, &record->top[i], error)) {
            return -1;
        }
    }
    return 0;
}


/* Log-probability records end a message, so that the reader left over is the iterator. */
static int write_logprobs(moe_buffer_t *out, const moe_logprob_t *logprobs, uint32_t count,
                          moe_error_t *error)
{
    if (moe_write_u32(out, count, error) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (moe_logprob_write(out, &logprobs[i], error) != 0) {
            return -1;
        }
    }
    return 0;
}


static int read_logprobs(moe_reader_t *reader, uint32_t *count, moe_reader_t *records)
{
    moe_logprob_t record;

    *count = moe_read_count(reader, 13);        /* id, logprob, text size, n_top */
    *records = *reader;
    for (uint32_t i = 0; i < *count; i++) {
        if (moe_logprob_next(reader, &record) != 0) {
            return -1;
        }
    }
    return finish(reader);
}


int moe_admitted_encode(moe_buffer_t *out, uint64_t id, const moe_admitted_t *admitted,
                        moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_ADMITTED, id, &start, error)
        || moe_write_u32(out, admitted->prompt_tokens, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_admitted_decode(const void *payload, size_t size, moe_admitted_t *admitted)
{
    moe_reader_t reader = reader_of(payload, size);

    admitted->prompt_tokens = moe_read_u32(&reader);
    return finish(&reader);
}


int moe_started_encode(moe_buffer_t *out, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs,
                       moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_STARTED, id, &start, error)
        || moe_write_u32(out, started->prompt_tokens, error)
        || moe_write_u32(out, started->cached_tokens, error)
        || moe_write_u64(out, started->queue_ns, error)
        || moe_write_u64(out, started->prefill_ns, error)
        || write_string(out, started->prompt_text, error)
        || write_ids(out, prompt_ids, started->n_prompt_ids, error)
        || write_logprobs(out, logprobs, started->n_logprobs, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_started_decode(const void *payload, size_t size, moe_started_t *started)
{
    moe_reader_t reader = reader_of(payload, size);

    started->prompt_tokens = moe_read_u32(&reader);
    started->cached_tokens = moe_read_u32(&reader);
    started->queue_ns = moe_read_u64(&reader);
    started->prefill_ns = moe_read_u64(&reader);
    started->prompt_text = read_string(&reader);
    started->prompt_ids = read_ids(&reader, &started->n_prompt_ids);
    return read_logprobs(&reader, &started->n_logprobs, &started->logprobs);
}


int moe_delta_next(moe_reader_t *reader, moe_delta_t *delta)
{
    *delta = (moe_delta_t) { .kind = moe_read_u8(reader) };
    if (delta->kind == MOE_DELTA_CALL) {
        delta->id = read_string(reader);
        delta->name = read_string(reader);
    }
    delta->text = read_string(reader);
    if (delta->kind < MOE_DELTA_CONTENT || delta->kind > MOE_DELTA_CALL) {
        reader->failed = 1;
    }
    return reader->failed ? -1 : 0;
}


static int write_deltas(moe_buffer_t *out, const moe_deltas_t *deltas, moe_error_t *error)
{
    if (moe_write_u32(out, deltas->count, error) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < deltas->count; i++) {
        moe_delta_t delta = moe_deltas_at(deltas, i);

        if (moe_write_u8(out, (uint8_t) delta.kind, error)
            || (delta.kind == MOE_DELTA_CALL
                && (write_string(out, delta.id, error) || write_string(out, delta.name, error)))
            || write_string(out, delta.text, error))
        {
            return -1;
        }
    }
    return 0;
}


static void read_deltas(moe_reader_t *reader, uint32_t *count, moe_reader_t *deltas)
{
    moe_delta_t delta;

    *count = moe_read_count(reader, 5);         /* kind, text size */
    *deltas = *reader;
    for (uint32_t i = 0; i < *count && moe_delta_next(reader, &delta) == 0; i++) {
        continue;
    }
}


int moe_tokens_encode(moe_buffer_t *out, uint64_t id, const moe_deltas_t *deltas,
                      const uint32_t *ids, uint32_t n_ids, const moe_logprob_t *logprobs,
                      moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_TOKENS, id, &start, error)
        || write_deltas(out, deltas, error)
        || write_ids(out, ids, n_ids, error)
        || write_logprobs(out, logprobs, logprobs ? n_ids : 0, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_tokens_decode(const void *payload, size_t size, moe_tokens_t *tokens)
{
    moe_reader_t reader = reader_of(payload, size);

    read_deltas(&reader, &tokens->n_deltas, &tokens->deltas);
    tokens->ids = read_ids(&reader, &tokens->n_ids);
    if (read_logprobs(&reader, &tokens->n_logprobs, &tokens->logprobs) != 0) {
        return -1;
    }
    return tokens->n_logprobs == 0 || tokens->n_logprobs == tokens->n_ids ? 0 : -1;
}


int moe_done_encode(moe_buffer_t *out, uint64_t id, const moe_done_t *done, moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_DONE, id, &start, error)
        || moe_write_u8(out, (uint8_t) done->reason, error)
        || write_string(out, done->stop, error)
        || moe_write_u64(out, (uint64_t) done->stop_id, error)
        || moe_write_u32(out, done->prompt_tokens, error)
        || moe_write_u32(out, done->cached_tokens, error)
        || moe_write_u32(out, done->completion_tokens, error)
        || moe_write_u32(out, done->reasoning_tokens, error)
        || moe_write_u64(out, done->decode_ns, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_done_decode(const void *payload, size_t size, moe_done_t *done)
{
    moe_reader_t reader = reader_of(payload, size);

    done->reason = moe_read_u8(&reader);
    done->stop = read_string(&reader);
    done->stop_id = (int64_t) moe_read_u64(&reader);
    done->prompt_tokens = moe_read_u32(&reader);
    done->cached_tokens = moe_read_u32(&reader);
    done->completion_tokens = moe_read_u32(&reader);
    done->reasoning_tokens = moe_read_u32(&reader);
    done->decode_ns = moe_read_u64(&reader);
    if (done->reason < MOE_FINISH_STOP || done->reason > MOE_FINISH_LENGTH) {
        return -1;
    }
    return finish(&reader);
}


int moe_failure_encode(moe_buffer_t *out, uint64_t id, const moe_failure_t *failure,
                       moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_ERROR, id, &start, error)
        || moe_write_u8(out, (uint8_t) failure->code, error)
        || write_string(out, failure->field, error)
        || write_string(out, failure->message, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_failure_decode(const void *payload, size_t size, moe_failure_t *failure)
{
    moe_reader_t reader = reader_of(payload, size);

    failure->code = moe_read_u8(&reader);
    failure->field = read_string(&reader);
    failure->message = read_string(&reader);
    if (failure->code <= MOE_OK || failure->code > MOE_SYSTEM) {
        return -1;
    }
    return finish(&reader);
}


int moe_state_encode(moe_buffer_t *out, const moe_state_t *state, moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_STATE, 0, &start, error)
        || moe_write_u8(out, (uint8_t) state->code, error)
        || moe_write_u32(out, state->progress, error)
        || moe_write_u32(out, state->context, error)
        || moe_write_u32(out, state->vocabulary, error)
        || moe_write_u32(out, state->running, error)
        || moe_write_u32(out, state->waiting, error)
        || moe_write_u64(out, state->steps, error)
        || moe_write_u64(out, state->step_started_ns, error)
        || moe_write_u64(out, state->loaded_unix, error)
        || write_string(out, state->message, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_state_decode(const void *payload, size_t size, moe_state_t *state)
{
    moe_reader_t reader = reader_of(payload, size);

    state->code = moe_read_u8(&reader);
    state->progress = moe_read_u32(&reader);
    state->context = moe_read_u32(&reader);
    state->vocabulary = moe_read_u32(&reader);
    state->running = moe_read_u32(&reader);
    state->waiting = moe_read_u32(&reader);
    state->steps = moe_read_u64(&reader);
    state->step_started_ns = moe_read_u64(&reader);
    state->loaded_unix = moe_read_u64(&reader);
    state->message = read_string(&reader);
    if (state->code < MOE_STATE_LOADING || state->code > MOE_STATE_FAILED) {
        return -1;
    }
    return finish(&reader);
}


/* A frame that holds one number. */
static int encode_number(moe_buffer_t *out, moe_frame_type_t type, uint64_t id, uint32_t value,
                         moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, type, id, &start, error) || moe_write_u32(out, value, error)) {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


static int decode_number(const void *payload, size_t size, uint32_t *value)
{
    moe_reader_t reader = reader_of(payload, size);

    *value = moe_read_u32(&reader);
    return finish(&reader);
}


int moe_credit_encode(moe_buffer_t *out, uint64_t id, uint32_t tokens, moe_error_t *error)
{
    return encode_number(out, MOE_FRAME_CREDIT, id, tokens, error);
}


int moe_credit_decode(const void *payload, size_t size, uint32_t *tokens)
{
    return decode_number(payload, size, tokens);
}


int moe_stats_ask(moe_buffer_t *out, uint64_t id, uint32_t wanted, moe_error_t *error)
{
    return encode_number(out, MOE_FRAME_STATS, id, wanted, error);
}


int moe_stats_asked(const void *payload, size_t size, uint32_t *wanted)
{
    return decode_number(payload, size, wanted);
}


int moe_stats_encode(moe_buffer_t *out, uint64_t id, const moe_stats_t *stats,
                     const uint64_t *counts, uint32_t layers, uint32_t experts,
                     moe_error_t *error)
{
    size_t start;

    if (moe_frame_begin(out, MOE_FRAME_STATS_REPLY, id, &start, error)
        || moe_buffer_append(out, stats, sizeof(*stats), error)
        || moe_write_u32(out, layers, error) || moe_write_u32(out, experts, error)
        || moe_buffer_append(out, counts, sizeof(*counts) * layers * experts, error))
    {
        return -1;
    }
    moe_frame_end(out, start);
    return 0;
}


int moe_stats_decode(const void *payload, size_t size, moe_stats_t *stats,
                     moe_expert_load_t *load)
{
    moe_reader_t reader = reader_of(payload, size);
    uint64_t n;

    if (size < sizeof(*stats)) {
        return -1;
    }
    memcpy(stats, payload, sizeof(*stats));
    reader.next += sizeof(*stats);
    load->layers = moe_read_u32(&reader);
    load->experts = moe_read_u32(&reader);
    load->counts = reader.next;
    n = (uint64_t) load->layers * load->experts;
    if ((size_t) (reader.end - reader.next) / sizeof(uint64_t) != n) {
        return -1;
    }
    reader.next += n * sizeof(uint64_t);
    return finish(&reader);
}


double moe_histogram_bound(double first, unsigned bucket)
{
    return first * (double) (1u << bucket);
}


void moe_histogram_add(moe_histogram_t *histogram, double first, unsigned buckets, double value)
{
    unsigned bucket = 0;

    while (bucket + 1 < buckets && value > moe_histogram_bound(first, bucket)) {
        bucket++;
    }
    histogram->buckets[bucket]++;
    histogram->count++;
    histogram->sum += value;
}
