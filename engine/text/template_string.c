/*
 * Strings and builders.
 *
 * Most strings are wholly trusted (written in the template) or wholly untrusted (sent by a client):
 * those carry one flag.  Only strings mixed of both carry a mark per byte, which makes a slice of
 * any string two pointers and no copy.
 */

#include "engine/text/template_string.h"

#include <stdint.h>
#include <string.h>

#include "engine/text/utf8.h"

#define FNV_OFFSET 2166136261u
#define FNV_PRIME 16777619u


static void measure(moe_string_t *string)
{
    uint32_t hash = FNV_OFFSET;
    size_t length = 0;

    for (size_t i = 0; i < string->size; i++) {
        unsigned char byte = (unsigned char) string->data[i];

        hash = (hash ^ byte) * FNV_PRIME;
        length += (byte & 0xc0) != 0x80;
    }
    string->hash = hash;
    string->length = length;
}


static moe_string_t *new_string(moe_job_t *job, const char *data, size_t size, int trusted)
{
    moe_string_t *string;

    if (moe_job_charge_bytes(job, size) != 0) {
        return NULL;
    }
    string = moe_job_alloc(job, sizeof(*string));
    if (string != NULL) {
        string->data = data;
        string->size = size;
        string->trusted = trusted != 0;
        measure(string);
    }
    return string;
}


const moe_string_t *moe_string_view(moe_job_t *job, const char *data, size_t size, int trusted)
{
    return new_string(job, data, size, trusted);
}


const moe_string_t *moe_string_copy(moe_job_t *job, const char *text)
{
    size_t size = strlen(text);
    char *data = moe_job_alloc(job, size);

    if (data == NULL) {
        return NULL;
    }
    memcpy(data, text, size);
    return new_string(job, data, size, 0);
}


const moe_string_t *moe_string_slice(moe_job_t *job, const moe_string_t *string, size_t start,
                                     size_t end)
{
    moe_string_t *slice;

    if (start == 0 && end == string->size) {
        return string;
    }
    slice = new_string(job, string->data + start, end - start, string->trusted);
    if (slice != NULL && string->marks != NULL) {
        slice->marks = string->marks + start;
    }
    return slice;
}


int moe_string_equal(const moe_string_t *a, const moe_string_t *b)
{
    return a == b || (a->size == b->size && a->hash == b->hash
                      && memcmp(a->data, b->data, a->size) == 0);
}


int moe_string_is(const moe_string_t *string, const char *text)
{
    return strlen(text) == string->size && memcmp(string->data, text, string->size) == 0;
}


/* UTF-8 sorts by code point, as Python does. */
int moe_string_compare(const moe_string_t *a, const moe_string_t *b)
{
    size_t shorter = a->size < b->size ? a->size : b->size;
    int order = memcmp(a->data, b->data, shorter);

    return order != 0 ? order : (a->size > b->size) - (a->size < b->size);
}


size_t moe_string_find(const moe_string_t *string, const moe_string_t *needle, size_t from)
{
    const char *found;

    if (from > string->size) {
        return SIZE_MAX;
    }
    if (needle->size == 0) {
        return from;
    }
    found = memmem(string->data + from, string->size - from, needle->data, needle->size);
    return found == NULL ? SIZE_MAX : (size_t) (found - string->data);
}


size_t moe_string_offset(const moe_string_t *string, size_t character)
{
    size_t at = 0;

    if (string->length == string->size) {
        return character;
    }
    while (character > 0) {
        at++;
        while (at < string->size && ((unsigned char) string->data[at] & 0xc0) == 0x80) {
            at++;
        }
        character--;
    }
    return at;
}


size_t moe_string_character(const moe_string_t *string, size_t at, uint32_t *code_point)
{
    size_t size;

    *code_point = moe_utf8_decode(string->data + at, &size);
    return size;
}


/* Python counts four separators among the control characters as white space, Unicode does not. */
int moe_is_blank(uint32_t code_point)
{
    return moe_is_space(code_point) || (code_point >= 0x1c && code_point <= 0x1f);
}


static size_t previous(const char *data, size_t at)
{
    do {
        at--;
    } while (at > 0 && ((unsigned char) data[at] & 0xc0) == 0x80);
    return at;
}


size_t moe_trim_end(const char *data, size_t size)
{
    moe_string_t string = { .data = data, .size = size };
    uint32_t code_point;

    while (size > 0) {
        size_t at = previous(data, size);

        moe_string_character(&string, at, &code_point);
        if (!moe_is_blank(code_point)) {
            break;
        }
        size = at;
    }
    return size;
}


