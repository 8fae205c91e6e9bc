/*
 * Parser of statements: one function per kind of block, found by the block's name.
 */

#include "engine/text/template_parser.h"

#include <string.h>

#define MAX_TARGETS 16
#define MAX_PARAMETERS 64

static moe_node_t *parse_body(moe_parser_t *parser, const char *const *ends);


moe_node_t *moe_parser_node(moe_parser_t *parser, moe_node_kind_t kind)
{
    moe_node_t *node = moe_job_alloc(parser->job, sizeof(*node));

    if (node != NULL) {
        node->kind = kind;
        node->line = parser->token->line;
    }
    return node;
}


int moe_nodes_append(moe_parser_t *parser, moe_nodes_t *nodes, moe_node_t *node)
{
    if (node == NULL) {
        return -1;
    }
    nodes->items = moe_job_grow(parser->job, nodes->items, nodes->count, &nodes->capacity,
                                sizeof(*nodes->items));
    if (nodes->items == NULL) {
        return -1;
    }
    nodes->items[nodes->count++] = node;
    return 0;
}


int moe_parser_fail(moe_parser_t *parser, const char *expected)
{
    const moe_token_t *token = parser->token;

    parser->job->line = token->line;
    if (token->size == 0) {
        return moe_job_fail(parser->job, "expected %s, found the end of the %s", expected,
                            token->kind == MOE_TOKEN_END ? "template" : "tag");
    }
    return moe_job_fail(parser->job, "expected %s, found '%.*s'", expected,
                        (int) (token->size < 40 ? token->size : 40), token->data);
}


int moe_token_is(const moe_token_t *token, moe_token_kind_t kind, const char *text)
{
    return token->kind == kind && token->size == strlen(text)
           && memcmp(token->data, text, token->size) == 0;
}


int moe_parser_at(const moe_parser_t *parser, const char *operator)
{
    return moe_token_is(parser->token, MOE_TOKEN_OPERATOR, operator);
}


int moe_parser_skip(moe_parser_t *parser, const char *operator)
{
    int found = moe_parser_at(parser, operator);

    parser->token += found;
    return found;
}


int moe_parser_skip_word(moe_parser_t *parser, const char *word)
{
    int found = moe_token_is(parser->token, MOE_TOKEN_NAME, word);

    parser->token += found;
    return found;
}


int moe_parser_expect(moe_parser_t *parser, const char *operator)
{
    char expected[8] = { '\'', operator[0], operator[1], operator[1] ? '\'' : '\0' };

    if (moe_parser_skip(parser, operator)) {
        return 0;
    }
    if (operator[1] == '\0') {
        expected[2] = '\'';
    }
    return moe_parser_fail(parser, expected);
}


int moe_parser_at_word(const moe_parser_t *parser, const char *word)
{
    return moe_token_is(parser->token, MOE_TOKEN_NAME, word);
}


const moe_string_t *moe_parse_name(moe_parser_t *parser)
{
    const moe_token_t *token = parser->token;

    if (token->kind != MOE_TOKEN_NAME) {
        moe_parser_fail(parser, "a name");
        return NULL;
    }
    parser->token++;
    return moe_string_view(parser->job, token->data, token->size, 1);
}


moe_node_t *moe_parser_pair(moe_parser_t *parser, moe_node_kind_t kind, moe_op_t op,
                            moe_node_t *left, moe_node_t *right)
{
    moe_node_t *node = moe_parser_node(parser, kind);

    if (node != NULL) {
        node->op = op;
        node->as.pair.left = left;
        node->as.pair.right = right;
    }
    return node;
}


/* Behind a statement's last expression. */
static int end_tag(moe_parser_t *parser)
{
    if (parser->token->kind != MOE_TOKEN_BLOCK_END) {
        return moe_parser_fail(parser, "the end of the tag");
    }
    parser->token++;
    return 0;
}


/* A body and its closing tag, whose name is skipped but whose end is left to the caller. */
static moe_node_t *parse_block(moe_parser_t *parser, const char *const *ends)
{
    return end_tag(parser) != 0 ? NULL : parse_body(parser, ends);
}


/* A body up to its one closing tag, which is skipped as a whole. */
static moe_node_t *parse_closed_block(moe_parser_t *parser, const char *end)
{
    const char *const ends[] = { end, NULL };
    moe_node_t *body = parse_block(parser, ends);

    if (body == NULL) {
        return NULL;
    }
    parser->token++;
    return end_tag(parser) != 0 ? NULL : body;
}


