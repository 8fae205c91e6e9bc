
/*
 * One connection per worker and engine.  connect() succeeds even while no
 * engine runs, since the listening socket is always there: HELLO then waits
 * in the socket until an engine accepts.  Whether one is there is said by the
 * STATE frames: the first of them opens the channel, a row of them is the
 * engine's heartbeat.
 *
 * Calls are kept in a tree by id.  Frames of a call that is no longer there
 * (it was cancelled) are dropped.  Bytes to send are collected in one buffer:
 * a request is sent at once, credits and cancellations go out together after
 * the events at hand.
 *
 * Calls that cannot be sent now are held in a queue.  Those of a dead engine
 * wait there for the next one, through its back-off and while it loads; so do
 * those that come meanwhile, as many as the engine would take.
 */


#include "ngx_http_moe_module.h"
#include "http/channel.h"
#include "http/engine_process.h"
#include "http/health.h"
#include "http/model.h"


#define NGX_HTTP_MOE_READ_SIZE       65536
#define NGX_HTTP_MOE_INPUT_LIMIT     (MOE_FRAME_HEADER + MOE_FRAME_LIMIT      \
                                      + NGX_HTTP_MOE_READ_SIZE)
#define NGX_HTTP_MOE_OUTPUT_LIMIT    (2u * MOE_FRAME_LIMIT)
#define NGX_HTTP_MOE_KEEP            (1u << 20)   /* idle buffer memory */

#define NGX_HTTP_MOE_RECONNECT       20      /* ms, doubled up to */
#define NGX_HTTP_MOE_RECONNECT_LAST  1000
#define NGX_HTTP_MOE_GREETING        1000    /* ms until the first STATE */
#define NGX_HTTP_MOE_CRASHES         5       /* in a row: not worth waiting */


#define ngx_http_moe_call_node(n)                                             \
    ((ngx_http_moe_call_t *)                                                  \
         ((u_char *) (n) - offsetof(ngx_http_moe_call_t, node)))


static void ngx_http_moe_channel_connect(ngx_http_moe_channel_t *ch);
static ngx_int_t ngx_http_moe_channel_open(ngx_http_moe_channel_t *ch);
static void ngx_http_moe_channel_reconnect(ngx_event_t *ev);
static void ngx_http_moe_channel_break(ngx_http_moe_channel_t *ch);
static void ngx_http_moe_channel_close(ngx_http_moe_channel_t *ch);
static void ngx_http_moe_channel_read(ngx_event_t *rev);
static ngx_int_t ngx_http_moe_channel_frames(ngx_http_moe_channel_t *ch);
static ngx_int_t ngx_http_moe_channel_frame(ngx_http_moe_channel_t *ch,
    moe_frame_header_t *header, u_char *payload);
static ngx_int_t ngx_http_moe_channel_state(ngx_http_moe_channel_t *ch,
    u_char *payload, size_t size);
static void ngx_http_moe_channel_write(ngx_event_t *wev);
static void ngx_http_moe_channel_flush(ngx_event_t *ev);
static ngx_int_t ngx_http_moe_channel_send(ngx_http_moe_channel_t *ch);
static void ngx_http_moe_channel_post(ngx_http_moe_channel_t *ch);
static ngx_int_t ngx_http_moe_channel_queue(ngx_http_moe_channel_t *ch,
    ngx_http_moe_call_t *call);
static ngx_msec_t ngx_http_moe_channel_holds(ngx_http_moe_channel_t *ch);
static ngx_uint_t ngx_http_moe_channel_respawns(ngx_http_moe_channel_t *ch);
static ngx_int_t ngx_http_moe_channel_hold(ngx_http_moe_channel_t *ch,
    ngx_http_moe_call_t *call);
static void ngx_http_moe_channel_unhold(ngx_http_moe_call_t *call);
static void ngx_http_moe_channel_release(ngx_http_moe_channel_t *ch);
static ngx_http_moe_call_t *ngx_http_moe_call_find(ngx_http_moe_channel_t *ch,
    uint64_t id);


