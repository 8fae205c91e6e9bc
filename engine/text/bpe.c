/*
 * A piece starts as a row of symbols, one per character, and adjacent pairs are merged by rank
 * (lowest first, leftmost on ties) until no pair has one.
 *
 * Short pieces (nearly all) keep their symbols in a plain array that is scanned for the best pair;
 * nothing beats that for a few symbols.  Long ones (SentencePiece models get whole texts as one
 * piece) use a linked list and a heap of pairs, O(n log n).  The heap is not updated when a pair
 * disappears: an entry counts only while the pair at its position still has the entry's rank.
 *
 * Most pieces of a text are tokens.  Those that merging would give back whole are marked when
 * loading, by merging them: one look-up stands for all their merges.
 */

#include "engine/text/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/utf8.h"

#define SHORT_PIECE 48u
#define WHOLE_PIECE 64u                 /* bytes; longer pieces are hardly ever tokens */
#define NONE UINT32_MAX
#define DIRECT_CHARACTERS 0x180u        /* looked up in a table: all of the byte-level alphabet */

typedef struct {
    uint64_t pair;              /* left id << 32 | right id; all ones: an empty slot */
    uint32_t rank;
    uint32_t merged;            /* id of the result */
} slot_t;

#define NO_PAIR UINT64_MAX

struct moe_bpe_s {
    const moe_vocab_t *vocab;
    slot_t *merges;             /* hash table with open addressing */
    unsigned shift;             /* 64 - log2 of its size */
    uint32_t mask;
    uint32_t direct[DIRECT_CHARACTERS];
    uint32_t bytes[256];        /* <0x00>..<0xFF> when there is byte fallback */
    unsigned char *whole;       /* by id: merging the text of this token gives the token */
    moe_bpe_settings_t settings;
};

typedef struct {
    uint32_t id;
    uint32_t rank, merged;      /* of the pair with the next symbol */
    uint32_t previous, next;    /* NONE at the ends */
} symbol_t;

struct moe_bpe_scratch_s {
    symbol_t *symbols;
    size_t n_symbols, capacity;
    uint64_t *heap;             /* rank << 32 | position; smallest first */
    size_t n_heap, heap_capacity;
};


static uint32_t merge_slot(const moe_bpe_t *bpe, uint64_t pair)
{
    uint32_t slot = (uint32_t) (pair * 0x9e3779b97f4a7c15u >> bpe->shift);

    while (bpe->merges[slot].pair != pair && bpe->merges[slot].pair != NO_PAIR) {
        slot = (slot + 1) & bpe->mask;
    }
    return slot;
}


/* Fills rank and merged of the pair `symbol`, `right`. */
static void look_up(const moe_bpe_t *bpe, symbol_t *symbol, uint32_t right)
{
    const slot_t *merge = &bpe->merges[merge_slot(bpe, (uint64_t) symbol->id << 32 | right)];

    symbol->rank = merge->rank;
    symbol->merged = merge->merged;
}


static int push_heap(moe_bpe_scratch_t *scratch, uint32_t rank, uint32_t position,
                     moe_error_t *error)
{
    uint64_t entry = (uint64_t) rank << 32 | position;
    size_t i, parent;

    if (scratch->n_heap == scratch->heap_capacity) {
        size_t capacity = scratch->heap_capacity ? scratch->heap_capacity * 2 : 1024;
        uint64_t *heap = realloc(scratch->heap, capacity * sizeof(uint64_t));

        if (heap == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for a text of %zu characters",
                            scratch->n_symbols);
        }
        scratch->heap = heap;
        scratch->heap_capacity = capacity;
    }
    for (i = scratch->n_heap++; i > 0; i = parent) {
        parent = (i - 1) / 2;
        if (scratch->heap[parent] <= entry) {
            break;
        }
        scratch->heap[i] = scratch->heap[parent];
    }
    scratch->heap[i] = entry;
    return 0;
}


static uint64_t pop_heap(moe_bpe_scratch_t *scratch)
{
    uint64_t *heap = scratch->heap, top = heap[0], last = heap[--scratch->n_heap];
    size_t i = 0, child, n = scratch->n_heap;

    while ((child = 2 * i + 1) < n) {
        if (child + 1 < n && heap[child + 1] < heap[child]) {
            child++;
        }
        if (heap[child] >= last) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}


/* Merges with a scan per merge; leaves the symbols at the front of the array. */
static void merge_short(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch)
{
    symbol_t *s = scratch->symbols;
    size_t n = scratch->n_symbols, best;

    for (size_t i = 0; i + 1 < n; i++) {
        look_up(bpe, &s[i], s[i + 1].id);
    }
    while (n > 1) {
        best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (s[i].rank < s[best].rank) {
                best = i;
            }
        }
        if (s[best].rank == MOE_NO_RANK) {
            break;
        }
        s[best].id = s[best].merged;
        n--;
        memmove(&s[best + 1], &s[best + 2], (n - best - 1) * sizeof(*s));
        if (best > 0) {
            look_up(bpe, &s[best - 1], s[best].id);
        }
        if (best + 1 < n) {
            look_up(bpe, &s[best], s[best + 1].id);
        }
    }
    scratch->n_symbols = n;
}


