
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
#include "http/openai_fields.h"
#include "http/reply.h"

#include <openssl/rand.h>


#define NGX_HTTP_MOE_DEFAULT_TOKENS   16     /* of /v1/completions */

#define NGX_HTTP_MOE_COMPLETION       NGX_HTTP_MOE_OPENAI_COMPLETION
#define NGX_HTTP_MOE_CHAT             NGX_HTTP_MOE_OPENAI_CHAT
#define NGX_HTTP_MOE_BOTH             (NGX_HTTP_MOE_COMPLETION                \
                                       |NGX_HTTP_MOE_CHAT)


static ngx_int_t ngx_http_moe_parse_root(ngx_http_moe_parse_t *parse);
static const char *ngx_http_moe_parse_field_at(ngx_http_moe_parse_t *parse,
    size_t position);
static ngx_int_t ngx_http_moe_parse_fields(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_parse_check(ngx_http_moe_parse_t *parse);
static void ngx_http_moe_parse_settle(ngx_http_moe_parse_t *parse);
static void ngx_http_moe_parse_max_tokens(ngx_http_moe_parse_t *parse);
static void ngx_http_moe_parse_priority(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode_chat(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode_json(ngx_http_moe_parse_t *parse,
    const char *field, json_t *value, moe_string_t *text);
static ngx_int_t ngx_http_moe_encode_prompts(ngx_http_moe_parse_t *parse);
static ngx_int_t ngx_http_moe_encode_prompt(ngx_http_moe_parse_t *parse,
    json_t *prompt);
static ngx_int_t ngx_http_moe_encode_frames(ngx_http_moe_parse_t *parse,
    size_t prompts);
static ngx_int_t ngx_http_moe_encode_request(ngx_http_moe_parse_t *parse);


#define ngx_http_moe_state(field)    offsetof(ngx_http_moe_parse_t, field)
#define ngx_http_moe_request(field)                                           \
    (offsetof(ngx_http_moe_parse_t, request) + offsetof(moe_request_t, field))


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

    { "include_reasoning", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_switch,
      0, 0, 0, NGX_HTTP_MOE_SWITCH_REASONING },

    /* tools */

    { "tools", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_tools, 0, 0, 0, 0 },
    { "tool_choice", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_tool_choice,
      0, 0, 0, 0 },
    { "parallel_tool_calls", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_unset_flag,
      0, 0, 0, MOE_REQUEST_ONE_TOOL_CALL },
    { "functions", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_functions,
      0, 0, 0, 0 },
    { "function_call", NGX_HTTP_MOE_CHAT, ngx_http_moe_take_function_call,
      0, 0, 0, 0 },

    /* of no effect here */

    { "user", NGX_HTTP_MOE_BOTH, ngx_http_moe_take_text, 0, 0, 0, 0 },

    /* not here yet: only values that ask for nothing */

    { "suffix", NGX_HTTP_MOE_COMPLETION, ngx_http_moe_take_nothing,
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
    parse.request.tenant = job->tenant;
    parse.request.salt = job->salt;

    if (ngx_http_moe_parse_root(&parse) == NGX_OK
        && ngx_http_moe_parse_fields(&parse) == NGX_OK
        && ngx_http_moe_parse_check(&parse) == NGX_OK)
    {
        ngx_http_moe_parse_settle(&parse);
        (void) ngx_http_moe_encode(&parse);
    }

    free(parse.stop_ids);
    free(parse.allowed_ids);
    free(parse.biases);
    json_decref(parse.arguments);
    json_decref(parse.tools);
    json_decref(parse.root);
}


static ngx_int_t
ngx_http_moe_parse_root(ngx_http_moe_parse_t *parse)
{
    char          *near;
    const char    *field;
    json_error_t   error;

    parse->root = json_loadb(parse->job->body, parse->job->size,
                             JSON_ALLOW_NUL, &error);

    if (parse->root == NULL) {

        field = json_error_code(&error) == json_error_numeric_overflow
                ? ngx_http_moe_parse_field_at(parse, error.position) : NULL;

        if (field) {
            return ngx_http_moe_parse_error(parse, NULL, field,
                                            "%s holds a number that is out of "
                                            "range", field);
        }

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


/*
 * The known field of the body that the byte at `position` belongs to, or NULL.
 * What comes before that byte is JSON: jansson has read it.
 */

static const char *
ngx_http_moe_parse_field_at(ngx_http_moe_parse_t *parse, size_t position)
{
    char                        *p, *last, *start, *key;
    size_t                       size;
    ngx_uint_t                   depth;
    const ngx_http_moe_field_t  *field;

    p = parse->job->body;
    last = p + ngx_min(position, parse->job->size);
    key = NULL;
    size = 0;
    depth = 0;

    for ( /* void */ ; p < last; p++) {

        if (*p == '{' || *p == '[') {

            if (*p == '[' && depth == 0) {
                return NULL;
            }

            depth++;

        } else if (*p == '}' || *p == ']') {
            depth--;

        } else if (*p == '"') {
            start = ++p;

            while (p < last && *p != '"') {
                p += (*p == '\\') ? 2 : 1;
            }

            /* a value that is a string is followed by another key */

            if (depth == 1) {
                key = start;
                size = p - start;
            }
        }
    }

    for (field = ngx_http_moe_fields; key && field->name; field++) {

        if ((field->routes & parse->kind)
            && strlen(field->name) == size
            && ngx_memcmp(field->name, key, size) == 0)
        {
            return field->name;
        }
    }

    return NULL;
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

    return NGX_OK;
}


/* What follows from several fields together. */

static void
ngx_http_moe_parse_settle(ngx_http_moe_parse_t *parse)
{
    moe_request_t       *request;
    ngx_http_moe_job_t  *job;

    job = parse->job;
    request = &parse->request;

    if ((request->given & MOE_GIVEN_TOP_P) && request->top_p == 0) {

        /* the most probable token always stays */

        request->top_p = 1;
        request->top_k = 1;
        request->given |= MOE_GIVEN_TOP_K;
    }

    ngx_http_moe_parse_max_tokens(parse);
    ngx_http_moe_parse_priority(parse);

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

    /* nothing keeps a model from calling a tool but not to know of it */

    if (parse->no_tools) {
        json_decref(parse->tools);
        parse->tools = NULL;
    }

    if (parse->tools) {
        request->flags |= MOE_REQUEST_PARSE_TOOLS;
    }
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


/* A request may stand back behind the others of its location, not before. */

static void
ngx_http_moe_parse_priority(ngx_http_moe_parse_t *parse)
{
    int64_t  priority;

    priority = (int64_t) parse->job->priority
               + ngx_max(parse->request.priority, 0);

    parse->request.priority = (int32_t) ngx_min(priority, INT32_MAX);
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
    ngx_int_t       rc;
    moe_request_t  *request;

    request = &parse->request;
    request->kind = MOE_PROMPT_CHAT;

    rc = NGX_ERROR;

    if (ngx_http_moe_encode_json(parse, "messages", parse->prompt,
                                 &request->prompt)
           == NGX_OK
        && ngx_http_moe_encode_json(parse, "chat_template_kwargs",
                                    parse->arguments,
                                    &request->template_arguments)
           == NGX_OK
        && ngx_http_moe_encode_json(parse, "tools", parse->tools,
                                    &request->tools)
           == NGX_OK
        && ngx_http_moe_encode_frames(parse, 1) == NGX_OK)
    {
        rc = ngx_http_moe_encode_request(parse);
    }

    free((void *) request->prompt.data);
    free((void *) request->template_arguments.data);
    free((void *) request->tools.data);

    return rc;
}


/* The text of value, malloc'ed; empty where there is none. */

static ngx_int_t
ngx_http_moe_encode_json(ngx_http_moe_parse_t *parse, const char *field,
    json_t *value, moe_string_t *text)
{
    if (value == NULL) {
        return NGX_OK;
    }

    text->data = json_dumps(value, JSON_COMPACT);

    if (text->data == NULL) {
        return ngx_http_moe_parse_error(parse, NULL, field,
                                        "%s cannot be represented", field);
    }

    text->size = strlen(text->data);

    return NGX_OK;
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


/* A list may hold prompts of both kinds: none sees what another one left. */

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
        request->prompt_ids = NULL;
        request->n_prompt_ids = 0;

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
    request->prompt.size = 0;
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
    job->several = job->candidates == 1 ? "prompt"
                   : job->candidates == job->shown ? "n" : "best_of";

    if (prompts * job->candidates > NGX_HTTP_MOE_CHOICES_LIMIT) {
        return ngx_http_moe_parse_error(parse, NULL, job->several,
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
 * first has the request's own: it is what n = 1 gives.  A request without a
 * seed is sent with one for each prompt: else it could not be resumed.
 */

static ngx_int_t
ngx_http_moe_encode_request(ngx_http_moe_parse_t *parse)
{
    uint32_t             given;
    uint64_t             seed;
    ngx_int_t            rc;
    ngx_uint_t           i;
    moe_error_t          error;
    moe_buffer_t        *frame;
    ngx_http_moe_job_t  *job;

    job = parse->job;
    given = parse->request.given;

    if (!(given & MOE_GIVEN_SEED)
        && RAND_bytes((u_char *) &parse->request.seed,
                      sizeof(parse->request.seed))
           != 1)
    {
        ngx_http_moe_problem(&job->problem, NGX_HTTP_INTERNAL_SERVER_ERROR,
                             "server_error", "server_error", NULL,
                             "no random numbers");
        job->failed = 1;
        return NGX_ERROR;
    }

    parse->request.given |= MOE_GIVEN_SEED;
    seed = parse->request.seed;

    for (i = 0; i < job->candidates; i++) {

        frame = &job->frames[job->n++];
        frame->limit = MOE_FRAME_HEADER + MOE_FRAME_LIMIT;
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
    parse->request.given = given;

    return NGX_OK;
}
