
/*
 * Limits in tokens of a request.
 *
 * It has one account in each zone of its location.  What it has used
 * is on these accounts at any time, and exactly once: first an estimate of its
 * prompts, from the engine's ADMITTED on their true tokens, then what is
 * generated.
 */


#ifndef _NGX_HTTP_MOE_LIMIT_H_INCLUDED_
#define _NGX_HTTP_MOE_LIMIT_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/request.h"


/* One moe_limit_tokens of a location. */

typedef struct {
    ngx_shm_zone_t             *zone;
    int64_t                     burst;      /* tokens */
    ngx_http_moe_place_t        place;
} ngx_http_moe_limit_t;


/* moe_limit_tokens zone=NAME [burst=N] */

char *ngx_http_moe_limit_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* When all zones are known, which may be defined below the locations that use
 * them: NGX_ERROR, logged, for a limit without a zone. */

ngx_int_t ngx_http_moe_limits_check(ngx_conf_t *cf, ngx_array_t *limits);

/* In the order of a request's life.  NGX_DECLINED: refused, see ctx->problem;
 * the answer's headers are set.  NGX_ERROR: no memory of the request's. */

/* The body is there: reserves a token for each four bytes, at most a burst. */
ngx_int_t ngx_http_moe_limit_arrived(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx, size_t size);

/* The true tokens of all prompts are known. */
ngx_int_t ngx_http_moe_limit_admitted(ngx_http_moe_ctx_t *ctx);

/* The first token is there: refused when others have overdrawn meanwhile. */
ngx_int_t ngx_http_moe_limit_started(ngx_http_moe_ctx_t *ctx);

/* Charges what was generated since the last time, overdrawing if need be. */
void ngx_http_moe_limit_generated(ngx_http_moe_ctx_t *ctx);

/* The request is over.  What was refused, or failed before it was admitted or
 * before its first token, costs nothing. */
void ngx_http_moe_limit_ended(ngx_http_moe_ctx_t *ctx);

/* Adds OpenAI's x-ratelimit-* headers, where there is a limit. */
ngx_int_t ngx_http_moe_limit_headers(ngx_http_moe_ctx_t *ctx);


#endif /* _NGX_HTTP_MOE_LIMIT_H_INCLUDED_ */
