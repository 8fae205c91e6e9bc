
/*
 * What nginx itself refuses in a location with moe_pass, in the dialect's
 * words.
 */


#ifndef _NGX_HTTP_MOE_REFUSAL_H_INCLUDED_
#define _NGX_HTTP_MOE_REFUSAL_H_INCLUDED_


#include "ngx_http_moe_module.h"


/* postconfiguration: installs a header filter. */

void ngx_http_moe_refusal_init(void);


#endif /* _NGX_HTTP_MOE_REFUSAL_H_INCLUDED_ */
