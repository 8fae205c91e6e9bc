
/*
 * A zone holds accounts, one for each value of its key, in memory that all
 * workers share: a red-black tree by the key's hash, and a list in the order
 * of use, from whose end unused accounts are dropped, as in limit_req.
 *
 * An account is a token bucket.  It says what of the burst is used up, in
 * units of 1/3,600,000 token: then N tokens in a second, minute or hour are a
 * whole number of units in a millisecond, and nothing is ever rounded.
 *
 * What comes back.  A full bucket is an advance: what the rate brings in
 * the time that it takes to fill it.  So once a full bucket is touched, it only
 * begins to fill again after that time (`since` lies ahead).  A plain bucket
 * would give the burst, by default all that a period brings, on top of the
 * rate: "10,000 tokens a minute" would be 20,000 in the first one.  With the
 * advance, no stretch of time that begins with a full bucket gets more than
 *
 *     max(burst, rate x time)
 *
 * but for what is overdrawn at its end, and who keeps asking gets all of it.
 */


#include "ngx_http_moe_module.h"
#include "http/account.h"


#define NGX_HTTP_MOE_TOKEN  3600000   /* units */


typedef struct {
    u_char                      color;
    u_char                      dummy;
    u_short                     len;
    ngx_queue_t                 queue;
    int64_t                     used;     /* units of the burst */
    ngx_msec_t                  since;    /* it falls since then */
    u_char                      data[1];
} ngx_http_moe_account_t;


struct ngx_http_moe_accounts_s {
    ngx_rbtree_t                tree;
    ngx_rbtree_node_t           sentinel;
    ngx_queue_t                 queue;    /* the last used first */
};


static ngx_http_moe_account_t *ngx_http_moe_account_lookup(
    ngx_http_moe_claim_t *claim);
static ngx_http_moe_account_t *ngx_http_moe_account_create(
    ngx_http_moe_claim_t *claim);
static void ngx_http_moe_account_refill(ngx_http_moe_zone_t *zone,
    ngx_http_moe_account_t *account);
static void ngx_http_moe_accounts_expire(ngx_http_moe_zone_t *zone,
    ngx_uint_t n);
static void ngx_http_moe_account_insert(ngx_rbtree_node_t *temp,
    ngx_rbtree_node_t *node, ngx_rbtree_node_t *sentinel);
static ngx_int_t ngx_http_moe_zone_init(ngx_shm_zone_t *shm_zone, void *data);
static ngx_int_t ngx_http_moe_zone_rate(ngx_http_moe_zone_t *zone,
    ngx_str_t *value);
static ngx_shm_zone_t *ngx_http_moe_zone_memory(ngx_conf_t *cf,
    ngx_str_t *value);


#define ngx_http_moe_account_of(node)                                         \
    ((ngx_http_moe_account_t *) &(node)->color)

#define ngx_http_moe_account_node(account)                                    \
    ((ngx_rbtree_node_t *)                                                    \
         ((u_char *) (account) - offsetof(ngx_rbtree_node_t, color)))

