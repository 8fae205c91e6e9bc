/*
 * Evaluator of expressions: one function per kind of node, found by the kind.
 */

#include "engine/text/template_render.h"

#include <string.h>


static int eval_literal(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    *result = node->as.literal;
    return 0;
}


static int eval_name(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    const moe_string_t *name = node->as.name;
    const moe_builtin_t *function;

    for (const moe_scope_t *scope = render->scope; scope != NULL; scope = scope->parent) {
        const moe_value_t *found = moe_dict_find_string(&render->job, scope->names, name);

        if (found != NULL) {
            *result = *found;
            return 0;
        }
    }
    *result = moe_undefined(name);
    function = moe_template_function(name->data, name->size);
    if (function != NULL) {
        result->kind = MOE_VALUE_BUILTIN;
        result->as.bound = moe_job_alloc(&render->job, sizeof(*result->as.bound));
        if (result->as.bound == NULL) {
            return -1;
        }
        result->as.bound->builtin = function;
    }
    return 0;
}


static int eval_list(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_list_t *list = moe_list_new(&render->job, node->as.list.count);

    for (size_t i = 0; i < node->as.list.count; i++) {
        moe_value_t item;

        if (list == NULL || moe_render_eval(render, node->as.list.items[i], &item) != 0
            || moe_list_append(&render->job, list, &item) != 0)
        {
            return -1;
        }
    }
    *result = moe_list_value(list);
    result->kind = node->kind == MOE_NODE_TUPLE ? MOE_VALUE_TUPLE : MOE_VALUE_LIST;
    return list == NULL ? -1 : 0;
}


static int eval_dict(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_dict_t *dict = moe_dict_new(&render->job);

    for (size_t i = 0; i < node->as.list.count; i += 2) {
        moe_value_t key, value;

        if (dict == NULL || moe_render_eval(render, node->as.list.items[i], &key) != 0
            || moe_render_eval(render, node->as.list.items[i + 1], &value) != 0
            || moe_dict_set(&render->job, dict, &key, &value) != 0)
        {
            return -1;
        }
    }
    *result = moe_dict_value(dict);
    return dict == NULL ? -1 : 0;
}


static int eval_concat(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_builder_t builder;

    moe_builder_start(&builder, &render->job);
    for (size_t i = 0; i < node->as.list.count; i++) {
        const moe_string_t *string;
        moe_value_t operand;

        if (moe_render_eval(render, node->as.list.items[i], &operand) != 0) {
            return -1;
        }
        string = moe_value_string(&render->job, &operand);
        if (string == NULL || moe_builder_add(&builder, string) != 0) {
            return -1;
        }
    }
    *result = moe_string_value(moe_builder_finish(&builder));
    return result->as.string == NULL ? -1 : 0;
}


static int eval_unary(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t operand;

    return moe_render_eval(render, node->as.pair.left, &operand) != 0
           ? -1 : moe_value_unary(&render->job, node->op, &operand, result);
}


static int eval_binary(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t left, right;

    if (moe_render_eval(render, node->as.pair.left, &left) != 0
        || moe_render_eval(render, node->as.pair.right, &right) != 0)
    {
        return -1;
    }
    render->job.line = node->line;
    return moe_value_binary(&render->job, node->op, &left, &right, result);
}


static int eval_logic(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    if (moe_render_eval(render, node->as.pair.left, result) != 0) {
        return -1;
    }
    if (moe_value_is_true(result) == (node->kind == MOE_NODE_OR)) {
        return 0;
    }
    return moe_render_eval(render, node->as.pair.right, result);
}


static int eval_not(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t operand;

    if (moe_render_eval(render, node->as.pair.left, &operand) != 0) {
        return -1;
    }
    *result = moe_boolean(!moe_value_is_true(&operand));
    return 0;
}


/* a < b < c: every operand once, until a relation fails. */
static int eval_compare(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t left, right;
    int yes = 1;

    if (moe_render_eval(render, node->as.compare.first, &left) != 0) {
        return -1;
    }
    for (size_t i = 0; i < node->as.compare.count && yes; i++) {
        const moe_comparison_t *item = &node->as.compare.items[i];

        if (moe_render_eval(render, item->operand, &right) != 0) {
            return -1;
        }
        render->job.line = node->line;
        yes = moe_value_relation(&render->job, item->op, &left, &right);
        if (yes < 0) {
            return -1;
        }
        left = right;
    }
    *result = moe_boolean(yes);
    return 0;
}


