
/* Routes, errors and the list of models. */


#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/model.h"
#include "http/openai.h"
#include "http/reply.h"


static ngx_int_t ngx_http_moe_openai_models(ngx_http_request_t *r,
    ngx_str_t *rest);
static ngx_int_t ngx_http_moe_openai_model(ngx_http_request_t *r,
    ngx_str_t *rest);
static void ngx_http_moe_openai_describe(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model, ngx_str_t *name);
static void ngx_http_moe_openai_error(ngx_http_moe_text_t *text,
    const ngx_http_moe_problem_t *problem);
static void ngx_http_moe_openai_error_event(ngx_http_moe_text_t *text,
    const ngx_http_moe_problem_t *problem);


static const ngx_http_moe_openai_kind_e  ngx_http_moe_openai_completion =
    NGX_HTTP_MOE_OPENAI_COMPLETION;
static const ngx_http_moe_openai_kind_e  ngx_http_moe_openai_chat =
    NGX_HTTP_MOE_OPENAI_CHAT;


static const ngx_http_moe_route_t  ngx_http_moe_openai_routes[] = {

    { ngx_string("/v1/completions"), 0, NGX_HTTP_POST,
      NULL, ngx_http_moe_openai_parse, "cmpl-",
      &ngx_http_moe_openai_completion },

    { ngx_string("/v1/chat/completions"), 0, NGX_HTTP_POST,
      NULL, ngx_http_moe_openai_parse, "chatcmpl-",
      &ngx_http_moe_openai_chat },

    { ngx_string("/v1/models"), 0, NGX_HTTP_GET|NGX_HTTP_HEAD,
      ngx_http_moe_openai_models, NULL, NULL, NULL },

    { ngx_string("/v1/models/"), 1, NGX_HTTP_GET|NGX_HTTP_HEAD,
      ngx_http_moe_openai_model, NULL, NULL, NULL },

    { ngx_string("/health"), 0, NGX_HTTP_GET|NGX_HTTP_HEAD,
      ngx_http_moe_health_handler, NULL, NULL, NULL },

    { ngx_null_string, 0, 0, NULL, NULL, NULL, NULL }
};


const ngx_http_moe_api_t  ngx_http_moe_openai_api = {
    ngx_string("openai"),
    ngx_http_moe_openai_routes,
    ngx_http_moe_openai_started,
    ngx_http_moe_openai_tokens,
    ngx_http_moe_openai_done,
    ngx_http_moe_openai_end,
    ngx_http_moe_openai_error,
    ngx_http_moe_openai_error_event
};


ngx_http_moe_openai_kind_e
ngx_http_moe_openai_kind(const ngx_http_moe_route_t *route)
{
    return *(const ngx_http_moe_openai_kind_e *) route->data;
}


static ngx_int_t
ngx_http_moe_openai_models(ngx_http_request_t *r, ngx_str_t *rest)
{
    ngx_str_t                 *alias;
    ngx_uint_t                 i, k, n;
    ngx_http_moe_text_t        text;
    ngx_http_moe_model_t      *only, **models;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    models = mcf->models.elts;
    n = ngx_http_moe_pass_only(r, &only) == NGX_OK ? mcf->models.nelts : 0;

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    ngx_http_moe_text_literal(&text, "{\"object\":\"list\",\"data\":[");

    for (i = 0; i < n; i++) {

        if (only && models[i] != only) {
            continue;
        }

        ngx_http_moe_openai_describe(&text, models[i], &models[i]->name);

        alias = models[i]->aliases.elts;

        for (k = 0; k < models[i]->aliases.nelts; k++) {
            ngx_http_moe_openai_describe(&text, models[i], &alias[k]);
        }
    }

    /* the comma after the last one */

    if (!text.failed && text.buffer.data[text.buffer.size - 1] == ',') {
        text.buffer.size--;
    }

    ngx_http_moe_text_literal(&text, "]}\n");

    return ngx_http_moe_reply(r, NGX_HTTP_OK, "application/json", &text);
}


static ngx_int_t
ngx_http_moe_openai_model(ngx_http_request_t *r, ngx_str_t *rest)
{
    ngx_http_moe_text_t      text;
    ngx_http_moe_model_t    *model;
    ngx_http_moe_problem_t   problem;

    model = ngx_http_moe_pass_model(r, rest);

    if (model == NULL) {
        ngx_http_moe_problem(&problem, NGX_HTTP_NOT_FOUND,
                             "invalid_request_error", "model_not_found",
                             "model", "the model \"%.*s\" does not exist",
                             (int) ngx_min(rest->len, 128), rest->data);

        return ngx_http_moe_reply_problem(r, &ngx_http_moe_openai_api,
                                          &problem);
    }

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    ngx_http_moe_openai_describe(&text, model, rest);

    if (!text.failed) {
        text.buffer.data[text.buffer.size - 1] = '\n';
    }

    return ngx_http_moe_reply(r, NGX_HTTP_OK, "application/json", &text);
}


/* An object and a comma. */

static void
ngx_http_moe_openai_describe(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model, ngx_str_t *name)
{
    ngx_http_moe_health_t  health;

    ngx_http_moe_health(model->channel, &health);

    ngx_http_moe_text_literal(text, "{\"id\":");
    ngx_http_moe_text_string(text, (char *) name->data, name->len);
    ngx_http_moe_text_format(text, ",\"object\":\"model\",\"created\":%llu"
                             ",\"owned_by\":\"ngx_http_moe\"",
                             health.known
                             ? (unsigned long long) health.state.loaded_unix
                             : 0ULL);

    if (health.known && health.state.context) {
        ngx_http_moe_text_format(text, ",\"max_model_len\":%u",
                                 health.state.context);

    } else if (model->context) {
        ngx_http_moe_text_format(text, ",\"max_model_len\":%lld",
                                 (long long) model->context);

    } else {
        ngx_http_moe_text_literal(text, ",\"max_model_len\":null");
    }

    ngx_http_moe_text_literal(text, "},");
}


static void
ngx_http_moe_openai_error(ngx_http_moe_text_t *text,
    const ngx_http_moe_problem_t *problem)
{
    ngx_http_moe_text_literal(text, "{\"error\":{\"message\":");
    ngx_http_moe_text_string(text, problem->message, strlen(problem->message));
    ngx_http_moe_text_format(text, ",\"type\":\"%s\",\"param\":",
                             problem->type);

    if (problem->field[0]) {
        ngx_http_moe_text_string(text, problem->field, strlen(problem->field));

    } else {
        ngx_http_moe_text_literal(text, "null");
    }

    if (problem->code) {
        ngx_http_moe_text_format(text, ",\"code\":\"%s\"}}\n", problem->code);

    } else {
        ngx_http_moe_text_literal(text, ",\"code\":null}}\n");
    }
}


static void
ngx_http_moe_openai_error_event(ngx_http_moe_text_t *text,
    const ngx_http_moe_problem_t *problem)
{
    ngx_http_moe_text_literal(text, "data: ");
    ngx_http_moe_openai_error(text, problem);
    ngx_http_moe_text_literal(text, "\ndata: [DONE]\n\n");
}
