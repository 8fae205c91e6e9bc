/*
 * A non-blocking connection, plain or TLS, to one endpoint.
 */

#ifndef LOAD_TRANSPORT_H
#define LOAD_TRANSPORT_H

#include <openssl/ssl.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "engine/core/error.h"

/* Where to connect to; read-only once it is open, shared by all connections. */
typedef struct {
    char host[256];
    char port[8];
    struct sockaddr_storage address;
    socklen_t address_size;
    SSL_CTX *tls;                   /* NULL: plain */
} load_endpoint_t;

/* Finds the address of host and port, by connecting once.  `ca`: file of certificates to trust, or
 * NULL for the system's; `insecure`: any certificate will do.  0 or -1. */
int load_endpoint_open(load_endpoint_t *endpoint, int tls, const char *ca, int insecure,
                       moe_error_t *error);
void load_endpoint_close(load_endpoint_t *endpoint);

typedef enum {
    LOAD_CLOSED = 0,
    LOAD_CONNECTING,
    LOAD_HANDSHAKE,
    LOAD_OPEN
} load_transport_state_t;

typedef struct {
    load_transport_state_t state;
    int fd;                         /* valid unless closed */
    SSL *ssl;
    int wants_write;                /* what to wait for besides reading */
} load_transport_t;

/* Every function returns -1 on failure with MOE_SYSTEM and a message that is the same for failures
 * of the same kind. */

/* Begins to connect. */
int load_transport_connect(load_transport_t *transport, const load_endpoint_t *endpoint,
                           moe_error_t *error);

/* Goes on connecting when the socket is ready.  1 once it is open, 0 while it is not. */
int load_transport_continue(load_transport_t *transport, moe_error_t *error);

/* Bytes written, 0 when the socket is full. */
ssize_t load_transport_write(load_transport_t *transport, const char *data, size_t size,
                             moe_error_t *error);

/* Bytes read; 0 at the end of the connection; LOAD_AGAIN when there is nothing now. */
#define LOAD_AGAIN (-2)
ssize_t load_transport_read(load_transport_t *transport, char *data, size_t size,
                            moe_error_t *error);

void load_transport_close(load_transport_t *transport);

#endif
