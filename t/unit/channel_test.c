/* Frames and messages: round trips, and that no damaged payload does more than fail. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/channel/message.h"

#define STRING(s) ((moe_string_t) {s, sizeof(s) - 1})

static moe_error_t error;


static moe_request_t full_request(void)
{
    static const uint32_t prompt[] = {3, 1, 4}, stops[] = {7}, allowed[] = {1, 2, 3, 5};
    static const uint32_t resume[] = {11, 0x01020304};
    static const moe_logit_bias_t biases[] = {{9, -1.5f}, {10, 100.0f}};
    static const moe_string_t strings[] = {{"ab\0c", 4}, {"\xc3\xa9", 2}};
    moe_request_t r;

    moe_request_defaults(&r);
    r.kind = MOE_PROMPT_CHAT;
    r.flags = MOE_REQUEST_ECHO | MOE_REQUEST_IGNORE_EOS | MOE_REQUEST_PARSE_TOOLS;
    r.given = MOE_GIVEN_SEED;
    r.prompt = STRING("[{\"role\":\"user\"}]");
    r.template_arguments = STRING("{}");
    r.tools = STRING("[{\"type\":\"function\"}]");
    r.tenant = STRING("team");
    r.salt = STRING("grain");
    r.prompt_ids = prompt;
    r.n_prompt_ids = 3;
    r.max_tokens = 17;
    r.min_tokens = 2;
    r.temperature = 0.25f;
    r.top_k = 40;
    r.seed = 0x0123456789abcdefull;
    r.logprobs = 20;
    r.priority = -5;
    r.stops = strings;
    r.n_stops = 2;
    r.stop_ids = stops;
    r.n_stop_ids = 1;
    r.biases = biases;
    r.n_biases = 2;
    r.allowed_ids = allowed;
    r.n_allowed_ids = 4;
    r.resume_ids = resume;
    r.n_resume_ids = 2;
    return r;
}


static void encode_request(moe_buffer_t *out)
{
    moe_request_t r = full_request();

    memset(out, 0, sizeof(*out));
    assert_int_equal(moe_request_encode(out, 42, &r, &error), 0);
}


static void test_request_round_trip(void **state)
{
    moe_request_t expected = full_request(), *r;
    moe_frame_header_t header;
    moe_buffer_t out;

    encode_request(&out);
    assert_int_equal(moe_frame_parse(out.data, out.size, &header, &error), 1);
    assert_int_equal(header.type, MOE_FRAME_REQUEST);
    assert_int_equal(header.id, 42);
    assert_int_equal(header.size, out.size - MOE_FRAME_HEADER);

    r = moe_request_decode(out.data + MOE_FRAME_HEADER, header.size, &error);
    moe_buffer_free(&out);                      /* the request owns all it points to */
    assert_non_null(r);
    assert_int_equal(r->kind, expected.kind);
    assert_int_equal(r->flags, expected.flags);
    assert_int_equal(r->given, expected.given);
    assert_int_equal(r->prompt.size, expected.prompt.size);
    assert_memory_equal(r->prompt.data, expected.prompt.data, expected.prompt.size);
    assert_memory_equal(r->template_arguments.data, "{}", 2);
    assert_int_equal(r->tools.size, expected.tools.size);
    assert_memory_equal(r->tools.data, expected.tools.data, expected.tools.size);
    assert_int_equal(r->tenant.size, 4);
    assert_memory_equal(r->tenant.data, "team", 4);
    assert_memory_equal(r->salt.data, "grain", 5);
    assert_memory_equal(r->prompt_ids, expected.prompt_ids, 12);
    assert_int_equal(r->max_tokens, 17);
    assert_int_equal(r->min_tokens, 2);
    assert_true(r->temperature == 0.25f && r->top_p == 1.0f && r->repetition_penalty == 1.0f);
    assert_int_equal(r->top_k, 40);
    assert_true(r->seed == expected.seed);
    assert_int_equal(r->logprobs, 20);
    assert_int_equal(r->prompt_logprobs, -1);
    assert_int_equal(r->priority, -5);
    assert_int_equal(r->n_stops, 2);
    assert_int_equal(r->stops[0].size, 4);
    assert_memory_equal(r->stops[0].data, "ab\0c", 4);
    assert_memory_equal(r->stops[1].data, "\xc3\xa9", 2);
    assert_int_equal(r->stop_ids[0], 7);
    assert_int_equal(r->biases[1].id, 10);
    assert_true(r->biases[0].bias == -1.5f);
    assert_int_equal(r->n_allowed_ids, 4);
    assert_int_equal(r->allowed_ids[3], 5);
    assert_int_equal(r->n_resume_ids, 2);
    assert_memory_equal(r->resume_ids, expected.resume_ids, 8);
    free(r);
}


