
/* From the bytes of a body to a job's results. */


#ifndef _NGX_HTTP_MOE_JOB_H_INCLUDED_
#define _NGX_HTTP_MOE_JOB_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/request.h"


/* Parses the body and goes on with ngx_http_moe_parsed: at once, or later when
 * a thread has done it. */

void ngx_http_moe_job_start(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx,
    ngx_chain_t *bufs);

void ngx_http_moe_job_free(ngx_http_moe_job_t *job);


#endif /* _NGX_HTTP_MOE_JOB_H_INCLUDED_ */
