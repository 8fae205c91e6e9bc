/*
 * Lists, dicts and what Python does with values: truth, equality, order, membership.
 *
 * A dict keeps its entries in order of insertion (prompts depend on it) and gets an index of slots
 * once it is too large to be searched through.  Nothing is ever removed from a dict.
 */

#include "engine/text/template_value.h"

#include <math.h>
#include <string.h>

#include "engine/text/template_string.h"

#define SMALL_DICT 8


moe_value_t moe_undefined(const moe_string_t *name)
{
    return (moe_value_t) { .kind = MOE_VALUE_UNDEFINED, .as.name = name };
}


moe_value_t moe_none(void)
{
    return (moe_value_t) { .kind = MOE_VALUE_NONE };
}


moe_value_t moe_boolean(int boolean)
{
    return (moe_value_t) { .kind = MOE_VALUE_BOOLEAN, .as.boolean = boolean != 0 };
}


moe_value_t moe_integer(int64_t integer)
{
    return (moe_value_t) { .kind = MOE_VALUE_INTEGER, .as.integer = integer };
}


moe_value_t moe_float(double real)
{
    return (moe_value_t) { .kind = MOE_VALUE_FLOAT, .as.real = real };
}


moe_value_t moe_string_value(const moe_string_t *string)
{
    return (moe_value_t) { .kind = MOE_VALUE_STRING, .as.string = string };
}


moe_value_t moe_list_value(moe_list_t *list)
{
    return (moe_value_t) { .kind = MOE_VALUE_LIST, .as.list = list };
}


moe_value_t moe_dict_value(moe_dict_t *dict)
{
    return (moe_value_t) { .kind = MOE_VALUE_DICT, .as.dict = dict };
}


const char *moe_value_type(const moe_value_t *value)
{
    static const char *const names[] = {
        [MOE_VALUE_UNDEFINED] = "Undefined", [MOE_VALUE_NONE] = "NoneType",
        [MOE_VALUE_BOOLEAN] = "bool", [MOE_VALUE_INTEGER] = "int", [MOE_VALUE_FLOAT] = "float",
        [MOE_VALUE_STRING] = "str", [MOE_VALUE_LIST] = "list", [MOE_VALUE_TUPLE] = "tuple",
        [MOE_VALUE_DICT] = "dict", [MOE_VALUE_NAMESPACE] = "Namespace",
        [MOE_VALUE_LOOP] = "LoopContext", [MOE_VALUE_MACRO] = "Macro",
        [MOE_VALUE_BUILTIN] = "function"
    };

    return names[value->kind];
}


int moe_value_is_true(const moe_value_t *value)
{
    switch (value->kind) {
    case MOE_VALUE_UNDEFINED:
    case MOE_VALUE_NONE:
        return 0;
    case MOE_VALUE_BOOLEAN:
        return value->as.boolean;
    case MOE_VALUE_INTEGER:
        return value->as.integer != 0;
    case MOE_VALUE_FLOAT:
        return value->as.real != 0;
    default:
        return moe_value_length(value) != 0;
    }
}


int64_t moe_value_length(const moe_value_t *value)
{
    switch (value->kind) {
    case MOE_VALUE_UNDEFINED:
        return 0;
    case MOE_VALUE_STRING:
        return (int64_t) value->as.string->length;
    case MOE_VALUE_LIST:
    case MOE_VALUE_TUPLE:
        return (int64_t) value->as.list->count;
    case MOE_VALUE_DICT:
        return (int64_t) value->as.dict->count;
    case MOE_VALUE_LOOP:
        return (int64_t) value->as.loop->count;
    default:
        return -1;
    }
}


int moe_value_as_integer(const moe_value_t *value, int64_t *integer)
{
    if (value->kind == MOE_VALUE_BOOLEAN) {
        *integer = value->as.boolean;
        return 1;
    }
    if (value->kind == MOE_VALUE_INTEGER) {
        *integer = value->as.integer;
        return 1;
    }
    return 0;
}


int moe_value_as_double(const moe_value_t *value, double *real)
{
    int64_t integer;

    if (value->kind == MOE_VALUE_FLOAT) {
        *real = value->as.real;
        return 1;
    }
    if (moe_value_as_integer(value, &integer)) {
        *real = (double) integer;
        return 1;
    }
    return 0;
}


