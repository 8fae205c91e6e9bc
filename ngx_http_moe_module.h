
/*
 * Declarations shared by the module's files: configuration and the state of
 * one HTTP request.
 */


#ifndef _NGX_HTTP_MOE_MODULE_H_INCLUDED_
#define _NGX_HTTP_MOE_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "engine/channel/frame.h"
#include "engine/channel/message.h"


#define NGX_HTTP_MOE_VERSION          "0.1.0"

#ifndef NGX_HTTP_MOE_ENGINE_PATH
#define NGX_HTTP_MOE_ENGINE_PATH      "sbin/moe-engine"
#endif

#define NGX_HTTP_MOE_CHOICES_LIMIT    128    /* of all prompts of a request */
#define NGX_HTTP_MOE_ID_LENGTH        128    /* of a client's request_id */
#define NGX_HTTP_MOE_RETRY_AFTER      2      /* seconds */


typedef struct ngx_http_moe_api_s      ngx_http_moe_api_t;
typedef struct ngx_http_moe_route_s    ngx_http_moe_route_t;
typedef struct ngx_http_moe_engine_s   ngx_http_moe_engine_t;
typedef struct ngx_http_moe_channel_s  ngx_http_moe_channel_t;
typedef struct ngx_http_moe_model_s    ngx_http_moe_model_t;
typedef struct ngx_http_moe_ctx_s      ngx_http_moe_ctx_t;
typedef struct ngx_http_moe_key_s      ngx_http_moe_key_t;
typedef struct ngx_http_moe_keys_s     ngx_http_moe_keys_t;
typedef struct ngx_http_moe_traffic_s  ngx_http_moe_traffic_t;
typedef struct ngx_http_moe_budget_s   ngx_http_moe_budget_t;


/* Where a configuration object was written, for errors found later. */

typedef struct {
    ngx_str_t                   file;
    ngx_uint_t                  line;
} ngx_http_moe_place_t;


typedef struct {
    ngx_array_t                 models;      /* ngx_http_moe_model_t * */
    ngx_array_t                 passes;      /* ngx_http_moe_pass_t * */
    ngx_str_t                   engine_path;
    ngx_str_t                   engine_user;
    ngx_uid_t                   engine_uid;
    ngx_gid_t                   engine_gid;
    ngx_http_moe_traffic_t     *traffic;     /* of no model, then of all */
} ngx_http_moe_main_conf_t;


/* Which models a location serves: one, all, or by a variable. */

typedef struct {
    ngx_str_t                   name;
    ngx_http_moe_model_t       *model;       /* NULL: any or variable */
    ngx_http_complex_value_t   *variable;
    ngx_http_moe_place_t        place;
} ngx_http_moe_pass_t;


typedef struct {
    ngx_http_moe_pass_t        *pass;
    ngx_uint_t                  api;         /* index of a dialect or auto */
    ngx_int_t                   max_tokens;  /* 0: no limit of ours */
    ngx_msec_t                  timeout_first;   /* 0: none */
    ngx_msec_t                  timeout_total;
    ngx_msec_t                  ping;
    ngx_int_t                   resume;      /* times; 0: never */
    ngx_int_t                   priority;
    ngx_http_moe_keys_t        *keys;        /* NULL: none are asked for */
    ngx_http_complex_value_t   *cache_salt;  /* NULL: none */
    ngx_array_t                 limits;      /* ngx_http_moe_limit_t */
} ngx_http_moe_loc_conf_t;


/* Of moe_pass: the body names the model. */

#define ngx_http_moe_pass_any(name)                                           \
    ((name)->len == 3 && ngx_strncmp((name)->data, "any", 3) == 0)


extern ngx_module_t  ngx_http_moe_module;


/* The model that `name` (or an alias of it) stands for, or NULL. */

ngx_http_moe_model_t *ngx_http_moe_find_model(ngx_http_moe_main_conf_t *mcf,
    ngx_str_t *name);


#endif /* _NGX_HTTP_MOE_MODULE_H_INCLUDED_ */
