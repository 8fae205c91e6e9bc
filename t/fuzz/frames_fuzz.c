/* The channel's frames: any bytes are a stream of frames, and any payload is tried as every message.
 * A request that decodes is the same after another round, and can be resumed. */

#include "engine/channel/message.h"
#include "t/fuzz/fuzz.h"


/* Touches every byte that a message points to. */
static void read_string(moe_string_t string)
{
    volatile char byte;

    for (uint32_t i = 0; i < string.size; i++) {
        byte = string.data[i];
        (void) byte;
    }
}


static void read_ids(const uint8_t *ids, uint32_t n)
{
    volatile uint32_t id;

    for (uint32_t i = 0; i < n; i++) {
        id = moe_id_at(ids, i);
        (void) id;
    }
}


static void read_logprobs(moe_reader_t *reader, uint32_t n)
{
    moe_logprob_t record;

    for (uint32_t i = 0; i < n && moe_logprob_next(reader, &record) == 0; i++) {
        fuzz_check(record.n_top <= MOE_TOP_LOGPROBS_LIMIT);
        read_string(record.token.text);
        for (uint32_t j = 0; j < record.n_top; j++) {
            read_string(record.top[j].text);
        }
    }
}


static void decode_request(const void *payload, size_t size)
{
    moe_buffer_t first = { 0 }, second = { 0 };
    moe_error_t error;
    moe_request_t *request = moe_request_decode(payload, size, &error), *again;

    if (request == NULL) {
        fuzz_check(error.code == MOE_INVALID || error.code == MOE_LIMIT);
        return;
    }
    fuzz_check(moe_request_encode(&first, 7, request, &error) == 0);
    again = moe_request_decode(first.data + MOE_FRAME_HEADER, first.size - MOE_FRAME_HEADER,
                               &error);
    fuzz_check(again != NULL && moe_request_encode(&second, 7, again, &error) == 0);
    fuzz_check(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    free(again);
    fuzz_check(moe_request_resume(&first, (const uint8_t *) "\1\0\0\0\2\0\0\0", 2, &error) == 0);
    again = moe_request_decode(first.data + MOE_FRAME_HEADER, first.size - MOE_FRAME_HEADER,
                               &error);
    fuzz_check(again != NULL && again->n_resume_ids == request->n_resume_ids + 2);
    fuzz_check(again->resume_ids[request->n_resume_ids + 1] == 2);
    free(request);
    free(again);
    moe_buffer_free(&first);
    moe_buffer_free(&second);
}


static void read_deltas(moe_reader_t *reader, uint32_t n)
{
    moe_delta_t delta;

    for (uint32_t i = 0; i < n; i++) {
        fuzz_check(moe_delta_next(reader, &delta) == 0);
        read_string(delta.text);
        read_string(delta.id);
        read_string(delta.name);
    }
}


static void decode_events(const void *payload, size_t size)
{
    moe_admitted_t admitted;
    moe_started_t started;
    moe_tokens_t tokens;
    moe_done_t done;
    moe_failure_t failure;

    (void) moe_admitted_decode(payload, size, &admitted);
    if (moe_started_decode(payload, size, &started) == 0) {
        read_string(started.prompt_text);
        read_ids(started.prompt_ids, started.n_prompt_ids);
        read_logprobs(&started.logprobs, started.n_logprobs);
    }
    if (moe_tokens_decode(payload, size, &tokens) == 0) {
        read_deltas(&tokens.deltas, tokens.n_deltas);
        read_ids(tokens.ids, tokens.n_ids);
        read_logprobs(&tokens.logprobs, tokens.n_logprobs);
    }
    if (moe_done_decode(payload, size, &done) == 0) {
        read_string(done.stop);
    }
    if (moe_failure_decode(payload, size, &failure) == 0) {
        read_string(failure.field);
        read_string(failure.message);
    }
}


static void decode_all(const void *payload, size_t size)
{
    moe_state_t state;
    moe_stats_t stats;
    moe_expert_load_t load;
    uint32_t number;

    decode_request(payload, size);
    decode_events(payload, size);
    if (moe_state_decode(payload, size, &state) == 0) {
        read_string(state.message);
    }
    (void) moe_credit_decode(payload, size, &number);
    (void) moe_stats_asked(payload, size, &number);
    if (moe_stats_decode(payload, size, &stats, &load) == 0) {
        for (size_t i = 0; i < (size_t) load.layers * load.experts; i++) {
            (void) moe_count_at(load.counts, i);
        }
    }
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    moe_frame_header_t header;
    moe_error_t error;

    decode_all(data, size);
    while (moe_frame_parse(data, size, &header, &error) == 1) {
        fuzz_check(header.size <= size - MOE_FRAME_HEADER);
        decode_all(data + MOE_FRAME_HEADER, header.size);
        data += MOE_FRAME_HEADER + header.size;
        size -= MOE_FRAME_HEADER + header.size;
    }
    return 0;
}
