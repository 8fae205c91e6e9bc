/*
 * Values as text: Python's str and repr, and json.dumps as Hugging Face calls it.  What is copied
 * from a string keeps its provenance, all that is written around it is untrusted.
 */

#include "engine/text/template_string.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#define FLOAT_TEXT 48


/* The fewest digits that read back as the same number, laid out as Python does. */
static void float_repr(double real, char *text)
{
    char digits[32], *exponent_at;
    int precision = 0, exponent, n;

    if (!isfinite(real)) {
        strcpy(text, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    do {
        snprintf(digits, sizeof(digits), "%.*e", precision, real);
    } while (strtod(digits, NULL) != real && ++precision < 17);

    exponent_at = strchr(digits, 'e');
    exponent = atoi(exponent_at + 1);
    if (exponent < -4 || exponent >= 16) {
        *exponent_at = '\0';
        snprintf(text, FLOAT_TEXT, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    n = precision - exponent;
    snprintf(text, FLOAT_TEXT, "%.*f", n > 1 ? n : 1, real);
}


static int add_hex(moe_builder_t *builder, uint32_t code_point)
{
    char text[16];
    const char *format = code_point < 0x100 ? "\\x%02x" : code_point < 0x10000 ? "\\u%04x"
                                                                               : "\\U%08x";

    snprintf(text, sizeof(text), format, code_point);
    return moe_builder_add_text(builder, text);
}


static int is_printable(uint32_t code_point)
{
    if (code_point < 0x80) {
        return code_point >= 0x20 && code_point != 0x7f;
    }
    switch (utf8proc_category((utf8proc_int32_t) code_point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return 0;
    default:
        return 1;
    }
}


static int add_quoted_character(moe_builder_t *builder, const moe_string_t *string, size_t at,
                                size_t size, uint32_t code_point, char quote)
{
    switch (code_point) {
    case '\n':
        return moe_builder_add_text(builder, "\\n");
    case '\r':
        return moe_builder_add_text(builder, "\\r");
    case '\t':
        return moe_builder_add_text(builder, "\\t");
    case '\\':
        return moe_builder_add_text(builder, "\\\\");
    default:
        break;
    }
    if (code_point == (uint32_t) quote) {
        return moe_builder_add_text(builder, "\\'");
    }
    if (!is_printable(code_point)) {
        return add_hex(builder, code_point);
    }
    return moe_builder_add_slice(builder, string, at, at + size);
}


static int add_quoted(moe_builder_t *builder, const moe_string_t *string)
{
    int single = memchr(string->data, '\'', string->size) != NULL;
    int twice = memchr(string->data, '"', string->size) != NULL;
    char quote = single && !twice ? '"' : '\'';

    if (moe_job_charge_bytes(builder->job, 8 * string->size) != 0
        || moe_builder_add_bytes(builder, &quote, 1, 0) != 0)
    {
        return -1;
    }
    for (size_t at = 0, size; at < string->size; at += size) {
        uint32_t code_point;

        size = moe_string_character(string, at, &code_point);
        if (add_quoted_character(builder, string, at, size, code_point, quote) != 0) {
            return -1;
        }
    }
    return moe_builder_add_bytes(builder, &quote, 1, 0);
}


static int add_repr_list(moe_builder_t *builder, const moe_value_t *value)
{
    const moe_list_t *list = value->as.list;
    int tuple = value->kind == MOE_VALUE_TUPLE;

    if (moe_builder_add_text(builder, tuple ? "(" : "[") != 0) {
        return -1;
    }
    for (size_t i = 0; i < list->count; i++) {
        if ((i > 0 && moe_builder_add_text(builder, ", ") != 0)
            || moe_builder_add_repr(builder, &list->items[i]) != 0)
        {
            return -1;
        }
    }
    return moe_builder_add_text(builder, !tuple ? "]" : list->count == 1 ? ",)" : ")");
}


static int add_repr_dict(moe_builder_t *builder, const moe_dict_t *dict)
{
    if (moe_builder_add_text(builder, "{") != 0) {
        return -1;
    }
    for (size_t i = 0; i < dict->count; i++) {
        if ((i > 0 && moe_builder_add_text(builder, ", ") != 0)
            || moe_builder_add_repr(builder, &dict->entries[i].key) != 0
            || moe_builder_add_text(builder, ": ") != 0
            || moe_builder_add_repr(builder, &dict->entries[i].value) != 0)
        {
            return -1;
        }
    }
    return moe_builder_add_text(builder, "}");
}


static int add_repr_container(moe_builder_t *builder, const moe_value_t *value)
{
    int status = 0;

    if (moe_job_enter(builder->job) != 0) {
        return -1;
    }
    if (value->kind == MOE_VALUE_NAMESPACE) {
        status = moe_builder_add_text(builder, "<Namespace ");
    }
    if (status == 0) {
        status = value->kind == MOE_VALUE_LIST || value->kind == MOE_VALUE_TUPLE
                 ? add_repr_list(builder, value) : add_repr_dict(builder, value->as.dict);
    }
    if (status == 0 && value->kind == MOE_VALUE_NAMESPACE) {
        status = moe_builder_add_text(builder, ">");
    }
    moe_job_leave(builder->job);
    return status;
}


int moe_builder_add_repr(moe_builder_t *builder, const moe_value_t *value)
{
    char text[FLOAT_TEXT];

    if (moe_job_charge(builder->job, 1) != 0) {
        return -1;
    }
    switch (value->kind) {
    case MOE_VALUE_UNDEFINED:
        return moe_builder_add_text(builder, "Undefined");
    case MOE_VALUE_NONE:
        return moe_builder_add_text(builder, "None");
    case MOE_VALUE_BOOLEAN:
        return moe_builder_add_text(builder, value->as.boolean ? "True" : "False");
    case MOE_VALUE_INTEGER:
        snprintf(text, sizeof(text), "%" PRId64, value->as.integer);
        return moe_builder_add_text(builder, text);
    case MOE_VALUE_FLOAT:
        float_repr(value->as.real, text);
        return moe_builder_add_text(builder, text);
    case MOE_VALUE_STRING:
        return add_quoted(builder, value->as.string);
    case MOE_VALUE_LIST:
    case MOE_VALUE_TUPLE:
    case MOE_VALUE_DICT:
    case MOE_VALUE_NAMESPACE:
        return add_repr_container(builder, value);
    default:
        snprintf(text, sizeof(text), "<%s>", moe_value_type(value));
        return moe_builder_add_text(builder, text);
    }
}


const moe_string_t *moe_value_string(moe_job_t *job, const moe_value_t *value)
{
    moe_builder_t builder;

    if (value->kind == MOE_VALUE_STRING) {
        return value->as.string;
    }
    moe_builder_start(&builder, job);
    if (value->kind != MOE_VALUE_UNDEFINED && moe_builder_add_repr(&builder, value) != 0) {
        return NULL;
    }
    return moe_builder_finish(&builder);
}


static int add_json_escape(moe_builder_t *builder, uint32_t code_point)
{
    char text[16];

    if (code_point >= 0x10000) {
        code_point -= 0x10000;
        snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xd800 + (code_point >> 10),
                 0xdc00 + (code_point & 0x3ff));
    } else {
        snprintf(text, sizeof(text), "\\u%04x", code_point);
    }
    return moe_builder_add_text(builder, text);
}


static const char *short_escape(uint32_t code_point)
{
    switch (code_point) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    case '\f':
        return "\\f";
    case '\b':
        return "\\b";
    default:
        return NULL;
    }
}


static int add_json_string(moe_builder_t *builder, const moe_string_t *string, int ensure_ascii)
{
    size_t plain = 0;       /* start of what needs no escape */

    if (moe_job_charge_bytes(builder->job, 4 * string->size) != 0
        || moe_builder_add_text(builder, "\"") != 0)
    {
        return -1;
    }
    for (size_t at = 0, size; at < string->size; at += size) {
        const char *escape;
        uint32_t code_point;
        int status;

        size = moe_string_character(string, at, &code_point);
        escape = short_escape(code_point);
        if (escape == NULL && code_point >= 0x20 && (!ensure_ascii || code_point < 0x7f)) {
            continue;
        }
        if (moe_builder_add_slice(builder, string, plain, at) != 0) {
            return -1;
        }
        status = escape != NULL ? moe_builder_add_text(builder, escape)
                                : add_json_escape(builder, code_point);
        if (status != 0) {
            return -1;
        }
        plain = at + size;
    }
    return moe_builder_add_slice(builder, string, plain, string->size) != 0
           ? -1 : moe_builder_add_text(builder, "\"");
}


static int add_line_break(moe_builder_t *builder, const moe_json_style_t *style, unsigned level)
{
    if (style->indent == NULL) {
        return 0;
    }
    if (moe_builder_add_text(builder, "\n") != 0) {
        return -1;
    }
    for (unsigned i = 0; i < level; i++) {
        if (moe_builder_add(builder, style->indent) != 0) {
            return -1;
        }
    }
    return 0;
}


static int add_json(moe_builder_t *builder, const moe_value_t *value,
                    const moe_json_style_t *style, unsigned level);


static int add_json_list(moe_builder_t *builder, const moe_list_t *list,
                         const moe_json_style_t *style, unsigned level)
{
    if (list->count == 0) {
        return moe_builder_add_text(builder, "[]");
    }
    if (moe_builder_add_text(builder, "[") != 0) {
        return -1;
    }
    for (size_t i = 0; i < list->count; i++) {
        if ((i > 0 && moe_builder_add(builder, style->item_separator) != 0)
            || add_line_break(builder, style, level + 1) != 0
            || add_json(builder, &list->items[i], style, level + 1) != 0)
        {
            return -1;
        }
    }
    return add_line_break(builder, style, level) != 0 ? -1 : moe_builder_add_text(builder, "]");
}


/* Keys are strings, or scalars whose JSON text becomes the key. */
static int add_json_key(moe_builder_t *builder, const moe_value_t *key,
                        const moe_json_style_t *style)
{
    if (key->kind == MOE_VALUE_STRING) {
        return add_json_string(builder, key->as.string, style->ensure_ascii);
    }
    return moe_builder_add_text(builder, "\"") != 0 || add_json(builder, key, style, 0) != 0
           ? -1 : moe_builder_add_text(builder, "\"");
}


static int compare_keys(const void *a, const void *b)
{
    const moe_entry_t *x = *(const moe_entry_t *const *) a, *y = *(const moe_entry_t *const *) b;

    return moe_string_compare(x->key.as.string, y->key.as.string);
}


static const moe_entry_t **dict_order(moe_job_t *job, const moe_dict_t *dict, int sorted)
{
    const moe_entry_t **order = moe_job_alloc(job, dict->count * sizeof(*order));

    if (order == NULL || moe_job_charge(job, sorted ? 4 * dict->count : 0) != 0) {
        return NULL;
    }
    for (size_t i = 0; i < dict->count; i++) {
        order[i] = &dict->entries[i];
        if (sorted && order[i]->key.kind != MOE_VALUE_STRING) {
            moe_job_fail(job, "tojson sorts keys that are strings only");
            return NULL;
        }
    }
    if (sorted) {
        qsort(order, dict->count, sizeof(*order), compare_keys);
    }
    return order;
}


static int add_json_dict(moe_builder_t *builder, const moe_dict_t *dict,
                         const moe_json_style_t *style, unsigned level)
{
    const moe_entry_t **order;

    if (dict->count == 0) {
        return moe_builder_add_text(builder, "{}");
    }
    order = dict_order(builder->job, dict, style->sort_keys);
    if (order == NULL || moe_builder_add_text(builder, "{") != 0) {
        return -1;
    }
    for (size_t i = 0; i < dict->count; i++) {
        if ((i > 0 && moe_builder_add(builder, style->item_separator) != 0)
            || add_line_break(builder, style, level + 1) != 0
            || add_json_key(builder, &order[i]->key, style) != 0
            || moe_builder_add(builder, style->key_separator) != 0
            || add_json(builder, &order[i]->value, style, level + 1) != 0)
        {
            return -1;
        }
    }
    return add_line_break(builder, style, level) != 0 ? -1 : moe_builder_add_text(builder, "}");
}


static int add_json_float(moe_builder_t *builder, double real)
{
    char text[FLOAT_TEXT];

    if (isnan(real)) {
        return moe_builder_add_text(builder, "NaN");
    }
    if (isinf(real)) {
        return moe_builder_add_text(builder, real < 0 ? "-Infinity" : "Infinity");
    }
    float_repr(real, text);
    return moe_builder_add_text(builder, text);
}


static int add_json(moe_builder_t *builder, const moe_value_t *value,
                    const moe_json_style_t *style, unsigned level)
{
    moe_job_t *job = builder->job;
    int status;

    switch (value->kind) {
    case MOE_VALUE_NONE:
        return moe_builder_add_text(builder, "null");
    case MOE_VALUE_BOOLEAN:
        return moe_builder_add_text(builder, value->as.boolean ? "true" : "false");
    case MOE_VALUE_INTEGER:
        return moe_builder_add_repr(builder, value);
    case MOE_VALUE_FLOAT:
        return add_json_float(builder, value->as.real);
    case MOE_VALUE_STRING:
        return add_json_string(builder, value->as.string, style->ensure_ascii);
    case MOE_VALUE_LIST:
    case MOE_VALUE_TUPLE:
    case MOE_VALUE_DICT:
        break;
    default:
        return moe_job_fail(job, "'%s' cannot be written as JSON", moe_value_type(value));
    }
    if (moe_job_charge(job, 1) != 0 || moe_job_enter(job) != 0) {
        return -1;
    }
    status = value->kind == MOE_VALUE_DICT
             ? add_json_dict(builder, value->as.dict, style, level)
             : add_json_list(builder, value->as.list, style, level);
    moe_job_leave(job);
    return status;
}


int moe_builder_add_json(moe_builder_t *builder, const moe_value_t *value,
                         const moe_json_style_t *style)
{
    return add_json(builder, value, style, 0);
}
