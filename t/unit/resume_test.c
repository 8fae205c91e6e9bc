/*
 * A request that is cut after k tokens and resumed by another engine goes on as if it had never been
 * cut, for every k: ids, text that was held back, log-probabilities, end and counts.
 */

#include "t/unit/answers.h"

/* A request and what it points to. */
typedef struct {
    const char *name;
    moe_request_t request;
    moe_string_t stops[2];
    char stop_text[64];
    uint32_t ids[2];
} case_t;


static uint32_t id_of_byte(const moe_lexicon_t *lexicon, char byte)
{
    size_t size;

    for (uint32_t id = 0; id < lexicon->model->vocabulary; id++) {
        const char *piece = moe_tokenizer_piece(lexicon->tokenizer, id, &size);

        if (piece && size == 1 && piece[0] == byte) {
            return id;
        }
    }
    fail_msg("no token of byte %02x", (unsigned char) byte);
    return 0;
}


static void sampled(moe_request_t *request, float temperature, uint64_t seed)
{
    request->temperature = temperature;
    request->seed = seed;
    request->given |= MOE_GIVEN_SEED;
    request->flags |= MOE_REQUEST_IGNORE_EOS;
}


#define CASES 11u

/* `whole`: the greedy answer that stop strings and ids are taken from. */
static void make_cases(case_t *cases, const answer_t *whole, const moe_lexicon_t *lexicon)
{
    case_t *c = cases;

    for (unsigned i = 0; i < CASES; i++) {
        cases[i].request = text_request(QUESTION, 24);
        cases[i].request.stops = cases[i].stops;
    }
    c->name = "greedy, until its end token";
    c->request.max_tokens = 100;
    c->request.logprobs = 0;

    (++c)->name = "sampled, log-probabilities";
    sampled(&c->request, 1.2f, 7);
    c->request.logprobs = 3;

    (++c)->name = "penalties and filters";
    sampled(&c->request, 0.9f, 8);
    c->request.given |= MOE_GIVEN_TOP_P | MOE_GIVEN_TOP_K | MOE_GIVEN_REPETITION_PENALTY;
    c->request.top_p = 0.95f;
    c->request.top_k = 50;
    c->request.repetition_penalty = 1.3f;
    c->request.presence_penalty = 0.5f;
    c->request.frequency_penalty = 0.7f;

    (++c)->name = "a stop string over several tokens";
    c->request.max_tokens = 100;
    snprintf(c->stop_text, sizeof(c->stop_text), "%.20s", whole->text + whole->n_text / 2);
    c->stops[0] = (moe_string_t) { c->stop_text, 20 };
    c->request.n_stops = 1;

    (++c)->name = "a stop string that is held back and never comes";
    snprintf(c->stop_text, sizeof(c->stop_text), "%.40s!", whole->text);
    c->stops[0] = (moe_string_t) { c->stop_text, 41 };
    c->stops[1] = (moe_string_t) { "Context:\tnever", 14 };
    c->request.n_stops = 2;
    c->request.max_tokens = 16;

    (++c)->name = "characters of two tokens";
    sampled(&c->request, 2.0f, 3);
    c->ids[0] = id_of_byte(lexicon, '\xc3');
    c->ids[1] = id_of_byte(lexicon, '\xa9');
    c->request.allowed_ids = c->ids;
    c->request.n_allowed_ids = 2;
    c->request.logprobs = 1;

    (++c)->name = "min_tokens over end token and stop string";
    c->request.min_tokens = whole->n_ids + 3;
    c->request.max_tokens = whole->n_ids + 12;
    c->stops[0] = (moe_string_t) { "e", 1 };
    c->request.n_stops = 1;

    (++c)->name = "echo, prompt ids and their log-probabilities";
    c->request.flags |= MOE_REQUEST_ECHO | MOE_REQUEST_PROMPT_IDS;
    c->request.prompt_logprobs = 2;
    c->request.logprobs = 2;

    (++c)->name = "a stop id, included";
    c->ids[0] = whole->ids[9];
    c->request.stop_ids = c->ids;
    c->request.n_stop_ids = 1;
    c->request.flags |= MOE_REQUEST_INCLUDE_STOP;

    (++c)->name = "chat";
    c->request.kind = MOE_PROMPT_CHAT;
    c->request.prompt.data = "[{\"role\":\"user\",\"content\":\"What is keepalive_timeout?\"}]";
    c->request.prompt.size = (uint32_t) strlen(c->request.prompt.data);

    (++c)->name = "no tokens at all";
    c->request.max_tokens = 0;
    assert_ptr_equal(c, cases + CASES - 1);
}


