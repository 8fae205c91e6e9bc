
/*
 * How an engine is, as a worker sees it by the STATE frames and by what the
 * supervisor has noted; and /health of a location with moe_pass.
 */


#ifndef _NGX_HTTP_MOE_HEALTH_H_INCLUDED_
#define _NGX_HTTP_MOE_HEALTH_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/request.h"


/* What is known of an engine.  Strings live as long as the channel. */

typedef struct {
    ngx_uint_t                 ready;      /* serves requests, beats */
    const char                *name;       /* "ready", "loading", ... */
    ngx_str_t                  message;    /* why not, in words */
    moe_state_t                state;      /* the last one; without message */
    ngx_msec_t                 age;        /* of the last one */
    ngx_uint_t                 known;      /* there was one */
} ngx_http_moe_health_t;


/* ch: NULL when there is no engine. */

void ngx_http_moe_health(ngx_http_moe_channel_t *ch,
    ngx_http_moe_health_t *health);

/* 200 only while the engine of every model of the location serves requests
 * and sends its heartbeat; else 503 with the reason. */

ngx_int_t ngx_http_moe_health_handler(ngx_http_request_t *r, ngx_str_t *rest);

/* The problem of a request that came while the engine was not ready. */

void ngx_http_moe_health_problem(ngx_http_moe_problem_t *problem,
    ngx_http_moe_model_t *model);


#endif /* _NGX_HTTP_MOE_HEALTH_H_INCLUDED_ */