/* Looks up the pair at `position` and queues it. */
static int queue_pair(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, uint32_t position,
                      moe_error_t *error)
{
    symbol_t *symbol = &scratch->symbols[position];

    symbol->rank = MOE_NO_RANK;
    if (symbol->next == NONE) {
        return 0;
    }
    look_up(bpe, symbol, scratch->symbols[symbol->next].id);
    return symbol->rank == MOE_NO_RANK ? 0 : push_heap(scratch, symbol->rank, position, error);
}


static int merge_long(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, moe_error_t *error)
{
    symbol_t *s = scratch->symbols;
    uint32_t n = (uint32_t) scratch->n_symbols;

    scratch->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        s[i].previous = i > 0 ? i - 1 : NONE;
        s[i].next = i + 1 < n ? i + 1 : NONE;
        if (queue_pair(bpe, scratch, i, error) != 0) {
            return -1;
        }
    }
    while (scratch->n_heap > 0) {
        uint64_t top = pop_heap(scratch);
        uint32_t position = (uint32_t) top;
        symbol_t *symbol = &s[position], *right;

        if (symbol->rank != top >> 32) {
            continue;                   /* this pair is gone */
        }
        right = &s[symbol->next];
        symbol->id = symbol->merged;
        symbol->next = right->next;
        right->rank = MOE_NO_RANK;
        if (symbol->next != NONE) {
            s[symbol->next].previous = position;
        }
        if (queue_pair(bpe, scratch, position, error) != 0
            || (symbol->previous != NONE
                && queue_pair(bpe, scratch, symbol->previous, error) != 0))
        {
            return -1;
        }
    }
    n = 0;
    for (uint32_t i = 0; i != NONE; i = s[i].next) {
        s[n++].id = s[i].id;            /* i >= n: nothing is overwritten unread */
    }
    scratch->n_symbols = n;
    return 0;
}


static int reserve_symbols(moe_bpe_scratch_t *scratch, size_t count, moe_error_t *error)
{
    size_t capacity = scratch->capacity ? scratch->capacity : 256;
    symbol_t *symbols;

    if (count <= scratch->capacity) {
        return 0;
    }
    while (capacity < count) {
        capacity *= 2;
    }
    symbols = capacity < NONE ? realloc(scratch->symbols, capacity * sizeof(*symbols)) : NULL;
    if (symbols == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for a text of %zu bytes", count);
    }
    scratch->symbols = symbols;
    scratch->capacity = capacity;
    return 0;
}


static void add_symbol(moe_bpe_scratch_t *scratch, uint32_t id)
{
    scratch->symbols[scratch->n_symbols++].id = id;
}


/* A character without a token: its bytes, else unk_token; without one it is dropped, as Hugging
 * Face does.  *unknown: an unknown character stands right before. */
static void add_unknown(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *character,
                        size_t size, int *unknown)
{
    if (bpe->settings.byte_fallback) {
        for (size_t i = 0; i < size; i++) {
            add_symbol(scratch, bpe->bytes[(unsigned char) character[i]]);
        }
        *unknown = 0;
    } else if (bpe->settings.unknown != MOE_NO_TOKEN) {
        if (!*unknown || !bpe->settings.fuse_unknown) {
            add_symbol(scratch, bpe->settings.unknown);
        }
        *unknown = 1;
    }
}


