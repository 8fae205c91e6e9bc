/*
 * The engine with the demo model: the same request gives the same bytes in any company, and every
 * way a request can begin, end or be refused.
 */

#include "t/unit/answers.h"

#define COMPANY 32u


/* ---- the same request in any company ---- */

#define KINDS 6u

/* Request number i of the company: six kinds, with seeds and prompts of their own. */
static moe_request_t company_request(unsigned i, char *prompt, size_t size)
{
    static const moe_string_t stop = { "Context", 7 };
    static const char *const names[] = { "gzip", "listen", "proxy_pass", "root", "ssl_crl" };
    static const moe_string_t tenants[] = { { "", 0 }, { "one", 3 }, { "another", 7 } };
    moe_request_t request;

    snprintf(prompt, size, "Syntax: %s", names[i % 5]);
    if (i % KINDS == 4) {
        while (strlen(prompt) + 32 < size) {
            strcat(prompt, "\nSyntax: server_name name ...;");
        }
    }
    request = text_request(prompt, 40 + i % 7);
    request.tenant = tenants[i % 3];
    request.seed = 100 + i;
    request.given |= MOE_GIVEN_SEED;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    switch (i % KINDS) {
    case 0:
        request.logprobs = 5;
        break;
    case 1:
        request.temperature = 1.2f;
        request.logprobs = 2;
        break;
    case 2:
        request.temperature = 0.8f;
        request.top_p = 0.9f;
        request.top_k = 50;
        request.given |= MOE_GIVEN_TOP_P | MOE_GIVEN_TOP_K | MOE_GIVEN_REPETITION_PENALTY;
        request.repetition_penalty = 1.3f;
        request.presence_penalty = 0.5f;
        request.frequency_penalty = 0.5f;
        break;
    case 3:
        request.stops = &stop;
        request.n_stops = 1;
        break;
    default:
        request.prompt_logprobs = 3;
        request.flags |= MOE_REQUEST_ECHO;
    }
    return request;
}


static void run_company(moe_engine_t *engine, answer_t *answers)
{
    static char prompts[COMPANY][600];

    for (unsigned i = 0; i < COMPANY; i++) {
        moe_request_t request = company_request(i, prompts[i], sizeof(prompts[i]));

        submit_ok(engine, &answers[i], i, &request);
    }
    for (unsigned i = 0; i < COMPANY; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
    }
}


static uint64_t block_bytes(void)
{
    moe_error_t error;
    moe_model_t *model = moe_model_open(MODEL, &error);
    uint64_t bytes;

    assert_non_null(model);
    bytes = moe_forward_block_bytes(model, MOE_KV_F32);
    moe_model_close(model);
    return bytes;
}


static void test_any_company(void **state)
{
    const moe_engine_options_t options[] = {
        { .threads = 1, .batch_tokens = 512 },
        { .threads = 2, .batch_tokens = 512 },
        { .threads = 1, .batch_tokens = 16 },
        { .threads = 2, .batch_tokens = 16, .step_time_ms = 1 },
        { .threads = 2, .ranks = 2, .batch_tokens = 512 },
        { .threads = 4, .ranks = 4, .batch_tokens = 16, .step_time_ms = 1 },
        { .threads = 8, .ranks = 8 },
        { .threads = 2, .ranks = 2, .batch_sequences = 3 },
        { .threads = 2, .ranks = 2, .kv_cache = 36 * block_bytes() },
        { .threads = 1, .batch_sequences = 3 },
        /* 18 blocks of 16 tokens: far from enough for all at once. */
        { .threads = 2, .kv_cache = 18 * block_bytes() }
    };
    answer_t *alone = calloc(COMPANY, sizeof(answer_t));
    answer_t *answers = calloc(COMPANY, sizeof(answer_t));
    moe_engine_t *engine = new_engine(options[0]);
    char prompt[600];
    moe_stats_t stats;

    assert_true(alone && answers);
    for (unsigned i = 0; i < COMPANY; i++) {
        moe_request_t request = company_request(i, prompt, sizeof(prompt));

        ask(engine, &alone[i], &request);
    }
    moe_engine_free(engine);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        engine = new_engine(options[i]);
        run_company(engine, answers);
        for (unsigned j = 0; j < COMPANY; j++) {
            assert_same(&alone[j], &answers[j]);
        }
        assert_idle(engine);
        moe_engine_stats(engine, &stats);
        assert_int_equal(options[i].kv_cache != 0, stats.preemptions > 0);
        moe_engine_free(engine);
    }
    free(alone);
    free(answers);
}