ngx_int_t
ngx_http_moe_account_find(ngx_http_request_t *r, ngx_http_moe_zone_t *zone,
    int64_t burst, ngx_http_moe_claim_t *claim)
{
    if (ngx_http_complex_value(r, &zone->key, &claim->key) != NGX_OK) {
        return NGX_ERROR;
    }

    if (claim->key.len == 0) {
        return NGX_DECLINED;
    }

    if (claim->key.len > 65535) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "the value of the \"%V\" key is more than 65535 bytes",
                      &zone->key.value);
        return NGX_DECLINED;
    }

    claim->zone = zone;
    claim->hash = ngx_crc32_short(claim->key.data, claim->key.len);
    claim->burst = burst;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_account_charge(ngx_http_moe_claim_t *claim, int64_t tokens,
    ngx_uint_t strict, ngx_http_moe_level_t *level)
{
    int64_t                  used, burst, change, ahead;
    ngx_int_t                rc;
    ngx_http_moe_zone_t     *zone;
    ngx_http_moe_account_t  *account, none;

    zone = claim->zone;
    burst = claim->burst * NGX_HTTP_MOE_TOKEN;
    change = tokens * NGX_HTTP_MOE_TOKEN;
    rc = NGX_OK;

    ngx_shmtx_lock(&zone->pool->mutex);

    account = ngx_http_moe_account_lookup(claim);

    if (account == NULL && tokens > 0) {
        account = ngx_http_moe_account_create(claim);

        if (account == NULL) {
            rc = NGX_ERROR;
        }
    }

    if (account == NULL) {
        ngx_memzero(&none, sizeof(ngx_http_moe_account_t));
        none.since = ngx_current_msec;
        account = &none;
    }

    used = account->used + change;

    if (strict && used > burst) {

        if (rc == NGX_OK) {
            rc = NGX_BUSY;
        }

    } else {

        if (account->used == 0 && change > 0) {
            account->since = ngx_current_msec
                             + ngx_http_moe_ceil(burst, zone->rate);
        }

        account->used = ngx_max(used, 0);
    }

    ahead = ngx_max((ngx_msec_int_t) (account->since - ngx_current_msec), 0);

    level->limit = claim->burst;
    level->left = (burst - account->used) / NGX_HTTP_MOE_TOKEN;
    level->wait = ahead + ngx_http_moe_ceil(ngx_max(used - burst, 0),
                                            zone->rate);
    level->reset = account->used ? ahead + ngx_http_moe_ceil(account->used,
                                                             zone->rate)
                                 : 0;

    ngx_shmtx_unlock(&zone->pool->mutex);

    return rc;
}


/* The account as it is now, or NULL. */

static ngx_http_moe_account_t *
ngx_http_moe_account_lookup(ngx_http_moe_claim_t *claim)
{
    ngx_int_t                rc;
    ngx_rbtree_node_t       *node, *sentinel;
    ngx_http_moe_zone_t     *zone;
    ngx_http_moe_account_t  *account;

    zone = claim->zone;
    node = zone->accounts->tree.root;
    sentinel = zone->accounts->tree.sentinel;

    while (node != sentinel) {

        if (claim->hash != node->key) {
            node = claim->hash < node->key ? node->left : node->right;
            continue;
        }

        account = ngx_http_moe_account_of(node);

        rc = ngx_memn2cmp(claim->key.data, account->data, claim->key.len,
                          (size_t) account->len);

        if (rc == 0) {
            ngx_queue_remove(&account->queue);
            ngx_queue_insert_head(&zone->accounts->queue, &account->queue);

            ngx_http_moe_account_refill(zone, account);

            return account;
        }

        node = (rc < 0) ? node->left : node->right;
    }

    return NULL;
}


static ngx_http_moe_account_t *
ngx_http_moe_account_create(ngx_http_moe_claim_t *claim)
{
    size_t                   size;
    ngx_rbtree_node_t       *node;
    ngx_http_moe_zone_t     *zone;
    ngx_http_moe_account_t  *account;

    zone = claim->zone;
    size = offsetof(ngx_rbtree_node_t, color)
           + offsetof(ngx_http_moe_account_t, data)
           + claim->key.len;

    ngx_http_moe_accounts_expire(zone, 1);

    node = ngx_slab_alloc_locked(zone->pool, size);

    if (node == NULL) {
        ngx_http_moe_accounts_expire(zone, 0);

        node = ngx_slab_alloc_locked(zone->pool, size);
        if (node == NULL) {
            ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                          "could not allocate node%s", zone->pool->log_ctx);
            return NULL;
        }
    }

    node->key = claim->hash;

    account = ngx_http_moe_account_of(node);
    account->len = (u_short) claim->key.len;
    account->used = 0;
    account->since = ngx_current_msec;
    ngx_memcpy(account->data, claim->key.data, claim->key.len);

    ngx_rbtree_insert(&zone->accounts->tree, node);
    ngx_queue_insert_head(&zone->accounts->queue, &account->queue);

    return account;
}


