
/*
 * A route is looked for below the location's prefix first, so that
 * "location /llm/" serves /llm/v1/models, then as the whole path, so that
 * "location /v1/" serves /v1/models.
 */


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/openai.h"


static const ngx_http_moe_route_t *ngx_http_moe_api_find(
    const ngx_http_moe_api_t *api, ngx_str_t *path, ngx_str_t *rest);


static const ngx_http_moe_api_t  *ngx_http_moe_apis[] = {
    &ngx_http_moe_openai_api,
    NULL
};


char *
ngx_http_moe_api_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_loc_conf_t  *mlcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (mlcf->api != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "auto") == 0) {
        mlcf->api = NGX_HTTP_MOE_API_AUTO;
        return NGX_CONF_OK;
    }

    for (i = 0; ngx_http_moe_apis[i]; i++) {
        if (ngx_strcmp(value[1].data, ngx_http_moe_apis[i]->name.data) == 0) {
            mlcf->api = i + 1;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "unknown dialect \"%V\"",
                       &value[1]);

    return NGX_CONF_ERROR;
}


const ngx_http_moe_api_t *
ngx_http_moe_api_route(ngx_http_request_t *r,
    const ngx_http_moe_route_t **route, ngx_str_t *rest)
{
    ngx_str_t                  path;
    ngx_uint_t                 i;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_moe_loc_conf_t   *mlcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    path = r->uri;

    if (clcf->name.len
#if (NGX_PCRE)
        && clcf->regex == NULL
#endif
        && path.len >= clcf->name.len
        && ngx_strncmp(path.data, clcf->name.data, clcf->name.len) == 0)
    {
        path.data += clcf->name.len;
        path.len -= clcf->name.len;

        if (clcf->name.data[clcf->name.len - 1] == '/') {
            path.data--;
            path.len++;
        }
    }

    for (i = 0; ngx_http_moe_apis[i]; i++) {

        if (mlcf->api != NGX_HTTP_MOE_API_AUTO && mlcf->api != i + 1) {
            continue;
        }

        *route = ngx_http_moe_api_find(ngx_http_moe_apis[i], &path, rest);

        if (*route == NULL) {
            *route = ngx_http_moe_api_find(ngx_http_moe_apis[i], &r->uri,
                                           rest);
        }

        if (*route) {
            return ngx_http_moe_apis[i];
        }
    }

    *route = NULL;

    return ngx_http_moe_apis[mlcf->api ? mlcf->api - 1 : 0];
}


static const ngx_http_moe_route_t *
ngx_http_moe_api_find(const ngx_http_moe_api_t *api, ngx_str_t *path,
    ngx_str_t *rest)
{
    const ngx_http_moe_route_t  *route;

    for (route = api->routes; route->path.len; route++) {

        if (path->len < route->path.len
            || ngx_strncmp(path->data, route->path.data, route->path.len) != 0
            || (!route->below && path->len != route->path.len)
            || (route->below && path->len == route->path.len))
        {
            continue;
        }

        rest->data = path->data + route->path.len;
        rest->len = path->len - route->path.len;

        return route;
    }

    return NULL;
}