/* The body of a block whose text is captured: no jump may leave it. */
static moe_node_t *parse_captured_block(moe_parser_t *parser, const char *end)
{
    unsigned loops = parser->loops;
    moe_node_t *body;

    parser->loops = 0;
    body = parse_closed_block(parser, end);
    parser->loops = loops;
    return body;
}


static moe_node_t *parse_if(moe_parser_t *parser)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    moe_node_t *first = NULL, **link = &first;

    /* An elif is the `otherwise` of the test before it: evaluated in a loop, not by recursion. */
    do {
        moe_node_t *node = moe_parser_node(parser, MOE_NODE_IF);

        if (node == NULL || (node->as.branch.test = moe_parse_tuple(parser, 0)) == NULL
            || (node->as.branch.yes = parse_block(parser, ends)) == NULL)
        {
            return NULL;
        }
        *link = node;
        link = &node->as.branch.no;
    } while (moe_parser_skip_word(parser, "elif"));

    if (moe_parser_skip_word(parser, "else")) {
        *link = parse_closed_block(parser, "endif");
        return *link == NULL ? NULL : first;
    }
    parser->token++;
    return end_tag(parser) != 0 ? NULL : first;
}


static int parse_place(moe_parser_t *parser, moe_place_t *place, int attributes)
{
    place->attribute = NULL;
    place->name = moe_parse_name(parser);
    if (place->name == NULL) {
        return -1;
    }
    if (attributes && moe_parser_skip(parser, ".")) {
        place->attribute = moe_parse_name(parser);
        return place->attribute == NULL ? -1 : 0;
    }
    return 0;
}


/* `attributes`: places may be those of namespaces. */
static int parse_target(moe_parser_t *parser, moe_target_t *target, int attributes)
{
    moe_place_t places[MAX_TARGETS];
    int parentheses = moe_parser_skip(parser, "(");

    target->count = 0;
    do {
        if (target->count == MAX_TARGETS) {
            return moe_parser_fail(parser, "at most 16 names");
        }
        if (target->count > 0 && parser->token->kind != MOE_TOKEN_NAME) {
            break;
        }
        if (parse_place(parser, &places[target->count], attributes) != 0) {
            return -1;
        }
        target->count++;
        target->unpacks |= moe_parser_at(parser, ",");
    } while (moe_parser_skip(parser, ","));

    if (parentheses && moe_parser_expect(parser, ")") != 0) {
        return -1;
    }
    target->places = moe_job_alloc(parser->job, target->count * sizeof(*places));
    if (target->places == NULL) {
        return -1;
    }
    memcpy(target->places, places, target->count * sizeof(*places));
    return 0;
}


static moe_node_t *parse_for(moe_parser_t *parser)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_FOR);

    if (node == NULL || parse_target(parser, &node->as.loop.target, 0) != 0) {
        return NULL;
    }
    if (!moe_parser_skip_word(parser, "in")) {
        moe_parser_fail(parser, "'in'");
        return NULL;
    }
    node->as.loop.items = moe_parse_tuple(parser, 1);
    if (node->as.loop.items == NULL) {
        return NULL;
    }
    if (moe_parser_skip_word(parser, "if")) {
        node->as.loop.condition = moe_parse_expression(parser);
        if (node->as.loop.condition == NULL) {
            return NULL;
        }
    }
    node->as.loop.recursive = moe_parser_skip_word(parser, "recursive");
    parser->loops++;
    node->as.loop.body = parse_block(parser, ends);
    parser->loops--;
    if (node->as.loop.body == NULL) {
        return NULL;
    }
    if (moe_parser_skip_word(parser, "else")) {
        node->as.loop.otherwise = parse_closed_block(parser, "endfor");
        return node->as.loop.otherwise == NULL ? NULL : node;
    }
    parser->token++;
    return end_tag(parser) != 0 ? NULL : node;
}


static moe_node_t *parse_set(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_SET);

    if (node == NULL || parse_target(parser, &node->as.set.target, 1) != 0) {
        return NULL;
    }
    if (moe_parser_skip(parser, "=")) {
        node->as.set.value = moe_parse_tuple(parser, 0);
        return node->as.set.value == NULL || end_tag(parser) != 0 ? NULL : node;
    }
    node->kind = MOE_NODE_SET_BLOCK;
    if (moe_parser_at(parser, "|")) {
        node->as.set.filter = moe_parse_filters(parser, NULL, 0);
        if (node->as.set.filter == NULL) {
            return NULL;
        }
    }
    node->as.set.value = parse_captured_block(parser, "endset");
    return node->as.set.value == NULL ? NULL : node;
}