/*
 * Workers' clocks differ by some ms: `since` does not go back for that.  But
 * it may be of a former configuration: what now takes an hour may have taken
 * a year.
 */

static void
ngx_http_moe_account_refill(ngx_http_moe_zone_t *zone,
    ngx_http_moe_account_t *account)
{
    int64_t         ahead;
    ngx_msec_int_t  ms;

    ms = (ngx_msec_int_t) (ngx_current_msec - account->since);

    if (ms <= 0) {
        ahead = ngx_http_moe_ceil(zone->most * NGX_HTTP_MOE_TOKEN, zone->rate);

        if (-ms > ahead) {
            account->since = ngx_current_msec + ahead;
        }

        return;
    }

    account->used = ms < ngx_http_moe_ceil(account->used, zone->rate)
                    ? account->used - ms * zone->rate : 0;
    account->since = ngx_current_msec;
}


/*
 * n == 1 drops one or two accounts of which nothing is used,
 * n == 0 the oldest by force, and then the same
 */

static void
ngx_http_moe_accounts_expire(ngx_http_moe_zone_t *zone, ngx_uint_t n)
{
    ngx_queue_t             *q;
    ngx_rbtree_node_t       *node;
    ngx_http_moe_account_t  *account;

    while (n < 3) {

        if (ngx_queue_empty(&zone->accounts->queue)) {
            return;
        }

        q = ngx_queue_last(&zone->accounts->queue);
        account = ngx_queue_data(q, ngx_http_moe_account_t, queue);

        if (n++ != 0) {
            ngx_http_moe_account_refill(zone, account);

            if (account->used) {
                return;
            }
        }

        ngx_queue_remove(q);

        node = ngx_http_moe_account_node(account);
        ngx_rbtree_delete(&zone->accounts->tree, node);
        ngx_slab_free_locked(zone->pool, node);
    }
}


static void
ngx_http_moe_account_insert(ngx_rbtree_node_t *temp, ngx_rbtree_node_t *node,
    ngx_rbtree_node_t *sentinel)
{
    ngx_int_t                 rc;
    ngx_rbtree_node_t       **p;
    ngx_http_moe_account_t   *one, *two;

    for ( ;; ) {

        if (node->key != temp->key) {
            rc = node->key < temp->key ? -1 : 1;

        } else {
            one = ngx_http_moe_account_of(node);
            two = ngx_http_moe_account_of(temp);

            rc = ngx_memn2cmp(one->data, two->data, one->len, two->len);
        }

        p = (rc < 0) ? &temp->left : &temp->right;

        if (*p == sentinel) {
            break;
        }

        temp = *p;
    }

    *p = node;
    node->parent = temp;
    node->left = sentinel;
    node->right = sentinel;
    ngx_rbt_red(node);
}


static ngx_int_t
ngx_http_moe_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_moe_zone_t *before = data;

    size_t                len;
    ngx_http_moe_zone_t  *zone;

    zone = shm_zone->data;

    if (before) {

        if (zone->key.value.len != before->key.value.len
            || ngx_strncmp(zone->key.value.data, before->key.value.data,
                           zone->key.value.len)
               != 0)
        {
            ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                          "moe_limit_tokens_zone \"%V\" uses the \"%V\" key "
                          "while previously it used the \"%V\" key",
                          &shm_zone->shm.name, &zone->key.value,
                          &before->key.value);
            return NGX_ERROR;
        }

        zone->accounts = before->accounts;
        zone->pool = before->pool;

        return NGX_OK;
    }

    zone->pool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        zone->accounts = zone->pool->data;
        return NGX_OK;
    }

    zone->accounts = ngx_slab_alloc(zone->pool,
                                    sizeof(ngx_http_moe_accounts_t));
    if (zone->accounts == NULL) {
        return NGX_ERROR;
    }

    zone->pool->data = zone->accounts;

    ngx_rbtree_init(&zone->accounts->tree, &zone->accounts->sentinel,
                    ngx_http_moe_account_insert);

    ngx_queue_init(&zone->accounts->queue);

    len = sizeof(" in moe_limit_tokens_zone \"\"") + shm_zone->shm.name.len;

    zone->pool->log_ctx = ngx_slab_alloc(zone->pool, len);
    if (zone->pool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(zone->pool->log_ctx, " in moe_limit_tokens_zone \"%V\"%Z",
                &shm_zone->shm.name);

    zone->pool->log_nomem = 0;

    return NGX_OK;
}


