
/* $moe_... variables: what a request was and became, for logs and headers. */


#ifndef _NGX_HTTP_MOE_VARIABLES_H_INCLUDED_
#define _NGX_HTTP_MOE_VARIABLES_H_INCLUDED_


#include "ngx_http_moe_module.h"


ngx_int_t ngx_http_moe_add_variables(ngx_conf_t *cf);


#endif /* _NGX_HTTP_MOE_VARIABLES_H_INCLUDED_ */
