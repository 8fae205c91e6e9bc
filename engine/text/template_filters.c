/*
 * Filters of strings and numbers.  As in Jinja, what is no string is printed first.
 */

#include "engine/text/template_ast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/template_case.h"

#define JSON_BYTES_PER_CHARACTER 64     /* jansson's worst case: "[[],[],..." */


static int filter_string(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    return moe_give_string(moe_value_string(job, self), result);
}


static int filter_safe(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    *result = *self;
    return 0;
}


static int filter_trim(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    const moe_string_t *string = moe_value_string(job, self);
    const moe_string_t *set = arguments[0].kind == MOE_VALUE_STRING ? arguments[0].as.string
                                                                    : NULL;

    return string == NULL
           ? -1 : moe_give_string(moe_string_trim(job, string, set, MOE_TRIM_START | MOE_TRIM_END),
                                  result);
}


static int change_case(moe_job_t *job, const moe_value_t *self, moe_case_t how,
                       moe_value_t *result)
{
    const moe_string_t *string = moe_value_string(job, self);

    return string == NULL ? -1 : moe_give_string(moe_string_case(job, string, how), result);
}


static int filter_upper(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return change_case(job, self, MOE_CASE_UPPER, result);
}


static int filter_lower(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return change_case(job, self, MOE_CASE_LOWER, result);
}


static int filter_capitalize(moe_job_t *job, const moe_value_t *self,
                             const moe_value_t *arguments, moe_value_t *result)
{
    return change_case(job, self, MOE_CASE_CAPITALIZE, result);
}


