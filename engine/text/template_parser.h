/*
 * What the parts of the parser share: template_parser.c reads statements, template_expression.c
 * operators, template_operand.c what stands between them.
 */

#ifndef MOE_TEMPLATE_PARSER_H
#define MOE_TEMPLATE_PARSER_H

#include "engine/text/template_ast.h"

typedef struct {
    moe_job_t *job;
    const moe_token_t *token;       /* the current one */
    unsigned loops;                 /* `for` bodies around it within one macro */
} moe_parser_t;

/* All return NULL or -1 with the error. */
moe_node_t *moe_parse_expression(moe_parser_t *parser);
moe_node_t *moe_parse_operand(moe_parser_t *parser);
/* Expressions separated by commas are a tuple; `in_for`: no inline if, as after "for x in". */
moe_node_t *moe_parse_tuple(moe_parser_t *parser, int in_for);
/* "|name(...)|..." applied to `object`: NULL for a block's captured text.  The first bar is left
 * out in filter blocks. */
moe_node_t *moe_parse_filters(moe_parser_t *parser, moe_node_t *object, int bar_left_out);
const moe_string_t *moe_parse_name(moe_parser_t *parser);

moe_node_t *moe_parser_node(moe_parser_t *parser, moe_node_kind_t kind);
moe_node_t *moe_parser_pair(moe_parser_t *parser, moe_node_kind_t kind, moe_op_t op,
                            moe_node_t *left, moe_node_t *right);
int moe_nodes_append(moe_parser_t *parser, moe_nodes_t *nodes, moe_node_t *node);
int moe_parser_fail(moe_parser_t *parser, const char *expected);
int moe_token_is(const moe_token_t *token, moe_token_kind_t kind, const char *text);
int moe_parser_at(const moe_parser_t *parser, const char *operator);
int moe_parser_at_word(const moe_parser_t *parser, const char *word);
/* Moves on and returns 1 when the current token is this operator or name. */
int moe_parser_skip(moe_parser_t *parser, const char *operator);
int moe_parser_skip_word(moe_parser_t *parser, const char *word);
int moe_parser_expect(moe_parser_t *parser, const char *operator);

#endif
