
/*
 * Engines as the master sees them.
 *
 * A moe_model block becomes an engine: a listening socket, a secret, a piece
 * of memory shared by the master's children, and a process slot with a
 * supervisor in it.  An engine outlives the cycle that made it: a reload whose
 * block asks for the same settings takes it over, socket, process and all.
 * One that no block asks for is told to quit by the master's usual round.
 */


#ifndef _NGX_HTTP_MOE_ENGINE_PROCESS_H_INCLUDED_
#define _NGX_HTTP_MOE_ENGINE_PROCESS_H_INCLUDED_


#include <sys/un.h>

#include "ngx_http_moe_module.h"


typedef enum {
    NGX_HTTP_MOE_ENGINE_UNBORN = 0,  /* no supervisor yet */
    NGX_HTTP_MOE_ENGINE_WAITING,     /* for its predecessor to be gone */
    NGX_HTTP_MOE_ENGINE_RUNNING,
    NGX_HTTP_MOE_ENGINE_BACKOFF,     /* between a crash and the next start */
    NGX_HTTP_MOE_ENGINE_QUITTING
} ngx_http_moe_engine_phase_e;


/* In memory shared by the master and its children; written by the
 * supervisor, which may be respawned, so the counts live here; `resumed` and
 * `failed` by the workers. */

typedef struct {
    ngx_atomic_t                phase;
    ngx_atomic_t                supervisor;   /* pid */
    ngx_atomic_t                process;      /* pid of moe-engine, or 0 */
    ngx_atomic_t                restarts;     /* starts after the first */
    ngx_atomic_t                crashes;      /* in a row, for the back-off */
    ngx_atomic_t                started;      /* time of the last start */
    ngx_atomic_t                replaces;     /* another one, until it crashes */
    ngx_atomic_t                resumed;      /* calls sent again */
    ngx_atomic_t                failed;       /* it has said so */
} ngx_http_moe_engine_shared_t;


struct ngx_http_moe_engine_s {
    ngx_queue_t                     queue;
    ngx_str_t                       key;       /* what must stay the same */
    ngx_str_t                       settings;  /* JSON for the engine */
    ngx_str_t                       lock;      /* path of the lock file */
    char                           *name;      /* of the process slot */
    char                           *path;      /* of the executable */
    char                           *user;      /* NULL: keep the user */
    uid_t                           uid;
    gid_t                           gid;
    ngx_socket_t                    listen;
    struct sockaddr_un              sockaddr;
    socklen_t                       socklen;
    u_char                          secret[MOE_CHANNEL_SECRET];
    uint32_t                        fingerprint;
    ngx_http_moe_engine_shared_t   *shared;
    unsigned                        used:1;    /* by the current cycle */
    unsigned                        retired:1;
};


/* init_module: creates, keeps and retires engines.  Fails only at the first
 * start: a failure later would end the running master. */

ngx_int_t ngx_http_moe_engines_init(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf);

/* init_process: drops what only the master needs, and wakes the master when
 * it has not started a supervisor yet. */

void ngx_http_moe_engines_init_process(ngx_cycle_t *cycle,
    ngx_http_moe_main_conf_t *mcf);


#endif /* _NGX_HTTP_MOE_ENGINE_PROCESS_H_INCLUDED_ */
