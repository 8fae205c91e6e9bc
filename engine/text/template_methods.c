/*
 * Methods of strings, lists, dicts and loops.
 */

#include "engine/text/template_ast.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/template_case.h"


static int is_given(const moe_value_t *argument)
{
    return argument->kind != MOE_VALUE_UNDEFINED && argument->kind != MOE_VALUE_NONE;
}


/* A string argument; NULL without an error when it was not given. */
static int string_argument(moe_job_t *job, const moe_value_t *argument, const char *method,
                           const moe_string_t **string)
{
    *string = NULL;
    if (!is_given(argument)) {
        return 0;
    }
    if (argument->kind != MOE_VALUE_STRING) {
        return moe_job_fail(job, "'%s' needs a str, not '%s'", method, moe_value_type(argument));
    }
    *string = argument->as.string;
    return 0;
}


static int needed_string(moe_job_t *job, const moe_value_t *argument, const char *method,
                         const moe_string_t **string)
{
    if (string_argument(job, argument, method, string) != 0) {
        return -1;
    }
    return *string != NULL ? 0 : moe_job_fail(job, "'%s' needs a str, not '%s'", method,
                                              moe_value_type(argument));
}


static int integer_argument(moe_job_t *job, const moe_value_t *argument, const char *method,
                            int64_t otherwise, int64_t *integer)
{
    *integer = otherwise;
    if (argument->kind == MOE_VALUE_UNDEFINED || moe_value_as_integer(argument, integer)) {
        return 0;
    }
    return moe_job_fail(job, "'%s' needs an int, not '%s'", method, moe_value_type(argument));
}


static int trim(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments, int ends,
                moe_value_t *result)
{
    const moe_string_t *set;

    if (string_argument(job, &arguments[0], "strip", &set) != 0) {
        return -1;
    }
    return moe_give_string(moe_string_trim(job, self->as.string, set, ends), result);
}


static int string_strip(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return trim(job, self, arguments, MOE_TRIM_START | MOE_TRIM_END, result);
}


static int string_lstrip(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    return trim(job, self, arguments, MOE_TRIM_START, result);
}


static int string_rstrip(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    return trim(job, self, arguments, MOE_TRIM_END, result);
}


static int string_split(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    const moe_string_t *separator;
    int64_t most;

    if (string_argument(job, &arguments[0], "split", &separator) != 0
        || integer_argument(job, &arguments[1], "split", -1, &most) != 0)
    {
        return -1;
    }
    return moe_give_list(moe_string_split(job, self->as.string, separator, most), result);
}


static int string_rsplit(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    const moe_string_t *separator;
    int64_t most;

    if (string_argument(job, &arguments[0], "rsplit", &separator) != 0
        || integer_argument(job, &arguments[1], "rsplit", -1, &most) != 0)
    {
        return -1;
    }
    return moe_give_list(moe_string_split_right(job, self->as.string, separator, most), result);
}


static int string_splitlines(moe_job_t *job, const moe_value_t *self,
                             const moe_value_t *arguments, moe_value_t *result)
{
    return moe_give_list(moe_string_lines(job, self->as.string, moe_value_is_true(&arguments[0])),
                         result);
}


static int has_affix(const moe_string_t *string, const moe_string_t *affix, int at_end)
{
    return string->size >= affix->size
           && memcmp(string->data + (at_end ? string->size - affix->size : 0), affix->data,
                     affix->size) == 0;
}


/* A string, or a tuple of them. */
static int affix(moe_job_t *job, const moe_value_t *self, const moe_value_t *argument,
                 int at_end, moe_value_t *result)
{
    const moe_value_t *items = argument;
    size_t count = 1;

    if (argument->kind == MOE_VALUE_TUPLE) {
        items = argument->as.list->items;
        count = argument->as.list->count;
    }
    *result = moe_boolean(0);
    for (size_t i = 0; i < count; i++) {
        const moe_string_t *string;

        if (needed_string(job, &items[i], at_end ? "endswith" : "startswith", &string) != 0
            || moe_job_charge_bytes(job, string->size + 8) != 0)
        {
            return -1;
        }
        result->as.boolean |= has_affix(self->as.string, string, at_end);
    }
    return 0;
}


