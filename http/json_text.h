
/*
 * JSON and other text written straight into a growing buffer.
 *
 * A failed append (memory, limit) sets `failed` and makes later appends do
 * nothing, so that a writer checks once, at its end.
 */


#ifndef _NGX_HTTP_MOE_JSON_TEXT_H_INCLUDED_
#define _NGX_HTTP_MOE_JSON_TEXT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "engine/core/buffer.h"
#include "engine/channel/message.h"


typedef struct ngx_http_moe_text_s {
    moe_buffer_t     buffer;
    unsigned         failed:1;
} ngx_http_moe_text_t;


#define ngx_http_moe_text_literal(text, literal)                              \
    ngx_http_moe_text_add(text, literal, sizeof(literal) - 1)


void ngx_http_moe_text_add(ngx_http_moe_text_t *text, const void *data,
    size_t size);
void ngx_http_moe_text_append(ngx_http_moe_text_t *text,
    ngx_http_moe_text_t *other);
void ngx_http_moe_text_format(ngx_http_moe_text_t *text, const char *format,
    ...) __attribute__((format(printf, 2, 3)));

/* The contents of a JSON string, without quotes.  Bytes that are not UTF-8
 * become U+FFFD. */
void ngx_http_moe_text_escape(ngx_http_moe_text_t *text, const char *data,
    size_t size);

/* A JSON string with its quotes. */
void ngx_http_moe_text_string(ngx_http_moe_text_t *text, const char *data,
    size_t size);

/* A token's own bytes as a JSON string: where they are no whole characters,
 * the form "bytes:\xe2\x80". */
void ngx_http_moe_text_token(ngx_http_moe_text_t *text, moe_string_t *token);

/* A finite JSON number; -9999.0 stands for what is not. */
void ngx_http_moe_text_number(ngx_http_moe_text_t *text, float value);

/* Forgets the contents and keeps the memory. */
void ngx_http_moe_text_clear(ngx_http_moe_text_t *text);
void ngx_http_moe_text_free(ngx_http_moe_text_t *text);

/* Length of the valid UTF-8 character at data, or 0. */
size_t ngx_http_moe_utf8_length(const u_char *data, size_t size);


#endif /* _NGX_HTTP_MOE_JSON_TEXT_H_INCLUDED_ */
