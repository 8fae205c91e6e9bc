#include "engine/model/config.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>


void moe_config_fail(moe_config_t *config, const char *key, const char *format, ...)
{
    const char *name = json_string_value(json_object_get(config->names, key));
    char what[256];
    va_list args;

    if (config->failed) {
        return;
    }
    config->failed = 1;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    moe_fail(config->error, MOE_BAD_MODEL, "%.100s: %s", name != NULL ? name : key, what);
    if (config->section != NULL && name == NULL) {
        moe_fail_in(config->error, "%s", config->section);
    }
    moe_fail_in(config->error, "%s", config->where);
}


json_t *moe_config_get(const moe_config_t *config, const char *key)
{
    json_t *value = json_object_get(config->object, key);

    return json_is_null(value) ? NULL : value;
}


uint32_t moe_config_uint(moe_config_t *config, const char *key, uint32_t minimum, uint32_t maximum)
{
    const json_t *value = moe_config_get(config, key);
    json_int_t number;

    if (value == NULL) {
        moe_config_fail(config, key, "missing");
        return minimum;
    }
    if (!json_is_integer(value)) {
        moe_config_fail(config, key, "not an integer");
        return minimum;
    }
    number = json_integer_value(value);
    if (number < (json_int_t) minimum || number > (json_int_t) maximum) {
        moe_config_fail(config, key, "%lld is not within %u..%u", (long long) number, minimum,
                        maximum);
        return minimum;
    }
    return (uint32_t) number;
}


uint32_t moe_config_uint_or(moe_config_t *config, const char *key, uint32_t otherwise,
                            uint32_t minimum, uint32_t maximum)
{
    if (moe_config_get(config, key) == NULL) {
        return otherwise;
    }
    return moe_config_uint(config, key, minimum, maximum);
}


double moe_config_number(moe_config_t *config, const char *key, double minimum, double maximum)
{
    const json_t *value = moe_config_get(config, key);
    double number;

    if (value == NULL) {
        moe_config_fail(config, key, "missing");
        return minimum;
    }
    if (!json_is_number(value)) {
        moe_config_fail(config, key, "not a number");
        return minimum;
    }
    number = json_number_value(value);
    if (!(number >= minimum && number <= maximum)) {
        moe_config_fail(config, key, "%g is not within %g..%g", number, minimum, maximum);
        return minimum;
    }
    return number;
}


double moe_config_number_or(moe_config_t *config, const char *key, double otherwise, double minimum,
                            double maximum)
{
    if (moe_config_get(config, key) == NULL) {
        return otherwise;
    }
    return moe_config_number(config, key, minimum, maximum);
}


int moe_config_bool_or(moe_config_t *config, const char *key, int otherwise)
{
    const json_t *value = moe_config_get(config, key);

    if (value == NULL) {
        return otherwise;
    }
    if (!json_is_boolean(value)) {
        moe_config_fail(config, key, "not true or false");
        return otherwise;
    }
    return json_is_true(value);
}


const char *moe_config_string_or(moe_config_t *config, const char *key, const char *otherwise)
{
    const json_t *value = moe_config_get(config, key);

    if (value == NULL) {
        return otherwise;
    }
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        moe_config_fail(config, key, "not a string, or one with a NUL inside");
        return otherwise;
    }
    return json_string_value(value);
}


void moe_config_expect(moe_config_t *config, const char *key, const char *expected)
{
    const char *given = moe_config_string_or(config, key, expected);

    if (strcmp(given, expected) != 0) {
        moe_config_fail(config, key, "\"%.64s\" is not supported here", given);
    }
}


void moe_config_expect_bool(moe_config_t *config, const char *key, int expected)
{
    if (moe_config_bool_or(config, key, expected) != expected) {
        moe_config_fail(config, key, "%s is not supported", expected ? "false" : "true");
    }
}


moe_config_t moe_config_object(moe_config_t *config, const char *key)
{
    moe_config_t object = *config;

    object.object = moe_config_get(config, key);
    object.section = key;
    if (object.object != NULL && !json_is_object(object.object)) {
        moe_config_fail(config, key, "not an object");
        object.object = NULL;
        object.failed = 1;
    }
    return object;
}


static int is_listed(const char *key, const char *const *list)
{
    for (; list != NULL && *list != NULL; list++) {
        if (strcmp(key, *list) == 0) {
            return 1;
        }
    }
    return 0;
}


void moe_config_check_keys(moe_config_t *config, const char *const *known,
                           const char *const *neutral)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *) (uintptr_t) config->object, key, value) {
        if (!json_is_null(value) && !is_listed(key, known) && !is_listed(key, neutral)) {
            moe_config_fail(config, key, "unknown key: it may change what the model computes");
            return;
        }
    }
}
