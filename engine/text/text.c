/*
 * Provenance is kept as a short sorted list of trusted spans beside the bytes: a rendered chat has
 * a handful of them, and lookups are binary searches.
 */

#include "engine/text/text.h"

#include <stdlib.h>


/* Room for one more item of an array that grows by doubling. */
static int grow(void **items, size_t count, size_t *capacity, size_t item_size,
                moe_error_t *error)
{
    size_t wanted = *capacity ? *capacity * 2 : 16;
    void *grown;

    if (count < *capacity) {
        return 0;
    }
    grown = wanted > (size_t) -1 / 2 / item_size ? NULL : realloc(*items, wanted * item_size);
    if (grown == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu items", wanted);
    }
    *items = grown;
    *capacity = wanted;
    return 0;
}


int moe_text_append(moe_text_t *text, const char *data, size_t size, int trusted,
                    moe_error_t *error)
{
    size_t start = text->bytes.size;
    moe_span_t *last = text->n_trusted ? &text->trusted[text->n_trusted - 1] : NULL;

    if (size == 0) {
        return 0;
    }
    if (trusted && (last == NULL || last->end != start)) {
        void *spans = text->trusted;

        if (grow(&spans, text->n_trusted, &text->capacity, sizeof(moe_span_t), error) != 0) {
            return -1;
        }
        text->trusted = spans;
        last = NULL;
    }
    if (moe_buffer_append(&text->bytes, data, size, error) != 0) {
        return -1;
    }
    if (trusted && last != NULL) {
        last->end = start + size;
    } else if (trusted) {
        text->trusted[text->n_trusted++] = (moe_span_t) { start, start + size };
    }
    return 0;
}


/* Index of the first trusted span that ends after `position`. */
static size_t find_span(const moe_text_t *text, size_t position)
{
    size_t low = 0, high = text->n_trusted;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (text->trusted[middle].end <= position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}


int moe_text_append_range(moe_text_t *text, const moe_text_t *from, size_t start, size_t end,
                          moe_error_t *error)
{
    for (size_t i = find_span(from, start); start < end; i++) {
        size_t border = i < from->n_trusted ? from->trusted[i].start : end;
        size_t trusted_end = i < from->n_trusted ? from->trusted[i].end : end;

        border = border < start ? start : border < end ? border : end;
        trusted_end = trusted_end < end ? trusted_end : end;
        if (moe_text_append(text, from->bytes.data + start, border - start, 0, error) != 0
            || (border < trusted_end
                && moe_text_append(text, from->bytes.data + border, trusted_end - border, 1,
                                   error) != 0))
        {
            return -1;
        }
        start = trusted_end;
    }
    return 0;
}


size_t moe_text_trusted_end(const moe_text_t *text, size_t position)
{
    size_t i = find_span(text, position);

    return i < text->n_trusted && text->trusted[i].start <= position ? text->trusted[i].end
                                                                     : position;
}


void moe_text_clear(moe_text_t *text)
{
    text->bytes.size = 0;
    text->n_trusted = 0;
}


void moe_text_free(moe_text_t *text)
{
    moe_buffer_free(&text->bytes);
    free(text->trusted);
    text->trusted = NULL;
    text->n_trusted = 0;
    text->capacity = 0;
}


int moe_ids_append(moe_ids_t *ids, uint32_t id, moe_error_t *error)
{
    void *items = ids->ids;

    if (grow(&items, ids->count, &ids->capacity, sizeof(uint32_t), error) != 0) {
        return -1;
    }
    ids->ids = items;
    ids->ids[ids->count++] = id;
    return 0;
}


void moe_ids_free(moe_ids_t *ids)
{
    free(ids->ids);
    ids->ids = NULL;
    ids->count = 0;
    ids->capacity = 0;
}
