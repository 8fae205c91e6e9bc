
#include "ngx_http_moe_module.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/model.h"
#include "http/stats.h"
#include "http/status.h"


static void ngx_http_moe_status_text(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);
static void ngx_http_moe_status_model(ngx_http_moe_text_t *text,
    ngx_http_moe_source_t *source);
static void ngx_http_moe_status_names(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model);
static void ngx_http_moe_status_engine(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model);
static void ngx_http_moe_status_stats(ngx_http_moe_text_t *text,
    moe_stats_t *stats);


ngx_int_t
ngx_http_moe_status_handler(ngx_http_request_t *r)
{
    return ngx_http_moe_stats_reply(r, 0, "application/json",
                                    ngx_http_moe_status_text);
}


static void
ngx_http_moe_status_text(ngx_http_moe_stats_t *all, ngx_http_moe_text_t *text)
{
    ngx_uint_t  i;

    ngx_http_moe_text_format(text,
                             "{\"version\":\"" NGX_HTTP_MOE_VERSION "\""
                             ",\"worker\":%ld,\"models\":[", (long) ngx_pid);

    for (i = 0; i < all->n; i++) {
        if (i) {
            ngx_http_moe_text_literal(text, ",");
        }

        ngx_http_moe_status_model(text, &all->sources[i]);
    }

    ngx_http_moe_text_literal(text, "]}\n");
}


static void
ngx_http_moe_status_model(ngx_http_moe_text_t *text,
    ngx_http_moe_source_t *source)
{
    ngx_http_moe_health_t  health;

    ngx_http_moe_health(source->model->channel, &health);

    ngx_http_moe_status_names(text, source->model);

    ngx_http_moe_text_format(text, ",\"state\":\"%s\",\"message\":",
                             health.name);
    ngx_http_moe_text_string(text, (char *) health.message.data,
                             health.message.len);

    if (source->model->engine) {
        ngx_http_moe_status_engine(text, source->model);
    }

    if (health.known) {
        ngx_http_moe_text_format(text,
            ",\"progress\":%u,\"context\":%u,\"vocabulary\":%u"
            ",\"step_age_ms\":%llu,\"loaded\":%llu,\"heartbeat_age_ms\":%llu",
            health.state.progress, health.state.context,
            health.state.vocabulary,
            (unsigned long long) health.state.step_started_ns / 1000000,
            (unsigned long long) health.state.loaded_unix,
            (unsigned long long) health.age);
    }

    if (source->known) {
        ngx_http_moe_status_stats(text, &source->stats);
    }

    ngx_http_moe_text_literal(text, "}");
}


static void
ngx_http_moe_status_names(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model)
{
    ngx_str_t   *alias;
    ngx_uint_t   i;

    ngx_http_moe_text_literal(text, "{\"name\":");
    ngx_http_moe_text_string(text, (char *) model->name.data, model->name.len);
    ngx_http_moe_text_literal(text, ",\"aliases\":[");

    alias = model->aliases.elts;

    for (i = 0; i < model->aliases.nelts; i++) {
        if (i) {
            ngx_http_moe_text_literal(text, ",");
        }

        ngx_http_moe_text_string(text, (char *) alias[i].data, alias[i].len);
    }

    ngx_http_moe_text_literal(text, "],\"path\":");
    ngx_http_moe_text_string(text, (char *) model->path.data, model->path.len);
    ngx_http_moe_text_literal(text, ",\"device\":");
    ngx_http_moe_text_string(text, (char *) model->device.data,
                             model->device.len);
}


static void
ngx_http_moe_status_engine(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model)
{
    ngx_http_moe_engine_shared_t  *shared;

    shared = model->engine->shared;

    ngx_http_moe_text_format(text,
                             ",\"pid\":%lu,\"supervisor\":%lu"
                             ",\"restarts\":%lu,\"resumed\":%lu"
                             ",\"started\":%lu",
                             (unsigned long) shared->process,
                             (unsigned long) shared->supervisor,
                             (unsigned long) shared->restarts,
                             (unsigned long) shared->resumed,
                             (unsigned long) shared->started);
}


static void
ngx_http_moe_status_stats(ngx_http_moe_text_t *text, moe_stats_t *stats)
{
    ngx_http_moe_text_format(text,
        ",\"queue\":{\"waiting\":%llu,\"limit\":%llu}"
        ",\"batch\":{\"running\":%llu,\"sequences\":%llu,\"tokens\":%llu"
        ",\"steps\":%llu,\"rows\":%llu}",
        (unsigned long long) stats->waiting,
        (unsigned long long) stats->queue_limit,
        (unsigned long long) stats->running,
        (unsigned long long) stats->batch_sequences,
        (unsigned long long) stats->batch_tokens,
        (unsigned long long) stats->steps,
        (unsigned long long) stats->step_rows);

    ngx_http_moe_text_format(text,
        ",\"cache\":{\"blocks\":%llu,\"used\":%llu,\"queried_tokens\":%llu"
        ",\"hit_tokens\":%llu,\"preemptions\":%llu}"
        ",\"experts\":{\"rows\":%llu,\"rows_most\":%llu,\"placements\":%llu}"
        ",\"memory_bytes\":%llu",
        (unsigned long long) stats->blocks_total,
        (unsigned long long) stats->blocks_used,
        (unsigned long long) stats->cache_queries,
        (unsigned long long) stats->cache_hits,
        (unsigned long long) stats->preemptions,
        (unsigned long long) stats->expert_rows,
        (unsigned long long) stats->expert_rows_most,
        (unsigned long long) stats->placements,
        (unsigned long long) stats->memory_bytes);
}
