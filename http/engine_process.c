
/*
 * No hook of a module runs in the master once it has become a daemon, and a
 * process spawned before that would be a child of the vanished parent.  So at
 * the first start a slot is put into ngx_processes[] as if its process had
 * exited: the master's first look at its children respawns it, which is the
 * first start.  On a reload init_module runs in the master itself and spawns
 * directly; a kept engine is marked just_spawn, so that the round of QUITs
 * which follows leaves it alone.
 */


#include "ngx_http_moe_module.h"
#include "http/engine_process.h"
#include "http/json_text.h"
#include "http/model.h"
#include "http/supervisor.h"

#include <ngx_channel.h>
#include <ngx_md5.h>
#include <openssl/rand.h>
#include <sys/mman.h>


#define NGX_HTTP_MOE_BACKLOG       511

/* above any pid_max, so that a signal to it reaches nobody */
#define NGX_HTTP_MOE_NO_PROCESS    0x7fffffff


static ngx_http_moe_engine_t *ngx_http_moe_engine_next(
    ngx_http_moe_engine_t *engine);
static ngx_http_moe_engine_t *ngx_http_moe_engine_find(ngx_str_t *key);
static ngx_int_t ngx_http_moe_engine_key(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf, ngx_http_moe_model_t *model,
    ngx_http_moe_text_t *key);
static void ngx_http_moe_engine_key_file(ngx_http_moe_text_t *key,
    ngx_str_t *directory, const char *name);
static ngx_http_moe_engine_t *ngx_http_moe_engine_create(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf, ngx_http_moe_model_t *model,
    ngx_http_moe_text_t *key);
static ngx_int_t ngx_http_moe_engine_fill(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf, ngx_http_moe_model_t *model,
    ngx_http_moe_engine_t *engine);
static ngx_int_t ngx_http_moe_engine_settings(ngx_cycle_t *cycle,
    ngx_http_moe_model_t *model, ngx_http_moe_engine_t *engine);
static ngx_int_t ngx_http_moe_engine_lock_path(ngx_core_conf_t *ccf,
    ngx_http_moe_model_t *model, ngx_http_moe_engine_t *engine);
static ngx_int_t ngx_http_moe_engine_listen(ngx_cycle_t *cycle,
    ngx_http_moe_engine_t *engine);
static char *ngx_http_moe_engine_string(ngx_log_t *log, ngx_str_t *value);
static void ngx_http_moe_engine_free(ngx_http_moe_engine_t *engine,
    ngx_log_t *log);
static ngx_process_t *ngx_http_moe_engine_slot(ngx_http_moe_engine_t *engine);
static ngx_int_t ngx_http_moe_engine_start(ngx_cycle_t *cycle,
    ngx_http_moe_engine_t *engine);
