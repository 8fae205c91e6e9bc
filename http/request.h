
/*
 * One HTTP request that makes the engine generate: its parsed body, its calls
 * to the engine, and what it has become so far.
 */


#ifndef _NGX_HTTP_MOE_REQUEST_H_INCLUDED_
#define _NGX_HTTP_MOE_REQUEST_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/json_text.h"


/* What went wrong, as HTTP and the dialects tell it.  Strings of a fixed set,
 * but for message and field. */

typedef struct {
    ngx_uint_t               status;
    const char              *type;
    const char              *code;         /* NULL: none */
    char                     field[128];   /* "" when no field is at fault */
    char                     message[512];
    int64_t                  retry_after;  /* seconds, of a 429 or 503 */
} ngx_http_moe_problem_t;


/* A parsed body.  Made in a thread of the pool when the body is large, so
 * nothing in here belongs to the request's pool. */

typedef struct {
    const ngx_http_moe_route_t   *route;
    ngx_uint_t                    max_tokens;   /* the location's limit */
    ngx_uint_t                    priority;     /* the location's */
    moe_string_t                  tenant;       /* see ngx_http_moe_key_apply */
    moe_string_t                  salt;
    char                         *body;
    size_t                        size;

    /* results */
    moe_buffer_t                 *frames;       /* one REQUEST per candidate */
    ngx_uint_t                    n;            /* all prompts' */
    ngx_uint_t                    candidates;   /* of each prompt */
    ngx_uint_t                    shown;        /* the best of these */
    const char                   *several;      /* the field that asks for n */
    char                         *model;        /* NULL: not given */
    size_t                        model_size;
    char                          id[NGX_HTTP_MOE_ID_LENGTH + 1];
    unsigned                      stream:1;
    unsigned                      include_usage:1;
    unsigned                      echo:1;
    unsigned                      logprobs:1;
    unsigned                      prompt_logprobs:1;  /* shown by themselves */
    unsigned                      token_ids:1;
    unsigned                      hide_reasoning:1;
    unsigned                      failed:1;
    ngx_http_moe_problem_t        problem;
} ngx_http_moe_job_t;


typedef enum {
    NGX_HTTP_MOE_FINISH_NONE = 0,
    NGX_HTTP_MOE_FINISH_STOP,
    NGX_HTTP_MOE_FINISH_TOOL_CALLS,        /* a stop, after calls of tools */
    NGX_HTTP_MOE_FINISH_LENGTH,
    NGX_HTTP_MOE_FINISH_CANCELLED,
    NGX_HTTP_MOE_FINISH_TIMEOUT,
    NGX_HTTP_MOE_FINISH_ERROR
} ngx_http_moe_finish_e;


/* One answer to one prompt; the candidates of a prompt follow each other.  What
 * is counted per prompt is 0 in all but the first.  The texts are JSON already;
 * those below `text` are filled when a dialect's reply wants them. */

typedef struct {
    ngx_http_moe_call_t           call;
    ngx_http_moe_ctx_t           *ctx;
    ngx_uint_t                    index;
    ngx_http_moe_finish_e         finish;
    ngx_uint_t                    resumed;      /* times */
    uint32_t                      undelivered;  /* tokens not yet credited */
    uint32_t                      prompt_tokens;
    uint32_t                      cached_tokens;
    uint32_t                      completion_tokens;
    uint32_t                      reasoning_tokens;
    uint32_t                      tool_calls;   /* so far */
    double                        logprob;      /* sum, where it is needed */
    uint64_t                      text_offset;  /* in characters */
    ngx_http_moe_text_t           text;
    ngx_http_moe_text_t           reasoning;
    ngx_http_moe_text_t           calls;
    ngx_http_moe_text_t           logprobs[4];
    ngx_http_moe_text_t           ids;
    ngx_http_moe_text_t           prompt_ids;
    ngx_http_moe_text_t           prompt_logprobs;
    unsigned                      admitted:1;
    unsigned                      started:1;
    unsigned                      prompt_started:1;  /* by any candidate */
    unsigned                      done:1;
    unsigned                      shown:1;      /* is in the reply */
} ngx_http_moe_choice_t;


struct ngx_http_moe_ctx_s {
    ngx_http_request_t           *request;
    const ngx_http_moe_api_t     *api;
    const ngx_http_moe_route_t   *route;
    ngx_http_moe_model_t         *model;
    ngx_http_moe_key_t           *key;          /* the client's, or NULL */
    ngx_http_moe_budget_t        *budget;       /* NULL: no limits */
    ngx_http_moe_job_t            job;

    ngx_http_moe_choice_t        *choices;
    ngx_uint_t                    n;
    ngx_uint_t                    running;      /* choices not done */
    ngx_uint_t                    admitted;     /* choices that the engine took */

    char                          id[NGX_HTTP_MOE_ID_LENGTH + 16];
    time_t                        created;
    uint32_t                      fingerprint;

    /* output of a stream: text written by the dialect, then buffers */
    ngx_http_moe_text_t           out;
    ngx_http_moe_text_t           prefix;       /* of every chunk */
    ngx_chain_t                  *free;
    ngx_chain_t                  *busy;

    ngx_event_t                   work;         /* posted: there is news */
    ngx_event_t                   timer;        /* set all through the life */

    /* times in ns; 0: has not happened */
    uint64_t                      arrived;
    uint64_t                      first;        /* token */
    uint64_t                      last;         /* token */
    uint64_t                      queue_ns;
    uint64_t                      decode_ns;

    /* deadlines in ms of ngx_current_msec */
    ngx_msec_t                    start;
    ngx_msec_t                    last_output;
    ngx_msec_t                    hold;

    ngx_http_moe_finish_e         finish;
    ngx_http_moe_problem_t        problem;

    unsigned                      parsing:1;    /* in a thread */
    unsigned                      called:1;     /* calls were made */
    unsigned                      header_sent:1;
    unsigned                      ended:1;      /* the last output is written */
    unsigned                      failed:1;     /* see problem */
    unsigned                      closed:1;     /* no calls, no timers */
};


/* The content handler of locations with moe_pass. */

ngx_int_t ngx_http_moe_handler(ngx_http_request_t *r);

/* The body is parsed: goes on with the request, which may be over then. */

void ngx_http_moe_parsed(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx);

/* The request's context, also after an internal redirect; or NULL. */

ngx_http_moe_ctx_t *ngx_http_moe_get_ctx(ngx_http_request_t *r);

/* Ends all calls and timers; what is left is read by variables. */

void ngx_http_moe_close(ngx_http_moe_ctx_t *ctx);

/* The only model that a location serves, or NULL: any.  NGX_DECLINED, and a
 * line in the log, when moe_pass has a variable that names none. */

ngx_int_t ngx_http_moe_pass_only(ngx_http_request_t *r,
    ngx_http_moe_model_t **only);

/* The model for a name in a location: NULL when it serves none of that name. */

ngx_http_moe_model_t *ngx_http_moe_pass_model(ngx_http_request_t *r,
    ngx_str_t *name);

/* Notes a failure of the request; status and the rest by the engine's code. */

void ngx_http_moe_fail(ngx_http_moe_ctx_t *ctx, moe_error_code_t code,
    const char *field, size_t field_size, const char *message, size_t size);


#endif /* _NGX_HTTP_MOE_REQUEST_H_INCLUDED_ */
