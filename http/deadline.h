
/* Deadlines and pings of a request. */


#ifndef _NGX_HTTP_MOE_DEADLINE_H_INCLUDED_
#define _NGX_HTTP_MOE_DEADLINE_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/request.h"


/* Handler of ctx->timer. */

void ngx_http_moe_deadline_handler(ngx_event_t *ev);

/* Sets ctx->timer for what is due next. */

void ngx_http_moe_deadline_set(ngx_http_moe_ctx_t *ctx);


#endif /* _NGX_HTTP_MOE_DEADLINE_H_INCLUDED_ */
