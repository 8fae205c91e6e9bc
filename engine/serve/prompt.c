/*
 * What a client may ask for is decided here, once, for every dialect: the HTTP side only maps
 * names.  The checks come as tables, so that a limit is a row and its message names the field.
 */

#include "engine/serve/prompt.h"

#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#define ROOM_FOR_NUMBERS 4096u      /* tokens over the context that are still counted exactly */

/* Clients of OpenAI's know an overflow by these words, not only by its code. */
#define TOO_LONG "this model's maximum context length is %u tokens, "


static int refuse(const char **field, const char *name, moe_error_t *error)
{
    *field = name;
    if (error->code != MOE_TOO_LONG) {
        error->code = MOE_INVALID;
    }
    return -1;
}


static int tokenise(const moe_sequence_t *sequence, const moe_text_t *text, unsigned flags,
                    const char *name, moe_ids_t *ids, const char **field, moe_error_t *error)
{
    uint32_t context = sequence->lexicon->context;
    size_t limit = (size_t) context + ROOM_FOR_NUMBERS;

    if (moe_tokenizer_encode(sequence->lexicon->tokenizer, text, flags, limit, ids, error) == 0) {
        return 0;
    }
    if (error->code == MOE_TOO_LONG) {
        moe_fail(error, MOE_TOO_LONG, TOO_LONG "the prompt has more than %zu", context, limit);
    }
    return refuse(field, name, error);
}


static int encode_text(moe_sequence_t *sequence, moe_ids_t *ids, const char **field,
                       moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    unsigned flags = request->flags & MOE_REQUEST_NO_BOS ? 0 : MOE_ENCODE_POST_PROCESS;
    moe_text_t text = { .n_trusted = 0 };
    int rc;

    if (moe_text_append(&text, request->prompt.data, request->prompt.size, 0, error) != 0) {
        return -1;
    }
    rc = tokenise(sequence, &text, flags, "prompt", ids, field, error);
    moe_text_free(&text);
    sequence->prompt_text = request->prompt;
    return rc;
}


/* Ids of calls depend on nothing but the prompt: the same request gets the same answer. */
static int answer_seed(const moe_ids_t *ids, uint64_t *seed, moe_error_t *error)
{
    const size_t size = ids->count * sizeof(uint32_t);
    unsigned char digest[EVP_MAX_MD_SIZE];

    if (EVP_Digest(ids->ids, size, digest, NULL, EVP_sha256(), NULL) != 1) {
        return moe_fail(error, MOE_SYSTEM, "SHA-256 failed");
    }
    memcpy(seed, digest, sizeof(*seed));
    return 0;
}


/* What the answer to a prompt will be taken apart by. */
static int begin_answer(moe_sequence_t *sequence, const moe_text_t *prompt, const moe_ids_t *ids,
                        moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    const moe_answer_format_t *format = sequence->lexicon->answers;
    moe_answer_options_t options = {
        .prompt = prompt,
        .calls = (request->flags & MOE_REQUEST_PARSE_TOOLS) != 0,
        .one_call = (request->flags & MOE_REQUEST_ONE_TOOL_CALL) != 0,
        .tools = request->tools
    };

    if (!moe_answer_format_marks(format, options.calls)) {
        return 0;
    }
    if (options.calls && answer_seed(ids, &options.seed, error) != 0) {
        return -1;
    }
    sequence->answer = moe_answer_create(format, &options, error);
    return sequence->answer ? 0 : -1;
}


static int encode_chat(moe_sequence_t *sequence, moe_ids_t *ids, const char **field,
                       moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    const moe_chat_request_t chat = {
        .messages = { request->prompt.data, request->prompt.size },
        .tools = { request->tools.data, request->tools.size },
        .arguments = { request->template_arguments.data, request->template_arguments.size },
        .add_generation_prompt = !(request->flags & MOE_REQUEST_NO_GENERATION_PROMPT),
        .continue_final = (request->flags & MOE_REQUEST_CONTINUE_FINAL) != 0
    };
    moe_text_t text = { .n_trusted = 0 };
    int rc;

    if (request->tools.size > 0 && !moe_chat_takes_tools(sequence->lexicon->chat)) {
        moe_fail(error, MOE_INVALID, "this model's chat template has no place for tools");
        return refuse(field, "tools", error);
    }
    if (moe_chat_render(sequence->lexicon->chat, &chat, &text, error) != 0) {
        moe_text_free(&text);
        return refuse(field, "messages", error);
    }
    rc = tokenise(sequence, &text, 0, "messages", ids, field, error) != 0
         || begin_answer(sequence, &text, ids, error) != 0 ? -1 : 0;
    sequence->rendered = text.bytes;
    text.bytes = (moe_buffer_t) { .size = 0 };
    moe_text_free(&text);
    sequence->prompt_text.data = sequence->rendered.data;
    sequence->prompt_text.size = (uint32_t) sequence->rendered.size;
    return rc;
}


