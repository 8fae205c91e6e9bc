
/*
 * From the engine's events to the client: the channel's handler notes what
 * came, and an event posted by it writes it out.
 */


#ifndef _NGX_HTTP_MOE_STREAM_H_INCLUDED_
#define _NGX_HTTP_MOE_STREAM_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/request.h"


/* Handler of the choices' calls. */

void ngx_http_moe_stream_frame(ngx_http_moe_call_t *call,
    moe_frame_header_t *header, u_char *payload);

/* Handler of ctx->work: sends what there is, and ends the request when it is
 * done or has failed. */

void ngx_http_moe_stream_work(ngx_event_t *ev);

/* write_event_handler of the request. */

void ngx_http_moe_stream_writer(ngx_http_request_t *r);


#endif /* _NGX_HTTP_MOE_STREAM_H_INCLUDED_ */
