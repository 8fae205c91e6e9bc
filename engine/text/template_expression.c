/*
 * Parser of operators, by recursive descent in Jinja's order of precedence, weakest first: inline
 * if, or, and, not, comparisons, + -, ~, * / // %, **.
 */

#include "engine/text/template_parser.h"

#include <string.h>

typedef moe_node_t *(*parse_t)(moe_parser_t *parser);

typedef struct {
    const char *operator;
    moe_op_t op;
} operator_t;


/* A chain of operators of equal precedence, left to right. */
static moe_node_t *parse_chain(moe_parser_t *parser, const operator_t *operators, parse_t operand)
{
    moe_node_t *left = operand(parser);
    const operator_t *found;

    while (left != NULL) {
        for (found = operators; found->operator != NULL; found++) {
            if (moe_parser_skip(parser, found->operator)) {
                break;
            }
        }
        if (found->operator == NULL) {
            break;
        }
        moe_node_t *right = operand(parser);

        if (right == NULL) {
            return NULL;
        }
        left = moe_parser_pair(parser, MOE_NODE_BINARY, found->op, left, right);
    }
    return left;
}


static moe_node_t *parse_power(moe_parser_t *parser)
{
    static const operator_t operators[] = { { "**", MOE_OP_POWER }, { NULL, 0 } };

    return parse_chain(parser, operators, moe_parse_operand);
}


static moe_node_t *parse_product(moe_parser_t *parser)
{
    static const operator_t operators[] = {
        { "*", MOE_OP_MULTIPLY }, { "/", MOE_OP_DIVIDE }, { "//", MOE_OP_FLOOR_DIVIDE },
        { "%", MOE_OP_MODULO }, { NULL, 0 }
    };

    return parse_chain(parser, operators, parse_power);
}


static moe_node_t *parse_concat(moe_parser_t *parser)
{
    moe_node_t *first = parse_product(parser), *node;

    if (first == NULL || !moe_parser_at(parser, "~")) {
        return first;
    }
    node = moe_parser_node(parser, MOE_NODE_CONCAT);
    if (node == NULL || moe_nodes_append(parser, &node->as.list, first) != 0) {
        return NULL;
    }
    while (moe_parser_skip(parser, "~")) {
        if (moe_nodes_append(parser, &node->as.list, parse_product(parser)) != 0) {
            return NULL;
        }
    }
    return node;
}


static moe_node_t *parse_sum(moe_parser_t *parser)
{
    static const operator_t operators[] = {
        { "+", MOE_OP_ADD }, { "-", MOE_OP_SUBTRACT }, { NULL, 0 }
    };

    return parse_chain(parser, operators, parse_concat);
}


/* 1 and moves on when a comparison operator is here. */
static int skip_comparison(moe_parser_t *parser, moe_op_t *op)
{
    static const operator_t operators[] = {
        { "==", MOE_OP_EQUAL }, { "!=", MOE_OP_NOT_EQUAL }, { "<", MOE_OP_LESS },
        { "<=", MOE_OP_LESS_EQUAL }, { ">", MOE_OP_GREATER }, { ">=", MOE_OP_GREATER_EQUAL }
    };

    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (moe_parser_skip(parser, operators[i].operator)) {
            *op = operators[i].op;
            return 1;
        }
    }
    if (moe_parser_skip_word(parser, "in")) {
        *op = MOE_OP_IN;
        return 1;
    }
    if (moe_parser_at_word(parser, "not")
        && moe_token_is(parser->token + 1, MOE_TOKEN_NAME, "in"))
    {
        parser->token += 2;
        *op = MOE_OP_NOT_IN;
        return 1;
    }
    return 0;
}


static int add_comparison(moe_parser_t *parser, moe_node_t *node, moe_op_t op,
                          size_t *capacity)
{
    moe_comparison_t *items = moe_job_grow(parser->job, node->as.compare.items,
                                           node->as.compare.count, capacity, sizeof(*items));
    moe_comparison_t *item;

    if (items == NULL) {
        return -1;
    }
    node->as.compare.items = items;
    item = &items[node->as.compare.count++];
    item->op = op;
    item->operand = parse_sum(parser);
    return item->operand == NULL ? -1 : 0;
}


