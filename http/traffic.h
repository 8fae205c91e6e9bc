
/*
 * What only the workers know: how requests were answered, also those that an
 * engine never saw.  In memory that all workers share and a reload keeps.
 */


#ifndef _NGX_HTTP_MOE_TRAFFIC_H_INCLUDED_
#define _NGX_HTTP_MOE_TRAFFIC_H_INCLUDED_


#include "ngx_http_moe_module.h"


#define NGX_HTTP_MOE_CODES  14


struct ngx_http_moe_traffic_s {
    ngx_http_moe_traffic_t   *next;
    ngx_atomic_t              answers[NGX_HTTP_MOE_CODES];
    ngx_atomic_t              broken;       /* streams: header sent, failed */
    size_t                    len;
    u_char                    model[1];     /* len bytes; 0: of no model */
};


/* The statuses that are counted by themselves; the last one, 0, is all the
 * others. */

extern const ngx_uint_t  ngx_http_moe_codes[NGX_HTTP_MOE_CODES];


/* postconfiguration, with models: adds the shared memory, from which every
 * model gets its `traffic`, and what counts. */

ngx_int_t ngx_http_moe_traffic_init(ngx_conf_t *cf,
    ngx_http_moe_main_conf_t *mcf);


#endif /* _NGX_HTTP_MOE_TRAFFIC_H_INCLUDED_ */
