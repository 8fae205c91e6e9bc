
/*
 * Frames of one step of the engine arrive together.  Each is turned into text
 * at once, then one posted event per request sends all of it: one write per
 * step and client.  The event is also what keeps the rule that no request is
 * touched after it was finalized: it looks at one context, and finalizing is
 * the last thing it does.
 *
 * Tokens are credited to the engine when the client's socket has taken them,
 * so a client that stalls pauses its own sequence and nothing else.
 *
 * The frame of a call that may be resumed gets every id that came.  When the
 * engine dies, it is sent to the next one as it is: what comes then follows
 * what has come.
 */


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/deadline.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/limit.h"
#include "http/model.h"
#include "http/reply.h"
#include "http/stream.h"

#include "engine/core/clock.h"


#define NGX_HTTP_MOE_BUFFER         4096
#define NGX_HTTP_MOE_CREDIT_BATCH   32      /* tokens */


static ngx_int_t ngx_http_moe_stream_resume(ngx_http_moe_choice_t *choice);
static void ngx_http_moe_stream_admitted(ngx_http_moe_choice_t *choice,
    u_char *payload, size_t size);
static void ngx_http_moe_stream_started(ngx_http_moe_choice_t *choice,
    u_char *payload, size_t size);
static ngx_http_moe_choice_t *ngx_http_moe_stream_first(
    ngx_http_moe_choice_t *choice);
static void ngx_http_moe_stream_tokens(ngx_http_moe_choice_t *choice,
    u_char *payload, size_t size);
static void ngx_http_moe_stream_done(ngx_http_moe_choice_t *choice,
    u_char *payload, size_t size);
static void ngx_http_moe_stream_error(ngx_http_moe_choice_t *choice,
    u_char *payload, size_t size);
