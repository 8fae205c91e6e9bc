/*
 * Python's operators on values: arithmetic, relations, attributes, items and slices.  Integers have
 * 64 bits; an overflow is an error, as is any pair of types that Python refuses.
 */

#include "engine/text/template_ast.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>


static int overflow(moe_job_t *job)
{
    return moe_job_fail(job, "integer overflow");
}


static int integer_power(moe_job_t *job, int64_t base, int64_t exponent, moe_value_t *result)
{
    int64_t power = 1;

    if (exponent < 0) {
        *result = moe_float(pow((double) base, (double) exponent));
        return base == 0 ? moe_job_fail(job, "division by zero") : 0;
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(power, base, &power)) {
            return overflow(job);
        }
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
            return overflow(job);
        }
    }
    *result = moe_integer(power);
    return 0;
}


/* Python rounds quotients down; the remainder has the divisor's sign. */
static int integer_division(moe_job_t *job, moe_op_t op, int64_t a, int64_t b,
                            moe_value_t *result)
{
    int64_t quotient, remainder;

    if (b == 0) {
        return moe_job_fail(job, "division by zero");
    }
    if (a == INT64_MIN && b == -1) {
        return op == MOE_OP_MODULO ? (*result = moe_integer(0), 0) : overflow(job);
    }
    quotient = a / b;
    remainder = a % b;
    if (remainder != 0 && (remainder < 0) != (b < 0)) {
        quotient--;
        remainder += b;
    }
    *result = moe_integer(op == MOE_OP_MODULO ? remainder : quotient);
    return 0;
}


static int float_arithmetic(moe_job_t *job, moe_op_t op, double a, double b, moe_value_t *result)
{
    double remainder;

    switch (op) {
    case MOE_OP_ADD:
        *result = moe_float(a + b);
        return 0;
    case MOE_OP_SUBTRACT:
        *result = moe_float(a - b);
        return 0;
    case MOE_OP_MULTIPLY:
        *result = moe_float(a * b);
        return 0;
    case MOE_OP_POWER:
        *result = moe_float(pow(a, b));
        return isnan(result->as.real) || (isinf(result->as.real) && !isinf(a) && !isinf(b))
               ? moe_job_fail(job, "power without a finite real value") : 0;
    default:
        break;
    }
    if (b == 0) {
        return moe_job_fail(job, "division by zero");
    }
    if (op == MOE_OP_DIVIDE) {
        *result = moe_float(a / b);
        return 0;
    }
    remainder = fmod(a, b);
    if (remainder != 0 && (remainder < 0) != (b < 0)) {
        remainder += b;
    }
    *result = moe_float(op == MOE_OP_MODULO ? remainder : floor((a - remainder) / b + 0.5));
    return 0;
}


static int integer_arithmetic(moe_job_t *job, moe_op_t op, int64_t a, int64_t b,
                              moe_value_t *result)
{
    int64_t value = 0;
    int overflowed;

    switch (op) {
    case MOE_OP_ADD:
        overflowed = __builtin_add_overflow(a, b, &value);
        break;
    case MOE_OP_SUBTRACT:
        overflowed = __builtin_sub_overflow(a, b, &value);
        break;
    case MOE_OP_MULTIPLY:
        overflowed = __builtin_mul_overflow(a, b, &value);
        break;
    case MOE_OP_POWER:
        return integer_power(job, a, b, result);
    case MOE_OP_DIVIDE:
        return float_arithmetic(job, op, (double) a, (double) b, result);
    default:
        return integer_division(job, op, a, b, result);
    }
    *result = moe_integer(value);
    return overflowed ? overflow(job) : 0;
}


static int add_strings(moe_job_t *job, const moe_string_t *a, const moe_string_t *b,
                       moe_value_t *result)
{
    moe_builder_t builder;

    moe_builder_start(&builder, job);
    if (moe_builder_add(&builder, a) != 0 || moe_builder_add(&builder, b) != 0) {
        return -1;
    }
    *result = moe_string_value(moe_builder_finish(&builder));
    return result->as.string == NULL ? -1 : 0;
}


static int append_all(moe_job_t *job, moe_list_t *list, const moe_list_t *items)
{
    for (size_t i = 0; i < items->count; i++) {
        if (moe_list_append(job, list, &items->items[i]) != 0) {
            return -1;
        }
    }
    return 0;
}


static int add_lists(moe_job_t *job, const moe_value_t *a, const moe_value_t *b,
                     moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, a->as.list->count + b->as.list->count);

    if (list == NULL || append_all(job, list, a->as.list) != 0
        || append_all(job, list, b->as.list) != 0)
    {
        return -1;
    }
    *result = (moe_value_t) { .kind = a->kind, .as.list = list };
    return 0;
}