/* Words begin behind blanks, hyphens and opening brackets: unlike the method's. */
static int filter_title(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    const moe_string_t *string = moe_value_string(job, self), *part;
    moe_builder_t builder;
    size_t start = 0;

    if (string == NULL || moe_job_charge_bytes(job, 4 * string->size) != 0) {
        return -1;
    }
    moe_builder_start(&builder, job);
    for (size_t at = 0, size; at < string->size; at += size) {
        uint32_t code_point;

        size = moe_string_character(string, at, &code_point);
        if (!moe_is_blank(code_point)
            && (code_point > 0x7f || strchr("-({[<", (int) code_point) == NULL)
            && at + size < string->size)
        {
            continue;
        }
        part = moe_string_slice(job, string, start, at + size);
        part = part == NULL ? NULL : moe_string_case(job, part, MOE_CASE_CAPITALIZE);
        if (part == NULL || moe_builder_add(&builder, part) != 0) {
            return -1;
        }
        start = at + size;
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


static int filter_replace(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                          moe_value_t *result)
{
    const moe_string_t *string = moe_value_string(job, self);
    const moe_string_t *old = string == NULL ? NULL : moe_value_string(job, &arguments[0]);
    const moe_string_t *new = old == NULL ? NULL : moe_value_string(job, &arguments[1]);
    int64_t count = -1;

    if (new == NULL) {
        return -1;
    }
    moe_value_as_integer(&arguments[2], &count);
    return moe_give_string(moe_string_replace(job, string, old, new, count), result);
}


static int filter_escape(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    static const struct { char character; const char *entity; } entities[] = {
        { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '\'', "&#39;" }, { '"', "&#34;" }
    };
    const moe_string_t *string = moe_value_string(job, self);
    moe_builder_t builder;
    size_t plain = 0;

    if (string == NULL || moe_job_charge_bytes(job, 4 * string->size) != 0) {
        return -1;
    }
    moe_builder_start(&builder, job);
    for (size_t at = 0; at < string->size; at++) {
        for (size_t i = 0; i < sizeof(entities) / sizeof(entities[0]); i++) {
            if (entities[i].character == string->data[at]) {
                if (moe_builder_add_slice(&builder, string, plain, at) != 0
                    || moe_builder_add_text(&builder, entities[i].entity) != 0)
                {
                    return -1;
                }
                plain = at + 1;
            }
        }
    }
    if (moe_builder_add_slice(&builder, string, plain, string->size) != 0) {
        return -1;
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


/* `width` blanks, or the string itself. */
static const moe_string_t *indentation(moe_job_t *job, const moe_value_t *width, int64_t otherwise)
{
    int64_t count = otherwise;
    moe_builder_t builder;

    if (width->kind == MOE_VALUE_STRING) {
        return width->as.string;
    }
    if (width->kind != MOE_VALUE_UNDEFINED && !moe_value_as_integer(width, &count)) {
        moe_job_fail(job, "an indentation is an int or a str, not '%s'", moe_value_type(width));
        return NULL;
    }
    moe_builder_start(&builder, job);
    for (int64_t i = 0; i < count; i++) {
        if (moe_job_charge(job, 1) != 0 || moe_builder_add_text(&builder, " ") != 0) {
            return NULL;
        }
    }
    return moe_builder_finish(&builder);
}


static int add_indented_line(moe_builder_t *builder, const moe_string_t *line,
                             const moe_string_t *indent, int indents)
{
    if (indents && moe_builder_add(builder, indent) != 0) {
        return -1;
    }
    return moe_builder_add(builder, line);
}


static int filter_indent(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    const moe_string_t *string = moe_value_string(job, self);
    const moe_string_t *indent = indentation(job, &arguments[0], 4);
    int first = moe_value_is_true(&arguments[1]), blank = moe_value_is_true(&arguments[2]);
    moe_builder_t builder, source;
    moe_list_t *lines;

    if (string == NULL || indent == NULL) {
        return -1;
    }
    /* A newline at the end counts as the start of one more, empty line. */
    moe_builder_start(&source, job);
    if (moe_builder_add(&source, string) != 0 || moe_builder_add_text(&source, "\n") != 0
        || (string = moe_builder_finish(&source)) == NULL
        || (lines = moe_string_lines(job, string, 0)) == NULL)
    {
        return -1;
    }
    moe_builder_start(&builder, job);
    for (size_t i = 0; i < lines->count; i++) {
        const moe_string_t *line = lines->items[i].as.string;

        if ((i > 0 && moe_builder_add_text(&builder, "\n") != 0)
            || add_indented_line(&builder, line, indent,
                                 i == 0 ? first : blank || line->size > 0) != 0)
        {
            return -1;
        }
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


static int json_separators(moe_job_t *job, const moe_value_t *argument, moe_json_style_t *style)
{
    const moe_value_t *items;
    size_t count;

    style->item_separator = moe_string_copy(job, style->indent == NULL ? ", " : ",");
    style->key_separator = moe_string_copy(job, ": ");
    if (style->item_separator == NULL || style->key_separator == NULL) {
        return -1;
    }
    if (argument->kind == MOE_VALUE_UNDEFINED || argument->kind == MOE_VALUE_NONE) {
        return 0;
    }
    if (moe_value_iterate(job, argument, &items, &count) != 0) {
        return -1;
    }
    if (count != 2 || items[0].kind != MOE_VALUE_STRING || items[1].kind != MOE_VALUE_STRING) {
        return moe_job_fail(job, "'tojson' needs two strings as separators");
    }
    style->item_separator = items[0].as.string;
    style->key_separator = items[1].as.string;
    return 0;
}


static int filter_tojson(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    moe_json_style_t style = {
        .ensure_ascii = moe_value_is_true(&arguments[0]),
        .sort_keys = moe_value_is_true(&arguments[3])
    };
    moe_builder_t builder;

    if (arguments[1].kind != MOE_VALUE_UNDEFINED && arguments[1].kind != MOE_VALUE_NONE) {
        style.indent = indentation(job, &arguments[1], 0);
        if (style.indent == NULL) {
            return -1;
        }
    }
    moe_builder_start(&builder, job);
    if (json_separators(job, &arguments[2], &style) != 0
        || moe_builder_add_json(&builder, self, &style) != 0)
    {
        return -1;
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


static int filter_from_json(moe_job_t *job, const moe_value_t *self,
                            const moe_value_t *arguments, moe_value_t *result)
{
    json_error_t where;
    json_t *json;

    if (self->kind != MOE_VALUE_STRING) {
        return moe_job_fail(job, "'from_json' needs a str, not '%s'", moe_value_type(self));
    }
    if (moe_job_charge_memory(job, JSON_BYTES_PER_CHARACTER * self->as.string->size) != 0
        || moe_job_charge(job, self->as.string->size) != 0)
    {
        return -1;
    }
    if (job->parsed == NULL) {
        job->parsed = json_array();
    }
    json = json_loadb(self->as.string->data, self->as.string->size,
                      JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (json == NULL) {
        return moe_job_fail(job, "'from_json': %s", where.text);
    }
    if (json_array_append_new(job->parsed, json) != 0) {
        return moe_job_fail_code(job, MOE_LIMIT, "out of memory");
    }
    return moe_value_from_json(job, json, 0, NULL, result);
}


static int parse_integer(const moe_string_t *string, int base, int64_t *integer)
{
    char text[72], *end;
    size_t size = 0;

    for (size_t i = 0; i < string->size; i++) {
        if (string->data[i] != '_') {
            if (size + 1 == sizeof(text)) {
                return 0;
            }
            text[size++] = string->data[i];
        }
    }
    text[size] = '\0';
    *integer = strtoll(text, &end, base);
    while (*end == ' ' || *end == '\n' || *end == '\t') {
        end++;
    }
    return end == text + size && size > 0 && *integer != INT64_MAX && *integer != INT64_MIN;
}


static int parse_float(const moe_string_t *string, double *real)
{
    char text[72], *end;

    if (string->size == 0 || string->size >= sizeof(text)
        || memchr(string->data, 'x', string->size) != NULL)
    {
        return 0;
    }
    memcpy(text, string->data, string->size);
    text[string->size] = '\0';
    *real = strtod(text, &end);
    while (*end == ' ' || *end == '\n' || *end == '\t') {
        end++;
    }
    return end == text + string->size;
}


static int filter_int(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    int64_t integer, base = 10;
    double real;

    *result = arguments[0].kind == MOE_VALUE_UNDEFINED ? moe_integer(0) : arguments[0];
    moe_value_as_integer(&arguments[1], &base);
    if (base < 0 || base == 1 || base > 36) {
        return moe_job_fail(job, "'int' with a base that does not exist");
    }
    if (moe_value_as_integer(self, &integer)
        || (self->kind == MOE_VALUE_STRING
            && parse_integer(self->as.string, (int) base, &integer)))
    {
        *result = moe_integer(integer);
        return 0;
    }
    if ((moe_value_as_double(self, &real)
         || (self->kind == MOE_VALUE_STRING && parse_float(self->as.string, &real)))
        && fabs(real) < 9.2e18)
    {
        *result = moe_integer((int64_t) real);
    }
    return 0;
}


static int filter_float(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    double real;

    *result = arguments[0].kind == MOE_VALUE_UNDEFINED ? moe_float(0) : arguments[0];
    if (moe_value_as_double(self, &real)
        || (self->kind == MOE_VALUE_STRING && parse_float(self->as.string, &real)))
    {
        *result = moe_float(real);
    }
    return 0;
}


static int filter_abs(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    double real;

    if (!moe_value_as_double(self, &real)) {
        return moe_job_fail(job, "'abs' needs a number, not '%s'", moe_value_type(self));
    }
    return moe_value_unary(job, real < 0 ? MOE_OP_NEGATIVE : MOE_OP_POSITIVE, self, result);
}


static int filter_round(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    int64_t precision = 0;
    double real, scale;

    moe_value_as_integer(&arguments[0], &precision);
    if (!moe_value_as_double(self, &real)) {
        return moe_job_fail(job, "'round' needs a number, not '%s'", moe_value_type(self));
    }
    if (precision < -15 || precision > 15) {
        return moe_job_fail(job, "'round' to more than 15 digits");
    }
    if (self->kind == MOE_VALUE_INTEGER && precision >= 0
        && arguments[1].kind != MOE_VALUE_STRING)
    {
        *result = *self;
        return 0;
    }
    scale = pow(10, (double) precision);
    if (arguments[1].kind == MOE_VALUE_STRING && moe_string_is(arguments[1].as.string, "floor")) {
        real = floor(real * scale) / scale;
    } else if (arguments[1].kind == MOE_VALUE_STRING
               && moe_string_is(arguments[1].as.string, "ceil"))
    {
        real = ceil(real * scale) / scale;
    } else if (fabs(real * scale) < 1e15) {
        real = nearbyint(real * scale) / scale;
    }
    *result = moe_float(real);
    return 0;
}


const moe_builtin_t moe_string_filters[] = {
    { .name = "string", .call = filter_string },
    { .name = "safe", .call = filter_safe },
    { .name = "trim", .call = filter_trim, .parameters = { "chars" } },
    { .name = "upper", .call = filter_upper },
    { .name = "lower", .call = filter_lower },
    { .name = "capitalize", .call = filter_capitalize },
    { .name = "title", .call = filter_title },
    { .name = "replace", .call = filter_replace, .required = 2,
      .parameters = { "old", "new", "count" } },
    { .name = "escape", .call = filter_escape },
    { .name = "e", .call = filter_escape },
    { .name = "indent", .call = filter_indent, .parameters = { "width", "first", "blank" } },
    { .name = "tojson", .call = filter_tojson,
      .parameters = { "ensure_ascii", "indent", "separators", "sort_keys" } },
    { .name = "from_json", .call = filter_from_json },
    { .name = NULL }
};

const moe_builtin_t moe_number_filters[] = {
    { .name = "int", .call = filter_int, .parameters = { "default", "base" } },
    { .name = "float", .call = filter_float, .parameters = { "default" } },
    { .name = "abs", .call = filter_abs },
    { .name = "round", .call = filter_round, .parameters = { "precision", "method" } },
    { .name = NULL }
};
