/*
 * Viterbi over the bytes of a piece: the best way to reach each position is known once all tokens
 * that start before it have been tried, shorter ones first.  Of equal sums the first one found
 * stays, and sums are those of doubles from left to right: so ids are the same everywhere.
 *
 * All tokens that start at a position are found by one walk down a trie.  Its nodes lie level by
 * level, children of a node side by side in the order of their bytes, so a node needs no more than
 * where its children begin.
 */

#include "engine/text/unigram.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/utf8.h"

#define UNKNOWN_PENALTY 10.0            /* below the worst token, as SentencePiece has it */
#define LINEAR_CHILDREN 8u              /* searched one by one */

typedef struct {
    uint32_t first_child;
    uint16_t n_children;
    unsigned char byte;
    uint32_t token;                     /* that ends here, or MOE_NO_TOKEN */
} node_t;

struct moe_unigram_s {
    const moe_vocab_t *vocab;
    double *scores;                     /* by id */
    double unknown_score;
    node_t *nodes;                      /* the root first */
    uint32_t n_nodes;
    uint32_t bytes[256];                /* <0x00>..<0xFF>, or MOE_NO_TOKEN */
    moe_unigram_settings_t settings;
};

/* The best way to a position. */
typedef struct {
    double score;
    size_t start;                       /* of its last token; UNREACHED: there is no way yet */
    uint32_t id;
} step_t;

#define UNREACHED SIZE_MAX

struct moe_unigram_scratch_s {
    step_t *steps;
    size_t capacity;
};

/* Tokens [low, high) of the sorted list lie below a node; their first `depth` bytes are its
 * path. */
typedef struct {
    uint32_t low, high, depth;
} range_t;

typedef struct {
    moe_token_t token;
    uint32_t id;
} sorted_t;


static int compare(const void *left, const void *right)
{
    const moe_token_t *a = &((const sorted_t *) left)->token;
    const moe_token_t *b = &((const sorted_t *) right)->token;
    int order = memcmp(a->text, b->text, a->size < b->size ? a->size : b->size);

    return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}


/* The tokens that can be found in a text, in the order of their bytes; NULL with MOE_LIMIT. */
static sorted_t *sort_tokens(const moe_vocab_t *vocab, const double *scores, uint32_t *count,
                             moe_error_t *error)
{
    sorted_t *sorted = malloc((vocab->n_ids + 1) * sizeof(*sorted));

    *count = 0;
    if (sorted == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", vocab->n_ids);
        return NULL;
    }
    for (uint32_t id = 0; id < vocab->n_ids; id++) {
        if (vocab->tokens[id].size > 0 && isfinite(scores[id])) {
            sorted[(*count)++] = (sorted_t) { vocab->tokens[id], id };
        }
    }
    qsort(sorted, *count, sizeof(*sorted), compare);
    return sorted;
}


/* Adds the children of a node: one for each byte that follows its path. */
static void add_children(moe_unigram_t *unigram, range_t *ranges, const sorted_t *sorted,
                         uint32_t index)
{
    range_t range = ranges[index];
    node_t *node = &unigram->nodes[index];

    node->token = MOE_NO_TOKEN;
    if (range.low < range.high && sorted[range.low].token.size == range.depth) {
        node->token = sorted[range.low++].id;
    }
    node->first_child = unigram->n_nodes;
    while (range.low < range.high) {
        char byte = sorted[range.low].token.text[range.depth];
        uint32_t end = range.low + 1, child = unigram->n_nodes++;

        while (end < range.high && sorted[end].token.text[range.depth] == byte) {
            end++;
        }
        unigram->nodes[child].byte = (unsigned char) byte;
        ranges[child] = (range_t) { range.low, end, range.depth + 1 };
        node->n_children++;
        range.low = end;
    }
}


static int make_trie(moe_unigram_t *unigram, moe_error_t *error)
{
    const moe_vocab_t *vocab = unigram->vocab;
    size_t limit = vocab->n_bytes + 1;          /* a node for each byte at most, and the root */
    range_t *ranges = malloc(limit * sizeof(*ranges));
    uint32_t count;
    sorted_t *sorted = sort_tokens(vocab, unigram->scores, &count, error);
    int rc = sorted == NULL ? -1 : 0;

    unigram->nodes = limit < UINT32_MAX ? calloc(limit, sizeof(node_t)) : NULL;
    if (rc == 0 && (ranges == NULL || unigram->nodes == NULL)) {
        rc = moe_fail(error, MOE_LIMIT, "out of memory for tokens of %zu bytes", vocab->n_bytes);
    }
    if (rc == 0) {
        ranges[0] = (range_t) { 0, count, 0 };
        unigram->n_nodes = 1;
        for (uint32_t i = 0; i < unigram->n_nodes; i++) {
            add_children(unigram, ranges, sorted, i);
        }
    }
    free(sorted);
    free(ranges);
    return rc;
}


