/*
 * Python's "%" on strings.  A specification is read into its parts first; numbers are then laid out
 * by hand from sign, prefix and digits, since C agrees with Python on the digits only.
 */

#include "engine/text/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_LIMIT 1000
#define PRECISION_LIMIT 100
#define DIGITS_SIZE 512         /* of the largest double with the largest precision */

typedef struct {
    int left, zero, plus, blank, alternate;
    int64_t width;
    int64_t precision;          /* -1: none */
    const moe_value_t *value;   /* of a name in parentheses, or NULL: the next one */
} specification_t;

typedef struct {
    moe_builder_t builder;
    const moe_string_t *format;
    size_t at;
    const moe_value_t *given;   /* behind the operator */
    const moe_value_t *items;
    size_t count, next;
} formatter_t;


static int next_value(formatter_t *formatter, const moe_value_t **value)
{
    if (formatter->next == formatter->count) {
        return moe_job_fail(formatter->builder.job, "not enough arguments for the format");
    }
    *value = &formatter->items[formatter->next++];
    return 0;
}


static char current(const formatter_t *formatter)
{
    return formatter->at < formatter->format->size ? formatter->format->data[formatter->at] : '\0';
}


static int incomplete(formatter_t *formatter)
{
    return moe_job_fail(formatter->builder.job, "a format that ends in its middle");
}


/* "(name)": a member of the dict that was given. */
static int read_name(formatter_t *formatter, specification_t *specification)
{
    const moe_string_t *format = formatter->format, *name;
    moe_job_t *job = formatter->builder.job;
    const char *end;

    if (current(formatter) != '(') {
        return 0;
    }
    end = memchr(format->data + formatter->at, ')', format->size - formatter->at);
    if (end == NULL) {
        return incomplete(formatter);
    }
    if (formatter->given->kind != MOE_VALUE_DICT) {
        return moe_job_fail(job, "a format with names needs a dict, not '%s'",
                            moe_value_type(formatter->given));
    }
    name = moe_string_slice(job, format, formatter->at + 1, (size_t) (end - format->data));
    if (name == NULL) {
        return -1;
    }
    formatter->at = (size_t) (end - format->data) + 1;
    specification->value = moe_dict_find_string(job, formatter->given->as.dict, name);
    return specification->value != NULL
           ? 0 : moe_job_fail(job, "the format's '%.*s' is not given",
                              (int) (name->size < 40 ? name->size : 40), name->data);
}


static void read_flags(formatter_t *formatter, specification_t *specification)
{
    for (;; formatter->at++) {
        switch (current(formatter)) {
        case '-':
            specification->left = 1;
            break;
        case '0':
            specification->zero = 1;
            break;
        case '+':
            specification->plus = 1;
            break;
        case ' ':
            specification->blank = 1;
            break;
        case '#':
            specification->alternate = 1;
            break;
        default:
            return;
        }
    }
}


/* Digits, or "*" for the next value. */
static int read_number(formatter_t *formatter, int64_t most, int64_t *number)
{
    moe_job_t *job = formatter->builder.job;
    const moe_value_t *value = NULL;

    if (current(formatter) == '*') {
        formatter->at++;
        if (next_value(formatter, &value) != 0) {
            return -1;
        }
        if (!moe_value_as_integer(value, number)) {
            return moe_job_fail(job, "a format's '*' needs an int");
        }
    } else {
        while (current(formatter) >= '0' && current(formatter) <= '9' && *number <= most) {
            *number = 10 * *number + (current(formatter) - '0');
            formatter->at++;
        }
    }
    return *number >= -most && *number <= most
           ? 0 : moe_job_fail(job, "a format with a number beyond %d", (int) most);
}


static int read_specification(formatter_t *formatter, specification_t *specification)
{
    *specification = (specification_t) { .precision = -1 };
    if (read_name(formatter, specification) != 0) {
        return -1;
    }
    read_flags(formatter, specification);
    if (read_number(formatter, WIDTH_LIMIT, &specification->width) != 0) {
        return -1;
    }
    if (specification->width < 0) {
        specification->left = 1;
        specification->width = -specification->width;
    }
    if (current(formatter) == '.') {
        formatter->at++;
        specification->precision = 0;
        if (read_number(formatter, PRECISION_LIMIT, &specification->precision) != 0) {
            return -1;
        }
        specification->precision = specification->precision < 0 ? 0 : specification->precision;
    }
    while (current(formatter) == 'h' || current(formatter) == 'l' || current(formatter) == 'L') {
        formatter->at++;
    }
    return 0;
}


