/*
 * Runs statements, and the public face of the evaluator.
 *
 * Text goes straight to the output, except inside macros and captured blocks, where it is built up
 * as a string.  Scopes are a chain: the render's variables, the template's top level, then one per
 * loop iteration, macro call or captured block.  A loop clears and reuses one scope for all
 * its iterations.
 */

#include "engine/text/template_render.h"

#include <stdlib.h>
#include <string.h>

#define SOURCE_LIMIT ((size_t) 1 << 20)
#define PARSE_MEMORY ((size_t) 512 << 20)
#define PARSE_STEPS ((size_t) 1 << 24)
#define PARSE_DEPTH 150

struct moe_template_s {
    moe_job_t job;              /* owns the rest */
    const moe_token_t *tokens;
    const moe_node_t *tree;
    char *source;
    size_t source_size;
};

const moe_template_limits_t moe_template_default_limits = {
    .steps = 4000000, .memory = (size_t) 128 << 20, .output = (size_t) 64 << 20, .depth = 400
};


static int run(moe_render_t *render, const moe_node_t *node);


moe_scope_t *moe_render_scope(moe_render_t *render, const moe_scope_t *parent)
{
    moe_scope_t *scope = moe_job_alloc(&render->job, sizeof(*scope));

    if (scope == NULL) {
        return NULL;
    }
    scope->parent = parent;
    scope->names = moe_dict_new(&render->job);
    return scope->names == NULL ? NULL : scope;
}


static int emit_run(moe_render_t *render, const char *data, size_t size, int trusted)
{
    if (size > render->output_limit - render->output) {
        return moe_job_fail_code(&render->job, MOE_LIMIT, "more than %zu bytes of output",
                                 render->output_limit);
    }
    render->output += size;
    return moe_text_append(render->out, data, size, trusted, render->job.error);
}


static int emit(moe_render_t *render, const moe_string_t *string)
{
    size_t start = 0;

    if (render->capture != NULL) {
        return moe_builder_add(render->capture, string);
    }
    if (moe_job_charge_bytes(&render->job, string->size) != 0) {
        return -1;
    }
    while (start < string->size) {
        int trusted = moe_string_trusted_at(string, start);
        size_t end = string->marks == NULL ? string->size : start + 1;

        while (end < string->size && moe_string_trusted_at(string, end) == trusted) {
            end++;
        }
        if (emit_run(render, string->data + start, end - start, trusted) != 0) {
            return -1;
        }
        start = end;
    }
    return 0;
}


const moe_string_t *moe_render_capture(moe_render_t *render, const moe_node_t *body,
                                       moe_scope_t *scope)
{
    moe_builder_t builder, *outer = render->capture;
    moe_scope_t *outer_scope = render->scope;
    int status;

    if (scope == NULL) {
        return NULL;
    }
    moe_builder_start(&builder, &render->job);
    render->capture = &builder;
    render->scope = scope;
    status = moe_render_body(render, body);
    render->capture = outer;
    render->scope = outer_scope;
    return status == -1 ? NULL : moe_builder_finish(&builder);
}


static int emit_value(moe_render_t *render, const moe_value_t *value)
{
    const moe_string_t *string = moe_value_string(&render->job, value);

    return string == NULL ? -1 : emit(render, string);
}


static int run_text(moe_render_t *render, const moe_node_t *node)
{
    return emit(render, node->as.literal.as.string);
}


static int run_print(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t value;

    return moe_render_eval(render, node->as.pair.left, &value) != 0 ? -1
                                                                    : emit_value(render, &value);
}


static int run_if(moe_render_t *render, const moe_node_t *node)
{
    while (node != NULL && node->kind == MOE_NODE_IF) {
        moe_value_t test;

        if (moe_render_eval(render, node->as.branch.test, &test) != 0) {
            return -1;
        }
        if (moe_value_is_true(&test)) {
            return moe_render_body(render, node->as.branch.yes);
        }
        node = node->as.branch.no;
    }
    return node == NULL ? MOE_FLOW_NEXT : moe_render_body(render, node);
}


static int set_name(moe_render_t *render, const moe_string_t *name, const moe_value_t *value)
{
    return moe_dict_set_string(&render->job, render->scope->names, name, value);
}


