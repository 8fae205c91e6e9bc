
/*
 * Who is refused.  A prompt must fit into what is left: by an estimate when
 * the request arrives, by the engine's true count with ADMITTED, which comes
 * before the request costs anything and before the client hears of it.  How
 * long the answer will be nobody knows then.  To reserve max_tokens would
 * refuse requests for tokens that most of them never use; to cut an answer
 * would charge for what is then worthless, and for the same once more when
 * it is asked again.  So an answer that has begun is finished: what it
 * generates is charged as it comes, and may overdraw the account.  The next
 * prompts wait until that is paid off, which is why the rate holds.  Requests
 * that were admitted and wait in the engine's queue are looked at once more
 * at their first token, and refused if the account is overdrawn by then:
 * so a debt is what the running answers of an account still generate, each at
 * most its max_tokens, however many wait.
 *
 * Exactly once.  A request notes what it has on its accounts, and each event
 * brings that to what it has used: prompts and completions as the choices
 * count them.  An engine that takes up the call of a dead one changes no
 * count; the end of the request settles what is left.  A worker that is killed
 * leaves its charges on the accounts, where time pays them off.
 */


#include "ngx_http_moe_module.h"
#include "http/account.h"
#include "http/limit.h"
#include "http/reply.h"


struct ngx_http_moe_budget_s {
    ngx_http_moe_claim_t       *claims;
    ngx_uint_t                  n;
    int64_t                     reserved; /* tokens, the estimate */
    int64_t                     charged;  /* tokens, on each account */
    ngx_uint_t                  refused;
    ngx_http_moe_level_t        level;    /* of the one with the least left */
};


static ngx_http_moe_budget_t *ngx_http_moe_limit_budget(ngx_http_request_t *r,
    ngx_array_t *limits, size_t size);
static int64_t ngx_http_moe_limit_used(ngx_http_moe_ctx_t *ctx);
static ngx_int_t ngx_http_moe_limit_settle(ngx_http_moe_ctx_t *ctx,
    int64_t tokens, ngx_uint_t strict);
static ngx_int_t ngx_http_moe_limit_refuse(ngx_http_moe_ctx_t *ctx,
    int64_t tokens, ngx_int_t rc);
static ngx_int_t ngx_http_moe_limit_header(ngx_http_request_t *r,
    const char *name, int64_t value);
static ngx_int_t ngx_http_moe_limit_reset_header(ngx_http_request_t *r,
    int64_t ms);


