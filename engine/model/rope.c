/*
 * Every type is a table row: the keys it knows besides the common ones, and how it reads them.  All
 * of them end as one frequency per pair and one magnitude, so that nothing behind this file knows
 * types.  Factors are taken literally: they are not recomputed from context lengths.
 */

#include "engine/model/rope.h"

#include <math.h>
#include <string.h>

#define FACTOR_LIMIT 1e6
#define CONTEXT_LIMIT (1u << 30)

/* Multimodal positions (mrope) differ only in what is no text. */
static const char *const common_keys[] = {
    "mrope_interleaved", "mrope_section", "partial_rotary_factor", "rope_theta", "rope_type",
    "type", NULL
};

static const char *const linear_keys[] = { "factor", "original_max_position_embeddings", NULL };

static const char *const llama3_keys[] = {
    "factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings", NULL
};

static const char *const yarn_keys[] = {
    "attention_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "truncate", NULL
};

static const char *const longrope_keys[] = {
    "attention_factor", "factor", "long_factor", "long_mscale", "original_max_position_embeddings",
    "short_factor", "short_mscale", NULL
};

/* Released configs carry YaRN's keys along, which this type does not use. */
static const char *const alpha_keys[] = {
    "alpha", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim", NULL
};


static double read_factor(moe_config_t *scaling)
{
    return moe_config_number(scaling, "factor", 1, FACTOR_LIMIT);
}


static double read_original_context(moe_config_t *scaling)
{
    return moe_config_uint(scaling, "original_max_position_embeddings", 1, CONTEXT_LIMIT);
}


static void read_linear(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config)
{
    rope->factor = read_factor(scaling);
}


static void read_llama3(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config)
{
    rope->factor = read_factor(scaling);
    rope->original_context = read_original_context(scaling);
    rope->low_factor = moe_config_number(scaling, "low_freq_factor", 1e-3, FACTOR_LIMIT);
    rope->high_factor = moe_config_number(scaling, "high_freq_factor", 1e-3, FACTOR_LIMIT);
    if (rope->high_factor <= rope->low_factor) {
        moe_config_fail(scaling, "high_freq_factor", "%g is not above low_freq_factor %g",
                        rope->high_factor, rope->low_factor);
    }
}


static void read_yarn(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config)
{
    rope->factor = read_factor(scaling);
    rope->original_context = read_original_context(scaling);
    rope->beta_fast = moe_config_number_or(scaling, "beta_fast", 32, 1e-3, FACTOR_LIMIT);
    rope->beta_slow = moe_config_number_or(scaling, "beta_slow", 1, 1e-3, FACTOR_LIMIT);
    rope->mscale = moe_config_number_or(scaling, "mscale", 0, 0, 100);
    rope->mscale_all_dim = moe_config_number_or(scaling, "mscale_all_dim", 0, 0, 100);
    rope->attention_factor = moe_config_number_or(scaling, "attention_factor", 0, 1e-3, 1e3);
    rope->truncate = moe_config_bool_or(scaling, "truncate", 1);
}


static const json_t *read_factors(const moe_rope_t *rope, moe_config_t *scaling, const char *key)
{
    const json_t *factors = moe_config_get(scaling, key), *factor;
    size_t i;

    if (!json_is_array(factors) || json_array_size(factors) != rope->width / 2) {
        moe_config_fail(scaling, key, "not an array of %u numbers, one for each pair that rotates",
                        rope->width / 2);
        return NULL;
    }
    json_array_foreach(factors, i, factor) {
        const double value = json_number_value(factor);

        if (!(value >= 1e-3 && value <= FACTOR_LIMIT)) {
            moe_config_fail(scaling, key, "entry %zu is not a number within %g..%g", i, 1e-3,
                            FACTOR_LIMIT);
            return NULL;
        }
    }
    return factors;
}


