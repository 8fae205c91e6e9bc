/* The DeepSeek families: MLA and fine-grained experts (arXiv 2405.04434, 2412.19437). */

#ifndef MOE_DEEPSEEK_H
#define MOE_DEEPSEEK_H

#include "engine/model/model.h"

extern const moe_family_t moe_family_deepseek_v2;
extern const moe_family_t moe_family_deepseek_v3;
extern const moe_family_t moe_family_kimi_k2;
extern const moe_family_t moe_family_glm4_moe_lite;

#endif