/* Ids given by the client: the text is what they stand for. */
static int take_ids(moe_sequence_t *sequence, moe_ids_t *ids, const char **field,
                    moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    const moe_lexicon_t *lexicon = sequence->lexicon;
    moe_detokenizer_t detokenizer;

    moe_detokenizer_init(&detokenizer, lexicon->tokenizer,
                         (request->flags & MOE_REQUEST_KEEP_SPECIAL) != 0);
    if (request->n_prompt_ids >= lexicon->context) {
        moe_fail(error, MOE_TOO_LONG, TOO_LONG "the prompt alone has %u", lexicon->context,
                 request->n_prompt_ids);
        return refuse(field, "prompt", error);
    }
    for (uint32_t i = 0; i < request->n_prompt_ids; i++) {
        uint32_t id = request->prompt_ids[i];

        if (id >= lexicon->model->vocabulary || !lexicon->usable[id]) {
            moe_fail(error, MOE_INVALID, "token %u of the prompt, %u, is not in the vocabulary",
                     i, id);
            return refuse(field, "prompt", error);
        }
        if (moe_ids_append(ids, id, error) != 0) {
            return -1;
        }
        if ((request->flags & MOE_REQUEST_ECHO)
            && moe_detokenizer_push(&detokenizer, id, &sequence->rendered, error) != 0)
        {
            return -1;
        }
    }
    if (moe_detokenizer_finish(&detokenizer, &sequence->rendered, error) != 0) {
        return -1;
    }
    sequence->prompt_text.data = sequence->rendered.data;
    sequence->prompt_text.size = (uint32_t) sequence->rendered.size;
    return 0;
}


int moe_prompt_encode(moe_sequence_t *sequence, moe_ids_t *ids, const char **field,
                      moe_error_t *error)
{
    int is_chat = sequence->request->kind == MOE_PROMPT_CHAT, rc;

    switch (sequence->request->kind) {
    case MOE_PROMPT_CHAT:
        rc = encode_chat(sequence, ids, field, error);
        break;
    case MOE_PROMPT_TOKENS:
        rc = take_ids(sequence, ids, field, error);
        break;
    default:
        rc = encode_text(sequence, ids, field, error);
    }
    if (rc == 0 && ids->count == 0) {
        moe_fail(error, MOE_INVALID, "the prompt is empty and this model's tokenizer adds no"
                 " token that begins a text");
        return refuse(field, is_chat ? "messages" : "prompt", error);
    }
    return rc;
}


int moe_prompt_measure(const moe_sequence_t *sequence, size_t n_prompt, uint32_t *max_tokens,
                       const char **field, moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    uint32_t context = sequence->lexicon->context;
    const char *prompt = request->kind == MOE_PROMPT_CHAT ? "messages" : "prompt";

    if (n_prompt >= context) {
        moe_fail(error, MOE_TOO_LONG, TOO_LONG "the prompt alone has %zu", context, n_prompt);
        return refuse(field, prompt, error);
    }
    *max_tokens = context - (uint32_t) n_prompt;
    if (request->given & MOE_GIVEN_MAX_TOKENS) {
        if (request->max_tokens > *max_tokens) {
            moe_fail(error, MOE_TOO_LONG, TOO_LONG "the prompt has %zu and %u are to be generated",
                     context, n_prompt, request->max_tokens);
            return refuse(field, prompt, error);
        }
        *max_tokens = request->max_tokens;
    } else if (request->max_tokens > 0 && request->max_tokens < *max_tokens) {
        *max_tokens = request->max_tokens;
    }
    if (request->min_tokens > *max_tokens) {
        moe_fail(error, MOE_INVALID, "min_tokens is %u, but at most %u tokens are generated",
                 request->min_tokens, *max_tokens);
        return refuse(field, "min_tokens", error);
    }
    return 0;
}


