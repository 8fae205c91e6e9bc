#include "engine/comm/step.h"


int moe_step_agree(moe_comm_t *all, const moe_step_word_t *mine, moe_step_word_t *words,
                   moe_error_t *error)
{
    if (all->ops->allgather(all, mine, sizeof(*mine), words, error) != 0) {
        return -1;
    }
    for (uint32_t r = 1; r < all->ranks; r++) {
        if (words[r].placement != words[0].placement) {
            return moe_fail(error, MOE_UNAVAILABLE, "step %llu: rank %u has placement %u, rank 0"
                            " %u", (unsigned long long) all->step, r, words[r].placement,
                            words[0].placement);
        }
    }
    return 0;
}
