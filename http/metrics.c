
/*
 * A table gives each metric its name, kind and place in moe_stats_t, or the
 * function that knows it; the exposition walks it once, all models under each
 * name as the format demands.  What has labels of its own follows.
 */


#include "ngx_http_moe_module.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/metrics.h"
#include "http/model.h"
#include "http/stats.h"
#include "http/traffic.h"


typedef enum {
    NGX_HTTP_MOE_GAUGE = 0,
    NGX_HTTP_MOE_COUNTER,
    NGX_HTTP_MOE_HISTOGRAM
} ngx_http_moe_metric_e;


/* What is known without the engine's answer; NGX_DECLINED: nothing is. */

typedef ngx_int_t (*ngx_http_moe_value_pt)(ngx_http_moe_model_t *model,
    uint64_t *value);


typedef struct {
    const char               *name;
    const char               *help;
    ngx_http_moe_metric_e     kind;
    ngx_http_moe_value_pt     value;        /* NULL: see offset */
    size_t                    offset;
    double                    first;        /* bound of the first bucket */
    unsigned                  buckets;
} ngx_http_moe_metric_t;


static void ngx_http_moe_metrics_text(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_text_experts(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_one(ngx_http_moe_text_t *text,
    const ngx_http_moe_metric_t *metric, ngx_http_moe_source_t *source);
static void ngx_http_moe_metrics_histogram(ngx_http_moe_text_t *text,
    const ngx_http_moe_metric_t *metric, ngx_http_moe_source_t *source);
static void ngx_http_moe_metrics_usage(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_finished(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_requests(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_metrics_codes(ngx_http_moe_text_t *text,
    ngx_str_t *name, ngx_http_moe_traffic_t *traffic);
static void ngx_http_moe_metrics_load(ngx_http_moe_text_t *text,
    ngx_http_moe_source_t *source);
static void ngx_http_moe_metrics_head(ngx_http_moe_text_t *text,
    const char *name, const char *help, ngx_http_moe_metric_e kind);
static void ngx_http_moe_metrics_label(ngx_http_moe_text_t *text,
    const char *name, const char *suffix, ngx_str_t *model);
static ngx_int_t ngx_http_moe_metrics_up(ngx_http_moe_model_t *model,
    uint64_t *value);
static ngx_int_t ngx_http_moe_metrics_restarts(ngx_http_moe_model_t *model,
    uint64_t *value);
static ngx_int_t ngx_http_moe_metrics_resumed(ngx_http_moe_model_t *model,
    uint64_t *value);
static ngx_int_t ngx_http_moe_metrics_broken(ngx_http_moe_model_t *model,
    uint64_t *value);


#define ngx_http_moe_stat(field)  NULL, offsetof(moe_stats_t, field)


static const ngx_http_moe_metric_t  ngx_http_moe_metrics[] = {

    { "engine_up", "Whether the engine serves requests.",
      NGX_HTTP_MOE_GAUGE, ngx_http_moe_metrics_up, 0, 0, 0 },
    { "engine_restarts_total", "Starts of the engine after its first.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_metrics_restarts, 0, 0, 0 },
    { "requests_resumed_total", "Requests taken up by the next engine.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_metrics_resumed, 0, 0, 0 },
    { "streams_broken_total", "Streams that ended with an error event.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_metrics_broken, 0, 0, 0 },

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
    { "exchange_dispatch_bytes_total", "Rows sent to experts of other ranks.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(dispatch_bytes), 0, 0 },
    { "exchange_list_bytes_total", "Which experts these rows are for.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(list_bytes), 0, 0 },
    { "exchange_return_bytes_total", "Results sent back to other ranks.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(return_bytes), 0, 0 },

    { "expert_rows_total", "Rows that experts of all ranks computed.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(expert_rows), 0, 0 },
    { "expert_rows_most_total", "If all ranks had as many as the busiest one.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(expert_rows_most), 0, 0 },
    { "expert_placements_total", "Layers whose experts were placed anew.",
      NGX_HTTP_MOE_COUNTER, ngx_http_moe_stat(placements), 0, 0 },

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

    { NULL, NULL, NGX_HTTP_MOE_GAUGE, NULL, 0, 0, 0 }
};


ngx_int_t
ngx_http_moe_metrics_handler(ngx_http_request_t *r)
{
    return ngx_http_moe_stats_reply(r, 0, "text/plain; version=0.0.4",
                                    ngx_http_moe_metrics_text);
}


ngx_int_t
ngx_http_moe_metrics_experts_handler(ngx_http_request_t *r)
{
    return ngx_http_moe_stats_reply(r, MOE_STATS_EXPERTS,
                                    "text/plain; version=0.0.4",
                                    ngx_http_moe_metrics_text_experts);
}


static void
ngx_http_moe_metrics_text(ngx_http_moe_stats_t *all, ngx_http_moe_text_t *text)
{
    ngx_uint_t                    i;
    const ngx_http_moe_metric_t  *metric;

    for (metric = ngx_http_moe_metrics; metric->name; metric++) {

        ngx_http_moe_metrics_head(text, metric->name, metric->help,
                                  metric->kind);

        for (i = 0; i < all->n; i++) {
            ngx_http_moe_metrics_one(text, metric, &all->sources[i]);
        }
    }

    ngx_http_moe_metrics_usage(all, text);
    ngx_http_moe_metrics_finished(all, text);
    ngx_http_moe_metrics_requests(all, text);
}


static void
ngx_http_moe_metrics_text_experts(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text)
{
    ngx_uint_t  i;

    ngx_http_moe_metrics_text(all, text);

    ngx_http_moe_metrics_head(text, "expert_load",
                              "Tokens that were routed to an expert.",
                              NGX_HTTP_MOE_COUNTER);

    for (i = 0; i < all->n; i++) {
        ngx_http_moe_metrics_load(text, &all->sources[i]);
    }
}


static void
ngx_http_moe_metrics_one(ngx_http_moe_text_t *text,
    const ngx_http_moe_metric_t *metric, ngx_http_moe_source_t *source)
{
    uint64_t  value;

    if (metric->value) {

        if (metric->value(source->model, &value) != NGX_OK) {
            return;
        }

    } else if (!source->known) {
        return;

    } else if (metric->kind == NGX_HTTP_MOE_HISTOGRAM) {
        ngx_http_moe_metrics_histogram(text, metric, source);
        return;

    } else {
        value = *(uint64_t *) ((char *) &source->stats + metric->offset);
    }

    ngx_http_moe_metrics_label(text, metric->name, "", &source->model->name);
    ngx_http_moe_text_format(text, "} %llu\n", (unsigned long long) value);
}


static void
ngx_http_moe_metrics_histogram(ngx_http_moe_text_t *text,
    const ngx_http_moe_metric_t *metric, ngx_http_moe_source_t *source)
{
    unsigned                i;
    uint64_t                sum;
    ngx_str_t              *model;
    const moe_histogram_t  *histogram;

    histogram = (moe_histogram_t *) ((char *) &source->stats + metric->offset);
    model = &source->model->name;
    sum = 0;

    for (i = 0; i < metric->buckets; i++) {
        sum += histogram->buckets[i];

        ngx_http_moe_metrics_label(text, metric->name, "_bucket", model);

        if (i + 1 < metric->buckets) {
            ngx_http_moe_text_format(text, ",le=\"%.9g\"} %llu\n",
                                     moe_histogram_bound(metric->first, i),
                                     (unsigned long long) sum);
        } else {
            ngx_http_moe_text_format(text, ",le=\"+Inf\"} %llu\n",
                                     (unsigned long long) histogram->count);
        }
    }

    ngx_http_moe_metrics_label(text, metric->name, "_sum", model);
    ngx_http_moe_text_format(text, "} %.17g\n", histogram->sum);
    ngx_http_moe_metrics_label(text, metric->name, "_count", model);
    ngx_http_moe_text_format(text, "} %llu\n",
                             (unsigned long long) histogram->count);
}


static void
ngx_http_moe_metrics_usage(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text)
{
    ngx_uint_t              i;
    ngx_http_moe_source_t  *source;

    ngx_http_moe_metrics_head(text, "kv_cache_usage_perc",
                              "Used part of the cache; 1 is all of it.",
                              NGX_HTTP_MOE_GAUGE);

    for (i = 0; i < all->n; i++) {
        source = &all->sources[i];

        if (source->known) {
            ngx_http_moe_metrics_label(text, "kv_cache_usage_perc", "",
                                       &source->model->name);
            ngx_http_moe_text_format(text, "} %.6g\n",
                source->stats.blocks_total
                ? (double) source->stats.blocks_used
                  / (double) source->stats.blocks_total : 0.0);
        }
    }
}


static void
ngx_http_moe_metrics_finished(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text)
{
    uint64_t                value[4];
    ngx_uint_t              i, k;
    ngx_http_moe_source_t  *source;

    static const char  *reasons[] = { "stop", "length", "cancelled", "error" };

    ngx_http_moe_metrics_head(text, "request_success_total",
                              "Requests that ended, by reason.",
                              NGX_HTTP_MOE_COUNTER);

    for (i = 0; i < all->n; i++) {
        source = &all->sources[i];

        if (!source->known) {
            continue;
        }

        value[0] = source->stats.finished_stop;
        value[1] = source->stats.finished_length;
        value[2] = source->stats.finished_cancelled;
        value[3] = source->stats.finished_error;

        for (k = 0; k < 4; k++) {
            ngx_http_moe_metrics_label(text, "request_success_total", "",
                                       &source->model->name);
            ngx_http_moe_text_format(text, ",finished_reason=\"%s\"} %llu\n",
                                     reasons[k],
                                     (unsigned long long) value[k]);
        }
    }
}


static void
ngx_http_moe_metrics_requests(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text)
{
    ngx_str_t                  none;
    ngx_uint_t                 i;
    ngx_http_moe_model_t      *model;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(all->request, ngx_http_moe_module);

    ngx_http_moe_metrics_head(text, "http_requests_total",
                              "Answers to POST requests, by status.",
                              NGX_HTTP_MOE_COUNTER);

    for (i = 0; i < all->n; i++) {
        model = all->sources[i].model;
        ngx_http_moe_metrics_codes(text, &model->name, model->traffic);
    }

    if (mcf->traffic) {
        ngx_str_null(&none);
        ngx_http_moe_metrics_codes(text, &none, mcf->traffic);
    }
}


static void
ngx_http_moe_metrics_codes(ngx_http_moe_text_t *text, ngx_str_t *name,
    ngx_http_moe_traffic_t *traffic)
{
    char        digits[NGX_INT_T_LEN + 1];
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_MOE_CODES; i++) {
        (void) snprintf(digits, sizeof(digits), "%u",
                        (unsigned) ngx_http_moe_codes[i]);

        ngx_http_moe_metrics_label(text, "http_requests_total", "", name);
        ngx_http_moe_text_format(text, ",code=\"%s\"} %lu\n",
                                 ngx_http_moe_codes[i] ? digits : "other",
                                 (unsigned long) traffic->answers[i]);
    }
}


/* A layer without experts has no load, one with experts has some after the
 * first step. */

static void
ngx_http_moe_metrics_load(ngx_http_moe_text_t *text,
    ngx_http_moe_source_t *source)
{
    uint64_t            sum;
    uint32_t            layer, i;
    moe_expert_load_t  *load;

    load = &source->experts;

    for (layer = 0; layer < load->layers; layer++) {
        sum = 0;

        for (i = 0; i < load->experts; i++) {
            sum += moe_count_at(load->counts,
                                (size_t) layer * load->experts + i);
        }

        for (i = 0; sum && i < load->experts; i++) {
            ngx_http_moe_metrics_label(text, "expert_load", "",
                                       &source->model->name);
            ngx_http_moe_text_format(text,
                ",layer=\"%u\",expert=\"%u\"} %llu\n", layer, i,
                (unsigned long long) moe_count_at(load->counts,
                                          (size_t) layer * load->experts + i));
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
    const char *suffix, ngx_str_t *model)
{
    ngx_http_moe_text_format(text, "moe_%s%s{model=\"%.*s\"", name, suffix,
                             (int) model->len, model->data);
}


static ngx_int_t
ngx_http_moe_metrics_up(ngx_http_moe_model_t *model, uint64_t *value)
{
    ngx_http_moe_health_t  health;

    ngx_http_moe_health(model->channel, &health);
    *value = health.ready ? 1 : 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_metrics_restarts(ngx_http_moe_model_t *model, uint64_t *value)
{
    if (model->engine == NULL) {
        return NGX_DECLINED;
    }

    *value = model->engine->shared->restarts;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_metrics_resumed(ngx_http_moe_model_t *model, uint64_t *value)
{
    if (model->engine == NULL) {
        return NGX_DECLINED;
    }

    *value = model->engine->shared->resumed;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_metrics_broken(ngx_http_moe_model_t *model, uint64_t *value)
{
    *value = model->traffic->broken;

    return NGX_OK;
}
