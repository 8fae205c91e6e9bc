/*
 * The prefix cache in the engine, with the demo model: an answer has the same bytes whatever was
 * found in the cache, what was found is counted exactly, and nothing is computed twice.
 */

#include "t/unit/answers.h"

#define REQUESTS 48u
#define TOGETHER 12u


/* Ids of a prompt: `branch` begins as all others do and goes on by itself. */
static void make_prompt(uint32_t *ids, uint32_t n, unsigned branch)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i < 16 * (branch % 7) + branch % 11 ? i : i + 1000 * branch;

        ids[i] = 6 + at * 2654435761u % 2000;
    }
}


/* Request number i, with the prompt that `ids` has room for: few prompts, many ends and seeds. */
static moe_request_t make_request(unsigned i, uint32_t *ids)
{
    moe_request_t request = text_request("", 5 + i * 7 % 60);

    request.kind = MOE_PROMPT_TOKENS;
    request.prompt_ids = ids;
    request.n_prompt_ids = 1 + i * 37 % 150;
    make_prompt(ids, request.n_prompt_ids, i % 9);
    request.temperature = i % 3 ? 1.0f : 0.0f;
    request.seed = 100 + i % 5;
    request.given |= MOE_GIVEN_SEED;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.logprobs = 2;
    if (i % 5 == 4) {
        request.prompt_logprobs = 1;
    }
    if (i % 4 == 3) {
        request.salt = (moe_string_t) { "tenant", 6 };
    }
    return request;
}


static uint64_t block_bytes(moe_kv_type_t type)
{
    moe_error_t error;
    moe_model_t *model = moe_model_open(MODEL, &error);
    uint64_t bytes;

    assert_non_null(model);
    bytes = moe_forward_block_bytes(model, type);
    moe_model_close(model);
    return bytes;
}


/* All requests in a random order, some at a time, of which some are cut short. */
static void run_all(moe_engine_t *engine, const answer_t *expected, unsigned seed)
{
    answer_t *answers = calloc(TOGETHER, sizeof(answer_t));
    unsigned order[REQUESTS], cancelled[TOGETHER];
    uint32_t ids[CONTEXT];

    assert_non_null(answers);
    for (unsigned i = 0; i < REQUESTS; i++) {
        unsigned j = (unsigned) rand_r(&seed) % (i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (unsigned at = 0; at < REQUESTS; at += TOGETHER) {
        for (unsigned i = 0; i < TOGETHER; i++) {
            moe_request_t request = make_request(order[at + i], ids);

            submit_ok(engine, &answers[i], i, &request);
            cancelled[i] = rand_r(&seed) % 8 == 0;
        }
        for (unsigned i = 0; i < TOGETHER; i++) {
            if (cancelled[i]) {
                wait_tokens(&answers[i], (uint32_t) rand_r(&seed) % 4);
                moe_engine_cancel(engine, &answers[i], i);
            }
        }
        for (unsigned i = 0; i < TOGETHER; i++) {
            wait_tokens(&answers[i], UINT32_MAX);
            if (!cancelled[i]) {
                assert_same(&expected[order[at + i]], &answers[i]);
            }
        }
    }
    free(answers);
}


/* Every `step`th of some settings. */
static void check_same_bytes(moe_kv_type_t type, size_t step)
{
    const uint64_t block = block_bytes(type);
    moe_engine_options_t options[] = {
        { .threads = 1 },
        { .threads = 2, .batch_tokens = 24 },
        { .threads = 1, .batch_sequences = 3, .step_time_ms = 1 },
        { .threads = 2, .kv_cache = 26 * block },
        { .threads = 1, .kv_cache = 17 * block, .batch_tokens = 17 },
        { .threads = 2, .kv_cache = 17 * block, .no_prefix_cache = 1 }
    };
    answer_t *expected = calloc(REQUESTS, sizeof(answer_t));
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .no_prefix_cache = 1, .kv_type = type
    });
    uint32_t ids[CONTEXT];
    moe_stats_t stats;

    assert_non_null(expected);
    for (unsigned i = 0; i < REQUESTS; i++) {
        moe_request_t request = make_request(i, ids);

        ask(engine, &expected[i], &request);
        assert_int_equal(0, expected[i].end.cached_tokens);
    }
    moe_engine_stats(engine, &stats);
    assert_int_equal(0, stats.cache_queries);
    moe_engine_free(engine);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i += step) {
        options[i].kv_type = type;
        engine = new_engine(options[i]);
        for (unsigned round = 0; round < 2; round++) {
            run_all(engine, expected, 10 * (unsigned) i + round);
        }
        assert_idle(engine);
        moe_engine_stats(engine, &stats);
        assert_true((stats.cache_hits > 1000) == !options[i].no_prefix_cache);
        assert_true((stats.preemptions > 0) == (options[i].kv_cache > 0));
        moe_engine_free(engine);
    }
    free(expected);
}


static void test_same_bytes(void **state)
{
    check_same_bytes(MOE_KV_F32, 1);
    check_same_bytes(MOE_KV_BF16, 4);
    check_same_bytes(MOE_KV_Q8_0, 3);
}