static void ngx_http_moe_engine_announce(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_moe_engine_defer(ngx_cycle_t *cycle,
    ngx_http_moe_engine_t *engine);
static ngx_uint_t ngx_http_moe_engine_replaces(ngx_http_moe_engine_t *engine);
static void ngx_http_moe_engines_retire(ngx_cycle_t *cycle);


/* The engines of this master: they live as long as it does. */

static ngx_queue_t  ngx_http_moe_engines = {
    &ngx_http_moe_engines, &ngx_http_moe_engines
};


/* The engine after this one; after NULL the first. */

static ngx_http_moe_engine_t *
ngx_http_moe_engine_next(ngx_http_moe_engine_t *engine)
{
    ngx_queue_t  *q;

    q = engine ? &engine->queue : &ngx_http_moe_engines;
    q = ngx_queue_next(q);

    if (q == &ngx_http_moe_engines) {
        return NULL;
    }

    return ngx_queue_data(q, ngx_http_moe_engine_t, queue);
}


ngx_int_t
ngx_http_moe_engines_init(ngx_cycle_t *cycle, ngx_http_moe_main_conf_t *mcf)
{
    ngx_int_t                rc;
    ngx_uint_t               i;
    ngx_http_moe_text_t      key;
    ngx_http_moe_model_t   **models;
    ngx_http_moe_engine_t   *engine;

    for (engine = ngx_http_moe_engine_next(NULL);
         engine;
         engine = ngx_http_moe_engine_next(engine))
    {
        engine->used = 0;
    }

    models = mcf ? mcf->models.elts : NULL;

    for (i = 0; mcf && i < mcf->models.nelts; i++) {

        ngx_memzero(&key, sizeof(ngx_http_moe_text_t));

        rc = ngx_http_moe_engine_key(cycle, mcf, models[i], &key);

        if (rc == NGX_OK) {
            models[i]->engine = ngx_http_moe_engine_create(cycle, mcf,
                                                           models[i], &key);

            rc = models[i]->engine
                     ? ngx_http_moe_engine_start(cycle, models[i]->engine)
                     : NGX_ERROR;
        }

        ngx_http_moe_text_free(&key);

        if (rc != NGX_OK) {
            ngx_log_error(NGX_LOG_ALERT, cycle->log, 0,
                          "engine of model \"%V\" cannot be started",
                          &models[i]->name);

            if (ngx_process != NGX_PROCESS_MASTER) {
                return NGX_ERROR;
            }
        }
    }

    ngx_http_moe_engines_retire(cycle);

    return NGX_OK;
}


void
ngx_http_moe_engines_init_process(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf)
{
    ngx_uint_t               i, wake;
    ngx_channel_t            ch;
    ngx_http_moe_model_t   **models;
    ngx_http_moe_engine_t   *engine;

    models = mcf->models.elts;
    wake = 0;

    for (i = 0; i < mcf->models.nelts; i++) {
        engine = models[i]->engine;

        if (engine == NULL
            || engine->shared->phase != NGX_HTTP_MOE_ENGINE_UNBORN)
        {
            continue;
        }

        if (ngx_process == NGX_PROCESS_SINGLE) {
            (void) ngx_spawn_process(cycle, ngx_http_moe_supervisor, engine,
                                     engine->name, NGX_PROCESS_NORESPAWN);
            continue;
        }

        wake = 1;
    }

    if (ngx_process == NGX_PROCESS_SINGLE) {
        return;
    }

    for (engine = ngx_http_moe_engine_next(NULL);
         engine;
         engine = ngx_http_moe_engine_next(engine))
    {
        if (engine->listen != (ngx_socket_t) -1) {
            (void) ngx_close_socket(engine->listen);
            engine->listen = (ngx_socket_t) -1;
        }
    }

    if (wake) {

        /* nobody reads this; that it arrives is what wakes the master */

        ngx_memzero(&ch, sizeof(ngx_channel_t));
        ch.fd = -1;

        (void) ngx_write_channel(ngx_channel, &ch, sizeof(ngx_channel_t),
                                 cycle->log);
    }
}


static ngx_http_moe_engine_t *
ngx_http_moe_engine_find(ngx_str_t *key)
{
    ngx_http_moe_engine_t  *engine;

    for (engine = ngx_http_moe_engine_next(NULL);
         engine;
         engine = ngx_http_moe_engine_next(engine))
    {
        if (!engine->retired
            && !engine->shared->failed
            && engine->key.len == key->len
            && ngx_memcmp(engine->key.data, key->data, key->len) == 0)
        {
            return engine;
        }
    }

    return NULL;
}


/*
 * A running engine is kept when block, executable, users and the model's
 * files are what they were when it was started.  One that could not load its
 * model is not: what was repaired may be none of these.
 */

static ngx_int_t
ngx_http_moe_engine_key(ngx_cycle_t *cycle, ngx_http_moe_main_conf_t *mcf,
    ngx_http_moe_model_t *model, ngx_http_moe_text_t *key)
{
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    ngx_http_moe_model_settings(key, model);
    ngx_http_moe_text_string(key, (char *) mcf->engine_path.data,
                             mcf->engine_path.len);
    ngx_http_moe_text_format(key, ",%ld,%ld", (long) ccf->user,
                             (long) mcf->engine_uid);

    ngx_http_moe_engine_key_file(key, &model->path, NULL);
    ngx_http_moe_engine_key_file(key, &model->path, "config.json");
    ngx_http_moe_engine_key_file(key, &model->path, "tokenizer.json");
    ngx_http_moe_engine_key_file(key, &model->path, "tiktoken.model");
    ngx_http_moe_engine_key_file(key, &model->path, "tokenizer_config.json");
    ngx_http_moe_engine_key_file(key, &model->path, "chat_template.jinja");
    ngx_http_moe_engine_key_file(key, &model->path, "generation_config.json");
    ngx_http_moe_engine_key_file(key, &model->path, "model.safetensors");
    ngx_http_moe_engine_key_file(key, &model->path,
                                 "model.safetensors.index.json");

    return key->failed ? NGX_ERROR : NGX_OK;
}


/* A file of a directory, or the model's file itself. */

static void
ngx_http_moe_engine_key_file(ngx_http_moe_text_t *key, ngx_str_t *model,
    const char *name)
{
    u_char           path[NGX_MAX_PATH + 1], *last;
    ngx_file_info_t  info;

    last = name ? ngx_snprintf(path, NGX_MAX_PATH, "%V/%s", model, name)
                : ngx_snprintf(path, NGX_MAX_PATH, "%V", model);
    *last = '\0';

    if (ngx_file_info(path, &info) == NGX_FILE_ERROR
        || (name == NULL && ngx_is_dir(&info)))
    {
        ngx_http_moe_text_literal(key, ",-");
        return;
    }

    ngx_http_moe_text_format(key, ",%llu:%lld:%lld.%09ld",
                             (unsigned long long) info.st_ino,
                             (long long) info.st_size,
                             (long long) info.st_mtim.tv_sec,
                             info.st_mtim.tv_nsec);
}


static ngx_http_moe_engine_t *
ngx_http_moe_engine_create(ngx_cycle_t *cycle, ngx_http_moe_main_conf_t *mcf,
    ngx_http_moe_model_t *model, ngx_http_moe_text_t *key)
{
    ngx_str_t               value;
    ngx_http_moe_engine_t  *engine;

    value.data = (u_char *) key->buffer.data;
    value.len = key->buffer.size;

    engine = ngx_http_moe_engine_find(&value);

    if (engine) {
        engine->used = 1;
        return engine;
    }

    engine = ngx_calloc(sizeof(ngx_http_moe_engine_t), cycle->log);
    if (engine == NULL) {
        return NULL;
    }

    engine->listen = (ngx_socket_t) -1;
    engine->used = 1;

    engine->key.data = (u_char *) ngx_http_moe_engine_string(cycle->log,
                                                             &value);
    engine->key.len = value.len;
    engine->fingerprint = ngx_crc32_long(value.data, value.len);

    if (engine->key.data == NULL
        || ngx_http_moe_engine_fill(cycle, mcf, model, engine) != NGX_OK)
    {
        ngx_http_moe_engine_free(engine, cycle->log);
        return NULL;
    }

    ngx_queue_insert_tail(&ngx_http_moe_engines, &engine->queue);

    return engine;
}


static ngx_int_t
ngx_http_moe_engine_fill(ngx_cycle_t *cycle, ngx_http_moe_main_conf_t *mcf,
    ngx_http_moe_model_t *model, ngx_http_moe_engine_t *engine)
{
    u_char           *last;
    ngx_str_t         value;
    ngx_core_conf_t  *ccf;
    u_char            name[256];

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    last = ngx_snprintf(name, sizeof(name), "moe engine %V", &model->name);
    value.data = name;
    value.len = last - name;

    engine->name = ngx_http_moe_engine_string(cycle->log, &value);
    engine->path = ngx_http_moe_engine_string(cycle->log, &mcf->engine_path);

    if (engine->name == NULL || engine->path == NULL) {
        return NGX_ERROR;
    }

    if (geteuid() == 0) {

        if (mcf->engine_user.len) {
            value = mcf->engine_user;
            engine->uid = mcf->engine_uid;
            engine->gid = mcf->engine_gid;

        } else {
            value.data = (u_char *) ccf->username;
            value.len = ngx_strlen(ccf->username);
            engine->uid = ccf->user;
            engine->gid = ccf->group;
        }

        engine->user = ngx_http_moe_engine_string(cycle->log, &value);
        if (engine->user == NULL) {
            return NGX_ERROR;
        }
    }

    if (RAND_bytes(engine->secret, sizeof(engine->secret)) != 1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, 0, "RAND_bytes() failed");
        return NGX_ERROR;
    }

    engine->shared = mmap(NULL, sizeof(ngx_http_moe_engine_shared_t),
                          PROT_READ|PROT_WRITE, MAP_ANON|MAP_SHARED, -1, 0);

    if (engine->shared == MAP_FAILED) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno,
                      "mmap() of engine memory failed");
        engine->shared = NULL;
        return NGX_ERROR;
    }

    if (ngx_http_moe_engine_lock_path(ccf, model, engine) != NGX_OK
        || ngx_http_moe_engine_settings(cycle, model, engine) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_moe_engine_listen(cycle, engine);
}