/* A prompt's log-probabilities are those its tokens had when they were generated, and a generation
 * goes on the same when it is taken up from its own ids. */
static void test_prompt_and_generation_agree(void **state)
{
    answer_t *first = calloc(1, sizeof(*first)), *second = calloc(1, sizeof(*second));
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    moe_request_t request = text_request(QUESTION, 40);
    uint32_t ids[CONTEXT], n_prompt;

    assert_true(first && second);
    request.temperature = 1.1f;
    request.seed = 5;
    request.given |= MOE_GIVEN_SEED;
    request.flags = MOE_REQUEST_IGNORE_EOS | MOE_REQUEST_PROMPT_IDS;
    request.logprobs = 4;
    ask(engine, first, &request);
    n_prompt = first->start.prompt_tokens;
    assert_int_equal(n_prompt, first->start.n_prompt_ids);
    assert_int_equal(40, first->n_ids);

    memcpy(ids, first->prompt_ids, n_prompt * sizeof(uint32_t));
    memcpy(ids + n_prompt, first->ids, 40 * sizeof(uint32_t));
    request.kind = MOE_PROMPT_TOKENS;
    request.prompt_ids = ids;
    request.n_prompt_ids = n_prompt + 40;
    request.max_tokens = 0;
    request.prompt_logprobs = 4;
    request.flags |= MOE_REQUEST_ECHO;
    ask(engine, second, &request);
    assert_int_equal(1, second->done);
    assert_int_equal(MOE_FINISH_LENGTH, second->end.reason);
    assert_int_equal(0, second->end.completion_tokens);
    assert_int_equal(0, second->n_ids);
    assert_int_equal(n_prompt + 40, second->start.n_logprobs);
    assert_true(isnan(second->prompt_logprobs[0].token.logprob));
    assert_int_equal(0, second->prompt_logprobs[0].n_top);
    assert_same_logprobs(first->logprobs, second->prompt_logprobs + n_prompt, 40);
    /* The echoed text of ids is what was generated. */
    assert_non_null(strstr(second->prompt_text, QUESTION));
    assert_non_null(strstr(second->prompt_text, first->text));

    for (uint32_t cut = 1; cut < 40; cut += 13) {
        request.n_prompt_ids = n_prompt + cut;
        request.max_tokens = 40 - cut;
        request.prompt_logprobs = -1;
        ask(engine, second, &request);
        assert_int_equal(40 - cut, second->n_ids);
        assert_memory_equal(first->ids + cut, second->ids, (40 - cut) * sizeof(uint32_t));
        assert_same_logprobs(first->logprobs + cut, second->logprobs, 40 - cut);
    }
    moe_engine_free(engine);
    free(first);
    free(second);
}


/* ---- how a generation ends ---- */