static int strippable(const moe_string_t *string, size_t at, const moe_string_t *set)
{
    uint32_t code_point;
    size_t size = moe_string_character(string, at, &code_point);

    if (set == NULL) {
        return moe_is_blank(code_point);
    }
    return memmem(set->data, set->size, string->data + at, size) != NULL;
}


const moe_string_t *moe_string_trim(moe_job_t *job, const moe_string_t *string,
                                    const moe_string_t *set, int ends)
{
    size_t start = 0, end = string->size, set_cost = set == NULL ? 1 : 1 + set->size / 8;
    uint32_t code_point;

    while ((ends & MOE_TRIM_START) && start < end && strippable(string, start, set)) {
        if (moe_job_charge_bytes(job, 8 * set_cost) != 0) {
            return NULL;
        }
        start += moe_string_character(string, start, &code_point);
    }
    while ((ends & MOE_TRIM_END) && end > start
           && strippable(string, previous(string->data, end), set))
    {
        if (moe_job_charge_bytes(job, 8 * set_cost) != 0) {
            return NULL;
        }
        end = previous(string->data, end);
    }
    return moe_string_slice(job, string, start, end);
}


int moe_string_trusted_at(const moe_string_t *string, size_t at)
{
    return string->marks != NULL ? string->marks[at] : string->trusted;
}


void moe_builder_start(moe_builder_t *builder, moe_job_t *job)
{
    memset(builder, 0, sizeof(*builder));
    builder->job = job;
    builder->data = "";
}


/* Old blocks stay in the arena: doubling keeps their sum below the last one's size. */
static int reserve(moe_builder_t *builder, size_t extra)
{
    size_t capacity = builder->capacity > 0 ? builder->capacity : 64;
    uint8_t *marks;
    char *room;

    if (extra <= builder->capacity - builder->size) {
        return 0;
    }
    if (extra > builder->job->memory_limit) {
        return moe_job_fail_code(builder->job, MOE_LIMIT, "more than %zu bytes of memory needed",
                                 builder->job->memory_limit);
    }
    while (capacity - builder->size < extra) {
        capacity *= 2;
    }
    room = moe_job_alloc(builder->job, capacity);
    marks = room == NULL ? NULL : moe_job_alloc(builder->job, capacity);
    if (marks == NULL) {
        return -1;
    }
    if (builder->size > 0) {
        memcpy(room, builder->room, builder->size);
        memcpy(marks, builder->marks, builder->size);
    }
    builder->room = room;
    builder->data = room;
    builder->marks = marks;
    builder->capacity = capacity;
    return 0;
}


static int add(moe_builder_t *builder, const char *data, size_t size, const uint8_t *marks,
               int trusted)
{
    if (size == 0) {
        return 0;
    }
    if (moe_job_charge(builder->job, 1) != 0 || moe_job_charge_bytes(builder->job, size) != 0
        || reserve(builder, size) != 0)
    {
        return -1;
    }
    memcpy(builder->room + builder->size, data, size);
    if (marks != NULL) {
        memcpy(builder->marks + builder->size, marks, size);
        builder->mixed = 1;
    } else {
        memset(builder->marks + builder->size, trusted, size);
        builder->mixed |= builder->size > 0 && builder->marks[0] != trusted;
    }
    builder->size += size;
    return 0;
}


int moe_builder_add_slice(moe_builder_t *builder, const moe_string_t *string, size_t start,
                          size_t end)
{
    return add(builder, string->data + start, end - start,
               string->marks == NULL ? NULL : string->marks + start, string->trusted);
}


int moe_builder_add(moe_builder_t *builder, const moe_string_t *string)
{
    return moe_builder_add_slice(builder, string, 0, string->size);
}


int moe_builder_add_bytes(moe_builder_t *builder, const char *data, size_t size, int trusted)
{
    return add(builder, data, size, NULL, trusted != 0);
}


int moe_builder_add_text(moe_builder_t *builder, const char *text)
{
    return add(builder, text, strlen(text), NULL, 0);
}


int moe_builder_add_character(moe_builder_t *builder, uint32_t code_point, int trusted)
{
    char bytes[4];

    return add(builder, bytes, moe_utf8_encode(code_point, bytes), NULL, trusted != 0);
}


const moe_string_t *moe_builder_finish(moe_builder_t *builder)
{
    int trusted = builder->size > 0 && builder->marks[0];
    moe_string_t *string = new_string(builder->job, builder->data, builder->size, trusted);

    if (string != NULL && builder->mixed) {
        string->marks = builder->marks;
    }
    return string;
}
