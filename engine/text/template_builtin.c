/*
 * Finds built-ins by name and binds arguments to their parameters.
 */

#include "engine/text/template_ast.h"

#include <string.h>


const moe_builtin_t *moe_builtin_find(const moe_builtin_t *table, const char *name, size_t size)
{
    for (; table->name != NULL; table++) {
        if (strlen(table->name) == size && memcmp(table->name, name, size) == 0) {
            return table;
        }
    }
    return NULL;
}


const moe_builtin_t *moe_template_filter(const char *name, size_t size)
{
    static const moe_builtin_t *const tables[] = {
        moe_string_filters, moe_number_filters, moe_list_filters, moe_select_filters,
        moe_format_filters
    };

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        const moe_builtin_t *found = moe_builtin_find(tables[i], name, size);

        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}


/* The number of the parameter that is called so, or -1. */
static int parameter_number(const moe_builtin_t *builtin, const moe_string_t *name)
{
    for (int i = 0; i < MOE_BUILTIN_PARAMETERS && builtin->parameters[i] != NULL; i++) {
        if (moe_string_is(name, builtin->parameters[i])) {
            return i;
        }
    }
    return -1;
}


static int bind(moe_job_t *job, const moe_builtin_t *builtin, const moe_given_t *given,
                moe_value_t *arguments)
{
    unsigned bound = 0;

    for (size_t i = 0; i < given->count; i++) {
        int number = i >= given->n_positional ? parameter_number(builtin, given->names[i])
                     : i < MOE_BUILTIN_PARAMETERS && builtin->parameters[i] != NULL ? (int) i : -1;

        if (number < 0) {
            return moe_job_fail(job, "'%s' was given an argument it does not take",
                                builtin->name);
        }
        if (bound & (1u << number)) {
            return moe_job_fail(job, "'%s' was given '%s' twice", builtin->name,
                                builtin->parameters[number]);
        }
        bound |= 1u << number;
        arguments[number] = given->values[i];
    }
    for (unsigned i = 0; i < builtin->required; i++) {
        if (!(bound & (1u << i))) {
            return moe_job_fail(job, "'%s' needs the argument '%s'", builtin->name,
                                builtin->parameters[i]);
        }
    }
    return 0;
}


int moe_builtin_call(moe_job_t *job, const moe_builtin_t *builtin, const moe_value_t *self,
                     const moe_given_t *given, moe_value_t *result)
{
    moe_value_t arguments[MOE_BUILTIN_PARAMETERS];

    if (builtin->call_any != NULL) {
        return builtin->call_any(job, self, given, result);
    }
    for (size_t i = 0; i < MOE_BUILTIN_PARAMETERS; i++) {
        arguments[i] = moe_undefined(NULL);
    }
    if (bind(job, builtin, given, arguments) != 0) {
        return -1;
    }
    return builtin->call(job, self, arguments, result);
}


int moe_give_string(const moe_string_t *string, moe_value_t *result)
{
    *result = moe_string_value(string);
    return string == NULL ? -1 : 0;
}


int moe_give_list(moe_list_t *list, moe_value_t *result)
{
    *result = moe_list_value(list);
    return list == NULL ? -1 : 0;
}
