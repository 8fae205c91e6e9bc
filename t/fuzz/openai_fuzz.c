/*
 * Bodies of the OpenAI dialect through the module's parser.  The first byte chooses the route.  A
 * body gives frames that decode, or one problem: a 400 with a short message.
 */

#include "http/openai.h"
#include "http/reply.h"

#include "engine/text/text.h"
#include "t/fuzz/fuzz.h"


/* The parser's two ties to the rest of the module. */

ngx_http_moe_openai_kind_e ngx_http_moe_openai_kind(const ngx_http_moe_route_t *route)
{
    return *(const ngx_http_moe_openai_kind_e *) route->data;
}


void ngx_http_moe_problem(ngx_http_moe_problem_t *problem, ngx_uint_t status, const char *type,
                          const char *code, const char *field, const char *format, ...)
{
    va_list args;

    problem->status = status;
    problem->type = type;
    problem->code = code;
    snprintf(problem->field, sizeof(problem->field), "%s", field ? field : "");
    va_start(args, format);
    vsnprintf(problem->message, sizeof(problem->message), format, args);
    va_end(args);
}


static void check_frame(const moe_buffer_t *frame)
{
    moe_frame_header_t header;
    moe_request_t *request;
    moe_error_t error;

    fuzz_check(moe_frame_parse(frame->data, frame->size, &header, &error) == 1);
    fuzz_check(header.type == MOE_FRAME_REQUEST);
    fuzz_check(header.size + MOE_FRAME_HEADER == frame->size);
    request = moe_request_decode(frame->data + MOE_FRAME_HEADER, header.size, &error);
    fuzz_check(request != NULL);
    free(request);
}


static void check_problem(const ngx_http_moe_problem_t *problem)
{
    size_t size = strlen(problem->message);

    fuzz_check(problem->status == NGX_HTTP_BAD_REQUEST && size > 0);
    fuzz_check(moe_utf8_valid_prefix(problem->message, size) == size);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ngx_http_moe_openai_kind_e kinds[] = {
        NGX_HTTP_MOE_OPENAI_COMPLETION, NGX_HTTP_MOE_OPENAI_CHAT
    };
    fuzz_input_t input = { (const char *) data, size };
    ngx_http_moe_route_t route = { .data = &kinds[fuzz_byte(&input) & 1] };
    ngx_http_moe_job_t job = { .route = &route, .max_tokens = 1000 };

    job.body = (char *) (uintptr_t) input.data;
    job.size = input.size;
    ngx_http_moe_openai_parse(&job);
    if (job.failed) {
        check_problem(&job.problem);
    }
    fuzz_check(job.failed || job.n > 0);
    for (ngx_uint_t i = 0; i < job.n; i++) {
        if (!job.failed) {
            check_frame(&job.frames[i]);
        }
        moe_buffer_free(&job.frames[i]);
    }
    free(job.frames);
    free(job.model);
    return 0;
}
