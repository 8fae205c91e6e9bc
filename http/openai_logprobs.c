
/*
 * The two forms of log-probabilities.  /v1/completions has four lists side by
 * side (tokens, token_logprobs, top_logprobs, text_offset), chat one list of
 * objects.  Both grow as JSON text in the choice: a stream takes it away chunk
 * by chunk, a whole reply at its end.
 */


#include "ngx_http_moe_module.h"
#include "http/openai.h"

#include <math.h>


enum {
    NGX_HTTP_MOE_TOKENS = 0,        /* chat: the list of objects */
    NGX_HTTP_MOE_TOKEN_LOGPROBS,
    NGX_HTTP_MOE_TOP_LOGPROBS,
    NGX_HTTP_MOE_TEXT_OFFSETS
};


static void ngx_http_moe_completion_record(ngx_http_moe_choice_t *choice,
    moe_logprob_t *record, ngx_uint_t first);
static void ngx_http_moe_completion_offset(ngx_http_moe_choice_t *choice,
    moe_string_t *token, moe_string_t *rest);
static void ngx_http_moe_completion_top(ngx_http_moe_text_t *text,
    moe_logprob_t *record);
static void ngx_http_moe_chat_record(ngx_http_moe_choice_t *choice,
    moe_logprob_t *record);
static void ngx_http_moe_chat_candidate(ngx_http_moe_text_t *text,
    moe_candidate_t *candidate);
static void ngx_http_moe_comma(ngx_http_moe_text_t *text);


void
ngx_http_moe_openai_logprobs(ngx_http_moe_choice_t *choice,
    moe_reader_t *reader, uint32_t n, moe_string_t *prompt)
{
    uint32_t       i;
    moe_string_t   rest;
    moe_logprob_t  record;

    rest.data = prompt ? prompt->data : NULL;
    rest.size = prompt ? prompt->size : 0;

    for (i = 0; i < n; i++) {

        if (moe_logprob_next(reader, &record) != 0) {
            return;
        }

        if (ngx_http_moe_openai_kind(choice->ctx->route)
            == NGX_HTTP_MOE_OPENAI_CHAT)
        {
            ngx_http_moe_chat_record(choice, &record);
            continue;
        }

        ngx_http_moe_completion_record(choice, &record, prompt && i == 0);
        ngx_http_moe_completion_offset(choice, &record.token.text,
                                       prompt ? &rest : NULL);
    }
}


static void
ngx_http_moe_completion_record(ngx_http_moe_choice_t *choice,
    moe_logprob_t *record, ngx_uint_t first)
{
    ngx_uint_t            k;
    ngx_http_moe_text_t  *lists;

    lists = choice->logprobs;

    for (k = 0; k < 4; k++) {
        ngx_http_moe_comma(&lists[k]);
    }

    ngx_http_moe_text_token(&lists[NGX_HTTP_MOE_TOKENS], &record->token.text);
    ngx_http_moe_text_format(&lists[NGX_HTTP_MOE_TEXT_OFFSETS], "%llu",
                             (unsigned long long) choice->text_offset);

    if (first) {
        ngx_http_moe_text_literal(&lists[NGX_HTTP_MOE_TOKEN_LOGPROBS], "null");
        ngx_http_moe_text_literal(&lists[NGX_HTTP_MOE_TOP_LOGPROBS], "null");
        return;
    }

    ngx_http_moe_text_number(&lists[NGX_HTTP_MOE_TOKEN_LOGPROBS],
                             record->token.logprob);
    ngx_http_moe_completion_top(&lists[NGX_HTTP_MOE_TOP_LOGPROBS], record);
}


/*
 * Offsets count characters of the text; a character that spans tokens belongs
 * to its first.  A prompt's special token (one that begins every text) is not
 * in the text and moves nothing.
 */

static void
ngx_http_moe_completion_offset(ngx_http_moe_choice_t *choice,
    moe_string_t *token, moe_string_t *rest)
{
    uint32_t  i;

    if (rest) {
        if (rest->size < token->size
            || ngx_memcmp(rest->data, token->data, token->size) != 0)
        {
            return;
        }

        rest->data += token->size;
        rest->size -= token->size;
    }

    for (i = 0; i < token->size; i++) {
        if (((u_char) token->data[i] & 0xc0) != 0x80) {
            choice->text_offset++;
        }
    }
}


/* An object keyed by the tokens' text: two ids of the same bytes are one key,
 * the token itself is always among them. */

