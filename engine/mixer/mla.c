/*
 * Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), always in the absorbed form.
 *
 * A token leaves one latent row and one rotated key behind, shared by all heads.  The key
 * projection of each head is moved to the query side and its value projection behind the average,
 * so that attention works on the cache rows as they are, for prompt and generated tokens alike.
 *
 *     q = q_b norm(q_a x)             per head [nope | rope]
 *     c, k = kv_a x                   cache row = [norm(c) | rotate(k)]
 *     query = [key^T q_nope | rotate(q_rope)]
 *     y = output value attend(query, cache)
 *
 * The ranks of a tensor-parallel group divide the heads and the rows of the output projection;
 * every one computes q_a and kv_a and keeps the whole cache.
 */

#include "engine/mixer/mixer.h"

#define ARRAYS 7u

typedef struct {
    const moe_mla_t *mla;
    moe_device_t *device;
    uint32_t hidden;
    moe_split_t heads, rows;            /* of which this rank has some; rows: of output */
    moe_matrix_t *q_a, *q_b;            /* q_a NULL: no query compression */
    moe_matrix_t *kv_a, *output;
    moe_matrix_t *key, *value;          /* stacks of heads: [kv_lora, nope], [value, kv_lora] */
    const float *q_norm, *kv_norm;
    const float *rope;
    moe_attention_t attention;
} mla_t;

/* Scratch memory, all [n, ...]; heads: this rank's. */
typedef struct {
    float *q_latent;                    /* q_lora */
    float *q;                           /* heads * (nope + rope) */
    float *kv;                          /* kv_lora + rope */
    float *query;                       /* heads * (kv_lora + rope) */
    float *average;                     /* heads * kv_lora */
    float *values;                      /* all heads * value */
    float *parts;                       /* to gather values and y in */
} scratch_t;


static uint32_t mla_most_parts(const moe_layer_t *layer)
{
    return layer->mla.heads;
}


static uint64_t mla_whole_bytes(const moe_layer_t *layer)
{
    const moe_mla_t *m = &layer->mla;

    return (m->q_lora ? moe_weight_bytes(&m->q_a) : 0) + moe_weight_bytes(&m->kv_a);
}


static uint32_t mla_cache_numbers(const moe_layer_t *layer)
{
    return layer->mla.kv_lora + layer->mla.rope;
}


static moe_split_t split_heads(const moe_mla_t *m, const moe_world_t *world)
{
    return moe_split_of(world, m->heads, m->value);
}


/* Floats of one row of each scratch array. */
static void scratch_rows(const moe_mla_t *m, const moe_split_t *split, const moe_split_t *output,
                         size_t rows[ARRAYS])
{
    const size_t heads = split->count;
    const size_t of_values = moe_split_scratch(split, 1), of_output = moe_split_scratch(output, 1);

    rows[0] = m->q_lora;
    rows[1] = heads * (m->nope + m->rope);
    rows[2] = m->kv_lora + m->rope;
    rows[3] = heads * (m->kv_lora + m->rope);
    rows[4] = heads * m->kv_lora;
    rows[5] = (size_t) m->heads * m->value;
    rows[6] = of_values > of_output ? of_values : of_output;
}


static scratch_t lay_out(const mla_t *self, size_t n, float *memory)
{
    scratch_t scratch;
    float **const arrays[ARRAYS] = {
        &scratch.q_latent, &scratch.q, &scratch.kv, &scratch.query, &scratch.average,
        &scratch.values, &scratch.parts
    };
    size_t rows[ARRAYS];

    scratch_rows(self->mla, &self->heads, &self->rows, rows);
    moe_mixer_lay_out(rows, ARRAYS, n, memory, arrays);
    return scratch;
}


static size_t mla_scratch_floats(const moe_layer_t *layer, const moe_mixer_env_t *env)
{
    const moe_split_t heads = split_heads(&layer->mla, env->world);
    const moe_split_t output = moe_split_of(env->world, env->hidden, 1);
    size_t rows[ARRAYS];

    scratch_rows(&layer->mla, &heads, &output, rows);
    return moe_mixer_scratch(rows, ARRAYS, env->batch_rows);
}


/* Key and value projections of this rank's heads, in whichever form the checkpoint has them. */
static int load_keys_and_values(mla_t *self, moe_loader_t *loader, moe_error_t *error)
{
    const moe_mla_t *m = self->mla;
    const int apart = m->k_b.tensor != NULL;
    const uint32_t step = m->nope + m->value, heads = self->heads.count, first = self->heads.first;

    if (apart) {
        self->key = moe_load_slices(loader, &m->k_b, heads, first * m->kv_lora, m->kv_lora,
                                    m->kv_lora, 0, error);
        self->value = self->key == NULL ? NULL
                      : moe_load_slices(loader, &m->v_b, heads, first * m->value, m->value,
                                        m->value, 0, error);
    } else {
        self->key = moe_load_slices(loader, &m->kv_b, heads, first * step, step, m->nope, 1, error);
        self->value = self->key == NULL ? NULL
                      : moe_load_slices(loader, &m->kv_b, heads, first * step + m->nope, step,
                                        m->value, 0, error);
    }
    if (self->value == NULL) {
        return -1;
    }
    moe_load_done(loader, apart ? &m->k_b : &m->kv_b);
    if (apart) {
        moe_load_done(loader, &m->v_b);
    }
    return 0;
}


