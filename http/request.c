
/*
 * The way of a request: route, body, parse (in the thread pool when it is
 * large), model, calls.  From then on stream.c has it.
 *
 * Whoever finalizes a request closes its context first: nothing may come for
 * it afterwards, and nothing here touches it again.
 */


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/deadline.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/job.h"
#include "http/keys.h"
#include "http/limit.h"
#include "http/model.h"
#include "http/reply.h"
#include "http/stream.h"

#include "engine/core/clock.h"

#include <openssl/rand.h>


static ngx_int_t ngx_http_moe_no_route(ngx_http_request_t *r,
    const ngx_http_moe_api_t *api);
static ngx_int_t ngx_http_moe_wrong_method(ngx_http_request_t *r,
    const ngx_http_moe_api_t *api, const ngx_http_moe_route_t *route);
static ngx_http_moe_ctx_t *ngx_http_moe_create_ctx(ngx_http_request_t *r,
    const ngx_http_moe_api_t *api, const ngx_http_moe_route_t *route);
static void ngx_http_moe_cleanup(void *data);
static void ngx_http_moe_body(ngx_http_request_t *r);
static ngx_int_t ngx_http_moe_resolve(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static ngx_int_t ngx_http_moe_name(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static ngx_int_t ngx_http_moe_call(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_give_up(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);


ngx_int_t
ngx_http_moe_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_str_t                    rest;
    ngx_http_moe_ctx_t          *ctx;
    const ngx_http_moe_api_t    *api;
    const ngx_http_moe_route_t  *route;

    api = ngx_http_moe_api_route(r, &route, &rest);

    if (route == NULL || !(r->method & route->methods) || route->handler) {

        rc = ngx_http_discard_request_body(r);

        if (rc != NGX_OK) {
            return rc;
        }

        if (route == NULL) {
            return ngx_http_moe_no_route(r, api);
        }

        if (!(r->method & route->methods)) {
            return ngx_http_moe_wrong_method(r, api, route);
        }

        return route->handler(r, &rest);
    }

    ctx = ngx_http_moe_create_ctx(r, api, route);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_moe_body);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_moe_no_route(ngx_http_request_t *r, const ngx_http_moe_api_t *api)
{
    ngx_http_moe_problem_t  problem;

    ngx_http_moe_problem(&problem, NGX_HTTP_NOT_FOUND, "invalid_request_error",
                         "not_found", NULL, "there is nothing at this path");

    return ngx_http_moe_reply_problem(r, api, &problem);
}


static ngx_int_t
ngx_http_moe_wrong_method(ngx_http_request_t *r, const ngx_http_moe_api_t *api,
    const ngx_http_moe_route_t *route)
{
    ngx_http_moe_problem_t  problem;

    if (ngx_http_moe_add_header(r, "Allow",
                                (route->methods & NGX_HTTP_POST)
                                ? "POST, OPTIONS" : "GET, HEAD, OPTIONS")
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->method == NGX_HTTP_OPTIONS) {
        r->headers_out.status = NGX_HTTP_NO_CONTENT;
        r->header_only = 1;

        return ngx_http_send_header(r);
    }

    ngx_http_moe_problem(&problem, NGX_HTTP_NOT_ALLOWED,
                         "invalid_request_error", "method_not_allowed", NULL,
                         "this path does not take the method");

    return ngx_http_moe_reply_problem(r, api, &problem);
}


static ngx_http_moe_ctx_t *
ngx_http_moe_create_ctx(ngx_http_request_t *r, const ngx_http_moe_api_t *api,
    const ngx_http_moe_route_t *route)
{
    ngx_http_cleanup_t       *cln;
    ngx_http_moe_ctx_t       *ctx;
    ngx_pool_cleanup_t       *pcln;
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_moe_ctx_t));
    if (ctx == NULL) {
        return NULL;
    }

    cln = ngx_http_cleanup_add(r, 0);
    pcln = ngx_pool_cleanup_add(r->pool, 0);

    if (cln == NULL || pcln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_moe_cleanup;
    cln->data = ctx;

    /* for ngx_http_moe_get_ctx */

    pcln->handler = ngx_http_moe_cleanup;
    pcln->data = ctx;

    ctx->request = r;
    ctx->api = api;
    ctx->route = route;
    ctx->job.route = route;
    ctx->job.max_tokens = mlcf->max_tokens;
    ctx->job.priority = mlcf->priority;
    ctx->created = ngx_time();
    ctx->arrived = moe_now_ns();

    ctx->work.handler = ngx_http_moe_stream_work;
    ctx->work.data = ctx;
    ctx->work.log = r->connection->log;

    ctx->timer.handler = ngx_http_moe_deadline_handler;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    ngx_http_set_ctx(r, ctx, ngx_http_moe_module);

    return ctx;
}


ngx_http_moe_ctx_t *
ngx_http_moe_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;
    ngx_http_moe_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_moe_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        /* an internal redirect clears all contexts, and when the request is
         * logged its own cleanups have run: the pool's have not */

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_http_moe_cleanup) {
                return cln->data;
            }
        }
    }

    return ctx;
}


