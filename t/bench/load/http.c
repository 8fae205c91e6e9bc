/*
 * One state machine.  What is made of lines (status, header, chunk sizes, trailer) is collected in
 * one bounded line; bytes of the body are handed on where they lie.
 */

#include "t/bench/load/http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LINE_LIMIT 16384u
#define HEAD_LIMIT 65536u           /* status line, header and trailer together */
#define CHUNK_LIMIT (UINT64_C(1) << 40)
#define RETRY_LIMIT 86400u


void load_http_begin(load_http_t *http)
{
    moe_buffer_t line = http->line;

    line.size = 0;
    memset(http, 0, sizeof(*http));
    http->line = line;
}


void load_http_free(load_http_t *http)
{
    moe_buffer_free(&http->line);
}


static int read_status(load_http_t *http, const char *line, moe_error_t *error)
{
    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' '
        || strspn(line + 9, "0123456789") != 3 || (line[12] != ' ' && line[12] != '\0'))
    {
        return moe_fail(error, MOE_INVALID, "not a status line: \"%.40s\"", line);
    }
    http->status = atoi(line + 9);
    if (http->status < 100) {
        return moe_fail(error, MOE_INVALID, "status %d", http->status);
    }
    http->keep_alive = line[7] == '1';
    http->state = LOAD_HTTP_HEADER;
    return 0;
}


/* A whole decimal number up to `most`; -1 when it is none. */
static int read_number(const char *text, uint64_t most, uint64_t *number)
{
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 18 || text[digits] != '\0') {
        return -1;
    }
    *number = strtoull(text, NULL, 10);
    return *number <= most ? 0 : -1;
}


static int read_header(load_http_t *http, char *line, moe_error_t *error)
{
    char *value = strchr(line, ':');
    uint64_t number;

    if (value == NULL || value == line) {
        return moe_fail(error, MOE_INVALID, "not a header: \"%.40s\"", line);
    }
    *value++ = '\0';
    value += strspn(value, " \t");
    for (size_t n = strlen(value); n > 0 && strchr(" \t", value[n - 1]); n--) {
        value[n - 1] = '\0';
    }
    if (strcasecmp(line, "content-length") == 0) {
        if (read_number(value, CHUNK_LIMIT, &number) != 0
            || (http->has_length && number != http->left))
        {
            return moe_fail(error, MOE_INVALID, "Content-Length \"%.40s\"", value);
        }
        http->has_length = 1;
        http->left = number;
    } else if (strcasecmp(line, "transfer-encoding") == 0) {
        if (strcasecmp(value, "chunked") != 0) {
            return moe_fail(error, MOE_INVALID, "Transfer-Encoding \"%.40s\"", value);
        }
        http->chunked = 1;
    } else if (strcasecmp(line, "connection") == 0) {
        http->keep_alive = strcasecmp(value, "close") == 0        ? 0
                           : strcasecmp(value, "keep-alive") == 0 ? 1
                                                                  : http->keep_alive;
    } else if (strcasecmp(line, "content-type") == 0) {
        http->event_stream = strncasecmp(value, "text/event-stream", 17) == 0;
    } else if (strcasecmp(line, "retry-after") == 0
               && read_number(value, RETRY_LIMIT, &number) == 0)
    {
        http->retry_after = (unsigned) number;
    }
    return 0;
}


/* The empty line: what follows it. */
static int end_header(load_http_t *http, moe_error_t *error)
{
    if (http->status == 101) {
        return moe_fail(error, MOE_INVALID, "status 101");
    }
    if (http->status < 200) {
        load_http_begin(http);
    } else if (http->status == 204 || http->status == 304) {
        http->state = LOAD_HTTP_DONE;
    } else if (http->chunked && http->has_length) {
        return moe_fail(error, MOE_INVALID, "both Content-Length and Transfer-Encoding");
    } else if (http->chunked) {
        http->state = LOAD_HTTP_CHUNK_SIZE;
    } else if (http->has_length) {
        http->state = http->left ? LOAD_HTTP_LENGTH : LOAD_HTTP_DONE;
    } else {
        http->keep_alive = 0;
        http->state = LOAD_HTTP_UNTIL_CLOSE;
    }
    return 0;
}