/* A kept frame with ids added is the frame of a request with these ids. */
static void test_request_resume(void **state)
{
    static const uint8_t ids[] = {11, 0, 0, 0, 4, 3, 2, 1};
    moe_request_t r = full_request();
    moe_buffer_t expected, kept = {0};

    encode_request(&expected);
    r.n_resume_ids = 0;
    assert_int_equal(moe_request_encode(&kept, 42, &r, &error), 0);
    assert_int_equal(moe_request_resume(&kept, ids, 0, &error), 0);
    assert_int_equal(moe_request_resume(&kept, ids, 1, &error), 0);
    assert_int_equal(moe_request_resume(&kept, ids + 4, 1, &error), 0);
    assert_int_equal(kept.size, expected.size);
    assert_memory_equal(kept.data, expected.data, expected.size);

    kept.limit = kept.size + 7;
    assert_int_equal(moe_request_resume(&kept, ids, 2, &error), -1);
    assert_int_equal(error.code, MOE_LIMIT);
    assert_memory_equal(kept.data, expected.data, expected.size);
    assert_int_equal(kept.size, expected.size);
    moe_buffer_free(&kept);
    moe_buffer_free(&expected);
}


/* Every cut fails; every change of a byte is decoded or fails, and never reads outside (run
 * under the address sanitizer, the copy below is exactly as long as the payload). */
static void test_request_damaged(void **state)
{
    moe_buffer_t out;
    moe_request_t *r;
    size_t size;
    uint64_t random = 1;

    encode_request(&out);
    size = out.size - MOE_FRAME_HEADER;
    for (size_t cut = 0; cut < size; cut++) {
        char *copy = malloc(cut + 1);

        memcpy(copy, out.data + MOE_FRAME_HEADER, cut);
        assert_null(moe_request_decode(copy, cut, &error));
        assert_int_equal(error.code, MOE_INVALID);
        free(copy);
    }
    for (int round = 0; round < 20000; round++) {
        char *copy = malloc(size);

        memcpy(copy, out.data + MOE_FRAME_HEADER, size);
        for (int i = 0; i < 1 + round % 4; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            copy[(random >> 33) % size] = (char) (random >> 24);
        }
        r = moe_request_decode(copy, size, &error);
        free(copy);
        if (r != NULL) {
            for (uint32_t i = 0; i < r->n_stops; i++) {
                assert_in_range(r->stops[i].size, 1, MOE_STOP_BYTES_LIMIT);
            }
            assert_true(isfinite(r->temperature));
        }
        free(r);
    }
    moe_buffer_free(&out);
}


static void expect_refused(moe_request_t r)
{
    moe_buffer_t out = {0};

    assert_int_equal(moe_request_encode(&out, 1, &r, &error), 0);
    assert_null(moe_request_decode(out.data + MOE_FRAME_HEADER, out.size - MOE_FRAME_HEADER,
                                   &error));
    moe_buffer_free(&out);
}