/* Where the factor is not given, it is how far the context was extended. */
static void read_longrope(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config)
{
    const uint32_t context = moe_config_uint(config, "max_position_embeddings", 1, CONTEXT_LIMIT);

    rope->original_context = read_original_context(scaling);
    rope->factor = moe_config_number_or(scaling, "factor", context / rope->original_context, 1e-3,
                                        FACTOR_LIMIT);
    rope->short_factors = read_factors(rope, scaling, "short_factor");
    rope->long_factors = read_factors(rope, scaling, "long_factor");
    rope->short_mscale = moe_config_number_or(scaling, "short_mscale", 0, 1e-3, 1e3);
    rope->long_mscale = moe_config_number_or(scaling, "long_mscale", 0, 1e-3, 1e3);
    rope->attention_factor = moe_config_number_or(scaling, "attention_factor", 0, 1e-3, 1e3);
}


/* Without alpha, this type follows the length of each sequence. */
static void read_alpha(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config)
{
    if (moe_config_get(scaling, "alpha") == NULL) {
        moe_config_fail(scaling, "rope_type", "\"dynamic\" is not supported without alpha");
        return;
    }
    rope->alpha = moe_config_number(scaling, "alpha", 1, FACTOR_LIMIT);
    moe_config_number_or(scaling, "factor", 1, 1, 1);
    if (rope->width < 4) {
        moe_config_fail(scaling, "alpha", "heads of %u dimensions cannot be scaled", rope->width);
    }
}


static void read_scaling(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config)
{
    static const struct {
        const char *name;
        moe_rope_type_t type;
        const char *const *keys;
        void (*read)(moe_rope_t *rope, moe_config_t *scaling, moe_config_t *config);
    } types[] = {
        { "default", MOE_ROPE_DEFAULT, NULL, NULL },
        { "linear", MOE_ROPE_LINEAR, linear_keys, read_linear },
        { "llama3", MOE_ROPE_LLAMA3, llama3_keys, read_llama3 },
        { "yarn", MOE_ROPE_YARN, yarn_keys, read_yarn },
        { "longrope", MOE_ROPE_LONGROPE, longrope_keys, read_longrope },
        { "dynamic", MOE_ROPE_ALPHA, alpha_keys, read_alpha },
    };
    const char *name = moe_config_string_or(scaling, "type", "default");

    name = moe_config_string_or(scaling, "rope_type", name);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, name) != 0) {
            continue;
        }
        moe_config_check_keys(scaling, common_keys, types[i].keys);
        rope->type = types[i].type;
        rope->name = types[i].name;
        if (types[i].read != NULL) {
            types[i].read(rope, scaling, config);
        }
        return;
    }
    moe_config_fail(scaling, "rope_type", "\"%.64s\" is not supported", name);
}


/* A share is given beside the scaling or in it, or as a number of dimensions; where a config says
 * it twice it must say the same. */
static uint32_t read_width(moe_config_t *config, moe_config_t *scaling, uint32_t head, double share)
{
    static const char key[] = "partial_rotary_factor";
    const double usual = share > 0 ? share : 1, least = share > 0 ? 1e-6 : 1;
    const double beside = moe_config_number_or(config, key, usual, least, 1);
    const double given = moe_config_number_or(scaling, key, beside, least, 1);
    const int is_given = moe_config_get(config, key) || moe_config_get(scaling, key);
    uint32_t width = (uint32_t) (head * given);

    if (moe_config_get(config, key) != NULL && given != beside) {
        moe_config_fail(scaling, key, "%g here, %g outside", given, beside);
    }
    if (moe_config_get(config, "rotary_dim") != NULL) {
        const uint32_t dimensions = moe_config_uint(config, "rotary_dim", 2, head);

        if (is_given && dimensions != width) {
            moe_config_fail(config, "rotary_dim", "%u, but partial_rotary_factor %g of %u",
                            dimensions, given, head);
        }
        width = dimensions;
    }
    if (width < 2 || width % 2 != 0) {
        moe_config_fail(config, key, "%u of %u dimensions cannot rotate in pairs", width, head);
        width = 2;
    }
    return width;
}


