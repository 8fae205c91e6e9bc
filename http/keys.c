
/*
 * A file of keys holds lines ID:SHA256, the digest of a key in hex: who reads
 * the file, or a core of nginx, can use none of them.  It is read with the
 * configuration, so a reload reads it again, and a bad one keeps what was.
 *
 * Nothing about the keys can be learnt from how long a comparison takes.  The
 * presented key is hashed to a digest, and that together with a secret drawn
 * when the file is read: SHA-256(secret, digest), of the fixed length of 64
 * bytes.  So are the digests of the file, and they are sorted.  The search is
 * a binary one and stops early where it likes: what it compares depends on the
 * secret, which no client knows, so how far it gets says nothing about how
 * much of a digest was right.
 *
 * The check is the last of the access phase: with "satisfy any" it only runs
 * when no other module has let the client in, so a key is asked for in
 * refusals only.
 */


#include "ngx_http_moe_module.h"
#include "http/keys.h"
#include "http/reply.h"
#include "http/request.h"

#include <openssl/rand.h>
#include <openssl/sha.h>


#define NGX_HTTP_MOE_KEYS_SIZE   (2 << 20)   /* of a file */
#define NGX_HTTP_MOE_KEYS_LIMIT  10000       /* in a file */


struct ngx_http_moe_keys_s {
    u_char                   secret[32];
    ngx_array_t              keys;           /* ngx_http_moe_key_t, sorted */
    ngx_str_t                file;
};


static ngx_int_t ngx_http_moe_keys_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_moe_keys_refuse(ngx_http_request_t *r);
static ngx_uint_t ngx_http_moe_key_presented(ngx_http_request_t *r,
    ngx_str_t *value);
static void ngx_http_moe_key_digest(ngx_http_moe_keys_t *keys,
    u_char digest[32]);
static ngx_int_t ngx_http_moe_key_salt(ngx_http_request_t *r,
    ngx_http_moe_key_t *key, ngx_str_t *value, moe_string_t *salt);
static ngx_int_t ngx_http_moe_keys_load(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *text);
static ngx_int_t ngx_http_moe_keys_parse(ngx_conf_t *cf,
    ngx_http_moe_keys_t *keys, ngx_str_t *text);
static const char *ngx_http_moe_keys_line(ngx_conf_t *cf,
    ngx_http_moe_keys_t *keys, u_char *p, u_char *last, ngx_uint_t line);
static ngx_int_t ngx_http_moe_keys_sort(ngx_conf_t *cf,
    ngx_http_moe_keys_t *keys);
static int ngx_libc_cdecl ngx_http_moe_key_compare_ids(const void *one,
    const void *two);
static int ngx_libc_cdecl ngx_http_moe_key_compare_digests(const void *one,
    const void *two);


/* To the front of the phase's handlers, which are called from the last. */

ngx_int_t
ngx_http_moe_keys_init(ngx_conf_t *cf)
{
    ngx_array_t                *handlers;
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    handlers = &cmcf->phases[NGX_HTTP_ACCESS_PHASE].handlers;

    if (ngx_array_push(handlers) == NULL) {
        return NGX_ERROR;
    }

    h = handlers->elts;
    ngx_memmove(h + 1, h, (handlers->nelts - 1) * sizeof(ngx_http_handler_pt));
    *h = ngx_http_moe_keys_handler;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_keys_handler(ngx_http_request_t *r)
{
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    if (mlcf->keys == NULL) {
        return NGX_DECLINED;
    }

    return ngx_http_moe_key(r) ? NGX_OK : ngx_http_moe_keys_refuse(r);
}


/* The same for every path, method and reason; refusal.c words it. */

static ngx_int_t
ngx_http_moe_keys_refuse(ngx_http_request_t *r)
{
    ngx_list_part_t  *part;

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "moe: no valid API key");

    if (ngx_http_moe_add_header(r, "WWW-Authenticate", "Bearer") != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* who makes a subrequest of this, looks for it here */

    if (r->headers_out.www_authenticate == NULL) {
        part = r->headers_out.headers.last;
        r->headers_out.www_authenticate =
                       &((ngx_table_elt_t *) part->elts)[part->nelts - 1];
    }

    return NGX_HTTP_UNAUTHORIZED;
}


ngx_http_moe_key_t *
ngx_http_moe_key(ngx_http_request_t *r)
{
    int                       order;
    u_char                    digest[32];
    ngx_str_t                 value;
    ngx_uint_t                low, high, middle;
    ngx_http_moe_key_t       *key;
    ngx_http_moe_keys_t      *keys;
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);
    keys = mlcf->keys;

    if (keys == NULL || !ngx_http_moe_key_presented(r, &value)) {
        return NULL;
    }

    (void) SHA256(value.data, value.len, digest);
    ngx_http_moe_key_digest(keys, digest);

    key = keys->keys.elts;
    low = 0;
    high = keys->keys.nelts;

    while (low < high) {
        middle = (low + high) / 2;
        order = ngx_memcmp(digest, key[middle].digest, sizeof(digest));

        if (order == 0) {
            return &key[middle];
        }

        if (order < 0) {
            high = middle;

        } else {
            low = middle + 1;
        }
    }

    return NULL;
}