static void
ngx_http_moe_cleanup(void *data)
{
    ngx_http_moe_ctx_t  *ctx = data;

    if (ctx->called && !ctx->closed && !ctx->failed) {
        ctx->finish = NGX_HTTP_MOE_FINISH_CANCELLED;
    }

    ngx_http_moe_close(ctx);
}


void
ngx_http_moe_close(ngx_http_moe_ctx_t *ctx)
{
    ngx_uint_t              i, k;
    ngx_http_moe_choice_t  *choice;

    if (ctx->closed) {
        return;
    }

    ctx->closed = 1;

    ngx_http_moe_limit_ended(ctx);

    for (i = 0; i < ctx->n; i++) {
        choice = &ctx->choices[i];

        ngx_http_moe_call_end(&choice->call, 1);

        ngx_http_moe_text_free(&choice->text);
        ngx_http_moe_text_free(&choice->reasoning);
        ngx_http_moe_text_free(&choice->calls);
        ngx_http_moe_text_free(&choice->ids);
        ngx_http_moe_text_free(&choice->prompt_ids);
        ngx_http_moe_text_free(&choice->prompt_logprobs);

        for (k = 0; k < 4; k++) {
            ngx_http_moe_text_free(&choice->logprobs[k]);
        }
    }

    ngx_http_moe_text_free(&ctx->out);
    ngx_http_moe_text_free(&ctx->prefix);

    if (ctx->work.posted) {
        ngx_delete_posted_event(&ctx->work);
    }

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    if (!ctx->parsing) {
        ngx_http_moe_job_free(&ctx->job);
    }
}


