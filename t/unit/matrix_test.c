/*
 * The same answers, bit for bit, from every arrangement of ranks: so many ranks, groups that divide
 * heads and matrices or not, each form in which rows travel, rows in halves or at once, prompts in
 * chunks or whole.  A form is a choice about answers; nothing else is.
 */

#include "t/unit/answers.h"

#define COMPANY 8u
#define GENERATED 10u
#define CHUNK 48u               /* rows of a group's step: enough for two halves */


/* Greedy and seeded, short prompts and long ones. */
static moe_request_t company_request(unsigned i, char *prompt, size_t size)
{
    static const char *const names[] = { "gzip", "listen", "proxy_pass", "root", "ssl_crl" };
    moe_request_t request;

    snprintf(prompt, size, "Syntax: %s", names[i % 5]);
    while (i % 4 >= 2 && strlen(prompt) + 32 < size) {
        strcat(prompt, "\nSyntax: server_name name ...;");
    }
    request = text_request(prompt, GENERATED);
    request.flags = MOE_REQUEST_IGNORE_EOS;
    request.logprobs = 3;
    if (i % 2) {
        request.temperature = 1.1f;
        request.top_p = 0.95f;
        request.seed = 40 + i;
        request.given |= MOE_GIVEN_SEED | MOE_GIVEN_TOP_P;
    } else {
        request.prompt_logprobs = 2;
        request.flags |= MOE_REQUEST_ECHO;
    }
    return request;
}


/* Each request by itself. */
static void run_alone(moe_engine_options_t options, answer_t *answers)
{
    moe_engine_t *engine = new_engine(options);
    char prompt[600];

    for (unsigned i = 0; i < COMPANY; i++) {
        moe_request_t request = company_request(i, prompt, sizeof(prompt));

        ask(engine, &answers[i], &request);
    }
    moe_engine_free(engine);
}


static void run_company(moe_engine_options_t options, answer_t *answers)
{
    static char prompts[COMPANY][600];
    moe_engine_t *engine = new_engine(options);

    for (unsigned i = 0; i < COMPANY; i++) {
        moe_request_t request = company_request(i, prompts[i], sizeof(prompts[i]));

        submit_ok(engine, &answers[i], i, &request);
    }
    for (unsigned i = 0; i < COMPANY; i++) {
        wait_tokens(&answers[i], UINT32_MAX);
    }
    assert_idle(engine);
    moe_engine_free(engine);
}


static int differ(const answer_t *a, const answer_t *b)
{
    return a->n_ids != GENERATED || memcmp(a->ids, b->ids, GENERATED * sizeof(uint32_t)) != 0;
}


static void check_world(moe_engine_options_t options, const answer_t *expected, answer_t *answers)
{
    const uint32_t groups = options.ranks / options.tensor_parallel;

    options.threads = options.ranks;
    for (unsigned i = 0; i < 4; i++) {
        options.overlap = i & 1 ? MOE_OVERLAP_TWO_BATCH : MOE_OVERLAP_SHARED;
        options.batch_tokens = i & 2 ? groups * CHUNK : groups * CONTEXT;
        options.batch_sequences = groups * COMPANY;
        run_company(options, answers);
        for (unsigned j = 0; j < COMPANY; j++) {
            if (differ(&answers[j], &expected[j])) {
                fail_msg("ranks %u, tensor_parallel %u, payload %d, case %u: answer %u is another",
                         options.ranks, options.tensor_parallel, (int) options.exchange, i, j);
            }
            assert_same(&expected[j], &answers[j]);
        }
    }
}


static void test_same_answers(void **state)
{
    static const uint32_t worlds[][2] = {
        {1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}, {8, 2}
    };
    answer_t *expected = calloc(COMPANY, sizeof(answer_t));
    answer_t *answers = calloc(COMPANY, sizeof(answer_t));
    float logprobs[MOE_PAYLOAD_FP8 + 1];

    assert_true(expected && answers);
    for (moe_payload_t p = MOE_PAYLOAD_F32; p <= MOE_PAYLOAD_FP8; p++) {
        moe_engine_options_t options = { .threads = 1, .batch_tokens = CONTEXT, .exchange = p };

        run_alone(options, expected);
        logprobs[p] = expected[0].logprobs[0].token.logprob;
        assert_true(p == MOE_PAYLOAD_F32 || logprobs[p] != logprobs[MOE_PAYLOAD_F32]);
        for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
            options.ranks = worlds[i][0];
            options.tensor_parallel = worlds[i][1];
            check_world(options, expected, answers);
        }
    }
    free(expected);
    free(answers);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