void moe_rope_read(moe_rope_t *rope, moe_config_t *config, uint32_t head, double share)
{
    moe_config_t scaling;
    int is_new = moe_config_get(config, "rope_parameters") != NULL;

    *rope = (moe_rope_t) { .theta = moe_config_number_or(config, "rope_theta", 10000, 2, 1e12) };
    if (is_new && moe_config_get(config, "rope_scaling") != NULL) {
        moe_config_fail(config, "rope_scaling", "given twice, see rope_parameters");
    }
    scaling = moe_config_object(config, is_new ? "rope_parameters" : "rope_scaling");
    rope->theta = moe_config_number_or(&scaling, "rope_theta", rope->theta, 2, 1e12);
    rope->width = read_width(config, &scaling, head, share);
    scaling.failed |= config->failed;
    read_scaling(rope, &scaling, config);
    config->failed |= scaling.failed;
}


/* The dimension whose wavelength makes `rotations` turns within the original context. */
static double correction_dimension(const moe_rope_t *rope, double rotations)
{
    return rope->width * log(rope->original_context / (2 * M_PI * rotations))
           / (2 * log(rope->theta));
}


/* Where YaRN's ramp from kept to divided frequencies begins and ends. */
static void correction_range(const moe_rope_t *rope, double *low, double *high)
{
    *low = correction_dimension(rope, rope->beta_fast);
    *high = correction_dimension(rope, rope->beta_slow);
    if (rope->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0);
    *high = fmin(*high, rope->width - 1.0);
    if (*low == *high) {
        *high += 0.001;
    }
}


/* By how many turns it makes within the original context: few, and the frequency is divided; many,
 * and it is kept. */
static double scale_llama3(const moe_rope_t *rope, double frequency)
{
    const double turns = rope->original_context * frequency / (2 * M_PI);
    const double smooth = (turns - rope->low_factor) / (rope->high_factor - rope->low_factor);
    const double kept = fmin(fmax(smooth, 0), 1);

    return (1 - kept) * frequency / rope->factor + kept * frequency;
}


void moe_rope_frequencies(const moe_rope_t *rope, int is_long, float *frequencies)
{
    const json_t *factors = is_long ? rope->long_factors : rope->short_factors;
    double theta = rope->theta, low = 0, high = 1, ramp;

    if (rope->type == MOE_ROPE_ALPHA) {
        theta *= pow(rope->alpha, rope->width / (rope->width - 2.0));
    } else if (rope->type == MOE_ROPE_YARN) {
        correction_range(rope, &low, &high);
    }
    for (uint32_t j = 0; j < rope->width / 2; j++) {
        double frequency = pow(theta, -2.0 * j / rope->width);

        switch (rope->type) {
        case MOE_ROPE_DEFAULT:
        case MOE_ROPE_ALPHA:
            break;
        case MOE_ROPE_LINEAR:
            frequency /= rope->factor;
            break;
        case MOE_ROPE_LLAMA3:
            frequency = scale_llama3(rope, frequency);
            break;
        case MOE_ROPE_YARN:
            ramp = fmin(fmax((j - low) / (high - low), 0), 1);
            frequency = frequency / rope->factor * ramp + frequency * (1 - ramp);
            break;
        case MOE_ROPE_LONGROPE:
            frequency /= json_number_value(json_array_get(factors, j));
            break;
        }
        frequencies[j] = (float) frequency;
    }
}


/* YaRN's attention temperature as DeepSeek parametrises it. */
static double temperature(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}


static double longrope_magnitude(const moe_rope_t *rope, int is_long)
{
    const double given = is_long ? rope->long_mscale : rope->short_mscale;

    if (given > 0) {
        return given;
    }
    if (rope->attention_factor > 0) {
        return rope->attention_factor;
    }
    return rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(rope->original_context));
}


double moe_rope_magnitude(const moe_rope_t *rope, int is_long)
{
    if (rope->type == MOE_ROPE_LONGROPE) {
        return longrope_magnitude(rope, is_long);
    }
    if (rope->type != MOE_ROPE_YARN) {
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

    if (rope->type != MOE_ROPE_YARN || rope->mscale_all_dim == 0) {
        return 1;
    }
    t = temperature(rope->factor, rope->mscale_all_dim);
    return t * t;
}
