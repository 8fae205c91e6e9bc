
/*
 * A value that does not fit is an error with the field's name and its range;
 * what is taken goes into the request that will be encoded, or into the job.
 */


#include "ngx_http_moe_module.h"
#include "http/openai_fields.h"
#include "http/reply.h"

#include <math.h>


#define NGX_HTTP_MOE_ARGUMENTS_DEPTH  64


static ngx_int_t ngx_http_moe_take_unsupported(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field);


ngx_int_t
ngx_http_moe_parse_error(ngx_http_moe_parse_t *parse, const char *code,
    const char *field, const char *format, ...)
{
    char     message[480];
    va_list  args;

    va_start(args, format);
    (void) vsnprintf(message, sizeof(message), format, args);
    va_end(args);

    ngx_http_moe_problem(&parse->job->problem, NGX_HTTP_BAD_REQUEST,
                         "invalid_request_error", code, field, "%s", message);
    parse->job->failed = 1;

    return NGX_ERROR;
}


ngx_int_t
ngx_http_moe_parse_error_at(ngx_http_moe_parse_t *parse, const char *code,
    const char *what, const char *format, ...)
{
    char     place[96];
    va_list  args;

    va_start(args, format);
    (void) vsnprintf(place, sizeof(place), format, args);
    va_end(args);

    return ngx_http_moe_parse_error(parse, code, place, "%s %s", place, what);
}


ngx_int_t
ngx_http_moe_take_string(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t               size;
    ngx_http_moe_job_t  *job;

    size = json_string_length(value);

    if (!json_is_string(value) || size < field->low || size > field->high) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a string of %.0f to %.0f bytes", field->name,
                   field->low, field->high);
    }

    job = parse->job;
    job->model = malloc(size);

    if (job->model == NULL) {
        return ngx_http_moe_parse_error(parse, NULL, field->name, "no memory");
    }

    ngx_memcpy(job->model, json_string_value(value), size);
    job->model_size = size;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_id(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!ngx_http_moe_made_of(value, NGX_HTTP_MOE_ALPHANUMERIC "-_.:",
                              NGX_HTTP_MOE_ID_LENGTH))
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a string of 1 to %d letters, digits or any "
                   "of \"-_.:\"", field->name, NGX_HTTP_MOE_ID_LENGTH);
    }

    ngx_memcpy(parse->job->id, json_string_value(value),
               json_string_length(value));

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_text(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (json_is_string(value)) {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error(parse, NULL, field->name,
                                    "%s must be a string", field->name);
}


ngx_int_t
ngx_http_moe_take_float(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    double  number;

    number = json_number_value(value);

    if (!json_is_number(value) || !isfinite(number)
        || number < field->low || number > field->high)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a number from %g to %g", field->name,
                   field->low, field->high);
    }

    *(float *) ((char *) parse + field->offset) = (float) number;
    parse->request.given |= field->flag;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_integer(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    json_int_t  number;

    number = json_integer_value(value);

    if (!json_is_integer(value)
        || number < field->low || number > field->high)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be an integer from %.0f to %.0f", field->name,
                   field->low, field->high);
    }

    *(int64_t *) ((char *) parse + field->offset) = number;

    return NGX_OK;
}


/* Also int32_t; -1 of top_k means the same as 0. */

ngx_int_t
ngx_http_moe_take_uint32(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    json_int_t  number;

    number = json_integer_value(value);

    if (!json_is_integer(value)
        || number < field->low || number > field->high)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be an integer from %.0f to %.0f", field->name,
                   field->low, field->high);
    }

    if (field->low == -1 && number == -1) {
        number = 0;
    }

    *(uint32_t *) ((char *) parse + field->offset) = (uint32_t) number;
    parse->request.given |= field->flag;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_seed(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_integer(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                                        "%s must be an integer", field->name);
    }

    parse->request.seed = (uint64_t) json_integer_value(value);
    parse->request.given |= MOE_GIVEN_SEED;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_boolean(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (json_is_boolean(value)) {
        return NGX_OK;
    }

    return ngx_http_moe_parse_error(parse, NULL, field->name,
                                    "%s must be true or false", field->name);
}


