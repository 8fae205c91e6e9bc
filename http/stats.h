
/* What the engines say of themselves, asked for all at once. */


#ifndef _NGX_HTTP_MOE_STATS_H_INCLUDED_
#define _NGX_HTTP_MOE_STATS_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/json_text.h"


typedef struct ngx_http_moe_stats_s  ngx_http_moe_stats_t;


/* One engine.  Its experts' counts live as long as the request. */

typedef struct {
    ngx_http_moe_call_t       call;
    ngx_http_moe_stats_t     *all;
    ngx_http_moe_model_t     *model;
    moe_stats_t               stats;
    moe_expert_load_t         experts;
    unsigned                  waiting:1;
    unsigned                  known:1;      /* it has answered */
} ngx_http_moe_source_t;


typedef void (*ngx_http_moe_stats_pt)(ngx_http_moe_stats_t *all,
    ngx_http_moe_text_t *text);


struct ngx_http_moe_stats_s {
    ngx_http_request_t       *request;
    ngx_http_moe_source_t    *sources;      /* one per model */
    ngx_uint_t                n;
    ngx_http_moe_stats_pt     write;
    const char               *type;
    ngx_event_t               event;        /* posted by the last answer, or
                                             * the timer */
};


/* A content handler: asks every engine, and replies with what `write` makes of
 * it when all have answered, or after a second with what there is.  `wanted`:
 * MOE_STATS_*; `type`: the reply's. */

ngx_int_t ngx_http_moe_stats_reply(ngx_http_request_t *r, uint32_t wanted,
    const char *type, ngx_http_moe_stats_pt write);


#endif /* _NGX_HTTP_MOE_STATS_H_INCLUDED_ */