/* Numbers of both kinds, exactly: 1 when both are numbers.  *order is 2 for NaN. */
static int compare_numbers(const moe_value_t *a, const moe_value_t *b, int *order)
{
    int64_t i, j;
    double x, y;

    if (moe_value_as_integer(a, &i) && moe_value_as_integer(b, &j)) {
        *order = (i > j) - (i < j);
        return 1;
    }
    if (!moe_value_as_double(a, &x) || !moe_value_as_double(b, &y)) {
        return 0;
    }
    *order = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
    if (*order == 0 && fabs(x) < 9e18
        && (a->kind == MOE_VALUE_INTEGER || b->kind == MOE_VALUE_INTEGER))
    {
        /* The double that an integer rounds to may hide a difference. */
        i = a->kind == MOE_VALUE_FLOAT ? (int64_t) x : a->as.integer;
        j = b->kind == MOE_VALUE_FLOAT ? (int64_t) y : b->as.integer;
        *order = (i > j) - (i < j);
    }
    return 1;
}


static int equal_lists(moe_job_t *job, const moe_list_t *a, const moe_list_t *b)
{
    if (a == b) {
        return 1;
    }
    if (a->count != b->count) {
        return 0;
    }
    for (size_t i = 0; i < a->count; i++) {
        int equal = moe_value_equal(job, &a->items[i], &b->items[i]);

        if (equal != 1) {
            return equal;
        }
    }
    return 1;
}


static int equal_dicts(moe_job_t *job, const moe_dict_t *a, const moe_dict_t *b)
{
    if (a == b) {
        return 1;
    }
    if (a->count != b->count) {
        return 0;
    }
    for (size_t i = 0; i < a->count; i++) {
        const moe_value_t *other = moe_dict_find(job, b, &a->entries[i].key);
        int equal = other == NULL ? 0 : moe_value_equal(job, &a->entries[i].value, other);

        if (equal != 1) {
            return equal;
        }
    }
    return 1;
}


static int equal_containers(moe_job_t *job, const moe_value_t *a, const moe_value_t *b)
{
    int equal;

    if (moe_job_enter(job) != 0) {
        return -1;
    }
    equal = a->kind == MOE_VALUE_DICT ? equal_dicts(job, a->as.dict, b->as.dict)
                                      : equal_lists(job, a->as.list, b->as.list);
    moe_job_leave(job);
    return equal;
}


int moe_value_equal(moe_job_t *job, const moe_value_t *a, const moe_value_t *b)
{
    int order;

    if (moe_job_charge(job, 1) != 0) {
        return -1;
    }
    if (compare_numbers(a, b, &order)) {
        return order == 0;
    }
    if (a->kind != b->kind) {
        return 0;
    }
    switch (a->kind) {
    case MOE_VALUE_STRING:
        if (a->as.string->size == b->as.string->size
            && moe_job_charge_bytes(job, a->as.string->size) != 0)
        {
            return -1;
        }
        return moe_string_equal(a->as.string, b->as.string);
    case MOE_VALUE_LIST:
    case MOE_VALUE_TUPLE:
    case MOE_VALUE_DICT:
        return equal_containers(job, a, b);
    case MOE_VALUE_UNDEFINED:
    case MOE_VALUE_NONE:
        return 1;
    default:
        return a->as.dict == b->as.dict;
    }
}


static int compare_lists(moe_job_t *job, const moe_list_t *a, const moe_list_t *b, int *order)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        int equal = moe_value_equal(job, &a->items[i], &b->items[i]);

        if (equal < 0) {
            return -1;
        }
        if (!equal) {
            return moe_value_compare(job, &a->items[i], &b->items[i], order);
        }
    }
    *order = (a->count > b->count) - (a->count < b->count);
    return 0;
}


int moe_value_compare(moe_job_t *job, const moe_value_t *a, const moe_value_t *b, int *order)
{
    int status;

    if (moe_job_charge(job, 1) != 0) {
        return -1;
    }
    if (compare_numbers(a, b, order)) {
        return 0;
    }
    if (a->kind == MOE_VALUE_STRING && b->kind == MOE_VALUE_STRING) {
        *order = moe_string_compare(a->as.string, b->as.string);
        return moe_job_charge_bytes(job, a->as.string->size);
    }
    if (a->kind == b->kind && (a->kind == MOE_VALUE_LIST || a->kind == MOE_VALUE_TUPLE)) {
        if (moe_job_enter(job) != 0) {
            return -1;
        }
        status = compare_lists(job, a->as.list, b->as.list, order);
        moe_job_leave(job);
        return status;
    }
    return moe_job_fail(job, "'%s' and '%s' cannot be ordered", moe_value_type(a),
                        moe_value_type(b));
}