ngx_int_t
ngx_http_moe_channels_init(ngx_cycle_t *cycle, ngx_http_moe_main_conf_t *mcf)
{
    ngx_uint_t                i;
    ngx_http_moe_model_t    **models;
    ngx_http_moe_channel_t   *ch;

    models = mcf->models.elts;

    for (i = 0; i < mcf->models.nelts; i++) {

        if (models[i]->engine == NULL) {
            continue;
        }

        ch = ngx_pcalloc(cycle->pool, sizeof(ngx_http_moe_channel_t));
        if (ch == NULL) {
            return NGX_ERROR;
        }

        ch->model = models[i];
        ch->log = cycle->log;
        ch->in.limit = NGX_HTTP_MOE_INPUT_LIMIT;
        ch->out.limit = NGX_HTTP_MOE_OUTPUT_LIMIT;
        ch->heard = ngx_current_msec;
        ch->delay = NGX_HTTP_MOE_RECONNECT;

        ngx_rbtree_init(&ch->calls, &ch->sentinel, ngx_rbtree_insert_value);
        ngx_queue_init(&ch->held);

        ch->reconnect.handler = ngx_http_moe_channel_reconnect;
        ch->reconnect.data = ch;
        ch->reconnect.log = ch->log;
        ch->reconnect.cancelable = 1;

        ch->flush.handler = ngx_http_moe_channel_flush;
        ch->flush.data = ch;
        ch->flush.log = ch->log;

        models[i]->channel = ch;

        ngx_http_moe_channel_connect(ch);
    }

    return NGX_OK;
}


void
ngx_http_moe_channels_exit(ngx_cycle_t *cycle, ngx_http_moe_main_conf_t *mcf)
{
    ngx_uint_t              i;
    ngx_http_moe_model_t  **models;

    models = mcf->models.elts;

    for (i = 0; i < mcf->models.nelts; i++) {
        if (models[i]->channel) {
            ngx_http_moe_channel_close(models[i]->channel);
        }
    }
}


static void
ngx_http_moe_channel_connect(ngx_http_moe_channel_t *ch)
{
    if (ngx_http_moe_channel_open(ch) == NGX_OK) {
        return;
    }

    ngx_http_moe_channel_close(ch);

    ngx_add_timer(&ch->reconnect, ch->delay);
    ch->delay = ngx_min(ch->delay * 2, NGX_HTTP_MOE_RECONNECT_LAST);
}


static ngx_int_t
ngx_http_moe_channel_open(ngx_http_moe_channel_t *ch)
{
    size_t                  start;
    moe_error_t             error;
    ngx_socket_t            s;
    ngx_connection_t       *c;
    ngx_http_moe_engine_t  *engine;

    engine = ch->model->engine;

    s = ngx_socket(AF_UNIX, SOCK_STREAM, 0);

    if (s == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ALERT, ch->log, ngx_socket_errno,
                      ngx_socket_n " failed");
        return NGX_ERROR;
    }

    c = ngx_get_connection(s, ch->log);

    if (c == NULL) {
        (void) ngx_close_socket(s);
        return NGX_ERROR;
    }

    ch->connection = c;

    c->data = ch;
    c->recv = ngx_recv;
    c->send = ngx_send;
    c->read->handler = ngx_http_moe_channel_read;
    c->write->handler = ngx_http_moe_channel_write;
    c->read->log = ch->log;
    c->write->log = ch->log;

    /* as nginx's own channel: not an open socket left in a worker's exit */

    c->read->channel = 1;
    c->write->channel = 1;

    if (ngx_nonblocking(s) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ch->log, ngx_socket_errno,
                      ngx_nonblocking_n " failed");
        return NGX_ERROR;
    }

    if (connect(s, (struct sockaddr *) &engine->sockaddr, engine->socklen)
        == -1)
    {
        ngx_log_error(NGX_LOG_ERR, ch->log, ngx_socket_errno,
                      "connect() to the engine of model \"%V\" failed",
                      &ch->model->name);
        return NGX_ERROR;
    }

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    ch->in.size = 0;
    ch->out.size = 0;
    ch->sent = 0;

    if (moe_frame_begin(&ch->out, MOE_FRAME_HELLO, 0, &start, &error) != 0
        || moe_buffer_append(&ch->out, engine->secret, MOE_CHANNEL_SECRET,
                             &error)
           != 0)
    {
        return NGX_ERROR;
    }

    moe_frame_end(&ch->out, start);
    c->write->ready = 1;

    return ngx_http_moe_channel_send(ch);
}


