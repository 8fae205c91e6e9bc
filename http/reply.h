
/* Complete replies: a body in one piece. */


#ifndef _NGX_HTTP_MOE_REPLY_H_INCLUDED_
#define _NGX_HTTP_MOE_REPLY_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/json_text.h"


/* For pages without parameters: NGX_OK when the request is a GET or HEAD, its
 * body discarded; otherwise what it is to be answered with. */

ngx_int_t ngx_http_moe_get_only(ngx_http_request_t *r);

/* Sends text (and frees it) as the whole reply.  Returns what the request is
 * to be finalized with. */

ngx_int_t ngx_http_moe_reply(ngx_http_request_t *r, ngx_uint_t status,
    const char *type, ngx_http_moe_text_t *text);

/* Puts type and length of text (which is freed) into the headers, and returns
 * the body to send after them; NULL: no memory. */

ngx_buf_t *ngx_http_moe_reply_body(ngx_http_request_t *r, const char *type,
    ngx_http_moe_text_t *text);

/* Sends a failure in the dialect's words, or leaves it to error_page where the
 * location has one for the status. */

ngx_int_t ngx_http_moe_reply_problem(ngx_http_request_t *r,
    const ngx_http_moe_api_t *api, const ngx_http_moe_problem_t *problem);

/* Fills a problem; format gives its message. */

void ngx_http_moe_problem(ngx_http_moe_problem_t *problem, ngx_uint_t status,
    const char *type, const char *code, const char *field, const char *format,
    ...) __attribute__((format(printf, 6, 7)));

ngx_int_t ngx_http_moe_add_header(ngx_http_request_t *r, const char *name,
    const char *value);

/* Retry-After, where the status asks for another try. */

ngx_int_t ngx_http_moe_add_retry_after(ngx_http_request_t *r,
    ngx_uint_t status, int64_t seconds);


#endif /* _NGX_HTTP_MOE_REPLY_H_INCLUDED_ */
