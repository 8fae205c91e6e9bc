
/* moe_metrics: Prometheus' text format. */


#ifndef _NGX_HTTP_MOE_METRICS_H_INCLUDED_
#define _NGX_HTTP_MOE_METRICS_H_INCLUDED_


#include "ngx_http_moe_module.h"


/* Content handlers; the second one adds the load of every expert. */

ngx_int_t ngx_http_moe_metrics_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_moe_metrics_experts_handler(ngx_http_request_t *r);


#endif /* _NGX_HTTP_MOE_METRICS_H_INCLUDED_ */
