
/*
 * The engines count, so that the numbers are the same whichever worker is
 * asked, and outlive a reload.  A page about them is a call to each engine and
 * one event: posted by the last answer, or the timer when an engine is silent.
 */


#include "ngx_http_moe_module.h"
#include "http/model.h"
#include "http/reply.h"
#include "http/stats.h"


#define NGX_HTTP_MOE_STATS_TIMEOUT  1000   /* ms */


static ngx_int_t ngx_http_moe_stats_ask(ngx_http_moe_stats_t *all,
    uint32_t wanted);
static void ngx_http_moe_stats_frame(ngx_http_moe_call_t *call,
    moe_frame_header_t *header, u_char *payload);
static void ngx_http_moe_stats_take(ngx_http_moe_source_t *source,
    u_char *payload, size_t size);
static ngx_uint_t ngx_http_moe_stats_waiting(ngx_http_moe_stats_t *all);
static void ngx_http_moe_stats_cleanup(void *data);
static void ngx_http_moe_stats_finish(ngx_event_t *ev);


ngx_int_t
ngx_http_moe_stats_reply(ngx_http_request_t *r, uint32_t wanted,
    const char *type, ngx_http_moe_stats_pt write)
{
    ngx_int_t                   rc;
    ngx_uint_t                  i;
    ngx_http_cleanup_t         *cln;
    ngx_http_moe_stats_t       *all;
    ngx_http_moe_model_t      **models;
    ngx_http_moe_main_conf_t   *mcf;

    rc = ngx_http_moe_get_only(r);

    if (rc != NGX_OK) {
        return rc;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    models = mcf->models.elts;

    all = ngx_pcalloc(r->pool, sizeof(ngx_http_moe_stats_t));
    if (all == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    all->request = r;
    all->write = write;
    all->type = type;
    all->event.handler = ngx_http_moe_stats_finish;
    all->event.data = all;
    all->event.log = r->connection->log;

    all->sources = ngx_pcalloc(r->pool, (mcf->models.nelts + 1)
                                        * sizeof(ngx_http_moe_source_t));
    cln = ngx_http_cleanup_add(r, 0);

    if (all->sources == NULL || cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    cln->handler = ngx_http_moe_stats_cleanup;
    cln->data = all;

    for (i = 0; i < mcf->models.nelts; i++) {
        all->sources[i].model = models[i];
    }

    all->n = mcf->models.nelts;

    if (ngx_http_moe_stats_ask(all, wanted) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->main->count++;

    if (ngx_http_moe_stats_waiting(all)) {
        ngx_add_timer(&all->event, NGX_HTTP_MOE_STATS_TIMEOUT);

    } else {
        ngx_post_event(&all->event, &ngx_posted_events);
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_moe_stats_ask(ngx_http_moe_stats_t *all, uint32_t wanted)
{
    ngx_uint_t              i;
    ngx_msec_t              hold;
    moe_error_t             error;
    ngx_http_moe_source_t  *source;

    for (i = 0; i < all->n; i++) {
        source = &all->sources[i];

        source->all = all;
        source->call.handler = ngx_http_moe_stats_frame;
        source->call.data = source;

        if (source->model->channel == NULL) {
            continue;
        }

        if (moe_stats_ask(&source->call.frame, 0, wanted, &error) != 0) {
            return NGX_ERROR;
        }

        if (ngx_http_moe_call_start(source->model->channel, &source->call,
                                    &hold)
            == NGX_OK)
        {
            source->waiting = 1;

        } else {
            ngx_http_moe_call_end(&source->call, 0);
        }
    }

    return NGX_OK;
}


static void
ngx_http_moe_stats_frame(ngx_http_moe_call_t *call, moe_frame_header_t *header,
    u_char *payload)
{
    ngx_http_moe_source_t  *source;

    source = call->data;

    if (header && header->type == MOE_FRAME_STATS_REPLY) {
        ngx_http_moe_stats_take(source, payload, header->size);
    }

    source->waiting = 0;
    ngx_http_moe_call_end(call, 0);

    if (!ngx_http_moe_stats_waiting(source->all)) {
        ngx_post_event(&source->all->event, &ngx_posted_events);
    }
}


/* The payload is gone when the page is written. */

static void
ngx_http_moe_stats_take(ngx_http_moe_source_t *source, u_char *payload,
    size_t size)
{
    u_char  *copy;

    copy = ngx_pnalloc(source->all->request->pool, size);

    if (copy == NULL) {
        return;
    }

    ngx_memcpy(copy, payload, size);

    source->known = (moe_stats_decode(copy, size, &source->stats,
                                      &source->experts)
                     == 0);
}


static ngx_uint_t
ngx_http_moe_stats_waiting(ngx_http_moe_stats_t *all)
{
    ngx_uint_t  i;

    for (i = 0; i < all->n; i++) {
        if (all->sources[i].waiting) {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_moe_stats_cleanup(void *data)
{
    ngx_http_moe_stats_t  *all = data;

    ngx_uint_t  i;

    for (i = 0; i < all->n; i++) {
        ngx_http_moe_call_end(&all->sources[i].call, 0);
    }

    if (all->event.timer_set) {
        ngx_del_timer(&all->event);
    }

    if (all->event.posted) {
        ngx_delete_posted_event(&all->event);
    }
}


static void
ngx_http_moe_stats_finish(ngx_event_t *ev)
{
    ngx_connection_t      *c;
    ngx_http_request_t    *r;
    ngx_http_moe_text_t    text;
    ngx_http_moe_stats_t  *all;

    all = ev->data;
    r = all->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    all->write(all, &text);
    ngx_http_moe_stats_cleanup(all);

    ngx_http_finalize_request(r, ngx_http_moe_reply(r, NGX_HTTP_OK, all->type,
                                                    &text));
    ngx_http_run_posted_requests(c);
}
