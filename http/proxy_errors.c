
/*
 * moe_proxy_errors: a balancer's streams whose node died end with an error.
 *
 * nginx has sent the header when a proxied stream breaks off, so it can only
 * close the connection, which many clients take for a complete answer.  This
 * filter passes whole events on and keeps the beginning of an unfinished one
 * back: so it can put an event of its own behind what was sent, in the
 * dialect's words, and end the response as it should.
 *
 * That a node died is seen without a hook: nginx ends a complete response
 * with a last buffer, and flushes an incomplete one after the upstream was
 * finalized.
 */


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/reply.h"


#define NGX_HTTP_MOE_PROXY_HELD  16384     /* bytes kept back of an event */


typedef struct {
    ngx_flag_t       enable;
} ngx_http_moe_proxy_conf_t;


typedef struct {
    ngx_chain_t     *held;        /* the beginning of an event, or NULL */
    ngx_chain_t     *free;
    ngx_chain_t     *busy;
    unsigned         empty:1;     /* so is the line so far, behind another */
    unsigned         partial:1;   /* an event too long to be held back has
                                   * been begun */
    unsigned         done:1;      /* the response has its end */
} ngx_http_moe_proxy_ctx_t;


static ngx_int_t ngx_http_moe_proxy_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_moe_proxy_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_moe_proxy_events(ngx_http_request_t *r,
    ngx_http_moe_proxy_ctx_t *ctx, ngx_buf_t *b, ngx_chain_t ***last);
static u_char *ngx_http_moe_proxy_end(ngx_http_moe_proxy_ctx_t *ctx,
    ngx_buf_t *b);
static ngx_int_t ngx_http_moe_proxy_hold(ngx_http_request_t *r,
    ngx_http_moe_proxy_ctx_t *ctx, u_char *data, size_t size);
static void ngx_http_moe_proxy_release(ngx_http_moe_proxy_ctx_t *ctx,
    ngx_chain_t ***last);
static ngx_int_t ngx_http_moe_proxy_append(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_chain_t ***last);
static ngx_buf_t *ngx_http_moe_proxy_error(ngx_http_request_t *r);
static void *ngx_http_moe_proxy_create_conf(ngx_conf_t *cf);
static char *ngx_http_moe_proxy_merge_conf(ngx_conf_t *cf, void *parent,
    void *child);
static ngx_int_t ngx_http_moe_proxy_init(ngx_conf_t *cf);