static void test_endings(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    answer_t *whole = calloc(1, sizeof(*whole)), *answer = calloc(1, sizeof(*answer));
    moe_request_t request = text_request(QUESTION, 100);
    moe_string_t stops[2];
    char expected[8192];
    size_t cut;

    assert_true(whole && answer);
    ask(engine, whole, &request);
    assert_int_equal(MOE_FINISH_STOP, whole->end.reason);
    assert_int_equal(-1, whole->end.stop_id);
    assert_int_equal(1, whole->ids[whole->n_ids - 1]);          /* EOS counts and is an id ... */
    assert_int_equal(whole->n_ids, whole->end.completion_tokens);
    assert_null(strstr(whole->text, "<|eos|>"));                /* ... but no text */
    assert_true(whole->n_text > 40);

    /* A stop string that begins and ends inside tokens. */
    cut = whole->n_text / 2;
    stops[0] = (moe_string_t) { "never in the text", 17 };
    stops[1] = (moe_string_t) { whole->text + cut, 9 };
    snprintf(expected, sizeof(expected), "%.*s", (int) cut, whole->text);
    assert_null(strstr(expected, "\t"));
    request.stops = stops;
    request.n_stops = 2;
    ask(engine, answer, &request);
    assert_int_equal(MOE_FINISH_STOP, answer->end.reason);
    assert_memory_equal(answer->stop, stops[1].data, 9);
    assert_string_equal(expected, answer->text);

    request.flags = MOE_REQUEST_INCLUDE_STOP;
    ask(engine, answer, &request);
    snprintf(expected, sizeof(expected), "%.*s", (int) cut + 9, whole->text);
    assert_string_equal(expected, answer->text);

    /* Not before min_tokens. */
    request.flags = 0;
    request.min_tokens = whole->n_ids - 1;
    ask(engine, answer, &request);
    assert_memory_equal(whole->text, answer->text, whole->n_text);
    request.min_tokens = 0;

    /* Text held back for a stop string that never comes is released at max_tokens. */
    for (uint32_t n = 1; n < 12; n++) {
        char prefix[64];

        request.n_stops = 0;
        request.max_tokens = n;
        ask(engine, whole, &request);
        assert_int_equal(MOE_FINISH_LENGTH, whole->end.reason);
        assert_int_equal(n, whole->end.completion_tokens);
        snprintf(prefix, sizeof(prefix), "%s~", whole->text + whole->n_text / 2);
        stops[0] = (moe_string_t) { prefix, (uint32_t) strlen(prefix) };
        request.n_stops = 1;
        ask(engine, answer, &request);
        assert_string_equal(whole->text, answer->text);
        assert_int_equal(MOE_FINISH_LENGTH, answer->end.reason);
    }

    /* A whole stop string waits for a longer one around it: at the end it counts. */
    cut = whole->n_text - 16;
    snprintf(expected, sizeof(expected), "%s~", whole->text + cut - 2);
    stops[0] = (moe_string_t) { expected, (uint32_t) strlen(expected) };
    stops[1] = (moe_string_t) { whole->text + cut, 15 };
    request.n_stops = 2;
    ask(engine, answer, &request);
    assert_int_equal(MOE_FINISH_STOP, answer->end.reason);
    assert_memory_equal(answer->stop, stops[1].data, 15);
    assert_int_equal(cut, answer->n_text);
    assert_memory_equal(whole->text, answer->text, cut);

    moe_engine_free(engine);
    free(whole);
    free(answer);
}


static void test_ending_ids(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    answer_t *whole = calloc(1, sizeof(*whole)), *answer = calloc(1, sizeof(*answer));
    moe_request_t request = text_request(QUESTION, 100);
    uint32_t stop_id;
    size_t n_before;

    assert_true(whole && answer);
    ask(engine, whole, &request);
    stop_id = whole->ids[6];
    request.stop_ids = &stop_id;
    request.n_stop_ids = 1;
    ask(engine, answer, &request);
    assert_int_equal(stop_id, answer->end.stop_id);
    assert_int_equal(MOE_FINISH_STOP, answer->end.reason);
    assert_int_equal(stop_id, answer->ids[answer->n_ids - 1]);
    n_before = answer->n_text;
    assert_memory_equal(whole->text, answer->text, n_before);
    request.flags = MOE_REQUEST_INCLUDE_STOP;
    ask(engine, answer, &request);
    assert_true(answer->n_text > n_before);
    assert_memory_equal(whole->text, answer->text, answer->n_text);

    /* EOS as text, when both are asked for. */
    request.n_stop_ids = 0;
    request.flags = MOE_REQUEST_INCLUDE_STOP | MOE_REQUEST_KEEP_SPECIAL;
    ask(engine, answer, &request);
    assert_string_equal("<|eos|>", answer->text + answer->n_text - 7);

    /* Over the EOS. */
    request.flags = MOE_REQUEST_IGNORE_EOS;
    ask(engine, answer, &request);
    assert_int_equal(100, answer->n_ids);
    assert_int_equal(MOE_FINISH_LENGTH, answer->end.reason);
    assert_memory_equal(whole->ids, answer->ids, whole->n_ids * sizeof(uint32_t));

    request.flags = 0;
    request.min_tokens = whole->n_ids + 3;
    ask(engine, answer, &request);
    assert_true(answer->n_ids > whole->n_ids + 3);
    for (uint32_t i = 0; i < whole->n_ids + 3; i++) {
        assert_int_not_equal(1, answer->ids[i]);
    }

    /* max_tokens not given: as many as the context holds; exactly full is legal. */
    request = text_request(QUESTION, 0);
    request.given = MOE_GIVEN_TEMPERATURE;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    ask(engine, answer, &request);
    assert_int_equal(CONTEXT, answer->end.prompt_tokens + answer->end.completion_tokens);
    request.given |= MOE_GIVEN_MAX_TOKENS;
    request.max_tokens = CONTEXT - answer->end.prompt_tokens;
    ask(engine, answer, &request);
    assert_int_equal(request.max_tokens, answer->n_ids);
    assert_idle(engine);
    moe_engine_free(engine);
    free(whole);
    free(answer);
}