static int eval_conditional(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t test;

    if (moe_render_eval(render, node->as.branch.test, &test) != 0) {
        return -1;
    }
    if (moe_value_is_true(&test)) {
        return moe_render_eval(render, node->as.branch.yes, result);
    }
    if (node->as.branch.no == NULL) {
        *result = moe_undefined(NULL);
        return 0;
    }
    return moe_render_eval(render, node->as.branch.no, result);
}


static int eval_attribute(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t object;

    if (moe_render_eval(render, node->as.attribute.object, &object) != 0) {
        return -1;
    }
    render->job.line = node->line;
    return moe_value_attribute(&render->job, &object, node->as.attribute.name, result);
}


static int eval_subscript(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t object, key;

    if (moe_render_eval(render, node->as.pair.left, &object) != 0
        || moe_render_eval(render, node->as.pair.right, &key) != 0)
    {
        return -1;
    }
    render->job.line = node->line;
    return moe_value_item(&render->job, &object, &key, result);
}


static int eval_slice(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    const moe_node_t *const parts[] = {
        node->as.slice.start, node->as.slice.stop, node->as.slice.step
    };
    moe_value_t object, bounds[3];

    if (moe_render_eval(render, node->as.slice.object, &object) != 0) {
        return -1;
    }
    for (size_t i = 0; i < 3; i++) {
        bounds[i] = moe_none();
        if (parts[i] != NULL && moe_render_eval(render, parts[i], &bounds[i]) != 0) {
            return -1;
        }
    }
    render->job.line = node->line;
    return moe_value_slice(&render->job, &object, bounds, result);
}


/* `caller`: one more argument of this name, or NULL. */
static int eval_arguments(moe_render_t *render, const moe_arguments_t *arguments,
                          const moe_value_t *caller, moe_given_t *given)
{
    size_t count = arguments->count + (caller != NULL);

    memset(given, 0, sizeof(*given));
    if (count == 0) {
        return 0;
    }
    given->values = moe_job_alloc(&render->job, count * sizeof(*given->values));
    given->names = moe_job_alloc(&render->job, count * sizeof(*given->names));
    if (given->values == NULL || given->names == NULL) {
        return -1;
    }
    for (size_t i = 0; i < arguments->count; i++) {
        given->names[i] = arguments->items[i].name;
        given->n_positional += arguments->items[i].name == NULL;
        if (moe_render_eval(render, arguments->items[i].value, &given->values[i]) != 0) {
            return -1;
        }
    }
    given->count = count;
    if (caller != NULL) {
        given->values[count - 1] = *caller;
        given->names[count - 1] = moe_string_view(&render->job, "caller", 6, 1);
        return given->names[count - 1] == NULL ? -1 : 0;
    }
    return 0;
}


/* The argument for a macro's parameter, or NULL when it was not given. */
static const moe_value_t *find_argument(const moe_given_t *given, size_t number,
                                        const moe_string_t *name)
{
    if (number < given->n_positional) {
        return &given->values[number];
    }
    for (size_t i = given->n_positional; i < given->count; i++) {
        if (moe_string_equal(given->names[i], name)) {
            return &given->values[i];
        }
    }
    return NULL;
}


static int is_parameter(const moe_node_t *macro, const moe_string_t *name)
{
    for (size_t i = 0; i < macro->as.macro.count; i++) {
        if (moe_string_equal(macro->as.macro.parameters[i], name)) {
            return 1;
        }
    }
    return 0;
}


/* What a macro takes without a parameter: its caller, or any name. */
static int is_extra(const moe_node_t *macro, const moe_string_t *name)
{
    return macro->as.macro.special & (moe_string_is(name, "caller") ? MOE_MACRO_CALLER
                                                                    : MOE_MACRO_KWARGS);
}


