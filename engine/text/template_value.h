/*
 * Values of the template evaluator, and the job they live in.
 *
 * A job is one parse or one render: it owns an arena that all nodes and values come from (nothing
 * is freed before the job ends), the budgets that bound hostile input, and the line at work.
 * Functions return 0, or -1 with job->error filled; pointers are never NULL unless said so.
 *
 * Strings are immutable UTF-8 and know which of their bytes are trusted; everything that makes a
 * string out of others goes through a builder, which keeps that knowledge.
 */

#ifndef MOE_TEMPLATE_VALUE_H
#define MOE_TEMPLATE_VALUE_H

#include "engine/text/template.h"

typedef struct moe_chunk_s moe_chunk_t;

typedef struct {
    moe_chunk_t *chunks;        /* newest first */
    json_t *parsed;             /* array of what from_json parsed; values point into it */
    size_t memory, memory_limit;
    size_t steps, steps_limit;
    unsigned depth, depth_limit;
    int line;                   /* of the node at work */
    moe_error_code_t fault;     /* code of errors in the template itself */
    int64_t now;
    moe_error_t *error;
} moe_job_t;

/* Zeroed memory, aligned for any value.  NULL with MOE_LIMIT. */
void *moe_job_alloc(moe_job_t *job, size_t size);
/* Room for one more of `count` items: the array itself or a larger copy.  NULL with MOE_LIMIT. */
void *moe_job_grow(moe_job_t *job, void *items, size_t count, size_t *capacity, size_t item_size);
void moe_job_free(moe_job_t *job);
/* Counts memory that is not the arena's. */
int moe_job_charge_memory(moe_job_t *job, size_t size);
/* Counts `steps` of work: -1 with MOE_LIMIT when the budget is used up. */
int moe_job_charge(moe_job_t *job, size_t steps);
/* Counts work on `bytes` bytes. */
int moe_job_charge_bytes(moe_job_t *job, size_t bytes);
/* One level deeper (undone with moe_job_leave, only after success). */
int moe_job_enter(moe_job_t *job);
void moe_job_leave(moe_job_t *job);
/* moe_fail with job->fault, or with `code`, and "template line N: " in front. */
int moe_job_fail(moe_job_t *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
int moe_job_fail_code(moe_job_t *job, moe_error_code_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));


typedef struct {
    const char *data;
    const uint8_t *marks;       /* per byte, 1 is trusted; NULL: all bytes are as `trusted` says */
    size_t size;                /* bytes */
    size_t length;              /* characters */
    uint32_t hash;
    uint8_t trusted;
} moe_string_t;

typedef enum {
    MOE_VALUE_UNDEFINED,
    MOE_VALUE_NONE,
    MOE_VALUE_BOOLEAN,
    MOE_VALUE_INTEGER,
    MOE_VALUE_FLOAT,
    MOE_VALUE_STRING,
    MOE_VALUE_LIST,
    MOE_VALUE_TUPLE,
    MOE_VALUE_DICT,
    MOE_VALUE_NAMESPACE,
    MOE_VALUE_LOOP,
    MOE_VALUE_MACRO,
    MOE_VALUE_BUILTIN           /* function, or method bound to its object */
} moe_value_kind_t;

typedef struct moe_list_s moe_list_t;
typedef struct moe_dict_s moe_dict_t;
typedef struct moe_loop_s moe_loop_t;
typedef struct moe_macro_s moe_macro_t;
typedef struct moe_bound_s moe_bound_t;

typedef struct {
    moe_value_kind_t kind;
    union {
        const moe_string_t *name;   /* of what is undefined; NULL when unknown */
        int boolean;
        int64_t integer;
        double real;
        const moe_string_t *string;
        moe_list_t *list;           /* lists and tuples */
        moe_dict_t *dict;           /* dicts and namespaces */
        moe_loop_t *loop;
        moe_macro_t *macro;
        moe_bound_t *bound;
    } as;
} moe_value_t;

struct moe_list_s {
    moe_value_t *items;
    size_t count, capacity;
};

typedef struct {
    moe_value_t key, value;
    uint32_t hash;
} moe_entry_t;

struct moe_dict_s {
    moe_entry_t *entries;       /* in order of insertion */
    size_t count, capacity;
    uint32_t *slots;            /* entry number + 1, open addressing; NULL while there are few */
    size_t n_slots;             /* a power of two */
};

struct moe_loop_s {
    const moe_value_t *items;
    size_t count, index;
    unsigned level;             /* of recursion, from 0 */
    const struct moe_node_s *node;
    struct moe_scope_s *scope;  /* around the loop */
    moe_list_t *seen;           /* by loop.changed; NULL: nothing yet */
};

moe_value_t moe_undefined(const moe_string_t *name);
moe_value_t moe_none(void);
moe_value_t moe_boolean(int boolean);
moe_value_t moe_integer(int64_t integer);
moe_value_t moe_float(double real);
moe_value_t moe_string_value(const moe_string_t *string);
moe_value_t moe_list_value(moe_list_t *list);
moe_value_t moe_dict_value(moe_dict_t *dict);

/* The type's name in Python, for messages. */
const char *moe_value_type(const moe_value_t *value);
int moe_value_is_true(const moe_value_t *value);
/* Python's ==: 1, 0, or -1 on a limit. */
int moe_value_equal(moe_job_t *job, const moe_value_t *a, const moe_value_t *b);
/* Python's order: *order is <0, 0, >0.  Fails on types that have none. */
int moe_value_compare(moe_job_t *job, const moe_value_t *a, const moe_value_t *b, int *order);
/* `needle in haystack`: 1, 0, -1. */
int moe_value_contains(moe_job_t *job, const moe_value_t *haystack, const moe_value_t *needle);
/* The items that a loop over `value` sees: a view of a list, else a new array. */
int moe_value_iterate(moe_job_t *job, const moe_value_t *value, const moe_value_t **items,
                      size_t *count);
/* Number of items or characters, -1 (no error set) where there is none. */
int64_t moe_value_length(const moe_value_t *value);
/* Integers and booleans as a number: 1, or 0 for other kinds. */
int moe_value_as_integer(const moe_value_t *value, int64_t *integer);
int moe_value_as_double(const moe_value_t *value, double *real);

moe_list_t *moe_list_new(moe_job_t *job, size_t capacity);
int moe_list_append(moe_job_t *job, moe_list_t *list, const moe_value_t *value);

moe_dict_t *moe_dict_new(moe_job_t *job);
/* NULL when there is no such key (or it cannot be one). */
moe_value_t *moe_dict_find(moe_job_t *job, const moe_dict_t *dict, const moe_value_t *key);
moe_value_t *moe_dict_find_string(moe_job_t *job, const moe_dict_t *dict, const moe_string_t *key);
/* Adds or replaces.  Fails for keys that cannot be hashed. */
int moe_dict_set(moe_job_t *job, moe_dict_t *dict, const moe_value_t *key,
                 const moe_value_t *value);
int moe_dict_set_string(moe_job_t *job, moe_dict_t *dict, const moe_string_t *key,
                        const moe_value_t *value);
void moe_dict_clear(moe_dict_t *dict);
/* (key, value) tuples. */
moe_list_t *moe_dict_items(moe_job_t *job, const moe_dict_t *dict);

/*
 * JSON to value.  Strings point into `json`, which must outlive the job.  `fields` (or NULL): an
 * object of key -> array of words; a string under such a key that equals one of the words is
 * trusted.
 */
int moe_value_from_json(moe_job_t *job, const json_t *json, int trusted, const json_t *fields,
                        moe_value_t *value);

#endif
