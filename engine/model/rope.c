#include "engine/model/rope.h"

#include <math.h>
#include <string.h>

static const char *const plain_keys[] = {
    "rope_theta", "rope_type", "type", "partial_rotary_factor", NULL
};

static const char *const yarn_keys[] = {
    "attention_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "truncate", NULL
};


static void read_yarn(moe_rope_t *rope, moe_config_t *scaling)
{
    rope->yarn = 1;
    rope->factor = moe_config_number(scaling, "factor", 1, 1e6);
    rope->original_context =
        moe_config_uint(scaling, "original_max_position_embeddings", 1, 1u << 30);
    rope->beta_fast = moe_config_number_or(scaling, "beta_fast", 32, 1e-3, 1e6);
    rope->beta_slow = moe_config_number_or(scaling, "beta_slow", 1, 1e-3, 1e6);
    rope->mscale = moe_config_number_or(scaling, "mscale", 0, 0, 100);
    rope->mscale_all_dim = moe_config_number_or(scaling, "mscale_all_dim", 0, 0, 100);
    rope->attention_factor = moe_config_number_or(scaling, "attention_factor", 0, 1e-3, 1e3);
    rope->truncate = moe_config_bool_or(scaling, "truncate", 1);
}


static void read_scaling(moe_rope_t *rope, moe_config_t *scaling)
{
    const char *type = moe_config_string_or(scaling, "type", "default");

    type = moe_config_string_or(scaling, "rope_type", type);
    rope->theta = moe_config_number_or(scaling, "rope_theta", rope->theta, 2, 1e12);
    moe_config_number_or(scaling, "partial_rotary_factor", 1, 1, 1);
    if (strcmp(type, "yarn") == 0) {
        moe_config_check_keys(scaling, plain_keys, yarn_keys);
        read_yarn(rope, scaling);
    } else if (strcmp(type, "default") == 0) {
        moe_config_check_keys(scaling, plain_keys, NULL);
    } else {
        moe_config_fail(scaling, "rope_type", "\"%.64s\" is not supported", type);
    }
}


void moe_rope_read(moe_rope_t *rope, moe_config_t *config)
{
    moe_config_t scaling;
    int is_new = moe_config_get(config, "rope_parameters") != NULL;

    *rope = (moe_rope_t) { .theta = moe_config_number_or(config, "rope_theta", 10000, 2, 1e12) };
    if (is_new && moe_config_get(config, "rope_scaling") != NULL) {
        moe_config_fail(config, "rope_scaling", "given twice, see rope_parameters");
    }
    scaling = moe_config_object(config, is_new ? "rope_parameters" : "rope_scaling");
    read_scaling(rope, &scaling);
    config->failed = scaling.failed;
}


/* The dimension whose wavelength makes `rotations` turns within the original context. */
static double correction_dimension(const moe_rope_t *rope, uint32_t width, double rotations)
{
    return width * log(rope->original_context / (2 * M_PI * rotations)) / (2 * log(rope->theta));
}


void moe_rope_frequencies(const moe_rope_t *rope, uint32_t width, float *frequencies)
{
    double low = 0, high = 0;

    if (rope->yarn) {
        low = correction_dimension(rope, width, rope->beta_fast);
        high = correction_dimension(rope, width, rope->beta_slow);
        if (rope->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, width - 1.0);
        if (low == high) {
            high += 0.001;
        }
    }
    for (uint32_t j = 0; j < width / 2; j++) {
        double frequency = pow(rope->theta, -2.0 * j / width), ramp;

        if (rope->yarn) {
            ramp = fmin(fmax((j - low) / (high - low), 0), 1);
            frequency = frequency / rope->factor * ramp + frequency * (1 - ramp);
        }
        frequencies[j] = (float) frequency;
    }
}


/* YaRN's attention temperature as DeepSeek parametrises it. */
static double temperature(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}


double moe_rope_magnitude(const moe_rope_t *rope)
{
    if (!rope->yarn) {
        return 1;
    }
    if (rope->attention_factor > 0) {
        return rope->attention_factor;
    }
    if (rope->mscale > 0 && rope->mscale_all_dim > 0) {
        return temperature(rope->factor, rope->mscale)
               / temperature(rope->factor, rope->mscale_all_dim);
    }
    return temperature(rope->factor, 1);
}


double moe_rope_softmax_factor(const moe_rope_t *rope)
{
    double t;

    if (!rope->yarn || rope->mscale_all_dim == 0) {
        return 1;
    }
    t = temperature(rope->factor, rope->mscale_all_dim);
    return t * t;
}
