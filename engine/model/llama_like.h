/* Families that are Llama with experts: grouped-query attention, half rotation, softmax routing. */

#ifndef MOE_LLAMA_LIKE_H
#define MOE_LLAMA_LIKE_H

#include "engine/model/model.h"

extern const moe_family_t moe_family_olmoe;
extern const moe_family_t moe_family_mixtral;
extern const moe_family_t moe_family_qwen3_moe;

#endif
