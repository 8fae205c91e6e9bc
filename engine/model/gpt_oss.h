/*
 * The networks of gpt-oss: experts with biases and a clamped activation, whose rows of gate and up
 * take turns in one tensor, behind a router with a bias.
 */

#ifndef MOE_GPT_OSS_H
#define MOE_GPT_OSS_H

#include "engine/model/build.h"

/* The config keys that moe_gpt_oss_read understands. */
#define MOE_GPT_OSS_KEYS \
    "experts_per_token", "initial_context_length", "swiglu_alpha", "swiglu_limit"

/* Reads the activation of the experts; failures are noted in config, also where what it says twice
 * is not the same: experts of a token, and the context before YaRN. */
void moe_gpt_oss_read(moe_swiglu_t *form, moe_config_t *config, uint32_t top_k,
                      const moe_rope_t *rope);

/*
 * Takes router and experts of a described block, "PREFIXrouter.weight" and so on; experts from
 *
 *     gate_up_proj, down_proj                     in [experts, in, out], as BF16 and the like
 *     gate_up_proj_blocks, _scales, down_proj_..  out [experts, out, in / 32, 16]: MXFP4
 *     gate_proj, up_proj, down_proj               apart, where files translate names (GGUF)
 *
 * 0 or -1.
 */
int moe_gpt_oss_take(moe_model_t *model, moe_block_t *block, const char *prefix,
                     moe_error_t *error);

#endif