static int check_argument_names(moe_render_t *render, const moe_node_t *macro,
                                const moe_given_t *given)
{
    const moe_string_t *name = macro->as.macro.name;

    if (given->n_positional > macro->as.macro.count
        && !(macro->as.macro.special & MOE_MACRO_VARARGS))
    {
        return moe_job_fail(&render->job, "macro '%.*s' takes %zu arguments",
                            (int) (name->size < 40 ? name->size : 40), name->data,
                            macro->as.macro.count);
    }
    for (size_t i = given->n_positional; i < given->count; i++) {
        const moe_string_t *argument = given->names[i];

        if (!is_parameter(macro, argument) && !is_extra(macro, argument)) {
            return moe_job_fail(&render->job, "macro '%.*s' has no parameter '%.*s'",
                                (int) (name->size < 40 ? name->size : 40), name->data,
                                (int) (argument->size < 40 ? argument->size : 40),
                                argument->data);
        }
    }
    return 0;
}


/* Binds arguments in the macro's scope, where defaults see the parameters before them. */
static int bind_parameters(moe_render_t *render, const moe_node_t *macro,
                           const moe_given_t *given)
{
    for (size_t i = 0; i < macro->as.macro.count; i++) {
        const moe_string_t *name = macro->as.macro.parameters[i];
        const moe_value_t *argument = find_argument(given, i, name);
        moe_value_t value = argument != NULL ? *argument : moe_undefined(name);

        if (argument == NULL && macro->as.macro.defaults[i] != NULL
            && moe_render_eval(render, macro->as.macro.defaults[i], &value) != 0)
        {
            return -1;
        }
        if (moe_dict_set_string(&render->job, render->scope->names, name, &value) != 0) {
            return -1;
        }
    }
    return 0;
}


/* Sets a special name where the macro mentions it and has no parameter of this name. */
static int set_special(moe_render_t *render, const moe_node_t *macro, unsigned bit,
                       const char *name, const moe_value_t *value)
{
    const moe_string_t *string = moe_string_view(&render->job, name, strlen(name), 1);

    if (string == NULL) {
        return -1;
    }
    return !(macro->as.macro.special & bit) || is_parameter(macro, string)
           ? 0 : moe_dict_set_string(&render->job, render->scope->names, string, value);
}


/* Arguments without a parameter of their own: varargs, kwargs and caller. */
static int bind_specials(moe_render_t *render, const moe_node_t *macro, const moe_given_t *given)
{
    moe_value_t caller = moe_undefined(moe_string_view(&render->job, "caller", 6, 1));
    moe_value_t varargs = moe_list_value(moe_list_new(&render->job, 0));
    moe_value_t kwargs = moe_dict_value(moe_dict_new(&render->job));

    varargs.kind = MOE_VALUE_TUPLE;
    if (caller.as.name == NULL || varargs.as.list == NULL || kwargs.as.dict == NULL) {
        return -1;
    }
    for (size_t i = 0; i < given->count; i++) {
        int status = 0;

        if (i < given->n_positional) {
            status = i < macro->as.macro.count
                     ? 0 : moe_list_append(&render->job, varargs.as.list, &given->values[i]);
        } else if (is_parameter(macro, given->names[i])) {
            continue;
        } else if (moe_string_is(given->names[i], "caller")) {
            caller = given->values[i];
        } else {
            status = moe_dict_set_string(&render->job, kwargs.as.dict, given->names[i],
                                         &given->values[i]);
        }
        if (status != 0) {
            return -1;
        }
    }
    return set_special(render, macro, MOE_MACRO_CALLER, "caller", &caller) != 0
           || set_special(render, macro, MOE_MACRO_VARARGS, "varargs", &varargs) != 0
           || set_special(render, macro, MOE_MACRO_KWARGS, "kwargs", &kwargs) != 0 ? -1 : 0;
}


static int call_macro(moe_render_t *render, const moe_macro_t *macro, const moe_given_t *given,
                      moe_value_t *result)
{
    moe_scope_t *caller = render->scope, *scope = moe_render_scope(render, macro->scope);
    int status;

    if (scope == NULL || check_argument_names(render, macro->node, given) != 0) {
        return -1;
    }
    render->scope = scope;
    status = bind_parameters(render, macro->node, given);
    if (status == 0 && macro->node->as.macro.special != 0) {
        status = bind_specials(render, macro->node, given);
    }
    if (status == 0) {
        *result = moe_string_value(moe_render_capture(render, macro->node->as.macro.body, scope));
        status = result->as.string == NULL ? -1 : 0;
    }
    render->scope = caller;
    return status;
}


static int call_loop(moe_render_t *render, const moe_loop_t *loop, const moe_given_t *given,
                     moe_value_t *result)
{
    if (given->count != 1 || given->n_positional != 1) {
        return moe_job_fail(&render->job, "'loop' takes the items to go on with");
    }
    return moe_render_loop(render, loop, &given->values[0], result);
}


