/*
 * A kept connection may be closed by the server at the very moment when the next request goes out;
 * such a request, of which nothing was heard, is sent again on a new connection, once.
 */

#include "t/bench/load/client.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#define READ_SIZE 65536u
#define READS_AT_ONCE 8u
#define BODY_LIMIT (64u << 20)


static void disconnect(load_client_t *client)
{
    load_transport_close(&client->transport);
    client->watched = 0;
    client->answers = 0;
}


static load_result_t fail(load_client_t *client, const char *kind)
{
    disconnect(client);
    client->busy = 0;
    snprintf(client->kind, sizeof(client->kind), "%s", kind);
    return LOAD_FAILED;
}


/* The peer's bytes are in the message, not in the kind. */
static load_result_t fail_answer(load_client_t *client)
{
    return fail(client, "bad answer");
}


static load_result_t fail_transport(load_client_t *client)
{
    return fail(client, client->error.message);
}


static load_result_t write_request(load_client_t *client)
{
    while (client->sent < client->request.size) {
        ssize_t n = load_transport_write(&client->transport, client->request.data + client->sent,
                                         client->request.size - client->sent, &client->error);

        if (n == -1) {
            return fail_transport(client);
        }
        client->sent += (size_t) n;
        if (n == 0) {
            break;
        }
    }
    return LOAD_BUSY;
}


static load_result_t connect_and_write(load_client_t *client)
{
    int rc = load_transport_continue(&client->transport, &client->error);

    return rc == -1 ? fail_transport(client) : rc == 1 ? write_request(client) : LOAD_BUSY;
}


static load_result_t begin(load_client_t *client)
{
    load_http_begin(&client->http);
    load_sse_begin(&client->sse);
    load_answer_begin(&client->answer);
    client->body.size = 0;
    client->body.limit = BODY_LIMIT;
    client->sent = 0;
    client->heard = 0;
    client->retry_after = 0;
    client->busy = 1;
    if (client->transport.state == LOAD_OPEN) {
        return write_request(client);
    }
    return load_transport_connect(&client->transport, client->endpoint, &client->error) == 0
               ? LOAD_BUSY
               : fail_transport(client);
}


/* The connection ended before the answer did. */
static int may_repeat(const load_client_t *client)
{
    return client->answers > 0 && !client->heard;
}


static load_result_t repeat(load_client_t *client)
{
    disconnect(client);
    client->retried++;
    return begin(client);
}


load_result_t load_client_start(load_client_t *client)
{
    load_result_t result = begin(client);

    return result == LOAD_FAILED && may_repeat(client) ? repeat(client) : result;
}


static int on_event(void *context, const char *data, size_t size, moe_error_t *error)
{
    load_client_t *client = context;
    int rc = load_answer_event(&client->answer, data, size, error);

    if (rc == 1) {
        client->piece(client);
    }
    return rc == -1 ? -1 : 0;
}


static int on_body(void *context, const char *data, size_t size, moe_error_t *error)
{
    load_client_t *client = context;

    if (client->http.status == 200 && client->http.event_stream) {
        return load_sse_feed(&client->sse, data, size, on_event, client, error);
    }
    return moe_buffer_append(&client->body, data, size, error);
}


static load_result_t refuse(load_client_t *client)
{
    client->retry_after = client->http.retry_after;
    load_answer_refused(client->http.status, client->body.data, client->body.size, client->kind);
    moe_fail(&client->error, MOE_INVALID, "%.*s", (int) client->body.size,
             client->body.size ? client->body.data : "");
    return LOAD_FAILED;
}


/* The whole answer has come. */
static load_result_t finish(load_client_t *client)
{
    load_answer_t *answer = &client->answer;

    client->busy = 0;
    client->answers++;
    if (!client->http.keep_alive || !client->reuse) {
        disconnect(client);
    }
    if (client->http.status != 200) {
        return refuse(client);
    }
    if (!client->http.event_stream) {
        if (moe_buffer_append(&client->body, "", 1, &client->error) != 0
            || load_answer_whole(answer, client->body.data, client->body.size - 1,
                                 &client->error) != 0)
        {
            return fail_answer(client);
        }
        client->piece(client);
    }
    moe_fail(&client->error, MOE_INVALID, "after %u events", answer->pieces);
    if (answer->failure[0]) {
        snprintf(client->kind, sizeof(client->kind), "error event %.60s", answer->failure);
        return LOAD_FAILED;
    }
    if (!answer->done && !answer->finish[0]) {
        snprintf(client->kind, sizeof(client->kind), "cut off");
        return LOAD_FAILED;
    }
    return LOAD_SUCCEEDED;
}


static load_result_t on_end(load_client_t *client)
{
    if (may_repeat(client)) {
        return repeat(client);
    }
    if (load_http_end(&client->http, &client->error) != 0) {
        return fail(client, client->heard ? "cut off" : "closed without an answer");
    }
    return finish(client);
}


static load_result_t feed(load_client_t *client, const char *data, size_t size)
{
    size_t used;

    client->heard = 1;
    if (load_http_feed(&client->http, data, size, &used, on_body, client, &client->error) != 0) {
        return fail_answer(client);
    }
    if (client->http.state != LOAD_HTTP_DONE) {
        return LOAD_BUSY;
    }
    /* Bytes after it are of no request: what follows on this connection would mean nothing. */
    client->http.keep_alive &= used == size && client->sent == client->request.size;
    return finish(client);
}


static load_result_t read_answer(load_client_t *client)
{
    load_result_t result = LOAD_BUSY;
    char data[READ_SIZE];

    for (unsigned i = 0; result == LOAD_BUSY && i < READS_AT_ONCE; i++) {
        ssize_t n = load_transport_read(&client->transport, data, sizeof(data), &client->error);

        if (n == LOAD_AGAIN) {
            break;
        }
        if (n == -1) {
            return may_repeat(client) ? repeat(client) : fail_transport(client);
        }
        if (n == 0) {
            return on_end(client);
        }
        result = feed(client, data, (size_t) n);
        if (client->transport.ssl == NULL && (size_t) n < sizeof(data)) {
            break;
        }
    }
    return result;
}


load_result_t load_client_drive(load_client_t *client, int readable)
{
    load_result_t result = LOAD_BUSY;

    if (!client->busy) {
        disconnect(client);
        return LOAD_BUSY;
    }
    if (client->transport.state != LOAD_OPEN) {
        return connect_and_write(client);
    }
    if (readable) {
        result = read_answer(client);
    }
    return result == LOAD_BUSY && client->transport.state == LOAD_OPEN ? write_request(client)
                                                                       : result;
}


load_result_t load_client_timeout(load_client_t *client)
{
    moe_fail(&client->error, MOE_SYSTEM, "after %u events", client->answer.pieces);
    return fail(client, "timeout");
}


uint32_t load_client_wants(const load_client_t *client)
{
    if (client->transport.state == LOAD_CLOSED) {
        return 0;
    }
    return client->transport.wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN;
}


void load_client_free(load_client_t *client)
{
    disconnect(client);
    load_http_free(&client->http);
    load_sse_free(&client->sse);
    load_answer_free(&client->answer);
    moe_buffer_free(&client->request);
    moe_buffer_free(&client->body);
}
