
/*
 * A variable is "not found" (logged as "-") as long as its value is unknown.
 * Times are in seconds with a resolution of microseconds.
 */


#include "ngx_http_moe_module.h"
#include "http/keys.h"
#include "http/model.h"
#include "http/request.h"
#include "http/variables.h"


static ngx_int_t ngx_http_moe_variable_model(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_moe_variable_key(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_moe_variable_id(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_moe_variable_finish(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_moe_variable_tokens(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_moe_variable_time(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


typedef enum {
    NGX_HTTP_MOE_TIME_TTFT = 0,
    NGX_HTTP_MOE_TIME_TPOT,
    NGX_HTTP_MOE_TIME_QUEUE
} ngx_http_moe_time_e;


static ngx_http_variable_t  ngx_http_moe_variables[] = {

    { ngx_string("moe_model"), NULL, ngx_http_moe_variable_model,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_key_id"), NULL, ngx_http_moe_variable_key,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_request_id"), NULL, ngx_http_moe_variable_id,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_finish_reason"), NULL, ngx_http_moe_variable_finish,
      0, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_prompt_tokens"), NULL, ngx_http_moe_variable_tokens,
      offsetof(ngx_http_moe_choice_t, prompt_tokens),
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_completion_tokens"), NULL, ngx_http_moe_variable_tokens,
      offsetof(ngx_http_moe_choice_t, completion_tokens),
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_cached_tokens"), NULL, ngx_http_moe_variable_tokens,
      offsetof(ngx_http_moe_choice_t, cached_tokens),
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_ttft"), NULL, ngx_http_moe_variable_time,
      NGX_HTTP_MOE_TIME_TTFT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_tpot"), NULL, ngx_http_moe_variable_time,
      NGX_HTTP_MOE_TIME_TPOT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("moe_queue_time"), NULL, ngx_http_moe_variable_time,
      NGX_HTTP_MOE_TIME_QUEUE, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_moe_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_moe_variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


static void
ngx_http_moe_variable_set(ngx_http_variable_value_t *v, u_char *data,
    size_t size)
{
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = data;
    v->len = size;
}


static ngx_int_t
ngx_http_moe_variable_model(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_moe_ctx_t  *ctx;

    ctx = ngx_http_moe_get_ctx(r);

    if (ctx == NULL || ctx->model == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_http_moe_variable_set(v, ctx->model->name.data, ctx->model->name.len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_variable_key(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_http_moe_ctx_t  *ctx;
    ngx_http_moe_key_t  *key;

    ctx = ngx_http_moe_get_ctx(r);
    key = (ctx && ctx->key) ? ctx->key : ngx_http_moe_key(r);

    if (key == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_http_moe_variable_set(v, key->id.data, key->id.len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_variable_id(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_http_moe_ctx_t  *ctx;

    ctx = ngx_http_moe_get_ctx(r);

    if (ctx == NULL || ctx->id[0] == '\0') {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_http_moe_variable_set(v, (u_char *) ctx->id, ngx_strlen(ctx->id));

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_variable_finish(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_moe_ctx_t  *ctx;

    /* in the order of ngx_http_moe_finish_e */

    static ngx_str_t  names[] = {
        ngx_null_string,
        ngx_string("stop"),
        ngx_string("tool_calls"),
        ngx_string("length"),
        ngx_string("cancelled"),
        ngx_string("timeout"),
        ngx_string("error")
    };

    ctx = ngx_http_moe_get_ctx(r);

    if (ctx == NULL || ctx->finish == NGX_HTTP_MOE_FINISH_NONE) {
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_http_moe_variable_set(v, names[ctx->finish].data,
                              names[ctx->finish].len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_variable_tokens(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char              *p;
    uint64_t             sum;
    ngx_uint_t           i;
    ngx_http_moe_ctx_t  *ctx;

    ctx = ngx_http_moe_get_ctx(r);

    if (ctx == NULL || ctx->first == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    sum = 0;

    for (i = 0; i < ctx->n; i++) {
        sum += *(uint32_t *) ((char *) &ctx->choices[i] + data);
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_moe_variable_set(v, p, ngx_sprintf(p, "%uL", sum) - p);

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_variable_time(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    u_char              *p;
    uint64_t             ns, tokens;
    ngx_uint_t           i;
    ngx_http_moe_ctx_t  *ctx;

    ctx = ngx_http_moe_get_ctx(r);

    v->not_found = 1;

    if (ctx == NULL || ctx->first == 0) {
        return NGX_OK;
    }

    switch (data) {

    case NGX_HTTP_MOE_TIME_TTFT:
        ns = ctx->first - ctx->arrived;
        break;

    case NGX_HTTP_MOE_TIME_QUEUE:
        ns = ctx->queue_ns;
        break;

    default: /* NGX_HTTP_MOE_TIME_TPOT */

        /* the time between tokens: a choice of n has n - 1 of these */

        tokens = 0;

        for (i = 0; i < ctx->n; i++) {
            if (ctx->choices[i].done && ctx->choices[i].completion_tokens) {
                tokens += ctx->choices[i].completion_tokens - 1;
            }
        }

        if (tokens == 0) {
            return NGX_OK;
        }

        ns = ctx->decode_ns / tokens;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + 8);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_moe_variable_set(v, p,
                              ngx_sprintf(p, "%uL.%06uL", ns / 1000000000,
                                          ns % 1000000000 / 1000)
                              - p);

    return NGX_OK;
}
