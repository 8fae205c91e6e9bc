
/*
 * Counts live in the engines, so that they are the same whichever worker is
 * asked and survive a reload.  A table gives each metric its name, kind and
 * place in moe_stats_t; the exposition walks it once, all models under each
 * name as the format demands.
 */


#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/metrics.h"
#include "http/model.h"
#include "http/reply.h"


#define NGX_HTTP_MOE_METRICS_TIMEOUT  1000   /* ms */


typedef enum {
    NGX_HTTP_MOE_GAUGE = 0,
    NGX_HTTP_MOE_COUNTER,
    NGX_HTTP_MOE_HISTOGRAM
} ngx_http_moe_metric_e;


typedef struct {
    const char               *name;
    const char               *help;
    ngx_http_moe_metric_e     kind;
    size_t                    offset;
    double                    first;        /* bound of the first bucket */
    unsigned                  buckets;
} ngx_http_moe_metric_t;


typedef struct ngx_http_moe_metrics_ctx_s  ngx_http_moe_metrics_ctx_t;

typedef struct {
    ngx_http_moe_call_t           call;
    ngx_http_moe_metrics_ctx_t   *ctx;
    ngx_http_moe_model_t         *model;
    moe_stats_t                   stats;
    unsigned                      waiting:1;
    unsigned                      known:1;
} ngx_http_moe_source_t;

struct ngx_http_moe_metrics_ctx_s {
    ngx_http_request_t           *request;
    ngx_http_moe_source_t        *sources;
    ngx_uint_t                    n;
    ngx_event_t                   event;     /* posted by the last reply, or
                                              * the timer */
};


static ngx_int_t ngx_http_moe_metrics_ask(ngx_http_moe_metrics_ctx_t *ctx);
static void ngx_http_moe_metrics_frame(ngx_http_moe_call_t *call,
    moe_frame_header_t *header, u_char *payload);
static ngx_uint_t ngx_http_moe_metrics_waiting(
    ngx_http_moe_metrics_ctx_t *ctx);
