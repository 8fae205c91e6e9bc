
/*
 * The worker's connection to one engine, and the calls on it.
 *
 * A call is one request to the engine: it is sent under an id of its own and
 * its handler gets every frame that comes back under that id.  A handler runs
 * in the middle of reading the channel: it notes what came and posts an event,
 * it never sends output or finalizes an HTTP request.
 */


#ifndef _NGX_HTTP_MOE_CHANNEL_H_INCLUDED_
#define _NGX_HTTP_MOE_CHANNEL_H_INCLUDED_


#include "ngx_http_moe_module.h"


typedef struct ngx_http_moe_call_s  ngx_http_moe_call_t;


/* A frame of the call; header NULL: there is no engine for it and the call
 * ended.  `lost` is set when one had it, and died. */

typedef void (*ngx_http_moe_call_pt)(ngx_http_moe_call_t *call,
    moe_frame_header_t *header, u_char *payload);


struct ngx_http_moe_call_s {
    ngx_rbtree_node_t          node;       /* key: the id */
    ngx_queue_t                queue;      /* while held */
    ngx_http_moe_channel_t    *channel;    /* NULL: not alive */
    ngx_http_moe_call_pt       handler;
    void                      *data;
    moe_buffer_t               frame;      /* until it is sent, or ended */
    unsigned                   kept:1;     /* the frame, until it has ended */
    unsigned                   held:1;
    unsigned                   resumed:1;  /* held for the next engine */
    unsigned                   lost:1;     /* its engine died */
};


/* A worker's connection to one engine; its members are changed by channel.c
 * only. */

struct ngx_http_moe_channel_s {
    ngx_http_moe_model_t     *model;
    ngx_connection_t         *connection;    /* NULL: none */
    ngx_event_t               reconnect;
    ngx_event_t               flush;         /* posted: there are bytes */
    ngx_msec_t                delay;
    ngx_log_t                *log;

    ngx_rbtree_t              calls;
    ngx_rbtree_node_t         sentinel;
    ngx_queue_t               held;
    ngx_uint_t                n_held;
    uint64_t                  last_id;

    moe_buffer_t              in;
    moe_buffer_t              out;
    size_t                    sent;          /* of out */

    moe_state_t               state;
    char                      message[480];
    ngx_msec_t                heard;         /* time of the last STATE */
    unsigned                  known:1;       /* STATE on this connection */
    unsigned                  served:1;      /* READY seen at any time */
};


/* init_process: connects to the engine of each model; exit_process closes. */

ngx_int_t ngx_http_moe_channels_init(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf);
void ngx_http_moe_channels_exit(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf);

/*
 * Sends call->frame, whose id is filled in, and frees it unless it is `kept`.
 *   NGX_OK        sent, or on its way
 *   NGX_AGAIN     held: it is sent when the engine is ready, and should be
 *                 given up after *hold ms
 *   NGX_DECLINED  the engine serves nothing now: see ngx_http_moe_health
 *   NGX_ERROR     no memory
 */
ngx_int_t ngx_http_moe_call_start(ngx_http_moe_channel_t *ch,
    ngx_http_moe_call_t *call, ngx_msec_t *hold);

/*
 * For a call that was lost, with its frame: it is sent again to the next
 * engine that is ready.
 *   NGX_AGAIN     held, and should be given up after *hold ms
 *   NGX_DECLINED  no engine will come
 */
ngx_int_t ngx_http_moe_call_resume(ngx_http_moe_channel_t *ch,
    ngx_http_moe_call_t *call, ngx_msec_t *hold);

/* Whether no engine will serve any more: it shuts down, has no model, or the
 * master that would start it is dead. */

ngx_uint_t ngx_http_moe_channel_over(ngx_http_moe_channel_t *ch);

/* Tells the engine that `tokens` were delivered. */
void ngx_http_moe_call_credit(ngx_http_moe_call_t *call, uint32_t tokens);

/* Forgets the call; one that has not ended is cancelled in the engine. */
void ngx_http_moe_call_end(ngx_http_moe_call_t *call, ngx_uint_t cancel);


#endif /* _NGX_HTTP_MOE_CHANNEL_H_INCLUDED_ */