/* ---- refusals ---- */

static void test_refusals(void **state)
{
    static uint32_t many[2048];
    const uint32_t big = 2048, good = 7;
    const moe_logit_bias_t bias = { 4000000000u, 1.0f };
    moe_request_t plain = text_request(QUESTION, 5), requests[16];
    const char *fields[16];
    moe_error_code_t codes[16];
    unsigned n = 0;
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    answer_t *answer = calloc(1, sizeof(*answer));

#define CASE(name, what, change)                                                                   \
    do {                                                                                           \
        moe_request_t *r = &requests[n];                                                           \
        *r = plain;                                                                                \
        change;                                                                                    \
        fields[n] = name;                                                                          \
        codes[n++] = what;                                                                         \
    } while (0)

    CASE("temperature", MOE_INVALID, r->temperature = -0.1f);
    CASE("top_p", MOE_INVALID, (r->top_p = 0.0f, r->given |= MOE_GIVEN_TOP_P));
    CASE("min_p", MOE_INVALID, (r->min_p = 1.1f, r->given |= MOE_GIVEN_MIN_P));
    CASE("repetition_penalty", MOE_INVALID,
         (r->repetition_penalty = 0.0f, r->given |= MOE_GIVEN_REPETITION_PENALTY));
    CASE("logit_bias", MOE_INVALID, (r->biases = &bias, r->n_biases = 1));
    CASE("stop_token_ids", MOE_INVALID, (r->stop_ids = &big, r->n_stop_ids = 1));
    CASE("allowed_token_ids", MOE_INVALID, (r->allowed_ids = &big, r->n_allowed_ids = 1));
    CASE("prompt", MOE_INVALID,
         (r->kind = MOE_PROMPT_TOKENS, r->prompt_ids = &big, r->n_prompt_ids = 1));
    CASE("prompt", MOE_INVALID, r->kind = MOE_PROMPT_TOKENS);
    CASE("prompt", MOE_INVALID, (r->prompt.size = 0, r->flags = MOE_REQUEST_NO_BOS));
    CASE("prompt", MOE_INVALID, (r->prompt.data = "\xff\xfe", r->prompt.size = 2));
    CASE("min_tokens", MOE_INVALID, r->min_tokens = 6);
    CASE("prompt", MOE_TOO_LONG, r->max_tokens = CONTEXT);
    CASE("prompt", MOE_TOO_LONG, r->max_tokens = UINT32_MAX);
    CASE("prompt", MOE_TOO_LONG,
         (r->kind = MOE_PROMPT_TOKENS, r->prompt_ids = many, r->n_prompt_ids = CONTEXT));
    CASE("prompt", MOE_TOO_LONG,
         (r->kind = MOE_PROMPT_TOKENS, r->prompt_ids = many, r->n_prompt_ids = CONTEXT + 1));
#undef CASE

    assert_non_null(answer);
    for (unsigned i = 0; i < n; i++) {
        ask(engine, answer, &requests[i]);
        assert_true(answer->failed && !answer->admitted);
        assert_int_equal(codes[i], answer->code);
        assert_string_equal(fields[i], answer->field);
        assert_true(strlen(answer->message) > 10);
    }
    /* The same lists with good ids are taken; an empty text is a BOS. */
    plain.stop_ids = plain.allowed_ids = &good;
    plain.n_stop_ids = plain.n_allowed_ids = 1;
    plain.prompt.size = 0;
    ask(engine, answer, &plain);
    assert_int_equal(1, answer->done);
    assert_int_equal(1, answer->start.prompt_tokens);
    assert_int_equal(7, answer->ids[0]);
    assert_idle(engine);
    moe_engine_free(engine);
    free(answer);
}


/* ---- cancellation, flow control, queue ---- */

