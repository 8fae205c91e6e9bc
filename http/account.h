
/*
 * Accounts of tokens in memory that the workers share: the zones of
 * moe_limit_tokens_zone.
 */


#ifndef _NGX_HTTP_MOE_ACCOUNT_H_INCLUDED_
#define _NGX_HTTP_MOE_ACCOUNT_H_INCLUDED_


#include "ngx_http_moe_module.h"


#define NGX_HTTP_MOE_TOKENS_LIMIT  1000000000   /* of a rate or a burst */


#define ngx_http_moe_ceil(value, unit)  (((value) + (unit) - 1) / (unit))


typedef struct ngx_http_moe_accounts_s  ngx_http_moe_accounts_t;


/* shm_zone->data of a zone; NULL while it is only named. */

typedef struct {
    ngx_http_moe_accounts_t    *accounts;
    ngx_slab_pool_t            *pool;
    ngx_http_complex_value_t    key;
    int64_t                     rate;     /* units per ms, see account.c */
    int64_t                     burst;    /* tokens: what a period brings */
    int64_t                     most;     /* tokens: the largest burst used */
} ngx_http_moe_zone_t;


/* An account as a request knows it. */

typedef struct {
    ngx_http_moe_zone_t        *zone;
    ngx_str_t                   key;
    uint32_t                    hash;
    int64_t                     burst;    /* tokens */
} ngx_http_moe_claim_t;


/* How an account stands after a charge, or because of which it was refused. */

typedef struct {
    int64_t                     limit;    /* tokens, the burst */
    int64_t                     left;     /* tokens; negative: overdrawn */
    int64_t                     wait;     /* ms until the refused one fits */
    int64_t                     reset;    /* ms until all is left */
} ngx_http_moe_level_t;


/* moe_limit_tokens_zone KEY zone=NAME:SIZE rate=Nt/s, t/m or t/h. */

char *ngx_http_moe_account_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* Fills claim with the request's account.  NGX_DECLINED: it has none, its key
 * is empty; NGX_ERROR: no memory. */

ngx_int_t ngx_http_moe_account_find(ngx_http_request_t *r,
    ngx_http_moe_zone_t *zone, int64_t burst, ngx_http_moe_claim_t *claim);

/*
 * Charges `tokens` (negative: gives back) to an account.
 *   NGX_OK     done
 *   NGX_BUSY   strict, and it would be overdrawn: nothing was charged
 *   NGX_ERROR  the zone has no memory for the account
 */
ngx_int_t ngx_http_moe_account_charge(ngx_http_moe_claim_t *claim,
    int64_t tokens, ngx_uint_t strict, ngx_http_moe_level_t *level);


#endif /* _NGX_HTTP_MOE_ACCOUNT_H_INCLUDED_ */
