/*
 * Sliding windows: which layers' tokens see only the last tokens, as configs say it.
 */

#ifndef MOE_WINDOWS_H
#define MOE_WINDOWS_H

#include "engine/model/config.h"

/* What `sliding_window` of a family's configs stands for. */
typedef enum {
    MOE_WINDOWS_NONE = 0,       /* nothing: a window that sequences outgrow is refused */
    MOE_WINDOWS_ALL,            /* every layer has it (Mixtral) */
    MOE_WINDOWS_SWITCHED,       /* every layer, if use_sliding_window is true (Qwen3-MoE) */
    MOE_WINDOWS_SOME,           /* if it is true, those of layer_types, else every second one below
                                 * max_window_layers (Qwen2-MoE) */
    MOE_WINDOWS_ALTERNATING     /* those of layer_types, else every second one (gpt-oss); layer 0 is
                                 * one of them */
} moe_windows_kind_t;

/* The config keys that moe_windows_read understands besides sliding_window. */
#define MOE_WINDOWS_KEYS "layer_types", "max_window_layers", "use_sliding_window"

typedef struct {
    uint32_t size;              /* tokens that a token sees, itself included; 0: all */
    int alternates;             /* only every second layer ... */
    uint32_t below;             /* ... of so many first ones has it, or: */
    const json_t *types;        /* the config's, "sliding_attention" or "full_attention" per layer;
                                 * NULL: not given */
} moe_windows_t;

/* Reads it, of a model with so many layers and positions; failures are noted in config. */
void moe_windows_read(moe_windows_t *windows, moe_config_t *config, moe_windows_kind_t kind,
                      uint32_t layers, uint32_t context);

/* The window of layer i; 0: none. */
uint32_t moe_windows_of(const moe_windows_t *windows, uint32_t i);

#endif