static int string_startswith(moe_job_t *job, const moe_value_t *self,
                             const moe_value_t *arguments, moe_value_t *result)
{
    return affix(job, self, &arguments[0], 0, result);
}


static int string_endswith(moe_job_t *job, const moe_value_t *self,
                           const moe_value_t *arguments, moe_value_t *result)
{
    return affix(job, self, &arguments[0], 1, result);
}


static int without_affix(moe_job_t *job, const moe_value_t *self, const moe_value_t *argument,
                         int at_end, moe_value_t *result)
{
    const moe_string_t *string = self->as.string, *fix;
    size_t start, end;

    if (needed_string(job, argument, at_end ? "removesuffix" : "removeprefix", &fix) != 0) {
        return -1;
    }
    if (!has_affix(string, fix, at_end)) {
        *result = *self;
        return 0;
    }
    start = at_end ? 0 : fix->size;
    end = at_end ? string->size - fix->size : string->size;
    return moe_give_string(moe_string_slice(job, string, start, end), result);
}


static int string_removeprefix(moe_job_t *job, const moe_value_t *self,
                               const moe_value_t *arguments, moe_value_t *result)
{
    return without_affix(job, self, &arguments[0], 0, result);
}


static int string_removesuffix(moe_job_t *job, const moe_value_t *self,
                               const moe_value_t *arguments, moe_value_t *result)
{
    return without_affix(job, self, &arguments[0], 1, result);
}


static int string_replace(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                          moe_value_t *result)
{
    const moe_string_t *old, *new;
    int64_t count;

    if (needed_string(job, &arguments[0], "replace", &old) != 0
        || needed_string(job, &arguments[1], "replace", &new) != 0
        || integer_argument(job, &arguments[2], "replace", -1, &count) != 0)
    {
        return -1;
    }
    return moe_give_string(moe_string_replace(job, self->as.string, old, new, count), result);
}


static int string_upper(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return moe_give_string(moe_string_case(job, self->as.string, MOE_CASE_UPPER), result);
}


static int string_lower(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return moe_give_string(moe_string_case(job, self->as.string, MOE_CASE_LOWER), result);
}


static int string_title(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return moe_give_string(moe_string_case(job, self->as.string, MOE_CASE_TITLE), result);
}


static int string_capitalize(moe_job_t *job, const moe_value_t *self,
                             const moe_value_t *arguments, moe_value_t *result)
{
    return moe_give_string(moe_string_case(job, self->as.string, MOE_CASE_CAPITALIZE), result);
}


/* Characters before a byte position. */
static int64_t count_characters(const moe_string_t *string, size_t end)
{
    int64_t count = 0;

    for (size_t i = 0; i < end; i++) {
        count += ((unsigned char) string->data[i] & 0xc0) != 0x80;
    }
    return count;
}


static int string_find(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_string_t *needle;
    size_t found;

    if (needed_string(job, &arguments[0], "find", &needle) != 0
        || moe_job_charge_bytes(job, 2 * self->as.string->size) != 0)
    {
        return -1;
    }
    found = moe_string_find(self->as.string, needle, 0);
    *result = moe_integer(found == SIZE_MAX ? -1 : count_characters(self->as.string, found));
    return 0;
}


static int string_count(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    const moe_string_t *string = self->as.string, *needle;
    int64_t count = 0;

    if (needed_string(job, &arguments[0], "count", &needle) != 0
        || moe_job_charge_bytes(job, 4 * string->size) != 0)
    {
        return -1;
    }
    if (needle->size == 0) {
        *result = moe_integer((int64_t) string->length + 1);
        return 0;
    }
    for (size_t at = 0; (at = moe_string_find(string, needle, at)) != SIZE_MAX;) {
        at += needle->size;
        count++;
    }
    *result = moe_integer(count);
    return 0;
}


