/*
 * Functions that every template can call.
 */

#include "engine/text/template_ast.h"

#include <string.h>
#include <time.h>

#define STRFTIME_FORMAT 128
#define STRFTIME_RESULT 1024


static int copy_members(moe_job_t *job, moe_dict_t *dict, const moe_dict_t *from)
{
    for (size_t i = 0; i < from->count; i++) {
        if (moe_dict_set(job, dict, &from->entries[i].key, &from->entries[i].value) != 0) {
            return -1;
        }
    }
    return 0;
}


/* A list of pairs, as dict() takes it. */
static int copy_pairs(moe_job_t *job, moe_dict_t *dict, const moe_value_t *pairs)
{
    const moe_value_t *items, *pair;
    size_t count, two;

    if (moe_value_iterate(job, pairs, &items, &count) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        if (moe_value_iterate(job, &items[i], &pair, &two) != 0) {
            return -1;
        }
        if (two != 2) {
            return moe_job_fail(job, "'dict' needs pairs");
        }
        if (moe_dict_set(job, dict, &pair[0], &pair[1]) != 0) {
            return -1;
        }
    }
    return 0;
}


/* dict(mapping or pairs, name=value, ...). */
static int make_dict(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                     moe_value_t *result)
{
    moe_dict_t *dict = moe_dict_new(job);
    int status = 0;

    if (dict == NULL) {
        return -1;
    }
    if (given->n_positional > 1) {
        return moe_job_fail(job, "'dict' and 'namespace' take one positional argument");
    }
    if (given->n_positional == 1) {
        status = given->values[0].kind == MOE_VALUE_DICT
                 ? copy_members(job, dict, given->values[0].as.dict)
                 : copy_pairs(job, dict, &given->values[0]);
    }
    for (size_t i = given->n_positional; i < given->count && status == 0; i++) {
        status = moe_dict_set_string(job, dict, given->names[i], &given->values[i]);
    }
    *result = moe_dict_value(dict);
    return status;
}


static int make_namespace(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                          moe_value_t *result)
{
    if (make_dict(job, self, given, result) != 0) {
        return -1;
    }
    result->kind = MOE_VALUE_NAMESPACE;
    return 0;
}


/* range(stop), range(start, stop), range(start, stop, step), as a list. */
static int make_range(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                      moe_value_t *result)
{
    int64_t bounds[3] = { 0, 0, 1 };
    uint64_t span, step, count;
    moe_list_t *list;

    if (given->count == 0 || given->count > 3 || given->n_positional != given->count) {
        return moe_job_fail(job, "'range' takes 1 to 3 positional arguments");
    }
    for (size_t i = 0; i < given->count; i++) {
        if (!moe_value_as_integer(&given->values[i], &bounds[given->count == 1 ? 1 : i])) {
            return moe_job_fail(job, "'range' needs integers, not '%s'",
                                moe_value_type(&given->values[i]));
        }
    }
    if (bounds[2] == 0) {
        return moe_job_fail(job, "'range' with step 0");
    }
    step = bounds[2] > 0 ? (uint64_t) bounds[2] : 0 - (uint64_t) bounds[2];
    span = bounds[2] > 0 ? (uint64_t) bounds[1] - (uint64_t) bounds[0]
                         : (uint64_t) bounds[0] - (uint64_t) bounds[1];
    count = (bounds[2] > 0) == (bounds[1] > bounds[0]) && bounds[0] != bounds[1]
            ? (span - 1) / step + 1 : 0;
    list = moe_list_new(job, count);
    for (uint64_t i = 0; i < count; i++) {
        moe_value_t value = moe_integer((int64_t) ((uint64_t) bounds[0]
                                                   + i * (uint64_t) bounds[2]));

        if (list == NULL || moe_list_append(job, list, &value) != 0) {
            return -1;
        }
    }
    *result = moe_list_value(list);
    return list == NULL ? -1 : 0;
}


/* The template refuses the request: its own words, without a line. */
static int raise_exception(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                           moe_value_t *result)
{
    const moe_string_t *message = moe_value_string(job, &arguments[0]);

    return message == NULL ? -1 : moe_fail(job->error, MOE_INVALID, "%.*s", (int) message->size,
                                           message->data);
}


static int strftime_now(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    char format[STRFTIME_FORMAT + 2], text[STRFTIME_RESULT];
    time_t now = (time_t) job->now;
    const moe_string_t *given;
    struct tm tm;
    size_t size;

    if (arguments[0].kind != MOE_VALUE_STRING) {
        return moe_job_fail(job, "'strftime_now' needs a str");
    }
    given = arguments[0].as.string;
    if (given->size > STRFTIME_FORMAT || memchr(given->data, '\0', given->size) != NULL) {
        return moe_job_fail(job, "'strftime_now' needs a format of at most %d bytes",
                            STRFTIME_FORMAT);
    }
    memcpy(format, given->data, given->size);
    /* With a character of our own at its end an empty result is no error. */
    memcpy(format + given->size, ".", 2);
    size = gmtime_r(&now, &tm) == NULL ? 0 : strftime(text, sizeof(text), format, &tm);
    if (size == 0) {
        return moe_job_fail(job, "'strftime_now' cannot format this");
    }
    text[size - 1] = '\0';
    if (moe_utf8_valid_prefix(text, size - 1) != size - 1) {
        return moe_job_fail(job, "'strftime_now' was given a broken format");
    }
    *result = moe_string_value(moe_string_copy(job, text));
    return result->as.string == NULL ? -1 : 0;
}


const moe_builtin_t *moe_template_function(const char *name, size_t size)
{
    static const moe_builtin_t functions[] = {
        { .name = "namespace", .call_any = make_namespace },
        { .name = "dict", .call_any = make_dict },
        { .name = "range", .call_any = make_range },
        { .name = "raise_exception", .call = raise_exception, .required = 1,
          .parameters = { "message" } },
        { .name = "strftime_now", .call = strftime_now, .required = 1,
          .parameters = { "format" } },
        { .name = NULL }
    };

    return moe_builtin_find(functions, name, size);
}
