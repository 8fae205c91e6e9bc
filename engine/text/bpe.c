/*
 * A piece starts as a row of symbols, one per character, and adjacent pairs are merged by rank
 * (lowest first, leftmost on ties) until no pair has one.
 *
 * Short pieces (nearly all) keep their symbols in a plain array that is scanned for the best pair;
 * nothing beats that for a few symbols.  Long ones (SentencePiece models get whole texts as one
 * piece) use a linked list and a heap of pairs, O(n log n).  The heap is not updated when a pair
 * disappears: an entry counts only while the pair at its position still has the entry's rank.
 */

#include "engine/text/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/utf8.h"

#define SHORT_PIECE 48u
#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX
#define DIRECT_CHARACTERS 0x180u        /* looked up in a table: all of the byte-level alphabet */

typedef struct {
    uint64_t pair;              /* left id << 32 | right id; all ones: an empty slot */
    uint32_t rank;
    uint32_t merged;            /* id of the result */
} merge_t;

#define NO_PAIR UINT64_MAX

struct moe_bpe_s {
    moe_vocab_t vocab;
    merge_t *merges;            /* hash table with open addressing */
    unsigned shift;             /* 64 - log2 of its size */
    uint32_t mask;
    uint32_t direct[DIRECT_CHARACTERS];
    uint32_t bytes[256];        /* <0x00>..<0xFF> when there is byte fallback */
    uint32_t unknown;           /* id of unk_token, or MOE_NO_TOKEN */
    int byte_fallback, fuse_unknown, ignore_merges;
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
    const merge_t *merge = &bpe->merges[merge_slot(bpe, (uint64_t) symbol->id << 32 | right)];

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
        if (s[best].rank == NO_RANK) {
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

    symbol->rank = NO_RANK;
    if (symbol->next == NONE) {
        return 0;
    }
    look_up(bpe, symbol, scratch->symbols[symbol->next].id);
    return symbol->rank == NO_RANK ? 0 : push_heap(scratch, symbol->rank, position, error);
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
        right->rank = NO_RANK;
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
    if (bpe->byte_fallback) {
        for (size_t i = 0; i < size; i++) {
            add_symbol(scratch, bpe->bytes[(unsigned char) character[i]]);
        }
        *unknown = 0;
    } else if (bpe->unknown != MOE_NO_TOKEN) {
        if (!*unknown || !bpe->fuse_unknown) {
            add_symbol(scratch, bpe->unknown);
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
                                               : moe_vocab_find(&bpe->vocab, piece + i, length);

        if (id == MOE_NO_TOKEN) {
            add_unknown(bpe, scratch, piece + i, length, &unknown);
        } else {
            add_symbol(scratch, id);
            unknown = 0;
        }
    }
    return 0;
}


int moe_bpe_encode(const moe_bpe_t *bpe, moe_bpe_scratch_t *scratch, const char *piece,
                   size_t size, moe_ids_t *ids, moe_error_t *error)
{
    if (bpe->ignore_merges) {
        uint32_t id = moe_vocab_find(&bpe->vocab, piece, size);

        if (id != MOE_NO_TOKEN) {
            return moe_ids_append(ids, id, error);
        }
    }
    if (split_characters(bpe, scratch, piece, size, error) != 0) {
        return -1;
    }
    if (scratch->n_symbols <= SHORT_PIECE) {
        merge_short(bpe, scratch);
    } else if (merge_long(bpe, scratch, error) != 0) {
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


static int read_vocab(moe_bpe_t *bpe, json_t *json, moe_error_t *error)
{
    json_t *vocab = json_object_get(json, "vocab"), *id;
    uint32_t n_ids = 0;
    size_t bytes = 0;
    const char *text;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return moe_fail(error, MOE_BAD_MODEL, "\"vocab\" is not a non-empty object");
    }
    json_object_foreach(vocab, text, id) {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;

        if (value < 0 || value >= (json_int_t) MOE_TOKEN_ID_LIMIT) {
            return moe_fail(error, MOE_BAD_MODEL, "vocab: id of \"%.60s\" is not in 0..%u", text,
                            MOE_TOKEN_ID_LIMIT - 1);
        }
        if ((uint32_t) value >= n_ids) {
            n_ids = (uint32_t) value + 1;
        }
        bytes += strlen(text);
    }
    if (moe_vocab_init(&bpe->vocab, json_object_size(vocab), bytes, n_ids, error) != 0) {
        return -1;
    }
    json_object_foreach(vocab, text, id) {
        if (moe_vocab_add(&bpe->vocab, text, strlen(text), (uint32_t) json_integer_value(id),
                          error) != 0)
        {
            return moe_fail_in(error, "vocab");
        }
    }
    return 0;
}


/* The two parts of a merge, "a b" or ["a", "b"]. */
static int read_parts(const json_t *merge, const char *parts[2], size_t sizes[2])
{
    if (json_is_string(merge)) {
        size_t size = json_string_length(merge);

        parts[0] = json_string_value(merge);
        parts[1] = memchr(parts[0], ' ', size);
        if (parts[1] == NULL) {
            return -1;
        }
        sizes[0] = (size_t) (parts[1] - parts[0]);
        sizes[1] = size - sizes[0] - 1;
        parts[1]++;
        return 0;
    }
    if (json_array_size(merge) != 2) {
        return -1;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *part = json_array_get(merge, i);

        if (!json_is_string(part)) {
            return -1;
        }
        parts[i] = json_string_value(part);
        sizes[i] = json_string_length(part);
    }
    return 0;
}


static int add_merge(moe_bpe_t *bpe, const json_t *merge, uint32_t rank, moe_buffer_t *whole,
                     moe_error_t *error)
{
    const char *parts[2];
    size_t sizes[2];
    uint32_t ids[2], merged, slot;
    uint64_t pair;

    if (read_parts(merge, parts, sizes) != 0) {
        return moe_fail(error, MOE_BAD_MODEL, "merges: entry %u is not a pair", rank);
    }
    whole->size = 0;
    for (int i = 0; i < 2; i++) {
        ids[i] = moe_vocab_find(&bpe->vocab, parts[i], sizes[i]);
        if (ids[i] == MOE_NO_TOKEN) {
            return moe_fail(error, MOE_BAD_MODEL, "merges: \"%.*s\" of entry %u is not a token",
                            (int) (sizes[i] < 60 ? sizes[i] : 60), parts[i], rank);
        }
        if (moe_buffer_append(whole, parts[i], sizes[i], error) != 0) {
            return -1;
        }
    }
    merged = moe_vocab_find(&bpe->vocab, whole->data, whole->size);
    if (merged == MOE_NO_TOKEN) {
        return moe_fail(error, MOE_BAD_MODEL, "merges: result \"%.*s\" of entry %u is not a token",
                        (int) (whole->size < 60 ? whole->size : 60), whole->data, rank);
    }
    pair = (uint64_t) ids[0] << 32 | ids[1];
    slot = merge_slot(bpe, pair);
    bpe->merges[slot] = (merge_t) { pair, rank, merged };
    return 0;
}


static int read_merges(moe_bpe_t *bpe, const json_t *json, moe_error_t *error)
{
    const json_t *merges = json_object_get(json, "merges");
    size_t count = json_array_size(merges), n_slots = 16, i = 0;
    moe_buffer_t whole = { 0 };
    int rc = 0;

    if (!json_is_array(merges) || count > 4 * (size_t) MOE_TOKEN_ID_LIMIT) {
        return moe_fail(error, MOE_BAD_MODEL, "\"merges\" is not a list of pairs, or too long");
    }
    for (bpe->shift = 60; n_slots < 2 * count; bpe->shift--) {
        n_slots *= 2;
    }
    bpe->mask = (uint32_t) n_slots - 1;
    bpe->merges = malloc(n_slots * sizeof(merge_t));
    if (bpe->merges == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu merges", count);
    }
    memset(bpe->merges, 0xff, n_slots * sizeof(merge_t));       /* NO_PAIR and NO_RANK */
    if (json_string_length(json_array_get(merges, 0)) > 8
        && strncmp(json_string_value(json_array_get(merges, 0)), "#version", 8) == 0)
    {
        i = 1;                          /* the first line of old merges.txt */
    }
    for (; rc == 0 && i < count; i++) {
        rc = add_merge(bpe, json_array_get(merges, i), (uint32_t) i, &whole, error);
    }
    moe_buffer_free(&whole);
    return rc;
}


static int read_fallbacks(moe_bpe_t *bpe, const json_t *json, moe_error_t *error)
{
    const json_t *unknown = json_object_get(json, "unk_token");
    char text[8];

    bpe->unknown = MOE_NO_TOKEN;
    if (json_is_string(unknown)) {
        bpe->unknown = moe_vocab_find(&bpe->vocab, json_string_value(unknown),
                                      json_string_length(unknown));
        if (bpe->unknown == MOE_NO_TOKEN) {
            return moe_fail(error, MOE_BAD_MODEL, "unk_token \"%.60s\" is not a token",
                            json_string_value(unknown));
        }
    } else if (unknown != NULL && !json_is_null(unknown)) {
        return moe_fail(error, MOE_BAD_MODEL, "\"unk_token\" is not a string");
    }
    for (unsigned i = 0; bpe->byte_fallback && i < 256; i++) {
        snprintf(text, sizeof(text), "<0x%02X>", i);
        bpe->bytes[i] = moe_vocab_find(&bpe->vocab, text, 6);
        if (bpe->bytes[i] == MOE_NO_TOKEN) {
            return moe_fail(error, MOE_BAD_MODEL, "byte_fallback without a token %s", text);
        }
    }
    for (uint32_t code = 0; code < DIRECT_CHARACTERS; code++) {
        bpe->direct[code] = moe_vocab_find(&bpe->vocab, text, moe_utf8_encode(code, text));
    }
    return 0;
}


/* What would change the ids and is not implemented: no model served needs it. */
static int refuse_variants(const json_t *json, moe_error_t *error)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const json_t *type = json_object_get(json, "type");
    const json_t *dropout = json_object_get(json, "dropout");

    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0)) {
        return moe_fail(error, MOE_BAD_MODEL, "type \"%.60s\" is not supported, only BPE",
                        json_is_string(type) ? json_string_value(type) : "?");
    }
    if (dropout != NULL && !json_is_null(dropout)
        && !(json_is_number(dropout) && json_number_value(dropout) == 0))
    {
        return moe_fail(error, MOE_BAD_MODEL, "dropout is not supported");
    }
    for (unsigned i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(json, affixes[i]);

        if (affix != NULL && !json_is_null(affix)
            && !(json_is_string(affix) && json_string_length(affix) == 0))
        {
            return moe_fail(error, MOE_BAD_MODEL, "%s is not supported", affixes[i]);
        }
    }
    return 0;
}


