
/*
 * Dialects.  Each is a table of routes and a few functions that parse a body
 * and write a reply; request.c and stream.c know none by name.
 */


#ifndef _NGX_HTTP_MOE_API_H_INCLUDED_
#define _NGX_HTTP_MOE_API_H_INCLUDED_


#include "ngx_http_moe_module.h"
#include "http/request.h"


/* Allowed methods of a route, as bits of NGX_HTTP_*. */

struct ngx_http_moe_route_s {
    ngx_str_t        path;
    ngx_uint_t       below;        /* the path goes on: /v1/models/{id} */
    ngx_uint_t       methods;

    /* a route that answers by itself; rest: what follows the path */
    ngx_int_t      (*handler)(ngx_http_request_t *r, ngx_str_t *rest);

    /* or one that generates: fills the job's results, or its problem */
    void           (*parse)(ngx_http_moe_job_t *job);
    const char      *id_prefix;
    const void      *data;         /* the dialect's own */
};


struct ngx_http_moe_api_s {
    ngx_str_t                      name;
    const ngx_http_moe_route_t    *routes;

    /* what came for a choice: into ctx->out for streams, else into the
     * choice */
    void  (*started)(ngx_http_moe_choice_t *choice, moe_started_t *started);
    void  (*tokens)(ngx_http_moe_choice_t *choice, moe_tokens_t *tokens);
    void  (*done)(ngx_http_moe_choice_t *choice);

    /* all choices are done: the end of the stream or the whole reply, into
     * ctx->out */
    void  (*end)(ngx_http_moe_ctx_t *ctx);

    /* a failure: as the body of a reply, and inside a stream */
    void  (*error)(ngx_http_moe_text_t *text,
                   const ngx_http_moe_problem_t *problem);
    void  (*error_event)(ngx_http_moe_text_t *text,
                         const ngx_http_moe_problem_t *problem);
};


#define NGX_HTTP_MOE_API_AUTO  0


/* moe_api's values: NGX_HTTP_MOE_API_AUTO, then the dialects' indexes + 1. */

char *ngx_http_moe_api_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* The dialect and route of the request's URI.  *route is NULL for a path that
 * no dialect of the location knows; the first one then words the error. */

const ngx_http_moe_api_t *ngx_http_moe_api_route(ngx_http_request_t *r,
    const ngx_http_moe_route_t **route, ngx_str_t *rest);


#endif /* _NGX_HTTP_MOE_API_H_INCLUDED_ */