static void test_request_bounds(void **state)
{
    static moe_string_t many[MOE_STOPS_LIMIT + 1];
    static char long_stop[MOE_STOP_BYTES_LIMIT + 1];
    moe_request_t r;

    for (size_t i = 0; i <= MOE_STOPS_LIMIT; i++) {
        many[i] = STRING("x");
    }
    r = full_request();
    r.stops = many;
    r.n_stops = MOE_STOPS_LIMIT + 1;
    expect_refused(r);
    r.n_stops = 1;
    many[0] = (moe_string_t) {long_stop, sizeof(long_stop)};
    expect_refused(r);
    many[0].size = 0;
    expect_refused(r);
    r = full_request();
    r.temperature = NAN;
    expect_refused(r);
    r = full_request();
    r.min_p = INFINITY;
    expect_refused(r);
    r = full_request();
    r.logprobs = 21;
    expect_refused(r);
    r = full_request();
    r.kind = 4;
    expect_refused(r);
}


static void test_frame_header(void **state)
{
    moe_frame_header_t header;
    moe_buffer_t out = {0};

    assert_int_equal(moe_credit_encode(&out, 5, 77, &error), 0);
    for (size_t size = 0; size < out.size; size++) {
        assert_int_equal(moe_frame_parse(out.data, size, &header, &error), 0);
    }
    assert_int_equal(moe_frame_parse(out.data, out.size, &header, &error), 1);
    out.data[6] ^= 1;
    assert_int_equal(moe_frame_parse(out.data, out.size, &header, &error), -1);
    out.data[6] ^= 1;
    memset(out.data, 0xff, 4);
    assert_int_equal(moe_frame_parse(out.data, out.size, &header, &error), -1);
    moe_buffer_free(&out);
}


