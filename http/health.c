
#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/model.h"
#include "http/reply.h"


#define NGX_HTTP_MOE_SILENCE      3000    /* ms without STATE: hung */
#define NGX_HTTP_MOE_STEP_LIMIT   30000   /* ms of one step: hung */


void
ngx_http_moe_health(ngx_http_moe_channel_t *ch, ngx_http_moe_health_t *health)
{
    ngx_http_moe_engine_shared_t  *shared;

    ngx_memzero(health, sizeof(ngx_http_moe_health_t));

    if (ch == NULL) {
        health->name = "down";
        ngx_str_set(&health->message, "the engine could not be started");
        return;
    }

    shared = ch->model->engine->shared;

    health->known = ch->known;
    health->state = ch->state;
    health->age = ngx_current_msec - ch->heard;

    if (!ch->known) {
        if (shared->phase == NGX_HTTP_MOE_ENGINE_WAITING && shared->replaces) {
            health->name = "waiting";
            ngx_str_set(&health->message,
                        "the engine waits for its predecessor to finish");

        } else if (shared->phase == NGX_HTTP_MOE_ENGINE_BACKOFF) {
            health->name = "restarting";
            ngx_str_set(&health->message, "the engine is being restarted");

        } else if (shared->phase == NGX_HTTP_MOE_ENGINE_QUITTING) {
            health->name = "stopped";
            ngx_str_set(&health->message,
                        "the engine was told to quit, a reload starts one");

        } else {
            health->name = "starting";
            ngx_str_set(&health->message, "the engine is starting");
        }

        return;
    }

    if (health->age > NGX_HTTP_MOE_SILENCE
        || ch->state.step_started_ns / 1000000 > NGX_HTTP_MOE_STEP_LIMIT)
    {
        health->name = "hung";
        ngx_str_set(&health->message, "the engine does not respond");
        return;
    }

    switch (ch->state.code) {

    case MOE_STATE_READY:
        health->ready = 1;
        health->name = "ready";
        return;

    case MOE_STATE_LOADING:
        health->name = "loading";
        ngx_str_set(&health->message, "the model is being loaded");
        return;

    case MOE_STATE_DRAINING:
        health->name = "draining";
        ngx_str_set(&health->message, "the engine is shutting down");
        return;

    default: /* MOE_STATE_FAILED */
        health->name = "failed";
        health->message.data = (u_char *) ch->message;
        health->message.len = ch->state.message.size;
    }
}


ngx_int_t
ngx_http_moe_health_handler(ngx_http_request_t *r, ngx_str_t *rest)
{
    ngx_uint_t                 i, n;
    ngx_http_moe_text_t        text;
    ngx_http_moe_model_t      *only, **models;
    ngx_http_moe_health_t      health;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    models = mcf->models.elts;
    n = ngx_http_moe_pass_only(r, &only) == NGX_OK ? mcf->models.nelts : 0;

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));

    for (i = 0; i < n; i++) {

        if (only && models[i] != only) {
            continue;
        }

        ngx_http_moe_health(models[i]->channel, &health);

        if (!health.ready) {
            break;
        }
    }

    if (i == n) {
        ngx_http_moe_text_literal(&text, "{\"status\":\"ok\"}\n");
        return ngx_http_moe_reply(r, NGX_HTTP_OK, "application/json", &text);
    }

    if (ngx_http_moe_add_retry_after(r, NGX_HTTP_SERVICE_UNAVAILABLE,
                                     NGX_HTTP_MOE_RETRY_AFTER)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_moe_text_format(&text, "{\"status\":\"%s\",\"model\":",
                             health.name);
    ngx_http_moe_text_string(&text, (char *) models[i]->name.data,
                             models[i]->name.len);
    ngx_http_moe_text_literal(&text, ",\"message\":");
    ngx_http_moe_text_string(&text, (char *) health.message.data,
                             health.message.len);
    ngx_http_moe_text_literal(&text, "}\n");

    return ngx_http_moe_reply(r, NGX_HTTP_SERVICE_UNAVAILABLE,
                              "application/json", &text);
}


void
ngx_http_moe_health_problem(ngx_http_moe_problem_t *problem,
    ngx_http_moe_model_t *model)
{
    ngx_http_moe_health_t  health;

    ngx_http_moe_health(model->channel, &health);

    if (health.message.len == 0) {
        ngx_str_set(&health.message, "the engine was restarted");
    }

    ngx_http_moe_problem(problem, NGX_HTTP_SERVICE_UNAVAILABLE,
                         "service_unavailable", "service_unavailable", NULL,
                         "model \"%.*s\" is not available: %.*s",
                         (int) model->name.len, model->name.data,
                         (int) health.message.len, health.message.data);
}
