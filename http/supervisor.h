
/*
 * The supervisor: a child of the master, one per engine, which starts
 * moe-engine, starts it again when it dies, and passes the master's commands
 * on to it.
 */


#ifndef _NGX_HTTP_MOE_SUPERVISOR_H_INCLUDED_
#define _NGX_HTTP_MOE_SUPERVISOR_H_INCLUDED_


#include "ngx_http_moe_module.h"


/* Main function of the process; data: ngx_http_moe_engine_t.  Never returns. */

void ngx_http_moe_supervisor(ngx_cycle_t *cycle, void *data);

/* The first log of a chain that is a file, or NULL. */

ngx_log_t *ngx_http_moe_file_log(ngx_log_t *log);


#endif /* _NGX_HTTP_MOE_SUPERVISOR_H_INCLUDED_ */
