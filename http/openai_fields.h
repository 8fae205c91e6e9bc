
/*
 * The fields of a body, one by one: each function takes a value that is
 * present and not null, or names the field in an error.  They run in any
 * thread.
 */


#ifndef _NGX_HTTP_MOE_OPENAI_FIELDS_H_INCLUDED_
#define _NGX_HTTP_MOE_OPENAI_FIELDS_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/openai.h"

#include <jansson.h>


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
    json_t                      *tools;        /* NULL: none; owned */
    int64_t                      max_tokens;   /* -1: not given */
    int64_t                      n;
    int64_t                      best_of;      /* -1 */
    int64_t                      logprobs;     /* completions; -1 */
    int64_t                      top_logprobs;     /* chat; -1 */
    int64_t                      prompt_logprobs;  /* -1 */
    unsigned                     chat_logprobs:1;
    unsigned                     usage_given:1;
    unsigned                     no_tools:1;   /* tool_choice is none */
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


/* switches: which bit of the job or the state a boolean sets */

enum {
    NGX_HTTP_MOE_SWITCH_STREAM,
    NGX_HTTP_MOE_SWITCH_ECHO,
    NGX_HTTP_MOE_SWITCH_LOGPROBS,
    NGX_HTTP_MOE_SWITCH_TOKEN_IDS,
    NGX_HTTP_MOE_SWITCH_REASONING
};


/* Notes the request's failure with status 400; returns NGX_ERROR. */

ngx_int_t ngx_http_moe_parse_error(ngx_http_moe_parse_t *parse,
    const char *code, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same of a place inside a field, which format gives; the message is the
 * place and `what`. */

ngx_int_t ngx_http_moe_parse_error_at(ngx_http_moe_parse_t *parse,
    const char *code, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define NGX_HTTP_MOE_ALPHANUMERIC                                            \
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* Whether value is a string of 1 to `limit` bytes, all of them `allowed`. */

ngx_uint_t ngx_http_moe_made_of(json_t *value, const char *allowed,
    size_t limit);

/* Whether value has more than `levels` levels of lists and objects. */

ngx_uint_t ngx_http_moe_deeper(json_t *value, ngx_uint_t levels);

/* A malloc'ed copy of a list of token ids, or NULL with an error. */

uint32_t *ngx_http_moe_ids(ngx_http_moe_parse_t *parse, const char *field,
    json_t *list, uint32_t limit);

ngx_int_t ngx_http_moe_take_string(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_id(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_text(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_float(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_integer(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_uint32(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_seed(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_boolean(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_unset_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_switch(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_nothing(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_format(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_prompt(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_stop(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_ids(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_bias(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_stream_options(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_arguments(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_effort(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);

/* openai_messages.c */

ngx_int_t ngx_http_moe_take_messages(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);

/* openai_tools.c */

ngx_int_t ngx_http_moe_take_tools(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_tool_choice(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_functions(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);
ngx_int_t ngx_http_moe_take_function_call(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value);


#endif /* _NGX_HTTP_MOE_OPENAI_FIELDS_H_INCLUDED_ */
