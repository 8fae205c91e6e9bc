/*
 * Parser of operands: literals, names, brackets, what stands behind them (attribute, item, call),
 * signs, and at last filters and tests, which bind to the operand they follow.
 */

#include "engine/text/template_parser.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS 255


static moe_node_t *new_literal(moe_parser_t *parser, moe_value_t value)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_LITERAL);

    if (node != NULL) {
        node->as.literal = value;
    }
    return node;
}


/* Up to `most` digits of `base`; returns how many were read. */
static size_t read_digits(const char *data, const char *end, int base, size_t most,
                          uint32_t *value)
{
    size_t n = 0;

    *value = 0;
    while (n < most && data + n < end) {
        char c = data[n];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10 : base;

        if (digit >= base) {
            break;
        }
        *value = *value * (uint32_t) base + (uint32_t) digit;
        n++;
    }
    return n;
}


static int add_code_point(moe_parser_t *parser, moe_builder_t *builder, uint32_t code_point)
{
    if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) {
        return moe_parser_fail(parser, "a Unicode character in the string's escape");
    }
    return moe_builder_add_character(builder, code_point, 1);
}


/* The escape behind a backslash at data[-1]; returns its length, 0 on error. */
static size_t add_escape(moe_parser_t *parser, moe_builder_t *builder, const char *data,
                         const char *end)
{
    static const char simple[] = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
    static const struct { char letter; size_t digits; } hexadecimal[] = {
        { 'x', 2 }, { 'u', 4 }, { 'U', 8 }
    };
    uint32_t code_point;
    size_t n;

    if (*data == '\n') {
        return 1;
    }
    for (size_t i = 0; simple[i] != '\0'; i += 2) {
        if (simple[i] == *data) {
            return moe_builder_add_bytes(builder, &simple[i + 1], 1, 1) == 0;
        }
    }
    for (size_t i = 0; i < 3; i++) {
        if (hexadecimal[i].letter == *data) {
            n = read_digits(data + 1, end, 16, hexadecimal[i].digits, &code_point);
            if (n != hexadecimal[i].digits) {
                moe_parser_fail(parser, "hexadecimal digits in the string's escape");
                return 0;
            }
            return add_code_point(parser, builder, code_point) == 0 ? n + 1 : 0;
        }
    }
    n = read_digits(data, end, 8, 3, &code_point);
    if (n > 0) {
        return add_code_point(parser, builder, code_point) == 0 ? n : 0;
    }
    /* As in Python, a backslash before any other character is itself. */
    return moe_builder_add_bytes(builder, "\\", 1, 1) == 0
           && moe_builder_add_bytes(builder, data, 1, 1) == 0;
}


static int add_string_token(moe_parser_t *parser, moe_builder_t *builder)
{
    const char *data = parser->token->data + 1, *end = data + parser->token->size - 2;

    while (data < end) {
        const char *backslash = memchr(data, '\\', (size_t) (end - data));
        const char *stop = backslash == NULL ? end : backslash;
        size_t size;

        if (moe_builder_add_bytes(builder, data, (size_t) (stop - data), 1) != 0) {
            return -1;
        }
        data = stop;
        if (backslash != NULL) {
            size = add_escape(parser, builder, backslash + 1, end);
            if (size == 0) {
                return -1;
            }
            data = backslash + 1 + size;
        }
    }
    return 0;
}


static moe_node_t *parse_string(moe_parser_t *parser)
{
    const moe_string_t *string;
    moe_builder_t builder;

    moe_builder_start(&builder, parser->job);
    while (parser->token->kind == MOE_TOKEN_STRING) {
        if (add_string_token(parser, &builder) != 0) {
            return NULL;
        }
        parser->token++;
    }
    string = moe_builder_finish(&builder);
    return string == NULL ? NULL : new_literal(parser, moe_string_value(string));
}


