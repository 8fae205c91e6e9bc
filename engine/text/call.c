#include "engine/text/call.h"

#include <string.h>

#include "engine/text/answer_internal.h"


moe_string_t moe_call_trim(const char *data, size_t size)
{
    while (size > 0 && moe_is_json_space(data[size - 1])) {
        size--;
    }
    while (size > 0 && moe_is_json_space(data[0])) {
        data++;
        size--;
    }
    return (moe_string_t) { data, (uint32_t) size };
}


size_t moe_call_find(const moe_call_text_t *text, size_t from, unsigned i, size_t *end)
{
    const moe_marker_t *marker = &text->markers[i];
    const char mark[2] = { (char) MOE_MARK, (char) (MOE_MARK_INDEX + marker->index) };
    const int spelt = marker->id == MOE_NO_TOKEN;
    const size_t size = spelt ? marker->size : sizeof(mark);
    const char *found = from < text->size ? memmem(text->data + from, text->size - from,
                                                   spelt ? marker->text : mark, size) : NULL;

    if (found == NULL) {
        return SIZE_MAX;
    }
    *end = (size_t) (found - text->data) + size;
    return *end - size;
}


json_t *moe_call_json(moe_string_t text)
{
    return json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY
                      | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
}


static int is_name(moe_string_t name)
{
    if (name.size == 0 || name.size > MOE_CALL_NAME_LIMIT) {
        return 0;
    }
    for (uint32_t i = 0; i < name.size; i++) {
        if ((unsigned char) name.data[i] <= ' ' || (unsigned char) name.data[i] == MOE_MARK) {
            return 0;
        }
    }
    return 1;
}


static int add(const moe_call_text_t *text, moe_string_t id, moe_string_t name,
               moe_string_t arguments)
{
    return moe_deltas_add_call(text->calls, id, name, arguments, text->error) != 0 ? -1 : 1;
}


/* Arguments that are JSON in a string. */
static int add_unwrapped(const moe_call_text_t *text, moe_string_t id, moe_string_t name,
                         const json_t *string)
{
    moe_string_t inner = moe_call_trim(json_string_value(string), json_string_length(string));
    json_t *json = moe_call_json(inner);
    int rc = json_is_object(json) ? add(text, id, name, inner) : 0;

    json_decref(json);
    return rc;
}


int moe_call_add(const moe_call_text_t *text, moe_string_t id, moe_string_t name,
                 moe_string_t arguments)
{
    static const moe_string_t nothing = { "{}", 2 };
    json_t *json;
    int rc = 0;

    name = moe_call_trim(name.data, name.size);
    arguments = moe_call_trim(arguments.data, arguments.size);
    if (!is_name(name)) {
        return 0;
    }
    if (arguments.size == 0) {
        return add(text, id, name, nothing);
    }
    json = moe_call_json(arguments);
    if (json_is_object(json)) {
        rc = add(text, id, name, arguments);
    } else if (json_is_null(json)) {
        rc = add(text, id, name, nothing);
    } else if (json_is_string(json)) {
        rc = add_unwrapped(text, id, name, json);
    }
    json_decref(json);
    return rc;
}
