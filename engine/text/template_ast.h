/*
 * The parts of a template between source and rendering: tokens, nodes, tables of built-ins.
 */

#ifndef MOE_TEMPLATE_AST_H
#define MOE_TEMPLATE_AST_H

#include "engine/text/template_string.h"

typedef enum {
    MOE_TOKEN_TEXT,             /* literal text, whitespace rules applied */
    MOE_TOKEN_PRINT_BEGIN,
    MOE_TOKEN_PRINT_END,
    MOE_TOKEN_BLOCK_BEGIN,
    MOE_TOKEN_BLOCK_END,
    MOE_TOKEN_NAME,
    MOE_TOKEN_STRING,           /* with its quotes */
    MOE_TOKEN_INTEGER,
    MOE_TOKEN_FLOAT,
    MOE_TOKEN_OPERATOR,
    MOE_TOKEN_END               /* of the template */
} moe_token_kind_t;

typedef struct {
    moe_token_kind_t kind;
    int line;
    const char *data;
    size_t size;
} moe_token_t;

/* All tokens of a template, in the job's arena, ended by MOE_TOKEN_END.  NULL with the error. */
moe_token_t *moe_template_lex(moe_job_t *job, const char *source, size_t size);


typedef struct moe_node_s moe_node_t;
typedef struct moe_builtin_s moe_builtin_t;

typedef struct {
    moe_node_t **items;
    size_t count, capacity;
} moe_nodes_t;

typedef struct {
    const moe_string_t *name;   /* NULL: positional */
    moe_node_t *value;
} moe_argument_t;

typedef struct {
    moe_argument_t *items;
    size_t count;
} moe_arguments_t;

typedef enum {
    MOE_NODE_LITERAL,
    MOE_NODE_NAME,
    MOE_NODE_LIST,
    MOE_NODE_TUPLE,
    MOE_NODE_DICT,              /* list: keys and values in turn */
    MOE_NODE_CONCAT,            /* list: operands of ~ */
    MOE_NODE_UNARY,
    MOE_NODE_BINARY,
    MOE_NODE_AND,
    MOE_NODE_OR,
    MOE_NODE_NOT,
    MOE_NODE_COMPARE,
    MOE_NODE_CONDITIONAL,
    MOE_NODE_ATTRIBUTE,
    MOE_NODE_SUBSCRIPT,
    MOE_NODE_SLICE,
    MOE_NODE_CALL,
    MOE_NODE_FILTER,
    MOE_NODE_TEST,
    MOE_NODE_BODY,              /* list: statements */
    MOE_NODE_TEXT,
    MOE_NODE_PRINT,
    MOE_NODE_IF,
    MOE_NODE_FOR,
    MOE_NODE_SET,
    MOE_NODE_SET_BLOCK,
    MOE_NODE_MACRO,
    MOE_NODE_FILTER_BLOCK,
    MOE_NODE_CALL_BLOCK,
    MOE_NODE_WITH,
    MOE_NODE_BREAK,
    MOE_NODE_CONTINUE
} moe_node_kind_t;

typedef enum {
    MOE_OP_ADD, MOE_OP_SUBTRACT, MOE_OP_MULTIPLY, MOE_OP_DIVIDE, MOE_OP_FLOOR_DIVIDE,
    MOE_OP_MODULO, MOE_OP_POWER, MOE_OP_POSITIVE, MOE_OP_NEGATIVE,
    MOE_OP_EQUAL, MOE_OP_NOT_EQUAL, MOE_OP_LESS, MOE_OP_LESS_EQUAL, MOE_OP_GREATER,
    MOE_OP_GREATER_EQUAL, MOE_OP_IN, MOE_OP_NOT_IN
} moe_op_t;

typedef struct {
    moe_op_t op;
    moe_node_t *operand;
} moe_comparison_t;

/* A name, or a namespace's attribute (name.attribute). */
typedef struct {
    const moe_string_t *name, *attribute;       /* attribute may be NULL */
} moe_place_t;

/* Where a value goes: a place, or several that unpack a sequence. */
typedef struct {
    moe_place_t *places;
    size_t count;
    int unpacks;
} moe_target_t;

/* What a macro's body mentions and so may be given beyond its parameters. */
enum { MOE_MACRO_CALLER = 1, MOE_MACRO_VARARGS = 2, MOE_MACRO_KWARGS = 4 };