static void
ngx_http_moe_completion_top(ngx_http_moe_text_t *text, moe_logprob_t *record)
{
    uint32_t          i, k;
    moe_candidate_t  *c;

    ngx_http_moe_text_literal(text, "{");

    ngx_http_moe_text_token(text, &record->token.text);
    ngx_http_moe_text_literal(text, ":");
    ngx_http_moe_text_number(text, record->token.logprob);

    for (i = 0; i < record->n_top; i++) {
        c = &record->top[i];

        if (c->text.size == record->token.text.size
            && ngx_memcmp(c->text.data, record->token.text.data, c->text.size)
               == 0)
        {
            continue;
        }

        for (k = 0; k < i; k++) {
            if (c->text.size == record->top[k].text.size
                && ngx_memcmp(c->text.data, record->top[k].text.data,
                              c->text.size)
                   == 0)
            {
                break;
            }
        }

        if (k < i) {
            continue;
        }

        ngx_http_moe_text_literal(text, ",");
        ngx_http_moe_text_token(text, &c->text);
        ngx_http_moe_text_literal(text, ":");
        ngx_http_moe_text_number(text, c->logprob);
    }

    ngx_http_moe_text_literal(text, "}");
}


static void
ngx_http_moe_chat_record(ngx_http_moe_choice_t *choice, moe_logprob_t *record)
{
    uint32_t              i;
    ngx_http_moe_text_t  *text;

    text = &choice->logprobs[NGX_HTTP_MOE_TOKENS];

    ngx_http_moe_comma(text);
    ngx_http_moe_text_literal(text, "{");
    ngx_http_moe_chat_candidate(text, &record->token);
    ngx_http_moe_text_literal(text, ",\"top_logprobs\":[");

    for (i = 0; i < record->n_top; i++) {
        ngx_http_moe_text_format(text, "%s", i ? ",{" : "{");
        ngx_http_moe_chat_candidate(text, &record->top[i]);
        ngx_http_moe_text_literal(text, "}");
    }

    ngx_http_moe_text_literal(text, "]}");
}


static void
ngx_http_moe_chat_candidate(ngx_http_moe_text_t *text,
    moe_candidate_t *candidate)
{
    uint32_t  i;

    ngx_http_moe_text_literal(text, "\"token\":");
    ngx_http_moe_text_token(text, &candidate->text);
    ngx_http_moe_text_literal(text, ",\"logprob\":");
    ngx_http_moe_text_number(text, candidate->logprob);
    ngx_http_moe_text_literal(text, ",\"bytes\":[");

    for (i = 0; i < candidate->text.size; i++) {
        ngx_http_moe_text_format(text, i ? ",%u" : "%u",
                                 (u_char) candidate->text.data[i]);
    }

    ngx_http_moe_text_literal(text, "]");
}


void
ngx_http_moe_openai_logprobs_value(ngx_http_moe_text_t *text,
    ngx_http_moe_choice_t *choice)
{
    ngx_uint_t            i;
    ngx_http_moe_text_t  *list;

    static const char  *names[] = { "{\"tokens\":[", "],\"token_logprobs\":[",
                                    "],\"top_logprobs\":[",
                                    "],\"text_offset\":[" };

    if (!choice->ctx->job.logprobs) {
        ngx_http_moe_text_literal(text, "null");
        return;
    }

    list = choice->logprobs;

    if (ngx_http_moe_openai_kind(choice->ctx->route)
        == NGX_HTTP_MOE_OPENAI_CHAT)
    {
        ngx_http_moe_text_literal(text, "{\"content\":[");
        ngx_http_moe_text_append(text, &list[NGX_HTTP_MOE_TOKENS]);
        ngx_http_moe_text_literal(text, "],\"refusal\":null}");
        return;
    }

    for (i = 0; i < 4; i++) {
        ngx_http_moe_text_format(text, "%s", names[i]);
        ngx_http_moe_text_append(text, &list[i]);
    }

    ngx_http_moe_text_literal(text, "]}");
}


void
ngx_http_moe_openai_prompt_logprobs(ngx_http_moe_choice_t *choice,
    moe_reader_t *reader, uint32_t n)
{
    uint32_t              i, k;
    moe_logprob_t         record;
    moe_candidate_t      *c;
    ngx_http_moe_text_t  *text;

    text = &choice->prompt_logprobs;

    for (i = 0; i < n; i++) {

        if (moe_logprob_next(reader, &record) != 0) {
            return;
        }

        if (i == 0) {
            ngx_http_moe_text_literal(text, "null");
            continue;
        }

        for (k = 0; k <= record.n_top; k++) {
            c = k ? &record.top[k - 1] : &record.token;

            if (k && c->id == record.token.id) {
                continue;
            }

            ngx_http_moe_text_format(text, "%s\"%u\":{\"logprob\":",
                                     k ? "," : ",{", c->id);
            ngx_http_moe_text_number(text, c->logprob);
            ngx_http_moe_text_literal(text, ",\"decoded_token\":");
            ngx_http_moe_text_token(text, &c->text);
            ngx_http_moe_text_literal(text, "}");
        }

        ngx_http_moe_text_literal(text, "}");
    }
}


static void
ngx_http_moe_comma(ngx_http_moe_text_t *text)
{
    if (text->buffer.size) {
        ngx_http_moe_text_literal(text, ",");
    }
}
