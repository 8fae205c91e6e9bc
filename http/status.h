
/* moe_status: the engines' state as JSON. */


#ifndef _NGX_HTTP_MOE_STATUS_H_INCLUDED_
#define _NGX_HTTP_MOE_STATUS_H_INCLUDED_


#include "ngx_http_moe_module.h"


/* Content handler; "queue", "batch" and "cache" are there when the engine
 * answers. */

ngx_int_t ngx_http_moe_status_handler(ngx_http_request_t *r);


#endif /* _NGX_HTTP_MOE_STATUS_H_INCLUDED_ */
