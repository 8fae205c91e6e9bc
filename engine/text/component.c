#include "engine/text/component.h"

#include <string.h>

#include "engine/core/json.h"

#define NESTING_LIMIT 8u


static int walk(const json_t *json, const char *list, moe_component_read_t read, void *owner,
                unsigned depth, moe_error_t *error)
{
    size_t size, i;
    const json_t *members, *member;
    const char *type = moe_json_string(json, "type", &size, error);

    if (type == NULL) {
        return -1;
    }
    if (strcmp(type, "Sequence") != 0) {
        return read(owner, type, json, error);
    }
    members = json_object_get(json, list);
    if (!json_is_array(members) || depth == NESTING_LIMIT) {
        return moe_fail(error, MOE_BAD_MODEL, "Sequence without a list, or too deep");
    }
    json_array_foreach(members, i, member) {
        if (walk(member, list, read, owner, depth + 1, error) != 0) {
            return -1;
        }
    }
    return 0;
}


int moe_component_walk(const json_t *json, const char *list, moe_component_read_t read, void *owner,
                       moe_error_t *error)
{
    return walk(json, list, read, owner, 0, error);
}