static void ngx_http_moe_stream_broken(ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_stream_process(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_stream_whole(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_stream_output(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static ngx_int_t ngx_http_moe_stream_header(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static ngx_int_t ngx_http_moe_stream_chain(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx, ngx_chain_t **out);
static void ngx_http_moe_stream_wait(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_stream_credit(ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_stream_end(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx, ngx_int_t rc);


void
ngx_http_moe_stream_frame(ngx_http_moe_call_t *call,
    moe_frame_header_t *header, u_char *payload)
{
    ngx_http_moe_ctx_t     *ctx;
    ngx_http_moe_choice_t  *choice;

    choice = call->data;
    ctx = choice->ctx;

    ngx_post_event(&ctx->work, &ngx_posted_events);

    if (ctx->failed) {
        return;
    }

    if (header == NULL) {

        if (ngx_http_moe_stream_resume(choice) == NGX_OK) {
            return;
        }

        ngx_http_moe_health_problem(&ctx->problem, ctx->model);
        ctx->failed = 1;
        ctx->finish = NGX_HTTP_MOE_FINISH_ERROR;
        return;
    }

    switch (header->type) {

    case MOE_FRAME_ADMITTED:
        ngx_http_moe_stream_admitted(choice, payload, header->size);
        break;

    case MOE_FRAME_STARTED:
        ngx_http_moe_stream_started(choice, payload, header->size);
        break;

    case MOE_FRAME_TOKENS:
        ngx_http_moe_stream_tokens(choice, payload, header->size);
        break;

    case MOE_FRAME_DONE:
        ngx_http_moe_stream_done(choice, payload, header->size);
        break;

    case MOE_FRAME_ERROR:
        ngx_http_moe_stream_error(choice, payload, header->size);
        break;

    default:
        ngx_http_moe_stream_broken(ctx);
    }
}


/* NGX_DECLINED: the call was never with an engine, or too often. */

static ngx_int_t
ngx_http_moe_stream_resume(ngx_http_moe_choice_t *choice)
{
    ngx_msec_t                hold;
    ngx_http_moe_ctx_t       *ctx;
    ngx_http_moe_loc_conf_t  *mlcf;

    ctx = choice->ctx;
    mlcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_moe_module);

    if (!choice->call.lost || choice->resumed >= (ngx_uint_t) mlcf->resume
        || ngx_http_moe_call_resume(ctx->model->channel, &choice->call, &hold)
           != NGX_AGAIN)
    {
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_INFO, ctx->request->connection->log, 0,
                  "moe: the engine died, choice %ui resumes after %uD tokens",
                  choice->index, choice->completion_tokens);

    choice->resumed++;
    (void) ngx_atomic_fetch_add(&ctx->model->engine->shared->resumed, 1);

    /* the next engine's credit is new */

    choice->undelivered = 0;

    ctx->hold = ngx_current_msec - ctx->start + hold;
    ngx_http_moe_deadline_set(ctx);

    return NGX_OK;
}


static void
ngx_http_moe_stream_admitted(ngx_http_moe_choice_t *choice, u_char *payload,
    size_t size)
{
    moe_admitted_t       admitted;
    ngx_http_moe_ctx_t  *ctx;

    ctx = choice->ctx;

    if ((choice->admitted && !choice->resumed)
        || moe_admitted_decode(payload, size, &admitted) != 0)
    {
        ngx_http_moe_stream_broken(ctx);
        return;
    }

    if (choice->admitted) {
        return;
    }

    choice->admitted = 1;
    ctx->admitted++;
    ngx_http_moe_stream_first(choice)->prompt_tokens = admitted.prompt_tokens;

    if (ctx->admitted == ctx->n) {
        (void) ngx_http_moe_limit_admitted(ctx);
    }
}


static void
ngx_http_moe_stream_started(ngx_http_moe_choice_t *choice, u_char *payload,
    size_t size)
{
    moe_started_t           started;
    ngx_http_moe_ctx_t     *ctx;
    ngx_http_moe_choice_t  *first;

    ctx = choice->ctx;

    if (!choice->admitted || (choice->started && !choice->resumed)
        || moe_started_decode(payload, size, &started) != 0)
    {
        ngx_http_moe_stream_broken(ctx);
        return;
    }

    if (choice->started) {
        return;
    }

    if (ctx->first == 0 && ngx_http_moe_limit_started(ctx) != NGX_OK) {
        return;
    }

    choice->started = 1;

    /* what one choice has computed is no hit when another one finds it */

    first = ngx_http_moe_stream_first(choice);

    if (!first->prompt_started || started.cached_tokens < first->cached_tokens)
    {
        first->prompt_started = 1;
        first->cached_tokens = started.cached_tokens;
    }

    if (ctx->first == 0) {
        ctx->first = moe_now_ns();
        ctx->queue_ns = started.queue_ns;
    }

    ctx->api->started(choice, &started);
}


/* A prompt counts once, however many answers it has: in the first of them. */

static ngx_http_moe_choice_t *
ngx_http_moe_stream_first(ngx_http_moe_choice_t *choice)
{
    return choice - (choice - choice->ctx->choices)
                    % choice->ctx->job.candidates;
}


static void
ngx_http_moe_stream_tokens(ngx_http_moe_choice_t *choice, u_char *payload,
    size_t size)
{
    moe_error_t          error;
    moe_tokens_t         tokens;
    ngx_http_moe_ctx_t  *ctx;

    ctx = choice->ctx;

    if (!choice->started || moe_tokens_decode(payload, size, &tokens) != 0) {
        ngx_http_moe_stream_broken(ctx);
        return;
    }

    /* without its ids the call cannot be resumed */

    if (choice->call.frame.size
        && moe_request_resume(&choice->call.frame, tokens.ids, tokens.n_ids,
                              &error)
           != 0)
    {
        moe_buffer_free(&choice->call.frame);
    }

    choice->completion_tokens += tokens.n_ids;
    choice->undelivered += tokens.n_ids;
    ctx->last = moe_now_ns();

    ctx->api->tokens(choice, &tokens);
}


static void
ngx_http_moe_stream_done(ngx_http_moe_choice_t *choice, u_char *payload,
    size_t size)
{
    moe_done_t           done;
    ngx_http_moe_ctx_t  *ctx;

    ctx = choice->ctx;

    if (!choice->started || moe_done_decode(payload, size, &done) != 0) {
        ngx_http_moe_stream_broken(ctx);
        return;
    }

    choice->done = 1;
    choice->completion_tokens = done.completion_tokens;
    choice->reasoning_tokens = done.reasoning_tokens;
    choice->finish = (done.reason == MOE_FINISH_LENGTH)
                     ? NGX_HTTP_MOE_FINISH_LENGTH
                     : choice->tool_calls ? NGX_HTTP_MOE_FINISH_TOOL_CALLS
                                          : NGX_HTTP_MOE_FINISH_STOP;

    ctx->finish = ngx_max(ctx->finish, choice->finish);
    ctx->decode_ns += done.decode_ns;
    ctx->running--;

    ngx_http_moe_call_end(&choice->call, 0);

    ctx->api->done(choice);
}


static void
ngx_http_moe_stream_error(ngx_http_moe_choice_t *choice, u_char *payload,
    size_t size)
{
    moe_failure_t  failure;

    if (moe_failure_decode(payload, size, &failure) != 0) {
        ngx_http_moe_stream_broken(choice->ctx);
        return;
    }

    ngx_http_moe_call_end(&choice->call, 0);

    ngx_http_moe_fail(choice->ctx, failure.code,
                      failure.field.data, failure.field.size,
                      failure.message.data, failure.message.size);
}


static void
ngx_http_moe_stream_broken(ngx_http_moe_ctx_t *ctx)
{
    static const char  message[] = "the engine sent an unexpected event";

    ngx_http_moe_fail(ctx, MOE_SYSTEM, "", 0, message, sizeof(message) - 1);
}


void
ngx_http_moe_stream_work(ngx_event_t *ev)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;
    ngx_http_moe_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_http_moe_stream_process(r, ctx);

    ngx_http_run_posted_requests(c);
}


static void
ngx_http_moe_stream_process(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    if (ctx->ended) {
        return;
    }

    ngx_http_moe_limit_generated(ctx);

    if (ctx->failed) {

        if (!ctx->header_sent) {
            ngx_http_moe_close(ctx);
            ngx_http_finalize_request(r,
                 ngx_http_moe_reply_problem(r, ctx->api, &ctx->problem));
            return;
        }

        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "moe: stream ends with an error: %s",
                      ctx->problem.message);

        ctx->api->error_event(&ctx->out, &ctx->problem);
        ctx->ended = 1;
        r->keepalive = 0;

    } else if (ctx->running == 0) {
        ctx->api->end(ctx);
        ctx->ended = 1;
    }

    if (ctx->job.stream) {
        ngx_http_moe_stream_output(r, ctx);
        return;
    }

    if (ctx->ended) {
        ngx_http_moe_stream_whole(r, ctx);
        return;
    }

    ngx_http_moe_stream_credit(ctx);
}


static void
ngx_http_moe_stream_whole(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_uint_t           i, k;
    ngx_http_moe_text_t  text;

    text = ctx->out;
    ngx_memzero(&ctx->out, sizeof(ngx_http_moe_text_t));

    for (i = 0; i < ctx->n; i++) {
        text.failed |= ctx->choices[i].text.failed
                       | ctx->choices[i].reasoning.failed
                       | ctx->choices[i].calls.failed;

        for (k = 0; k < 4; k++) {
            text.failed |= ctx->choices[i].logprobs[k].failed;
        }
    }

    ngx_http_moe_close(ctx);

    if (ngx_http_moe_limit_headers(ctx) != NGX_OK) {
        text.failed = 1;
    }

    ngx_http_finalize_request(r, ngx_http_moe_reply(r, NGX_HTTP_OK,
                                                    "application/json",
                                                    &text));
}


/* Sends ctx->out and what is left of earlier output. */

static void
ngx_http_moe_stream_output(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_int_t     rc;
    ngx_chain_t  *out;

    if (ctx->out.failed) {
        ngx_http_moe_stream_end(r, ctx, NGX_ERROR);
        return;
    }

    if (!ctx->header_sent) {

        /* a prompt that is not admitted yet may still be refused */

        if (ctx->out.buffer.size == 0 || ctx->admitted < ctx->n) {
            return;
        }

        ctx->header_sent = 1;
        rc = ngx_http_moe_stream_header(r, ctx);

        if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
            ngx_http_moe_stream_end(r, ctx, rc);
            return;
        }
    }

    do {
        if (ngx_http_moe_stream_chain(r, ctx, &out) != NGX_OK) {
            ngx_http_moe_stream_end(r, ctx, NGX_ERROR);
            return;
        }

        rc = ngx_http_output_filter(r, out);

        ngx_chain_update_chains(r->pool, &ctx->free, &ctx->busy, &out,
                                (ngx_buf_tag_t) &ngx_http_moe_module);

        if (rc == NGX_ERROR || ctx->ended) {
            ngx_http_moe_stream_end(r, ctx, rc);
            return;
        }

    } while (ctx->busy == NULL && ctx->out.buffer.size);

    if (ctx->busy == NULL) {
        ngx_http_moe_stream_credit(ctx);
    }

    ngx_http_moe_stream_wait(r, ctx);
}


static ngx_int_t
ngx_http_moe_stream_header(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = -1;
    ngx_str_set(&r->headers_out.content_type, "text/event-stream");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    /* a cache or another nginx on the way must pass events on as they come */

    if (ngx_http_moe_add_header(r, "Cache-Control", "no-cache") != NGX_OK
        || ngx_http_moe_add_header(r, "X-Accel-Buffering", "no") != NGX_OK
        || ngx_http_moe_limit_headers(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_send_header(r);
}


/* What comes while the client has not taken what came before is collected into
 * full buffers: one for each step would hold a page for every token. */

static ngx_int_t
ngx_http_moe_stream_chain(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx,
    ngx_chain_t **out)
{
    size_t         size, left, done;
    ngx_buf_t     *b;
    ngx_chain_t   *cl, **last;

    b = NULL;
    last = out;

    for (done = 0; done < ctx->out.buffer.size; done += size) {

        left = ctx->out.buffer.size - done;

        if (left < NGX_HTTP_MOE_BUFFER && ctx->busy && !ctx->ended) {
            break;
        }

        cl = ngx_chain_get_free_buf(r->pool, &ctx->free);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        b = cl->buf;

        if (b->start == NULL) {
            b->start = ngx_palloc(r->pool, NGX_HTTP_MOE_BUFFER);
            if (b->start == NULL) {
                return NGX_ERROR;
            }

            b->end = b->start + NGX_HTTP_MOE_BUFFER;
        }

        size = ngx_min(left, NGX_HTTP_MOE_BUFFER);

        b->pos = b->start;
        b->last = ngx_cpymem(b->pos, ctx->out.buffer.data + done, size);
        b->tag = (ngx_buf_tag_t) &ngx_http_moe_module;
        b->temporary = 1;
        b->memory = 0;
        b->flush = 0;
        b->last_buf = 0;
        b->last_in_chain = 0;

        *last = cl;
        last = &cl->next;
    }

    *last = NULL;

    if (b) {
        b->flush = 1;
        ctx->last_output = ngx_current_msec;

        if (ctx->ended) {
            b->last_buf = (r == r->main) ? 1 : 0;
            b->last_in_chain = 1;
        }
    }

    moe_buffer_consume(&ctx->out.buffer, done);

    return NGX_OK;
}


/* Waits for the client to take what is left; only so long. */

static void
ngx_http_moe_stream_wait(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_event_t               *wev;
    ngx_connection_t          *c;
    ngx_http_core_loc_conf_t  *clcf;

    c = r->connection;
    wev = c->write;

    if (r != c->data) {

        /* a subrequest whose turn has not come */

        return;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->buffered || r->postponed || (r == r->main && c->buffered)) {

        if (!wev->delayed && !wev->timer_set) {
            ngx_add_timer(wev, clcf->send_timeout);
        }

    } else if (wev->timer_set && !wev->delayed) {
        ngx_del_timer(wev);
    }

    if (ngx_handle_write_event(wev, clcf->send_lowat) != NGX_OK) {
        ngx_http_moe_stream_end(r, ctx, NGX_ERROR);
    }
}


void
ngx_http_moe_stream_writer(ngx_http_request_t *r)
{
    ngx_event_t         *wev;
    ngx_connection_t    *c;
    ngx_http_moe_ctx_t  *ctx;

    c = r->connection;
    wev = c->write;

    ctx = ngx_http_get_module_ctx(r, ngx_http_moe_module);

    if (wev->timedout) {
        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT,
                      "client timed out");

        c->timedout = 1;
        ctx->finish = NGX_HTTP_MOE_FINISH_CANCELLED;

        ngx_http_moe_stream_end(r, ctx, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    if (!ctx->header_sent || wev->delayed) {
        if (ngx_handle_write_event(wev, 0) != NGX_OK) {
            ngx_http_moe_stream_end(r, ctx, NGX_ERROR);
        }

        return;
    }

    /* the client took something: its time begins anew */

    if (wev->timer_set) {
        ngx_del_timer(wev);
    }

    ngx_http_moe_stream_output(r, ctx);
}


static void
ngx_http_moe_stream_credit(ngx_http_moe_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_moe_choice_t  *choice;

    for (i = 0; i < ctx->n; i++) {
        choice = &ctx->choices[i];

        if (choice->undelivered >= NGX_HTTP_MOE_CREDIT_BATCH
            && !choice->done)
        {
            ngx_http_moe_call_credit(&choice->call, choice->undelivered);
            choice->undelivered = 0;
        }
    }
}


static void
ngx_http_moe_stream_end(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx,
    ngx_int_t rc)
{
    if (!ctx->ended && !ctx->failed) {
        ctx->finish = NGX_HTTP_MOE_FINISH_CANCELLED;
    }

    ngx_http_moe_close(ctx);
    ngx_http_finalize_request(r, rc);
}