static int repeat(moe_job_t *job, const moe_value_t *value, int64_t times, moe_value_t *result)
{
    moe_builder_t builder;
    moe_list_t *list;

    moe_builder_start(&builder, job);
    list = value->kind == MOE_VALUE_STRING ? NULL : moe_list_new(job, 0);
    for (int64_t i = 0; i < times && moe_value_length(value) > 0; i++) {
        if (moe_job_charge(job, 1) != 0) {
            return -1;
        }
        if (value->kind == MOE_VALUE_STRING) {
            if (moe_builder_add(&builder, value->as.string) != 0) {
                return -1;
            }
        } else if (list == NULL || append_all(job, list, value->as.list) != 0) {
            return -1;
        }
    }
    if (value->kind != MOE_VALUE_STRING) {
        *result = (moe_value_t) { .kind = value->kind, .as.list = list };
        return list == NULL ? -1 : 0;
    }
    *result = moe_string_value(moe_builder_finish(&builder));
    return result->as.string == NULL ? -1 : 0;
}


static int is_sequence(const moe_value_t *value)
{
    return value->kind == MOE_VALUE_STRING || value->kind == MOE_VALUE_LIST
           || value->kind == MOE_VALUE_TUPLE;
}


static const char *op_name(moe_op_t op)
{
    static const char *const names[] = {
        [MOE_OP_ADD] = "+", [MOE_OP_SUBTRACT] = "-", [MOE_OP_MULTIPLY] = "*",
        [MOE_OP_DIVIDE] = "/", [MOE_OP_FLOOR_DIVIDE] = "//", [MOE_OP_MODULO] = "%",
        [MOE_OP_POWER] = "**", [MOE_OP_POSITIVE] = "+", [MOE_OP_NEGATIVE] = "-"
    };

    return names[op];
}


/* "'x' is undefined" says more than the types do. */
static int check_defined(moe_job_t *job, const moe_value_t *value)
{
    if (value->kind != MOE_VALUE_UNDEFINED) {
        return 0;
    }
    if (value->as.name == NULL) {
        return moe_job_fail(job, "a value is undefined");
    }
    return moe_job_fail(job, "'%.*s' is undefined",
                        (int) (value->as.name->size < 80 ? value->as.name->size : 80),
                        value->as.name->data);
}


int moe_value_binary(moe_job_t *job, moe_op_t op, const moe_value_t *a, const moe_value_t *b,
                     moe_value_t *result)
{
    int64_t i, j;
    double x, y;

    if (op == MOE_OP_MODULO && a->kind == MOE_VALUE_STRING) {
        return moe_string_percent(job, a->as.string, b, result);
    }
    if (check_defined(job, a) != 0 || check_defined(job, b) != 0) {
        return -1;
    }
    if (moe_value_as_integer(a, &i) && moe_value_as_integer(b, &j)) {
        return integer_arithmetic(job, op, i, j, result);
    }
    if (moe_value_as_double(a, &x) && moe_value_as_double(b, &y)) {
        return float_arithmetic(job, op, x, y, result);
    }
    if (op == MOE_OP_ADD && a->kind == b->kind && is_sequence(a)) {
        return a->kind == MOE_VALUE_STRING
               ? add_strings(job, a->as.string, b->as.string, result)
               : add_lists(job, a, b, result);
    }
    if (op == MOE_OP_MULTIPLY && is_sequence(a) && moe_value_as_integer(b, &j)) {
        return repeat(job, a, j, result);
    }
    if (op == MOE_OP_MULTIPLY && is_sequence(b) && moe_value_as_integer(a, &i)) {
        return repeat(job, b, i, result);
    }
    return moe_job_fail(job, "'%s' %s '%s' is not possible", moe_value_type(a), op_name(op),
                        moe_value_type(b));
}


int moe_value_unary(moe_job_t *job, moe_op_t op, const moe_value_t *a, moe_value_t *result)
{
    int64_t integer;

    if (check_defined(job, a) != 0) {
        return -1;
    }
    if (a->kind == MOE_VALUE_FLOAT) {
        *result = moe_float(op == MOE_OP_NEGATIVE ? -a->as.real : a->as.real);
        return 0;
    }
    if (!moe_value_as_integer(a, &integer)) {
        return moe_job_fail(job, "%s'%s' is not possible", op_name(op), moe_value_type(a));
    }
    if (op == MOE_OP_NEGATIVE && __builtin_sub_overflow(0, integer, &integer)) {
        return overflow(job);
    }
    *result = moe_integer(integer);
    return 0;
}


static int is_nan(const moe_value_t *value)
{
    return value->kind == MOE_VALUE_FLOAT && isnan(value->as.real);
}