ngx_int_t
ngx_http_moe_limit_arrived(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx,
    size_t size)
{
    ngx_int_t                 rc;
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    if (mlcf->limits.nelts == 0) {
        return NGX_OK;
    }

    ctx->budget = ngx_http_moe_limit_budget(r, &mlcf->limits, size);
    if (ctx->budget == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_moe_limit_settle(ctx, ctx->budget->reserved, 1);

    return rc == NGX_OK ? NGX_OK
                        : ngx_http_moe_limit_refuse(ctx,
                                                    ctx->budget->reserved, rc);
}


/* No estimate is larger than a burst: it alone refuses nothing for good. */

static ngx_http_moe_budget_t *
ngx_http_moe_limit_budget(ngx_http_request_t *r, ngx_array_t *limits,
    size_t size)
{
    ngx_int_t               rc;
    ngx_uint_t              i;
    ngx_http_moe_limit_t   *limit;
    ngx_http_moe_budget_t  *budget;

    budget = ngx_pcalloc(r->pool, sizeof(ngx_http_moe_budget_t));
    if (budget == NULL) {
        return NULL;
    }

    budget->claims = ngx_palloc(r->pool,
                                limits->nelts * sizeof(ngx_http_moe_claim_t));
    if (budget->claims == NULL) {
        return NULL;
    }

    budget->reserved = ngx_http_moe_ceil((int64_t) size, 4);
    limit = limits->elts;

    for (i = 0; i < limits->nelts; i++) {
        rc = ngx_http_moe_account_find(r, limit[i].zone->data, limit[i].burst,
                                       &budget->claims[budget->n]);

        if (rc == NGX_ERROR) {
            return NULL;
        }

        if (rc == NGX_OK) {
            budget->reserved = ngx_min(budget->reserved, limit[i].burst);
            budget->n++;
        }
    }

    return budget;
}


ngx_int_t
ngx_http_moe_limit_admitted(ngx_http_moe_ctx_t *ctx)
{
    int64_t    tokens;
    ngx_int_t  rc;

    tokens = ngx_http_moe_limit_used(ctx);
    rc = ngx_http_moe_limit_settle(ctx, tokens, 1);

    return rc == NGX_OK ? NGX_OK : ngx_http_moe_limit_refuse(ctx, tokens, rc);
}


ngx_int_t
ngx_http_moe_limit_started(ngx_http_moe_ctx_t *ctx)
{
    int64_t    tokens;
    ngx_int_t  rc;

    tokens = ctx->budget ? ctx->budget->charged : 0;
    rc = ngx_http_moe_limit_settle(ctx, tokens, 1);

    return rc == NGX_OK ? NGX_OK : ngx_http_moe_limit_refuse(ctx, tokens, rc);
}


void
ngx_http_moe_limit_generated(ngx_http_moe_ctx_t *ctx)
{
    int64_t  tokens;

    tokens = ngx_http_moe_limit_used(ctx);

    if (ctx->budget && tokens != ctx->budget->charged) {
        (void) ngx_http_moe_limit_settle(ctx, tokens, 0);
    }
}


void
ngx_http_moe_limit_ended(ngx_http_moe_ctx_t *ctx)
{
    ngx_uint_t              free;
    ngx_http_moe_budget_t  *budget;

    budget = ctx->budget;

    if (budget == NULL) {
        return;
    }

    free = ctx->failed
           && (budget->refused || ctx->admitted < ctx->n || ctx->first == 0);

    /* prompts that were not counted cost nothing */

    budget->reserved = 0;

    (void) ngx_http_moe_limit_settle(ctx,
                                     free ? 0 : ngx_http_moe_limit_used(ctx),
                                     0);
}


/* What the request has used; the estimate while prompts are not counted. */

static int64_t
ngx_http_moe_limit_used(ngx_http_moe_ctx_t *ctx)
{
    int64_t     prompt, completion;
    ngx_uint_t  i;

    prompt = 0;
    completion = 0;

    for (i = 0; i < ctx->n; i++) {
        prompt += ctx->choices[i].prompt_tokens;
        completion += ctx->choices[i].completion_tokens;
    }

    if (ctx->budget && ctx->admitted < ctx->n) {
        prompt = ngx_max(prompt, ctx->budget->reserved);
    }

    return prompt + completion;
}


/*
 * Brings the request's accounts to `tokens`.  strict: or to nothing new, if
 * that overdraws one of them: NGX_BUSY, and level is that of this one.
 * NGX_ERROR: a zone has no memory.
 */

static ngx_int_t
ngx_http_moe_limit_settle(ngx_http_moe_ctx_t *ctx, int64_t tokens,
    ngx_uint_t strict)
{
    int64_t                 change;
    ngx_int_t               rc;
    ngx_uint_t              i;
    ngx_http_moe_level_t    level, least;
    ngx_http_moe_budget_t  *budget;

    budget = ctx->budget;

    if (budget == NULL || budget->n == 0) {
        return NGX_OK;
    }

    change = tokens - budget->charged;

    for (i = 0; i < budget->n; i++) {

        rc = ngx_http_moe_account_charge(&budget->claims[i], change, strict,
                                         &level);

        if (rc != NGX_OK && strict) {
            budget->level = level;

            while (i--) {
                (void) ngx_http_moe_account_charge(&budget->claims[i],
                                                   -change, 0, &level);
            }

            return rc;
        }

        if (i == 0 || level.left < least.left) {
            least = level;
        }
    }

    budget->level = least;
    budget->charged = tokens;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_limit_refuse(ngx_http_moe_ctx_t *ctx, int64_t tokens,
    ngx_int_t rc)
{
    int64_t                seconds;
    ngx_http_moe_level_t  *level;

    ctx->failed = 1;
    ctx->finish = NGX_HTTP_MOE_FINISH_ERROR;

    if (rc == NGX_ERROR) {
        ngx_http_moe_problem(&ctx->problem, NGX_HTTP_SERVICE_UNAVAILABLE,
                             "service_unavailable", "service_unavailable",
                             NULL, "no memory for the limit in tokens");
        return NGX_DECLINED;
    }

    ctx->budget->refused = 1;
    level = &ctx->budget->level;

    /* what the request itself holds is given back */

    level->left = ngx_min(level->left + ctx->budget->charged, level->limit);
    seconds = ngx_max(ngx_http_moe_ceil(level->wait, 1000), 1);

    ngx_http_moe_problem(&ctx->problem, NGX_HTTP_TOO_MANY_REQUESTS,
                         "rate_limit_exceeded", "rate_limit_exceeded", NULL,
                         tokens > level->limit
                         ? "the request needs %lld tokens, the limit is %lld"
                         : "the request needs %lld tokens, of the limit of "
                           "%lld tokens %lld are left: try again in %lld s",
                         (long long) tokens, (long long) level->limit,
                         (long long) ngx_max(level->left, 0),
                         (long long) seconds);
    ctx->problem.retry_after = seconds;

    return (ctx->header_sent || ngx_http_moe_limit_headers(ctx) == NGX_OK)
           ? NGX_DECLINED : NGX_ERROR;
}


ngx_int_t
ngx_http_moe_limit_headers(ngx_http_moe_ctx_t *ctx)
{
    ngx_http_request_t    *r;
    ngx_http_moe_level_t  *level;

    if (ctx->budget == NULL || ctx->budget->n == 0) {
        return NGX_OK;
    }

    r = ctx->request;
    level = &ctx->budget->level;

    if (ngx_http_moe_limit_header(r, "x-ratelimit-limit-tokens", level->limit)
        != NGX_OK
        || ngx_http_moe_limit_header(r, "x-ratelimit-remaining-tokens",
                                     ngx_max(level->left, 0))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_moe_limit_reset_header(r, level->reset);
}


static ngx_int_t
ngx_http_moe_limit_header(ngx_http_request_t *r, const char *name,
    int64_t value)
{
    char  text[NGX_INT64_LEN + 1];

    (void) snprintf(text, sizeof(text), "%lld", (long long) value);

    return ngx_http_moe_add_header(r, name, text);
}


/* As OpenAI writes it: 1h2m3s, 6m0s, 17s, 250ms. */

static ngx_int_t
ngx_http_moe_limit_reset_header(ngx_http_request_t *r, int64_t ms)
{
    char       text[3 * NGX_INT64_LEN];
    long long  s;

    s = ngx_http_moe_ceil(ms, 1000);

    if (ms < 1000) {
        (void) snprintf(text, sizeof(text), "%lldms", (long long) ms);

    } else if (s < 60) {
        (void) snprintf(text, sizeof(text), "%llds", s);

    } else if (s < 3600) {
        (void) snprintf(text, sizeof(text), "%lldm%llds", s / 60, s % 60);

    } else {
        (void) snprintf(text, sizeof(text), "%lldh%lldm%llds", s / 3600,
                        s / 60 % 60, s % 60);
    }

    return ngx_http_moe_add_header(r, "x-ratelimit-reset-tokens", text);
}


char *
ngx_http_moe_limit_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_loc_conf_t  *mlcf = conf;

    ngx_int_t              burst;
    ngx_str_t             *value, name;
    ngx_uint_t             i;
    ngx_shm_zone_t        *zone;
    ngx_http_moe_limit_t  *limit;

    value = cf->args->elts;
    zone = NULL;
    burst = 0;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "zone=", 5) == 0 && zone == NULL) {

            name.data = value[i].data + 5;
            name.len = value[i].len - 5;

            zone = ngx_shared_memory_add(cf, &name, 0, &ngx_http_moe_module);
            if (zone == NULL) {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        if (ngx_strncmp(value[i].data, "burst=", 6) == 0 && burst == 0) {

            burst = ngx_atoi(value[i].data + 6, value[i].len - 6);

            if (burst <= 0 || burst > NGX_HTTP_MOE_TOKENS_LIMIT) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "invalid burst value \"%V\"", &value[i]);
                return NGX_CONF_ERROR;
            }

            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[i]);
        return NGX_CONF_ERROR;
    }

    if (zone == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"zone\" parameter",
                           &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (mlcf->limits.elts == NULL
        && ngx_array_init(&mlcf->limits, cf->pool, 1,
                          sizeof(ngx_http_moe_limit_t))
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    limit = mlcf->limits.elts;

    for (i = 0; i < mlcf->limits.nelts; i++) {
        if (zone == limit[i].zone) {
            return "is duplicate";
        }
    }

    limit = ngx_array_push(&mlcf->limits);
    if (limit == NULL) {
        return NGX_CONF_ERROR;
    }

    limit->zone = zone;
    limit->burst = burst;
    limit->place.file = cf->conf_file->file.name;
    limit->place.line = cf->conf_file->line;

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_moe_limits_check(ngx_conf_t *cf, ngx_array_t *limits)
{
    ngx_uint_t             i;
    ngx_http_moe_zone_t   *zone;
    ngx_http_moe_limit_t  *limit;

    limit = limits->elts;

    for (i = 0; i < limits->nelts; i++) {
        zone = limit[i].zone->data;

        if (zone == NULL) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "unknown zone \"%V\" of \"moe_limit_tokens\" "
                          "in %V:%ui", &limit[i].zone->shm.name,
                          &limit[i].place.file, limit[i].place.line);
            return NGX_ERROR;
        }

        if (limit[i].burst == 0) {
            limit[i].burst = zone->burst;
        }

        zone->most = ngx_max(zone->most, limit[i].burst);
    }

    return NGX_OK;
}