static moe_node_t *parse_number(moe_parser_t *parser)
{
    const moe_token_t *token = parser->token;
    char digits[64];
    size_t n = 0;
    moe_value_t value;

    for (size_t i = 0; i < token->size; i++) {
        if (token->data[i] != '_') {
            if (n + 1 == sizeof(digits)) {
                moe_parser_fail(parser, "a number of less than 64 digits");
                return NULL;
            }
            digits[n++] = token->data[i];
        }
    }
    digits[n] = '\0';
    errno = 0;
    value = token->kind == MOE_TOKEN_FLOAT ? moe_float(strtod(digits, NULL))
                                           : moe_integer(strtoll(digits, NULL, 10));
    if (errno == ERANGE && token->kind == MOE_TOKEN_INTEGER) {
        moe_parser_fail(parser, "an integer of at most 64 bits");
        return NULL;
    }
    parser->token++;
    return new_literal(parser, value);
}


static moe_node_t *parse_list(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_LIST);

    parser->token++;
    while (node != NULL && !moe_parser_skip(parser, "]")) {
        if (moe_nodes_append(parser, &node->as.list, moe_parse_expression(parser)) != 0) {
            return NULL;
        }
        if (!moe_parser_at(parser, "]") && moe_parser_expect(parser, ",") != 0) {
            return NULL;
        }
    }
    return node;
}


static moe_node_t *parse_dict(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_DICT);

    parser->token++;
    while (node != NULL && !moe_parser_skip(parser, "}")) {
        if (moe_nodes_append(parser, &node->as.list, moe_parse_expression(parser)) != 0
            || moe_parser_expect(parser, ":") != 0
            || moe_nodes_append(parser, &node->as.list, moe_parse_expression(parser)) != 0)
        {
            return NULL;
        }
        if (!moe_parser_at(parser, "}") && moe_parser_expect(parser, ",") != 0) {
            return NULL;
        }
    }
    return node;
}


static moe_node_t *parse_parentheses(moe_parser_t *parser)
{
    moe_node_t *node;

    parser->token++;
    if (moe_parser_skip(parser, ")")) {
        return moe_parser_node(parser, MOE_NODE_TUPLE);
    }
    node = moe_parse_tuple(parser, 0);
    return node == NULL || moe_parser_expect(parser, ")") != 0 ? NULL : node;
}


static moe_node_t *parse_name_or_constant(moe_parser_t *parser)
{
    static const struct { const char *word; moe_value_kind_t kind; int boolean; } constants[] = {
        { "true", MOE_VALUE_BOOLEAN, 1 }, { "True", MOE_VALUE_BOOLEAN, 1 },
        { "false", MOE_VALUE_BOOLEAN, 0 }, { "False", MOE_VALUE_BOOLEAN, 0 },
        { "none", MOE_VALUE_NONE, 0 }, { "None", MOE_VALUE_NONE, 0 }
    };
    static const char *const keywords[] = { "if", "else", "elif", "and", "or", "not", "in", "is",
                                            "for" };
    moe_node_t *node;

    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (moe_parser_skip_word(parser, constants[i].word)) {
            return new_literal(parser, (moe_value_t) {
                .kind = constants[i].kind, .as.boolean = constants[i].boolean
            });
        }
    }
    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++) {
        if (moe_parser_at_word(parser, keywords[i])) {
            moe_parser_fail(parser, "an expression");
            return NULL;
        }
    }
    node = moe_parser_node(parser, MOE_NODE_NAME);
    if (node != NULL) {
        node->as.name = moe_parse_name(parser);
    }
    return node == NULL || node->as.name == NULL ? NULL : node;
}


static moe_node_t *parse_primary(moe_parser_t *parser)
{
    switch (parser->token->kind) {
    case MOE_TOKEN_NAME:
        return parse_name_or_constant(parser);
    case MOE_TOKEN_STRING:
        return parse_string(parser);
    case MOE_TOKEN_INTEGER:
    case MOE_TOKEN_FLOAT:
        return parse_number(parser);
    default:
        break;
    }
    if (moe_parser_at(parser, "(")) {
        return parse_parentheses(parser);
    }
    if (moe_parser_at(parser, "[")) {
        return parse_list(parser);
    }
    if (moe_parser_at(parser, "{")) {
        return parse_dict(parser);
    }
    moe_parser_fail(parser, "an expression");
    return NULL;
}