/* Assigns to a name of the scope, or to a namespace. */
static int assign_place(moe_render_t *render, const moe_node_t *node, const moe_place_t *place,
                        const moe_value_t *value)
{
    moe_node_t name = { .kind = MOE_NODE_NAME, .line = node->line, .as.name = place->name };
    moe_value_t object;

    if (place->attribute == NULL) {
        return set_name(render, place->name, value);
    }
    if (moe_render_eval(render, &name, &object) != 0) {
        return -1;
    }
    if (object.kind != MOE_VALUE_NAMESPACE) {
        return moe_job_fail(&render->job, "cannot assign attribute on non-namespace object '%s'",
                            moe_value_type(&object));
    }
    return moe_dict_set_string(&render->job, object.as.dict, place->attribute, value);
}


static int assign(moe_render_t *render, const moe_node_t *node, const moe_target_t *target,
                  const moe_value_t *value)
{
    const moe_value_t *items = value;
    size_t count = 1;

    render->job.line = node->line;
    if (target->unpacks) {
        if (moe_value_iterate(&render->job, value, &items, &count) != 0) {
            return -1;
        }
        if (count != target->count) {
            return moe_job_fail(&render->job, "%zu values for %zu names", count, target->count);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (assign_place(render, node, &target->places[i], &items[i]) != 0) {
            return -1;
        }
    }
    return 0;
}


static int run_set(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t value;

    return moe_render_eval(render, node->as.set.value, &value) != 0
           ? -1 : assign(render, node, &node->as.set.target, &value);
}


/* The text of a block, filtered. */
static int capture_block(moe_render_t *render, const moe_node_t *node, moe_value_t *value)
{
    const moe_string_t *text = moe_render_capture(render, node->as.set.value,
                                                  moe_render_scope(render, render->scope));

    if (text == NULL) {
        return -1;
    }
    *value = moe_string_value(text);
    return node->as.set.filter == NULL
           ? 0 : moe_render_filter_chain(render, node->as.set.filter, value, value);
}


static int run_set_block(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t value;

    return capture_block(render, node, &value) != 0
           ? -1 : assign(render, node, &node->as.set.target, &value);
}


static int run_filter_block(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t value;

    return capture_block(render, node, &value) != 0 ? -1 : emit_value(render, &value);
}


/* A macro of the scope that is at work. */
static int make_macro(moe_render_t *render, const moe_node_t *node, moe_value_t *value)
{
    moe_macro_t *macro = moe_job_alloc(&render->job, sizeof(*macro));

    if (macro == NULL) {
        return -1;
    }
    macro->node = node;
    macro->scope = render->scope;
    *value = (moe_value_t) { .kind = MOE_VALUE_MACRO, .as.macro = macro };
    return 0;
}


static int run_macro(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t value;

    return make_macro(render, node, &value) != 0
           ? -1 : set_name(render, node->as.macro.name, &value);
}


static int run_call_block(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t caller, value;

    if (make_macro(render, node->as.block.caller, &caller) != 0
        || moe_render_call(render, node->as.block.call, &caller, &value) != 0)
    {
        return -1;
    }
    return emit_value(render, &value);
}


/* The values are those of the scope around it. */
static int run_with(moe_render_t *render, const moe_node_t *node)
{
    moe_scope_t *outer = render->scope, *scope = moe_render_scope(render, outer);
    int flow;

    for (size_t i = 0; i < node->as.macro.count; i++) {
        moe_value_t value;

        if (scope == NULL || moe_render_eval(render, node->as.macro.defaults[i], &value) != 0
            || moe_dict_set_string(&render->job, scope->names, node->as.macro.parameters[i],
                                   &value) != 0)
        {
            return -1;
        }
    }
    if (scope == NULL) {
        return -1;
    }
    render->scope = scope;
    flow = moe_render_body(render, node->as.macro.body);
    render->scope = outer;
    return flow;
}


static int run_break(moe_render_t *render, const moe_node_t *node)
{
    return MOE_FLOW_BREAK;
}


static int run_continue(moe_render_t *render, const moe_node_t *node)
{
    return MOE_FLOW_CONTINUE;
}


/* A fresh scope for an iteration. */
static int next_scope(moe_render_t *render, const moe_scope_t *parent)
{
    if (render->scope == parent) {
        render->scope = moe_render_scope(render, parent);
        return render->scope == NULL ? -1 : 0;
    }
    moe_dict_clear(render->scope->names);
    return 0;
}


/* The items for which the loop's condition holds. */
static int filter_items(moe_render_t *render, const moe_node_t *node, const moe_value_t **items,
                        size_t *count)
{
    moe_scope_t *outer = render->scope;
    moe_list_t *list = moe_list_new(&render->job, 0);

    for (size_t i = 0; i < *count; i++) {
        moe_value_t test;

        if (list == NULL || next_scope(render, outer) != 0
            || assign(render, node, &node->as.loop.target, &(*items)[i]) != 0
            || moe_render_eval(render, node->as.loop.condition, &test) != 0
            || (moe_value_is_true(&test)
                && moe_list_append(&render->job, list, &(*items)[i]) != 0))
        {
            return -1;
        }
    }
    render->scope = outer;
    if (list == NULL) {
        return -1;
    }
    *items = list->items;
    *count = list->count;
    return 0;
}


static int run_iterations(moe_render_t *render, const moe_node_t *node, moe_loop_t *loop,
                          const moe_string_t *loop_name)
{
    moe_value_t value = { .kind = MOE_VALUE_LOOP, .as.loop = loop };
    const moe_scope_t *outer = render->scope;

    for (; loop->index < loop->count; loop->index++) {
        int flow;

        if (moe_job_charge(&render->job, 1) != 0 || next_scope(render, outer) != 0
            || set_name(render, loop_name, &value) != 0
            || assign(render, node, &node->as.loop.target, &loop->items[loop->index]) != 0)
        {
            return -1;
        }
        flow = moe_render_body(render, node->as.loop.body);
        if (flow == -1 || flow == MOE_FLOW_BREAK) {
            return flow == -1 ? -1 : 0;
        }
    }
    return 0;
}


static int run_loop(moe_render_t *render, const moe_node_t *node, const moe_value_t *items,
                    unsigned level)
{
    moe_loop_t *loop = moe_job_alloc(&render->job, sizeof(*loop));
    const moe_string_t *loop_name = moe_string_view(&render->job, "loop", 4, 1);
    moe_scope_t *outer = render->scope;
    int status;

    if (loop == NULL || loop_name == NULL) {
        return -1;
    }
    loop->node = node;
    loop->scope = outer;
    loop->level = level;
    render->job.line = node->line;
    if (moe_value_iterate(&render->job, items, &loop->items, &loop->count) != 0
        || (node->as.loop.condition != NULL
            && filter_items(render, node, &loop->items, &loop->count) != 0))
    {
        return -1;
    }
    if (loop->count == 0) {
        return node->as.loop.otherwise == NULL
               ? 0 : moe_render_body(render, node->as.loop.otherwise);
    }
    status = run_iterations(render, node, loop, loop_name);
    render->scope = outer;
    return status;
}


static int run_for(moe_render_t *render, const moe_node_t *node)
{
    moe_value_t items;

    return moe_render_eval(render, node->as.loop.items, &items) != 0
           ? -1 : run_loop(render, node, &items, 0);
}


int moe_render_loop(moe_render_t *render, const moe_loop_t *loop, const moe_value_t *items,
                    moe_value_t *result)
{
    moe_builder_t builder, *outer = render->capture;
    moe_scope_t *outer_scope = render->scope;
    int status;

    if (!loop->node->as.loop.recursive) {
        return moe_job_fail(&render->job, "a loop that is not recursive is called");
    }
    moe_builder_start(&builder, &render->job);
    render->capture = &builder;
    render->scope = loop->scope;
    status = run_loop(render, loop->node, items, loop->level + 1);
    render->capture = outer;
    render->scope = outer_scope;
    if (status != 0) {
        return -1;
    }
    return moe_give_string(moe_builder_finish(&builder), result);
}


int moe_render_body(moe_render_t *render, const moe_node_t *body)
{
    if (moe_job_enter(&render->job) != 0) {
        return -1;
    }
    for (size_t i = 0; i < body->as.list.count; i++) {
        int flow = run(render, body->as.list.items[i]);

        if (flow != MOE_FLOW_NEXT) {
            moe_job_leave(&render->job);
            return flow;
        }
    }
    moe_job_leave(&render->job);
    return MOE_FLOW_NEXT;
}


static int run(moe_render_t *render, const moe_node_t *node)
{
    static int (*const kinds[])(moe_render_t *, const moe_node_t *) = {
        [MOE_NODE_BODY] = moe_render_body, [MOE_NODE_TEXT] = run_text,
        [MOE_NODE_PRINT] = run_print, [MOE_NODE_IF] = run_if, [MOE_NODE_FOR] = run_for,
        [MOE_NODE_SET] = run_set, [MOE_NODE_SET_BLOCK] = run_set_block,
        [MOE_NODE_MACRO] = run_macro, [MOE_NODE_FILTER_BLOCK] = run_filter_block,
        [MOE_NODE_CALL_BLOCK] = run_call_block, [MOE_NODE_WITH] = run_with,
        [MOE_NODE_BREAK] = run_break, [MOE_NODE_CONTINUE] = run_continue
    };

    if (moe_job_charge(&render->job, 1) != 0) {
        return -1;
    }
    render->job.line = node->line;
    return kinds[node->kind](render, node);
}


moe_template_t *moe_template_parse(const char *source, size_t size, moe_error_t *error)
{
    moe_template_t *template = calloc(1, sizeof(*template));

    if (template == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    template->job = (moe_job_t) {
        .memory_limit = PARSE_MEMORY, .steps_limit = PARSE_STEPS, .depth_limit = PARSE_DEPTH,
        .line = 1, .fault = MOE_BAD_MODEL, .error = error
    };
    if (size > SOURCE_LIMIT) {
        moe_fail(error, MOE_BAD_MODEL, "template larger than %zu bytes", SOURCE_LIMIT);
    } else if (moe_utf8_valid_prefix(source, size) != size) {
        moe_fail(error, MOE_BAD_MODEL, "template is not valid UTF-8");
    } else if ((template->tokens = moe_template_lex(&template->job, source, size)) != NULL) {
        template->tree = moe_template_parse_tree(&template->job, template->tokens);
    }
    template->source = template->tree ? moe_job_alloc(&template->job, size + 1) : NULL;
    if (template->source != NULL) {
        memcpy(template->source, source, size);
        template->source_size = size;
    }
    template->job.error = NULL;
    if (template->source == NULL) {
        moe_template_free(template);
        return NULL;
    }
    return template;
}


void moe_template_free(moe_template_t *template)
{
    if (template != NULL) {
        moe_job_free(&template->job);
        free(template);
    }
}


const char *moe_template_source(const moe_template_t *template, size_t *size)
{
    *size = template->source_size;
    return template->source;
}


int moe_template_mentions(const moe_template_t *template, const char *word, int member)
{
    size_t size = strlen(word);
    int behind_dot = 0;

    for (const moe_token_t *token = template->tokens; token->kind != MOE_TOKEN_END; token++) {
        size_t quotes = token->kind == MOE_TOKEN_STRING;

        if ((quotes || (token->kind == MOE_TOKEN_NAME && (behind_dot || !member)))
            && token->size == size + 2 * quotes && memcmp(token->data + quotes, word, size) == 0)
        {
            return 1;
        }
        behind_dot = token->kind == MOE_TOKEN_OPERATOR && *token->data == '.';
    }
    return 0;
}


/* Adds the members of an object to the variables. */
static int add_variables(moe_render_t *render, const json_t *object, int trusted,
                         const json_t *fields)
{
    moe_value_t value;
    moe_dict_t *dict;

    if (!json_is_object(object)) {
        return 0;
    }
    if (moe_value_from_json(&render->job, object, trusted, fields, &value) != 0) {
        return -1;
    }
    dict = value.as.dict;
    for (size_t i = 0; i < dict->count; i++) {
        if (moe_dict_set(&render->job, render->scope->names, &dict->entries[i].key,
                         &dict->entries[i].value) != 0)
        {
            return -1;
        }
    }
    return 0;
}


static int render_all(moe_render_t *render, const moe_node_t *tree, const json_t *variables,
                      const json_t *trusted, const json_t *fields)
{
    render->scope = moe_render_scope(render, NULL);
    if (render->scope == NULL || add_variables(render, variables, 0, fields) != 0
        || add_variables(render, trusted, 1, NULL) != 0)
    {
        return -1;
    }
    render->scope = moe_render_scope(render, render->scope);
    return render->scope == NULL || moe_render_body(render, tree) == -1 ? -1 : 0;
}


int moe_template_render(const moe_template_t *template, const json_t *variables,
                        const json_t *trusted, const json_t *trusted_fields, int64_t now,
                        const moe_template_limits_t *limits, moe_text_t *out, moe_error_t *error)
{
    moe_render_t render = {
        .job = {
            .memory_limit = limits->memory, .steps_limit = limits->steps,
            .depth_limit = limits->depth, .line = 1, .fault = MOE_INVALID, .now = now,
            .error = error
        },
        .out = out, .output_limit = limits->output
    };
    int status = render_all(&render, template->tree, variables, trusted, trusted_fields);

    moe_job_free(&render.job);
    return status;
}