static int list_contains(moe_job_t *job, const moe_list_t *list, const moe_value_t *needle)
{
    for (size_t i = 0; i < list->count; i++) {
        int equal = moe_value_equal(job, &list->items[i], needle);

        if (equal != 0) {
            return equal;
        }
    }
    return 0;
}


int moe_value_contains(moe_job_t *job, const moe_value_t *haystack, const moe_value_t *needle)
{
    switch (haystack->kind) {
    case MOE_VALUE_UNDEFINED:
        return 0;
    case MOE_VALUE_STRING:
        if (needle->kind != MOE_VALUE_STRING) {
            return moe_job_fail(job, "'in' needs a str in a str, not '%s'",
                                moe_value_type(needle));
        }
        if (moe_job_charge_bytes(job, haystack->as.string->size) != 0) {
            return -1;
        }
        return moe_string_find(haystack->as.string, needle->as.string, 0) != SIZE_MAX;
    case MOE_VALUE_LIST:
    case MOE_VALUE_TUPLE:
        return list_contains(job, haystack->as.list, needle);
    case MOE_VALUE_DICT:
        return moe_job_charge(job, 1) != 0
               ? -1 : moe_dict_find(job, haystack->as.dict, needle) != NULL;
    default:
        return moe_job_fail(job, "'%s' is no container for 'in'", moe_value_type(haystack));
    }
}


static int iterate_string(moe_job_t *job, const moe_string_t *string, moe_value_t *items)
{
    size_t at = 0;

    for (size_t i = 0; i < string->length; i++) {
        uint32_t code_point;
        size_t size = moe_string_character(string, at, &code_point);
        const moe_string_t *character = moe_string_slice(job, string, at, at + size);

        if (character == NULL || moe_job_charge(job, 1) != 0) {
            return -1;
        }
        items[i] = moe_string_value(character);
        at += size;
    }
    return 0;
}


int moe_value_iterate(moe_job_t *job, const moe_value_t *value, const moe_value_t **items,
                      size_t *count)
{
    int64_t length = moe_value_length(value);
    moe_value_t *copy;

    if (length < 0 || value->kind == MOE_VALUE_LOOP) {
        return moe_job_fail(job, "'%s' cannot be iterated over", moe_value_type(value));
    }
    *count = (size_t) length;
    if (value->kind == MOE_VALUE_LIST || value->kind == MOE_VALUE_TUPLE) {
        *items = value->as.list->items;
        return 0;
    }
    if (moe_job_charge_bytes(job, *count * sizeof(*copy)) != 0) {
        return -1;
    }
    copy = moe_job_alloc(job, *count * sizeof(*copy));
    if (copy == NULL) {
        return -1;
    }
    *items = copy;
    if (value->kind == MOE_VALUE_STRING) {
        return iterate_string(job, value->as.string, copy);
    }
    for (size_t i = 0; i < *count; i++) {
        copy[i] = value->as.dict->entries[i].key;
    }
    return 0;
}


moe_list_t *moe_list_new(moe_job_t *job, size_t capacity)
{
    moe_list_t *list = moe_job_alloc(job, sizeof(*list));

    if (list == NULL || capacity == 0) {
        return list;
    }
    if (capacity > job->memory_limit / sizeof(*list->items)) {
        moe_job_fail_code(job, MOE_LIMIT, "more than %zu bytes of memory needed",
                          job->memory_limit);
        return NULL;
    }
    list->items = moe_job_alloc(job, capacity * sizeof(*list->items));
    list->capacity = capacity;
    return list->items == NULL ? NULL : list;
}


int moe_list_append(moe_job_t *job, moe_list_t *list, const moe_value_t *value)
{
    size_t capacity = list->capacity;
    moe_value_t *items = moe_job_grow(job, list->items, list->count, &capacity, sizeof(*items));

    if (items == NULL) {
        return -1;
    }
    list->items = items;
    list->capacity = capacity;
    list->items[list->count++] = *value;
    return moe_job_charge(job, 1);
}