struct moe_node_s {
    moe_node_kind_t kind;
    moe_op_t op;
    int line;
    union {
        moe_value_t literal;            /* LITERAL; TEXT: a string */
        const moe_string_t *name;
        moe_nodes_t list;
        struct {
            moe_node_t *left, *right;   /* UNARY, NOT, PRINT: left only */
        } pair;
        struct {
            moe_node_t *first;
            moe_comparison_t *items;
            size_t count;
        } compare;
        struct {
            moe_node_t *test, *yes, *no;        /* CONDITIONAL, IF; `no` may be NULL */
        } branch;
        struct {
            moe_node_t *object;
            const moe_string_t *name;
        } attribute;
        struct {
            moe_node_t *object, *start, *stop, *step;   /* SLICE; all but object may be NULL */
        } slice;
        struct {
            moe_node_t *object;                 /* callee, or what is filtered or tested */
            const moe_builtin_t *builtin;       /* FILTER, TEST */
            moe_arguments_t arguments;
            int negated;                        /* TEST */
        } call;
        struct {
            moe_target_t target;
            moe_node_t *items, *condition, *body, *otherwise;   /* condition, otherwise or NULL */
            int recursive;                      /* the body may call the loop */
        } loop;
        struct {
            moe_target_t target;
            moe_node_t *value;                  /* SET: expression; SET_BLOCK: body */
            moe_node_t *filter;                 /* SET_BLOCK, FILTER_BLOCK: chain or NULL */
        } set;
        struct {
            const moe_string_t *name;
            const moe_string_t **parameters;
            moe_node_t **defaults;              /* NULL where there is none */
            size_t count;
            moe_node_t *body;
            unsigned special;                   /* MOE_MACRO_* */
        } macro;                                /* WITH: names and their values */
        struct {
            moe_node_t *call, *caller;          /* a CALL, a MACRO without a name */
        } block;
    } as;
};

/* The tree of a template: a BODY.  NULL with the error. */
moe_node_t *moe_template_parse_tree(moe_job_t *job, const moe_token_t *tokens);


/* Arguments as given: positional ones first. */
typedef struct {
    moe_value_t *values;
    const moe_string_t **names;         /* per value; NULL: positional */
    size_t count, n_positional;
} moe_given_t;

#define MOE_BUILTIN_PARAMETERS 4

typedef int (*moe_builtin_call_t)(moe_job_t *job, const moe_value_t *self,
                                  const moe_value_t *arguments, moe_value_t *result);
typedef int (*moe_builtin_call_any_t)(moe_job_t *job, const moe_value_t *self,
                                      const moe_given_t *given, moe_value_t *result);

/*
 * A filter, test, method or function.  `self`: the filtered or tested value, the method's object;
 * functions have none.  Arguments arrive in the order of `parameters`, undefined where not given;
 * with `call_any` they arrive as given.
 */
struct moe_builtin_s {
    const char *name;
    moe_builtin_call_t call;
    moe_builtin_call_any_t call_any;
    unsigned required;                  /* first parameters that must be given */
    const char *parameters[MOE_BUILTIN_PARAMETERS];
};

struct moe_bound_s {
    const moe_builtin_t *builtin;
    moe_value_t self;
};

/* By name; NULL when there is none. */
const moe_builtin_t *moe_template_filter(const char *name, size_t size);
const moe_builtin_t *moe_template_test(const char *name, size_t size);
const moe_builtin_t *moe_template_function(const char *name, size_t size);
const moe_builtin_t *moe_template_method(moe_value_kind_t kind, const char *name, size_t size);
const moe_builtin_t *moe_builtin_find(const moe_builtin_t *table, const char *name, size_t size);

int moe_builtin_call(moe_job_t *job, const moe_builtin_t *builtin, const moe_value_t *self,
                     const moe_given_t *given, moe_value_t *result);

/* What a built-in returns: 0, or -1 when the string or list could not be made (NULL). */
int moe_give_string(const moe_string_t *string, moe_value_t *result);
int moe_give_list(moe_list_t *list, moe_value_t *result);

/* The tables, each ended by a row without a name. */
extern const moe_builtin_t moe_string_filters[], moe_number_filters[], moe_list_filters[],
                           moe_select_filters[], moe_format_filters[];

/* Operators: template_operator.c. */
int moe_value_binary(moe_job_t *job, moe_op_t op, const moe_value_t *a, const moe_value_t *b,
                     moe_value_t *result);
/* format % given: template_format.c. */
int moe_string_percent(moe_job_t *job, const moe_string_t *format, const moe_value_t *given,
                       moe_value_t *result);
int moe_value_unary(moe_job_t *job, moe_op_t op, const moe_value_t *a, moe_value_t *result);
/* 1, 0 or -1. */
int moe_value_relation(moe_job_t *job, moe_op_t op, const moe_value_t *a, const moe_value_t *b);
/* object.name: method first, then item; undefined when there is neither. */
int moe_value_attribute(moe_job_t *job, const moe_value_t *object, const moe_string_t *name,
                        moe_value_t *result);
/* object[key]: item first. */
int moe_value_item(moe_job_t *job, const moe_value_t *object, const moe_value_t *key,
                   moe_value_t *result);
/* object[start:stop:step]; none or undefined where not given. */
int moe_value_slice(moe_job_t *job, const moe_value_t *object, const moe_value_t bounds[3],
                    moe_value_t *result);

#endif