static int load_weights(mla_t *self, const moe_mixer_env_t *env, moe_error_t *error)
{
    const moe_mla_t *m = self->mla;
    const moe_split_t queries = moe_split_of(env->world, m->heads, m->nope + m->rope);
    moe_loader_t *loader = env->loader;

    if ((m->q_lora
         && ((self->q_a = moe_load_matrix(loader, &m->q_a, error)) == NULL
             || (self->q_norm = moe_load_vector(loader, &m->q_norm, error)) == NULL))
        || (self->q_b = moe_split_load(&queries, loader, &m->q_b, error)) == NULL
        || (self->kv_a = moe_load_matrix(loader, &m->kv_a, error)) == NULL
        || (self->kv_norm = moe_load_vector(loader, &m->kv_norm, error)) == NULL
        || load_keys_and_values(self, loader, error) != 0)
    {
        return -1;
    }
    self->output = moe_split_load(&self->rows, loader, &m->output, error);
    return self->output ? 0 : -1;
}


static void *mla_create(const moe_layer_t *layer, const moe_mixer_env_t *env, moe_error_t *error)
{
    const moe_mla_t *m = &layer->mla;
    moe_device_t *device = env->loader->device;
    mla_t *self = device->ops->allocate(device, sizeof(*self), error);

    if (self == NULL) {
        return NULL;
    }
    self->mla = m;
    self->device = device;
    self->hidden = env->hidden;
    self->heads = split_heads(m, env->world);
    self->rows = moe_split_of(env->world, env->hidden, 1);
    self->attention = (moe_attention_t) {
        .heads = self->heads.count, .latent = m->kv_lora, .rope = m->rope, .scale = m->scale
    };
    self->rope = moe_rope_table(env->ropes, device, &m->rotary, env->context, error);
    if (self->rope == NULL || load_weights(self, env, error) != 0
        || device->ops->reserve_attention(device, &self->attention, env->context, error) != 0)
    {
        return NULL;
    }
    return self;
}


/* The projections of x: q and kv.  Products that do not wait for each other run together. */
static void project(const mla_t *self, uint32_t n, const float *x, const scratch_t *s)
{
    const moe_mla_t *m = self->mla;
    const moe_device_ops_t *ops = self->device->ops;
    const size_t q_size = (size_t) self->heads.count * (m->nope + m->rope);
    const size_t kv_size = m->kv_lora + m->rope;
    const moe_linear_t down[2] = {
        {self->kv_a, x, self->hidden, 0, s->kv, kv_size, 0},
        self->q_a ? (moe_linear_t) {self->q_a, x, self->hidden, 0, s->q_latent, m->q_lora, 0}
                  : (moe_linear_t) {self->q_b, x, self->hidden, 0, s->q, q_size, 0},
    };

    ops->linear(self->device, down, 2, n);
    if (self->q_a) {
        const moe_linear_t up = {self->q_b, s->q_latent, m->q_lora, 0, s->q, q_size, 0};

        ops->rms_norm(self->device, s->q_latent, m->q_lora, self->q_norm, m->q_norm_eps, n,
                      m->q_lora, s->q_latent, m->q_lora);
        ops->linear(self->device, &up, 1, n);
    }
}


/* y = output values, of all heads. */
static int project_out(const mla_t *self, uint32_t n, const scratch_t *s, float *y,
                       moe_error_t *error)
{
    const size_t size = (size_t) self->heads.units * self->heads.unit;
    const moe_linear_t output = {
        self->output, s->values, size, 0, moe_split_own(&self->rows, n, s->parts, y),
        moe_split_stride(&self->rows), 0
    };

    if (moe_split_gather(&self->heads, self->device, n, s->parts, s->values, error) != 0) {
        return -1;
    }
    self->device->ops->linear(self->device, &output, 1, n);
    return moe_split_gather(&self->rows, self->device, n, s->parts, y, error);
}


static int mla_run(void *state, const moe_rows_t *rows, const moe_kv_t *cache, const float *x,
                   float *y, float *memory, moe_error_t *error)
{
    const mla_t *self = state;
    const moe_mla_t *m = self->mla;
    moe_device_t *device = self->device;
    const moe_device_ops_t *ops = device->ops;
    const size_t head = m->nope + m->rope, width = m->kv_lora + m->rope;
    const size_t heads = self->heads.count;
    const scratch_t s = lay_out(self, rows->n, memory);

    project(self, rows->n, x, &s);

    ops->rms_norm(device, s.kv, width, self->kv_norm, m->kv_norm_eps, rows->n, m->kv_lora, s.kv,
                  width);
    ops->rope(device, rows, self->rope, m->rotary.interleaved, 1, m->rope, m->rope,
              s.kv + m->kv_lora, width, 0, s.kv + m->kv_lora, width, 0);
    ops->store(device, rows, s.kv, width, 1, (uint32_t) width, cache);

    const moe_linear_t absorb = {self->key, s.q, heads * head, head, s.query, heads * width, width};
    ops->linear(device, &absorb, 1, rows->n);
    ops->rope(device, rows, self->rope, m->rotary.interleaved, (uint32_t) heads, m->rope, m->rope,
              s.q + m->nope, heads * head, head, s.query + m->kv_lora, heads * width, width);

    ops->attend(device, &self->attention, rows, cache, s.query, s.average);

    const moe_linear_t value = {self->value, s.average, heads * m->kv_lora, m->kv_lora,
                                moe_split_own(&self->heads, rows->n, s.parts, s.values),
                                moe_split_stride(&self->heads), m->value};
    ops->linear(device, &value, 1, rows->n);
    return project_out(self, rows->n, &s, y, error);
}


const moe_mixer_t moe_mixer_mla = {
    .kind = MOE_MIXER_MLA,
    .most_parts = mla_most_parts,
    .whole_bytes = mla_whole_bytes,
    .cache_numbers = mla_cache_numbers,
    .scratch_floats = mla_scratch_floats,
    .create = mla_create,
    .run = mla_run,
};