static moe_node_t *parse_comparison(moe_parser_t *parser)
{
    moe_node_t *first = parse_sum(parser), *node = NULL;
    size_t capacity = 0;
    moe_op_t op;

    while (first != NULL && skip_comparison(parser, &op)) {
        if (node == NULL) {
            node = moe_parser_node(parser, MOE_NODE_COMPARE);
            if (node == NULL) {
                return NULL;
            }
            node->as.compare.first = first;
        }
        if (add_comparison(parser, node, op, &capacity) != 0) {
            return NULL;
        }
    }
    return node != NULL ? node : first;
}


static moe_node_t *parse_not(moe_parser_t *parser)
{
    moe_node_t *node;

    if (!moe_parser_skip_word(parser, "not")) {
        return parse_comparison(parser);
    }
    if (moe_job_enter(parser->job) != 0) {
        return NULL;
    }
    node = parse_not(parser);
    moe_job_leave(parser->job);
    return node == NULL ? NULL : moe_parser_pair(parser, MOE_NODE_NOT, 0, node, NULL);
}


static moe_node_t *parse_and(moe_parser_t *parser)
{
    moe_node_t *left = parse_not(parser);

    while (left != NULL && moe_parser_skip_word(parser, "and")) {
        moe_node_t *right = parse_not(parser);

        left = right == NULL ? NULL : moe_parser_pair(parser, MOE_NODE_AND, 0, left, right);
    }
    return left;
}


static moe_node_t *parse_or(moe_parser_t *parser)
{
    moe_node_t *left = parse_and(parser);

    while (left != NULL && moe_parser_skip_word(parser, "or")) {
        moe_node_t *right = parse_and(parser);

        left = right == NULL ? NULL : moe_parser_pair(parser, MOE_NODE_OR, 0, left, right);
    }
    return left;
}


static moe_node_t *parse_conditional(moe_parser_t *parser)
{
    moe_node_t *yes = parse_or(parser), *node;

    while (yes != NULL && moe_parser_skip_word(parser, "if")) {
        node = moe_parser_node(parser, MOE_NODE_CONDITIONAL);
        if (node == NULL) {
            return NULL;
        }
        node->as.branch.yes = yes;
        node->as.branch.test = parse_or(parser);
        if (node->as.branch.test == NULL) {
            return NULL;
        }
        if (moe_parser_skip_word(parser, "else")) {
            node->as.branch.no = moe_parse_expression(parser);
            if (node->as.branch.no == NULL) {
                return NULL;
            }
        }
        yes = node;
    }
    return yes;
}


moe_node_t *moe_parse_expression(moe_parser_t *parser)
{
    moe_node_t *node;

    if (moe_job_enter(parser->job) != 0) {
        return NULL;
    }
    node = parse_conditional(parser);
    moe_job_leave(parser->job);
    return node;
}


static int at_tuple_end(const moe_parser_t *parser)
{
    const moe_token_t *token = parser->token;

    return token->kind == MOE_TOKEN_BLOCK_END || token->kind == MOE_TOKEN_PRINT_END
           || moe_parser_at(parser, ")") || moe_parser_at(parser, "]");
}


moe_node_t *moe_parse_tuple(moe_parser_t *parser, int in_for)
{
    moe_node_t *first = in_for ? parse_or(parser) : moe_parse_expression(parser), *tuple;

    if (first == NULL || !moe_parser_at(parser, ",")) {
        return first;
    }
    tuple = moe_parser_node(parser, MOE_NODE_TUPLE);
    if (tuple == NULL || moe_nodes_append(parser, &tuple->as.list, first) != 0) {
        return NULL;
    }
    while (moe_parser_skip(parser, ",") && !at_tuple_end(parser)) {
        if (moe_nodes_append(parser, &tuple->as.list,
                             in_for ? parse_or(parser) : moe_parse_expression(parser)) != 0)
        {
            return NULL;
        }
    }
    return tuple;
}