/* Names with values or without, up to the token before which they end. */
static int parse_names(moe_parser_t *parser, moe_node_t *node, moe_token_kind_t end,
                       const char *end_text)
{
    size_t count = 0;

    node->as.macro.parameters = moe_job_alloc(parser->job,
                                              MAX_PARAMETERS * sizeof(*node->as.macro.parameters));
    node->as.macro.defaults = moe_job_alloc(parser->job,
                                            MAX_PARAMETERS * sizeof(*node->as.macro.defaults));
    if (node->as.macro.parameters == NULL || node->as.macro.defaults == NULL) {
        return -1;
    }
    while (!moe_token_is(parser->token, end, end_text)) {
        if (count == MAX_PARAMETERS) {
            return moe_parser_fail(parser, "at most 64 parameters");
        }
        node->as.macro.parameters[count] = moe_parse_name(parser);
        if (node->as.macro.parameters[count] == NULL) {
            return -1;
        }
        if (moe_parser_skip(parser, "=")) {
            node->as.macro.defaults[count] = moe_parse_expression(parser);
            if (node->as.macro.defaults[count] == NULL) {
                return -1;
            }
        }
        count++;
        if (!moe_token_is(parser->token, end, end_text) && moe_parser_expect(parser, ",") != 0) {
            return -1;
        }
    }
    node->as.macro.count = count;
    return 0;
}


/* From behind "(" to behind ")". */
static int parse_parameters(moe_parser_t *parser, moe_node_t *node)
{
    return parse_names(parser, node, MOE_TOKEN_OPERATOR, ")") != 0
           ? -1 : moe_parser_expect(parser, ")");
}


/* The body of a macro, and which of the special names stand in it. */
static int parse_macro_body(moe_parser_t *parser, moe_node_t *node, const char *end)
{
    static const struct { const char *name; unsigned bit; } specials[] = {
        { "caller", MOE_MACRO_CALLER }, { "varargs", MOE_MACRO_VARARGS },
        { "kwargs", MOE_MACRO_KWARGS }
    };
    const moe_token_t *token = parser->token;

    node->as.macro.body = parse_captured_block(parser, end);
    if (node->as.macro.body == NULL) {
        return -1;
    }
    for (; token < parser->token; token++) {
        for (size_t i = 0; i < sizeof(specials) / sizeof(specials[0]); i++) {
            if (moe_token_is(token, MOE_TOKEN_NAME, specials[i].name)) {
                node->as.macro.special |= specials[i].bit;
            }
        }
    }
    return 0;
}


static moe_node_t *parse_macro(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_MACRO);

    if (node == NULL || (node->as.macro.name = moe_parse_name(parser)) == NULL
        || moe_parser_expect(parser, "(") != 0 || parse_parameters(parser, node) != 0)
    {
        return NULL;
    }
    return parse_macro_body(parser, node, "endmacro") != 0 ? NULL : node;
}


/* {% call(parameters) macro(arguments) %}: the body is what the macro's caller() gives. */
static moe_node_t *parse_call_block(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_CALL_BLOCK);
    moe_node_t *caller = moe_parser_node(parser, MOE_NODE_MACRO);

    if (node == NULL || caller == NULL
        || (caller->as.macro.name = moe_string_view(parser->job, "caller", 6, 1)) == NULL
        || (moe_parser_skip(parser, "(") && parse_parameters(parser, caller) != 0)
        || (node->as.block.call = moe_parse_expression(parser)) == NULL)
    {
        return NULL;
    }
    if (node->as.block.call->kind != MOE_NODE_CALL) {
        moe_parser_fail(parser, "a call");
        return NULL;
    }
    node->as.block.caller = caller;
    return parse_macro_body(parser, caller, "endcall") != 0 ? NULL : node;
}


/* {% with name = value, ... %}: names of its body. */
static moe_node_t *parse_with(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_WITH);

    if (node == NULL || parse_names(parser, node, MOE_TOKEN_BLOCK_END, "") != 0) {
        return NULL;
    }
    for (size_t i = 0; i < node->as.macro.count; i++) {
        if (node->as.macro.defaults[i] == NULL) {
            moe_parser_fail(parser, "a value for each name");
            return NULL;
        }
    }
    node->as.macro.body = parse_closed_block(parser, "endwith");
    return node->as.macro.body == NULL ? NULL : node;
}


static moe_node_t *parse_filter_block(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_FILTER_BLOCK);

    if (node == NULL || (node->as.set.filter = moe_parse_filters(parser, NULL, 1)) == NULL) {
        return NULL;
    }
    node->as.set.value = parse_captured_block(parser, "endfilter");
    return node->as.set.value == NULL ? NULL : node;
}