static ngx_uint_t
ngx_http_moe_key_presented(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char           *p, *last;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    h = r->headers_in.authorization;

    if (h && h->value.len > sizeof("Bearer ") - 1
        && ngx_strncasecmp(h->value.data, (u_char *) "Bearer ",
                           sizeof("Bearer ") - 1)
           == 0)
    {
        p = h->value.data + sizeof("Bearer ") - 1;
        last = h->value.data + h->value.len;

        while (p < last && *p == ' ') {
            p++;
        }

        value->data = p;
        value->len = last - p;

        return value->len != 0;
    }

    part = &r->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            part = part->next;

            if (part == NULL) {
                return 0;
            }

            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == sizeof("x-api-key") - 1
            && ngx_strncasecmp(h[i].key.data, (u_char *) "x-api-key",
                               sizeof("x-api-key") - 1)
               == 0)
        {
            *value = h[i].value;
            return value->len != 0;
        }
    }
}


static void
ngx_http_moe_key_digest(ngx_http_moe_keys_t *keys, u_char digest[32])
{
    u_char  both[64];

    ngx_memcpy(both, keys->secret, 32);
    ngx_memcpy(both + 32, digest, 32);

    (void) SHA256(both, sizeof(both), digest);
}


ngx_int_t
ngx_http_moe_key_apply(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx)
{
    ngx_str_t                 value;
    ngx_http_moe_loc_conf_t  *mlcf;

    mlcf = ngx_http_get_module_loc_conf(r, ngx_http_moe_module);

    ngx_str_null(&value);

    if (mlcf->cache_salt
        && ngx_http_complex_value(r, mlcf->cache_salt, &value) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->key = ngx_http_moe_key(r);

    if (ctx->key) {
        ctx->job.tenant.data = (char *) ctx->key->id.data;
        ctx->job.tenant.size = ctx->key->id.len;
    }

    return ngx_http_moe_key_salt(r, ctx->key, &value, &ctx->job.salt);
}


static ngx_int_t
ngx_http_moe_key_salt(ngx_http_request_t *r, ngx_http_moe_key_t *key,
    ngx_str_t *value, moe_string_t *salt)
{
    u_char  *p, *data, digest[32];
    size_t   size;

    if (key == NULL && value->len == 0) {
        return NGX_OK;
    }

    size = sizeof("key::") - 1 + (key ? key->id.len : 0) + value->len;

    data = ngx_pnalloc(r->pool, ngx_max(size, MOE_SALT_LIMIT));
    if (data == NULL) {
        return NGX_ERROR;
    }

    p = key ? ngx_sprintf(data, "key:%V", &key->id)
            : ngx_cpymem(data, "any", sizeof("any") - 1);

    if (value->len) {
        *p++ = ':';
        p = ngx_cpymem(p, value->data, value->len);
    }

    if (p - data > (ssize_t) MOE_SALT_LIMIT) {
        (void) SHA256(data, p - data, digest);

        p = ngx_cpymem(data, "sha256:", sizeof("sha256:") - 1);
        p = ngx_hex_dump(p, digest, sizeof(digest));
    }

    salt->data = (char *) data;
    salt->size = p - data;

    return NGX_OK;
}


char *
ngx_http_moe_keys_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_loc_conf_t  *mlcf = conf;

    ngx_str_t            *value, text;
    ngx_http_moe_keys_t  *keys;

    if (mlcf->keys != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        mlcf->keys = NULL;
        return NGX_CONF_OK;
    }

    keys = ngx_pcalloc(cf->pool, sizeof(ngx_http_moe_keys_t));

    if (keys == NULL
        || ngx_array_init(&keys->keys, cf->pool, 16,
                          sizeof(ngx_http_moe_key_t))
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    keys->file = value[1];

    if (ngx_conf_full_name(cf->cycle, &keys->file, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (RAND_bytes(keys->secret, sizeof(keys->secret)) != 1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "no random numbers");
        return NGX_CONF_ERROR;
    }

    if (ngx_http_moe_keys_load(cf, &keys->file, &text) != NGX_OK
        || ngx_http_moe_keys_parse(cf, keys, &text) != NGX_OK
        || ngx_http_moe_keys_sort(cf, keys) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    mlcf->keys = keys;

    return NGX_CONF_OK;
}


/* Not blocking: the name may be that of a pipe. */

static ngx_int_t
ngx_http_moe_keys_load(ngx_conf_t *cf, ngx_str_t *name, ngx_str_t *text)
{
    ssize_t           n;
    ngx_fd_t          fd;
    ngx_int_t         rc;
    const char       *fault;
    ngx_file_info_t   info;

    fd = ngx_open_file(name->data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                       NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed", name);
        return NGX_ERROR;
    }

    rc = NGX_ERROR;
    fault = "cannot be read";
    text->len = 0;

    if (ngx_fd_info(fd, &info) == NGX_FILE_ERROR) {
        goto done;
    }

    if (!ngx_is_file(&info) || ngx_file_size(&info) > NGX_HTTP_MOE_KEYS_SIZE) {
        ngx_set_errno(0);
        fault = ngx_is_file(&info) ? "is larger than 2 megabytes"
                                   : "is not a file";
        goto done;
    }

    text->data = ngx_pnalloc(cf->temp_pool, (size_t) ngx_file_size(&info) + 1);
    if (text->data == NULL) {
        goto done;
    }

    do {
        n = ngx_read_fd(fd, text->data + text->len,
                        (size_t) ngx_file_size(&info) - text->len);

        if (n == -1) {
            goto done;
        }

        text->len += n;

    } while (n);

    rc = NGX_OK;

done:

    if (rc != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "file of keys \"%V\" %s", name, fault);
    }

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_errno,
                           ngx_close_file_n " \"%V\" failed", name);
    }

    return rc;
}