static int parse_argument(moe_parser_t *parser, moe_argument_t *argument, int after_named)
{
    argument->name = NULL;
    if (parser->token->kind == MOE_TOKEN_NAME
        && moe_token_is(parser->token + 1, MOE_TOKEN_OPERATOR, "="))
    {
        argument->name = moe_parse_name(parser);
        parser->token++;
        if (argument->name == NULL) {
            return -1;
        }
    } else if (after_named) {
        return moe_parser_fail(parser, "a named argument after named arguments");
    }
    argument->value = moe_parse_expression(parser);
    return argument->value == NULL ? -1 : 0;
}


/* From behind "(" to behind ")". */
static int parse_arguments(moe_parser_t *parser, moe_arguments_t *arguments)
{
    size_t capacity = 0;
    int named = 0;

    while (!moe_parser_skip(parser, ")")) {
        if (arguments->count == MAX_ARGUMENTS) {
            return moe_parser_fail(parser, "at most 255 arguments");
        }
        arguments->items = moe_job_grow(parser->job, arguments->items, arguments->count, &capacity,
                                        sizeof(*arguments->items));
        if (arguments->items == NULL
            || parse_argument(parser, &arguments->items[arguments->count], named) != 0)
        {
            return -1;
        }
        named = arguments->items[arguments->count++].name != NULL;
        if (!moe_parser_at(parser, ")") && moe_parser_expect(parser, ",") != 0) {
            return -1;
        }
    }
    return 0;
}


static moe_node_t *parse_call(moe_parser_t *parser, moe_node_t *callee)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_CALL);

    parser->token++;
    if (node == NULL || parse_arguments(parser, &node->as.call.arguments) != 0) {
        return NULL;
    }
    node->as.call.object = callee;
    return node;
}


static moe_node_t *parse_attribute(moe_parser_t *parser, moe_node_t *object)
{
    moe_node_t *node;

    parser->token++;
    if (parser->token->kind == MOE_TOKEN_INTEGER) {
        return moe_parser_pair(parser, MOE_NODE_SUBSCRIPT, 0, object, parse_number(parser));
    }
    node = moe_parser_node(parser, MOE_NODE_ATTRIBUTE);
    if (node != NULL) {
        node->as.attribute.object = object;
        node->as.attribute.name = moe_parse_name(parser);
    }
    return node == NULL || node->as.attribute.name == NULL ? NULL : node;
}


/* From behind the first ":" on; `start` may be NULL. */
static moe_node_t *parse_slice(moe_parser_t *parser, moe_node_t *object, moe_node_t *start)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_SLICE);

    if (node == NULL) {
        return NULL;
    }
    node->as.slice.object = object;
    node->as.slice.start = start;
    if (!moe_parser_at(parser, ":") && !moe_parser_at(parser, "]")) {
        node->as.slice.stop = moe_parse_expression(parser);
        if (node->as.slice.stop == NULL) {
            return NULL;
        }
    }
    if (moe_parser_skip(parser, ":") && !moe_parser_at(parser, "]")) {
        node->as.slice.step = moe_parse_expression(parser);
        if (node->as.slice.step == NULL) {
            return NULL;
        }
    }
    return node;
}


static moe_node_t *parse_subscript(moe_parser_t *parser, moe_node_t *object)
{
    moe_node_t *index = NULL, *node;

    parser->token++;
    if (!moe_parser_at(parser, ":")) {
        index = moe_parse_expression(parser);
        if (index == NULL) {
            return NULL;
        }
    }
    node = moe_parser_skip(parser, ":")
           ? parse_slice(parser, object, index)
           : moe_parser_pair(parser, MOE_NODE_SUBSCRIPT, 0, object, index);
    return node == NULL || moe_parser_expect(parser, "]") != 0 ? NULL : node;
}


static moe_node_t *parse_postfix(moe_parser_t *parser, moe_node_t *node)
{
    while (node != NULL) {
        if (moe_parser_at(parser, ".")) {
            node = parse_attribute(parser, node);
        } else if (moe_parser_at(parser, "[")) {
            node = parse_subscript(parser, node);
        } else if (moe_parser_at(parser, "(")) {
            node = parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}


static moe_node_t *parse_filter(moe_parser_t *parser, moe_node_t *object)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_FILTER);
    const moe_token_t *token = parser->token;

    if (node == NULL) {
        return NULL;
    }
    node->as.call.object = object;
    node->as.call.builtin = token->kind != MOE_TOKEN_NAME
                            ? NULL : moe_template_filter(token->data, token->size);
    if (node->as.call.builtin == NULL) {
        moe_parser_fail(parser, "a known filter");
        return NULL;
    }
    parser->token++;
    if (moe_parser_skip(parser, "(")
        && parse_arguments(parser, &node->as.call.arguments) != 0)
    {
        return NULL;
    }
    return node;
}