static void test_cancel(void **state)
{
    /* Nobody comes to the end of the credit's 100 tokens, however late this thread is. */
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .threads = 1, .batch_sequences = 4, .credit = 100 });
    answer_t *answers = calloc(8, sizeof(answer_t));
    moe_request_t request = text_request(QUESTION, 450);
    moe_stats_t stats;

    assert_non_null(answers);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    for (unsigned i = 0; i < 8; i++) {          /* four run, four wait */
        submit_ok(engine, &answers[i], i, &request);
    }
    wait_tokens(&answers[0], 5);
    for (unsigned i = 0; i < 8; i++) {
        moe_engine_cancel(engine, &answers[i], i);
        moe_engine_cancel(engine, &answers[i], i + 100);
    }
    for (unsigned i = 0; i < 8; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
        assert_true(answers[i].released && !answers[i].done && !answers[i].failed);
        assert_true(answers[i].n_ids <= 100);
    }
    assert_idle(engine);
    moe_engine_stats(engine, &stats);
    assert_int_equal(8, stats.finished_cancelled);

    /* Cancelled while it is prepared, or freed with everything in flight. */
    for (unsigned i = 0; i < 8; i++) {
        submit_ok(engine, &answers[i], i, &request);
        moe_engine_cancel_all(engine, &answers[i]);
        wait_tokens(&answers[i], UINT32_MAX);
        assert_true(answers[i].released && !answers[i].done);
    }
    for (unsigned i = 0; i < 8; i++) {
        submit_ok(engine, &answers[i], i, &request);
    }
    moe_engine_free(engine);
    for (unsigned i = 0; i < 8; i++) {
        assert_true(answers[i].released && !answers[i].done);
    }
    free(answers);
}


static void test_credit(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1, .credit = 10 });
    answer_t *slow = calloc(1, sizeof(*slow)), *other = calloc(1, sizeof(*other));
    moe_request_t request = text_request(QUESTION, 60);
    moe_stats_t stats;

    assert_true(slow && other);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    submit_ok(engine, slow, 1, &request);
    wait_tokens(slow, 10);
    submit_ok(engine, other, 2, &request);
    for (uint32_t n = 10; n < 60; n += 10) {        /* somebody else is served meanwhile */
        wait_tokens(other, n);
        moe_engine_credit(engine, other, 2, 10);
    }
    wait_tokens(other, UINT32_MAX);
    assert_int_equal(60, other->n_ids);
    assert_int_equal(10, slow->n_ids);
    moe_engine_stats(engine, &stats);
    assert_true(stats.blocks_used > 0);
    moe_engine_credit(engine, slow, 1, 20);
    wait_tokens(slow, 30);
    moe_engine_credit(engine, slow, 1, UINT32_MAX);
    moe_engine_credit(engine, slow, 1, UINT32_MAX);
    wait_tokens(slow, UINT32_MAX);
    assert_same(other, slow);
    assert_idle(engine);
    moe_engine_free(engine);
    free(slow);
    free(other);
}


/* Three alive at most; whoever has no credit gives his place to those who wait, and takes it up
 * again later as if nothing had been. */
static void test_queue(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .threads = 1, .batch_sequences = 1, .queue = 2, .credit = 1 });
    answer_t *answers = calloc(4, sizeof(answer_t));
    moe_request_t request = text_request(QUESTION, 20);
    moe_error_t error;
    moe_stats_t stats;

    assert_non_null(answers);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.logprobs = 2;
    for (unsigned i = 0; i < 3; i++) {
        submit_ok(engine, &answers[i], i, &request);
        wait_tokens(&answers[i], 1);
    }
    assert_int_equal(-1, submit(engine, &answers[3], 3, &request, &error));
    assert_int_equal(MOE_LIMIT, error.code);
    for (unsigned n = 2; n <= 20; n++) {
        for (unsigned i = 0; i < 3; i++) {
            moe_engine_credit(engine, &answers[i], i, 1);
            wait_tokens(&answers[i], n);
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
    }
    moe_engine_stats(engine, &stats);
    assert_true(stats.preemptions >= 3 * 18);
    submit_ok(engine, &answers[3], 3, &request);
    moe_engine_credit(engine, &answers[3], 3, 100);
    wait_tokens(&answers[3], UINT32_MAX);
    for (unsigned i = 0; i < 3; i++) {
        assert_same(&answers[3], &answers[i]);
    }
    assert_idle(engine);
    moe_engine_free(engine);
    free(answers);
}