static void
ngx_http_moe_body(ngx_http_request_t *r)
{
    off_t                size;
    ngx_int_t            rc;
    ngx_chain_t         *cl, *bufs;
    ngx_http_moe_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_moe_module);

    /* a subrequest has the body of its main request, if that has read it */

    bufs = r->request_body ? r->request_body->bufs : NULL;
    size = 0;

    for (cl = bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    /* room for what the frame adds is checked when it is encoded */

    if (size > MOE_FRAME_LIMIT) {
        ngx_http_moe_close(ctx);
        ngx_http_finalize_request(r, NGX_HTTP_REQUEST_ENTITY_TOO_LARGE);
        return;
    }

    rc = ngx_http_moe_key_apply(r, ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_moe_limit_arrived(r, ctx, (size_t) size);
    }

    if (rc == NGX_DECLINED && ngx_http_moe_name(r, ctx) == NGX_OK) {
        ngx_http_moe_give_up(r, ctx);
        return;
    }

    if (rc != NGX_OK) {
        ngx_http_moe_close(ctx);
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ctx->job.size = (size_t) size;
    ctx->start = ngx_current_msec;
    ngx_http_moe_deadline_set(ctx);

    ngx_http_moe_job_start(r, ctx, bufs);
}


void
ngx_http_moe_parsed(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ngx_http_moe_name(r, ctx) != NGX_OK) {
        ngx_http_moe_close(ctx);
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    if (ctx->job.failed) {
        ctx->problem = ctx->job.problem;
        ctx->failed = 1;
        ngx_http_moe_give_up(r, ctx);
        return;
    }

    rc = ngx_http_moe_resolve(r, ctx);

    if (rc == NGX_OK) {
        rc = ngx_http_moe_call(r, ctx);
    }

    if (rc == NGX_DECLINED) {
        ctx->failed = 1;
        ngx_http_moe_give_up(r, ctx);
        return;
    }

    if (rc != NGX_OK) {
        ngx_http_moe_close(ctx);
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    r->write_event_handler = ngx_http_moe_stream_writer;

    if (r == r->main) {
        r->read_event_handler = ngx_http_test_reading;

        /* the client may be gone already, with no further event to say so */

        ngx_post_event(r->connection->read, &ngx_posted_events);
    }

    ngx_http_moe_deadline_set(ctx);
}


static void
ngx_http_moe_give_up(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ctx->finish = NGX_HTTP_MOE_FINISH_ERROR;

    ngx_http_moe_close(ctx);
    ngx_http_finalize_request(r, ngx_http_moe_reply_problem(r, ctx->api,
                                                            &ctx->problem));
}


/* NGX_DECLINED: ctx->problem says why. */

static ngx_int_t
ngx_http_moe_resolve(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_str_t                  name;
    ngx_http_moe_loc_conf_t   *mlcf;
    ngx_http_complex_value_t  *variable;

    name.data = (u_char *) ctx->job.model;
    name.len = ctx->job.model_size;

    ctx->model = ngx_http_moe_pass_model(r, &name);

    if (ctx->model) {
        return NGX_OK;
    }

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);
    variable = mlcf->pass->variable;

    if (name.len == 0 && variable
        && ngx_http_complex_value(r, variable, &name) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (name.len == 0 || ngx_http_moe_pass_any(&name)) {
        ngx_http_moe_problem(&ctx->problem, NGX_HTTP_BAD_REQUEST,
                             "invalid_request_error", NULL, "model",
                             "model is required");
        return NGX_DECLINED;
    }

    ngx_http_moe_problem(&ctx->problem, NGX_HTTP_NOT_FOUND,
                         "invalid_request_error", "model_not_found", "model",
                         "the model \"%.*s\" does not exist",
                         (int) ngx_min(name.len, 128), name.data);

    return NGX_DECLINED;
}


ngx_int_t
ngx_http_moe_pass_only(ngx_http_request_t *r, ngx_http_moe_model_t **only)
{
    ngx_str_t                  value;
    ngx_http_moe_pass_t       *pass;
    ngx_http_moe_loc_conf_t   *mlcf;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    pass = mlcf->pass;
    *only = pass->model;

    if (pass->variable == NULL) {
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, pass->variable, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    *only = ngx_http_moe_find_model(mcf, &value);

    if (*only == NULL && !ngx_http_moe_pass_any(&value)) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "no model \"%V\" for \"moe_pass\"", &value);
        return NGX_DECLINED;
    }

    return NGX_OK;
}


ngx_http_moe_model_t *
ngx_http_moe_pass_model(ngx_http_request_t *r, ngx_str_t *name)
{
    ngx_http_moe_model_t      *model, **models;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);

    if (ngx_http_moe_pass_only(r, &model) != NGX_OK) {
        return NULL;
    }

    if (model) {
        return (name->len == 0
                || ngx_http_moe_find_model(mcf, name) == model) ? model : NULL;
    }

    if (name->len == 0) {
        models = mcf->models.elts;
        return mcf->models.nelts == 1 ? models[0] : NULL;
    }

    return ngx_http_moe_find_model(mcf, name);
}


/* Replies carry the id also where their body does not: SDKs report it. */

static ngx_int_t
ngx_http_moe_name(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    u_char  random[12], hex[2 * sizeof(random) + 1];

    if (ctx->job.id[0] == '\0') {

        if (RAND_bytes(random, sizeof(random)) != 1) {
            return NGX_ERROR;
        }

        *ngx_hex_dump(hex, random, sizeof(random)) = '\0';
        ngx_memcpy(ctx->job.id, hex, sizeof(hex));
    }

    (void) snprintf(ctx->id, sizeof(ctx->id), "%s%s", ctx->route->id_prefix,
                    ctx->job.id);

    return ngx_http_moe_add_header(r, "X-Request-Id", ctx->id);
}


