
/*
 * Replies of /v1/completions and /v1/chat/completions.  A stream's chunks
 * share everything up to the choice's index: written once, copied per chunk.
 */


#include "ngx_http_moe_module.h"
#include "http/model.h"
#include "http/openai.h"


static ngx_uint_t ngx_http_moe_is_chat(ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_chunk_prefix(ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_chunk_begin(ngx_http_moe_choice_t *choice);
static void ngx_http_moe_chunk_end(ngx_http_moe_choice_t *choice,
    const char *reason);
static void ngx_http_moe_chunk_text(ngx_http_moe_choice_t *choice,
    const char *member, const moe_string_t *text);
static void ngx_http_moe_chunk_call(ngx_http_moe_choice_t *choice,
    moe_delta_t *call);
static void ngx_http_moe_chunk_delta(ngx_http_moe_choice_t *choice,
    moe_delta_t *delta);
static void ngx_http_moe_keep_delta(ngx_http_moe_choice_t *choice,
    moe_delta_t *delta);
static void ngx_http_moe_call_begin(ngx_http_moe_text_t *text,
    moe_delta_t *call);
static void ngx_http_moe_choice_ids(ngx_http_moe_text_t *text,
    const uint8_t *ids, uint32_t n);
static void ngx_http_moe_choice_score(ngx_http_moe_choice_t *choice,
    moe_tokens_t *tokens);
static ngx_http_moe_choice_t *ngx_http_moe_choice_best(
    ngx_http_moe_choice_t *choices, ngx_uint_t n);
static void ngx_http_moe_choice_clear(ngx_http_moe_choice_t *choice);
static void ngx_http_moe_whole(ngx_http_moe_ctx_t *ctx);
static void ngx_http_moe_whole_choice(ngx_http_moe_choice_t *choice);
static void ngx_http_moe_whole_message(ngx_http_moe_choice_t *choice);
static void ngx_http_moe_choice_details(ngx_http_moe_text_t *text,
    ngx_http_moe_choice_t *choice);
static void ngx_http_moe_prompt_details(ngx_http_moe_text_t *text,
    ngx_http_moe_choice_t *choice);
static void ngx_http_moe_usage(ngx_http_moe_ctx_t *ctx);
static const char *ngx_http_moe_finish_name(ngx_http_moe_choice_t *choice);


void
ngx_http_moe_openai_started(ngx_http_moe_choice_t *choice,
    moe_started_t *started)
{
    moe_reader_t         reader;
    ngx_http_moe_ctx_t  *ctx;

    ctx = choice->ctx;

    ngx_http_moe_choice_ids(&choice->prompt_ids, started->prompt_ids,
                            started->n_prompt_ids);

    if (ctx->job.prompt_logprobs) {
        reader = started->logprobs;
        ngx_http_moe_openai_prompt_logprobs(choice, &reader,
                                            started->n_logprobs);
    }

    if (ctx->job.echo && ctx->job.logprobs) {
        ngx_http_moe_openai_logprobs(choice, &started->logprobs,
                                     started->n_logprobs,
                                     &started->prompt_text);
    }

    if (!ctx->job.stream) {
        ngx_http_moe_text_escape(&choice->text, started->prompt_text.data,
                                 started->prompt_text.size);
        return;
    }

    if (ngx_http_moe_is_chat(ctx)) {
        ngx_http_moe_chunk_begin(choice);
        ngx_http_moe_text_literal(&ctx->out,
            "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"
            ",\"logprobs\":null");
        ngx_http_moe_chunk_end(choice, NULL);

    } else if (started->prompt_text.size || started->n_prompt_ids
               || started->n_logprobs)
    {
        ngx_http_moe_chunk_text(choice, "text", &started->prompt_text);
    }
}


void
ngx_http_moe_openai_tokens(ngx_http_moe_choice_t *choice, moe_tokens_t *tokens)
{
    uint32_t             i, chunks;
    moe_delta_t          delta;
    ngx_http_moe_ctx_t  *ctx;

    ctx = choice->ctx;

    if (ctx->job.candidates > ctx->job.shown) {
        ngx_http_moe_choice_score(choice, tokens);
    }

    if (ctx->job.logprobs) {
        ngx_http_moe_openai_logprobs(choice, &tokens->logprobs,
                                     tokens->n_logprobs, NULL);
    }

    if (ctx->job.token_ids) {
        ngx_http_moe_choice_ids(&choice->ids, tokens->ids, tokens->n_ids);
    }

    chunks = 0;

    for (i = 0; i < tokens->n_deltas; i++) {

        if (moe_delta_next(&tokens->deltas, &delta) != 0) {
            return;
        }

        if (delta.kind == MOE_DELTA_REASONING && ctx->job.hide_reasoning) {
            continue;
        }

        if (ctx->job.stream) {
            ngx_http_moe_chunk_delta(choice, &delta);
            chunks++;

        } else {
            ngx_http_moe_keep_delta(choice, &delta);
        }

        choice->tool_calls += (delta.kind == MOE_DELTA_CALL);
    }

    /* text that is held back makes no chunk, unless something goes with it */

    if (ctx->job.stream && chunks == 0
        && (ctx->job.logprobs || ctx->job.token_ids))
    {
        delta = (moe_delta_t) { .kind = MOE_DELTA_CONTENT, .text = { "", 0 } };
        ngx_http_moe_chunk_delta(choice, &delta);
    }
}


static void
ngx_http_moe_chunk_delta(ngx_http_moe_choice_t *choice, moe_delta_t *delta)
{
    switch (delta->kind) {

    case MOE_DELTA_CALL:
        ngx_http_moe_chunk_call(choice, delta);
        break;

    case MOE_DELTA_REASONING:
        ngx_http_moe_chunk_text(choice, "reasoning_content", &delta->text);
        break;

    default:
        ngx_http_moe_chunk_text(choice, ngx_http_moe_is_chat(choice->ctx)
                                        ? "content" : "text", &delta->text);
    }
}


/* Adds what a whole reply will show. */

static void
ngx_http_moe_keep_delta(ngx_http_moe_choice_t *choice, moe_delta_t *delta)
{
    ngx_http_moe_text_t  *text;

    if (delta->kind != MOE_DELTA_CALL) {
        text = (delta->kind == MOE_DELTA_REASONING) ? &choice->reasoning
                                                    : &choice->text;
        ngx_http_moe_text_escape(text, delta->text.data, delta->text.size);
        return;
    }

    text = &choice->calls;

    ngx_http_moe_text_format(text, choice->tool_calls ? ",{" : "{");
    ngx_http_moe_call_begin(text, delta);
    ngx_http_moe_text_string(text, delta->text.data, delta->text.size);
    ngx_http_moe_text_literal(text, "}}");
}


/* A call up to its arguments. */

static void
ngx_http_moe_call_begin(ngx_http_moe_text_t *text, moe_delta_t *call)
{
    ngx_http_moe_text_literal(text, "\"id\":");
    ngx_http_moe_text_string(text, call->id.data, call->id.size);
    ngx_http_moe_text_literal(text,
        ",\"type\":\"function\",\"function\":{\"name\":");
    ngx_http_moe_text_string(text, call->name.data, call->name.size);
    ngx_http_moe_text_literal(text, ",\"arguments\":");
}


/* What candidates are ranked by. */

static void
ngx_http_moe_choice_score(ngx_http_moe_choice_t *choice, moe_tokens_t *tokens)
{
    uint32_t       i;
    moe_reader_t   reader;
    moe_logprob_t  record;

    reader = tokens->logprobs;

    for (i = 0; i < tokens->n_logprobs; i++) {

        if (moe_logprob_next(&reader, &record) != 0) {
            return;
        }

        choice->logprob += record.token.logprob;
    }
}


void
ngx_http_moe_openai_done(ngx_http_moe_choice_t *choice)
{
    ngx_http_moe_ctx_t  *ctx;

    ctx = choice->ctx;

    if (!ctx->job.stream) {
        return;
    }

    ngx_http_moe_chunk_begin(choice);

    if (ngx_http_moe_is_chat(ctx)) {
        ngx_http_moe_text_literal(&ctx->out, "\"delta\":{},\"logprobs\":null");

    } else {
        ngx_http_moe_text_literal(&ctx->out, "\"text\":\"\",\"logprobs\":null");
    }

    ngx_http_moe_chunk_end(choice, ngx_http_moe_finish_name(choice));
}


void
ngx_http_moe_openai_end(ngx_http_moe_ctx_t *ctx)
{
    if (!ctx->job.stream) {
        ngx_http_moe_whole(ctx);
        return;
    }

    if (ctx->job.include_usage) {
        ngx_http_moe_chunk_prefix(ctx);
        ngx_http_moe_text_literal(&ctx->out, "],");
        ngx_http_moe_usage(ctx);
        ngx_http_moe_text_literal(&ctx->out, "}\n\n");
    }

    ngx_http_moe_text_literal(&ctx->out, "data: [DONE]\n\n");
}


static ngx_uint_t
ngx_http_moe_is_chat(ngx_http_moe_ctx_t *ctx)
{
    return ngx_http_moe_openai_kind(ctx->route) == NGX_HTTP_MOE_OPENAI_CHAT;
}


static const char *
ngx_http_moe_finish_name(ngx_http_moe_choice_t *choice)
{
    return choice->finish == NGX_HTTP_MOE_FINISH_LENGTH ? "length"
           : choice->finish == NGX_HTTP_MOE_FINISH_TOOL_CALLS ? "tool_calls"
                                                              : "stop";
}


/* The members that every object of a reply begins with. */

static void
ngx_http_moe_head(ngx_http_moe_ctx_t *ctx, ngx_http_moe_text_t *text)
{
    const char  *object;

    object = !ngx_http_moe_is_chat(ctx) ? "text_completion"
             : ctx->job.stream ? "chat.completion.chunk" : "chat.completion";

    ngx_http_moe_text_format(text,
                             "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld"
                             ",\"model\":",
                             ctx->id, object, (long long) ctx->created);
    ngx_http_moe_text_string(text, (char *) ctx->model->name.data,
                             ctx->model->name.len);
    ngx_http_moe_text_format(text, ",\"system_fingerprint\":\"fp_%08x\""
                             ",\"choices\":[", ctx->fingerprint);
}


static void
ngx_http_moe_chunk_prefix(ngx_http_moe_ctx_t *ctx)
{
    if (ctx->prefix.buffer.size == 0) {
        ngx_http_moe_text_literal(&ctx->prefix, "data: ");
        ngx_http_moe_head(ctx, &ctx->prefix);
    }

    ngx_http_moe_text_append(&ctx->out, &ctx->prefix);
}


static void
ngx_http_moe_chunk_begin(ngx_http_moe_choice_t *choice)
{
    ngx_http_moe_chunk_prefix(choice->ctx);
    ngx_http_moe_text_format(&choice->ctx->out, "{\"index\":%u,",
                             (unsigned) choice->index);
}


static void
ngx_http_moe_chunk_end(ngx_http_moe_choice_t *choice, const char *reason)
{
    ngx_http_moe_text_t  *out;

    out = &choice->ctx->out;

    if (reason) {
        ngx_http_moe_text_format(out, ",\"finish_reason\":\"%s\"", reason);

    } else {
        ngx_http_moe_text_literal(out, ",\"finish_reason\":null");
    }

    ngx_http_moe_choice_details(out, choice);
    ngx_http_moe_text_literal(out, "}]");

    if (ngx_http_moe_is_chat(choice->ctx)) {
        ngx_http_moe_prompt_details(out, choice);
    }

    if (choice->ctx->job.include_usage) {
        ngx_http_moe_text_literal(out, ",\"usage\":null");
    }

    ngx_http_moe_text_literal(out, "}\n\n");
    ngx_http_moe_choice_clear(choice);
}


/* What has come besides the text goes with the first chunk. */

static void
ngx_http_moe_chunk_text(ngx_http_moe_choice_t *choice, const char *member,
    const moe_string_t *text)
{
    ngx_uint_t            is_chat;
    ngx_http_moe_text_t  *out;

    out = &choice->ctx->out;
    is_chat = ngx_http_moe_is_chat(choice->ctx);

    ngx_http_moe_chunk_begin(choice);
    ngx_http_moe_text_format(out, "%s\"%s\":\"", is_chat ? "\"delta\":{" : "",
                             member);
    ngx_http_moe_text_escape(out, text->data, text->size);
    ngx_http_moe_text_format(out, "\"%s,\"logprobs\":", is_chat ? "}" : "");
    ngx_http_moe_openai_logprobs_value(out, choice);
    ngx_http_moe_chunk_end(choice, NULL);
}


/* As the reference does: a chunk that names the tool, then its arguments. */

static void
ngx_http_moe_chunk_call(ngx_http_moe_choice_t *choice, moe_delta_t *call)
{
    ngx_http_moe_text_t  *out;

    out = &choice->ctx->out;

    ngx_http_moe_chunk_begin(choice);
    ngx_http_moe_text_format(out, "\"delta\":{\"tool_calls\":[{\"index\":%u,",
                             choice->tool_calls);
    ngx_http_moe_call_begin(out, call);
    ngx_http_moe_text_literal(out, "\"\"}}]},\"logprobs\":");
    ngx_http_moe_openai_logprobs_value(out, choice);
    ngx_http_moe_chunk_end(choice, NULL);

    ngx_http_moe_chunk_begin(choice);
    ngx_http_moe_text_format(out,
                             "\"delta\":{\"tool_calls\":[{\"index\":%u"
                             ",\"function\":{\"arguments\":",
                             choice->tool_calls);
    ngx_http_moe_text_string(out, call->text.data, call->text.size);
    ngx_http_moe_text_literal(out, "}}]},\"logprobs\":");
    ngx_http_moe_openai_logprobs_value(out, choice);
    ngx_http_moe_chunk_end(choice, NULL);
}


/* What vLLM adds, where it was asked for and is there: to a choice of a
 * completion all of it, of a chat only what is not the prompt's. */

static void
ngx_http_moe_choice_details(ngx_http_moe_text_t *text,
    ngx_http_moe_choice_t *choice)
{
    if (!ngx_http_moe_is_chat(choice->ctx)) {
        ngx_http_moe_prompt_details(text, choice);
    }

    if (choice->ids.buffer.size) {
        ngx_http_moe_text_literal(text, ",\"token_ids\":[");
        ngx_http_moe_text_append(text, &choice->ids);
        ngx_http_moe_text_literal(text, "]");
    }
}


static void
ngx_http_moe_prompt_details(ngx_http_moe_text_t *text,
    ngx_http_moe_choice_t *choice)
{
    if (choice->prompt_ids.buffer.size) {
        ngx_http_moe_text_literal(text, ",\"prompt_token_ids\":[");
        ngx_http_moe_text_append(text, &choice->prompt_ids);
        ngx_http_moe_text_literal(text, "]");
    }

    if (choice->prompt_logprobs.buffer.size) {
        ngx_http_moe_text_literal(text, ",\"prompt_logprobs\":[");
        ngx_http_moe_text_append(text, &choice->prompt_logprobs);
        ngx_http_moe_text_literal(text, "]");
    }
}


static void
ngx_http_moe_choice_ids(ngx_http_moe_text_t *text, const uint8_t *ids,
    uint32_t n)
{
    uint32_t  i;

    for (i = 0; i < n; i++) {
        ngx_http_moe_text_format(text, text->buffer.size ? ",%u" : "%u",
                                 moe_id_at(ids, i));
    }
}


static void
ngx_http_moe_choice_clear(ngx_http_moe_choice_t *choice)
{
    ngx_uint_t  i;

    for (i = 0; i < 4; i++) {
        ngx_http_moe_text_clear(&choice->logprobs[i]);
    }

    ngx_http_moe_text_clear(&choice->ids);
    ngx_http_moe_text_clear(&choice->prompt_ids);
    ngx_http_moe_text_clear(&choice->prompt_logprobs);
}


static void
ngx_http_moe_whole(ngx_http_moe_ctx_t *ctx)
{
    ngx_uint_t              i, k, index;
    ngx_http_moe_choice_t  *choice;

    ngx_http_moe_head(ctx, &ctx->out);

    index = 0;

    for (i = 0; i < ctx->n; i += ctx->job.candidates) {
        for (k = 0; k < ctx->job.shown; k++) {

            if (index) {
                ngx_http_moe_text_literal(&ctx->out, ",");
            }

            choice = ngx_http_moe_choice_best(&ctx->choices[i],
                                              ctx->job.candidates);
            choice->index = index++;
            choice->shown = 1;

            ngx_http_moe_whole_choice(choice);
        }
    }

    ngx_http_moe_text_literal(&ctx->out, "],");
    ngx_http_moe_usage(ctx);

    if (ngx_http_moe_is_chat(ctx)) {
        ngx_http_moe_prompt_details(&ctx->out, &ctx->choices[0]);
    }

    ngx_http_moe_text_literal(&ctx->out, "}\n");
}


/* Of those not shown yet the one with the largest log-probability per token;
 * of equals, as all are that need not be ranked, the first. */

static ngx_http_moe_choice_t *
ngx_http_moe_choice_best(ngx_http_moe_choice_t *choices, ngx_uint_t n)
{
    double                  mean, largest;
    ngx_uint_t              i;
    ngx_http_moe_choice_t  *best;

    best = NULL;
    largest = 0;

    for (i = 0; i < n; i++) {

        if (choices[i].shown) {
            continue;
        }

        mean = choices[i].logprob / ngx_max(choices[i].completion_tokens, 1);

        if (best == NULL || mean > largest) {
            best = &choices[i];
            largest = mean;
        }
    }

    return best;
}


static void
ngx_http_moe_whole_choice(ngx_http_moe_choice_t *choice)
{
    ngx_http_moe_text_t  *out;

    out = &choice->ctx->out;

    ngx_http_moe_text_format(out, "{\"index\":%u,", (unsigned) choice->index);

    if (ngx_http_moe_is_chat(choice->ctx)) {
        ngx_http_moe_whole_message(choice);

    } else {
        ngx_http_moe_text_literal(out, "\"text\":\"");
        ngx_http_moe_text_append(out, &choice->text);
        ngx_http_moe_text_literal(out, "\"");
    }

    ngx_http_moe_text_literal(out, ",\"logprobs\":");
    ngx_http_moe_openai_logprobs_value(out, choice);
    ngx_http_moe_text_format(out, ",\"finish_reason\":\"%s\"",
                             ngx_http_moe_finish_name(choice));
    ngx_http_moe_choice_details(out, choice);
    ngx_http_moe_text_literal(out, "}");
}


static void
ngx_http_moe_whole_message(ngx_http_moe_choice_t *choice)
{
    ngx_http_moe_text_t  *out;

    out = &choice->ctx->out;

    ngx_http_moe_text_literal(out, "\"message\":{\"role\":\"assistant\"");

    if (choice->tool_calls && choice->text.buffer.size == 0) {
        ngx_http_moe_text_literal(out, ",\"content\":null");

    } else {
        ngx_http_moe_text_literal(out, ",\"content\":\"");
        ngx_http_moe_text_append(out, &choice->text);
        ngx_http_moe_text_literal(out, "\"");
    }

    ngx_http_moe_text_literal(out, ",\"refusal\":null");

    if (choice->reasoning.buffer.size) {
        ngx_http_moe_text_literal(out, ",\"reasoning_content\":\"");
        ngx_http_moe_text_append(out, &choice->reasoning);
        ngx_http_moe_text_literal(out, "\"");
    }

    if (choice->tool_calls) {
        ngx_http_moe_text_literal(out, ",\"tool_calls\":[");
        ngx_http_moe_text_append(out, &choice->calls);
        ngx_http_moe_text_literal(out, "]");
    }

    ngx_http_moe_text_literal(out, "}");
}


static void
ngx_http_moe_usage(ngx_http_moe_ctx_t *ctx)
{
    uint64_t     prompt, cached, completion, reasoning;
    ngx_uint_t   i;

    prompt = 0;
    cached = 0;
    completion = 0;
    reasoning = 0;

    for (i = 0; i < ctx->n; i++) {
        prompt += ctx->choices[i].prompt_tokens;
        cached += ctx->choices[i].cached_tokens;
        completion += ctx->choices[i].completion_tokens;
        reasoning += ctx->choices[i].reasoning_tokens;
    }

    ngx_http_moe_text_format(&ctx->out,
        "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu"
        ",\"total_tokens\":%llu"
        ",\"prompt_tokens_details\":{\"cached_tokens\":%llu}"
        ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
        (unsigned long long) prompt, (unsigned long long) completion,
        (unsigned long long) (prompt + completion),
        (unsigned long long) cached, (unsigned long long) reasoning);
}
