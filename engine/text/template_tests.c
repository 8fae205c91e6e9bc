/*
 * Tests: what stands behind "is", and in the arguments of selectattr and its like.
 */

#include "engine/text/template_ast.h"

#include <stddef.h>


static int yes_or_no(int yes, moe_value_t *result)
{
    *result = moe_boolean(yes == 1);
    return yes < 0 ? -1 : 0;
}


static int is_defined(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return yes_or_no(self->kind != MOE_VALUE_UNDEFINED, result);
}


static int is_undefined(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_UNDEFINED, result);
}


static int is_none(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                   moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_NONE, result);
}


static int is_string(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                     moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_STRING, result);
}


static int is_mapping(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_DICT, result);
}


/* Jinja's Undefined has the methods of an empty sequence, and counts as one here. */
static int is_sequence(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_UNDEFINED || self->kind == MOE_VALUE_STRING
                     || self->kind == MOE_VALUE_LIST || self->kind == MOE_VALUE_TUPLE
                     || self->kind == MOE_VALUE_DICT, result);
}


static int is_boolean(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_BOOLEAN, result);
}


static int is_true(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                   moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_BOOLEAN && self->as.boolean, result);
}


static int is_false(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                    moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_BOOLEAN && !self->as.boolean, result);
}


static int is_number(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                     moe_value_t *result)
{
    double real;

    return yes_or_no(moe_value_as_double(self, &real), result);
}


static int is_integer(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_INTEGER, result);
}


static int is_float(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                    moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_FLOAT, result);
}


static int is_callable(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                       moe_value_t *result)
{
    return yes_or_no(self->kind == MOE_VALUE_MACRO || self->kind == MOE_VALUE_BUILTIN, result);
}


static int is_equal(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                    moe_value_t *result)
{
    return yes_or_no(moe_value_relation(job, MOE_OP_EQUAL, self, &arguments[0]), result);
}


static int is_same(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                   moe_value_t *result)
{
    return self->kind != arguments[0].kind ? yes_or_no(0, result)
                                           : is_equal(job, self, arguments, result);
}


static int is_not_equal(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    return yes_or_no(moe_value_relation(job, MOE_OP_NOT_EQUAL, self, &arguments[0]), result);
}


static int is_less(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                   moe_value_t *result)
{
    return yes_or_no(moe_value_relation(job, MOE_OP_LESS, self, &arguments[0]), result);
}


static int is_less_equal(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                         moe_value_t *result)
{
    return yes_or_no(moe_value_relation(job, MOE_OP_LESS_EQUAL, self, &arguments[0]), result);
}


static int is_greater(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                      moe_value_t *result)
{
    return yes_or_no(moe_value_relation(job, MOE_OP_GREATER, self, &arguments[0]), result);
}


static int is_greater_equal(moe_job_t *job, const moe_value_t *self,
                            const moe_value_t *arguments, moe_value_t *result)
{
    return yes_or_no(moe_value_relation(job, MOE_OP_GREATER_EQUAL, self, &arguments[0]), result);
}


static int is_in(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                 moe_value_t *result)
{
    return yes_or_no(moe_value_contains(job, &arguments[0], self), result);
}


static int remainder_is(moe_job_t *job, const moe_value_t *self, int64_t divisor,
                        int64_t remainder, moe_value_t *result)
{
    moe_value_t by = moe_integer(divisor), rest;
    double real;

    if (moe_value_binary(job, MOE_OP_MODULO, self, &by, &rest) != 0) {
        return -1;
    }
    return yes_or_no(moe_value_as_double(&rest, &real) && real == (double) remainder, result);
}


static int is_odd(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                  moe_value_t *result)
{
    return remainder_is(job, self, 2, 1, result);
}


static int is_even(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                   moe_value_t *result)
{
    return remainder_is(job, self, 2, 0, result);
}


static int is_divisible(moe_job_t *job, const moe_value_t *self, const moe_value_t *arguments,
                        moe_value_t *result)
{
    int64_t divisor;

    if (!moe_value_as_integer(&arguments[0], &divisor)) {
        return moe_job_fail(job, "'divisibleby' needs an integer");
    }
    return remainder_is(job, self, divisor, 0, result);
}


const moe_builtin_t *moe_template_test(const char *name, size_t size)
{
    static const moe_builtin_t tests[] = {
        { .name = "defined", .call = is_defined },
        { .name = "undefined", .call = is_undefined },
        { .name = "none", .call = is_none },
        { .name = "string", .call = is_string },
        { .name = "mapping", .call = is_mapping },
        { .name = "iterable", .call = is_sequence },
        { .name = "sequence", .call = is_sequence },
        { .name = "boolean", .call = is_boolean },
        { .name = "true", .call = is_true },
        { .name = "false", .call = is_false },
        { .name = "number", .call = is_number },
        { .name = "integer", .call = is_integer },
        { .name = "float", .call = is_float },
        { .name = "callable", .call = is_callable },
        { .name = "equalto", .call = is_equal, .required = 1, .parameters = { "other" } },
        { .name = "eq", .call = is_equal, .required = 1, .parameters = { "other" } },
        { .name = "==", .call = is_equal, .required = 1, .parameters = { "other" } },
        { .name = "sameas", .call = is_same, .required = 1, .parameters = { "other" } },
        { .name = "ne", .call = is_not_equal, .required = 1, .parameters = { "other" } },
        { .name = "!=", .call = is_not_equal, .required = 1, .parameters = { "other" } },
        { .name = "lt", .call = is_less, .required = 1, .parameters = { "other" } },
        { .name = "lessthan", .call = is_less, .required = 1, .parameters = { "other" } },
        { .name = "le", .call = is_less_equal, .required = 1, .parameters = { "other" } },
        { .name = "gt", .call = is_greater, .required = 1, .parameters = { "other" } },
        { .name = "greaterthan", .call = is_greater, .required = 1, .parameters = { "other" } },
        { .name = "ge", .call = is_greater_equal, .required = 1, .parameters = { "other" } },
        { .name = "in", .call = is_in, .required = 1, .parameters = { "seq" } },
        { .name = "odd", .call = is_odd },
        { .name = "even", .call = is_even },
        { .name = "divisibleby", .call = is_divisible, .required = 1, .parameters = { "num" } },
        { .name = NULL }
    };

    return moe_builtin_find(tests, name, size);
}