static void ngx_http_moe_metrics_cleanup(void *data);
static void ngx_http_moe_metrics_finish(ngx_event_t *ev);
static void ngx_http_moe_metrics_text(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_process(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_finished(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_usage(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_head(ngx_http_moe_text_t *text,
    const char *name, const char *help, ngx_http_moe_metric_e kind);
static void ngx_http_moe_metrics_label(ngx_http_moe_text_t *text,
    const char *name, const char *suffix, ngx_http_moe_source_t *source);
static void ngx_http_moe_metrics_histogram(ngx_http_moe_text_t *text,
    const ngx_http_moe_metric_t *metric, ngx_http_moe_source_t *source);


#define ngx_http_moe_stat(field)  offsetof(moe_stats_t, field)


static const ngx_http_moe_metric_t  ngx_http_moe_metrics[] = {

    { "num_requests_running", "Sequences in the batch.",
      NGX_HTTP_MOE_GAUGE, ngx_http_moe_stat(running), 0, 0 },
    { "num_requests_waiting", "Requests in the queue.",
      NGX_HTTP_MOE_GAUGE, ngx_http_moe_stat(waiting), 0, 0 },
    { "process_resident_memory_bytes", "Resident set of the engine.",
      NGX_HTTP_MOE_GAUGE, ngx_http_moe_stat(memory_bytes), 0, 0 },

    { "prompt_tokens_total", "Prompt tokens processed.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(prompt_tokens), 0, 0 },
    { "generation_tokens_total", "Tokens generated.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(generation_tokens), 0, 0 },
    { "prefix_cache_queries_total", "Prompt tokens looked up in the cache.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(cache_queries), 0, 0 },
    { "prefix_cache_hits_total", "Prompt tokens found in the cache.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(cache_hits), 0, 0 },
    { "num_preemptions_total", "Sequences put back for want of cache.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(preemptions), 0, 0 },
    { "steps_total", "Steps of the engine.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(steps), 0, 0 },
    { "step_rows_total", "Tokens that went through the model.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(step_rows), 0, 0 },

    { "time_to_first_token_seconds", "From arrival to the first token.",
      NGX_HTTP_MOE_HISTOGRAM, ngx_http_moe_stat(ttft),
      0.001, MOE_TTFT_BUCKETS },
    { "inter_token_latency_seconds", "Between two tokens of a sequence.",
      NGX_HTTP_MOE_HISTOGRAM, ngx_http_moe_stat(itl),
      0.0001, MOE_ITL_BUCKETS },
    { "request_queue_time_seconds", "From arrival to the first step.",
      NGX_HTTP_MOE_HISTOGRAM, ngx_http_moe_stat(queue),
      0.001, MOE_TTFT_BUCKETS },
    { "e2e_request_latency_seconds", "From arrival to the end.",
      NGX_HTTP_MOE_HISTOGRAM, ngx_http_moe_stat(e2e),
      0.001, MOE_TTFT_BUCKETS },
    { "request_prompt_tokens", "Prompt tokens per request.",
      NGX_HTTP_MOE_HISTOGRAM, ngx_http_moe_stat(prompt),
      1, MOE_TOKEN_BUCKETS },
    { "request_generation_tokens", "Generated tokens per request.",
      NGX_HTTP_MOE_HISTOGRAM, ngx_http_moe_stat(generation),
      1, MOE_TOKEN_BUCKETS },

    { NULL, NULL, NGX_HTTP_MOE_GAUGE, 0, 0, 0 }
};


ngx_int_t
ngx_http_moe_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i;
    ngx_http_cleanup_t          *cln;
    ngx_http_moe_model_t       **models;
    ngx_http_moe_main_conf_t    *mcf;
    ngx_http_moe_metrics_ctx_t  *ctx;

    rc = ngx_http_moe_get_only(r);

    if (rc != NGX_OK) {
        return rc;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    models = mcf->models.elts;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_moe_metrics_ctx_t));
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->request = r;
    ctx->event.handler = ngx_http_moe_metrics_finish;
    ctx->event.data = ctx;
    ctx->event.log = r->connection->log;

    ctx->sources = ngx_pcalloc(r->pool, (mcf->models.nelts + 1)
                                        * sizeof(ngx_http_moe_source_t));
    cln = ngx_http_cleanup_add(r, 0);

    if (ctx->sources == NULL || cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    cln->handler = ngx_http_moe_metrics_cleanup;
    cln->data = ctx;

    for (i = 0; i < mcf->models.nelts; i++) {
        ctx->sources[i].model = models[i];
    }

    ctx->n = mcf->models.nelts;

    if (ngx_http_moe_metrics_ask(ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->main->count++;

    if (ngx_http_moe_metrics_waiting(ctx)) {
        ngx_add_timer(&ctx->event, NGX_HTTP_MOE_METRICS_TIMEOUT);

    } else {
        ngx_post_event(&ctx->event, &ngx_posted_events);
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_moe_metrics_ask(ngx_http_moe_metrics_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_msec_t              hold;
    moe_error_t             error;
    ngx_http_moe_source_t  *source;

    for (i = 0; i < ctx->n; i++) {
        source = &ctx->sources[i];

        source->ctx = ctx;
        source->call.handler = ngx_http_moe_metrics_frame;
        source->call.data = source;

        if (source->model->channel == NULL) {
            continue;
        }

        if (moe_frame_empty(&source->call.frame, MOE_FRAME_STATS, 0, &error)
            != 0)
        {
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
ngx_http_moe_metrics_frame(ngx_http_moe_call_t *call,
    moe_frame_header_t *header, u_char *payload)
{
    ngx_http_moe_source_t       *source;
    ngx_http_moe_metrics_ctx_t  *ctx;

    source = call->data;
    ctx = source->ctx;

    if (header && header->type == MOE_FRAME_STATS_REPLY
        && moe_stats_decode(payload, header->size, &source->stats) == 0)
    {
        source->known = 1;
    }

    source->waiting = 0;
    ngx_http_moe_call_end(call, 0);

    if (!ngx_http_moe_metrics_waiting(ctx)) {
        ngx_post_event(&ctx->event, &ngx_posted_events);
    }
}


static ngx_uint_t
ngx_http_moe_metrics_waiting(ngx_http_moe_metrics_ctx_t *ctx)
{
    ngx_uint_t  i;

    for (i = 0; i < ctx->n; i++) {
        if (ctx->sources[i].waiting) {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_moe_metrics_cleanup(void *data)
{
    ngx_http_moe_metrics_ctx_t  *ctx = data;

    ngx_uint_t  i;

    for (i = 0; i < ctx->n; i++) {
        ngx_http_moe_call_end(&ctx->sources[i].call, 0);
    }

    if (ctx->event.timer_set) {
        ngx_del_timer(&ctx->event);
    }

    if (ctx->event.posted) {
        ngx_delete_posted_event(&ctx->event);
    }
}


static void
ngx_http_moe_metrics_finish(ngx_event_t *ev)
{
    ngx_connection_t            *c;
    ngx_http_request_t          *r;
    ngx_http_moe_text_t          text;
    ngx_http_moe_metrics_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    ngx_http_moe_metrics_text(ctx, &text);
    ngx_http_moe_metrics_cleanup(ctx);

    ngx_http_finalize_request(r, ngx_http_moe_reply(r, NGX_HTTP_OK,
                                        "text/plain; version=0.0.4", &text));
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_moe_metrics_text(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text)
{
    ngx_uint_t                    i;
    unsigned long long            value;
    ngx_http_moe_source_t        *source;
    const ngx_http_moe_metric_t  *metric;

    ngx_http_moe_metrics_process(ctx, text);
    ngx_http_moe_metrics_usage(ctx, text);
    ngx_http_moe_metrics_finished(ctx, text);

    for (metric = ngx_http_moe_metrics; metric->name; metric++) {

        ngx_http_moe_metrics_head(text, metric->name, metric->help,
                                  metric->kind);

        for (i = 0; i < ctx->n; i++) {
            source = &ctx->sources[i];

            if (!source->known) {
                continue;
            }

            if (metric->kind == NGX_HTTP_MOE_HISTOGRAM) {
                ngx_http_moe_metrics_histogram(text, metric, source);
                continue;
            }

            value = *(uint64_t *) ((char *) &source->stats + metric->offset);

            ngx_http_moe_metrics_label(text, metric->name, "", source);
            ngx_http_moe_text_format(text, "} %llu\n", value);
        }
    }
}


/* What is known without the engine. */

static void
ngx_http_moe_metrics_process(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text)
{
    ngx_uint_t              i;
    ngx_http_moe_health_t   health;
    ngx_http_moe_source_t  *source;

    ngx_http_moe_metrics_head(text, "engine_up",
                              "Whether the engine serves requests.",
                              NGX_HTTP_MOE_GAUGE);

    for (i = 0; i < ctx->n; i++) {
        source = &ctx->sources[i];
        ngx_http_moe_health(source->model->channel, &health);

        ngx_http_moe_metrics_label(text, "engine_up", "", source);
        ngx_http_moe_text_format(text, "} %d\n", health.ready ? 1 : 0);
    }

    ngx_http_moe_metrics_head(text, "engine_restarts_total",
                              "Starts of the engine after its first.",
                              NGX_HTTP_MOE_COUNTER);

    for (i = 0; i < ctx->n; i++) {
        source = &ctx->sources[i];

        if (source->model->engine) {
            ngx_http_moe_metrics_label(text, "engine_restarts_total", "",
                                       source);
            ngx_http_moe_text_format(text, "} %lu\n",
                  (unsigned long) source->model->engine->shared->restarts);
        }
    }

    ngx_http_moe_metrics_head(text, "requests_resumed_total",
                              "Requests taken up by the next engine.",
                              NGX_HTTP_MOE_COUNTER);

    for (i = 0; i < ctx->n; i++) {
        source = &ctx->sources[i];

        if (source->model->engine) {
            ngx_http_moe_metrics_label(text, "requests_resumed_total", "",
                                       source);
            ngx_http_moe_text_format(text, "} %lu\n",
                  (unsigned long) source->model->engine->shared->resumed);
        }
    }
}


static void
ngx_http_moe_metrics_usage(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text)
{
    ngx_uint_t              i;
    ngx_http_moe_source_t  *source;

    ngx_http_moe_metrics_head(text, "kv_cache_usage_perc",
                              "Used part of the cache; 1 is all of it.",
                              NGX_HTTP_MOE_GAUGE);

    for (i = 0; i < ctx->n; i++) {
        source = &ctx->sources[i];

        if (source->known) {
            ngx_http_moe_metrics_label(text, "kv_cache_usage_perc", "",
                                       source);
            ngx_http_moe_text_format(text, "} %.6g\n",
                source->stats.blocks_total
                ? (double) source->stats.blocks_used
                  / (double) source->stats.blocks_total : 0.0);
        }
    }
}


static void
ngx_http_moe_metrics_finished(ngx_http_moe_metrics_ctx_t *ctx,
    ngx_http_moe_text_t *text)
{
    uint64_t                value[4];
    ngx_uint_t              i, k;
    ngx_http_moe_source_t  *source;

    static const char  *reasons[] = { "stop", "length", "cancelled", "error" };

    ngx_http_moe_metrics_head(text, "request_success_total",
                              "Requests that ended, by reason.",
                              NGX_HTTP_MOE_COUNTER);

    for (i = 0; i < ctx->n; i++) {
        source = &ctx->sources[i];

        if (!source->known) {
            continue;
        }

        value[0] = source->stats.finished_stop;
        value[1] = source->stats.finished_length;
        value[2] = source->stats.finished_cancelled;
        value[3] = source->stats.finished_error;

        for (k = 0; k < 4; k++) {
            ngx_http_moe_metrics_label(text, "request_success_total", "",
                                       source);
            ngx_http_moe_text_format(text, ",finished_reason=\"%s\"} %llu\n",
                                     reasons[k],
                                     (unsigned long long) value[k]);
        }
    }
}


static void
ngx_http_moe_metrics_head(ngx_http_moe_text_t *text, const char *name,
    const char *help, ngx_http_moe_metric_e kind)
{
    static const char  *kinds[] = { "gauge", "counter", "histogram" };

    ngx_http_moe_text_format(text, "# HELP moe_%s %s\n# TYPE moe_%s %s\n",
                             name, help, name, kinds[kind]);
}


/* Up to the closing brace. */

static void
ngx_http_moe_metrics_label(ngx_http_moe_text_t *text, const char *name,
    const char *suffix, ngx_http_moe_source_t *source)
{
    ngx_http_moe_text_format(text, "moe_%s%s{model=\"%.*s\"", name, suffix,
                             (int) source->model->name.len,
                             source->model->name.data);
}


static void
ngx_http_moe_metrics_histogram(ngx_http_moe_text_t *text,
    const ngx_http_moe_metric_t *metric, ngx_http_moe_source_t *source)
{
    unsigned                i;
    uint64_t                sum;
    const moe_histogram_t  *histogram;

    histogram = (moe_histogram_t *) ((char *) &source->stats + metric->offset);
    sum = 0;

    for (i = 0; i < metric->buckets; i++) {
        sum += histogram->buckets[i];

        ngx_http_moe_metrics_label(text, metric->name, "_bucket", source);

        if (i + 1 < metric->buckets) {
            ngx_http_moe_text_format(text, ",le=\"%.6g\"} %llu\n",
                                     moe_histogram_bound(metric->first, i),
                                     (unsigned long long) sum);
        } else {
            ngx_http_moe_text_format(text, ",le=\"+Inf\"} %llu\n",
                                     (unsigned long long) histogram->count);
        }
    }

    ngx_http_moe_metrics_label(text, metric->name, "_sum", source);
    ngx_http_moe_text_format(text, "} %.9g\n", histogram->sum);
    ngx_http_moe_metrics_label(text, metric->name, "_count", source);
    ngx_http_moe_text_format(text, "} %llu\n",
                             (unsigned long long) histogram->count);
}