char *
ngx_http_moe_account_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                         *value;
    ngx_uint_t                         i;
    ngx_shm_zone_t                    *shm_zone;
    ngx_http_moe_zone_t               *zone;
    ngx_http_compile_complex_value_t   ccv;

    value = cf->args->elts;

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_http_moe_zone_t));
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = &value[1];
    ccv.complex_value = &zone->key;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    shm_zone = NULL;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "zone=", 5) == 0 && shm_zone == NULL) {

            shm_zone = ngx_http_moe_zone_memory(cf, &value[i]);
            if (shm_zone == NULL) {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        if (ngx_strncmp(value[i].data, "rate=", 5) == 0 && zone->rate == 0) {

            if (ngx_http_moe_zone_rate(zone, &value[i]) != NGX_OK) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "invalid rate \"%V\"", &value[i]);
                return NGX_CONF_ERROR;
            }

            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[i]);
        return NGX_CONF_ERROR;
    }

    if (shm_zone->data) {
        zone = shm_zone->data;

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%V \"%V\" is already bound to key \"%V\"",
                           &cmd->name, &shm_zone->shm.name, &zone->key.value);
        return NGX_CONF_ERROR;
    }

    shm_zone->init = ngx_http_moe_zone_init;
    shm_zone->data = zone;

    return NGX_CONF_OK;
}


/* rate=Nt/s, t/m or t/h */

static ngx_int_t
ngx_http_moe_zone_rate(ngx_http_moe_zone_t *zone, ngx_str_t *value)
{
    u_char     *p;
    ngx_int_t   n;

    if (value->len <= sizeof("rate=t/s") - 1) {
        return NGX_ERROR;
    }

    p = value->data + value->len - 3;

    if (ngx_strcmp(p, "t/s") == 0) {
        zone->rate = NGX_HTTP_MOE_TOKEN / 1000;

    } else if (ngx_strcmp(p, "t/m") == 0) {
        zone->rate = NGX_HTTP_MOE_TOKEN / 60000;

    } else if (ngx_strcmp(p, "t/h") == 0) {
        zone->rate = NGX_HTTP_MOE_TOKEN / 3600000;

    } else {
        return NGX_ERROR;
    }

    n = ngx_atoi(value->data + 5, value->len - 8);

    if (n <= 0 || n > NGX_HTTP_MOE_TOKENS_LIMIT) {
        return NGX_ERROR;
    }

    zone->rate *= n;
    zone->burst = n;

    return NGX_OK;
}


/* zone=NAME:SIZE */

static ngx_shm_zone_t *
ngx_http_moe_zone_memory(ngx_conf_t *cf, ngx_str_t *value)
{
    u_char     *p, *last;
    ssize_t     size;
    ngx_str_t   name, s;

    last = value->data + value->len;

    name.data = value->data + 5;
    p = ngx_strlchr(name.data, last, ':');

    if (p == NULL || p == name.data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\", it must be "
                           "zone=NAME:SIZE", value);
        return NULL;
    }

    name.len = p - name.data;

    s.data = p + 1;
    s.len = last - s.data;

    size = ngx_parse_size(&s);

    if (size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone size \"%V\"", value);
        return NULL;
    }

    if (size < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small", value);
        return NULL;
    }

    return ngx_shared_memory_add(cf, &name, size, &ngx_http_moe_module);
}
