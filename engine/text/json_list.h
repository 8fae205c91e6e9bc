/*
 * Reads the text of a JSON list or object item by item, for the lists of a vocabulary: a tree of
 * hundreds of thousands of nodes would take longer to make than everything else.
 */

#ifndef MOE_JSON_LIST_H
#define MOE_JSON_LIST_H

#include <stdint.h>

#include "engine/core/buffer.h"

typedef struct {
    const char *p, *end;        /* what is left */
    moe_buffer_t unescaped;     /* the last string that had escapes */
    moe_error_t *error;
} moe_json_list_t;

void moe_json_list_init(moe_json_list_t *list, const char *text, size_t size, moe_error_t *error);
void moe_json_list_free(moe_json_list_t *list);

/* 1 when a value that starts with `open` ('[', '{' or '"') comes next. */
int moe_json_list_at(moe_json_list_t *list, char open);

/* Goes to an item of the list or object whose brackets are `brackets`, "[]" or "{}"; `n`: how many
 * were read before it.  1, or 0 when there are no more, behind the closing bracket; -1 with
 * MOE_BAD_MODEL. */
int moe_json_list_item(moe_json_list_t *list, const char *brackets, size_t n);

/* A string, valid UTF-8; it is there until the next one is read. */
int moe_json_list_string(moe_json_list_t *list, const char **text, size_t *size);

/* The key of an object's member. */
int moe_json_list_key(moe_json_list_t *list, const char **text, size_t *size);

int moe_json_list_number(moe_json_list_t *list, double *number);

/* 0 when the text ends here. */
int moe_json_list_end(moe_json_list_t *list);

#endif
