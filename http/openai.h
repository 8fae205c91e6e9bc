
/*
 * The OpenAI dialect: /v1/completions, /v1/chat/completions, /v1/models, and
 * /health, which every dialect of its kind shares.
 */


#ifndef _NGX_HTTP_MOE_OPENAI_H_INCLUDED_
#define _NGX_HTTP_MOE_OPENAI_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/api.h"


typedef enum {
    NGX_HTTP_MOE_OPENAI_COMPLETION = 1,
    NGX_HTTP_MOE_OPENAI_CHAT = 2
} ngx_http_moe_openai_kind_e;


extern const ngx_http_moe_api_t    ngx_http_moe_openai_api;

/* The kind of a generating route. */

ngx_http_moe_openai_kind_e ngx_http_moe_openai_kind(
    const ngx_http_moe_route_t *route);

/* openai_parse.c: fills the job from its body.  Runs in any thread. */

void ngx_http_moe_openai_parse(ngx_http_moe_job_t *job);

/* openai_reply.c: see ngx_http_moe_api_t */

void ngx_http_moe_openai_started(ngx_http_moe_choice_t *choice,
    moe_started_t *started);
void ngx_http_moe_openai_tokens(ngx_http_moe_choice_t *choice,
    moe_tokens_t *tokens);
void ngx_http_moe_openai_done(ngx_http_moe_choice_t *choice);
void ngx_http_moe_openai_end(ngx_http_moe_ctx_t *ctx);

/* openai_logprobs.c: adds to the choice's logprobs, in the form of its route.
 * prompt: NULL, or the records are those of the tokens of this text, and the
 * first has no logprob. */

void ngx_http_moe_openai_logprobs(ngx_http_moe_choice_t *choice,
    moe_reader_t *reader, uint32_t n, moe_string_t *prompt);

/* Their JSON value, null where none were asked for. */

void ngx_http_moe_openai_logprobs_value(ngx_http_moe_text_t *text,
    ngx_http_moe_choice_t *choice);

/* vLLM's prompt_logprobs: one object, keyed by token id, per prompt token. */

void ngx_http_moe_openai_prompt_logprobs(ngx_http_moe_choice_t *choice,
    moe_reader_t *reader, uint32_t n);


#endif /* _NGX_HTTP_MOE_OPENAI_H_INCLUDED_ */
