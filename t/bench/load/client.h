/*
 * One request at a time over one connection, which is kept where the server keeps it.
 */

#ifndef LOAD_CLIENT_H
#define LOAD_CLIENT_H

#include "t/bench/load/answer.h"
#include "t/bench/load/http.h"
#include "t/bench/load/sse.h"
#include "t/bench/load/transport.h"

typedef enum {
    LOAD_BUSY = 0,
    LOAD_SUCCEEDED,
    LOAD_FAILED
} load_result_t;

typedef struct load_client_s {
    /* Set by the owner. */
    const load_endpoint_t *endpoint;
    int reuse;
    void (*piece)(struct load_client_s *client);    /* something of the answer has come */
    void *context;
    struct load_client_s *next;
    size_t record;
    uint64_t deadline_ns, resume_ns;
    uint32_t watched;               /* what epoll waits for; 0 also after the socket was closed */

    load_answer_t answer;           /* of the last request */
    unsigned retry_after;           /* seconds that the server asked for; 0: not said */
    unsigned retried;               /* times that a request went out again, the kept connection
                                       having been closed before it came */
    char kind[LOAD_KIND];           /* of a failure */
    moe_error_t error;              /* what a failure was in detail */

    load_transport_t transport;
    load_http_t http;
    load_sse_t sse;
    moe_buffer_t request;           /* head and body */
    size_t sent;
    moe_buffer_t body;              /* of an answer in one piece */
    int busy;
    unsigned answers;               /* on this connection */
    int heard;                      /* bytes of this answer have come */
} load_client_t;

/* Sends client->request, which the owner has filled, connecting if need be. */
load_result_t load_client_start(load_client_t *client);

/* Goes on when the socket is ready.  An idle client only notices that its connection is closed. */
load_result_t load_client_drive(load_client_t *client, int readable);

/* Ends the request in progress. */
load_result_t load_client_timeout(load_client_t *client);

/* Events of epoll to wait for; 0 when there is no connection. */
uint32_t load_client_wants(const load_client_t *client);

void load_client_free(load_client_t *client);

#endif