/* Marks what the model wrote, for training: renders as its body. */
static moe_node_t *parse_generation(moe_parser_t *parser)
{
    return parse_closed_block(parser, "endgeneration");
}


static moe_node_t *parse_jump(moe_parser_t *parser, moe_node_kind_t kind)
{
    moe_node_t *node;

    if (parser->loops == 0) {
        parser->job->line = parser->token->line;
        moe_job_fail(parser->job, "'break' or 'continue' outside of a loop");
        return NULL;
    }
    node = moe_parser_node(parser, kind);
    return node == NULL || end_tag(parser) != 0 ? NULL : node;
}


static moe_node_t *parse_break(moe_parser_t *parser)
{
    return parse_jump(parser, MOE_NODE_BREAK);
}


static moe_node_t *parse_continue(moe_parser_t *parser)
{
    return parse_jump(parser, MOE_NODE_CONTINUE);
}


static moe_node_t *parse_print(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_PRINT);

    parser->token++;
    if (node == NULL || (node->as.pair.left = moe_parse_tuple(parser, 0)) == NULL) {
        return NULL;
    }
    if (parser->token->kind != MOE_TOKEN_PRINT_END) {
        moe_parser_fail(parser, "'}}'");
        return NULL;
    }
    parser->token++;
    return node;
}


static moe_node_t *parse_statement(moe_parser_t *parser)
{
    static const struct {
        const char *word;
        moe_node_t *(*parse)(moe_parser_t *parser);
    } statements[] = {
        { "if", parse_if }, { "for", parse_for }, { "set", parse_set }, { "macro", parse_macro },
        { "filter", parse_filter_block }, { "generation", parse_generation },
        { "call", parse_call_block }, { "with", parse_with },
        { "break", parse_break }, { "continue", parse_continue }
    };

    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++) {
        if (moe_parser_skip_word(parser, statements[i].word)) {
            return statements[i].parse(parser);
        }
    }
    moe_parser_fail(parser, "a known block");
    return NULL;
}


static moe_node_t *parse_text(moe_parser_t *parser)
{
    moe_node_t *node = moe_parser_node(parser, MOE_NODE_TEXT);
    const moe_string_t *text = moe_string_view(parser->job, parser->token->data,
                                               parser->token->size, 1);

    if (node == NULL || text == NULL) {
        return NULL;
    }
    parser->token++;
    node->as.literal = moe_string_value(text);
    return node;
}


/* 1 at the name of one of the closing tags, 0 elsewhere; -1 at the end of the template. */
static int at_end(moe_parser_t *parser, const char *const *ends)
{
    if (parser->token->kind == MOE_TOKEN_END) {
        return ends[0] == NULL ? 1 : -1;
    }
    for (size_t i = 0; parser->token->kind == MOE_TOKEN_BLOCK_BEGIN && ends[i] != NULL; i++) {
        if (moe_token_is(parser->token + 1, MOE_TOKEN_NAME, ends[i])) {
            parser->token++;
            return 1;
        }
    }
    return 0;
}


/* The last of `ends` is the one that is always possible. */
static int fail_unclosed(moe_parser_t *parser, const char *const *ends)
{
    size_t last = 0;

    while (ends[last + 1] != NULL) {
        last++;
    }
    parser->job->line = parser->token->line;
    return moe_job_fail(parser->job, "expected '%s', found the end of the template", ends[last]);
}


static int parse_statements(moe_parser_t *parser, const char *const *ends, moe_nodes_t *nodes)
{
    int ended;

    while ((ended = at_end(parser, ends)) == 0) {
        moe_node_t *node;

        if (parser->token->kind == MOE_TOKEN_TEXT) {
            node = parse_text(parser);
        } else if (parser->token->kind == MOE_TOKEN_PRINT_BEGIN) {
            node = parse_print(parser);
        } else {
            parser->token++;
            node = parse_statement(parser);
        }
        if (moe_nodes_append(parser, nodes, node) != 0) {
            return -1;
        }
    }
    return ended < 0 ? fail_unclosed(parser, ends) : 0;
}


static moe_node_t *parse_body(moe_parser_t *parser, const char *const *ends)
{
    moe_node_t *body = moe_parser_node(parser, MOE_NODE_BODY);

    if (body == NULL || moe_job_enter(parser->job) != 0
        || parse_statements(parser, ends, &body->as.list) != 0)
    {
        return NULL;
    }
    moe_job_leave(parser->job);
    return body;
}


moe_node_t *moe_template_parse_tree(moe_job_t *job, const moe_token_t *tokens)
{
    static const char *const none[] = { NULL };
    moe_parser_t parser = { .job = job, .token = tokens };

    return parse_body(&parser, none);
}