/* `rest` is what is left of `whole` behind its first `cut` tokens. */
static void assert_rest(const answer_t *whole, const answer_t *rest, uint32_t cut)
{
    size_t n_text = cut ? whole->text_ends[cut - 1] : 0;
    uint32_t n_logprobs = whole->n_logprobs ? cut : 0;

    assert_int_equal(1, rest->done);
    assert_int_equal(whole->n_ids - cut, rest->n_ids);
    assert_memory_equal(whole->ids + cut, rest->ids, rest->n_ids * sizeof(uint32_t));
    assert_int_equal(whole->n_text - n_text, rest->n_text);
    assert_memory_equal(whole->text + n_text, rest->text, rest->n_text);
    assert_int_equal(whole->n_logprobs - n_logprobs, rest->n_logprobs);
    assert_same_logprobs(whole->logprobs + n_logprobs, rest->logprobs, rest->n_logprobs);
    assert_int_equal(whole->end.reason, rest->end.reason);
    assert_int_equal(whole->end.stop_id, rest->end.stop_id);
    assert_string_equal(whole->stop, rest->stop);
    assert_int_equal(whole->end.prompt_tokens, rest->end.prompt_tokens);
    assert_int_equal(whole->end.completion_tokens, rest->end.completion_tokens);
    assert_int_equal(whole->start.prompt_tokens, rest->start.prompt_tokens);
}


static void test_cut_anywhere(void **state)
{
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    moe_engine_t *other = new_engine((moe_engine_options_t) { .threads = 2, .batch_tokens = 16 });
    answer_t *greedy = calloc(1, sizeof(*greedy)), *whole = calloc(1, sizeof(*whole));
    answer_t *rest = calloc(1, sizeof(*rest));
    case_t *cases = calloc(CASES, sizeof(case_t));
    moe_request_t request = text_request(QUESTION, 100);
    unsigned held_back = 0;

    assert_true(greedy && whole && rest && cases);
    ask(engine, greedy, &request);
    make_cases(cases, greedy, moe_engine_lexicon(engine));
    for (unsigned i = 0; i < CASES; i++) {
        request = cases[i].request;
        ask(engine, whole, &request);
        if (!whole->done) {
            fail_msg("%s: %s", cases[i].name, whole->message);
        }
        ask(other, rest, &request);
        assert_same(whole, rest);
        request.resume_ids = whole->ids;
        for (uint32_t cut = 1; cut <= whole->n_ids; cut++) {
            request.n_resume_ids = cut;
            ask(other, rest, &request);
            assert_rest(whole, rest, cut);
            assert_int_equal(0, rest->start.n_logprobs);
            assert_int_equal(0, rest->start.prompt_text.size);
            assert_int_equal(0, rest->start.n_prompt_ids);
            held_back += cut > 1 && whole->text_ends[cut - 1] == whole->text_ends[cut - 2];
        }
    }
    assert_true(held_back > 15);        /* cuts where text was held back */
    assert_idle(engine);
    assert_idle(other);
    moe_engine_free(engine);
    moe_engine_free(other);
    free(greedy);
    free(whole);
    free(rest);
    free(cases);
}


/* Ids that the request cannot have generated. */
static void test_refusals(void **state)
{
    const uint32_t far[] = { 4000000000u }, end[] = { 1, 7 }, many[] = { 7, 7, 7 };
    const struct {
        const uint32_t *ids;
        uint32_t n_ids, max_tokens;
    } cases[] = { { far, 1, 10 }, { end, 2, 10 }, { many, 3, 2 }, { many, 1, 0 } };
    moe_engine_t *engine = new_engine((moe_engine_options_t) { .threads = 1 });
    answer_t *answer = calloc(1, sizeof(*answer));
    moe_stats_t stats;

    assert_non_null(answer);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_request_t request = text_request(QUESTION, cases[i].max_tokens);

        request.resume_ids = cases[i].ids;
        request.n_resume_ids = cases[i].n_ids;
        ask(engine, answer, &request);
        assert_true(answer->failed && !answer->started);
        assert_int_equal(MOE_INVALID, answer->code);
        assert_non_null(strstr(answer->message, "to resume behind"));
    }
    assert_idle(engine);
    moe_engine_stats(engine, &stats);
    assert_int_equal(4, stats.finished_error);
    moe_engine_free(engine);
    free(answer);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_refusals)
    };

    return cmocka_run_group_tests_name("resume", tests, NULL, NULL);
}
