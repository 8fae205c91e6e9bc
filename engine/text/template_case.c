/*
 * Case, replacement and splitting.  Pieces are slices of the source and so keep its provenance.
 */

#include "engine/text/template_case.h"

#include <utf8proc.h>


static int is_letter(uint32_t code_point)
{
    switch (utf8proc_category((utf8proc_int32_t) code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return 1;
    default:
        return 0;
    }
}


const moe_string_t *moe_string_case(moe_job_t *job, const moe_string_t *string, moe_case_t how)
{
    int starts = 1;         /* the next character gets the upper case of a title */
    moe_builder_t builder;

    if (moe_job_charge_bytes(job, 8 * string->size) != 0) {
        return NULL;
    }
    moe_builder_start(&builder, job);
    for (size_t at = 0, size; at < string->size; at += size) {
        uint32_t code_point;
        int upper;

        size = moe_string_character(string, at, &code_point);
        upper = how == MOE_CASE_UPPER || (how >= MOE_CASE_CAPITALIZE && starts);
        starts = how == MOE_CASE_TITLE && !is_letter(code_point);
        code_point = (uint32_t) (upper ? utf8proc_toupper((utf8proc_int32_t) code_point)
                                       : utf8proc_tolower((utf8proc_int32_t) code_point));
        if (moe_builder_add_character(&builder, code_point,
                                      moe_string_trusted_at(string, at)) != 0)
        {
            return NULL;
        }
    }
    return moe_builder_finish(&builder);
}


/* An empty `old` is found before every character and at the end. */
static const moe_string_t *intersperse(moe_job_t *job, const moe_string_t *string,
                                       const moe_string_t *new, int64_t count)
{
    moe_builder_t builder;
    size_t at = 0, size;

    moe_builder_start(&builder, job);
    for ( ;; ) {
        uint32_t code_point;

        if (moe_job_charge(job, 1) != 0
            || (count-- != 0 && moe_builder_add(&builder, new) != 0))
        {
            return NULL;
        }
        if (at == string->size || count == 0) {
            break;
        }
        size = moe_string_character(string, at, &code_point);
        if (moe_builder_add_slice(&builder, string, at, at + size) != 0) {
            return NULL;
        }
        at += size;
    }
    return moe_builder_add_slice(&builder, string, at, string->size) != 0
           ? NULL : moe_builder_finish(&builder);
}


const moe_string_t *moe_string_replace(moe_job_t *job, const moe_string_t *string,
                                       const moe_string_t *old, const moe_string_t *new,
                                       int64_t count)
{
    moe_builder_t builder;
    size_t at = 0, found;

    if (count == 0) {
        return string;
    }
    if (old->size == 0) {
        return intersperse(job, string, new, count);
    }
    moe_builder_start(&builder, job);
    while (count-- != 0 && (found = moe_string_find(string, old, at)) != SIZE_MAX) {
        if (moe_job_charge(job, 1) != 0
            || moe_builder_add_slice(&builder, string, at, found) != 0
            || moe_builder_add(&builder, new) != 0)
        {
            return NULL;
        }
        at = found + old->size;
    }
    if (at == 0) {
        return moe_job_charge_bytes(job, string->size) != 0 ? NULL : string;
    }
    return moe_builder_add_slice(&builder, string, at, string->size) != 0
           ? NULL : moe_builder_finish(&builder);
}


static int append_slice(moe_job_t *job, moe_list_t *list, const moe_string_t *string,
                        size_t start, size_t end)
{
    const moe_string_t *slice = moe_string_slice(job, string, start, end);
    moe_value_t value = moe_string_value(slice);

    return slice == NULL ? -1 : moe_list_append(job, list, &value);
}


static size_t skip(const moe_string_t *string, size_t at, int space)
{
    while (at < string->size) {
        uint32_t code_point;
        size_t size = moe_string_character(string, at, &code_point);

        if (moe_is_blank(code_point) != space) {
            break;
        }
        at += size;
    }
    return at;
}


static int split_words(moe_job_t *job, const moe_string_t *string, int64_t most,
                       moe_list_t *list)
{
    size_t at = skip(string, 0, 1);

    if (moe_job_charge_bytes(job, 4 * string->size) != 0) {
        return -1;
    }
    while (at < string->size) {
        size_t end = skip(string, at, 0);

        if (most-- == 0) {
            return append_slice(job, list, string, at, string->size);
        }
        if (append_slice(job, list, string, at, end) != 0) {
            return -1;
        }
        at = skip(string, end, 1);
    }
    return 0;
}


moe_list_t *moe_string_split(moe_job_t *job, const moe_string_t *string,
                             const moe_string_t *separator, int64_t most)
{
    moe_list_t *list = moe_list_new(job, 0);
    size_t at = 0, found;

    if (list == NULL || moe_job_charge_bytes(job, string->size) != 0) {
        return NULL;
    }
    if (separator == NULL) {
        return split_words(job, string, most, list) != 0 ? NULL : list;
    }
    if (separator->size == 0) {
        moe_job_fail(job, "'split' needs a separator that is not empty");
        return NULL;
    }
    while (most-- != 0 && (found = moe_string_find(string, separator, at)) != SIZE_MAX) {
        if (append_slice(job, list, string, at, found) != 0) {
            return NULL;
        }
        at = found + separator->size;
    }
    return append_slice(job, list, string, at, string->size) != 0 ? NULL : list;
}


/* Cuts from the right: all but the last `most` pieces of a full split stay in one. */
moe_list_t *moe_string_split_right(moe_job_t *job, const moe_string_t *string,
                                   const moe_string_t *separator, int64_t most)
{
    moe_list_t *all = moe_string_split(job, string, separator, -1), *list;
    const moe_string_t *first;
    size_t joined;

    if (all == NULL || most < 0 || all->count <= (uint64_t) most + 1) {
        return all;
    }
    list = moe_list_new(job, 0);
    joined = all->count - (size_t) most;
    first = all->items[joined - 1].as.string;
    if (list == NULL
        || append_slice(job, list, string,
                        separator == NULL ? skip(string, 0, 1) : 0,
                        (size_t) (first->data - string->data) + first->size) != 0)
    {
        return NULL;
    }
    for (size_t i = joined; i < all->count; i++) {
        if (moe_list_append(job, list, &all->items[i]) != 0) {
            return NULL;
        }
    }
    return list;
}


static int is_line_end(uint32_t code_point)
{
    return (code_point >= 0x0a && code_point <= 0x0d) || (code_point >= 0x1c && code_point <= 0x1e)
           || code_point == 0x85 || code_point == 0x2028 || code_point == 0x2029;
}


moe_list_t *moe_string_lines(moe_job_t *job, const moe_string_t *string, int keep_ends)
{
    moe_list_t *list = moe_list_new(job, 0);
    size_t start = 0;

    if (list == NULL || moe_job_charge_bytes(job, 4 * string->size) != 0) {
        return NULL;
    }
    for (size_t at = 0, size; at < string->size; at += size) {
        uint32_t code_point;

        size = moe_string_character(string, at, &code_point);
        if (!is_line_end(code_point)) {
            continue;
        }
        if (code_point == '\r' && at + 1 < string->size && string->data[at + 1] == '\n') {
            size++;
        }
        if (append_slice(job, list, string, start, keep_ends ? at + size : at) != 0) {
            return NULL;
        }
        start = at + size;
    }
    if (start < string->size && append_slice(job, list, string, start, string->size) != 0) {
        return NULL;
    }
    return list;
}