static void
ngx_http_moe_channel_reconnect(ngx_event_t *ev)
{
    ngx_http_moe_channel_t  *ch;

    ch = ev->data;

    if (!ngx_exiting || !ngx_queue_empty(&ch->held)) {
        ngx_http_moe_channel_connect(ch);
    }
}


/* The engine is gone, or broke the rules: every call that it knew ends. */

static void
ngx_http_moe_channel_break(ngx_http_moe_channel_t *ch)
{
    ngx_rbtree_node_t    *node;
    ngx_http_moe_call_t  *call;

    ngx_http_moe_channel_close(ch);

    while (ch->calls.root != &ch->sentinel) {
        node = ngx_rbtree_min(ch->calls.root, &ch->sentinel);
        ngx_rbtree_delete(&ch->calls, node);

        call = ngx_http_moe_call_node(node);
        call->channel = NULL;
        call->lost = 1;
        call->handler(call, NULL, NULL);
    }

    ngx_http_moe_channel_release(ch);

    ngx_add_timer(&ch->reconnect, ch->delay);
    ch->delay = ngx_min(ch->delay * 2, NGX_HTTP_MOE_RECONNECT_LAST);
}


static void
ngx_http_moe_channel_close(ngx_http_moe_channel_t *ch)
{
    if (ch->connection) {
        ngx_close_connection(ch->connection);
        ch->connection = NULL;
    }

    if (ch->flush.posted) {
        ngx_delete_posted_event(&ch->flush);
    }

    if (ch->reconnect.timer_set) {
        ngx_del_timer(&ch->reconnect);
    }

    moe_buffer_free(&ch->in);
    moe_buffer_free(&ch->out);

    ch->sent = 0;
    ch->known = 0;
}


static void
ngx_http_moe_channel_read(ngx_event_t *rev)
{
    ssize_t                  n;
    moe_error_t              error;
    ngx_connection_t        *c;
    ngx_http_moe_channel_t  *ch;

    c = rev->data;
    ch = c->data;

    do {
        if (moe_buffer_reserve(&ch->in, NGX_HTTP_MOE_READ_SIZE, &error) != 0) {
            ngx_log_error(NGX_LOG_ERR, ch->log, 0,
                          "engine of model \"%V\": %s",
                          &ch->model->name, error.message);
            ngx_http_moe_channel_break(ch);
            return;
        }

        n = c->recv(c, (u_char *) ch->in.data + ch->in.size,
                    NGX_HTTP_MOE_READ_SIZE);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            if (ch->known) {
                ngx_log_error(NGX_LOG_NOTICE, ch->log, 0,
                              "engine of model \"%V\" closed the channel",
                              &ch->model->name);
            }

            ngx_http_moe_channel_break(ch);
            return;
        }

        ch->in.size += n;

        if (ngx_http_moe_channel_frames(ch) != NGX_OK) {
            ngx_http_moe_channel_break(ch);
            return;
        }

    } while (rev->ready);

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_moe_channel_break(ch);
    }
}