moe_dict_t *moe_dict_new(moe_job_t *job)
{
    return moe_job_alloc(job, sizeof(moe_dict_t));
}


/* Equal numbers of different kinds are the same key.  0 when the value cannot be a key. */
static int hash_key(const moe_value_t *key, uint32_t *hash)
{
    double real;

    if (key->kind == MOE_VALUE_STRING) {
        *hash = key->as.string->hash;
        return 1;
    }
    if (key->kind == MOE_VALUE_NONE) {
        *hash = 1;
        return 1;
    }
    if (moe_value_as_double(key, &real)) {
        uint64_t bits;

        real += 0.0;    /* -0.0 and 0.0 are one key */
        memcpy(&bits, &real, sizeof(bits));
        *hash = (uint32_t) ((bits * 0x9e3779b97f4a7c15u) >> 32);
        return 1;
    }
    return 0;
}


/* A key's entry number, or SIZE_MAX.  Work is counted, a limit shows at the next charge. */
static size_t locate(moe_job_t *job, const moe_dict_t *dict, const moe_value_t *key, uint32_t hash)
{
    size_t at = 0, left = dict->slots == NULL ? dict->count : dict->n_slots;

    if (dict->slots != NULL) {
        at = hash & (dict->n_slots - 1);
    }
    for (; left > 0; left--) {
        if (left % 16 == 0 && moe_job_charge(job, 1) != 0) {
            return SIZE_MAX;
        }
        size_t number = at;

        if (dict->slots != NULL) {
            if (dict->slots[at] == 0) {
                break;
            }
            number = dict->slots[at] - 1;
            at = (at + 1) & (dict->n_slots - 1);
        } else {
            at++;
        }
        if (dict->entries[number].hash == hash) {
            int equal = moe_value_equal(job, &dict->entries[number].key, key);

            if (equal != 0) {
                return equal == 1 ? number : SIZE_MAX;
            }
        }
    }
    return SIZE_MAX;
}


moe_value_t *moe_dict_find(moe_job_t *job, const moe_dict_t *dict, const moe_value_t *key)
{
    uint32_t hash;
    size_t number;

    if (!hash_key(key, &hash)) {
        return NULL;
    }
    number = locate(job, dict, key, hash);
    return number == SIZE_MAX ? NULL : &dict->entries[number].value;
}


moe_value_t *moe_dict_find_string(moe_job_t *job, const moe_dict_t *dict, const moe_string_t *key)
{
    moe_value_t value = moe_string_value(key);

    return moe_dict_find(job, dict, &value);
}


static void index_entry(moe_dict_t *dict, size_t number)
{
    size_t at = dict->entries[number].hash & (dict->n_slots - 1);

    while (dict->slots[at] != 0) {
        at = (at + 1) & (dict->n_slots - 1);
    }
    dict->slots[at] = (uint32_t) number + 1;
}


static int grow_dict(moe_job_t *job, moe_dict_t *dict)
{
    size_t capacity = dict->capacity > 0 ? 2 * dict->capacity : 4;
    moe_entry_t *entries = moe_job_alloc(job, capacity * sizeof(*entries));

    if (entries == NULL || moe_job_charge(job, capacity) != 0) {
        return -1;
    }
    if (dict->count > 0) {
        memcpy(entries, dict->entries, dict->count * sizeof(*entries));
    }
    if (capacity > SMALL_DICT) {
        dict->slots = moe_job_alloc(job, 2 * capacity * sizeof(*dict->slots));
        if (dict->slots == NULL) {
            return -1;
        }
        dict->n_slots = 2 * capacity;
    }
    dict->entries = entries;
    dict->capacity = capacity;
    for (size_t i = 0; dict->slots != NULL && i < dict->count; i++) {
        index_entry(dict, i);
    }
    return 0;
}


int moe_dict_set(moe_job_t *job, moe_dict_t *dict, const moe_value_t *key,
                 const moe_value_t *value)
{
    uint32_t hash;
    size_t number;

    if (!hash_key(key, &hash)) {
        return moe_job_fail(job, "'%s' cannot be a dict's key", moe_value_type(key));
    }
    number = locate(job, dict, key, hash);
    if (number != SIZE_MAX) {
        dict->entries[number].value = *value;
        return 0;
    }
    if (dict->count == dict->capacity && grow_dict(job, dict) != 0) {
        return -1;
    }
    dict->entries[dict->count] = (moe_entry_t) { .key = *key, .value = *value, .hash = hash };
    dict->count++;
    if (dict->slots != NULL) {
        index_entry(dict, dict->count - 1);
    }
    return moe_job_charge(job, 1);
}