/*
 * One lock per model beside the pid file: a successor, of this master or of
 * the master of a binary upgrade, loads nothing until it has it.
 */

static ngx_int_t
ngx_http_moe_engine_lock_path(ngx_core_conf_t *ccf,
    ngx_http_moe_model_t *model, ngx_http_moe_engine_t *engine)
{
    size_t      size;
    u_char     *p, digest[16];
    ngx_md5_t   md5;

    ngx_md5_init(&md5);
    ngx_md5_update(&md5, model->name.data, model->name.len);
    ngx_md5_final(digest, &md5);

    size = ccf->pid.len + sizeof(".moe-") - 1 + 16 + sizeof(".lock");

    engine->lock.data = ngx_alloc(size, ngx_cycle->log);
    if (engine->lock.data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(engine->lock.data, ccf->pid.data, ccf->pid.len);
    p = ngx_cpymem(p, ".moe-", sizeof(".moe-") - 1);
    p = ngx_hex_dump(p, digest, 8);
    p = ngx_cpymem(p, ".lock", sizeof(".lock"));

    engine->lock.len = p - engine->lock.data - 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_engine_settings(ngx_cycle_t *cycle, ngx_http_moe_model_t *model,
    ngx_http_moe_engine_t *engine)
{
    u_char               hex[2 * MOE_CHANNEL_SECRET];
    ngx_log_t           *log;
    ngx_uint_t           level;
    ngx_core_conf_t     *ccf;
    ngx_http_moe_text_t  text;

    static char  *levels[] = { "emerg", "emerg", "alert", "crit", "error",
                               "warn", "notice", "info", "debug" };

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);
    log = ngx_http_moe_file_log(&cycle->new_log);
    level = log ? (log->log_level & 0xf) : NGX_LOG_ERR;
    level = ngx_min(level, NGX_LOG_DEBUG);

    (void) ngx_hex_dump(hex, engine->secret, MOE_CHANNEL_SECRET);

    ngx_memzero(&text, sizeof(ngx_http_moe_text_t));

    ngx_http_moe_text_literal(&text, "{");
    ngx_http_moe_model_settings(&text, model);
    ngx_http_moe_text_format(&text, ",\"secret\":\"%.*s\"",
                             (int) sizeof(hex), (char *) hex);
    ngx_http_moe_text_format(&text, ",\"uid\":%ld,\"log_level\":\"%s\"",
                             geteuid() == 0 ? (long) ccf->user
                                            : (long) geteuid(),
                             levels[level]);

    if (log && log->file->name.len) {
        ngx_http_moe_text_literal(&text, ",\"log_path\":");
        ngx_http_moe_text_string(&text, (char *) log->file->name.data,
                                 log->file->name.len);
    }

    ngx_http_moe_text_literal(&text, "}");

    if (text.failed) {
        ngx_http_moe_text_free(&text);
        return NGX_ERROR;
    }

    engine->settings.data = (u_char *) text.buffer.data;
    engine->settings.len = text.buffer.size;

    return NGX_OK;
}


/*
 * The socket is in the abstract namespace: no file to own, to clean up or to
 * find stale.  Its name is no secret; a peer must show the secret and its uid.
 */

static ngx_int_t
ngx_http_moe_engine_listen(ngx_cycle_t *cycle, ngx_http_moe_engine_t *engine)
{
    u_char  id[16], *p;

    if (RAND_bytes(id, sizeof(id)) != 1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, 0, "RAND_bytes() failed");
        return NGX_ERROR;
    }

    engine->sockaddr.sun_family = AF_UNIX;

    p = (u_char *) engine->sockaddr.sun_path;
    *p++ = '\0';
    p = ngx_cpymem(p, "ngx_http_moe-", sizeof("ngx_http_moe-") - 1);
    p = ngx_hex_dump(p, id, sizeof(id));

    engine->socklen = p - (u_char *) &engine->sockaddr;

    engine->listen = ngx_socket(AF_UNIX, SOCK_STREAM, 0);

    if (engine->listen == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_socket_errno,
                      ngx_socket_n " for an engine failed");
        return NGX_ERROR;
    }

    /* not for the new binary of an upgrade */

    if (fcntl(engine->listen, F_SETFD, FD_CLOEXEC) == -1
        || bind(engine->listen, (struct sockaddr *) &engine->sockaddr,
                engine->socklen) == -1
        || listen(engine->listen, NGX_HTTP_MOE_BACKLOG) == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_socket_errno,
                      "making the socket of an engine failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}


static char *
ngx_http_moe_engine_string(ngx_log_t *log, ngx_str_t *value)
{
    char  *copy;

    copy = ngx_alloc(value->len + 1, log);
    if (copy) {
        ngx_memcpy(copy, value->data, value->len);
        copy[value->len] = '\0';
    }

    return copy;
}


static void
ngx_http_moe_engine_free(ngx_http_moe_engine_t *engine, ngx_log_t *log)
{
    if (engine->listen != (ngx_socket_t) -1
        && ngx_close_socket(engine->listen) == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_socket_errno,
                      ngx_close_socket_n " of an engine failed");
    }

    if (engine->shared) {
        (void) munmap(engine->shared, sizeof(ngx_http_moe_engine_shared_t));
    }

    ngx_free(engine->settings.data);
    ngx_free(engine->lock.data);
    ngx_free(engine->key.data);
    ngx_free(engine->name);
    ngx_free(engine->path);
    ngx_free(engine->user);
    ngx_free(engine);
}


