
/*
 * A body is read by one table: for each field its routes, the function that
 * takes it, its range, and where it goes.  A field that is absent or null
 * keeps its default, an unknown one is ignored, anything else that does not
 * fit is an error which names the field.  Of a repeated key the last counts,
 * as with every JSON parser of the peers.
 *
 * Runs in a thread for large bodies: no nginx pool, no cycle, no log.
 */


#include "ngx_http_moe_module.h"
#include "http/openai.h"
#include "http/reply.h"

#include <jansson.h>
#include <math.h>


#define NGX_HTTP_MOE_MESSAGES_LIMIT   8192
#define NGX_HTTP_MOE_DEFAULT_TOKENS   16     /* of /v1/completions */

#define NGX_HTTP_MOE_COMPLETION       NGX_HTTP_MOE_OPENAI_COMPLETION
#define NGX_HTTP_MOE_CHAT             NGX_HTTP_MOE_OPENAI_CHAT
#define NGX_HTTP_MOE_BOTH             (NGX_HTTP_MOE_COMPLETION                \
                                       |NGX_HTTP_MOE_CHAT)


typedef struct {
    ngx_http_moe_job_t          *job;
    ngx_http_moe_openai_kind_e   kind;
    json_t                      *root;
    moe_request_t                request;
    moe_string_t                 stops[MOE_STOPS_LIMIT];
    uint32_t                    *stop_ids;
    uint32_t                    *allowed_ids;
    moe_logit_bias_t            *biases;
    size_t                       size;         /* of all frames */
    json_t                      *prompt;       /* or messages; borrowed */
    json_t                      *arguments;    /* of the template; owned */
    int64_t                      max_tokens;   /* -1: not given */
    int64_t                      n;
    int64_t                      best_of;      /* -1 */
    int64_t                      logprobs;     /* completions; -1 */
    int64_t                      top_logprobs;     /* chat; -1 */
    int64_t                      prompt_logprobs;  /* -1 */
    unsigned                     chat_logprobs:1;
    unsigned                     usage_given:1;
} ngx_http_moe_parse_t;


typedef struct ngx_http_moe_field_s  ngx_http_moe_field_t;

typedef ngx_int_t (*ngx_http_moe_field_pt)(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);

struct ngx_http_moe_field_s {
    const char                  *name;
    ngx_uint_t                   routes;
    ngx_http_moe_field_pt        take;
    double                       low;
    double                       high;
    size_t                       offset;    /* in ngx_http_moe_parse_t */
    uint32_t                     flag;      /* of given or flags */
};


