
/*
 * A body is parsed in one piece, from memory and from the temporary file.  A
 * large one goes to nginx's thread pool, so that the worker's other clients
 * do not wait for it; the request's memory is kept by r->main->blocked until
 * the thread is done, whatever becomes of the client.
 */


#include "ngx_http_moe_module.h"
#include "http/api.h"
#include "http/job.h"
#include "http/reply.h"


#define NGX_HTTP_MOE_INLINE_BODY   65536


typedef struct {
    ngx_http_moe_job_t     *job;
    ngx_chain_t            *bufs;
} ngx_http_moe_task_t;


static void ngx_http_moe_job_run(ngx_http_moe_job_t *job, ngx_chain_t *bufs);
static ngx_int_t ngx_http_moe_job_read(ngx_http_moe_job_t *job,
    ngx_chain_t *bufs);
#if (NGX_THREADS)
static ngx_int_t ngx_http_moe_job_post(ngx_http_request_t *r,
    ngx_http_moe_ctx_t *ctx, ngx_chain_t *bufs);
static void ngx_http_moe_job_thread(void *data, ngx_log_t *log);
static void ngx_http_moe_job_done(ngx_event_t *ev);
static void ngx_http_moe_job_waiting(ngx_http_request_t *r);
#endif


void
ngx_http_moe_job_start(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx,
    ngx_chain_t *bufs)
{
#if (NGX_THREADS)

    if (ctx->job.size > NGX_HTTP_MOE_INLINE_BODY
        && ngx_http_moe_job_post(r, ctx, bufs) == NGX_OK)
    {
        return;
    }

#endif

    ngx_http_moe_job_run(&ctx->job, bufs);
    ngx_http_moe_parsed(r, ctx);
}


static void
ngx_http_moe_job_run(ngx_http_moe_job_t *job, ngx_chain_t *bufs)
{
    if (ngx_http_moe_job_read(job, bufs) != NGX_OK) {
        ngx_http_moe_problem(&job->problem, NGX_HTTP_INTERNAL_SERVER_ERROR,
                             "server_error", "server_error", NULL,
                             "the body could not be read");
        job->failed = 1;
        return;
    }

    job->route->parse(job);

    free(job->body);
    job->body = NULL;
}


static ngx_int_t
ngx_http_moe_job_read(ngx_http_moe_job_t *job, ngx_chain_t *bufs)
{
    off_t         offset;
    size_t        size;
    char         *p;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    job->body = malloc(job->size + 1);
    if (job->body == NULL) {
        return NGX_ERROR;
    }

    p = job->body;

    for (cl = bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            p = (char *) ngx_cpymem(p, b->pos, b->last - b->pos);
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        size = (size_t) (b->file_last - b->file_pos);
        offset = b->file_pos;

        while (size) {
            n = pread(b->file->fd, p, size, offset);

            if (n <= 0) {
                if (n == -1 && ngx_errno == NGX_EINTR) {
                    continue;
                }

                return NGX_ERROR;
            }

            p += n;
            offset += n;
            size -= n;
        }
    }

    return NGX_OK;
}


void
ngx_http_moe_job_free(ngx_http_moe_job_t *job)
{
    ngx_uint_t  i;

    for (i = 0; job->frames && i < job->n; i++) {
        moe_buffer_free(&job->frames[i]);
    }

    free(job->frames);
    free(job->model);
    free(job->body);

    job->frames = NULL;
    job->model = NULL;
    job->model_size = 0;
    job->body = NULL;
    job->n = 0;
}


#if (NGX_THREADS)

static ngx_int_t
ngx_http_moe_job_post(ngx_http_request_t *r, ngx_http_moe_ctx_t *ctx,
    ngx_chain_t *bufs)
{
    ngx_str_t             name;
    ngx_thread_pool_t    *pool;
    ngx_thread_task_t    *task;
    ngx_http_moe_task_t  *data;

    ngx_str_set(&name, "default");

    pool = ngx_thread_pool_get((ngx_cycle_t *) ngx_cycle, &name);
    if (pool == NULL) {
        return NGX_DECLINED;
    }

    task = ngx_thread_task_alloc(r->pool, sizeof(ngx_http_moe_task_t));
    if (task == NULL) {
        return NGX_DECLINED;
    }

    data = task->ctx;
    data->job = &ctx->job;
    data->bufs = bufs;

    task->handler = ngx_http_moe_job_thread;
    task->event.data = ctx;
    task->event.handler = ngx_http_moe_job_done;

    if (ngx_thread_task_post(pool, task) != NGX_OK) {
        return NGX_DECLINED;
    }

    /* the request's memory stays until the thread is done with it */

    r->main->blocked++;
    r->aio = 1;
    ctx->parsing = 1;

    r->write_event_handler = ngx_http_moe_job_waiting;

    if (r == r->main) {
        r->read_event_handler = ngx_http_test_reading;
    }

    return NGX_OK;
}


static void
ngx_http_moe_job_thread(void *data, ngx_log_t *log)
{
    ngx_http_moe_task_t  *task = data;

    ngx_http_moe_job_run(task->job, task->bufs);
}


static void
ngx_http_moe_job_done(ngx_event_t *ev)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;
    ngx_http_moe_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    r->main->blocked--;
    r->aio = 0;
    ctx->parsing = 0;

    if (ctx->closed) {

        /* the client went away meanwhile: end what waited for the thread */

        ngx_http_moe_job_free(&ctx->job);
        c->write->handler(c->write);
        return;
    }

    ngx_http_moe_parsed(r, ctx);
    ngx_http_run_posted_requests(c);
}


static void
ngx_http_moe_job_waiting(ngx_http_request_t *r)
{
    ngx_event_t  *wev;

    wev = r->connection->write;

    if (wev->delayed && wev->timedout) {
        wev->delayed = 0;
        wev->timedout = 0;
    }

    if (ngx_handle_write_event(wev, 0) != NGX_OK) {
        ngx_log_error(NGX_LOG_INFO, wev->log, 0, "write event failed");
    }
}

#endif
