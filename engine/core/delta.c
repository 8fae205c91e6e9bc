/* Texts lie one behind the other: id and name of a call before its arguments. */

#include "engine/core/delta.h"

#include <stdlib.h>

#define FIRST_ITEMS 4u

typedef struct moe_delta_item_s {
    size_t start;               /* into bytes */
    uint32_t id, name, text;    /* sizes */
    moe_delta_kind_t kind;
} item_t;


/* Room for one more item. */
static int grow(moe_deltas_t *deltas, moe_error_t *error)
{
    uint32_t capacity = deltas->capacity ? 2 * deltas->capacity : FIRST_ITEMS;
    item_t *items;

    if (deltas->count < deltas->capacity) {
        return 0;
    }
    items = capacity > UINT32_MAX / 2 / sizeof(item_t)
            ? NULL : realloc(deltas->items, capacity * sizeof(item_t));
    if (items == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u parts of an answer", capacity);
    }
    deltas->items = items;
    deltas->capacity = capacity;
    return 0;
}


int moe_deltas_reserve(moe_deltas_t *deltas, size_t size, moe_error_t *error)
{
    return grow(deltas, error) != 0 ? -1 : moe_buffer_reserve(&deltas->bytes, size, error);
}


static item_t *add_item(moe_deltas_t *deltas, moe_delta_kind_t kind, moe_error_t *error)
{
    if (grow(deltas, error) != 0) {
        return NULL;
    }
    deltas->items[deltas->count] = (item_t) { .start = deltas->bytes.size, .kind = kind };
    return &deltas->items[deltas->count++];
}


int moe_deltas_add(moe_deltas_t *deltas, moe_delta_kind_t kind, const char *text, size_t size,
                   moe_error_t *error)
{
    item_t *last = deltas->count ? &deltas->items[deltas->count - 1] : NULL;

    if (size == 0) {
        return 0;
    }
    if (last == NULL || last->kind != kind || size > UINT32_MAX - last->text) {
        last = add_item(deltas, kind, error);
    }
    if (last == NULL || moe_buffer_append(&deltas->bytes, text, size, error) != 0) {
        return -1;
    }
    last->text += (uint32_t) size;
    return 0;
}


int moe_deltas_add_call(moe_deltas_t *deltas, moe_string_t id, moe_string_t name,
                        moe_string_t arguments, moe_error_t *error)
{
    item_t *item = add_item(deltas, MOE_DELTA_CALL, error);

    if (item == NULL || moe_buffer_append(&deltas->bytes, id.data, id.size, error) != 0
        || moe_buffer_append(&deltas->bytes, name.data, name.size, error) != 0
        || moe_buffer_append(&deltas->bytes, arguments.data, arguments.size, error) != 0)
    {
        return -1;
    }
    item->id = id.size;
    item->name = name.size;
    item->text = arguments.size;
    return 0;
}


moe_delta_t moe_deltas_at(const moe_deltas_t *deltas, uint32_t i)
{
    const item_t *item = &deltas->items[i];
    const char *data = deltas->bytes.data + item->start;

    return (moe_delta_t) {
        .kind = item->kind,
        .id = { data, item->id },
        .name = { data + item->id, item->name },
        .text = { data + item->id + item->name, item->text }
    };
}


void moe_deltas_clear(moe_deltas_t *deltas)
{
    deltas->count = 0;
    deltas->bytes.size = 0;
}


void moe_deltas_free(moe_deltas_t *deltas)
{
    free(deltas->items);
    moe_buffer_free(&deltas->bytes);
    *deltas = (moe_deltas_t) { .count = 0 };
}