static ngx_int_t ngx_http_moe_parse_root(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_parse_fields(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_parse_check(ngx_http_moe_parse_t *parse);
static void ngx_http_moe_parse_max_tokens(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_parse_error(ngx_http_moe_parse_t *parse,
    const char *code, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static ngx_int_t ngx_http_moe_encode(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode_chat(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode_prompts(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode_prompt(ngx_http_moe_parse_t *parse,
    json_t *prompt);
static ngx_int_t ngx_http_moe_encode_frames(ngx_http_moe_parse_t *parse,
    size_t prompts);
static ngx_int_t ngx_http_moe_encode_request(ngx_http_moe_parse_t *parse);

static ngx_int_t ngx_http_moe_take_string(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_id(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_float(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_integer(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_uint32(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_seed(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_unset_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_switch(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_nothing(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_choice(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_format(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_prompt(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_messages(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_message(ngx_http_moe_parse_t *parse,
    size_t index, json_t *message);
static ngx_int_t ngx_http_moe_take_member(ngx_http_moe_parse_t *parse,
    size_t index, json_t *message, const char *member);
static ngx_int_t ngx_http_moe_take_content(ngx_http_moe_parse_t *parse,
    size_t index, json_t *content);
static ngx_int_t ngx_http_moe_take_stop(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_ids(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_bias(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_stream_options(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_arguments(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static ngx_int_t ngx_http_moe_take_effort(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
static uint32_t *ngx_http_moe_ids(ngx_http_moe_parse_t *parse,
    const char *field, json_t *list, uint32_t limit);


#define ngx_http_moe_state(field)    offsetof(ngx_http_moe_parse_t, field)
#define ngx_http_moe_request(field)                                           \
    (offsetof(ngx_http_moe_parse_t, request) + offsetof(moe_request_t, field))

/* switches: which bit of the job or the state a boolean sets */

enum {
    NGX_HTTP_MOE_SWITCH_STREAM,
    NGX_HTTP_MOE_SWITCH_ECHO,
    NGX_HTTP_MOE_SWITCH_LOGPROBS,
    NGX_HTTP_MOE_SWITCH_TOKEN_IDS
};


static const ngx_http_moe_field_t  ngx_http_moe_fields[] = {

    { "model", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_string, 1, 256, 0, 0 },
    { "request_id", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_id, 0, 0, 0, 0 },

    { "prompt", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_prompt,
      0, 0, 0, 0 },
    { "messages", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_messages, 0, 0, 0, 0 },

    { "stream", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_switch,
      0, 0, 0, NGX_HTTP_MOE_SWITCH_STREAM },
    { "stream_options", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_stream_options,
      0, 0, 0, 0 },

    /* length */

    { "max_tokens", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_integer,
      0, INT32_MAX, ngx_http_moe_state(max_tokens), 0 },
    { "max_tokens", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_integer,
      1, INT32_MAX, ngx_http_moe_state(max_tokens), 0 },
    { "max_completion_tokens", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_integer,
      1, INT32_MAX, ngx_http_moe_state(max_tokens), 0 },
    { "min_tokens", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_uint32,
      0, INT32_MAX, ngx_http_moe_request(min_tokens), 0 },
    { "ignore_eos", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_flag,
      0, 0, 0, MOE_REQUEST_IGNORE_EOS },
    { "stop", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_stop, 0, 0, 0, 0 },
    { "stop_token_ids", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_ids,
      0, 0, ngx_http_moe_state(stop_ids), 0 },
    { "include_stop_str_in_output", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_flag,
      0, 0, 0, MOE_REQUEST_INCLUDE_STOP },

    /* sampling */

    { "temperature", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_float,
      0, 2, ngx_http_moe_request(temperature), MOE_GIVEN_TEMPERATURE },
    { "top_p", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_float,
      0, 1, ngx_http_moe_request(top_p), MOE_GIVEN_TOP_P },
    { "top_k", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_uint32,
      -1, INT32_MAX, ngx_http_moe_request(top_k), MOE_GIVEN_TOP_K },
    { "min_p", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_float,
      0, 1, ngx_http_moe_request(min_p), MOE_GIVEN_MIN_P },
    { "repetition_penalty", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_float,
      0.01, 10, ngx_http_moe_request(repetition_penalty),
      MOE_GIVEN_REPETITION_PENALTY },
    { "presence_penalty", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_float,
      -2, 2, ngx_http_moe_request(presence_penalty), 0 },
    { "frequency_penalty", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_float,
      -2, 2, ngx_http_moe_request(frequency_penalty), 0 },
    { "seed", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_seed, 0, 0, 0, 0 },
    { "logit_bias", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_bias,
      -100, 100, 0, 0 },
    { "allowed_token_ids", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_ids,
      0, 0, ngx_http_moe_state(allowed_ids), 0 },
    { "n", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_integer,
      1, NGX_HTTP_MOE_CHOICES_LIMIT, ngx_http_moe_state(n), 0 },
    { "best_of", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_integer,
      1, NGX_HTTP_MOE_CHOICES_LIMIT, ngx_http_moe_state(best_of), 0 },
    { "priority", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_uint32,
      INT32_MIN, INT32_MAX, ngx_http_moe_request(priority), 0 },

    /* what is reported */

    { "echo", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_switch,
      0, 0, 0, NGX_HTTP_MOE_SWITCH_ECHO },
    { "logprobs", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_integer,
      0, MOE_TOP_LOGPROBS_LIMIT, ngx_http_moe_state(logprobs), 0 },
    { "logprobs", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_switch,
      0, 0, 0, NGX_HTTP_MOE_SWITCH_LOGPROBS },
    { "top_logprobs", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_integer,
      0, MOE_TOP_LOGPROBS_LIMIT, ngx_http_moe_state(top_logprobs), 0 },
    { "prompt_logprobs", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_integer,
      0, MOE_TOP_LOGPROBS_LIMIT, ngx_http_moe_state(prompt_logprobs), 0 },
    { "return_token_ids", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_switch,
      0, 0, 0, NGX_HTTP_MOE_SWITCH_TOKEN_IDS },
    { "skip_special_tokens", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_unset_flag,
      0, 0, 0, MOE_REQUEST_KEEP_SPECIAL },
    { "add_special_tokens", NGX_HTTP_MOE_COMPLETION,
      ngx_http_moe_take_unset_flag, 0, 0, 0, MOE_REQUEST_NO_BOS },

    /* the chat template */

    { "add_generation_prompt", NGX_HTTP_MOE_CHAT,
      ngx_http_moe_take_unset_flag, 0, 0, 0,
      MOE_REQUEST_NO_GENERATION_PROMPT },
    { "continue_final_message", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_flag,
      0, 0, 0, MOE_REQUEST_CONTINUE_FINAL },
    { "chat_template_kwargs", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_arguments,
      0, 0, 0, 0 },
    { "reasoning_effort", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_effort,
      0, 0, 0, 0 },

    /* not here yet: only values that ask for nothing */

    { "suffix", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "tools", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_nothing, 0, 0, 0, 0 },
    { "functions", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_nothing, 0, 0, 0, 0 },
    { "tool_choice", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_choice,
      0, 0, 0, 0 },
    { "function_call", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_choice,
      0, 0, 0, 0 },
    { "response_format", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_format,
      0, 0, 0, 0 },
    { "structured_outputs", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "guided_json", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "guided_regex", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "guided_choice", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "guided_grammar", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "grammar", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing, 0, 0, 0, 0 },
    { "json_schema", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "bad_words", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing, 0, 0, 0, 0 },
    { "use_beam_search", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "chat_template", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_nothing,
      0, 0, 0, 0 },
    { "documents", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_nothing, 0, 0, 0, 0 },

    { NULL, 0, NULL, 0, 0, 0, 0 }
};


void
ngx_http_moe_openai_parse(ngx_http_moe_job_t *job)
{
    ngx_http_moe_parse_t  parse;

    ngx_memzero(&parse, sizeof(ngx_http_moe_parse_t));

    parse.job = job;
    parse.kind = ngx_http_moe_openai_kind(job->route);
    parse.max_tokens = -1;
    parse.n = 1;
    parse.best_of = -1;
    parse.logprobs = -1;
    parse.top_logprobs = -1;
    parse.prompt_logprobs = -1;

    moe_request_defaults(&parse.request);

    if (ngx_http_moe_parse_root(&parse) == NGX_OK
        && ngx_http_moe_parse_fields(&parse) == NGX_OK
        && ngx_http_moe_parse_check(&parse) == NGX_OK)
    {
        (void) ngx_http_moe_encode(&parse);
    }

    free(parse.stop_ids);
    free(parse.allowed_ids);
    free(parse.biases);
    json_decref(parse.arguments);
    json_decref(parse.root);
}


static ngx_int_t
ngx_http_moe_parse_error(ngx_http_moe_parse_t *parse, const char *code,
    const char *field, const char *format, ...)
{
    char     message[480];
    va_list  args;

    va_start(args, format);
    (void) vsnprintf(message, sizeof(message), format, args);
    va_end(args);

    ngx_http_moe_problem(&parse->job->problem, NGX_HTTP_BAD_REQUEST,
                         "invalid_request_error", code, field, "%s", message);
    parse->job->failed = 1;

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_moe_parse_root(ngx_http_moe_parse_t *parse)
{
    char          *near;
    json_error_t   error;

    parse->root = json_loadb(parse->job->body, parse->job->size,
                             JSON_ALLOW_NUL, &error);

    if (parse->root == NULL) {

        /* jansson goes on with a piece of the input */

        near = strstr(error.text, " near ");

        if (near) {
            *near = '\0';
        }

        return ngx_http_moe_parse_error(parse, "invalid_json", NULL,
                   "the body is not valid JSON: line %d, column %d: %s",
                   error.line, error.column, error.text);
    }

    if (!json_is_object(parse->root)) {
        return ngx_http_moe_parse_error(parse, "invalid_json", NULL,
                                        "the body must be a JSON object");
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_parse_fields(ngx_http_moe_parse_t *parse)
{
    json_t                      *value;
    const ngx_http_moe_field_t  *field;

    for (field = ngx_http_moe_fields; field->name; field++) {

        if (!(field->routes & parse->kind)) {
            continue;
        }

        value = json_object_get(parse->root, field->name);

        if (value == NULL || json_is_null(value)) {
            continue;
        }

        if (field->take(parse, field, value) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* Rules between fields. */

static ngx_int_t
ngx_http_moe_parse_check(ngx_http_moe_parse_t *parse)
{
    moe_request_t       *request;
    ngx_http_moe_job_t  *job;

    job = parse->job;
    request = &parse->request;

    if (parse->prompt == NULL) {
        return parse->kind == NGX_HTTP_MOE_CHAT
               ? ngx_http_moe_parse_error(parse, NULL, "messages",
                                          "messages is required")
               : ngx_http_moe_parse_error(parse, NULL, "prompt",
                                          "prompt is required");
    }

    if (parse->usage_given && !job->stream) {
        return ngx_http_moe_parse_error(parse, NULL, "stream_options",
                   "stream_options is only allowed when stream is true");
    }

    if (parse->top_logprobs > 0 && !parse->chat_logprobs) {
        return ngx_http_moe_parse_error(parse, NULL, "top_logprobs",
                   "top_logprobs is only allowed when logprobs is true");
    }

    if (parse->best_of >= 0 && parse->best_of < parse->n) {
        return ngx_http_moe_parse_error(parse, NULL, "best_of",
                   "best_of must not be less than n");
    }

    if (parse->best_of > parse->n && job->stream) {
        return ngx_http_moe_parse_error(parse, NULL, "best_of",
                   "the best of several completions cannot be streamed: "
                   "best_of must equal n");
    }

    if (parse->max_tokens >= 0 && request->min_tokens > parse->max_tokens) {
        return ngx_http_moe_parse_error(parse, NULL, "min_tokens",
                   "min_tokens must not be greater than max_tokens");
    }

    if ((request->flags & MOE_REQUEST_CONTINUE_FINAL)
        && json_is_true(json_object_get(parse->root,
                                        "add_generation_prompt")))
    {
        return ngx_http_moe_parse_error(parse, NULL, "continue_final_message",
                   "continue_final_message and add_generation_prompt "
                   "exclude each other");
    }

    if ((request->given & MOE_GIVEN_TOP_P) && request->top_p == 0) {

        /* the most probable token always stays */

        request->top_p = 1;
        request->top_k = 1;
        request->given |= MOE_GIVEN_TOP_K;
    }

    ngx_http_moe_parse_max_tokens(parse);

    if (parse->kind == NGX_HTTP_MOE_CHAT) {
        request->logprobs = parse->chat_logprobs
                            ? (int32_t) ngx_max(parse->top_logprobs, 0) : -1;
    } else {
        request->logprobs = (int32_t) parse->logprobs;
    }

    job->shown = parse->n;
    job->candidates = ngx_max(parse->n, parse->best_of);

    job->logprobs = (request->logprobs >= 0);
    job->prompt_logprobs = (parse->prompt_logprobs >= 0);
    request->prompt_logprobs = (int32_t) parse->prompt_logprobs;

    if (job->echo) {
        request->flags |= MOE_REQUEST_ECHO;
        request->prompt_logprobs = ngx_max(request->prompt_logprobs,
                                           request->logprobs);
    }

    if (job->candidates > job->shown) {

        /* they are ranked by these */

        request->logprobs = ngx_max(request->logprobs, 0);
    }

    if (job->token_ids) {
        request->flags |= MOE_REQUEST_PROMPT_IDS;
    }

    if (request->flags & MOE_REQUEST_CONTINUE_FINAL) {
        request->flags |= MOE_REQUEST_NO_GENERATION_PROMPT;
    }

    return NGX_OK;
}


/* A limit of the location clamps; it is no demand that must fit the context. */

static void
ngx_http_moe_parse_max_tokens(ngx_http_moe_parse_t *parse)
{
    int64_t         limit;
    moe_request_t  *request;

    request = &parse->request;
    limit = parse->job->max_tokens;

    if (parse->max_tokens >= 0) {
        request->given |= MOE_GIVEN_MAX_TOKENS;
        request->max_tokens = parse->max_tokens;

    } else {
        request->max_tokens = parse->kind == NGX_HTTP_MOE_COMPLETION
                              ? NGX_HTTP_MOE_DEFAULT_TOKENS : 0;
    }

    if (limit && (request->max_tokens == 0 || request->max_tokens > limit)
        && parse->max_tokens != 0)
    {
        request->max_tokens = limit;
        request->min_tokens = ngx_min(request->min_tokens, limit);
    }
}


static ngx_int_t
ngx_http_moe_encode(ngx_http_moe_parse_t *parse)
{
    return parse->kind == NGX_HTTP_MOE_CHAT
           ? ngx_http_moe_encode_chat(parse)
           : ngx_http_moe_encode_prompts(parse);
}


static ngx_int_t
ngx_http_moe_encode_chat(ngx_http_moe_parse_t *parse)
{
    char           *messages, *arguments;
    ngx_int_t       rc;
    moe_request_t  *request;

    request = &parse->request;

    messages = json_dumps(parse->prompt, JSON_COMPACT);
    arguments = parse->arguments ? json_dumps(parse->arguments, JSON_COMPACT)
                                 : NULL;

    if (messages == NULL || (parse->arguments && arguments == NULL)) {
        free(messages);
        free(arguments);
        return ngx_http_moe_parse_error(parse, NULL, "messages",
                                        "messages cannot be represented");
    }

    request->kind = MOE_PROMPT_CHAT;
    request->prompt.data = messages;
    request->prompt.size = strlen(messages);
    request->template_arguments.data = arguments;
    request->template_arguments.size = arguments ? strlen(arguments) : 0;

    rc = ngx_http_moe_encode_frames(parse, 1);

    if (rc == NGX_OK) {
        rc = ngx_http_moe_encode_request(parse);
    }

    free(messages);
    free(arguments);

    return rc;
}


static ngx_int_t
ngx_http_moe_encode_prompts(ngx_http_moe_parse_t *parse)
{
    size_t   i, n;
    json_t  *first;

    /* a list of numbers is one prompt, any other list one per element */

    n = 1;

    if (json_is_array(parse->prompt)) {
        first = json_array_get(parse->prompt, 0);

        if (first == NULL) {
            return ngx_http_moe_parse_error(parse, NULL, "prompt",
                                            "prompt must not be empty");
        }

        if (!json_is_integer(first)) {
            n = json_array_size(parse->prompt);
        }
    }

    if (ngx_http_moe_encode_frames(parse, n) != NGX_OK) {
        return NGX_ERROR;
    }

    if (json_is_array(parse->prompt)
        && !json_is_integer(json_array_get(parse->prompt, 0)))
    {
        for (i = 0; i < n; i++) {
            if (ngx_http_moe_encode_prompt(parse,
                                           json_array_get(parse->prompt, i))
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        return NGX_OK;
    }

    return ngx_http_moe_encode_prompt(parse, parse->prompt);
}


static ngx_int_t
ngx_http_moe_encode_prompt(ngx_http_moe_parse_t *parse, json_t *prompt)
{
    uint32_t       *ids;
    ngx_int_t       rc;
    moe_request_t  *request;

    request = &parse->request;

    if (json_is_string(prompt)) {
        request->kind = MOE_PROMPT_TEXT;
        request->prompt.data = json_string_value(prompt);
        request->prompt.size = json_string_length(prompt);

        return ngx_http_moe_encode_request(parse);
    }

    if (!json_is_array(prompt) || json_array_size(prompt) == 0) {
        return ngx_http_moe_parse_error(parse, NULL, "prompt",
                   "prompt must be a string, a list of strings, a list of "
                   "token ids or a list of such lists");
    }

    ids = ngx_http_moe_ids(parse, "prompt", prompt, MOE_FRAME_LIMIT / 8);
    if (ids == NULL) {
        return NGX_ERROR;
    }

    request->kind = MOE_PROMPT_TOKENS;
    request->prompt_ids = ids;
    request->n_prompt_ids = json_array_size(prompt);

    rc = ngx_http_moe_encode_request(parse);

    free(ids);

    return rc;
}


/* Room for the candidates of all prompts. */

static ngx_int_t
ngx_http_moe_encode_frames(ngx_http_moe_parse_t *parse, size_t prompts)
{
    size_t               n;
    ngx_http_moe_job_t  *job;

    job = parse->job;

    if (prompts * job->candidates > NGX_HTTP_MOE_CHOICES_LIMIT) {
        return ngx_http_moe_parse_error(parse, NULL,
                   job->candidates == 1 ? "prompt"
                   : job->candidates == job->shown ? "n" : "best_of",
                   "the request asks for more than %d completions",
                   NGX_HTTP_MOE_CHOICES_LIMIT);
    }

    n = prompts * job->candidates;
    job->frames = calloc(n, sizeof(moe_buffer_t));

    return job->frames ? NGX_OK
                       : ngx_http_moe_parse_error(parse, NULL, NULL,
                                                  "no memory");
}


/*
 * One frame per candidate of the prompt.  They differ in their seeds, the
 * first has the request's own: it is what n = 1 gives.
 */

static ngx_int_t
ngx_http_moe_encode_request(ngx_http_moe_parse_t *parse)
{
    uint64_t             seed;
    ngx_int_t            rc;
    ngx_uint_t           i;
    moe_error_t          error;
    moe_buffer_t        *frame;
    ngx_http_moe_job_t  *job;

    job = parse->job;
    seed = parse->request.seed;

    for (i = 0; i < job->candidates; i++) {

        frame = &job->frames[job->n++];
        parse->request.seed = seed + i;

        rc = moe_request_encode(frame, 0, &parse->request, &error);
        parse->size += frame->size;

        if (rc == 0 && job->n > 1 && parse->size > MOE_FRAME_LIMIT) {
            rc = moe_fail(&error, MOE_LIMIT, "more than %u bytes for all of "
                          "its completions", MOE_FRAME_LIMIT);
        }

        if (rc != 0) {
            return ngx_http_moe_parse_error(parse, NULL,
                       parse->kind == NGX_HTTP_MOE_CHAT ? "messages"
                                                        : "prompt",
                       "the request is too large: %s", error.message);
        }
    }

    parse->request.seed = seed;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_string(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t               size;
    ngx_http_moe_job_t  *job;

    size = json_string_length(value);

    if (!json_is_string(value) || size < field->low || size > field->high) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a string of %.0f to %.0f bytes", field->name,
                   field->low, field->high);
    }

    job = parse->job;
    job->model = malloc(size);

    if (job->model == NULL) {
        return ngx_http_moe_parse_error(parse, NULL, field->name, "no memory");
    }

    ngx_memcpy(job->model, json_string_value(value), size);
    job->model_size = size;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_id(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t       size;
    const char  *id;

    static const char  allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                   "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789-_.:";

    id = json_string_value(value);
    size = json_string_length(value);

    if (id == NULL || size == 0 || size > NGX_HTTP_MOE_ID_LENGTH
        || strspn(id, allowed) != size)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a string of 1 to %d letters, digits or any "
                   "of \"-_.:\"", field->name, NGX_HTTP_MOE_ID_LENGTH);
    }

    ngx_memcpy(parse->job->id, id, size);

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_float(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    double  number;

    number = json_number_value(value);

    if (!json_is_number(value) || !isfinite(number)
        || number < field->low || number > field->high)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a number from %g to %g", field->name,
                   field->low, field->high);
    }

    *(float *) ((char *) parse + field->offset) = (float) number;
    parse->request.given |= field->flag;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_integer(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    json_int_t  number;

    number = json_integer_value(value);

    if (!json_is_integer(value)
        || number < field->low || number > field->high)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be an integer from %.0f to %.0f", field->name,
                   field->low, field->high);
    }

    *(int64_t *) ((char *) parse + field->offset) = number;

    return NGX_OK;
}


/* Also int32_t; -1 of top_k means the same as 0. */

static ngx_int_t
ngx_http_moe_take_uint32(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    json_int_t  number;

    number = json_integer_value(value);

    if (!json_is_integer(value)
        || number < field->low || number > field->high)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be an integer from %.0f to %.0f", field->name,
                   field->low, field->high);
    }

    if (field->low == -1 && number == -1) {
        number = 0;
    }

    *(uint32_t *) ((char *) parse + field->offset) = (uint32_t) number;
    parse->request.given |= field->flag;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_seed(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_integer(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                                        "%s must be an integer", field->name);
    }

    parse->request.seed = (uint64_t) json_integer_value(value);
    parse->request.given |= MOE_GIVEN_SEED;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_boolean(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (json_is_boolean(value)) {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error(parse, NULL, field->name,
                                    "%s must be true or false", field->name);
}


static ngx_int_t
ngx_http_moe_take_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (ngx_http_moe_take_boolean(parse, field, value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (json_is_true(value)) {
        parse->request.flags |= field->flag;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_unset_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (ngx_http_moe_take_boolean(parse, field, value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (json_is_false(value)) {
        parse->request.flags |= field->flag;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_switch(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    unsigned  on;

    if (ngx_http_moe_take_boolean(parse, field, value) != NGX_OK) {
        return NGX_ERROR;
    }

    on = json_is_true(value);

    switch (field->flag) {

    case NGX_HTTP_MOE_SWITCH_STREAM:
        parse->job->stream = on;
        break;

    case NGX_HTTP_MOE_SWITCH_ECHO:
        parse->job->echo = on;
        break;

    case NGX_HTTP_MOE_SWITCH_LOGPROBS:
        parse->chat_logprobs = on;
        break;

    default: /* NGX_HTTP_MOE_SWITCH_TOKEN_IDS */
        parse->job->token_ids = on;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_unsupported(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field)
{
    return ngx_http_moe_parse_error(parse, "unsupported_value", field->name,
                                    "%s with this value is not supported",
                                    field->name);
}


/* false, "", [], {}: nothing is asked for. */

static ngx_int_t
ngx_http_moe_take_nothing(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (json_is_false(value)
        || (json_is_string(value) && json_string_length(value) == 0)
        || (json_is_array(value) && json_array_size(value) == 0)
        || (json_is_object(value) && json_object_size(value) == 0))
    {
        return NGX_OK;
    }

    return ngx_http_moe_take_unsupported(parse, field);
}


static ngx_int_t
ngx_http_moe_take_choice(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    const char  *choice;

    choice = json_string_value(value);

    if (choice
        && (strcmp(choice, "none") == 0 || strcmp(choice, "auto") == 0))
    {
        return NGX_OK;
    }

    return ngx_http_moe_take_unsupported(parse, field);
}


static ngx_int_t
ngx_http_moe_take_format(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    const char  *type;

    type = json_string_value(json_object_get(value, "type"));

    if (type && strcmp(type, "text") == 0) {
        return NGX_OK;
    }

    return ngx_http_moe_take_unsupported(parse, field);
}


static ngx_int_t
ngx_http_moe_take_prompt(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_string(value) && !json_is_array(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "prompt must be a string, a list of strings, a list of "
                   "token ids or a list of such lists");
    }

    parse->prompt = value;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_messages(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t  i, n;

    n = json_array_size(value);

    if (!json_is_array(value) || n == 0 || n > NGX_HTTP_MOE_MESSAGES_LIMIT) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "messages must be a list of 1 to %d messages",
                   NGX_HTTP_MOE_MESSAGES_LIMIT);
    }

    for (i = 0; i < n; i++) {
        if (ngx_http_moe_take_message(parse, i, json_array_get(value, i))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    parse->prompt = value;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_message(ngx_http_moe_parse_t *parse, size_t index,
    json_t *message)
{
    char         name[64];
    json_t      *content, *calls;
    ngx_uint_t   i;
    const char  *role;

    static const char  *roles[] = { "system", "developer", "user",
                                    "assistant", "tool", NULL };

    if (!json_is_object(message)) {
        (void) snprintf(name, sizeof(name), "messages[%zu]", index);
        return ngx_http_moe_parse_error(parse, NULL, name,
                                        "%s must be an object", name);
    }

    role = json_string_value(json_object_get(message, "role"));

    for (i = 0; role && roles[i]; i++) {
        if (strcmp(role, roles[i]) == 0) {
            break;
        }
    }

    if (role == NULL || roles[i] == NULL) {
        (void) snprintf(name, sizeof(name), "messages[%zu].role", index);
        return ngx_http_moe_parse_error(parse, NULL, name,
                   "%s must be one of system, developer, user, assistant, "
                   "tool", name);
    }

    if (ngx_http_moe_take_member(parse, index, message, "name") != NGX_OK
        || ngx_http_moe_take_member(parse, index, message, "tool_call_id")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    content = json_object_get(message, "content");
    calls = json_object_get(message, "tool_calls");

    if (calls && !json_is_null(calls) && !json_is_array(calls)) {
        (void) snprintf(name, sizeof(name), "messages[%zu].tool_calls", index);
        return ngx_http_moe_parse_error(parse, NULL, name,
                                        "%s must be a list", name);
    }

    /* a message of tool calls needs no content of its own */

    if ((content == NULL || json_is_null(content))
        && strcmp(role, "assistant") == 0 && json_array_size(calls))
    {
        return NGX_OK;
    }

    return ngx_http_moe_take_content(parse, index, content);
}


/* A member of a message that must be a string, where it is. */

static ngx_int_t
ngx_http_moe_take_member(ngx_http_moe_parse_t *parse, size_t index,
    json_t *message, const char *member)
{
    char     name[64];
    json_t  *value;

    value = json_object_get(message, member);

    if (value == NULL || json_is_null(value) || json_is_string(value)) {
        return NGX_OK;
    }

    (void) snprintf(name, sizeof(name), "messages[%zu].%s", index, member);

    return ngx_http_moe_parse_error(parse, NULL, name, "%s must be a string",
                                    name);
}


static ngx_int_t
ngx_http_moe_take_content(ngx_http_moe_parse_t *parse, size_t index,
    json_t *content)
{
    char         name[64];
    size_t       i, n;
    json_t      *part;
    const char  *type;

    if (json_is_string(content)) {
        return NGX_OK;
    }

    n = json_array_size(content);

    if (n == 0) {
        (void) snprintf(name, sizeof(name), "messages[%zu].content", index);
        return ngx_http_moe_parse_error(parse, NULL, name,
                   "%s must be a string or a list of parts", name);
    }

    for (i = 0; i < n; i++) {
        part = json_array_get(content, i);
        type = json_string_value(json_object_get(part, "type"));

        if (type == NULL || strcmp(type, "text") != 0) {
            (void) snprintf(name, sizeof(name),
                            "messages[%zu].content[%zu].type", index, i);
            return ngx_http_moe_parse_error(parse, "unsupported_value", name,
                                            "%s must be \"text\"", name);
        }

        if (!json_is_string(json_object_get(part, "text"))) {
            (void) snprintf(name, sizeof(name),
                            "messages[%zu].content[%zu].text", index, i);
            return ngx_http_moe_parse_error(parse, NULL, name,
                                            "%s must be a string", name);
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_stop(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t   i, n, size;
    json_t  *stop;

    n = json_is_string(value) ? 1 : json_array_size(value);

    if ((!json_is_string(value) && !json_is_array(value))
        || n > MOE_STOPS_LIMIT)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "stop must be a string or a list of at most %u strings",
                   MOE_STOPS_LIMIT);
    }

    for (i = 0; i < n; i++) {
        stop = json_is_string(value) ? value : json_array_get(value, i);
        size = json_string_length(stop);

        if (!json_is_string(stop) || size == 0 || size > MOE_STOP_BYTES_LIMIT)
        {
            return ngx_http_moe_parse_error(parse, NULL, field->name,
                       "a stop string must be a string of 1 to %u bytes",
                       MOE_STOP_BYTES_LIMIT);
        }

        parse->stops[i].data = json_string_value(stop);
        parse->stops[i].size = size;
    }

    parse->request.stops = parse->stops;
    parse->request.n_stops = n;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_ids(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    uint32_t  *ids;

    if (!json_is_array(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a list of token ids", field->name);
    }

    if (json_array_size(value) == 0) {
        return NGX_OK;
    }

    ids = ngx_http_moe_ids(parse, field->name, value, MOE_ID_LIST_LIMIT);
    if (ids == NULL) {
        return NGX_ERROR;
    }

    *(uint32_t **) ((char *) parse + field->offset) = ids;

    if (ids == parse->stop_ids) {
        parse->request.stop_ids = ids;
        parse->request.n_stop_ids = json_array_size(value);

    } else {
        parse->request.allowed_ids = ids;
        parse->request.n_allowed_ids = json_array_size(value);
    }

    return NGX_OK;
}


/* A malloc'ed copy of a list of token ids, or NULL with an error. */

static uint32_t *
ngx_http_moe_ids(ngx_http_moe_parse_t *parse, const char *field, json_t *list,
    uint32_t limit)
{
    size_t       i, n;
    json_t      *id;
    uint32_t    *ids;
    json_int_t   number;

    n = json_array_size(list);

    if (n > limit) {
        (void) ngx_http_moe_parse_error(parse, NULL, field,
                   "%s has more than %u elements", field, limit);
        return NULL;
    }

    ids = malloc(n * sizeof(uint32_t));
    if (ids == NULL) {
        (void) ngx_http_moe_parse_error(parse, NULL, field, "no memory");
        return NULL;
    }

    for (i = 0; i < n; i++) {
        id = json_array_get(list, i);
        number = json_integer_value(id);

        if (!json_is_integer(id) || number < 0 || number > INT32_MAX) {
            (void) ngx_http_moe_parse_error(parse, NULL, field,
                       "%s: element %zu is not a token id", field, i);
            free(ids);
            return NULL;
        }

        ids[i] = (uint32_t) number;
    }

    return ids;
}


static ngx_int_t
ngx_http_moe_take_bias(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    char              *end;
    size_t             n;
    json_t            *bias;
    const char        *key;
    unsigned long      id;
    moe_logit_bias_t  *biases;

    n = json_object_size(value);

    if (!json_is_object(value) || n > MOE_ID_LIST_LIMIT) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "logit_bias must be an object of at most %u token ids",
                   MOE_ID_LIST_LIMIT);
    }

    biases = malloc((n + 1) * sizeof(moe_logit_bias_t));
    if (biases == NULL) {
        return ngx_http_moe_parse_error(parse, NULL, field->name, "no memory");
    }

    parse->biases = biases;
    n = 0;

    json_object_foreach(value, key, bias) {

        errno = 0;
        id = strtoul(key, &end, 10);

        if (key[0] < '0' || key[0] > '9' || *end != '\0' || errno
            || id > INT32_MAX)
        {
            return ngx_http_moe_parse_error(parse, NULL, field->name,
                       "a key of logit_bias is not a token id");
        }

        if (!json_is_number(bias)
            || !(json_number_value(bias) >= field->low)
            || !(json_number_value(bias) <= field->high))
        {
            return ngx_http_moe_parse_error(parse, NULL, field->name,
                       "logit_bias of token %lu must be a number from %g "
                       "to %g", id, field->low, field->high);
        }

        biases[n].id = (uint32_t) id;
        biases[n].bias = (float) json_number_value(bias);
        n++;
    }

    parse->request.biases = biases;
    parse->request.n_biases = n;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_stream_options(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    json_t  *usage;

    if (!json_is_object(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                                        "stream_options must be an object");
    }

    parse->usage_given = 1;

    usage = json_object_get(value, "include_usage");

    if (usage && !json_is_boolean(usage) && !json_is_null(usage)) {
        return ngx_http_moe_parse_error(parse, NULL,
                   "stream_options.include_usage",
                   "stream_options.include_usage must be true or false");
    }

    parse->job->include_usage = json_is_true(usage) ? 1 : 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_arguments(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_object(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "chat_template_kwargs must be an object");
    }

    parse->arguments = json_copy(value);

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_effort(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_string(value) || json_string_length(value) > 32) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "reasoning_effort must be a short string");
    }

    if (parse->arguments == NULL) {
        parse->arguments = json_object();
    }

    if (json_object_set(parse->arguments, field->name, value) != 0) {
        return ngx_http_moe_parse_error(parse, NULL, field->name, "no memory");
    }

    return NGX_OK;
}