static ngx_int_t
ngx_http_moe_call(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_int_t                 rc;
    ngx_msec_t                hold;
    ngx_uint_t                i, most;
    ngx_http_moe_choice_t    *choice;
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    ctx->choices = ngx_pcalloc(r->pool,
                               ctx->job.n * sizeof(ngx_http_moe_choice_t));
    if (ctx->choices == NULL) {
        return NGX_ERROR;
    }

    most = ngx_http_moe_model_most(ctx->model);

    if (ctx->job.n > most) {
        ngx_http_moe_problem(&ctx->problem, NGX_HTTP_BAD_REQUEST,
                             "invalid_request_error", NULL, ctx->job.several,
                             "the request asks for %u completions, the model "
                             "takes at most %u at a time",
                             (unsigned) ctx->job.n, (unsigned) most);
        return NGX_DECLINED;
    }

    if (ctx->model->channel == NULL) {
        ngx_http_moe_health_problem(&ctx->problem, ctx->model);
        return NGX_DECLINED;
    }

    ctx->fingerprint = ctx->model->engine->fingerprint;
    ctx->called = 1;

    for (i = 0; i < ctx->job.n; i++) {
        choice = &ctx->choices[i];

        choice->ctx = ctx;
        choice->index = i;
        choice->call.handler = ngx_http_moe_stream_frame;
        choice->call.data = choice;
        choice->call.frame = ctx->job.frames[i];
        choice->call.kept = mlcf->resume ? 1 : 0;

        ngx_memzero(&ctx->job.frames[i], sizeof(moe_buffer_t));

        ctx->n++;
        ctx->running++;

        rc = ngx_http_moe_call_start(ctx->model->channel, &choice->call,
                                     &hold);

        if (rc == NGX_AGAIN) {
            ctx->hold = hold;
            continue;
        }

        if (rc == NGX_DECLINED) {
            ngx_http_moe_health_problem(&ctx->problem, ctx->model);
        }

        if (rc == NGX_ERROR) {
            ngx_http_moe_problem(&ctx->problem, NGX_HTTP_SERVICE_UNAVAILABLE,
                                 "service_unavailable", "service_unavailable",
                                 NULL, "the engine takes no more requests");
            rc = NGX_DECLINED;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return NGX_OK;
}


void
ngx_http_moe_fail(ngx_http_moe_ctx_t *ctx, moe_error_code_t code,
    const char *field, size_t field_size, const char *message, size_t size)
{
    char         name[128];
    ngx_uint_t   status;
    const char  *type, *kind;

    if (ctx->failed) {
        return;
    }

    ctx->failed = 1;
    ctx->finish = NGX_HTTP_MOE_FINISH_ERROR;

    switch (code) {

    case MOE_INVALID:
        status = NGX_HTTP_BAD_REQUEST;
        type = "invalid_request_error";
        kind = NULL;
        break;

    case MOE_TOO_LONG:
        status = NGX_HTTP_BAD_REQUEST;
        type = "invalid_request_error";
        kind = "context_length_exceeded";
        break;

    case MOE_LIMIT:
        status = NGX_HTTP_TOO_MANY_REQUESTS;
        type = kind = "rate_limit_exceeded";
        break;

    case MOE_UNAVAILABLE:
    case MOE_BAD_MODEL:
        status = NGX_HTTP_SERVICE_UNAVAILABLE;
        type = kind = "service_unavailable";
        break;

    default:
        status = NGX_HTTP_INTERNAL_SERVER_ERROR;
        type = kind = "server_error";
    }

    (void) snprintf(name, sizeof(name), "%.*s",
                    (int) ngx_min(field_size, sizeof(name) - 1), field);

    ngx_http_moe_problem(&ctx->problem, status, type, kind, name, "%.*s",
                         (int) ngx_min(size, 480), message);
}