int moe_render_call(moe_render_t *render, const moe_node_t *node, const moe_value_t *caller,
                    moe_value_t *result)
{
    moe_value_t callee;
    moe_given_t given;

    if (moe_render_eval(render, node->as.call.object, &callee) != 0
        || eval_arguments(render, &node->as.call.arguments, caller, &given) != 0)
    {
        return -1;
    }
    render->job.line = node->line;
    if (callee.kind == MOE_VALUE_MACRO) {
        return call_macro(render, callee.as.macro, &given, result);
    }
    if (callee.kind == MOE_VALUE_BUILTIN) {
        return moe_builtin_call(&render->job, callee.as.bound->builtin, &callee.as.bound->self,
                                &given, result);
    }
    if (callee.kind == MOE_VALUE_LOOP) {
        return call_loop(render, callee.as.loop, &given, result);
    }
    if (callee.kind == MOE_VALUE_UNDEFINED && callee.as.name != NULL) {
        return moe_job_fail(&render->job, "'%.*s' is undefined",
                            (int) (callee.as.name->size < 80 ? callee.as.name->size : 80),
                            callee.as.name->data);
    }
    return moe_job_fail(&render->job, "'%s' cannot be called", moe_value_type(&callee));
}


static int eval_call(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    return moe_render_call(render, node, NULL, result);
}


static int apply_builtin(moe_render_t *render, const moe_node_t *node, const moe_value_t *self,
                         moe_value_t *result)
{
    moe_given_t given;

    if (eval_arguments(render, &node->as.call.arguments, NULL, &given) != 0) {
        return -1;
    }
    render->job.line = node->line;
    return moe_builtin_call(&render->job, node->as.call.builtin, self, &given, result);
}


static int eval_filter(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    moe_value_t self;

    return moe_render_eval(render, node->as.call.object, &self) != 0
           ? -1 : apply_builtin(render, node, &self, result);
}


static int eval_test(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    if (eval_filter(render, node, result) != 0) {
        return -1;
    }
    *result = moe_boolean(moe_value_is_true(result) != node->as.call.negated);
    return 0;
}


int moe_render_filter_chain(moe_render_t *render, const moe_node_t *chain,
                            const moe_value_t *self, moe_value_t *result)
{
    moe_value_t inner = *self;

    if (moe_job_enter(&render->job) != 0) {
        return -1;
    }
    if (chain->as.call.object != NULL
        && moe_render_filter_chain(render, chain->as.call.object, self, &inner) != 0)
    {
        return -1;
    }
    moe_job_leave(&render->job);
    return apply_builtin(render, chain, &inner, result);
}


int moe_render_eval(moe_render_t *render, const moe_node_t *node, moe_value_t *result)
{
    static int (*const kinds[])(moe_render_t *, const moe_node_t *, moe_value_t *) = {
        [MOE_NODE_LITERAL] = eval_literal, [MOE_NODE_NAME] = eval_name,
        [MOE_NODE_LIST] = eval_list, [MOE_NODE_TUPLE] = eval_list, [MOE_NODE_DICT] = eval_dict,
        [MOE_NODE_CONCAT] = eval_concat, [MOE_NODE_UNARY] = eval_unary,
        [MOE_NODE_BINARY] = eval_binary, [MOE_NODE_AND] = eval_logic, [MOE_NODE_OR] = eval_logic,
        [MOE_NODE_NOT] = eval_not, [MOE_NODE_COMPARE] = eval_compare,
        [MOE_NODE_CONDITIONAL] = eval_conditional, [MOE_NODE_ATTRIBUTE] = eval_attribute,
        [MOE_NODE_SUBSCRIPT] = eval_subscript, [MOE_NODE_SLICE] = eval_slice,
        [MOE_NODE_CALL] = eval_call, [MOE_NODE_FILTER] = eval_filter, [MOE_NODE_TEST] = eval_test
    };

    if (moe_job_charge(&render->job, 1) != 0 || moe_job_enter(&render->job) != 0) {
        return -1;
    }
    render->job.line = node->line;
    if (kinds[node->kind](render, node, result) != 0) {
        return -1;
    }
    moe_job_leave(&render->job);
    return 0;
}