/* The child for a byte; NULL when there is none. */
static const node_t *find_child(const moe_unigram_t *unigram, const node_t *node,
                                unsigned char byte)
{
    const node_t *children = &unigram->nodes[node->first_child];
    uint32_t low = 0, high = node->n_children;

    while (high - low > LINEAR_CHILDREN) {
        uint32_t middle = low + (high - low) / 2;

        if (children[middle].byte <= byte) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (; low < high; low++) {
        if (children[low].byte == byte) {
            return &children[low];
        }
    }
    return NULL;
}


static void offer(step_t *step, double score, size_t start, uint32_t id)
{
    if (step->start == UNREACHED || score > step->score) {
        *step = (step_t) { score, start, id };
    }
}


/* Fills the steps 1..size of a piece. */
static void find_best(const moe_unigram_t *unigram, step_t *steps, const char *piece, size_t size)
{
    size_t length;

    steps[0] = (step_t) { 0 };
    for (size_t i = 1; i <= size; i++) {
        steps[i].start = UNREACHED;
    }
    for (size_t start = 0; start < size; start += length) {
        const node_t *node = &unigram->nodes[0];
        double here = steps[start].score;
        int is_token = 0;

        (void) moe_utf8_decode(piece + start, &length);
        for (size_t i = start; i < size;) {
            node = find_child(unigram, node, (unsigned char) piece[i]);
            if (node == NULL) {
                break;
            }
            i++;
            if (node->token != MOE_NO_TOKEN) {
                offer(&steps[i], unigram->scores[node->token] + here, start, node->token);
                is_token |= i == start + length;
            }
        }
        if (!is_token) {
            offer(&steps[start + length], unigram->unknown_score + here, start,
                  unigram->settings.unknown);
        }
    }
}


/* A stretch of characters without a token, which is one unknown token, or its bytes where each of
 * them has a token.  Only the unknown token's own text is a token all the same. */
static int append_unknown(const moe_unigram_t *unigram, const char *text, size_t size,
                          moe_ids_t *ids, moe_error_t *error)
{
    const moe_token_t *unknown = &unigram->vocab->tokens[unigram->settings.unknown];
    int as_bytes = unigram->settings.byte_fallback
                   && !(unknown->size == size && memcmp(unknown->text, text, size) == 0);

    for (size_t i = 0; as_bytes && i < size; i++) {
        as_bytes = unigram->bytes[(unsigned char) text[i]] != MOE_NO_TOKEN;
    }
    if (!as_bytes) {
        return moe_ids_append(ids, unigram->settings.unknown, error);
    }
    for (size_t i = 0; i < size; i++) {
        if (moe_ids_append(ids, unigram->bytes[(unsigned char) text[i]], error) != 0) {
            return -1;
        }
    }
    return 0;
}


/* Turns the links back to front into front to back: afterwards steps[i].start is the end of the
 * token that starts at i. */
static void turn_links(step_t *steps, size_t size)
{
    size_t end = size, next_end = 0;
    uint32_t id = 0;

    for (;;) {
        step_t here = steps[end];

        steps[end].start = next_end;
        steps[end].id = id;
        if (end == 0) {
            return;
        }
        next_end = end;
        id = here.id;
        end = here.start;
    }
}


int moe_unigram_encode(const moe_unigram_t *unigram, moe_unigram_scratch_t *scratch,
                       const char *piece, size_t size, moe_ids_t *ids, moe_error_t *error)
{
    size_t start = 0, end;

    if (scratch->capacity < size + 1) {
        size_t capacity = size + 1 + scratch->capacity;
        step_t *steps = realloc(scratch->steps, capacity * sizeof(*steps));

        if (steps == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for a text of %zu bytes", size);
        }
        scratch->steps = steps;
        scratch->capacity = capacity;
    }
    find_best(unigram, scratch->steps, piece, size);
    turn_links(scratch->steps, size);
    while (start < size) {
        const step_t *step = &scratch->steps[start];
        int rc;

        end = step->start;
        if (step->id != unigram->settings.unknown) {
            rc = moe_ids_append(ids, step->id, error);
        } else {
            while (end < size && scratch->steps[end].id == unigram->settings.unknown) {
                end = scratch->steps[end].start;
            }
            rc = append_unknown(unigram, piece + start, end - start, ids, error);
        }
        if (rc != 0) {
            return -1;
        }
        start = end;
    }
    return 0;
}


moe_unigram_scratch_t *moe_unigram_scratch_create(moe_error_t *error)
{
    moe_unigram_scratch_t *scratch = calloc(1, sizeof(*scratch));

    if (scratch == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return scratch;
}


void moe_unigram_scratch_free(moe_unigram_scratch_t *scratch)
{
    if (scratch != NULL) {
        free(scratch->steps);
        free(scratch);
    }
}


static void find_bytes(moe_unigram_t *unigram)
{
    char text[8];

    for (unsigned i = 0; i < 256; i++) {
        snprintf(text, sizeof(text), "<0x%02X>", i);
        unigram->bytes[i] = moe_vocab_find(unigram->vocab, text, 6);
    }
}


moe_unigram_t *moe_unigram_create(const moe_vocab_t *vocab, const double *scores,
                                  const moe_unigram_settings_t *settings, moe_error_t *error)
{
    moe_unigram_t *unigram = calloc(1, sizeof(*unigram));
    double lowest = DBL_MAX;

    if (unigram == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
        return NULL;
    }
    unigram->vocab = vocab;
    unigram->settings = *settings;
    unigram->scores = malloc((vocab->n_ids + 1) * sizeof(double));
    if (unigram->scores == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", vocab->n_ids);
        moe_unigram_free(unigram);
        return NULL;
    }
    for (uint32_t id = 0; id < vocab->n_ids; id++) {
        unigram->scores[id] = scores[id];
        if (vocab->tokens[id].text != NULL && isfinite(scores[id]) && scores[id] < lowest) {
            lowest = scores[id];
        }
    }
    unigram->unknown_score = lowest - UNKNOWN_PENALTY;
    find_bytes(unigram);
    if (make_trie(unigram, error) != 0) {
        moe_unigram_free(unigram);
        return NULL;
    }
    return unigram;
}


void moe_unigram_free(moe_unigram_t *unigram)
{
    if (unigram != NULL) {
        free(unigram->scores);
        free(unigram->nodes);
        free(unigram);
    }
}
