
/*
 * API keys: who a client is, what it may share with others, and where it
 * stands in the queue.
 */


#ifndef _NGX_HTTP_MOE_KEYS_H_INCLUDED_
#define _NGX_HTTP_MOE_KEYS_H_INCLUDED_


#include "ngx_http_moe_module.h"


struct ngx_http_moe_key_s {
    u_char                      digest[32];  /* keyed, see keys.c */
    ngx_str_t                   id;
    ngx_uint_t                  line;        /* in its file */
};


/* moe_api_keys FILE or off: reads the file, into ngx_http_moe_loc_conf_t. */

char *ngx_http_moe_keys_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* postconfiguration: the check of keys, in the access phase. */

ngx_int_t ngx_http_moe_keys_init(ngx_conf_t *cf);

/* The key that the request presents, where its location knows it; or NULL.
 * Works in every phase, also before keys are checked. */

ngx_http_moe_key_t *ngx_http_moe_key(ngx_http_request_t *r);

/*
 * Fills tenant and salt of the context's job, and its key.  The salt is
 *     ""             no key, no moe_cache_salt
 *     key:ID         of a key
 *     key:ID:VALUE   with a value of moe_cache_salt
 *     any:VALUE      without a key
 * or sha256:HEX of that when it is longer than MOE_SALT_LIMIT: whatever VALUE
 * holds, it is never the salt of another key.  NGX_ERROR: no memory.
 */

ngx_int_t ngx_http_moe_key_apply(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx);


#endif /* _NGX_HTTP_MOE_KEYS_H_INCLUDED_ */