static int check_ranges(const moe_sampling_params_t *params, const char **field,
                        moe_error_t *error)
{
    const struct {
        const char *name;
        float value, least, most;
    } ranges[] = {
        { "temperature", params->temperature, 0.0f, 1e6f },
        { "top_p", params->top_p, 1e-9f, 1.0f },
        { "min_p", params->min_p, 0.0f, 1.0f },
        { "repetition_penalty", params->repetition_penalty, 1e-3f, 1e3f },
        { "presence_penalty", params->presence_penalty, -1e3f, 1e3f },
        { "frequency_penalty", params->frequency_penalty, -1e3f, 1e3f }
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (!(ranges[i].value >= ranges[i].least && ranges[i].value <= ranges[i].most)) {
            moe_fail(error, MOE_INVALID, "%s is %g, it must be from %g to %g", ranges[i].name,
                     (double) ranges[i].value, (double) ranges[i].least, (double) ranges[i].most);
            return refuse(field, ranges[i].name, error);
        }
    }
    return 0;
}


static int check_id(const moe_lexicon_t *lexicon, uint32_t id, int needs_token, const char *name,
                    const char **field, moe_error_t *error)
{
    if (id < lexicon->model->vocabulary && (!needs_token || lexicon->usable[id])) {
        return 0;
    }
    moe_fail(error, MOE_INVALID, "%s: token %u is not in the vocabulary of %u tokens", name, id,
             lexicon->model->vocabulary);
    return refuse(field, name, error);
}


static int check_ids(const moe_sequence_t *sequence, const char **field, moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    const moe_lexicon_t *lexicon = sequence->lexicon;

    for (uint32_t i = 0; i < request->n_biases; i++) {
        if (check_id(lexicon, request->biases[i].id, 0, "logit_bias", field, error) != 0) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < request->n_stop_ids; i++) {
        if (check_id(lexicon, request->stop_ids[i], 0, "stop_token_ids", field, error) != 0) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < request->n_allowed_ids; i++) {
        if (check_id(lexicon, request->allowed_ids[i], 1, "allowed_token_ids", field, error) != 0) {
            return -1;
        }
    }
    return 0;
}


/* The client's value, the model's default, or the value that changes nothing. */
#define CHOOSE(bit, name, neutral)                                                                 \
    (request->given & (bit) ? request->name : defaults->given & (bit) ? defaults->name : (neutral))


int moe_prompt_sampling(const moe_sequence_t *sequence, moe_sampling_params_t *params,
                        const char **field, moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    const moe_generation_t *defaults = &sequence->lexicon->model->generation;

    *params = (moe_sampling_params_t) {
        .temperature = CHOOSE(MOE_GIVEN_TEMPERATURE, temperature, 1.0f),
        .top_p = CHOOSE(MOE_GIVEN_TOP_P, top_p, 1.0f),
        .top_k = CHOOSE(MOE_GIVEN_TOP_K, top_k, 0u),
        .min_p = CHOOSE(MOE_GIVEN_MIN_P, min_p, 0.0f),
        .repetition_penalty = CHOOSE(MOE_GIVEN_REPETITION_PENALTY, repetition_penalty, 1.0f),
        .presence_penalty = request->presence_penalty,
        .frequency_penalty = request->frequency_penalty,
        .seed = request->seed,
        .min_tokens = request->min_tokens,
        .end_ids = sequence->lexicon->model->eos_ids,
        .n_end_ids = sequence->lexicon->model->n_eos_ids,
        .stop_ids = request->stop_ids,
        .n_stop_ids = request->n_stop_ids,
        .biases = request->biases,
        .n_biases = request->n_biases,
        .allowed_ids = request->allowed_ids,
        .n_allowed_ids = request->n_allowed_ids
    };
    if (request->flags & MOE_REQUEST_IGNORE_EOS) {
        params->n_end_ids = 0;
    }
    if (!(request->given & MOE_GIVEN_SEED)
        && getrandom(&params->seed, sizeof(params->seed), 0) != sizeof(params->seed))
    {
        return moe_fail(error, MOE_SYSTEM, "getrandom() failed");
    }
    if (check_ranges(params, field, error) != 0) {
        return -1;
    }
    return check_ids(sequence, field, error);
}