static int add_padding(moe_builder_t *builder, const char *character, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (moe_builder_add_text(builder, character) != 0) {
            return -1;
        }
    }
    return 0;
}


static int add_string(formatter_t *formatter, const specification_t *specification,
                      const moe_string_t *string)
{
    moe_builder_t *builder = &formatter->builder;
    int64_t padding;

    if (string == NULL || moe_job_charge_bytes(builder->job, string->size) != 0) {
        return -1;
    }
    if (specification->precision >= 0 && (int64_t) string->length > specification->precision) {
        string = moe_string_slice(builder->job, string, 0,
                                  moe_string_offset(string, (size_t) specification->precision));
        if (string == NULL) {
            return -1;
        }
    }
    padding = specification->width - (int64_t) string->length;
    return (!specification->left && add_padding(builder, " ", padding) != 0)
           || moe_builder_add(builder, string) != 0
           || (specification->left && add_padding(builder, " ", padding) != 0) ? -1 : 0;
}


/* sign, prefix ("0x") and digits, filled up with zeros to `least` digits and to the width. */
static int add_digits(formatter_t *formatter, const specification_t *specification, int negative,
                      const char *prefix, const char *digits, int64_t least)
{
    moe_builder_t *builder = &formatter->builder;
    const char *sign = negative ? "-" : specification->plus ? "+" : specification->blank ? " " : "";
    int64_t used = (int64_t) (strlen(sign) + strlen(prefix)), size = (int64_t) strlen(digits);
    int64_t zeros = least > size ? least - size : 0, padding = specification->width - used - size;

    if (specification->zero && !specification->left && padding > zeros) {
        zeros = padding;
    }
    padding -= zeros;
    return (!specification->left && add_padding(builder, " ", padding) != 0)
           || moe_builder_add_text(builder, sign) != 0 || moe_builder_add_text(builder, prefix) != 0
           || add_padding(builder, "0", zeros) != 0 || moe_builder_add_text(builder, digits) != 0
           || (specification->left && add_padding(builder, " ", padding) != 0) ? -1 : 0;
}


static int add_integer(formatter_t *formatter, const specification_t *specification,
                       const moe_value_t *value, char conversion)
{
    int decimal = strchr("diu", conversion) != NULL;
    moe_job_t *job = formatter->builder.job;
    char digits[32], prefix[3] = "";
    unsigned long long magnitude;
    int64_t integer;

    if (!moe_value_as_integer(value, &integer)) {
        if (!decimal || value->kind != MOE_VALUE_FLOAT || !(fabs(value->as.real) < 9.2e18)) {
            return moe_job_fail(job, "%%%c needs a number, not '%s'", conversion,
                                moe_value_type(value));
        }
        integer = (int64_t) value->as.real;
    }
    magnitude = integer < 0 ? 0 - (unsigned long long) integer : (unsigned long long) integer;
    snprintf(digits, sizeof(digits), decimal ? "%llu" : conversion == 'o' ? "%llo"
                                     : conversion == 'x' ? "%llx" : "%llX", magnitude);
    if (!decimal && specification->alternate) {
        prefix[0] = '0';
        prefix[1] = conversion;
    }
    return add_digits(formatter, specification, integer < 0, prefix, digits,
                      specification->precision);
}


static int add_real(formatter_t *formatter, const specification_t *specification,
                    const moe_value_t *value, char conversion)
{
    const char format[] = {
        '%', specification->alternate ? '#' : '-', '.', '*', conversion, '\0'
    };
    int precision = specification->precision < 0 ? 6 : (int) specification->precision;
    char digits[DIGITS_SIZE];
    double real;

    if (!moe_value_as_double(value, &real)) {
        return moe_job_fail(formatter->builder.job, "%%%c needs a number, not '%s'", conversion,
                            moe_value_type(value));
    }
    snprintf(digits, sizeof(digits), format, precision, fabs(real));
    return add_digits(formatter, specification, signbit(real) && !isnan(real), "", digits, 0);
}


