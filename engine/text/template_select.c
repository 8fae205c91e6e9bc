/*
 * Filters that apply other filters and tests to every item: map, select and their kin.
 */

#include "engine/text/template_select.h"

#include <string.h>


/* A part of a path: digits are an index. */
static int take_part(moe_job_t *job, const moe_value_t *object, const moe_string_t *path,
                     size_t start, size_t end, moe_value_t *result)
{
    const moe_string_t *part = moe_string_slice(job, path, start, end);
    moe_value_t key = moe_string_value(part);
    int64_t index = 0;
    size_t at = start;

    while (at < end && path->data[at] >= '0' && path->data[at] <= '9' && at - start < 9) {
        index = 10 * index + (path->data[at++] - '0');
    }
    if (at == end && start < end) {
        key = moe_integer(index);
    }
    return part == NULL ? -1 : moe_value_item(job, object, &key, result);
}


int moe_select_attribute(moe_job_t *job, const moe_value_t *item, const moe_value_t *attribute,
                         moe_value_t *result)
{
    const moe_string_t *path;
    moe_value_t object = *item;
    size_t start = 0;

    if (attribute->kind == MOE_VALUE_UNDEFINED || attribute->kind == MOE_VALUE_NONE) {
        *result = *item;
        return moe_job_charge(job, 1);
    }
    if (attribute->kind != MOE_VALUE_STRING) {
        return moe_value_item(job, item, attribute, result);
    }
    path = attribute->as.string;
    do {
        const char *dot = memchr(path->data + start, '.', path->size - start);
        size_t end = dot == NULL ? path->size : (size_t) (dot - path->data);

        if (moe_job_charge(job, 1) != 0
            || take_part(job, &object, path, start, end, result) != 0)
        {
            return -1;
        }
        object = *result;
        start = end + 1;
    } while (start <= path->size);
    return 0;
}


/* The arguments behind the first `skipped` ones. */
static moe_given_t rest_of(const moe_given_t *given, size_t skipped)
{
    if (skipped == 0) {
        return *given;
    }
    return (moe_given_t) {
        .values = given->values + skipped, .names = given->names + skipped,
        .count = given->count - skipped, .n_positional = given->n_positional - skipped
    };
}


static int keep_items(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                      int by_attribute, int wanted, moe_value_t *result)
{
    size_t skipped = by_attribute ? 1 : 0;
    moe_value_t attribute = moe_none();
    const moe_builtin_t *test = NULL;
    const moe_value_t *items;
    moe_given_t rest;
    moe_list_t *list = moe_list_new(job, 0);
    size_t count;

    if (list == NULL || moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    if (given->n_positional < skipped) {
        return moe_job_fail(job, "'selectattr' and 'rejectattr' need an attribute");
    }
    if (by_attribute) {
        attribute = given->values[0];
    }
    if (given->n_positional > skipped) {
        const moe_value_t *name = &given->values[skipped++];

        test = name->kind != MOE_VALUE_STRING
               ? NULL : moe_template_test(name->as.string->data, name->as.string->size);
        if (test == NULL) {
            return moe_job_fail(job, "a filter names a test that is not known");
        }
    }
    rest = rest_of(given, skipped);
    for (size_t i = 0; i < count; i++) {
        moe_value_t value, verdict;

        if (moe_select_attribute(job, &items[i], &attribute, &value) != 0) {
            return -1;
        }
        verdict = value;
        if (test != NULL && moe_builtin_call(job, test, &value, &rest, &verdict) != 0) {
            return -1;
        }
        if (moe_value_is_true(&verdict) == wanted && moe_list_append(job, list, &items[i]) != 0) {
            return -1;
        }
    }
    *result = moe_list_value(list);
    return 0;
}


static int filter_select(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                         moe_value_t *result)
{
    return keep_items(job, self, given, 0, 1, result);
}


static int filter_reject(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                         moe_value_t *result)
{
    return keep_items(job, self, given, 0, 0, result);
}


static int filter_selectattr(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                             moe_value_t *result)
{
    return keep_items(job, self, given, 1, 1, result);
}


static int filter_rejectattr(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                             moe_value_t *result)
{
    return keep_items(job, self, given, 1, 0, result);
}


/* map(attribute=..., default=...) */
static int map_attribute(moe_job_t *job, const moe_value_t *items, size_t count,
                         const moe_given_t *given, moe_list_t *list)
{
    moe_value_t attribute = moe_undefined(NULL), otherwise = moe_undefined(NULL);

    for (size_t i = 0; i < given->count; i++) {
        if (moe_string_is(given->names[i], "attribute")) {
            attribute = given->values[i];
        } else if (moe_string_is(given->names[i], "default")) {
            otherwise = given->values[i];
        } else {
            return moe_job_fail(job, "'map' was given an argument it does not take");
        }
    }
    if (attribute.kind == MOE_VALUE_UNDEFINED) {
        return moe_job_fail(job, "'map' needs a filter or an attribute");
    }
    for (size_t i = 0; i < count; i++) {
        moe_value_t value;

        if (moe_select_attribute(job, &items[i], &attribute, &value) != 0) {
            return -1;
        }
        if (value.kind == MOE_VALUE_UNDEFINED) {
            value = otherwise;
        }
        if (moe_list_append(job, list, &value) != 0) {
            return -1;
        }
    }
    return 0;
}


/* map('filter', arguments...) */
static int map_filter(moe_job_t *job, const moe_value_t *items, size_t count,
                      const moe_given_t *given, moe_list_t *list)
{
    const moe_value_t *name = &given->values[0];
    const moe_builtin_t *filter = name->kind != MOE_VALUE_STRING
        ? NULL : moe_template_filter(name->as.string->data, name->as.string->size);
    moe_given_t rest = rest_of(given, 1);

    if (filter == NULL) {
        return moe_job_fail(job, "'map' names a filter that is not known");
    }
    for (size_t i = 0; i < count; i++) {
        moe_value_t value;

        if (moe_job_charge(job, 1) != 0
            || moe_builtin_call(job, filter, &items[i], &rest, &value) != 0
            || moe_list_append(job, list, &value) != 0)
        {
            return -1;
        }
    }
    return 0;
}


/* A filter may be map itself: one level deeper for each. */
static int filter_map(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                      moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, 0);
    const moe_value_t *items;
    size_t count;
    int status;

    if (list == NULL || moe_job_enter(job) != 0
        || moe_value_iterate(job, self, &items, &count) != 0)
    {
        return -1;
    }
    status = given->n_positional == 0 ? map_attribute(job, items, count, given, list)
                                      : map_filter(job, items, count, given, list);
    moe_job_leave(job);
    *result = moe_list_value(list);
    return status;
}


static int filter_attr(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    if (arguments[0].kind != MOE_VALUE_STRING) {
        return moe_job_fail(job, "'attr' needs a str");
    }
    return moe_value_attribute(job, self, arguments[0].as.string, result);
}


const moe_builtin_t moe_select_filters[] = {
    { .name = "select", .call_any = filter_select },
    { .name = "reject", .call_any = filter_reject },
    { .name = "selectattr", .call_any = filter_selectattr },
    { .name = "rejectattr", .call_any = filter_rejectattr },
    { .name = "map", .call_any = filter_map },
    { .name = "attr", .call = filter_attr, .required = 1, .parameters = { "name" } },
    { .name = NULL }
};