static ngx_process_t *
ngx_http_moe_engine_slot(ngx_http_moe_engine_t *engine)
{
    ngx_int_t  i;

    for (i = 0; i < ngx_last_process; i++) {

        if (ngx_processes[i].pid != -1
            && ngx_processes[i].proc == ngx_http_moe_supervisor
            && ngx_processes[i].data == engine)
        {
            return &ngx_processes[i];
        }
    }

    return NULL;
}


static ngx_int_t
ngx_http_moe_engine_start(ngx_cycle_t *cycle, ngx_http_moe_engine_t *engine)
{
    ngx_process_t    *slot;
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    slot = ngx_http_moe_engine_slot(engine);

    if (slot) {
        slot->just_spawn = 1;
        return NGX_OK;
    }

    if (ngx_process == NGX_PROCESS_MASTER) {

        engine->shared->replaces = ngx_http_moe_engine_replaces(engine);

        if (ngx_spawn_process(cycle, ngx_http_moe_supervisor, engine,
                              engine->name, NGX_PROCESS_JUST_RESPAWN)
            == NGX_INVALID_PID)
        {
            return NGX_ERROR;
        }

        ngx_http_moe_engine_announce(cycle);

        return NGX_OK;
    }

    /* without a master init_process spawns */

    return ccf->master ? ngx_http_moe_engine_defer(cycle, engine) : NGX_OK;
}


