
/*
 * One timer per request, always set while it lives, for whatever is due next:
 * its deadlines, the wait for an engine, and a ping for a client that has
 * heard nothing for long.
 */


#include "ngx_http_moe_module.h"
#include "http/deadline.h"
#include "http/health.h"
#include "http/model.h"
#include "http/reply.h"


#define NGX_HTTP_MOE_TIMER          60000   /* ms, when nothing is due */
#define NGX_HTTP_MOE_HELD           1000    /* ms, while a call is held */


static ngx_uint_t ngx_http_moe_deadline_held(ngx_http_moe_ctx_t *ctx);
static ngx_msec_t ngx_http_moe_deadline_next(ngx_msec_t next,
    ngx_msec_t limit, ngx_msec_t elapsed);
static void ngx_http_moe_deadline_passed(ngx_http_moe_ctx_t *ctx,
    const char *what);


void
ngx_http_moe_deadline_handler(ngx_event_t *ev)
{
    ngx_msec_t                elapsed;
    ngx_http_moe_ctx_t       *ctx;
    ngx_http_moe_loc_conf_t  *mlcf;

    ctx = ev->data;

    mlcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_moe_module);
    elapsed = ngx_current_msec - ctx->start;

    if (ctx->parsing || ctx->failed || ctx->ended) {
        ngx_add_timer(ev, NGX_HTTP_MOE_TIMER);
        return;
    }

    if (ngx_http_moe_deadline_held(ctx)
        && (elapsed >= ctx->hold
            || ngx_http_moe_channel_over(ctx->model->channel)))
    {
        ngx_http_moe_health_problem(&ctx->problem, ctx->model);
        ctx->failed = 1;
        ctx->finish = NGX_HTTP_MOE_FINISH_ERROR;

    } else if (mlcf->timeout_total && elapsed >= mlcf->timeout_total) {
        ngx_http_moe_deadline_passed(ctx, "the answer");

    } else if (mlcf->timeout_first && ctx->first == 0
               && elapsed >= mlcf->timeout_first)
    {
        ngx_http_moe_deadline_passed(ctx, "the first token");

    } else if (ctx->job.stream && mlcf->ping && ctx->busy == NULL
               && ctx->admitted == ctx->n
               && ngx_current_msec - ctx->last_output >= mlcf->ping)
    {
        ngx_http_moe_text_literal(&ctx->out, ": ping\n\n");
        ctx->last_output = ngx_current_msec;
    }

    if (ctx->failed || ctx->out.buffer.size) {
        ngx_post_event(&ctx->work, &ngx_posted_events);
    }

    ngx_http_moe_deadline_set(ctx);
}


static ngx_uint_t
ngx_http_moe_deadline_held(ngx_http_moe_ctx_t *ctx)
{
    ngx_uint_t  i;

    for (i = 0; i < ctx->n; i++) {
        if (ctx->choices[i].call.held) {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_moe_deadline_passed(ngx_http_moe_ctx_t *ctx, const char *what)
{
    ngx_http_moe_problem(&ctx->problem, NGX_HTTP_SERVICE_UNAVAILABLE,
                         "service_unavailable", "timeout", NULL,
                         "%s took too long", what);
    ctx->failed = 1;
    ctx->finish = NGX_HTTP_MOE_FINISH_TIMEOUT;
}


static ngx_msec_t
ngx_http_moe_deadline_next(ngx_msec_t next, ngx_msec_t limit,
    ngx_msec_t elapsed)
{
    if (elapsed >= limit) {
        return 1;
    }

    return (limit - elapsed < next) ? limit - elapsed : next;
}


/* Always set while the request lives: a timer that is not cancelable is what
 * keeps a worker that shuts down from cutting it. */

void
ngx_http_moe_deadline_set(ngx_http_moe_ctx_t *ctx)
{
    ngx_msec_t                elapsed, silence, next;
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_moe_module);

    elapsed = ngx_current_msec - ctx->start;
    next = NGX_HTTP_MOE_TIMER;

    if (ctx->last_output == 0) {
        ctx->last_output = ngx_current_msec;
    }

    if (ngx_http_moe_deadline_held(ctx)) {
        next = ngx_http_moe_deadline_next(NGX_HTTP_MOE_HELD, ctx->hold,
                                          elapsed);
    }

    if (mlcf->timeout_first && ctx->first == 0) {
        next = ngx_http_moe_deadline_next(next, mlcf->timeout_first,
                                          elapsed);
    }

    if (mlcf->timeout_total) {
        next = ngx_http_moe_deadline_next(next, mlcf->timeout_total,
                                          elapsed);
    }

    if (ctx->job.stream && mlcf->ping && !ctx->parsing) {
        silence = ngx_current_msec - ctx->last_output;

        /* while the client takes nothing there is no ping, but the next look
         * is still a whole interval away */

        next = ngx_http_moe_deadline_next(next, mlcf->ping,
                                          silence % mlcf->ping);
    }

    ngx_add_timer(&ctx->timer, next);
}
