
#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/model.h"
#include "http/reply.h"
#include "http/status.h"


static void ngx_http_moe_status_model(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model);
static void ngx_http_moe_status_names(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model);
static void ngx_http_moe_status_engine(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model);


ngx_int_t
ngx_http_moe_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_uint_t                 i;
    ngx_http_moe_text_t        text;
    ngx_http_moe_model_t     **models;
    ngx_http_moe_main_conf_t  *mcf;

    rc = ngx_http_moe_get_only(r);

    if (rc != NGX_OK) {
        return rc;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    models = mcf->models.elts;

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));

    ngx_http_moe_text_format(&text,
                             "{\"version\":\"" NGX_HTTP_MOE_VERSION "\""
                             ",\"worker\":%ld,\"models\":[", (long) ngx_pid);

    for (i = 0; i < mcf->models.nelts; i++) {
        if (i) {
            ngx_http_moe_text_literal(&text, ",");
        }

        ngx_http_moe_status_model(&text, models[i]);
    }

    ngx_http_moe_text_literal(&text, "]}\n");

    return ngx_http_moe_reply(r, NGX_HTTP_OK, "application/json", &text);
}


static void
ngx_http_moe_status_model(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model)
{
    ngx_http_moe_health_t  health;

    ngx_http_moe_health(model->channel, &health);

    ngx_http_moe_status_names(text, model);

    ngx_http_moe_text_format(text, ",\"state\":\"%s\",\"message\":",
                             health.name);
    ngx_http_moe_text_string(text, (char *) health.message.data,
                             health.message.len);

    if (model->engine) {
        ngx_http_moe_status_engine(text, model);
    }

    if (health.known) {
        ngx_http_moe_text_format(text,
            ",\"progress\":%u,\"context\":%u,\"vocabulary\":%u"
            ",\"running\":%u,\"waiting\":%u,\"steps\":%llu"
            ",\"step_age_ms\":%llu,\"loaded\":%llu,\"heartbeat_age_ms\":%llu",
            health.state.progress, health.state.context,
            health.state.vocabulary, health.state.running,
            health.state.waiting, (unsigned long long) health.state.steps,
            (unsigned long long) health.state.step_started_ns / 1000000,
            (unsigned long long) health.state.loaded_unix,
            (unsigned long long) health.age);
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
                             ",\"restarts\":%lu,\"started\":%lu",
                             (unsigned long) shared->process,
                             (unsigned long) shared->supervisor,
                             (unsigned long) shared->restarts,
                             (unsigned long) shared->started);
}
