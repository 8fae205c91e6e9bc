/*
 * A trie over bytes.  Only the few bytes that a token can start with cost more than a look into a
 * table, and a walk is never longer than the longest token: the search is linear in the text.
 */

#include "engine/text/added_tokens.h"

#include <stdlib.h>

#include "engine/text/utf8.h"

typedef struct {
    unsigned char byte;
    uint32_t child, sibling;    /* 0: none (node 0 is nobody's child) */
    uint32_t token;             /* index + 1 into tokens; 0: no token ends here */
} node_t;

struct moe_added_tokens_s {
    uint32_t roots[256];        /* nodes by first byte; 0: none */
    node_t *nodes;
    size_t n_nodes, nodes_capacity;
    moe_added_token_t *tokens;
    size_t n_tokens, tokens_capacity;
};


moe_added_tokens_t *moe_added_tokens_create(moe_error_t *error)
{
    moe_added_tokens_t *set = calloc(1, sizeof(*set));

    if (set == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for added tokens");
    }
    return set;
}


void moe_added_tokens_free(moe_added_tokens_t *set)
{
    if (set != NULL) {
        free(set->nodes);
        free(set->tokens);
        free(set);
    }
}


static int reserve_nodes(moe_added_tokens_t *set, size_t extra, moe_error_t *error)
{
    size_t capacity = set->nodes_capacity ? set->nodes_capacity : 1024;
    node_t *nodes;

    while (capacity < set->n_nodes + 1 + extra) {
        capacity *= 2;
    }
    if (capacity == set->nodes_capacity) {
        return 0;
    }
    nodes = capacity < UINT32_MAX ? realloc(set->nodes, capacity * sizeof(*nodes)) : NULL;
    if (nodes == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for added tokens");
    }
    set->nodes = nodes;
    set->nodes_capacity = capacity;
    if (set->n_nodes == 0) {
        set->nodes[set->n_nodes++] = (node_t) { 0 };
    }
    return 0;
}


static uint32_t find_child(const moe_added_tokens_t *set, uint32_t child, unsigned char byte)
{
    while (child != 0 && set->nodes[child].byte != byte) {
        child = set->nodes[child].sibling;
    }
    return child;
}


/* The node for a text, made where it is missing. */
static node_t *insert(moe_added_tokens_t *set, const char *text, size_t size)
{
    uint32_t *first = &set->roots[(unsigned char) text[0]];
    uint32_t node = 0;

    for (size_t i = 0; i < size; i++) {
        node = find_child(set, *first, (unsigned char) text[i]);
        if (node == 0) {
            node = (uint32_t) set->n_nodes++;
            set->nodes[node] = (node_t) { .byte = (unsigned char) text[i], .sibling = *first };
            *first = node;
        }
        first = &set->nodes[node].child;
    }
    return &set->nodes[node];
}


int moe_added_tokens_add(moe_added_tokens_t *set, const char *text, size_t size,
                         const moe_added_token_t *token, moe_error_t *error)
{
    node_t *node;

    if (size == 0 || size > MOE_ADDED_TOKEN_BYTES_LIMIT) {
        return moe_fail(error, MOE_BAD_MODEL, "text of token %u is not of 1..%u bytes", token->id,
                        MOE_ADDED_TOKEN_BYTES_LIMIT);
    }
    if (set->n_tokens == set->tokens_capacity) {
        size_t capacity = set->tokens_capacity ? set->tokens_capacity * 2 : 64;
        moe_added_token_t *tokens = realloc(set->tokens, capacity * sizeof(*tokens));

        if (tokens == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for added tokens");
        }
        set->tokens = tokens;
        set->tokens_capacity = capacity;
    }
    if (reserve_nodes(set, size, error) != 0) {
        return -1;
    }
    node = insert(set, text, size);
    if (node->token == 0) {
        set->tokens[set->n_tokens++] = *token;
        node->token = (uint32_t) set->n_tokens;
    }
    return 0;
}


/* The longest token at `from`; *stop is where it ends. */
static const moe_added_token_t *longest_at(const moe_added_tokens_t *set, const moe_text_t *text,
                                           size_t from, size_t end, size_t *stop)
{
    const moe_added_token_t *best = NULL;
    const unsigned char *data = (const unsigned char *) text->bytes.data;
    uint32_t node = set->roots[data[from]];
    size_t trusted_end = node ? moe_text_trusted_end(text, from) : 0;

    for (size_t i = from; node != 0;) {
        uint32_t index = set->nodes[node].token;

        i++;
        if (index != 0 && (!set->tokens[index - 1].special || i <= trusted_end)) {
            best = &set->tokens[index - 1];
            *stop = i;
        }
        node = i < end ? find_child(set, set->nodes[node].child, data[i]) : 0;
    }
    return best;
}


/* Start of the character that ends at `position`. */
static size_t previous_character(const char *data, size_t position)
{
    do {
        position--;
    } while (((unsigned char) data[position] & 0xc0) == 0x80);
    return position;
}


static int inside_word(const char *data, size_t begin, size_t end, const moe_span_t *range)
{
    size_t length;

    return (range->start > begin
            && moe_is_word(moe_utf8_decode(data + previous_character(data, range->start),
                                           &length)))
           || (range->end < end && moe_is_word(moe_utf8_decode(data + range->end, &length)));
}


static void take_space(const moe_added_token_t *token, const char *data, size_t from, size_t end,
                       moe_span_t *range)
{
    size_t length, previous;

    while (token->lstrip && range->start > from) {
        previous = previous_character(data, range->start);
        if (!moe_is_space(moe_utf8_decode(data + previous, &length))) {
            break;
        }
        range->start = previous;
    }
    while (token->rstrip && range->end < end
           && moe_is_space(moe_utf8_decode(data + range->end, &length)))
    {
        range->end += length;
    }
}


const moe_added_token_t *moe_added_tokens_find(const moe_added_tokens_t *set,
                                               const moe_text_t *text, size_t begin, size_t from,
                                               size_t end, moe_span_t *range)
{
    const char *data = text->bytes.data;
    const moe_added_token_t *token;

    if (set->n_tokens == 0) {
        return NULL;
    }
    for (size_t i = from; i < end; i++) {
        moe_span_t match = { i, i };

        token = longest_at(set, text, i, end, &match.end);
        if (token == NULL) {
            continue;
        }
        if (token->single_word && inside_word(data, begin, end, &match)) {
            i = match.end - 1;          /* Hugging Face looks for no shorter one either */
            continue;
        }
        take_space(token, data, from, end, &match);
        *range = match;
        return token;
    }
    return NULL;
}