static ngx_command_t  ngx_http_moe_proxy_commands[] = {

    { ngx_string("moe_proxy_errors"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_moe_proxy_conf_t, enable),
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_moe_proxy_module_ctx = {
    NULL,                                  /* preconfiguration */
    ngx_http_moe_proxy_init,               /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_moe_proxy_create_conf,        /* create location configuration */
    ngx_http_moe_proxy_merge_conf          /* merge location configuration */
};


ngx_module_t  ngx_http_moe_proxy_module = {
    NGX_MODULE_V1,
    &ngx_http_moe_proxy_module_ctx,        /* module context */
    ngx_http_moe_proxy_commands,           /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


static ngx_int_t
ngx_http_moe_proxy_header_filter(ngx_http_request_t *r)
{
    ngx_str_t                  *type;
    ngx_http_moe_proxy_ctx_t   *ctx;
    ngx_http_moe_proxy_conf_t  *conf;

    static ngx_str_t  events = ngx_string("text/event-stream");

    conf = ngx_http_get_module_loc_conf(r, ngx_http_moe_proxy_module);
    type = &r->headers_out.content_type;

    if (!conf->enable
        || r != r->main
        || r->header_only
        || r->upstream == NULL
        || r->upstream->buffering
        || r->headers_out.content_encoding
        || r->headers_out.content_length_n != -1
        || type->len < events.len
        || ngx_strncasecmp(type->data, events.data, events.len) != 0)
    {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_moe_proxy_ctx_t));
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_http_set_ctx(r, ctx, ngx_http_moe_proxy_module);

    return ngx_http_next_header_filter(r);
}


static ngx_int_t
ngx_http_moe_proxy_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t                  rc;
    ngx_buf_t                 *b;
    ngx_chain_t               *cl, *out, **last;
    ngx_http_moe_proxy_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_moe_proxy_module);

    if (ctx == NULL || ctx->done || in == NULL) {
        return ngx_http_next_body_filter(r, in);
    }

    out = NULL;
    last = &out;

    for (cl = in; cl; cl = cl->next) {

        if (ngx_http_moe_proxy_events(r, ctx, cl->buf, &last) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (!ctx->done && r->upstream->cleanup == NULL) {
        ctx->done = 1;

        if (!ctx->partial) {
            b = ngx_http_moe_proxy_error(r);

            if (b == NULL
                || ngx_http_moe_proxy_append(r, b, &last) != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    /* nginx takes an empty chain only while it has something to send */

    if (out == NULL && !r->buffered && !r->connection->buffered) {
        return NGX_OK;
    }

    rc = ngx_http_next_body_filter(r, out);

    ngx_chain_update_chains(r->pool, &ctx->free, &ctx->busy, &out,
                            (ngx_buf_tag_t) &ngx_http_moe_proxy_module);

    return rc;
}


/* Passes on what ends with a whole event, holds the rest. */

static ngx_int_t
ngx_http_moe_proxy_events(ngx_http_request_t *r, ngx_http_moe_proxy_ctx_t *ctx,
    ngx_buf_t *b, ngx_chain_t ***last)
{
    u_char     *end;
    ngx_int_t   rc;

    if (b->last_buf) {
        ctx->done = 1;
        ngx_http_moe_proxy_release(ctx, last);
        return ngx_http_moe_proxy_append(r, b, last);
    }

    if (!ngx_buf_in_memory(b) || b->pos == b->last) {
        return ngx_http_moe_proxy_append(r, b, last);
    }

    end = ngx_http_moe_proxy_end(ctx, b);

    if (end) {
        ctx->partial = 0;
        ngx_http_moe_proxy_release(ctx, last);

    } else {
        end = b->pos;
    }

    rc = ctx->partial ? NGX_DECLINED
                      : ngx_http_moe_proxy_hold(r, ctx, end, b->last - end);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        ctx->partial = 1;
        ngx_http_moe_proxy_release(ctx, last);

    } else {
        b->last = end;
    }

    return b->pos == b->last ? NGX_OK : ngx_http_moe_proxy_append(r, b, last);
}


/* Behind the last empty line, or NULL.  Lines end with LF or CR LF. */

static u_char *
ngx_http_moe_proxy_end(ngx_http_moe_proxy_ctx_t *ctx, ngx_buf_t *b)
{
    u_char  *p, *end;

    end = NULL;

    for (p = b->pos; p < b->last; p++) {

        if (*p == LF) {
            end = ctx->empty ? p + 1 : end;
            ctx->empty = 1;

        } else if (*p != CR) {
            ctx->empty = 0;
        }
    }

    return end;
}


/* NGX_DECLINED: it is too much. */

static ngx_int_t
ngx_http_moe_proxy_hold(ngx_http_request_t *r, ngx_http_moe_proxy_ctx_t *ctx,
    u_char *data, size_t size)
{
    ngx_buf_t  *b;

    if (size == 0) {
        return NGX_OK;
    }

    if (ctx->held == NULL) {

        ctx->held = ngx_chain_get_free_buf(r->pool, &ctx->free);
        if (ctx->held == NULL) {
            return NGX_ERROR;
        }

        b = ctx->held->buf;

        if (b->start == NULL) {
            b->start = ngx_palloc(r->pool, NGX_HTTP_MOE_PROXY_HELD);
            if (b->start == NULL) {
                return NGX_ERROR;
            }

            b->pos = b->start;
            b->last = b->start;
            b->end = b->start + NGX_HTTP_MOE_PROXY_HELD;
            b->tag = (ngx_buf_tag_t) &ngx_http_moe_proxy_module;
            b->temporary = 1;
        }
    }

    b = ctx->held->buf;

    if (size > (size_t) (b->end - b->last)) {
        return NGX_DECLINED;
    }

    b->last = ngx_cpymem(b->last, data, size);

    return NGX_OK;
}


static void
ngx_http_moe_proxy_release(ngx_http_moe_proxy_ctx_t *ctx, ngx_chain_t ***last)
{
    if (ctx->held && ctx->held->buf->last > ctx->held->buf->pos) {
        **last = ctx->held;
        *last = &ctx->held->next;
        ctx->held = NULL;
    }
}


static ngx_int_t
ngx_http_moe_proxy_append(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_chain_t ***last)
{
    ngx_chain_t  *cl;

    cl = ngx_alloc_chain_link(r->pool);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf = b;
    cl->next = NULL;

    **last = cl;
    *last = &cl->next;

    return NGX_OK;
}


static ngx_buf_t *
ngx_http_moe_proxy_error(ngx_http_request_t *r)
{
    ngx_buf_t                   *b;
    ngx_str_t                    rest;
    ngx_http_moe_text_t          text;
    ngx_http_moe_problem_t       problem;
    const ngx_http_moe_api_t    *api;
    const ngx_http_moe_route_t  *route;

    ngx_http_moe_problem(&problem, NGX_HTTP_SERVICE_UNAVAILABLE,
                         "service_unavailable", "service_unavailable", NULL,
                         "the node that was answering is gone");

    api = ngx_http_moe_api_route(r, &route, &rest);

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    api->error_event(&text, &problem);

    b = text.failed ? NULL : ngx_create_temp_buf(r->pool, text.buffer.size);

    if (b) {
        b->last = ngx_cpymem(b->last, text.buffer.data, text.buffer.size);
        b->last_buf = 1;
        b->last_in_chain = 1;
    }

    ngx_http_moe_text_free(&text);

    return b;
}


static void *
ngx_http_moe_proxy_create_conf(ngx_conf_t *cf)
{
    ngx_http_moe_proxy_conf_t  *conf;

    conf = ngx_palloc(cf->pool, sizeof(ngx_http_moe_proxy_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->enable = NGX_CONF_UNSET;

    return conf;
}


static char *
ngx_http_moe_proxy_merge_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_moe_proxy_conf_t  *prev = parent;
    ngx_http_moe_proxy_conf_t  *conf = child;

    ngx_conf_merge_value(conf->enable, prev->enable, 0);

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_moe_proxy_init(ngx_conf_t *cf)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_moe_proxy_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_moe_proxy_body_filter;

    return NGX_OK;
}