ngx_int_t
ngx_http_moe_take_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (ngx_http_moe_take_boolean(parse, field, value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (json_is_true(value)) {
        parse->request.flags |= field->flag;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_unset_flag(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (ngx_http_moe_take_boolean(parse, field, value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (json_is_false(value)) {
        parse->request.flags |= field->flag;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_switch(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    unsigned  on;

    if (ngx_http_moe_take_boolean(parse, field, value) != NGX_OK) {
        return NGX_ERROR;
    }

    on = json_is_true(value);

    switch (field->flag) {

    case NGX_HTTP_MOE_SWITCH_STREAM:
        parse->job->stream = on;
        break;

    case NGX_HTTP_MOE_SWITCH_ECHO:
        parse->job->echo = on;
        break;

    case NGX_HTTP_MOE_SWITCH_LOGPROBS:
        parse->chat_logprobs = on;
        break;

    case NGX_HTTP_MOE_SWITCH_TOKEN_IDS:
        parse->job->token_ids = on;
        break;

    default: /* NGX_HTTP_MOE_SWITCH_REASONING */
        parse->job->hide_reasoning = !on;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_moe_take_unsupported(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field)
{
    return ngx_http_moe_parse_error(parse, "unsupported_value", field->name,
                                    "%s with this value is not supported",
                                    field->name);
}


/* false, "", [], {}: nothing is asked for. */

ngx_int_t
ngx_http_moe_take_nothing(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (json_is_false(value)
        || (json_is_string(value) && json_string_length(value) == 0)
        || (json_is_array(value) && json_array_size(value) == 0)
        || (json_is_object(value) && json_object_size(value) == 0))
    {
        return NGX_OK;
    }

    return ngx_http_moe_take_unsupported(parse, field);
}


ngx_int_t
ngx_http_moe_take_format(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    const char  *type;

    type = json_string_value(json_object_get(value, "type"));

    if (type && strcmp(type, "text") == 0) {
        return NGX_OK;
    }

    return ngx_http_moe_take_unsupported(parse, field);
}


ngx_int_t
ngx_http_moe_take_prompt(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_string(value) && !json_is_array(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "prompt must be a string, a list of strings, a list of "
                   "token ids or a list of such lists");
    }

    parse->prompt = value;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_stop(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    size_t   i, n, size;
    json_t  *stop;

    n = json_is_string(value) ? 1 : json_array_size(value);

    if ((!json_is_string(value) && !json_is_array(value))
        || n > MOE_STOPS_LIMIT)
    {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "stop must be a string or a list of at most %u strings",
                   MOE_STOPS_LIMIT);
    }

    for (i = 0; i < n; i++) {
        stop = json_is_string(value) ? value : json_array_get(value, i);
        size = json_string_length(stop);

        if (!json_is_string(stop) || size == 0 || size > MOE_STOP_BYTES_LIMIT)
        {
            return ngx_http_moe_parse_error(parse, NULL, field->name,
                       "a stop string must be a string of 1 to %u bytes",
                       MOE_STOP_BYTES_LIMIT);
        }

        parse->stops[i].data = json_string_value(stop);
        parse->stops[i].size = size;
    }

    parse->request.stops = parse->stops;
    parse->request.n_stops = n;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_ids(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    uint32_t  *ids;

    if (!json_is_array(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must be a list of token ids", field->name);
    }

    if (json_array_size(value) == 0) {
        return NGX_OK;
    }

    ids = ngx_http_moe_ids(parse, field->name, value, MOE_ID_LIST_LIMIT);
    if (ids == NULL) {
        return NGX_ERROR;
    }

    *(uint32_t **) ((char *) parse + field->offset) = ids;

    if (ids == parse->stop_ids) {
        parse->request.stop_ids = ids;
        parse->request.n_stop_ids = json_array_size(value);

    } else {
        parse->request.allowed_ids = ids;
        parse->request.n_allowed_ids = json_array_size(value);
    }

    return NGX_OK;
}


uint32_t *
ngx_http_moe_ids(ngx_http_moe_parse_t *parse, const char *field, json_t *list,
    uint32_t limit)
{
    size_t       i, n;
    json_t      *id;
    uint32_t    *ids;
    json_int_t   number;

    n = json_array_size(list);

    if (n > limit) {
        (void) ngx_http_moe_parse_error(parse, NULL, field,
                   "%s has more than %u elements", field, limit);
        return NULL;
    }

    ids = malloc(n * sizeof(uint32_t));
    if (ids == NULL) {
        (void) ngx_http_moe_parse_error(parse, NULL, field, "no memory");
        return NULL;
    }

    for (i = 0; i < n; i++) {
        id = json_array_get(list, i);
        number = json_integer_value(id);

        if (!json_is_integer(id) || number < 0 || number > INT32_MAX) {
            (void) ngx_http_moe_parse_error(parse, NULL, field,
                       "%s: element %zu is not a token id", field, i);
            free(ids);
            return NULL;
        }

        ids[i] = (uint32_t) number;
    }

    return ids;
}


ngx_int_t
ngx_http_moe_take_bias(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    char              *end;
    size_t             n;
    json_t            *bias;
    const char        *key;
    unsigned long      id;
    moe_logit_bias_t  *biases;

    n = json_object_size(value);

    if (!json_is_object(value) || n > MOE_ID_LIST_LIMIT) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "logit_bias must be an object of at most %u token ids",
                   MOE_ID_LIST_LIMIT);
    }

    biases = malloc((n + 1) * sizeof(moe_logit_bias_t));
    if (biases == NULL) {
        return ngx_http_moe_parse_error(parse, NULL, field->name, "no memory");
    }

    parse->biases = biases;
    n = 0;

    json_object_foreach(value, key, bias) {

        errno = 0;
        id = strtoul(key, &end, 10);

        if (key[0] < '0' || key[0] > '9' || *end != '\0' || errno
            || id > INT32_MAX)
        {
            return ngx_http_moe_parse_error(parse, NULL, field->name,
                       "a key of logit_bias is not a token id");
        }

        if (!json_is_number(bias)
            || !(json_number_value(bias) >= field->low)
            || !(json_number_value(bias) <= field->high))
        {
            return ngx_http_moe_parse_error(parse, NULL, field->name,
                       "logit_bias of token %lu must be a number from %g "
                       "to %g", id, field->low, field->high);
        }

        biases[n].id = (uint32_t) id;
        biases[n].bias = (float) json_number_value(bias);
        n++;
    }

    parse->request.biases = biases;
    parse->request.n_biases = n;

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_stream_options(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    json_t  *usage;

    if (!json_is_object(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                                        "stream_options must be an object");
    }

    parse->usage_given = 1;

    usage = json_object_get(value, "include_usage");

    if (usage && !json_is_boolean(usage) && !json_is_null(usage)) {
        return ngx_http_moe_parse_error(parse, NULL,
                   "stream_options.include_usage",
                   "stream_options.include_usage must be true or false");
    }

    parse->job->include_usage = json_is_true(usage) ? 1 : 0;

    return NGX_OK;
}


ngx_uint_t
ngx_http_moe_made_of(json_t *value, const char *allowed, size_t limit)
{
    size_t       size;
    const char  *string;

    string = json_string_value(value);
    size = json_string_length(value);

    return string && size > 0 && size <= limit
           && strspn(string, allowed) == size;
}


ngx_uint_t
ngx_http_moe_deeper(json_t *value, ngx_uint_t levels)
{
    size_t       i;
    json_t      *member;
    const char  *key;

    if (!json_is_object(value) && !json_is_array(value)) {
        return 0;
    }

    if (levels == 0) {
        return 1;
    }

    json_array_foreach(value, i, member) {
        if (ngx_http_moe_deeper(member, levels - 1)) {
            return 1;
        }
    }

    json_object_foreach(value, key, member) {
        if (ngx_http_moe_deeper(member, levels - 1)) {
            return 1;
        }
    }

    return 0;
}


ngx_int_t
ngx_http_moe_take_arguments(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_object(value)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "chat_template_kwargs must be an object");
    }

    if (ngx_http_moe_deeper(value, NGX_HTTP_MOE_ARGUMENTS_DEPTH)) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "%s must not be nested more than %d levels deep",
                   field->name, NGX_HTTP_MOE_ARGUMENTS_DEPTH);
    }

    parse->arguments = json_copy(value);

    return NGX_OK;
}


ngx_int_t
ngx_http_moe_take_effort(ngx_http_moe_parse_t *parse,
    const ngx_http_moe_field_t *field, json_t *value)
{
    if (!json_is_string(value) || json_string_length(value) > 32) {
        return ngx_http_moe_parse_error(parse, NULL, field->name,
                   "reasoning_effort must be a short string");
    }

    if (parse->arguments == NULL) {
        parse->arguments = json_object();
    }

    if (json_object_set(parse->arguments, field->name, value) != 0) {
        return ngx_http_moe_parse_error(parse, NULL, field->name, "no memory");
    }

    return NGX_OK;
}
