/* Families that are Llama with experts: grouped-query attention, half rotation. */

#ifndef MOE_LLAMA_LIKE_H
#define MOE_LLAMA_LIKE_H

#include "engine/model/model.h"

extern const moe_family_t moe_family_olmoe;
extern const moe_family_t moe_family_mixtral;
extern const moe_family_t moe_family_qwen2_moe;
extern const moe_family_t moe_family_qwen3_moe;
extern const moe_family_t moe_family_qwen3_vl_moe;      /* the language model of qwen3_vl_moe */
extern const moe_family_t moe_family_gpt_oss;
extern const moe_family_t moe_family_minimax_m2;
extern const moe_family_t moe_family_glm4_moe;
extern const moe_family_t moe_family_hy_v3;
extern const moe_family_t moe_family_ernie4_5_moe;
extern const moe_family_t moe_family_hunyuan_v1_moe;
extern const moe_family_t moe_family_granitemoe;
extern const moe_family_t moe_family_granitemoeshared;

#endif