static void test_events_round_trip(void **state)
{
    moe_logprob_t records[2] = {
        {{5, -0.5f, STRING("he")}, 1, {{5, -0.5f, STRING("he")}}},
        {{6, -9999.0f, STRING("\xff")}, 0, {{0}}},
    }, record;
    const uint32_t ids[] = {5, 6};
    moe_started_t started = {.prompt_tokens = 2, .cached_tokens = 1, .queue_ns = 3,
                             .prefill_ns = 4, .prompt_text = STRING("hi"), .n_prompt_ids = 2,
                             .n_logprobs = 2}, started2;
    moe_done_t done = {MOE_FINISH_STOP, STRING("END"), -1, 2, 1, 9, 4, 123}, done2;
    moe_admitted_t admitted = {.prompt_tokens = 7}, admitted2;
    moe_tokens_t tokens;
    moe_deltas_t deltas = {0};
    moe_delta_t delta;
    moe_buffer_t out = {0};
    const char *payload;

    assert_int_equal(moe_admitted_encode(&out, 1, &admitted, &error), 0);
    payload = out.data + MOE_FRAME_HEADER;
    assert_int_equal(moe_admitted_decode(payload, out.size - MOE_FRAME_HEADER, &admitted2), 0);
    assert_int_equal(admitted2.prompt_tokens, 7);
    assert_int_equal(moe_admitted_decode(payload, out.size - MOE_FRAME_HEADER - 1, &admitted2), -1);

    out.size = 0;
    assert_int_equal(moe_started_encode(&out, 1, &started, ids, records, &error), 0);
    payload = out.data + MOE_FRAME_HEADER;
    assert_int_equal(moe_started_decode(payload, out.size - MOE_FRAME_HEADER, &started2), 0);
    assert_int_equal(started2.prompt_tokens, 2);
    assert_int_equal(moe_id_at(started2.prompt_ids, 1), 6);
    assert_memory_equal(started2.prompt_text.data, "hi", 2);
    assert_int_equal(moe_logprob_next(&started2.logprobs, &record), 0);
    assert_int_equal(record.n_top, 1);
    assert_int_equal(moe_logprob_next(&started2.logprobs, &record), 0);
    assert_true(record.token.logprob == -9999.0f);
    assert_int_equal(moe_started_decode(payload, out.size - MOE_FRAME_HEADER - 1, &started2), -1);

    out.size = 0;
    assert_int_equal(moe_deltas_add(&deltas, MOE_DELTA_REASONING, "hm", 2, &error), 0);
    assert_int_equal(moe_deltas_add(&deltas, MOE_DELTA_CONTENT, "h", 1, &error), 0);
    assert_int_equal(moe_deltas_add(&deltas, MOE_DELTA_CONTENT, "e", 1, &error), 0);
    assert_int_equal(moe_deltas_add(&deltas, MOE_DELTA_CONTENT, "", 0, &error), 0);
    assert_int_equal(moe_deltas_add_call(&deltas, STRING("id"), STRING("name"), STRING("{}"),
                                         &error), 0);
    assert_int_equal(moe_tokens_encode(&out, 1, &deltas, ids, 2, records, &error), 0);
    payload = out.data + MOE_FRAME_HEADER;
    assert_int_equal(moe_tokens_decode(payload, out.size - MOE_FRAME_HEADER, &tokens), 0);
    assert_int_equal(tokens.n_ids, 2);
    assert_int_equal(tokens.n_logprobs, 2);
    assert_int_equal(tokens.n_deltas, 3);
    assert_int_equal(moe_delta_next(&tokens.deltas, &delta), 0);
    assert_int_equal(delta.kind, MOE_DELTA_REASONING);
    assert_memory_equal(delta.text.data, "hm", 2);
    assert_int_equal(moe_delta_next(&tokens.deltas, &delta), 0);
    assert_int_equal(delta.kind, MOE_DELTA_CONTENT);
    assert_int_equal(delta.text.size, 2);
    assert_memory_equal(delta.text.data, "he", 2);
    assert_int_equal(moe_delta_next(&tokens.deltas, &delta), 0);
    assert_int_equal(delta.kind, MOE_DELTA_CALL);
    assert_memory_equal(delta.id.data, "id", 2);
    assert_memory_equal(delta.name.data, "name", 4);
    assert_memory_equal(delta.text.data, "{}", 2);
    for (size_t cut = 0; cut < out.size - MOE_FRAME_HEADER; cut++) {
        assert_int_equal(moe_tokens_decode(payload, cut, &tokens), -1);
    }
    out.data[MOE_FRAME_HEADER + 4] = 4;         /* no kind */
    assert_int_equal(moe_tokens_decode(payload, out.size - MOE_FRAME_HEADER, &tokens), -1);
    moe_deltas_free(&deltas);

    out.size = 0;
    assert_int_equal(moe_done_encode(&out, 1, &done, &error), 0);
    payload = out.data + MOE_FRAME_HEADER;
    assert_int_equal(moe_done_decode(payload, out.size - MOE_FRAME_HEADER, &done2), 0);
    assert_int_equal(done2.stop_id, -1);
    assert_int_equal(done2.completion_tokens, 9);
    assert_int_equal(done2.reasoning_tokens, 4);
    assert_memory_equal(done2.stop.data, "END", 3);
    out.data[MOE_FRAME_HEADER] = 0;
    assert_int_equal(moe_done_decode(payload, out.size - MOE_FRAME_HEADER, &done2), -1);
    moe_buffer_free(&out);
}


