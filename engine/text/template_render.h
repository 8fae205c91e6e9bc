/*
 * What the two halves of the evaluator share: template_eval.c evaluates expressions,
 * template_render.c runs statements.
 */

#ifndef MOE_TEMPLATE_RENDER_H
#define MOE_TEMPLATE_RENDER_H

#include "engine/text/template_ast.h"

typedef struct moe_scope_s moe_scope_t;

/* Names that a body has set; macros look names up in the scope they were written in. */
struct moe_scope_s {
    const moe_scope_t *parent;          /* NULL: the variables of the render */
    moe_dict_t *names;
};

struct moe_macro_s {
    const moe_node_t *node;
    const moe_scope_t *scope;
};

typedef struct {
    moe_job_t job;
    moe_scope_t *scope;
    moe_builder_t *capture;             /* where text goes inside macros and captured blocks */
    moe_text_t *out;                    /* where it goes elsewhere */
    size_t output, output_limit;
} moe_render_t;

/* What a statement did to the flow; -1 is an error. */
enum { MOE_FLOW_NEXT = 0, MOE_FLOW_BREAK = 1, MOE_FLOW_CONTINUE = 2 };

int moe_render_eval(moe_render_t *render, const moe_node_t *node, moe_value_t *result);
/* A CALL; `caller`: a macro that it may call back, or NULL. */
int moe_render_call(moe_render_t *render, const moe_node_t *node, const moe_value_t *caller,
                    moe_value_t *result);
/* The text of a recursive loop over other items. */
int moe_render_loop(moe_render_t *render, const moe_loop_t *loop, const moe_value_t *items,
                    moe_value_t *result);
/* A chain of filters on `self` instead of its innermost object. */
int moe_render_filter_chain(moe_render_t *render, const moe_node_t *chain,
                            const moe_value_t *self, moe_value_t *result);
int moe_render_body(moe_render_t *render, const moe_node_t *body);
/* Runs a body in a scope of its own and returns its text. */
const moe_string_t *moe_render_capture(moe_render_t *render, const moe_node_t *body,
                                       moe_scope_t *scope);
moe_scope_t *moe_render_scope(moe_render_t *render, const moe_scope_t *parent);

#endif