static ngx_int_t
ngx_http_moe_channel_frames(ngx_http_moe_channel_t *ch)
{
    int                 rc;
    size_t              done;
    moe_error_t         error;
    moe_frame_header_t  header;

    done = 0;

    for ( ;; ) {
        rc = moe_frame_parse(ch->in.data + done, ch->in.size - done, &header,
                             &error);

        if (rc == 0) {
            break;
        }

        if (rc == -1) {
            ngx_log_error(NGX_LOG_ERR, ch->log, 0,
                          "engine of model \"%V\" sent a bad frame: %s",
                          &ch->model->name, error.message);
            return NGX_ERROR;
        }

        if (ngx_http_moe_channel_frame(ch, &header,
                         (u_char *) ch->in.data + done + MOE_FRAME_HEADER)
            != NGX_OK)
        {
            ngx_log_error(NGX_LOG_ERR, ch->log, 0,
                          "engine of model \"%V\" sent a broken frame of "
                          "type %d", &ch->model->name, (int) header.type);
            return NGX_ERROR;
        }

        done += MOE_FRAME_HEADER + header.size;
    }

    moe_buffer_consume(&ch->in, done);

    if (ch->in.size == 0 && ch->in.capacity > NGX_HTTP_MOE_KEEP) {
        moe_buffer_free(&ch->in);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_channel_frame(ngx_http_moe_channel_t *ch,
    moe_frame_header_t *header, u_char *payload)
{
    ngx_http_moe_call_t  *call;

    switch (header->type) {

    case MOE_FRAME_STATE:
        return ngx_http_moe_channel_state(ch, payload, header->size);

    case MOE_FRAME_ADMITTED:
    case MOE_FRAME_STARTED:
    case MOE_FRAME_TOKENS:
    case MOE_FRAME_DONE:
    case MOE_FRAME_ERROR:
    case MOE_FRAME_STATS_REPLY:

        call = ngx_http_moe_call_find(ch, header->id);

        if (call) {
            call->handler(call, header, payload);
        }

        return NGX_OK;

    default:
        return NGX_ERROR;
    }
}


static ngx_int_t
ngx_http_moe_channel_state(ngx_http_moe_channel_t *ch, u_char *payload,
    size_t size)
{
    size_t  length;

    if (moe_state_decode(payload, size, &ch->state) != 0) {
        return NGX_ERROR;
    }

    length = ngx_min(ch->state.message.size, sizeof(ch->message));
    ngx_memcpy(ch->message, ch->state.message.data, length);

    ch->state.message.data = ch->message;
    ch->state.message.size = length;

    ch->known = 1;
    ch->heard = ngx_current_msec;
    ch->delay = NGX_HTTP_MOE_RECONNECT;

    if (ch->state.code == MOE_STATE_READY) {
        ch->served = 1;
    }

    ch->model->engine->shared->failed = (ch->state.code == MOE_STATE_FAILED);

    ngx_http_moe_channel_release(ch);

    return NGX_OK;
}


static void
ngx_http_moe_channel_write(ngx_event_t *wev)
{
    ngx_connection_t        *c;
    ngx_http_moe_channel_t  *ch;

    c = wev->data;
    ch = c->data;

    if (ngx_http_moe_channel_send(ch) != NGX_OK) {
        ngx_http_moe_channel_break(ch);
    }
}


static void
ngx_http_moe_channel_flush(ngx_event_t *ev)
{
    ngx_http_moe_channel_t  *ch;

    ch = ev->data;

    if (ch->connection && ngx_http_moe_channel_send(ch) != NGX_OK) {
        ngx_http_moe_channel_break(ch);
    }
}


static ngx_int_t
ngx_http_moe_channel_send(ngx_http_moe_channel_t *ch)
{
    ssize_t            n;
    ngx_connection_t  *c;

    c = ch->connection;

    while (ch->sent < ch->out.size && c->write->ready) {

        n = c->send(c, (u_char *) ch->out.data + ch->sent,
                    ch->out.size - ch->sent);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR) {
            return NGX_ERROR;
        }

        ch->sent += n;
    }

    if (ch->sent == ch->out.size) {
        ch->out.size = 0;
        ch->sent = 0;

        if (ch->out.capacity > NGX_HTTP_MOE_KEEP) {
            moe_buffer_free(&ch->out);
        }
    }

    return ngx_handle_write_event(c->write, 0);
}


/* Sends soon; a break in here would end calls under their callers' hands. */

static void
ngx_http_moe_channel_post(ngx_http_moe_channel_t *ch)
{
    ngx_post_event(&ch->flush, &ngx_posted_events);
}


static ngx_int_t
ngx_http_moe_channel_queue(ngx_http_moe_channel_t *ch,
    ngx_http_moe_call_t *call)
{
    uint64_t     id;
    ngx_uint_t   i;
    moe_error_t  error;

    id = ++ch->last_id;

    for (i = 0; i < 8; i++) {
        call->frame.data[8 + i] = (char) (id >> (8 * i));
    }

    if (moe_buffer_append(&ch->out, call->frame.data, call->frame.size, &error)
        != 0)
    {
        return NGX_ERROR;
    }

    if (!call->kept) {
        moe_buffer_free(&call->frame);
    }

    call->channel = ch;
    call->node.key = id;
    ngx_rbtree_insert(&ch->calls, &call->node);

    ngx_http_moe_channel_post(ch);

    return NGX_OK;
}


/*
 * For how many ms may a request wait for an engine that is not ready?  For a
 * moment where the channel has just been opened, for queue_timeout where the
 * engine takes over from another one: a reload must not cost an answer.
 */

static ngx_msec_t
ngx_http_moe_channel_holds(ngx_http_moe_channel_t *ch)
{
    ngx_http_moe_engine_shared_t  *shared;

    shared = ch->model->engine->shared;

    if (shared->phase == NGX_HTTP_MOE_ENGINE_BACKOFF
        || shared->phase == NGX_HTTP_MOE_ENGINE_QUITTING)
    {
        return 0;
    }

    if (shared->replaces && !ch->served) {
        if (ch->known && ch->state.code == MOE_STATE_FAILED) {
            return 0;
        }

        return ch->model->queue_timeout;
    }

    if (!ch->known && ch->connection
        && shared->phase == NGX_HTTP_MOE_ENGINE_RUNNING)
    {
        return NGX_HTTP_MOE_GREETING;
    }

    return 0;
}


/* Whether the engine has died and the next one is on its way. */

static ngx_uint_t
ngx_http_moe_channel_respawns(ngx_http_moe_channel_t *ch)
{
    ngx_http_moe_engine_shared_t  *shared;

    shared = ch->model->engine->shared;

    if (shared->phase != NGX_HTTP_MOE_ENGINE_BACKOFF
        && !ch->served && shared->restarts == 0)
    {
        return 0;
    }

    return shared->crashes < NGX_HTTP_MOE_CRASHES
           && (!ch->known || ch->state.code == MOE_STATE_LOADING)
           && !ngx_http_moe_channel_over(ch);
}


static ngx_int_t
ngx_http_moe_channel_hold(ngx_http_moe_channel_t *ch,
    ngx_http_moe_call_t *call)
{
    call->channel = ch;
    call->held = 1;
    ngx_queue_insert_tail(&ch->held, &call->queue);
    ch->n_held++;

    return NGX_AGAIN;
}


static void
ngx_http_moe_channel_unhold(ngx_http_moe_call_t *call)
{
    call->channel->n_held--;
    ngx_queue_remove(&call->queue);
    call->channel = NULL;
    call->held = 0;
    call->resumed = 0;
}


/* Held calls go where the engine's state sends them. */

static void
ngx_http_moe_channel_release(ngx_http_moe_channel_t *ch)
{
    ngx_uint_t            ready, over;
    ngx_queue_t          *q, *next;
    ngx_http_moe_call_t  *call;

    ready = ch->known && ch->state.code == MOE_STATE_READY;

    if (!ready && ngx_http_moe_channel_holds(ch)) {
        return;
    }

    over = ngx_http_moe_channel_over(ch);

    for (q = ngx_queue_head(&ch->held);
         q != ngx_queue_sentinel(&ch->held);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_moe_call_t, queue);

        if (!ready && call->resumed && !over) {
            continue;
        }

        ngx_http_moe_channel_unhold(call);

        if (ready && ngx_http_moe_channel_queue(ch, call) == NGX_OK) {
            continue;
        }

        call->handler(call, NULL, NULL);
    }
}