static void test_state_round_trip(void **state)
{
    moe_state_t sent = {MOE_STATE_LOADING, 40, 512, 2048, 1, 2, 3, 4, 5, STRING("why")}, got;
    const uint64_t counts[] = {1, 2, 3, 4, 5, 1ull << 40};
    moe_stats_t stats = {.running = 3}, stats2;
    moe_expert_load_t load;
    uint32_t wanted;
    moe_failure_t failure = {MOE_TOO_LONG, STRING("prompt"), STRING("too long")}, failure2;
    moe_buffer_t out = {0};

    assert_int_equal(moe_state_encode(&out, &sent, &error), 0);
    assert_int_equal(moe_state_decode(out.data + 16, out.size - 16, &got), 0);
    assert_int_equal(got.progress, 40);
    assert_int_equal(got.loaded_unix, 5);
    assert_int_equal(moe_state_decode(out.data + 16, out.size - 17, &got), -1);
    out.data[16] = 9;
    assert_int_equal(moe_state_decode(out.data + 16, out.size - 16, &got), -1);

    out.size = 0;
    assert_int_equal(moe_stats_ask(&out, 8, MOE_STATS_EXPERTS, &error), 0);
    assert_int_equal(moe_stats_asked(out.data + 16, out.size - 16, &wanted), 0);
    assert_int_equal(wanted, MOE_STATS_EXPERTS);
    assert_int_equal(moe_stats_asked(out.data + 16, out.size - 17, &wanted), -1);

    out.size = 0;
    assert_int_equal(moe_stats_encode(&out, 8, &stats, NULL, 0, 0, &error), 0);
    assert_int_equal(moe_stats_decode(out.data + 16, out.size - 16, &stats2, &load), 0);
    assert_int_equal(stats2.running, 3);
    assert_int_equal(load.layers * load.experts, 0);
    assert_int_equal(moe_stats_decode(out.data + 16, out.size - 17, &stats2, &load), -1);

    out.size = 0;
    assert_int_equal(moe_stats_encode(&out, 8, &stats, counts, 2, 3, &error), 0);
    assert_int_equal(moe_stats_decode(out.data + 16, out.size - 16, &stats2, &load), 0);
    assert_int_equal(load.layers, 2);
    assert_int_equal(load.experts, 3);
    for (size_t i = 0; i < 6; i++) {
        assert_true(moe_count_at(load.counts, i) == counts[i]);
    }
    for (size_t size = 0; size < out.size - 16; size++) {
        assert_int_equal(moe_stats_decode(out.data + 16, size, &stats2, &load), -1);
    }

    out.size = 0;
    assert_int_equal(moe_failure_encode(&out, 8, &failure, &error), 0);
    assert_int_equal(moe_failure_decode(out.data + 16, out.size - 16, &failure2), 0);
    assert_int_equal(failure2.code, MOE_TOO_LONG);
    assert_int_equal(failure2.field.size, 6);
    moe_buffer_free(&out);
}


static void test_histogram(void **state)
{
    moe_histogram_t histogram = {0};

    moe_histogram_add(&histogram, 0.001, MOE_TTFT_BUCKETS, 0.0005);
    moe_histogram_add(&histogram, 0.001, MOE_TTFT_BUCKETS, 0.001);      /* bounds are inclusive */
    moe_histogram_add(&histogram, 0.001, MOE_TTFT_BUCKETS, 0.003);
    moe_histogram_add(&histogram, 0.001, MOE_TTFT_BUCKETS, 1e9);
    assert_int_equal(histogram.count, 4);
    assert_int_equal(histogram.buckets[0], 2);
    assert_int_equal(histogram.buckets[2], 1);
    assert_int_equal(histogram.buckets[MOE_TTFT_BUCKETS - 1], 1);
}


static void test_buffer_limit(void **state)
{
    moe_buffer_t buffer = {.limit = 10};

    assert_int_equal(moe_buffer_append(&buffer, "0123456789", 10, &error), 0);
    assert_int_equal(moe_buffer_append(&buffer, "x", 1, &error), -1);
    assert_int_equal(error.code, MOE_LIMIT);
    moe_buffer_consume(&buffer, 4);
    assert_int_equal(buffer.size, 6);
    assert_memory_equal(buffer.data, "456789", 6);
    moe_buffer_free(&buffer);
}


static void test_error_text(void **state)
{
    char text[1000];

    moe_fail(&error, MOE_INVALID, "a\nb%s", "\x7f");
    assert_string_equal(error.message, "a?b?");
    moe_fail_in(&error, "key %d", 3);
    assert_string_equal(error.message, "key 3: a?b?");
    memset(text, 'x', sizeof(text));
    memcpy(text + sizeof(error.message) - 3, "\xe4\xb8\xad", 3);        /* cut inside */
    text[999] = '\0';
    moe_fail(&error, MOE_INVALID, "%s", text);
    assert_int_equal(strlen(error.message), sizeof(error.message) - 3);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frame_header),
        cmocka_unit_test(test_request_round_trip),
        cmocka_unit_test(test_request_resume),
        cmocka_unit_test(test_request_damaged),
        cmocka_unit_test(test_request_bounds),
        cmocka_unit_test(test_events_round_trip),
        cmocka_unit_test(test_state_round_trip),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_buffer_limit),
        cmocka_unit_test(test_error_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
