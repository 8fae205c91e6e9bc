
/*
 * Every streamed token passes through here, so no tree is built: text is
 * escaped from the frame into the buffer that is copied to the output chain.
 */


#include "http/json_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>


#define NGX_HTTP_MOE_REPLACEMENT  "\xef\xbf\xbd"


static ngx_uint_t ngx_http_moe_utf8_valid(const u_char *data, size_t size);


void
ngx_http_moe_text_add(ngx_http_moe_text_t *text, const void *data, size_t size)
{
    moe_error_t  error;

    if (text->failed) {
        return;
    }

    if (moe_buffer_append(&text->buffer, data, size, &error) != 0) {
        text->failed = 1;
    }
}


void
ngx_http_moe_text_append(ngx_http_moe_text_t *text, ngx_http_moe_text_t *other)
{
    if (other->failed) {
        text->failed = 1;
        return;
    }

    ngx_http_moe_text_add(text, other->buffer.data, other->buffer.size);
}


void
ngx_http_moe_text_format(ngx_http_moe_text_t *text, const char *format, ...)
{
    int      n;
    char     line[512];
    va_list  args;

    va_start(args, format);
    n = vsnprintf(line, sizeof(line), format, args);
    va_end(args);

    if (n < 0 || (size_t) n >= sizeof(line)) {
        text->failed = 1;
        return;
    }

    ngx_http_moe_text_add(text, line, n);
}


void
ngx_http_moe_text_escape(ngx_http_moe_text_t *text, const char *data,
    size_t size)
{
    size_t         n;
    const u_char  *p, *start, *last;

    p = (const u_char *) data;
    last = p + size;
    start = p;

    /* runs of plain characters are appended at once */

    while (p < last) {

        if (*p >= 0x20 && *p < 0x7f && *p != '"' && *p != '\\') {
            p++;
            continue;
        }

        if (*p >= 0x80) {
            n = ngx_http_moe_utf8_length(p, last - p);

            if (n) {
                p += n;
                continue;
            }
        }

        ngx_http_moe_text_add(text, start, p - start);

        switch (*p) {

        case '"':
            ngx_http_moe_text_literal(text, "\\\"");
            break;

        case '\\':
            ngx_http_moe_text_literal(text, "\\\\");
            break;

        case '\n':
            ngx_http_moe_text_literal(text, "\\n");
            break;

        case '\r':
            ngx_http_moe_text_literal(text, "\\r");
            break;

        case '\t':
            ngx_http_moe_text_literal(text, "\\t");
            break;

        default:
            if (*p >= 0x80) {
                ngx_http_moe_text_literal(text, NGX_HTTP_MOE_REPLACEMENT);

            } else {
                ngx_http_moe_text_format(text, "\\u%04x", *p);
            }
        }

        start = ++p;
    }

    ngx_http_moe_text_add(text, start, p - start);
}


void
ngx_http_moe_text_string(ngx_http_moe_text_t *text, const char *data,
    size_t size)
{
    ngx_http_moe_text_literal(text, "\"");
    ngx_http_moe_text_escape(text, data, size);
    ngx_http_moe_text_literal(text, "\"");
}


void
ngx_http_moe_text_token(ngx_http_moe_text_t *text, moe_string_t *token)
{
    uint32_t  i;

    if (ngx_http_moe_utf8_valid((const u_char *) token->data, token->size)) {
        ngx_http_moe_text_string(text, token->data, token->size);
        return;
    }

    ngx_http_moe_text_literal(text, "\"bytes:");

    for (i = 0; i < token->size; i++) {
        ngx_http_moe_text_format(text, "\\\\x%02x", (u_char) token->data[i]);
    }

    ngx_http_moe_text_literal(text, "\"");
}


void
ngx_http_moe_text_number(ngx_http_moe_text_t *text, float value)
{
    if (!isfinite(value)) {
        ngx_http_moe_text_literal(text, "-9999.0");
        return;
    }

    /* 9 digits: the shortest fixed count that brings every float back */
    ngx_http_moe_text_format(text, "%.9g", (double) value);
}


void
ngx_http_moe_text_clear(ngx_http_moe_text_t *text)
{
    text->buffer.size = 0;
    text->failed = 0;
}


void
ngx_http_moe_text_free(ngx_http_moe_text_t *text)
{
    moe_buffer_free(&text->buffer);
    text->failed = 0;
}


static ngx_uint_t
ngx_http_moe_utf8_valid(const u_char *data, size_t size)
{
    size_t  i, n;

    for (i = 0; i < size; i += n) {
        n = ngx_http_moe_utf8_length(data + i, size - i);

        if (n == 0) {
            return 0;
        }
    }

    return 1;
}


size_t
ngx_http_moe_utf8_length(const u_char *data, size_t size)
{
    size_t    i, n;
    uint32_t  code, least;

    if (data[0] < 0x80) {
        return 1;
    }

    if (data[0] >= 0xc2 && data[0] < 0xe0) {
        n = 2;
        code = data[0] & 0x1f;
        least = 0x80;

    } else if (data[0] >= 0xe0 && data[0] < 0xf0) {
        n = 3;
        code = data[0] & 0x0f;
        least = 0x800;

    } else if (data[0] >= 0xf0 && data[0] < 0xf5) {
        n = 4;
        code = data[0] & 0x07;
        least = 0x10000;

    } else {
        return 0;
    }

    if (size < n) {
        return 0;
    }

    for (i = 1; i < n; i++) {
        if ((data[i] & 0xc0) != 0x80) {
            return 0;
        }

        code = (code << 6) | (data[i] & 0x3f);
    }

    if (code < least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
        return 0;
    }

    return n;
}
