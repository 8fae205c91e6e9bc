/*
 * Filters of sequences and dicts.
 */

#include "engine/text/template_ast.h"

#include <string.h>

#include "engine/text/template_case.h"
#include "engine/text/template_select.h"


static int filter_default(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                          moe_value_t *result)
{
    if (self->kind != MOE_VALUE_UNDEFINED
        && (moe_value_is_true(self) || !moe_value_is_true(&arguments[1])))
    {
        *result = *self;
        return 0;
    }
    *result = arguments[0];
    return arguments[0].kind != MOE_VALUE_UNDEFINED
           ? 0 : moe_give_string(moe_string_copy(job, ""), result);
}


static int filter_length(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    int64_t length = moe_value_length(self);

    *result = moe_integer(length);
    return length >= 0 ? 0 : moe_job_fail(job, "'%s' has no length", moe_value_type(self));
}


static int filter_list(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_value_t *items;
    moe_list_t *list;
    size_t count;

    if (moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    list = moe_list_new(job, count);
    for (size_t i = 0; i < count; i++) {
        if (list == NULL || moe_list_append(job, list, &items[i]) != 0) {
            return -1;
        }
    }
    return moe_give_list(list, result);
}


static int item_at_end(moe_job_t *job, const moe_value_t *self, int last, moe_value_t *result)
{
    const moe_value_t *items;
    size_t count;

    if (moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    *result = count == 0 ? moe_undefined(NULL) : items[last ? count - 1 : 0];
    return 0;
}


static int filter_first(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return item_at_end(job, self, 0, result);
}


static int filter_last(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    return item_at_end(job, self, 1, result);
}


static int filter_reverse(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                          moe_value_t *result)
{
    const moe_value_t bounds[3] = { moe_none(), moe_none(), moe_integer(-1) };

    if (self->kind == MOE_VALUE_STRING) {
        return moe_value_slice(job, self, bounds, result);
    }
    if (filter_list(job, self, arguments, result) != 0) {
        return -1;
    }
    return moe_value_slice(job, result, bounds, result);
}


static int filter_join(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_string_t *separator = moe_value_string(job, &arguments[0]);
    const moe_value_t *items;
    moe_builder_t builder;
    size_t count;

    if (separator == NULL || moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    moe_builder_start(&builder, job);
    for (size_t i = 0; i < count; i++) {
        const moe_string_t *string;
        moe_value_t item;

        if (moe_select_attribute(job, &items[i], &arguments[1], &item) != 0
            || (string = moe_value_string(job, &item)) == NULL
            || (i > 0 && moe_builder_add(&builder, separator) != 0)
            || moe_builder_add(&builder, string) != 0)
        {
            return -1;
        }
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


static int filter_items(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    if (self->kind == MOE_VALUE_UNDEFINED) {
        return moe_give_list(moe_list_new(job, 0), result);
    }
    if (self->kind != MOE_VALUE_DICT) {
        return moe_job_fail(job, "'items' needs a dict, not '%s'", moe_value_type(self));
    }
    return moe_give_list(moe_dict_items(job, self->as.dict), result);
}


/* What is compared in the place of an item: an attribute, in lower case where case is ignored. */
static int sort_key(moe_job_t *job, const moe_value_t *item, const moe_value_t *attribute,
                    int case_sensitive, moe_value_t *key)
{
    if (moe_select_attribute(job, item, attribute, key) != 0) {
        return -1;
    }
    if (key->kind == MOE_VALUE_STRING && !case_sensitive) {
        key->as.string = moe_string_case(job, key->as.string, MOE_CASE_LOWER);
        return key->as.string == NULL ? -1 : 0;
    }
    return 0;
}


typedef struct {
    moe_value_t key, item;
} keyed_t;


static keyed_t *keyed_items(moe_job_t *job, const moe_value_t *items, size_t count,
                            const moe_value_t *attribute, int case_sensitive)
{
    keyed_t *keyed = moe_job_alloc(job, count * sizeof(*keyed));

    for (size_t i = 0; keyed != NULL && i < count; i++) {
        keyed[i].item = items[i];
        if (moe_job_charge(job, 1) != 0
            || sort_key(job, &items[i], attribute, case_sensitive, &keyed[i].key) != 0)
        {
            return NULL;
        }
    }
    return keyed;
}


/* Merges from[start..middle) and from[middle..end) into `to`; equal keys keep their order. */
static int merge(moe_job_t *job, const keyed_t *from, keyed_t *to, const size_t bounds[3],
                 int reverse)
{
    size_t i = bounds[0], j = bounds[1];

    for (size_t k = bounds[0]; k < bounds[2]; k++) {
        int order = 0;

        if (i < bounds[1] && j < bounds[2]
            && moe_value_compare(job, &from[i].key, &from[j].key, &order) != 0)
        {
            return -1;
        }
        order = reverse ? -order : order;
        to[k] = i < bounds[1] && (j == bounds[2] || order <= 0) ? from[i++] : from[j++];
    }
    return 0;
}


/* A stable merge sort, from short runs to long ones. */
static keyed_t *sort(moe_job_t *job, keyed_t *from, size_t count, int reverse)
{
    keyed_t *to = moe_job_alloc(job, count * sizeof(*to));

    if (to == NULL) {
        return NULL;
    }
    for (size_t width = 1; width < count; width *= 2) {
        keyed_t *swap;

        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count;
            size_t end = middle + width < count ? middle + width : count;
            const size_t bounds[3] = { start, middle, end };

            if (moe_job_charge(job, end - start) != 0
                || merge(job, from, to, bounds, reverse) != 0)
            {
                return NULL;
            }
        }
        swap = from;
        from = to;
        to = swap;
    }
    return from;
}


static int sorted_list(moe_job_t *job, keyed_t *keyed, size_t count, int reverse,
                       moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, count);

    keyed = keyed == NULL || list == NULL ? NULL : sort(job, keyed, count, reverse);
    for (size_t i = 0; i < count; i++) {
        if (keyed == NULL || moe_list_append(job, list, &keyed[i].item) != 0) {
            return -1;
        }
    }
    return moe_give_list(keyed == NULL ? NULL : list, result);
}


static int filter_sort(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_value_t *items;
    size_t count;

    if (moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    return sorted_list(job, keyed_items(job, items, count, &arguments[2],
                                        moe_value_is_true(&arguments[1])),
                       count, moe_value_is_true(&arguments[0]), result);
}


static int filter_dictsort(moe_job_t *job, const moe_value_t *self,
                           const moe_value_t *arguments, moe_value_t *result)
{
    moe_value_t part = moe_integer(0);
    moe_list_t *items;

    if (self->kind != MOE_VALUE_DICT) {
        return moe_job_fail(job, "'dictsort' needs a dict, not '%s'", moe_value_type(self));
    }
    if (arguments[1].kind == MOE_VALUE_STRING && moe_string_is(arguments[1].as.string, "value")) {
        part = moe_integer(1);
    }
    items = moe_dict_items(job, self->as.dict);
    if (items == NULL) {
        return -1;
    }
    return sorted_list(job, keyed_items(job, items->items, items->count, &part,
                                        moe_value_is_true(&arguments[0])),
                       items->count, moe_value_is_true(&arguments[2]), result);
}


static int filter_unique(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, 0);
    moe_dict_t *seen = moe_dict_new(job);
    const moe_value_t *items;
    size_t count;

    if (list == NULL || seen == NULL || moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        size_t before = seen->count;
        moe_value_t key;

        if (sort_key(job, &items[i], &arguments[1], moe_value_is_true(&arguments[0]), &key) != 0
            || moe_dict_set(job, seen, &key, &key) != 0
            || (seen->count > before && moe_list_append(job, list, &items[i]) != 0)
            || moe_job_charge(job, 1) != 0)
        {
            return -1;
        }
    }
    return moe_give_list(list, result);
}


static int extreme(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                   int sign, moe_value_t *result)
{
    const moe_value_t *items;
    keyed_t *keyed;
    size_t count, best = 0;

    if (moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    keyed = keyed_items(job, items, count, &arguments[1], moe_value_is_true(&arguments[0]));
    if (keyed == NULL) {
        return -1;
    }
    for (size_t i = 1; i < count; i++) {
        int order;

        if (moe_value_compare(job, &keyed[i].key, &keyed[best].key, &order) != 0) {
            return -1;
        }
        best = sign * order > 0 ? i : best;
    }
    *result = count == 0 ? moe_undefined(NULL) : items[best];
    return 0;
}


static int filter_min(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return extreme(job, self, arguments, -1, result);
}


static int filter_max(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return extreme(job, self, arguments, 1, result);
}


static int filter_sum(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    const moe_value_t *items;
    size_t count;

    if (moe_value_iterate(job, self, &items, &count) != 0) {
        return -1;
    }
    *result = arguments[1].kind == MOE_VALUE_UNDEFINED ? moe_integer(0) : arguments[1];
    for (size_t i = 0; i < count; i++) {
        moe_value_t item, sum;

        if (moe_job_charge(job, 1) != 0
            || moe_select_attribute(job, &items[i], &arguments[0], &item) != 0
            || moe_value_binary(job, MOE_OP_ADD, result, &item, &sum) != 0)
        {
            return -1;
        }
        *result = sum;
    }
    return 0;
}


const moe_builtin_t moe_list_filters[] = {
    { .name = "default", .call = filter_default, .parameters = { "default_value", "boolean" } },
    { .name = "d", .call = filter_default, .parameters = { "default_value", "boolean" } },
    { .name = "length", .call = filter_length },
    { .name = "count", .call = filter_length },
    { .name = "list", .call = filter_list },
    { .name = "first", .call = filter_first },
    { .name = "last", .call = filter_last },
    { .name = "reverse", .call = filter_reverse },
    { .name = "join", .call = filter_join, .parameters = { "d", "attribute" } },
    { .name = "items", .call = filter_items },
    { .name = "sort", .call = filter_sort,
      .parameters = { "reverse", "case_sensitive", "attribute" } },
    { .name = "dictsort", .call = filter_dictsort,
      .parameters = { "case_sensitive", "by", "reverse" } },
    { .name = "unique", .call = filter_unique, .parameters = { "case_sensitive", "attribute" } },
    { .name = "min", .call = filter_min, .parameters = { "case_sensitive", "attribute" } },
    { .name = "max", .call = filter_max, .parameters = { "case_sensitive", "attribute" } },
    { .name = "sum", .call = filter_sum, .parameters = { "attribute", "start" } },
    { .name = NULL }
};