/* What the same prompt finds when it comes again, as reported and as counted. */
static void test_counts(void **state)
{
    static const struct {
        const char *what;
        uint32_t n_prompt, cached;
        const char *salt;
        int32_t prompt_logprobs;
    } cases[] = {
        { "cold", 100, 0, "", -1 },
        { "the same, with one more block of the first answer", 100, 99, "", -1 },
        { "shorter", 33, 32, "", -1 },
        { "ends with a block", 96, 95, "", -1 },
        { "one token", 1, 0, "", -1 },
        { "longer than what was computed", 130, 100, "", -1 },
        { "another salt: cold", 100, 0, "a", -1 },
        { "the same salt", 100, 99, "a", -1 },
        { "all rows are wanted", 100, 0, "", 0 }
    };
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    answer_t *answer = calloc(1, sizeof(*answer));
    uint64_t queries = 0, hits = 0;
    uint32_t ids[CONTEXT];
    moe_stats_t stats;

    assert_non_null(answer);
    make_prompt(ids, CONTEXT, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_request_t request = text_request("", 30);

        request.kind = MOE_PROMPT_TOKENS;
        request.flags = MOE_REQUEST_IGNORE_EOS;
        request.prompt_ids = ids;
        request.n_prompt_ids = cases[i].n_prompt;
        request.prompt_logprobs = cases[i].prompt_logprobs;
        request.salt = (moe_string_t) { cases[i].salt, (uint32_t) strlen(cases[i].salt) };
        ask(engine, answer, &request);
        if (answer->start.cached_tokens != cases[i].cached) {
            fail_msg("%s: %u", cases[i].what, answer->start.cached_tokens);
        }
        assert_int_equal(cases[i].cached, answer->end.cached_tokens);
        queries += cases[i].n_prompt;
        hits += cases[i].cached;
        moe_engine_stats(engine, &stats);
        assert_int_equal(queries, stats.cache_queries);
        assert_int_equal(hits, stats.cache_hits);
    }
    moe_engine_free(engine);
    free(answer);
}


/* A conversation goes on behind the answer it got: that was computed, too. */
static void test_answers_are_kept(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    answer_t *answer = calloc(1, sizeof(*answer));
    moe_request_t request = text_request("", 60);
    uint32_t ids[CONTEXT];

    assert_non_null(answer);
    make_prompt(ids, 50, 0);
    request.kind = MOE_PROMPT_TOKENS;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.prompt_ids = ids;
    request.n_prompt_ids = 50;
    ask(engine, answer, &request);
    assert_int_equal(60, answer->n_ids);
    memcpy(ids + 50, answer->ids, 60 * sizeof(uint32_t));
    make_prompt(ids + 110, 40, 3);
    request.n_prompt_ids = 150;
    ask(engine, answer, &request);
    /* The last of 110 tokens was drawn, never computed: six full blocks. */
    assert_int_equal(96, answer->start.cached_tokens);

    /* An answer that is taken up again counts its prompt only. */
    request.n_prompt_ids = 50;
    request.resume_ids = ids + 50;
    request.n_resume_ids = 50;
    ask(engine, answer, &request);
    assert_int_equal(10, answer->n_ids);
    assert_int_equal(50, answer->start.cached_tokens);
    moe_engine_free(engine);
    free(answer);
}


/* Many at once with one prompt: it is computed once, but for what follows its last full block. */
static void test_company_of_one_prompt(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1, .batch_tokens = 32 });
    answer_t *answers = calloc(TOGETHER, sizeof(answer_t));
    unsigned cold = 0;
    uint32_t ids[CONTEXT];
    moe_stats_t stats;

    assert_non_null(answers);
    make_prompt(ids, 300, 0);
    for (unsigned i = 0; i < TOGETHER; i++) {
        moe_request_t request = text_request("", 4);

        request.kind = MOE_PROMPT_TOKENS;
        request.flags = MOE_REQUEST_IGNORE_EOS;
        request.prompt_ids = ids;
        request.n_prompt_ids = 300;
        submit_ok(engine, &answers[i], i, &request);
    }
    for (unsigned i = 0; i < TOGETHER; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
        assert_same(&answers[0], &answers[i]);
        cold += answers[i].start.cached_tokens == 0;
    }
    assert_int_equal(1, cold);
    assert_idle(engine);
    moe_engine_stats(engine, &stats);
    /* Who comes late may find more, in a block that an answer has filled. */
    assert_true(stats.step_rows <= 300 + (TOGETHER - 1) * 12 + TOGETHER * 3);
    moe_engine_free(engine);
    free(answers);
}


/* The same stream given up again and again leaves nothing behind but what can be found. */
static void test_aborted(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .threads = 1, .kv_cache = 40 * block_bytes(MOE_KV_F32)
    });
    answer_t *answer = calloc(1, sizeof(*answer));
    uint32_t ids[CONTEXT];

    assert_non_null(answer);
    make_prompt(ids, CONTEXT, 0);
    for (unsigned i = 0; i < 100; i++) {
        moe_request_t request = text_request("", 100);

        request.kind = MOE_PROMPT_TOKENS;
        request.flags = MOE_REQUEST_IGNORE_EOS;
        request.prompt_ids = ids;
        request.n_prompt_ids = 200;
        submit_ok(engine, answer, i, &request);
        wait_tokens(answer, i % 3);
        moe_engine_cancel(engine, answer, i);
        wait_tokens(answer, UINT32_MAX);
    }
    assert_idle(engine);
    moe_engine_free(engine);
    free(answer);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_answers_are_kept),
        cmocka_unit_test(test_company_of_one_prompt),
        cmocka_unit_test(test_aborted)
    };

    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