static int read_chunk_size(load_http_t *http, const char *line, moe_error_t *error)
{
    size_t digits = strspn(line, "0123456789abcdefABCDEF");
    const char *rest = line + digits + strspn(line + digits, " \t");

    if (digits == 0 || digits > 15 || (*rest != '\0' && *rest != ';')) {
        return moe_fail(error, MOE_INVALID, "not a chunk size: \"%.40s\"", line);
    }
    http->left = strtoull(line, NULL, 16);
    if (http->left > CHUNK_LIMIT) {
        return moe_fail(error, MOE_INVALID, "chunk of %.15s bytes", line);
    }
    http->state = http->left ? LOAD_HTTP_CHUNK : LOAD_HTTP_TRAILER;
    return 0;
}


static int handle_line(load_http_t *http, char *line, moe_error_t *error)
{
    switch (http->state) {
    case LOAD_HTTP_STATUS:
        return read_status(http, line, error);
    case LOAD_HTTP_HEADER:
        return *line ? read_header(http, line, error) : end_header(http, error);
    case LOAD_HTTP_CHUNK_SIZE:
        return read_chunk_size(http, line, error);
    case LOAD_HTTP_CHUNK_END:
        http->state = LOAD_HTTP_CHUNK_SIZE;
        return *line ? moe_fail(error, MOE_INVALID, "no line end after a chunk") : 0;
    default:
        if (*line == '\0') {
            http->state = LOAD_HTTP_DONE;
        }
        return 0;
    }
}


/* Adds bytes to the line; handles it when it is whole. */
static int feed_line(load_http_t *http, const char *data, size_t size, size_t *used,
                     moe_error_t *error)
{
    const char *end = memchr(data, '\n', size);
    moe_buffer_t *line = &http->line;

    *used = end ? (size_t) (end - data) + 1 : size;
    if (http->state != LOAD_HTTP_CHUNK_SIZE && http->state != LOAD_HTTP_CHUNK_END) {
        http->head_size += *used;
    }
    if (http->head_size > HEAD_LIMIT || line->size + *used > LINE_LIMIT) {
        return moe_fail(error, MOE_INVALID, "a head of more than %u bytes",
                        http->head_size > HEAD_LIMIT ? HEAD_LIMIT : LINE_LIMIT);
    }
    if (memchr(data, '\0', *used)) {
        return moe_fail(error, MOE_INVALID, "a zero byte in a head");
    }
    if (moe_buffer_append(line, data, *used, error) != 0) {
        return -1;
    }
    if (end == NULL) {
        return 0;
    }
    line->size -= line->size > 1 && line->data[line->size - 2] == '\r' ? 2 : 1;
    line->data[line->size] = '\0';
    line->size = 0;
    return handle_line(http, line->data, error);
}


static int feed_body(load_http_t *http, const char *data, size_t size, size_t *used,
                     load_http_body_t body, void *context, moe_error_t *error)
{
    *used = size;
    if (http->state != LOAD_HTTP_UNTIL_CLOSE) {
        *used = http->left < size ? (size_t) http->left : size;
        http->left -= *used;
        if (http->left == 0) {
            http->state = http->state == LOAD_HTTP_CHUNK ? LOAD_HTTP_CHUNK_END : LOAD_HTTP_DONE;
        }
    }
    return body(context, data, *used, error);
}


int load_http_feed(load_http_t *http, const char *data, size_t size, size_t *used,
                   load_http_body_t body, void *context, moe_error_t *error)
{
    int rc = 0;

    *used = 0;
    while (rc == 0 && *used < size && http->state != LOAD_HTTP_DONE) {
        size_t n;

        rc = http->state < LOAD_HTTP_CHUNK
                 ? feed_line(http, data + *used, size - *used, &n, error)
                 : feed_body(http, data + *used, size - *used, &n, body, context, error);
        *used += n;
    }
    return rc;
}


int load_http_end(load_http_t *http, moe_error_t *error)
{
    if (http->state == LOAD_HTTP_UNTIL_CLOSE) {
        http->state = LOAD_HTTP_DONE;
    }
    return http->state == LOAD_HTTP_DONE ? 0 : moe_fail(error, MOE_INVALID, "closed too early");
}
