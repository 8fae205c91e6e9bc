#include "t/bench/load/transport.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <string.h>
#include <unistd.h>


/* Keeps the first address that takes a connection. */
static int find_address(load_endpoint_t *endpoint, moe_error_t *error)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list, *address;
    int rc = getaddrinfo(endpoint->host, endpoint->port, &hints, &list), fd = -1;

    if (rc != 0) {
        return moe_fail(error, MOE_SYSTEM, "%s: %s", endpoint->host, gai_strerror(rc));
    }
    rc = -1;
    for (address = list; address && rc == -1; address = address->ai_next) {
        fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        rc = fd == -1 ? -1 : connect(fd, address->ai_addr, address->ai_addrlen);
        if (rc == 0) {
            memcpy(&endpoint->address, address->ai_addr, address->ai_addrlen);
            endpoint->address_size = address->ai_addrlen;
        } else {
            moe_fail(error, MOE_SYSTEM, "%s port %s: %s", endpoint->host, endpoint->port,
                     strerror(errno));
        }
        if (fd != -1) {
            close(fd);
        }
    }
    freeaddrinfo(list);
    return rc;
}


/* The oldest of OpenSSL's errors, which says what the others follow from. */
static int fail_tls(moe_error_t *error, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_get_error());

    ERR_clear_error();
    return moe_fail(error, MOE_SYSTEM, "%s: %s", what, reason ? reason : "the peer closed");
}


int load_endpoint_open(load_endpoint_t *endpoint, int tls, const char *ca, int insecure,
                       moe_error_t *error)
{
    if (find_address(endpoint, error) != 0) {
        return -1;
    }
    if (!tls) {
        return 0;
    }
    endpoint->tls = SSL_CTX_new(TLS_client_method());
    if (endpoint->tls == NULL) {
        return fail_tls(error, "TLS");
    }
    SSL_CTX_set_mode(endpoint->tls,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (insecure) {
        return 0;
    }
    SSL_CTX_set_verify(endpoint->tls, SSL_VERIFY_PEER, NULL);
    if ((ca ? SSL_CTX_load_verify_locations(endpoint->tls, ca, NULL)
            : SSL_CTX_set_default_verify_paths(endpoint->tls))
        != 1)
    {
        return fail_tls(error, ca ? ca : "certificates");
    }
    return 0;
}


void load_endpoint_close(load_endpoint_t *endpoint)
{
    SSL_CTX_free(endpoint->tls);
    endpoint->tls = NULL;
}


/* The certificate must be for this host; an address is looked for among its addresses, and is not
 * sent as a name. */
static int start_tls(load_transport_t *transport, const load_endpoint_t *endpoint,
                     moe_error_t *error)
{
    transport->ssl = SSL_new(endpoint->tls);
    if (transport->ssl == NULL || SSL_set_fd(transport->ssl, transport->fd) != 1) {
        return fail_tls(error, "TLS");
    }
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(transport->ssl), endpoint->host) == 1) {
        return 0;
    }
    ERR_clear_error();
    return SSL_set1_host(transport->ssl, endpoint->host) == 1
                   && SSL_set_tlsext_host_name(transport->ssl, endpoint->host) == 1
               ? 0
               : fail_tls(error, "TLS");
}


int load_transport_connect(load_transport_t *transport, const load_endpoint_t *endpoint,
                           moe_error_t *error)
{
    int one = 1;

    transport->fd = socket(endpoint->address.ss_family,
                           SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (transport->fd == -1) {
        return moe_fail(error, MOE_SYSTEM, "socket: %s", strerror(errno));
    }
    transport->state = LOAD_CONNECTING;
    transport->wants_write = 1;
    setsockopt(transport->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (connect(transport->fd, (const struct sockaddr *) &endpoint->address,
                endpoint->address_size) == -1
        && errno != EINPROGRESS)
    {
        return moe_fail(error, MOE_SYSTEM, "connect: %s", strerror(errno));
    }
    return endpoint->tls ? start_tls(transport, endpoint, error) : 0;
}


/* What became of a call of OpenSSL that did not succeed: 0, it waits for the socket; or -1. */
static int wait_or_fail(load_transport_t *transport, int rc, const char *what, moe_error_t *error)
{
    int reason = SSL_get_error(transport->ssl, rc);

    transport->wants_write = reason == SSL_ERROR_WANT_WRITE;
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) {
        return 0;
    }
    return fail_tls(error, what);
}


static int handshake(load_transport_t *transport, moe_error_t *error)
{
    int rc;

    ERR_clear_error();
    rc = SSL_connect(transport->ssl);
    if (rc != 1) {
        return wait_or_fail(transport, rc, "TLS handshake", error);
    }
    transport->state = LOAD_OPEN;
    transport->wants_write = 0;
    return 1;
}


int load_transport_continue(load_transport_t *transport, moe_error_t *error)
{
    socklen_t size = sizeof(int);
    int failure = 0;

    if (transport->state == LOAD_CONNECTING) {
        if (getsockopt(transport->fd, SOL_SOCKET, SO_ERROR, &failure, &size) == -1) {
            failure = errno;
        }
        if (failure) {
            return moe_fail(error, MOE_SYSTEM, "connect: %s", strerror(failure));
        }
        transport->wants_write = 0;
        transport->state = transport->ssl ? LOAD_HANDSHAKE : LOAD_OPEN;
    }
    return transport->state == LOAD_HANDSHAKE ? handshake(transport, error) : 1;
}


ssize_t load_transport_write(load_transport_t *transport, const char *data, size_t size,
                             moe_error_t *error)
{
    ssize_t n;

    if (transport->ssl) {
        size_t written = 0;
        int rc;

        ERR_clear_error();
        rc = SSL_write_ex(transport->ssl, data, size, &written);
        return rc == 1 ? (ssize_t) written : wait_or_fail(transport, rc, "write", error);
    }
    n = send(transport->fd, data, size, MSG_NOSIGNAL);
    transport->wants_write = n == -1 && errno == EAGAIN;
    if (n == -1 && errno != EAGAIN && errno != EINTR) {
        return moe_fail(error, MOE_SYSTEM, "write: %s", strerror(errno));
    }
    return n == -1 ? 0 : n;
}


static ssize_t read_tls(load_transport_t *transport, char *data, size_t size, moe_error_t *error)
{
    size_t n = 0;
    int rc;

    ERR_clear_error();
    rc = SSL_read_ex(transport->ssl, data, size, &n);
    if (rc == 1) {
        return (ssize_t) n;
    }
    if (SSL_get_error(transport->ssl, rc) == SSL_ERROR_ZERO_RETURN) {
        return 0;
    }
    return wait_or_fail(transport, rc, "read", error) == 0 ? LOAD_AGAIN : -1;
}


ssize_t load_transport_read(load_transport_t *transport, char *data, size_t size,
                            moe_error_t *error)
{
    ssize_t n;

    if (transport->ssl) {
        return read_tls(transport, data, size, error);
    }
    n = recv(transport->fd, data, size, 0);
    if (n == -1 && (errno == EAGAIN || errno == EINTR)) {
        return LOAD_AGAIN;
    }
    return n >= 0 ? n : moe_fail(error, MOE_SYSTEM, "read: %s", strerror(errno));
}


void load_transport_close(load_transport_t *transport)
{
    if (transport->state != LOAD_CLOSED) {
        SSL_free(transport->ssl);
        close(transport->fd);
    }
    *transport = (load_transport_t) { .state = LOAD_CLOSED };
}