static int ordered(moe_job_t *job, moe_op_t op, const moe_value_t *a, const moe_value_t *b)
{
    int order;

    if (check_defined(job, a) != 0 || check_defined(job, b) != 0
        || moe_value_compare(job, a, b, &order) != 0)
    {
        return -1;
    }
    if (is_nan(a) || is_nan(b)) {
        return 0;
    }
    switch (op) {
    case MOE_OP_LESS:
        return order < 0;
    case MOE_OP_LESS_EQUAL:
        return order <= 0;
    case MOE_OP_GREATER:
        return order > 0;
    default:
        return order >= 0;
    }
}


int moe_value_relation(moe_job_t *job, moe_op_t op, const moe_value_t *a, const moe_value_t *b)
{
    int yes;

    switch (op) {
    case MOE_OP_EQUAL:
        return moe_value_equal(job, a, b);
    case MOE_OP_NOT_EQUAL:
        yes = moe_value_equal(job, a, b);
        return yes < 0 ? -1 : !yes;
    case MOE_OP_IN:
        return moe_value_contains(job, b, a);
    case MOE_OP_NOT_IN:
        yes = moe_value_contains(job, b, a);
        return yes < 0 ? -1 : !yes;
    default:
        return ordered(job, op, a, b);
    }
}


static int loop_attribute(moe_job_t *job, const moe_loop_t *loop, const moe_string_t *name,
                          moe_value_t *result)
{
    const struct { const char *name; moe_value_t value; } attributes[] = {
        { "index0", moe_integer((int64_t) loop->index) },
        { "index", moe_integer((int64_t) loop->index + 1) },
        { "first", moe_boolean(loop->index == 0) },
        { "last", moe_boolean(loop->index + 1 == loop->count) },
        { "length", moe_integer((int64_t) loop->count) },
        { "previtem", loop->index > 0 ? loop->items[loop->index - 1] : moe_undefined(name) },
        { "nextitem", loop->index + 1 < loop->count ? loop->items[loop->index + 1]
                                                    : moe_undefined(name) },
        { "revindex", moe_integer((int64_t) (loop->count - loop->index)) },
        { "revindex0", moe_integer((int64_t) (loop->count - loop->index) - 1) },
        { "depth", moe_integer((int64_t) loop->level + 1) },
        { "depth0", moe_integer((int64_t) loop->level) }
    };

    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        if (moe_string_is(name, attributes[i].name)) {
            *result = attributes[i].value;
            return 0;
        }
    }
    return moe_job_fail(job, "'loop.%.*s' is not known", (int) (name->size < 40 ? name->size : 40),
                        name->data);
}


static int method_of(moe_job_t *job, const moe_value_t *object, const moe_string_t *name,
                     moe_value_t *result)
{
    const moe_builtin_t *method = moe_template_method(object->kind, name->data, name->size);

    *result = moe_undefined(name);
    if (method == NULL) {
        return 0;
    }
    result->kind = MOE_VALUE_BUILTIN;
    result->as.bound = moe_job_alloc(job, sizeof(*result->as.bound));
    if (result->as.bound == NULL) {
        return -1;
    }
    result->as.bound->builtin = method;
    result->as.bound->self = *object;
    return 0;
}


int moe_value_attribute(moe_job_t *job, const moe_value_t *object, const moe_string_t *name,
                        moe_value_t *result)
{
    const moe_value_t *found;

    if (check_defined(job, object) != 0) {
        return -1;
    }
    if (method_of(job, object, name, result) != 0) {
        return -1;
    }
    if (object->kind == MOE_VALUE_LOOP && result->kind == MOE_VALUE_UNDEFINED) {
        return loop_attribute(job, object->as.loop, name, result);
    }
    if (result->kind == MOE_VALUE_UNDEFINED
        && (object->kind == MOE_VALUE_DICT || object->kind == MOE_VALUE_NAMESPACE))
    {
        found = moe_dict_find_string(job, object->as.dict, name);
        if (found != NULL) {
            *result = *found;
        }
    }
    return 0;
}


static int string_item(moe_job_t *job, const moe_string_t *string, int64_t index,
                       moe_value_t *result)
{
    size_t at, size;
    uint32_t code_point;

    if (moe_job_charge_bytes(job, string->length == string->size ? 0 : string->size) != 0) {
        return -1;
    }
    at = moe_string_offset(string, (size_t) index);
    size = moe_string_character(string, at, &code_point);
    *result = moe_string_value(moe_string_slice(job, string, at, at + size));
    return result->as.string == NULL ? -1 : 0;
}


static int indexed_item(moe_job_t *job, const moe_value_t *object, int64_t index,
                        moe_value_t *result)
{
    int64_t length = moe_value_length(object);

    *result = moe_undefined(NULL);
    if (index < 0) {
        index += length;
    }
    if (index < 0 || index >= length) {
        return 0;
    }
    if (object->kind == MOE_VALUE_STRING) {
        return string_item(job, object->as.string, index, result);
    }
    *result = object->as.list->items[index];
    return 0;
}