int moe_dict_set_string(moe_job_t *job, moe_dict_t *dict, const moe_string_t *key,
                        const moe_value_t *value)
{
    moe_value_t key_value = moe_string_value(key);

    return moe_dict_set(job, dict, &key_value, value);
}


void moe_dict_clear(moe_dict_t *dict)
{
    dict->count = 0;
    if (dict->slots != NULL) {
        memset(dict->slots, 0, dict->n_slots * sizeof(*dict->slots));
    }
}


moe_list_t *moe_dict_items(moe_job_t *job, const moe_dict_t *dict)
{
    moe_list_t *list = moe_list_new(job, dict->count);

    for (size_t i = 0; list != NULL && i < dict->count; i++) {
        moe_value_t pair = { .kind = MOE_VALUE_TUPLE, .as.list = moe_list_new(job, 2) };

        if (pair.as.list == NULL
            || moe_list_append(job, pair.as.list, &dict->entries[i].key) != 0
            || moe_list_append(job, pair.as.list, &dict->entries[i].value) != 0
            || moe_list_append(job, list, &pair) != 0)
        {
            return NULL;
        }
    }
    return list;
}


static int list_from_json(moe_job_t *job, const json_t *json, int trusted, const json_t *fields,
                          moe_value_t *value)
{
    moe_list_t *list = moe_list_new(job, json_array_size(json));

    if (list == NULL) {
        return -1;
    }
    for (size_t i = 0; i < json_array_size(json); i++) {
        moe_value_t item;

        if (moe_value_from_json(job, json_array_get(json, i), trusted, fields, &item) != 0
            || moe_list_append(job, list, &item) != 0)
        {
            return -1;
        }
    }
    *value = moe_list_value(list);
    return 0;
}


static int is_known_word(const json_t *fields, const char *key, const json_t *string)
{
    const json_t *words = json_object_get(fields, key);

    for (size_t i = 0; i < json_array_size(words); i++) {
        if (json_equal(json_array_get(words, i), string)) {
            return 1;
        }
    }
    return 0;
}


static int dict_from_json(moe_job_t *job, const json_t *json, int trusted, const json_t *fields,
                          moe_value_t *value)
{
    moe_dict_t *dict = moe_dict_new(job);
    const char *name;
    json_t *member;

    if (dict == NULL) {
        return -1;
    }
    /* Iteration does not change the object; jansson's interface has no const. */
    json_object_foreach((json_t *) json, name, member) {
        int known = trusted || (json_is_string(member) && is_known_word(fields, name, member));
        const moe_string_t *key = moe_string_view(job, name, strlen(name), trusted);
        moe_value_t item;

        if (key == NULL || moe_value_from_json(job, member, known, fields, &item) != 0
            || moe_dict_set_string(job, dict, key, &item) != 0)
        {
            return -1;
        }
    }
    *value = moe_dict_value(dict);
    return 0;
}


static int string_from_json(moe_job_t *job, const json_t *json, int trusted, moe_value_t *value)
{
    const moe_string_t *string = moe_string_view(job, json_string_value(json),
                                                 json_string_length(json), trusted);

    if (string == NULL) {
        return -1;
    }
    *value = moe_string_value(string);
    return 0;
}


int moe_value_from_json(moe_job_t *job, const json_t *json, int trusted, const json_t *fields,
                        moe_value_t *value)
{
    int status;

    switch (json_typeof(json)) {
    case JSON_NULL:
        *value = moe_none();
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        *value = moe_boolean(json_is_true(json));
        return 0;
    case JSON_INTEGER:
        *value = moe_integer(json_integer_value(json));
        return 0;
    case JSON_REAL:
        *value = moe_float(json_real_value(json));
        return 0;
    case JSON_STRING:
        return string_from_json(job, json, trusted, value);
    default:
        break;
    }
    if (moe_job_enter(job) != 0) {
        return -1;
    }
    status = json_is_array(json) ? list_from_json(job, json, trusted, fields, value)
                                 : dict_from_json(job, json, trusted, fields, value);
    moe_job_leave(job);
    return status;
}