moe_node_t *moe_parse_filters(moe_parser_t *parser, moe_node_t *object, int bar_left_out)
{
    moe_node_t *node = object;

    while (bar_left_out || moe_parser_skip(parser, "|")) {
        bar_left_out = 0;
        node = parse_filter(parser, node);
        if (node == NULL) {
            return NULL;
        }
    }
    return node;
}


/* A test's argument may stand without parentheses: "is divisibleby 3". */
static int at_bare_argument(const moe_parser_t *parser)
{
    static const char *const words[] = { "else", "or", "and", "if", "in", "not", "is" };

    if (parser->token->kind != MOE_TOKEN_NAME) {
        return parser->token->kind == MOE_TOKEN_STRING || parser->token->kind == MOE_TOKEN_INTEGER
               || parser->token->kind == MOE_TOKEN_FLOAT || moe_parser_at(parser, "[")
               || moe_parser_at(parser, "{");
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (moe_parser_at_word(parser, words[i])) {
            return 0;
        }
    }
    return 1;
}


static int parse_bare_argument(moe_parser_t *parser, moe_arguments_t *arguments)
{
    arguments->items = moe_job_alloc(parser->job, sizeof(*arguments->items));
    if (arguments->items == NULL) {
        return -1;
    }
    arguments->count = 1;
    arguments->items[0].value = parse_postfix(parser, parse_primary(parser));
    return arguments->items[0].value == NULL ? -1 : 0;
}


static moe_node_t *parse_test(moe_parser_t *parser, moe_node_t *object)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_TEST);
    const moe_token_t *token;

    if (node == NULL) {
        return NULL;
    }
    node->as.call.object = object;
    node->as.call.negated = moe_parser_skip_word(parser, "not");
    token = parser->token;
    node->as.call.builtin = token->kind != MOE_TOKEN_NAME
                            ? NULL : moe_template_test(token->data, token->size);
    if (node->as.call.builtin == NULL) {
        moe_parser_fail(parser, "a known test");
        return NULL;
    }
    parser->token++;
    if (moe_parser_skip(parser, "(")) {
        return parse_arguments(parser, &node->as.call.arguments) != 0 ? NULL : node;
    }
    if (at_bare_argument(parser) && parse_bare_argument(parser, &node->as.call.arguments) != 0) {
        return NULL;
    }
    return node;
}


static moe_node_t *parse_filters_and_tests(moe_parser_t *parser, moe_node_t *node)
{
    while (node != NULL) {
        if (moe_parser_at(parser, "|")) {
            node = moe_parse_filters(parser, node, 0);
        } else if (moe_parser_skip_word(parser, "is")) {
            node = parse_test(parser, node);
        } else if (moe_parser_at(parser, "(")) {
            node = parse_call(parser, node);
        } else {
            break;
        }
    }
    return node;
}


/* Signs bind tighter than filters: -1|abs is 1. */
static moe_node_t *parse_signed(moe_parser_t *parser)
{
    moe_node_t *node;
    moe_op_t op;

    if (!moe_parser_at(parser, "-") && !moe_parser_at(parser, "+")) {
        return parse_postfix(parser, parse_primary(parser));
    }
    op = moe_parser_at(parser, "-") ? MOE_OP_NEGATIVE : MOE_OP_POSITIVE;
    parser->token++;
    if (moe_job_enter(parser->job) != 0) {
        return NULL;
    }
    node = parse_signed(parser);
    moe_job_leave(parser->job);
    return node == NULL ? NULL : moe_parser_pair(parser, MOE_NODE_UNARY, op, node, NULL);
}


moe_node_t *moe_parse_operand(moe_parser_t *parser)
{
    return parse_filters_and_tests(parser, parse_signed(parser));
}