int moe_value_item(moe_job_t *job, const moe_value_t *object, const moe_value_t *key,
                   moe_value_t *result)
{
    const moe_value_t *found;
    int64_t index;

    if (check_defined(job, object) != 0) {
        return -1;
    }
    if (is_sequence(object) && moe_value_as_integer(key, &index)) {
        return indexed_item(job, object, index, result);
    }
    if (object->kind == MOE_VALUE_DICT) {
        found = moe_dict_find(job, object->as.dict, key);
        if (found != NULL) {
            *result = *found;
            return 0;
        }
    }
    if (key->kind == MOE_VALUE_STRING) {
        return moe_value_attribute(job, object, key->as.string, result);
    }
    *result = moe_undefined(NULL);
    return 0;
}


/* A bound of a slice, clipped to lowest..highest: `given` when there is none. */
static int slice_bound(moe_job_t *job, const moe_value_t *value, int64_t length, int64_t lowest,
                       int64_t highest, int64_t given, int64_t *bound)
{
    *bound = given;
    if (value->kind == MOE_VALUE_NONE || value->kind == MOE_VALUE_UNDEFINED) {
        return 0;
    }
    if (!moe_value_as_integer(value, bound)) {
        return moe_job_fail(job, "a slice needs integers, not '%s'", moe_value_type(value));
    }
    if (*bound < 0) {
        *bound += length;
    }
    *bound = *bound < lowest ? lowest : *bound > highest ? highest : *bound;
    return 0;
}


static int slice_string(moe_job_t *job, const moe_string_t *string, int64_t start, int64_t step,
                        int64_t count, moe_value_t *result)
{
    moe_builder_t builder;

    if (moe_job_charge_bytes(job, string->size) != 0) {
        return -1;
    }
    if (step == 1) {
        size_t from = moe_string_offset(string, (size_t) start);
        size_t to = moe_string_offset(string, (size_t) (start + count));

        *result = moe_string_value(moe_string_slice(job, string, from, to));
        return result->as.string == NULL ? -1 : 0;
    }
    moe_builder_start(&builder, job);
    for (int64_t i = 0; i < count; i++) {
        size_t at = moe_string_offset(string, (size_t) (start + i * step));
        uint32_t code_point;
        size_t size = moe_string_character(string, at, &code_point);

        if (moe_job_charge_bytes(job, string->length == string->size ? 16 : at + 16) != 0
            || moe_builder_add_slice(&builder, string, at, at + size) != 0)
        {
            return -1;
        }
    }
    *result = moe_string_value(moe_builder_finish(&builder));
    return result->as.string == NULL ? -1 : 0;
}


static int slice_list(moe_job_t *job, const moe_value_t *object, int64_t start, int64_t step,
                      int64_t count, moe_value_t *result)
{
    moe_list_t *list = moe_list_new(job, (size_t) count);

    for (int64_t i = 0; i < count; i++) {
        if (list == NULL
            || moe_list_append(job, list, &object->as.list->items[start + i * step]) != 0)
        {
            return -1;
        }
    }
    *result = (moe_value_t) { .kind = object->kind, .as.list = list };
    return list == NULL ? -1 : 0;
}


int moe_value_slice(moe_job_t *job, const moe_value_t *object, const moe_value_t bounds[3],
                    moe_value_t *result)
{
    int64_t length = moe_value_length(object), start, stop, step = 1, count = 0;

    if (check_defined(job, object) != 0) {
        return -1;
    }
    if (!is_sequence(object)) {
        return moe_job_fail(job, "'%s' cannot be sliced", moe_value_type(object));
    }
    /* Steps beyond the length all mean the same. */
    if (slice_bound(job, &bounds[2], 0, -length - 1, length + 1, 1, &step) != 0) {
        return -1;
    }
    if (step == 0) {
        return moe_job_fail(job, "a slice's step is 0");
    }
    if (step > 0) {
        if (slice_bound(job, &bounds[0], length, 0, length, 0, &start) != 0
            || slice_bound(job, &bounds[1], length, 0, length, length, &stop) != 0)
        {
            return -1;
        }
        count = stop > start ? (stop - start + step - 1) / step : 0;
    } else {
        if (slice_bound(job, &bounds[0], length, -1, length - 1, length - 1, &start) != 0
            || slice_bound(job, &bounds[1], length, -1, length - 1, -1, &stop) != 0)
        {
            return -1;
        }
        count = start > stop ? (start - stop - step - 1) / -step : 0;
    }
    return object->kind == MOE_VALUE_STRING
           ? slice_string(job, object->as.string, start, step, count, result)
           : slice_list(job, object, start, step, count, result);
}