static int add_conversion(formatter_t *formatter, const specification_t *specification,
                          const moe_value_t *value, char conversion)
{
    moe_job_t *job = formatter->builder.job;
    moe_builder_t builder;

    switch (conversion) {
    case 's':
        return add_string(formatter, specification, moe_value_string(job, value));
    case 'r':
        moe_builder_start(&builder, job);
        return moe_builder_add_repr(&builder, value) != 0
               ? -1 : add_string(formatter, specification, moe_builder_finish(&builder));
    case 'd': case 'i': case 'u': case 'o': case 'x': case 'X':
        return add_integer(formatter, specification, value, conversion);
    case 'e': case 'E': case 'f': case 'F': case 'g': case 'G':
        return add_real(formatter, specification, value, conversion);
    default:
        return moe_job_fail(job, "a format with an unknown conversion");
    }
}


/* Behind a "%". */
static int format_one(formatter_t *formatter)
{
    specification_t specification;
    const moe_value_t *value;
    char conversion;

    if (read_specification(formatter, &specification) != 0) {
        return -1;
    }
    if (formatter->at == formatter->format->size) {
        return incomplete(formatter);
    }
    conversion = formatter->format->data[formatter->at++];
    if (conversion == '%') {
        return moe_builder_add_slice(&formatter->builder, formatter->format, formatter->at - 1,
                                     formatter->at);
    }
    value = specification.value;
    if (value == NULL && next_value(formatter, &value) != 0) {
        return -1;
    }
    return add_conversion(formatter, &specification, value, conversion);
}


int moe_string_percent(moe_job_t *job, const moe_string_t *format, const moe_value_t *given,
                       moe_value_t *result)
{
    formatter_t formatter = { .format = format, .given = given, .items = given, .count = 1 };

    if (given->kind == MOE_VALUE_TUPLE) {
        formatter.items = given->as.list->items;
        formatter.count = given->as.list->count;
    }
    moe_builder_start(&formatter.builder, job);
    while (formatter.at < format->size) {
        const char *found = memchr(format->data + formatter.at, '%', format->size - formatter.at);
        size_t end = found == NULL ? format->size : (size_t) (found - format->data);

        if (moe_job_charge(job, 1) != 0
            || moe_builder_add_slice(&formatter.builder, format, formatter.at, end) != 0)
        {
            return -1;
        }
        formatter.at = end;
        if (found != NULL) {
            formatter.at++;
            if (format_one(&formatter) != 0) {
                return -1;
            }
        }
    }
    if (formatter.next < formatter.count && given->kind != MOE_VALUE_DICT) {
        return moe_job_fail(job, "more arguments than the format has places");
    }
    return moe_give_string(moe_builder_finish(&formatter.builder), result);
}


/* value|format(a, b, ...) or value|format(name=a, ...). */
static int filter_format(moe_job_t *job, const moe_value_t *self, const moe_given_t *given,
                         moe_value_t *result)
{
    const moe_string_t *format = moe_value_string(job, self);
    moe_value_t values = moe_dict_value(NULL);

    if (format == NULL) {
        return -1;
    }
    if (given->n_positional > 0 && given->n_positional < given->count) {
        return moe_job_fail(job, "'format' takes positional or named arguments, not both");
    }
    if (given->n_positional == given->count) {
        moe_list_t list = { .items = given->values, .count = given->count };

        values = (moe_value_t) { .kind = MOE_VALUE_TUPLE, .as.list = &list };
        return moe_string_percent(job, format, &values, result);
    }
    values.as.dict = moe_dict_new(job);
    for (size_t i = 0; i < given->count; i++) {
        if (values.as.dict == NULL
            || moe_dict_set_string(job, values.as.dict, given->names[i], &given->values[i]) != 0)
        {
            return -1;
        }
    }
    return moe_string_percent(job, format, &values, result);
}


const moe_builtin_t moe_format_filters[] = {
    { .name = "format", .call_any = filter_format },
    { .name = NULL }
};
