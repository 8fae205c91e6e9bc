
/*
 * A body larger than client_max_body_size, limit_req, auth_basic and their
 * kin are answered by nginx before the request reaches this module, with a
 * page of HTML.  SDKs read the body of an error, so here it is the dialect's.
 * nginx makes its page when error_page had none: what an administrator wrote
 * stays.  With recursive_error_pages nginx does not note that there was one:
 * then pages of requests that were redirected inside are left alone.
 *
 * The header filter sends the body by itself, and header_only then keeps
 * nginx from sending its page: there is no body filter in the way of streams.
 */


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/refusal.h"
#include "http/reply.h"


typedef struct {
    ngx_uint_t    status;
    const char   *type;
    const char   *code;
    const char   *message;
} ngx_http_moe_refusal_t;


static ngx_int_t ngx_http_moe_refusal_filter(ngx_http_request_t *r);
static ngx_uint_t ngx_http_moe_refusal_is_page(ngx_http_request_t *r);
static void ngx_http_moe_refusal_problem(ngx_http_request_t *r,
    ngx_http_moe_problem_t *problem);


/* The last of 4xx and of 5xx stand for all others. */

static const ngx_http_moe_refusal_t  ngx_http_moe_refusals[] = {

    { NGX_HTTP_UNAUTHORIZED, "authentication_error", "invalid_api_key",
      "the request is not authorized" },

    { NGX_HTTP_FORBIDDEN, "permission_error", "permission_denied",
      "access is denied" },

    { NGX_HTTP_NOT_FOUND, "invalid_request_error", "not_found",
      "there is nothing at this path" },

    { NGX_HTTP_NOT_ALLOWED, "invalid_request_error", "method_not_allowed",
      "this path does not take the method" },

    { NGX_HTTP_REQUEST_ENTITY_TOO_LARGE, "invalid_request_error",
      "request_too_large", "the body is too large" },

    { NGX_HTTP_TOO_MANY_REQUESTS, "rate_limit_exceeded",
      "rate_limit_exceeded", "too many requests" },

    { NGX_HTTP_BAD_REQUEST, "invalid_request_error", NULL,
      "the request was refused" },

    { NGX_HTTP_SERVICE_UNAVAILABLE, "service_unavailable",
      "service_unavailable", "the server takes no more requests now" },

    { NGX_HTTP_INTERNAL_SERVER_ERROR, "server_error", "server_error",
      "the server failed" }
};


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


void
ngx_http_moe_refusal_init(void)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_moe_refusal_filter;
}


static ngx_int_t
ngx_http_moe_refusal_filter(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_str_t                    rest;
    ngx_buf_t                   *b;
    ngx_chain_t                  out;
    ngx_http_moe_text_t          text;
    ngx_http_moe_problem_t       problem;
    const ngx_http_moe_api_t    *api;
    const ngx_http_moe_route_t  *route;

    if (!ngx_http_moe_refusal_is_page(r)) {
        return ngx_http_next_header_filter(r);
    }

    ngx_http_moe_refusal_problem(r, &problem);

    if (ngx_http_moe_add_retry_after(r, problem.status, problem.retry_after)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    api = ngx_http_moe_api_route(r, &route, &rest);

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    api->error(&text, &problem);

    b = ngx_http_moe_reply_body(r, "application/json", &text);
    if (b == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_next_header_filter(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    rc = ngx_http_output_filter(r, &out);

    r->header_only = 1;

    return rc;
}


/* Whether nginx answers, with its own page.  moe_api_keys is for clients of
 * an API, whatever serves the location. */

static ngx_uint_t
ngx_http_moe_refusal_is_page(ngx_http_request_t *r)
{
    ngx_str_t                 *type;
    ngx_http_moe_loc_conf_t   *mlcf;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);
    type = &r->headers_out.content_type;

    return (mlcf->pass || mlcf->keys) && r == r->main && r->upstream == NULL
           && r->err_status >= NGX_HTTP_BAD_REQUEST
           && !r->error_page
           && !(r->internal && clcf->recursive_error_pages)
           && r->headers_out.content_length_n > 0
           && type->len == sizeof("text/html") - 1
           && ngx_strncmp(type->data, "text/html", type->len) == 0;
}


static void
ngx_http_moe_refusal_problem(ngx_http_request_t *r,
    ngx_http_moe_problem_t *problem)
{
    ngx_uint_t                     fallback;
    const char                    *message;
    ngx_http_moe_loc_conf_t       *mlcf;
    const ngx_http_moe_refusal_t  *refusal;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    fallback = r->err_status < NGX_HTTP_INTERNAL_SERVER_ERROR
               ? NGX_HTTP_BAD_REQUEST : NGX_HTTP_INTERNAL_SERVER_ERROR;

    for (refusal = ngx_http_moe_refusals;
         refusal->status != r->err_status && refusal->status != fallback;
         refusal++)
    {
        /* void */
    }

    message = (mlcf->keys && refusal->status == NGX_HTTP_UNAUTHORIZED)
              ? "a valid API key is required, as Authorization: Bearer KEY or "
                "x-api-key: KEY" : refusal->message;

    ngx_http_moe_problem(problem, r->err_status, refusal->type, refusal->code,
                         NULL, "%s", message);
}