static ngx_int_t
ngx_http_moe_keys_parse(ngx_conf_t *cf, ngx_http_moe_keys_t *keys,
    ngx_str_t *text)
{
    u_char      *p, *next, *last, *end;
    ngx_uint_t   line;
    const char  *fault;

    line = 0;
    end = text->data + text->len;

    for (p = text->data; p < end; p = next + 1) {

        line++;
        next = ngx_strlchr(p, end, '\n');

        if (next == NULL) {
            next = end;
        }

        last = next;

        while (p < last && (*p == ' ' || *p == '\t')) {
            p++;
        }

        while (p < last
               && (last[-1] == ' ' || last[-1] == '\t' || last[-1] == CR))
        {
            last--;
        }

        if (p == last || *p == '#') {
            continue;
        }

        fault = ngx_http_moe_keys_line(cf, keys, p, last, line);

        if (fault) {

            /* without the line: it may hold a key */

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in %V:%ui",
                               fault, &keys->file, line);
            return NGX_ERROR;
        }
    }

    if (keys->keys.nelts == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "file of keys \"%V\" holds no key", &keys->file);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* What is wrong with the line, or NULL. */

static const char *
ngx_http_moe_keys_line(ngx_conf_t *cf, ngx_http_moe_keys_t *keys, u_char *p,
    u_char *last, ngx_uint_t line)
{
    u_char               ch, *q, *colon, digest[32], empty[32];
    ngx_int_t            byte;
    ngx_uint_t           i;
    ngx_http_moe_key_t  *key;

    colon = ngx_strlchr(p, last, ':');

    if (colon == NULL) {
        return "no \"ID:SHA256\"";
    }

    for (q = p; q < colon; q++) {
        ch = *q;

        if (!((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')
              || (ch >= '0' && ch <= '9') || ch == '-' || ch == '_'
              || ch == '.' || ch == '@' || ch == '+'))
        {
            return "invalid character in the id of a key";
        }
    }

    if (colon == p || colon - p > (ssize_t) MOE_TENANT_LIMIT) {
        return "empty or too long id of a key";
    }

    if (last - colon - 1 != 2 * sizeof(digest)) {
        return "no SHA-256 of 64 hexadecimal digits";
    }

    for (i = 0; i < sizeof(digest); i++) {
        byte = ngx_hextoi(colon + 1 + 2 * i, 2);

        if (byte == NGX_ERROR) {
            return "no SHA-256 of 64 hexadecimal digits";
        }

        digest[i] = (u_char) byte;
    }

    (void) SHA256((u_char *) "", 0, empty);

    if (ngx_memcmp(digest, empty, sizeof(digest)) == 0) {
        return "SHA-256 of an empty key";
    }

    if (keys->keys.nelts == NGX_HTTP_MOE_KEYS_LIMIT) {
        return "more than 10000 keys";
    }

    key = ngx_array_push(&keys->keys);
    if (key == NULL) {
        return "no memory";
    }

    ngx_http_moe_key_digest(keys, digest);
    ngx_memcpy(key->digest, digest, sizeof(digest));

    key->line = line;
    key->id.len = colon - p;
    key->id.data = ngx_pnalloc(cf->pool, key->id.len);

    if (key->id.data == NULL) {
        return "no memory";
    }

    ngx_memcpy(key->id.data, p, key->id.len);

    return NULL;
}


/* Duplicates are neighbours once they are sorted, the later one behind. */

static ngx_int_t
ngx_http_moe_keys_sort(ngx_conf_t *cf, ngx_http_moe_keys_t *keys)
{
    size_t               n;
    ngx_uint_t           i;
    ngx_http_moe_key_t  *key;

    n = keys->keys.nelts;
    key = keys->keys.elts;

    qsort(key, n, sizeof(ngx_http_moe_key_t), ngx_http_moe_key_compare_ids);

    for (i = 1; i < n; i++) {

        if (ngx_memn2cmp(key[i].id.data, key[i - 1].id.data, key[i].id.len,
                         key[i - 1].id.len)
            == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate id \"%V\" of a key in %V:%ui, "
                               "see line %ui", &key[i].id, &keys->file,
                               key[i].line, key[i - 1].line);
            return NGX_ERROR;
        }
    }

    qsort(key, n, sizeof(ngx_http_moe_key_t),
          ngx_http_moe_key_compare_digests);

    for (i = 1; i < n; i++) {

        if (ngx_memcmp(key[i].digest, key[i - 1].digest, 32) == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate key in %V:%ui, see line %ui",
                               &keys->file, key[i].line, key[i - 1].line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_http_moe_key_compare_ids(const void *one, const void *two)
{
    int                        order;
    const ngx_http_moe_key_t  *a = one, *b = two;

    order = (int) ngx_memn2cmp(a->id.data, b->id.data, a->id.len, b->id.len);

    return order ? order : (a->line < b->line ? -1 : 1);
}


static int ngx_libc_cdecl
ngx_http_moe_key_compare_digests(const void *one, const void *two)
{
    int                        order;
    const ngx_http_moe_key_t  *a = one, *b = two;

    order = ngx_memcmp(a->digest, b->digest, sizeof(a->digest));

    return order ? order : (a->line < b->line ? -1 : 1);
}