static int string_is_digit(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                           moe_value_t *result)
{
    const moe_string_t *string = self->as.string;
    size_t digits = 0;

    for (size_t i = 0; i < string->size; i++) {
        digits += string->data[i] >= '0' && string->data[i] <= '9';
    }
    *result = moe_boolean(string->size > 0 && digits == string->size);
    return moe_job_charge_bytes(job, string->size);
}


static int string_join(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_value_t *items;
    moe_builder_t builder;
    size_t count;

    if (moe_value_iterate(job, &arguments[0], &items, &count) != 0) {
        return -1;
    }
    moe_builder_start(&builder, job);
    for (size_t i = 0; i < count; i++) {
        const moe_string_t *string;

        if (moe_job_charge(job, 1) != 0 || needed_string(job, &items[i], "join", &string) != 0
            || (i > 0 && moe_builder_add(&builder, self->as.string) != 0)
            || moe_builder_add(&builder, string) != 0)
        {
            return -1;
        }
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


/* The value of a replacement field "", "0" or "name". */
static const moe_value_t *find_field(const moe_given_t *given, const char *field, size_t size,
                                     size_t *next)
{
    size_t number = 0;

    for (size_t i = given->n_positional; i < given->count; i++) {
        const moe_string_t *name = given->names[i];

        if (name->size == size && memcmp(name->data, field, size) == 0) {
            return &given->values[i];
        }
    }
    for (size_t i = 0; i < size; i++) {
        if (field[i] < '0' || field[i] > '9' || number > given->count) {
            return NULL;
        }
        number = 10 * number + (size_t) (field[i] - '0');
    }
    number = size == 0 ? (*next)++ : number;
    return number < given->n_positional ? &given->values[number] : NULL;
}


/* Adds the field that begins behind the brace at `at`; returns where it ends, 0 on error. */
static size_t add_field(moe_builder_t *builder, const moe_string_t *format, size_t at,
                        const moe_given_t *given, size_t *next)
{
    const char *end = memchr(format->data + at, '}', format->size - at);
    const moe_value_t *value;
    const moe_string_t *string;
    size_t size;

    if (end == NULL) {
        moe_job_fail(builder->job, "'format' with a '{' that is not closed");
        return 0;
    }
    size = (size_t) (end - format->data) - at;
    value = find_field(given, format->data + at, size, next);
    if (value == NULL) {
        moe_job_fail(builder->job, "'format' has no value for the field '{%.*s}'",
                     (int) (size < 40 ? size : 40), format->data + at);
        return 0;
    }
    string = moe_value_string(builder->job, value);
    return string == NULL || moe_builder_add(builder, string) != 0 ? 0 : at + size + 1;
}


/* "{}", "{0}" and "{name}" fields, and doubled braces; no format specifications. */
static int string_format(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                         moe_value_t *result)
{
    const moe_string_t *format = self->as.string;
    size_t at = 0, next = 0;
    moe_builder_t builder;

    moe_builder_start(&builder, job);
    while (at < format->size) {
        size_t start = at;

        while (at < format->size && format->data[at] != '{' && format->data[at] != '}') {
            at++;
        }
        if (moe_builder_add_slice(&builder, format, start, at) != 0
            || moe_job_charge(job, 1) != 0)
        {
            return -1;
        }
        if (at == format->size) {
            break;
        }
        if (at + 1 < format->size && format->data[at + 1] == format->data[at]) {
            if (moe_builder_add_slice(&builder, format, at, at + 1) != 0) {
                return -1;
            }
            at += 2;
        } else if (format->data[at] == '}') {
            return moe_job_fail(job, "'format' with a '}' that was not opened");
        } else {
            at = add_field(&builder, format, at + 1, given, &next);
            if (at == 0) {
                return -1;
            }
        }
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


static int list_append(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    *result = moe_none();
    return moe_list_append(job, self->as.list, &arguments[0]);
}


static int list_extend(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_value_t *items;
    size_t count;

    *result = moe_none();
    if (moe_value_iterate(job, &arguments[0], &items, &count) != 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        if (moe_list_append(job, self->as.list, &items[i]) != 0) {
            return -1;
        }
    }
    return 0;
}


static int list_pop(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                    moe_value_t *result)
{
    moe_list_t *list = self->as.list;
    moe_value_t *items;
    int64_t index;
    size_t left;

    if (integer_argument(job, &arguments[0], "pop", -1, &index) != 0) {
        return -1;
    }
    index += index < 0 ? (int64_t) list->count : 0;
    if (index < 0 || index >= (int64_t) list->count) {
        return moe_job_fail(job, "'pop' of an item that is not there");
    }
    *result = list->items[index];
    left = list->count - 1;
    if ((size_t) index == left) {
        list->count = left;
        return 0;
    }
    /* A loop may be looking at the old items: they stay as they were. */
    if (moe_job_charge_bytes(job, left * sizeof(*items)) != 0) {
        return -1;
    }
    items = index == 0 ? list->items + 1 : moe_job_alloc(job, left * sizeof(*items));
    if (items == NULL) {
        return -1;
    }
    if (index > 0) {
        memcpy(items, list->items, (size_t) index * sizeof(*items));
        memcpy(items + index, list->items + index + 1,
               (left - (size_t) index) * sizeof(*items));
    }
    list->items = items;
    list->capacity = left;
    list->count = left;
    return 0;
}


static int list_index(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    for (size_t i = 0; i < self->as.list->count; i++) {
        int equal = moe_value_equal(job, &self->as.list->items[i], &arguments[0]);

        if (equal != 0) {
            *result = moe_integer((int64_t) i);
            return equal < 0 ? -1 : 0;
        }
    }
    return moe_job_fail(job, "'index' of an item that is not there");
}


static int list_count(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    int64_t count = 0;

    for (size_t i = 0; i < self->as.list->count; i++) {
        int equal = moe_value_equal(job, &self->as.list->items[i], &arguments[0]);

        if (equal < 0) {
            return -1;
        }
        count += equal;
    }
    *result = moe_integer(count);
    return 0;
}


static int dict_keys(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                     moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, self->as.dict->count);

    for (size_t i = 0; i < self->as.dict->count; i++) {
        if (list == NULL || moe_list_append(job, list, &self->as.dict->entries[i].key) != 0) {
            return -1;
        }
    }
    return moe_give_list(list, result);
}


static int dict_values(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, self->as.dict->count);

    for (size_t i = 0; i < self->as.dict->count; i++) {
        if (list == NULL || moe_list_append(job, list, &self->as.dict->entries[i].value) != 0) {
            return -1;
        }
    }
    return moe_give_list(list, result);
}


static int dict_items(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return moe_give_list(moe_dict_items(job, self->as.dict), result);
}


static int dict_get(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                    moe_value_t *result)
{
    const moe_value_t *found = moe_dict_find(job, self->as.dict, &arguments[0]);

    if (found != NULL) {
        *result = *found;
    } else {
        *result = arguments[1].kind == MOE_VALUE_UNDEFINED ? moe_none() : arguments[1];
    }
    return moe_job_charge(job, 1);
}


static int dict_update(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_dict_t *from = arguments[0].as.dict;

    *result = moe_none();
    if (arguments[0].kind != MOE_VALUE_DICT) {
        return moe_job_fail(job, "'update' needs a dict, not '%s'", moe_value_type(&arguments[0]));
    }
    for (size_t i = 0; i < from->count; i++) {
        if (moe_dict_set(job, self->as.dict, &from->entries[i].key,
                         &from->entries[i].value) != 0)
        {
            return -1;
        }
    }
    return 0;
}


static int loop_cycle(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                      moe_value_t *result)
{
    if (given->count == 0 || given->n_positional < given->count) {
        return moe_job_fail(job, "'cycle' takes positional arguments, at least one");
    }
    *result = given->values[self->as.loop->index % given->count];
    return 0;
}


/* Whether it is called with other values than the last time. */
static int loop_changed(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                        moe_value_t *result)
{
    moe_loop_t *loop = self->as.loop;
    moe_list_t *seen = moe_list_new(job, given->count);
    int equal = loop->seen != NULL && loop->seen->count == given->count;

    for (size_t i = 0; i < given->count; i++) {
        if (seen == NULL || moe_list_append(job, seen, &given->values[i]) != 0) {
            return -1;
        }
        if (equal > 0) {
            equal = moe_value_equal(job, &loop->seen->items[i], &given->values[i]);
        }
    }
    loop->seen = seen;
    *result = moe_boolean(equal == 0);
    return seen == NULL || equal < 0 ? -1 : 0;
}


const moe_builtin_t *moe_template_method(moe_value_kind_t kind, const char *name, size_t size)
{
    static const moe_builtin_t strings[] = {
        { .name = "strip", .call = string_strip, .parameters = { "chars" } },
        { .name = "lstrip", .call = string_lstrip, .parameters = { "chars" } },
        { .name = "rstrip", .call = string_rstrip, .parameters = { "chars" } },
        { .name = "split", .call = string_split, .parameters = { "sep", "maxsplit" } },
        { .name = "rsplit", .call = string_rsplit, .parameters = { "sep", "maxsplit" } },
        { .name = "splitlines", .call = string_splitlines, .parameters = { "keepends" } },
        { .name = "startswith", .call = string_startswith, .required = 1,
          .parameters = { "prefix" } },
        { .name = "endswith", .call = string_endswith, .required = 1,
          .parameters = { "suffix" } },
        { .name = "removeprefix", .call = string_removeprefix, .required = 1,
          .parameters = { "prefix" } },
        { .name = "removesuffix", .call = string_removesuffix, .required = 1,
          .parameters = { "suffix" } },
        { .name = "replace", .call = string_replace, .required = 2,
          .parameters = { "old", "new", "count" } },
        { .name = "format", .call_any = string_format },
        { .name = "upper", .call = string_upper },
        { .name = "lower", .call = string_lower },
        { .name = "title", .call = string_title },
        { .name = "capitalize", .call = string_capitalize },
        { .name = "find", .call = string_find, .required = 1, .parameters = { "sub" } },
        { .name = "count", .call = string_count, .required = 1, .parameters = { "sub" } },
        { .name = "isdigit", .call = string_is_digit },
        { .name = "join", .call = string_join, .required = 1, .parameters = { "iterable" } },
        { .name = NULL }
    };
    static const moe_builtin_t lists[] = {
        { .name = "append", .call = list_append, .required = 1, .parameters = { "object" } },
        { .name = "extend", .call = list_extend, .required = 1, .parameters = { "iterable" } },
        { .name = "pop", .call = list_pop, .parameters = { "index" } },
        { .name = "index", .call = list_index, .required = 1, .parameters = { "value" } },
        { .name = "count", .call = list_count, .required = 1, .parameters = { "value" } },
        { .name = NULL }
    };
    static const moe_builtin_t dicts[] = {
        { .name = "items", .call = dict_items },
        { .name = "keys", .call = dict_keys },
        { .name = "values", .call = dict_values },
        { .name = "get", .call = dict_get, .required = 1, .parameters = { "key", "default" } },
        { .name = "update", .call = dict_update, .required = 1, .parameters = { "other" } },
        { .name = NULL }
    };

    static const moe_builtin_t loops[] = {
        { .name = "cycle", .call_any = loop_cycle },
        { .name = "changed", .call_any = loop_changed },
        { .name = NULL }
    };

    switch (kind) {
    case MOE_VALUE_LOOP:
        return moe_builtin_find(loops, name, size);
    case MOE_VALUE_STRING:
        return moe_builtin_find(strings, name, size);
    case MOE_VALUE_LIST:
        return moe_builtin_find(lists, name, size);
    case MOE_VALUE_DICT:
        return moe_builtin_find(dicts, name, size);
    default:
        return NULL;
    }
}
