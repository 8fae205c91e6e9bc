#include "engine/model/windows.h"

#include <string.h>


static int is_sliding(const json_t *type)
{
    const char *name = json_string_value(type);

    return name != NULL && strcmp(name, "sliding_attention") == 0;
}


static void read_types(moe_windows_t *windows, moe_config_t *config, uint32_t layers)
{
    const json_t *type;
    size_t i;

    windows->types = moe_config_get(config, "layer_types");
    if (windows->types != NULL && json_array_size(windows->types) != layers) {
        moe_config_fail(config, "layer_types", "not an array of num_hidden_layers entries");
    }
    json_array_foreach(windows->types, i, type) {
        const char *name = json_string_value(type);

        if (!is_sliding(type) && (name == NULL || strcmp(name, "full_attention") != 0)) {
            moe_config_fail(config, "layer_types",
                            "entry %zu is neither sliding_attention nor full_attention", i);
            return;
        }
    }
}


void moe_windows_read(moe_windows_t *windows, moe_config_t *config, moe_windows_kind_t kind,
                      uint32_t layers, uint32_t context)
{
    const int switched = kind == MOE_WINDOWS_SWITCHED || kind == MOE_WINDOWS_SOME;
    const int some = kind == MOE_WINDOWS_SOME || kind == MOE_WINDOWS_ALTERNATING;
    const int is_given = moe_config_get(config, "sliding_window") != NULL;

    *windows = (moe_windows_t) { .alternates = some, .below = layers };
    if (some) {
        read_types(windows, config, layers);
    }
    if (switched && !moe_config_bool_or(config, "use_sliding_window", 0)) {
        return;
    }
    if (kind == MOE_WINDOWS_SOME) {
        windows->below = moe_config_uint_or(config, "max_window_layers", layers, 0, UINT32_MAX);
    }
    if (!is_given && (kind == MOE_WINDOWS_NONE || kind == MOE_WINDOWS_ALL)) {
        return;
    }
    windows->size = moe_config_uint(config, "sliding_window", 1, UINT32_MAX);
    if (windows->size >= context) {
        windows->size = 0;              /* no sequence outgrows it */
    }
    if (windows->size > 0 && kind == MOE_WINDOWS_NONE) {
        moe_config_fail(config, "sliding_window", "windows are not supported here");
    }
}


uint32_t moe_windows_of(const moe_windows_t *windows, uint32_t i)
{
    const int has = windows->types != NULL ? is_sliding(json_array_get(windows->types, i))
                    : windows->alternates ? i < windows->below && i % 2 == 0 : 1;

    return has ? windows->size : 0;
}