/*
 * The master tells all children to close the channel of one that has exited.
 * A worker that was never given it would close whatever it has in its place,
 * and in a slot that it has never heard of that is descriptor 0.
 */

static void
ngx_http_moe_engine_announce(ngx_cycle_t *cycle)
{
    ngx_int_t      i;
    ngx_channel_t  ch;

    ngx_memzero(&ch, sizeof(ngx_channel_t));

    ch.command = NGX_CMD_OPEN_CHANNEL;
    ch.pid = ngx_processes[ngx_process_slot].pid;
    ch.slot = ngx_process_slot;
    ch.fd = ngx_processes[ngx_process_slot].channel[0];

    for (i = 0; i < ngx_last_process; i++) {

        if (i == ngx_process_slot
            || ngx_processes[i].pid == -1
            || ngx_processes[i].channel[0] == -1)
        {
            continue;
        }

        (void) ngx_write_channel(ngx_processes[i].channel[0], &ch,
                                 sizeof(ngx_channel_t), cycle->log);
    }
}


static ngx_int_t
ngx_http_moe_engine_defer(ngx_cycle_t *cycle, ngx_http_moe_engine_t *engine)
{
    ngx_process_t  *slot;

    if (ngx_last_process == NGX_MAX_PROCESSES) {
        return NGX_ERROR;
    }

    slot = &ngx_processes[ngx_last_process];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, slot->channel) == -1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno,
                      "socketpair() for an engine failed");
        return NGX_ERROR;
    }

    if (ngx_nonblocking(slot->channel[0]) == -1
        || ngx_nonblocking(slot->channel[1]) == -1
        || fcntl(slot->channel[0], F_SETFD, FD_CLOEXEC) == -1
        || fcntl(slot->channel[1], F_SETFD, FD_CLOEXEC) == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno,
                      "setting up the channel of an engine failed");
        ngx_close_channel(slot->channel, cycle->log);
        return NGX_ERROR;
    }

    slot->pid = NGX_HTTP_MOE_NO_PROCESS;
    slot->status = 0;
    slot->proc = ngx_http_moe_supervisor;
    slot->data = engine;
    slot->name = engine->name;
    slot->respawn = 1;
    slot->just_spawn = 0;
    slot->detached = 0;
    slot->exiting = 0;
    slot->exited = 1;

    /* the engine of the old executable still holds the model */

    engine->shared->replaces = ngx_inherited;

    ngx_last_process++;
    ngx_reap = 1;

    return NGX_OK;
}


/* Whether another engine, dying or not, serves the same model until now. */

static ngx_uint_t
ngx_http_moe_engine_replaces(ngx_http_moe_engine_t *engine)
{
    ngx_http_moe_engine_t  *other;

    for (other = ngx_http_moe_engine_next(NULL);
         other;
         other = ngx_http_moe_engine_next(other))
    {
        if (other != engine
            && ngx_strcmp(other->name, engine->name) == 0
            && ngx_http_moe_engine_slot(other))
        {
            return 1;
        }
    }

    return 0;
}


/*
 * Engines without a block: the master's round of QUITs reaches them since
 * their slots are not marked.  Their memory is freed on a later reload.
 */

static void
ngx_http_moe_engines_retire(ngx_cycle_t *cycle)
{
    ngx_http_moe_engine_t  *engine, *next;

    for (engine = ngx_http_moe_engine_next(NULL); engine; engine = next) {

        next = ngx_http_moe_engine_next(engine);

        if (engine->used) {
            continue;
        }

        if (engine->retired && ngx_http_moe_engine_slot(engine) == NULL) {
            ngx_queue_remove(&engine->queue);
            ngx_http_moe_engine_free(engine, cycle->log);
            continue;
        }

        engine->retired = 1;
    }
}