/* One tenant cannot fill queue and batch for another, and what it loses to it is made good. */
static void test_tenants(void **state)
{
    static const moe_string_t one = { "one", 3 }, other = { "other", 5 };
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .batch_sequences = 2, .queue = 6, .context = LONGEST });
    answer_t *flood = calloc(9, sizeof(answer_t)), *answers = calloc(5, sizeof(answer_t));
    moe_request_t request = text_request(QUESTION, 2000);
    moe_error_t error;
    moe_stats_t stats;

    assert_true(flood && answers);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.tenant = one;
    for (unsigned i = 0; i < 8; i++) {
        submit_ok(engine, &flood[i], i, &request);
    }
    assert_int_equal(-1, submit(engine, &flood[8], 8, &request, &error));
    assert_int_equal(MOE_LIMIT, error.code);
    wait_tokens(&flood[1], 1);
    request.tenant = other;
    for (unsigned i = 0; i < 4; i++) {          /* half of eight */
        submit_ok(engine, &answers[i], i, &request);
    }
    assert_int_equal(-1, submit(engine, &answers[4], 4, &request, &error));
    assert_int_equal(MOE_LIMIT, error.code);
    wait_tokens(&answers[0], 2);                /* the first step is in the statistics then */
    moe_engine_stats(engine, &stats);
    assert_int_equal(1, stats.preemptions);
    assert_false(flood[0].done || flood[1].done);
    for (unsigned i = 2; i < 8; i++) {
        moe_engine_cancel(engine, &flood[i], i);
    }
    for (unsigned i = 1; i < 4; i++) {
        moe_engine_cancel(engine, &answers[i], i);
    }
    for (unsigned i = 0; i < 2; i++) {
        wait_tokens(&flood[i], UINT32_MAX);
    }
    wait_tokens(&answers[0], UINT32_MAX);
    assert_same(&flood[0], &flood[1]);
    assert_same(&flood[0], &answers[0]);
    assert_idle(engine);
    moe_engine_free(engine);
    free(flood);
    free(answers);
}


/* The first waits for a second, and no longer once the batch is full, it is cancelled or late. */
static void test_batch_delay(void **state)
{
    static const uint32_t ids[] = { 7, 8, 9 };
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .batch_sequences = 2, .batch_delay_ms = 600000, .queue_timeout_ms = 300000 });
    answer_t *answers = calloc(2, sizeof(answer_t));
    moe_request_t request = text_request("", 5);
    moe_stats_t stats;

    assert_non_null(answers);
    request.kind = MOE_PROMPT_TOKENS;
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.prompt_ids = ids;
    request.n_prompt_ids = 3;
    submit_ok(engine, &answers[0], 0, &request);
    moe_engine_cancel(engine, &answers[0], 0);
    wait_tokens(&answers[0], UINT32_MAX);
    for (unsigned i = 0; i < 2; i++) {
        submit_ok(engine, &answers[i], i, &request);
    }
    for (unsigned i = 0; i < 2; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
        assert_int_equal(5, answers[i].n_ids);
    }
    assert_idle(engine);
    moe_engine_stats(engine, &stats);
    assert_int_equal(5, stats.steps);
    moe_engine_free(engine);

    engine = new_engine((moe_engine_options_t) { .batch_delay_ms = 20 });
    ask(engine, &answers[0], &request);
    assert_int_equal(5, answers[0].n_ids);
    assert_true(answers[0].start.queue_ns >= 20000000u);
    assert_idle(engine);
    moe_engine_free(engine);
    free(answers);
}


static void test_same_id(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .credit = 2 });
    answer_t *answer = calloc(1, sizeof(*answer));
    moe_request_t request = text_request(QUESTION, 5);
    moe_error_t error;

    assert_non_null(answer);
    submit_ok(engine, answer, 1, &request);
    wait_tokens(answer, 2);
    assert_int_equal(-1, submit(engine, answer, 1, &request, &error));
    assert_int_equal(MOE_INVALID, error.code);
    moe_engine_free(engine);
    free(answer);
}


static void test_queue_timeout(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) {
        .threads = 1, .batch_sequences = 1, .queue_timeout_ms = 100, .context = 2048 });
    answer_t *first = calloc(1, sizeof(*first)), *second = calloc(1, sizeof(*second));
    moe_request_t request = text_request(QUESTION, 2000);

    assert_true(first && second);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    submit_ok(engine, first, 1, &request);
    wait_tokens(first, 1);
    submit_ok(engine, second, 2, &request);
    wait_tokens(second, UINT32_MAX);
    assert_int_equal(1, second->failed);
    assert_int_equal(MOE_UNAVAILABLE, second->code);
    assert_false(first->failed || first->done);
    moe_engine_cancel(engine, first, 1);
    wait_tokens(first, UINT32_MAX);
    assert_idle(engine);
    moe_engine_free(engine);
    free(first);
    free(second);
}


