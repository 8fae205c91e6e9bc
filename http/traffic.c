
/*
 * A list of one entry per model name that was ever configured, headed by the
 * entry for requests of no model (a name that nobody has, a location with
 * "any" that refused access).  The master alone adds entries, at the end and
 * before the workers of that configuration exist; they only count.
 */


#include "ngx_http_moe_module.h"
#include "http/model.h"
#include "http/request.h"
#include "http/traffic.h"


#define NGX_HTTP_MOE_TRAFFIC_PAGES  8      /* least of a zone */


static ngx_int_t ngx_http_moe_traffic_zone(ngx_shm_zone_t *zone, void *data);
static ngx_http_moe_traffic_t *ngx_http_moe_traffic_entry(
    ngx_slab_pool_t *pool, ngx_http_moe_traffic_t **list, ngx_str_t *name);
static ngx_int_t ngx_http_moe_traffic_count(ngx_http_request_t *r);


const ngx_uint_t  ngx_http_moe_codes[NGX_HTTP_MOE_CODES] = {
    200, 400, 401, 403, 404, 405, 413, 429, 499, 500, 502, 503, 504, 0
};


ngx_int_t
ngx_http_moe_traffic_init(ngx_conf_t *cf, ngx_http_moe_main_conf_t *mcf)
{
    size_t                      size;
    ngx_str_t                   name = ngx_string("ngx_http_moe");
    ngx_shm_zone_t             *zone;
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    size = (NGX_HTTP_MOE_TRAFFIC_PAGES + mcf->models.nelts / 8) * ngx_pagesize;

    zone = ngx_shared_memory_add(cf, &name, size, &ngx_http_moe_module);
    if (zone == NULL) {
        return NGX_ERROR;
    }

    zone->init = ngx_http_moe_traffic_zone;
    zone->data = mcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_moe_traffic_count;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_traffic_zone(ngx_shm_zone_t *zone, void *data)
{
    ngx_http_moe_main_conf_t  *former = data;

    ngx_str_t                  none;
    ngx_uint_t                 i;
    ngx_slab_pool_t           *pool;
    ngx_http_moe_model_t     **models;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = zone->data;
    models = mcf->models.elts;
    pool = (ngx_slab_pool_t *) zone->shm.addr;

    if (former) {
        mcf->traffic = former->traffic;
    }

    ngx_str_set(&none, "");

    if (ngx_http_moe_traffic_entry(pool, &mcf->traffic, &none) == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < mcf->models.nelts; i++) {
        models[i]->traffic = ngx_http_moe_traffic_entry(pool, &mcf->traffic,
                                                        &models[i]->name);
        if (models[i]->traffic == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* Finds or adds. */

static ngx_http_moe_traffic_t *
ngx_http_moe_traffic_entry(ngx_slab_pool_t *pool,
    ngx_http_moe_traffic_t **list, ngx_str_t *name)
{
    ngx_http_moe_traffic_t  *entry;

    for ( /* void */ ; *list; list = &(*list)->next) {

        if ((*list)->len == name->len
            && ngx_memcmp((*list)->model, name->data, name->len) == 0)
        {
            return *list;
        }
    }

    entry = ngx_slab_calloc(pool, sizeof(ngx_http_moe_traffic_t) + name->len);
    if (entry == NULL) {
        return NULL;
    }

    entry->len = name->len;
    ngx_memcpy(entry->model, name->data, name->len);
    *list = entry;

    return entry;
}


/* GETs are pages and probes, not work. */

static ngx_int_t
ngx_http_moe_traffic_count(ngx_http_request_t *r)
{
    ngx_uint_t                 i, status;
    ngx_http_moe_ctx_t        *ctx;
    ngx_http_moe_model_t      *model;
    ngx_http_moe_traffic_t    *traffic;
    ngx_http_moe_loc_conf_t   *mlcf;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_moe_module);
    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);
    ctx = ngx_http_moe_get_ctx(r);

    if (r->method != NGX_HTTP_POST || (ctx == NULL && mlcf->pass == NULL)) {
        return NGX_OK;
    }

    model = ctx ? ctx->model : NULL;

    if (model == NULL && mlcf->pass) {
        model = mlcf->pass->model;
    }

    traffic = model ? model->traffic : mcf->traffic;
    status = r->err_status ? r->err_status : r->headers_out.status;

    for (i = 0; ngx_http_moe_codes[i]; i++) {
        if (ngx_http_moe_codes[i] == status) {
            break;
        }
    }

    (void) ngx_atomic_fetch_add(&traffic->answers[i], 1);

    if (ctx && ctx->failed && ctx->header_sent) {
        (void) ngx_atomic_fetch_add(&traffic->broken, 1);
    }

    return NGX_OK;
}
