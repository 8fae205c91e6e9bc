
/* /health of a location with moe_pass. */


#ifndef _NGX_HTTP_MOE_HEALTH_H_INCLUDED_
#define _NGX_HTTP_MOE_HEALTH_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/request.h"


/* 200 only while the engine of every model of the location serves requests
 * and sends its heartbeat; else 503 with the reason. */

ngx_int_t ngx_http_moe_health_handler(ngx_http_request_t *r, ngx_str_t *rest);

/* The problem of a request that came while the engine was not ready. */

void ngx_http_moe_health_problem(ngx_http_moe_problem_t *problem,
    ngx_http_moe_model_t *model);


#endif /* _NGX_HTTP_MOE_HEALTH_H_INCLUDED_ */