static int split_characters(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *piece,
                            size_t size, moe_error_t *error)
{
    size_t length;
    int unknown = 0;

    scratch->n_symbols = 0;
    if (reserve_symbols(scratch, size, error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < size; i += length) {
        uint32_t code = moe_utf8_decode(piece + i, &length);
        uint32_t id = code < DIRECT_CHARACTERS ? bpe->direct[code]
                                               : moe_vocab_find(bpe->vocab, piece + i, length);

        if (id == MOE_NO_TOKEN) {
            add_unknown(bpe, scratch, piece + i, length, &unknown);
        } else {
            add_symbol(scratch, id);
            unknown = 0;
        }
    }
    return 0;
}


/* Leaves the symbols of a piece in the scratch memory. */
static int encode(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *piece, size_t size,
                  moe_error_t *error)
{
    if (split_characters(bpe, scratch, piece, size, error) != 0) {
        return -1;
    }
    if (scratch->n_symbols > SHORT_PIECE) {
        return merge_long(bpe, scratch, error);
    }
    merge_short(bpe, scratch);
    return 0;
}


int moe_bpe_encode(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *piece,
                   size_t size, moe_ids_t *ids, moe_error_t *error)
{
    if (size <= WHOLE_PIECE || bpe->settings.ignore_merges) {
        uint32_t id = moe_vocab_find(bpe->vocab, piece, size);

        if (id != MOE_NO_TOKEN && (bpe->settings.ignore_merges || bpe->whole[id])) {
            return moe_ids_append(ids, id, error);
        }
    }
    if (encode(bpe, scratch, piece, size, error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < scratch->n_symbols; i++) {
        if (moe_ids_append(ids, scratch->symbols[i].id, error) != 0) {
            return -1;
        }
    }
    return 0;
}


moe_bpe_scratch_t *moe_bpe_scratch_create(moe_error_t *error)
{
    moe_bpe_scratch_t *scratch = calloc(1, sizeof(*scratch));

    if (scratch == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return scratch;
}


void moe_bpe_scratch_free(moe_bpe_scratch_t *scratch)
{
    if (scratch != NULL) {
        free(scratch->symbols);
        free(scratch->heap);
        free(scratch);
    }
}


static int make_table(moe_bpe_t *bpe, const moe_merges_t *merges, moe_error_t *error)
{
    size_t n_slots = 16;

    for (bpe->shift = 60; n_slots < 2 * merges->count; bpe->shift--) {
        n_slots *= 2;
    }
    bpe->mask = (uint32_t) n_slots - 1;
    bpe->merges = malloc(n_slots * sizeof(slot_t));
    if (bpe->merges == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu merges", merges->count);
    }
    memset(bpe->merges, 0xff, n_slots * sizeof(slot_t));        /* NO_PAIR and MOE_NO_RANK */
    for (size_t i = 0; i < merges->count; i++) {
        const moe_merge_t *merge = &merges->items[i];
        uint64_t pair = (uint64_t) merge->left << 32 | merge->right;

        bpe->merges[merge_slot(bpe, pair)] = (slot_t) { pair, merge->rank, merge->merged };
    }
    return 0;
}


static int find_characters(moe_bpe_t *bpe, moe_error_t *error)
{
    char text[8];

    for (unsigned i = 0; bpe->settings.byte_fallback && i < 256; i++) {
        snprintf(text, sizeof(text), "<0x%02X>", i);
        bpe->bytes[i] = moe_vocab_find(bpe->vocab, text, 6);
        if (bpe->bytes[i] == MOE_NO_TOKEN) {
            return moe_fail(error, MOE_BAD_MODEL, "byte fallback without a token %s", text);
        }
    }
    for (uint32_t code = 0; code < DIRECT_CHARACTERS; code++) {
        bpe->direct[code] = moe_vocab_find(bpe->vocab, text, moe_utf8_encode(code, text));
    }
    return 0;
}


static int mark_whole(moe_bpe_t *bpe, moe_error_t *error)
{
    moe_bpe_scratch_t *scratch = moe_bpe_scratch_create(error);
    int rc = scratch == NULL ? -1 : 0;

    bpe->whole = calloc(bpe->vocab->n_ids, 1);
    if (bpe->whole == NULL) {
        rc = moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", bpe->vocab->n_ids);
    }
    for (uint32_t id = 0; rc == 0 && id < bpe->vocab->n_ids; id++) {
        const moe_token_t *token = &bpe->vocab->tokens[id];

        if (token->text != NULL && token->size <= WHOLE_PIECE) {
            rc = encode(bpe, scratch, token->text, token->size, error);
            bpe->whole[id] = rc == 0 && scratch->n_symbols == 1 && scratch->symbols[0].id == id;
        }
    }
    moe_bpe_scratch_free(scratch);
    return rc;
}


moe_bpe_t *moe_bpe_create(const moe_vocab_t *vocab, const moe_merges_t *merges,
                          const moe_bpe_settings_t *settings, moe_error_t *error)
{
    moe_bpe_t *bpe = calloc(1, sizeof(*bpe));

    if (bpe == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
        return NULL;
    }
    bpe->vocab = vocab;
    bpe->settings = *settings;
    if (make_table(bpe, merges, error) != 0 || find_characters(bpe, error) != 0
        || mark_whole(bpe, error) != 0)
    {
        moe_bpe_free(bpe);
        return NULL;
    }
    return bpe;
}


void moe_bpe_free(moe_bpe_t *bpe)
{
    if (bpe != NULL) {
        free(bpe->merges);
        free(bpe->whole);
        free(bpe);
    }
}