static void test_drain(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .batch_sequences = 1 });
    answer_t *answers = calloc(3, sizeof(answer_t));
    moe_request_t request = text_request(QUESTION, 50);
    moe_state_t snapshot;
    moe_error_t error;

    assert_non_null(answers);
    submit_ok(engine, &answers[0], 0, &request);
    submit_ok(engine, &answers[1], 1, &request);
    moe_engine_drain(engine);
    assert_int_equal(-1, submit(engine, &answers[2], 2, &request, &error));
    assert_int_equal(MOE_UNAVAILABLE, error.code);
    moe_engine_state(engine, &snapshot);
    assert_int_equal(MOE_STATE_DRAINING, snapshot.code);
    for (unsigned i = 0; i < 2; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
        assert_int_equal(1, answers[i].done);
    }
    assert_idle(engine);
    moe_engine_free(engine);
    free(answers);
}


static void test_no_model(void **state)
{
    static const struct {
        const char *model;
        uint32_t context;
        uint64_t kv_cache;
        uint32_t ranks, tensor_parallel;
        const char *says;
    } cases[] = {
        { "/nonexistent", 0, 0, 0, 0, "/nonexistent" },
        { MODEL, 4096, 0, 0, 0, "max_position_embeddings" },
        { MODEL, 512, 1ull << 46, 0, 0, "kv_cache 67108864 MiB, and " },
        { MODEL, 512, 0, 2, 0, "2 ranks need a thread each: threads is 1" },
        { MODEL, 512, 0, 1, 2, "tensor_parallel 2 does not divide 1 ranks" }
    };
    answer_t *answer = calloc(1, sizeof(*answer));
    moe_request_t request = text_request(QUESTION, 5);

    assert_non_null(answer);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_engine_options_t options = {
            .model = cases[i].model, .context = cases[i].context, .kv_cache = cases[i].kv_cache,
            .ranks = cases[i].ranks, .tensor_parallel = cases[i].tensor_parallel,
            .sink = &sink, .threads = 1
        };
        moe_state_t snapshot;
        moe_error_t error;
        moe_engine_t *engine = moe_engine_create(&options, &error);

        assert_non_null(engine);
        assert_int_equal(-1, moe_engine_wait(engine, &error));
        assert_non_null(strstr(error.message, cases[i].says));
        moe_engine_state(engine, &snapshot);
        assert_int_equal(MOE_STATE_FAILED, snapshot.code);
        assert_int_equal(strlen(error.message), snapshot.message.size);
        assert_int_equal(-1, submit(engine, answer, 1, &request, &error));
        assert_int_equal(MOE_UNAVAILABLE, error.code);
        assert_non_null(strstr(error.message, cases[i].says));
        moe_engine_free(engine);
    }
    free(answer);
}


/* Then nothing is said any more: whoever has the requests hands them to another engine. */
static void test_lost_rank(void **state)
{
    const moe_engine_options_t options = {
        .threads = 2, .ranks = 2, .fault = { MOE_FAULT_EXIT, 1, 20 }
    };
    moe_engine_t *engine = new_engine(options);
    answer_t *answers = calloc(3, sizeof(answer_t));
    moe_request_t request = text_request(QUESTION, 100);
    moe_error_t reason;
    unsigned waited = 0;

    assert_non_null(answers);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    assert_int_equal(0, moe_engine_lost(engine, &reason));
    submit_ok(engine, &answers[0], 0, &request);
    submit_ok(engine, &answers[1], 1, &request);
    while (moe_engine_lost(engine, &reason) == 0) {
        assert_true(waited++ < 60000);
        nanosleep(&(struct timespec) { .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(MOE_UNAVAILABLE, reason.code);
    assert_string_equal("step 20: fault: rank 1 has left", reason.message);
    submit_ok(engine, &answers[2], 2, &request);
    moe_engine_free(engine);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(answers[i].released && !answers[i].done && !answers[i].failed);
        assert_true(answers[i].n_ids <= 20);
    }
    free(answers);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_company),
        cmocka_unit_test(test_prompt_and_generation_agree),
        cmocka_unit_test(test_endings),
        cmocka_unit_test(test_ending_ids),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_credit),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_batch_delay),
        cmocka_unit_test(test_same_id),
        cmocka_unit_test(test_queue_timeout),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_no_model),
        cmocka_unit_test(test_lost_rank)
    };

    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