ngx_int_t
ngx_http_moe_call_start(ngx_http_moe_channel_t *ch, ngx_http_moe_call_t *call,
    ngx_msec_t *hold)
{
    ngx_http_moe_health_t  health;

    ngx_http_moe_health(ch, &health);

    if (health.ready) {
        return ngx_http_moe_channel_queue(ch, call);
    }

    if (call->kept && ngx_http_moe_channel_respawns(ch)
        && ch->n_held < ngx_http_moe_model_most(ch->model))
    {
        call->resumed = 1;
        *hold = ch->model->queue_timeout;

        return ngx_http_moe_channel_hold(ch, call);
    }

    *hold = ngx_http_moe_channel_holds(ch);

    return *hold ? ngx_http_moe_channel_hold(ch, call) : NGX_DECLINED;
}


ngx_int_t
ngx_http_moe_call_resume(ngx_http_moe_channel_t *ch, ngx_http_moe_call_t *call,
    ngx_msec_t *hold)
{
    call->lost = 0;

    if (call->frame.size == 0 || ngx_http_moe_channel_over(ch)) {
        return NGX_DECLINED;
    }

    call->resumed = 1;
    *hold = ch->model->queue_timeout;

    return ngx_http_moe_channel_hold(ch, call);
}


ngx_uint_t
ngx_http_moe_channel_over(ngx_http_moe_channel_t *ch)
{
    return ch->model->engine->shared->phase == NGX_HTTP_MOE_ENGINE_QUITTING
           || (ch->known && ch->state.code == MOE_STATE_FAILED)
           || (ngx_process == NGX_PROCESS_WORKER && getppid() != ngx_parent);
}


