
/*
 * A failure is answered in the client's dialect, since SDKs read the body;
 * error_page, where the administrator set one, comes first.
 */


#include "ngx_http_moe_module.h"
#include "http/reply.h"

#include <stdarg.h>
#include <stdio.h>


static ngx_uint_t ngx_http_moe_has_error_page(ngx_http_request_t *r,
    ngx_uint_t status);


ngx_int_t
ngx_http_moe_get_only(ngx_http_request_t *r)
{
    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    return ngx_http_discard_request_body(r);
}


ngx_int_t
ngx_http_moe_reply(ngx_http_request_t *r, ngx_uint_t status, const char *type,
    ngx_http_moe_text_t *text)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    b = ngx_http_moe_reply_body(r, type, text);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = status;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


ngx_buf_t *
ngx_http_moe_reply_body(ngx_http_request_t *r, const char *type,
    ngx_http_moe_text_t *text)
{
    ngx_buf_t  *b;

    b = text->failed ? NULL
                     : ngx_create_temp_buf(r->pool, text->buffer.size + 1);

    if (b == NULL) {
        ngx_http_moe_text_free(text);
        return NULL;
    }

    b->last = ngx_cpymem(b->last, text->buffer.data, text->buffer.size);
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    ngx_http_moe_text_free(text);

    r->headers_out.content_length_n = b->last - b->pos;
    r->headers_out.content_type.data = (u_char *) type;
    r->headers_out.content_type.len = ngx_strlen(type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    return b;
}


ngx_int_t
ngx_http_moe_reply_problem(ngx_http_request_t *r,
    const ngx_http_moe_api_t *api, const ngx_http_moe_problem_t *problem)
{
    ngx_uint_t           level;
    ngx_http_moe_text_t  text;

    level = (problem->status < 500) ? NGX_LOG_INFO : NGX_LOG_ERR;

    ngx_log_error(level, r->connection->log, 0, "moe: %s", problem->message);

    if (ngx_http_moe_add_retry_after(r, problem->status, problem->retry_after)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_moe_has_error_page(r, problem->status)) {
        return problem->status;
    }

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));
    api->error(&text, problem);

    return ngx_http_moe_reply(r, problem->status, "application/json", &text);
}


static ngx_uint_t
ngx_http_moe_has_error_page(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (clcf->error_pages == NULL || r->uri_changes == 0
        || (r->error_page && !clcf->recursive_error_pages))
    {
        return 0;
    }

    page = clcf->error_pages->elts;

    for (i = 0; i < clcf->error_pages->nelts; i++) {
        if (page[i].status == (ngx_int_t) status) {
            return 1;
        }
    }

    return 0;
}


void
ngx_http_moe_problem(ngx_http_moe_problem_t *problem, ngx_uint_t status,
    const char *type, const char *code, const char *field, const char *format,
    ...)
{
    va_list  args;

    problem->status = status;
    problem->type = type;
    problem->code = code;
    problem->retry_after = NGX_HTTP_MOE_RETRY_AFTER;

    (void) snprintf(problem->field, sizeof(problem->field), "%s",
                    field ? field : "");

    va_start(args, format);
    (void) vsnprintf(problem->message, sizeof(problem->message), format, args);
    va_end(args);
}


ngx_int_t
ngx_http_moe_add_header(ngx_http_request_t *r, const char *name,
    const char *value)
{
    size_t            size;
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(h, sizeof(ngx_table_elt_t));

    size = ngx_strlen(value);

    h->value.data = ngx_pnalloc(r->pool, size);
    if (h->value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(h->value.data, value, size);
    h->value.len = size;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->hash = 1;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_add_retry_after(ngx_http_request_t *r, ngx_uint_t status,
    int64_t seconds)
{
    char  value[NGX_INT64_LEN + 1];

    if (status != NGX_HTTP_TOO_MANY_REQUESTS
        && status != NGX_HTTP_SERVICE_UNAVAILABLE)
    {
        return NGX_OK;
    }

    (void) snprintf(value, sizeof(value), "%lld", (long long) seconds);

    return ngx_http_moe_add_header(r, "Retry-After", value);
}
