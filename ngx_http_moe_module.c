
/*
 * ngx_http_moe_module: serves Mixture-of-Experts language models.
 *
 * This file is the module's face: directives, configurations, and the hooks
 * of processes.  The way of a request begins in http/request.c.
 */


#include "ngx_http_moe_module.h"
#include "http/account.h"
#include "http/api.h"
#include "http/channel.h"
#include "http/engine_process.h"
#include "http/keys.h"
#include "http/limit.h"
#include "http/metrics.h"
#include "http/model.h"
#include "http/refusal.h"
#include "http/request.h"
#include "http/status.h"
#include "http/traffic.h"
#include "http/variables.h"

#include <jansson.h>
#include <pwd.h>


static ngx_int_t ngx_http_moe_preconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_moe_postconfiguration(ngx_conf_t *cf);
static void *ngx_http_moe_create_main_conf(ngx_conf_t *cf);
static char *ngx_http_moe_init_main_conf(ngx_conf_t *cf, void *conf);
static void *ngx_http_moe_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_moe_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static char *ngx_http_moe_engine_path(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_moe_engine_user(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_moe_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *ngx_http_moe_timeout(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_moe_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_moe_metrics(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_int_t ngx_http_moe_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_moe_init_process(ngx_cycle_t *cycle);
static void ngx_http_moe_exit_process(ngx_cycle_t *cycle);


static ngx_conf_num_bounds_t  ngx_http_moe_resume_bounds = {
    ngx_conf_check_num_bounds, 0, 1000
};


static ngx_conf_num_bounds_t  ngx_http_moe_max_tokens_bounds = {
    ngx_conf_check_num_bounds, 0, NGX_MAX_INT32_VALUE
};


static ngx_conf_num_bounds_t  ngx_http_moe_priority_bounds = {
    ngx_conf_check_num_bounds, 0, 1000000
};


static ngx_command_t  ngx_http_moe_commands[] = {

    { ngx_string("moe_model"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE2,
      ngx_http_moe_model_block,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_engine_path"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_moe_engine_path,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_engine_user"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_moe_engine_user,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_limit_tokens_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE3,
      ngx_http_moe_account_zone,
      0,
      0,
      NULL },

    { ngx_string("moe_pass"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_HTTP_LMT_CONF|NGX_CONF_TAKE1,
      ngx_http_moe_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_api"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_moe_api_set,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_max_tokens"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_moe_loc_conf_t, max_tokens),
      &ngx_http_moe_max_tokens_bounds },

    { ngx_string("moe_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_moe_timeout,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_ping"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_moe_loc_conf_t, ping),
      NULL },

    { ngx_string("moe_resume"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_moe_loc_conf_t, resume),
      &ngx_http_moe_resume_bounds },

    { ngx_string("moe_priority"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_moe_loc_conf_t, priority),
      &ngx_http_moe_priority_bounds },

    { ngx_string("moe_api_keys"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_moe_keys_set,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_cache_salt"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_moe_loc_conf_t, cache_salt),
      NULL },

    { ngx_string("moe_limit_tokens"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_moe_limit_set,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("moe_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_moe_status,
      0,
      0,
      NULL },

    { ngx_string("moe_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_moe_metrics,
      0,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_moe_module_ctx = {
    ngx_http_moe_preconfiguration,         /* preconfiguration */
    ngx_http_moe_postconfiguration,        /* postconfiguration */

    ngx_http_moe_create_main_conf,         /* create main configuration */
    ngx_http_moe_init_main_conf,           /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_moe_create_loc_conf,          /* create location configuration */
    ngx_http_moe_merge_loc_conf            /* merge location configuration */
};


ngx_module_t  ngx_http_moe_module = {
    NGX_MODULE_V1,
    &ngx_http_moe_module_ctx,              /* module context */
    ngx_http_moe_commands,                 /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_moe_init_module,              /* init module */
    ngx_http_moe_init_process,             /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_moe_exit_process,             /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_http_moe_preconfiguration(ngx_conf_t *cf)
{
    return ngx_http_moe_add_variables(cf);
}


/* A model may be defined below the location that uses it. */

static ngx_int_t
ngx_http_moe_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                 i;
    ngx_http_moe_pass_t      **passes, *pass;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_moe_module);
    passes = mcf->passes.elts;

    for (i = 0; i < mcf->passes.nelts; i++) {
        pass = passes[i];

        if (pass->variable) {
            continue;
        }

        if (ngx_http_moe_pass_any(&pass->name)) {
            if (mcf->models.nelts == 0) {
                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "no \"moe_model\" is defined for \"moe_pass\" "
                              "in %V:%ui", &pass->place.file,
                              pass->place.line);
                return NGX_ERROR;
            }

            continue;
        }

        pass->model = ngx_http_moe_find_model(mcf, &pass->name);

        if (pass->model == NULL) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "unknown model \"%V\" in \"moe_pass\" in %V:%ui",
                          &pass->name, &pass->place.file, pass->place.line);
            return NGX_ERROR;
        }
    }

    ngx_http_moe_refusal_init();

    if (ngx_http_moe_keys_init(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return mcf->models.nelts ? ngx_http_moe_traffic_init(cf, mcf) : NGX_OK;
}


static void *
ngx_http_moe_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_moe_main_conf_t));
    if (mcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&mcf->models, cf->pool, 4,
                       sizeof(ngx_http_moe_model_t *))
        != NGX_OK
        || ngx_array_init(&mcf->passes, cf->pool, 4,
                          sizeof(ngx_http_moe_pass_t *))
           != NGX_OK)
    {
        return NULL;
    }

    mcf->engine_uid = (ngx_uid_t) NGX_CONF_UNSET_UINT;
    mcf->engine_gid = (ngx_gid_t) NGX_CONF_UNSET_UINT;

    return mcf;
}


static char *
ngx_http_moe_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_moe_main_conf_t *mcf = conf;

    if (mcf->models.nelts == 0) {
        return NGX_CONF_OK;
    }

    if (mcf->engine_path.len == 0) {
        ngx_str_set(&mcf->engine_path, NGX_HTTP_MOE_ENGINE_PATH);

        if (ngx_conf_full_name(cf->cycle, &mcf->engine_path, 0) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    if (access((char *) mcf->engine_path.data, X_OK) == -1) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, ngx_errno,
                      "engine \"%V\" cannot be executed, see "
                      "\"moe_engine_path\"", &mcf->engine_path);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static void *
ngx_http_moe_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_moe_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_moe_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->pass = NULL;
     *     conf->cache_salt = NULL;
     *     conf->limits = { NULL };
     */

    conf->api = NGX_CONF_UNSET_UINT;
    conf->max_tokens = NGX_CONF_UNSET;
    conf->timeout_first = NGX_CONF_UNSET_MSEC;
    conf->timeout_total = NGX_CONF_UNSET_MSEC;
    conf->ping = NGX_CONF_UNSET_MSEC;
    conf->resume = NGX_CONF_UNSET;
    conf->priority = NGX_CONF_UNSET;
    conf->keys = NGX_CONF_UNSET_PTR;

    return conf;
}


static char *
ngx_http_moe_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_moe_loc_conf_t *prev = parent;
    ngx_http_moe_loc_conf_t *conf = child;

    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* "if" blocks and limit_except take part of the location around them */

    if (clcf->noname && conf->pass == NULL) {
        conf->pass = prev->pass;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && prev->pass) {
        clcf->handler = ngx_http_moe_handler;
        conf->pass = prev->pass;
    }

    ngx_conf_merge_uint_value(conf->api, prev->api, NGX_HTTP_MOE_API_AUTO);
    ngx_conf_merge_value(conf->max_tokens, prev->max_tokens, 0);
    ngx_conf_merge_msec_value(conf->timeout_first, prev->timeout_first, 0);
    ngx_conf_merge_msec_value(conf->timeout_total, prev->timeout_total, 0);
    ngx_conf_merge_msec_value(conf->ping, prev->ping, 15000);
    ngx_conf_merge_value(conf->resume, prev->resume, 1);
    ngx_conf_merge_value(conf->priority, prev->priority, 0);
    ngx_conf_merge_ptr_value(conf->keys, prev->keys, NULL);

    if (conf->cache_salt == NULL) {
        conf->cache_salt = prev->cache_salt;
    }

    if (conf->limits.elts == NULL) {
        conf->limits = prev->limits;
    }

    return ngx_http_moe_limits_check(cf, &conf->limits) == NGX_OK
           ? NGX_CONF_OK : NGX_CONF_ERROR;
}


ngx_http_moe_model_t *
ngx_http_moe_find_model(ngx_http_moe_main_conf_t *mcf, ngx_str_t *name)
{
    ngx_str_t              *alias;
    ngx_uint_t              i, k;
    ngx_http_moe_model_t  **models;

    models = mcf->models.elts;

    for (i = 0; i < mcf->models.nelts; i++) {

        if (models[i]->name.len == name->len
            && ngx_memcmp(models[i]->name.data, name->data, name->len) == 0)
        {
            return models[i];
        }

        alias = models[i]->aliases.elts;

        for (k = 0; k < models[i]->aliases.nelts; k++) {
            if (alias[k].len == name->len
                && ngx_memcmp(alias[k].data, name->data, name->len) == 0)
            {
                return models[i];
            }
        }
    }

    return NULL;
}


static char *
ngx_http_moe_engine_path(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_main_conf_t  *mcf = conf;

    ngx_str_t  *value;

    if (mcf->engine_path.len) {
        return "is duplicate";
    }

    value = cf->args->elts;
    mcf->engine_path = value[1];

    if (ngx_conf_full_name(cf->cycle, &mcf->engine_path, 0) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (access((char *) mcf->engine_path.data, X_OK) == -1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "engine \"%V\" cannot be executed",
                           &mcf->engine_path);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_engine_user(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_main_conf_t  *mcf = conf;

    ngx_str_t      *value;
    struct passwd  *pwd;

    if (mcf->engine_user.len) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_set_errno(0);
    pwd = getpwnam((const char *) value[1].data);

    if (pwd == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "getpwnam(\"%s\") failed", value[1].data);
        return NGX_CONF_ERROR;
    }

    if (geteuid() != 0) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "the \"moe_engine_user\" directive makes sense "
                           "only if the master process runs with super-user "
                           "privileges, ignored");
    }

    mcf->engine_user = value[1];
    mcf->engine_uid = pwd->pw_uid;
    mcf->engine_gid = pwd->pw_gid;

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_loc_conf_t  *mlcf = conf;

    ngx_str_t                          *value;
    ngx_http_moe_pass_t                *pass, **slot;
    ngx_http_core_loc_conf_t           *clcf;
    ngx_http_moe_main_conf_t           *mcf;
    ngx_http_compile_complex_value_t    ccv;

    if (mlcf->pass) {
        return "is duplicate";
    }

    value = cf->args->elts;

    pass = ngx_pcalloc(cf->pool, sizeof(ngx_http_moe_pass_t));
    if (pass == NULL) {
        return NGX_CONF_ERROR;
    }

    pass->name = value[1];
    pass->place.file = cf->conf_file->file.name;
    pass->place.line = cf->conf_file->line;

    if (ngx_http_script_variables_count(&value[1])) {

        pass->variable = ngx_palloc(cf->pool,
                                    sizeof(ngx_http_complex_value_t));
        if (pass->variable == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

        ccv.cf = cf;
        ccv.value = &value[1];
        ccv.complex_value = pass->variable;

        if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_moe_module);

    slot = ngx_array_push(&mcf->passes);
    if (slot == NULL) {
        return NGX_CONF_ERROR;
    }

    *slot = pass;
    mlcf->pass = pass;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_moe_handler;

#if (NGX_THREADS)

    /* large bodies are parsed in it, whether or not "aio threads" is set */

    if (ngx_thread_pool_add(cf, NULL) == NULL) {
        return NGX_CONF_ERROR;
    }

#endif

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_timeout(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_loc_conf_t  *mlcf = conf;

    ngx_str_t   *value, time;
    ngx_uint_t   i;
    ngx_msec_t  *field, parsed;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "first=", 6) == 0) {
            field = &mlcf->timeout_first;

        } else if (ngx_strncmp(value[i].data, "total=", 6) == 0) {
            field = &mlcf->timeout_total;

        } else {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        if (*field != NGX_CONF_UNSET_MSEC) {
            return "is duplicate";
        }

        time.data = value[i].data + 6;
        time.len = value[i].len - 6;

        parsed = ngx_parse_time(&time, 0);

        if (parsed == (ngx_msec_t) NGX_ERROR) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid time \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        *field = parsed;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_moe_status_handler;

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    value = cf->args->elts;
    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_moe_metrics_handler;

    if (cf->args->nelts == 2) {

        if (ngx_strcmp(value[1].data, "experts") != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[1]);
            return NGX_CONF_ERROR;
        }

        clcf->handler = ngx_http_moe_metrics_experts_handler;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_moe_init_module(ngx_cycle_t *cycle)
{
    ngx_http_moe_main_conf_t  *mcf;

    if (ngx_test_config) {
        return NGX_OK;
    }

    mcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_moe_module);

    return ngx_http_moe_engines_init(cycle, mcf);
}


static ngx_int_t
ngx_http_moe_init_process(ngx_cycle_t *cycle)
{
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_moe_module);

    if (mcf == NULL) {
        return NGX_OK;
    }

    ngx_http_moe_engines_init_process(cycle, mcf);

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    /* before any thread parses */

    json_object_seed(0);

    return ngx_http_moe_channels_init(cycle, mcf);
}


static void
ngx_http_moe_exit_process(ngx_cycle_t *cycle)
{
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_moe_module);

    if (mcf) {
        ngx_http_moe_channels_exit(cycle, mcf);
    }
}