moe_bpe_t *moe_bpe_create(const json_t *json, moe_error_t *error)
{
    moe_bpe_t *bpe = calloc(1, sizeof(*bpe));

    if (bpe == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
        return NULL;
    }
    if (!json_is_object(json)) {
        moe_fail(error, MOE_BAD_MODEL, "not an object");
    } else if (refuse_variants(json, error) == 0
               && moe_json_flag(json, "byte_fallback", 0, &bpe->byte_fallback, error) == 0
               && moe_json_flag(json, "fuse_unk", 0, &bpe->fuse_unknown, error) == 0
               && moe_json_flag(json, "ignore_merges", 0, &bpe->ignore_merges, error) == 0
               && read_vocab(bpe, (json_t *) json, error) == 0
               && read_merges(bpe, json, error) == 0 && read_fallbacks(bpe, json, error) == 0)
    {
        return bpe;
    }
    moe_bpe_free(bpe);
    return NULL;
}


void moe_bpe_free(moe_bpe_t *bpe)
{
    if (bpe != NULL) {
        moe_vocab_free(&bpe->vocab);
        free(bpe->merges);
        free(bpe);
    }
}


const moe_vocab_t *moe_bpe_vocab(const moe_bpe_t *bpe)
{
    return &bpe->vocab;
}