void
ngx_http_moe_call_credit(ngx_http_moe_call_t *call, uint32_t tokens)
{
    moe_error_t              error;
    ngx_http_moe_channel_t  *ch;

    ch = call->channel;

    if (ch == NULL || call->held) {
        return;
    }

    if (moe_credit_encode(&ch->out, call->node.key, tokens, &error) == 0) {
        ngx_http_moe_channel_post(ch);
    }
}


void
ngx_http_moe_call_end(ngx_http_moe_call_t *call, ngx_uint_t cancel)
{
    moe_error_t              error;
    ngx_http_moe_channel_t  *ch;

    ch = call->channel;

    moe_buffer_free(&call->frame);

    if (ch == NULL) {
        return;
    }

    if (call->held) {
        ngx_http_moe_channel_unhold(call);
        return;
    }

    call->channel = NULL;

    /* before the deletion, which clears the key */

    if (cancel
        && moe_frame_empty(&ch->out, MOE_FRAME_CANCEL, call->node.key, &error)
           == 0)
    {
        ngx_http_moe_channel_post(ch);
    }

    ngx_rbtree_delete(&ch->calls, &call->node);
}


static ngx_http_moe_call_t *
ngx_http_moe_call_find(ngx_http_moe_channel_t *ch, uint64_t id)
{
    ngx_rbtree_node_t  *node;

    node = ch->calls.root;

    while (node != &ch->sentinel) {

        if (id == node->key) {
            return ngx_http_moe_call_node(node);
        }

        node = (id < node->key) ? node->left : node->right;
    }

    return NULL;
}
