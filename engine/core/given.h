/* Sampling settings that somebody has chosen, a client in a request or a model's
 * generation_config.json; the others are neutral. */

#ifndef MOE_GIVEN_H
#define MOE_GIVEN_H

enum {
    MOE_GIVEN_TEMPERATURE = 1u << 0,
    MOE_GIVEN_TOP_P = 1u << 1,
    MOE_GIVEN_TOP_K = 1u << 2,
    MOE_GIVEN_MIN_P = 1u << 3,
    MOE_GIVEN_REPETITION_PENALTY = 1u << 4,
    MOE_GIVEN_SEED = 1u << 5,
    MOE_GIVEN_MAX_TOKENS = 1u << 6
};

#endif
