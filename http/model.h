
/*
 * The moe_model block: a model's name, files and limits, checked while the
 * configuration is read.
 */


#ifndef _NGX_HTTP_MOE_MODEL_H_INCLUDED_
#define _NGX_HTTP_MOE_MODEL_H_INCLUDED_


#include "ngx_http_moe_module.h"


struct ngx_http_moe_model_s {
    ngx_str_t                 name;
    ngx_str_t                 path;           /* absolute, null-terminated */
    ngx_str_t                 device;
    ngx_str_t                 kv_type;        /* a word, or empty */
    ngx_str_t                 exchange;       /* the same */
    ngx_str_t                 overlap;        /* the same */
    ngx_str_t                 prefix_cache;   /* the same */
    ngx_str_t                 tool_parser;    /* the same */
    ngx_str_t                 reasoning_parser;    /* the same */
    ngx_str_t                 chat_template;  /* as path; empty: the model's */
    time_t                    template_time;  /* when it was changed */
    off_t                     template_size;
    ngx_array_t               aliases;        /* ngx_str_t */

    /* 0: the engine's default */
    off_t                     threads;
    off_t                     ranks;
    off_t                     tensor_parallel;
    off_t                     redundant_experts;
    off_t                     peer_timeout;   /* ms */
    off_t                     context;
    off_t                     kv_cache;       /* bytes */
    off_t                     batch_tokens;
    off_t                     batch_delay;    /* ms */
    off_t                     step_time;      /* ms */

    /* never 0: the module goes by them, too */
    off_t                     batch_sequences;
    off_t                     queue;
    off_t                     queue_timeout;  /* ms */

    ngx_http_moe_place_t      place;

    ngx_http_moe_engine_t    *engine;         /* since init_module */
    ngx_http_moe_channel_t   *channel;        /* since init_process */
    ngx_http_moe_traffic_t   *traffic;        /* since the zone is there */
};


/* How many completions the model's engine runs or lets wait at a time. */

ngx_uint_t ngx_http_moe_model_most(ngx_http_moe_model_t *model);

char *ngx_http_moe_model_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* Appends to `text` what decides whether a running engine still fits, and
 * what it is told at its start: see ngx_http_moe_engine_settings. */

struct ngx_http_moe_text_s;
void ngx_http_moe_model_settings(struct ngx_http_moe_text_s *text,
    ngx_http_moe_model_t *model);


#endif /* _NGX_HTTP_MOE_MODEL_H_INCLUDED_ */
