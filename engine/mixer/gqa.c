/*
 * Attention whose query heads share key and value heads in groups (GQA, arXiv 2305.13245), of which
 * multi-head attention is the case of groups of one.
 *
 * A token leaves the values and rotated keys of all kv heads behind: a cache row has one slice per
 * kv head, [value | key], so that what a group of heads reads lies together.
 *
 *     q = q x, k = k x, v = v x       q and k normalised where the model does
 *     cache row = [v | rotate(k)] of each kv head
 *     y = output attend(rotate(q), cache)
 *
 * The cache has rows of all tokens, also where a window lets a layer see the last ones only.
 *
 * The ranks of a tensor-parallel group divide the kv heads with their query heads, and the rows of
 * the output projection; every one computes q, k and v (a norm may need all of them) and keeps the
 * whole cache.
 */

#include "engine/mixer/mixer.h"

#define ARRAYS 6u

typedef struct {
    const moe_gqa_t *gqa;
    moe_device_t *device;
    uint32_t hidden;
    moe_split_t groups, rows;           /* of which this rank has some; rows: of output */
    moe_matrix_t *q, *k, *output;
    moe_matrix_t *v;                    /* stack of kv heads */
    const float *q_norm, *k_norm;       /* NULL: no norm */
    const float *sinks;                 /* of all heads; NULL: none */
    const float *rope;
    moe_attention_t attention;
} gqa_t;

/* Scratch memory, all [n, ...]. */
typedef struct {
    float *q;                           /* heads * head */
    float *k;                           /* kv_heads * head */
    float *kv;                          /* kv_heads * [value | key] */
    float *query;                       /* this rank's heads * head */
    float *values;                      /* heads * head */
    float *parts;                       /* to gather values and y in */
} scratch_t;


static uint32_t gqa_most_parts(const moe_layer_t *layer)
{
    return layer->gqa.kv_heads;
}


static uint64_t gqa_whole_bytes(const moe_layer_t *layer)
{
    const moe_gqa_t *g = &layer->gqa;

    return moe_weight_bytes(&g->q) + moe_weight_bytes(&g->k) + moe_weight_bytes(&g->v);
}


static uint32_t gqa_cache_numbers(const moe_layer_t *layer)
{
    return layer->gqa.kv_heads * (uint32_t) moe_kv_slice_size((size_t) 2 * layer->gqa.head);
}


/* A unit is what one kv head's query heads give. */
static moe_split_t split_groups(const moe_gqa_t *g, const moe_world_t *world)
{
    return moe_split_of(world, g->kv_heads, g->heads / g->kv_heads * g->head);
}


/* Floats of one row of each scratch array. */
static void scratch_rows(const moe_gqa_t *g, const moe_split_t *groups, const moe_split_t *output,
                         size_t rows[ARRAYS])
{
    const size_t of_values = moe_split_scratch(groups, 1), of_output = moe_split_scratch(output, 1);

    rows[0] = (size_t) g->heads * g->head;
    rows[1] = (size_t) g->kv_heads * g->head;
    rows[2] = 2 * rows[1];
    rows[3] = (size_t) groups->count * groups->unit;
    rows[4] = rows[0];
    rows[5] = of_values > of_output ? of_values : of_output;
}


static scratch_t lay_out(const gqa_t *self, size_t n, float *memory)
{
    scratch_t scratch;
    float **const arrays[ARRAYS] = {
        &scratch.q, &scratch.k, &scratch.kv, &scratch.query, &scratch.values, &scratch.parts
    };
    size_t rows[ARRAYS];

    scratch_rows(self->gqa, &self->groups, &self->rows, rows);
    moe_mixer_lay_out(rows, ARRAYS, n, memory, arrays);
    return scratch;
}


static size_t gqa_scratch_floats(const moe_layer_t *layer, const moe_mixer_env_t *env)
{
    const moe_split_t groups = split_groups(&layer->gqa, env->world);
    const moe_split_t output = moe_split_of(env->world, env->hidden, 1);
    size_t rows[ARRAYS];

    scratch_rows(&layer->gqa, &groups, &output, rows);
    return moe_mixer_scratch(rows, ARRAYS, env->batch_rows);
}


static int load_weights(gqa_t *self, moe_loader_t *loader, moe_error_t *error)
{
    const moe_gqa_t *g = self->gqa;

    if ((self->q = moe_load_matrix(loader, &g->q, error)) == NULL
        || (self->k = moe_load_matrix(loader, &g->k, error)) == NULL
        || (self->v = moe_load_slices(loader, &g->v, g->kv_heads, 0, g->head, g->head, 0,
                                      error)) == NULL)
    {
        return -1;
    }
    moe_load_done(loader, &g->v);
    if (g->norm != MOE_QK_NORM_NONE
        && ((self->q_norm = moe_load_vector(loader, &g->q_norm, error)) == NULL
            || (self->k_norm = moe_load_vector(loader, &g->k_norm, error)) == NULL))
    {
        return -1;
    }
    if (g->sinks.size > 0 && (self->sinks = moe_load_vector(loader, &g->sinks, error)) == NULL) {
        return -1;
    }
    self->output = moe_split_load(&self->rows, loader, &g->output, error);
    return self->output ? 0 : -1;
}


static void *gqa_create(const moe_layer_t *layer, const moe_mixer_env_t *env, moe_error_t *error)
{
    const moe_gqa_t *g = &layer->gqa;
    moe_device_t *device = env->loader->device;
    gqa_t *self = device->ops->allocate(device, sizeof(*self), error);
    const uint32_t shared = g->heads / g->kv_heads;     /* query heads of a kv head */

    if (self == NULL) {
        return NULL;
    }
    self->gqa = g;
    self->device = device;
    self->hidden = env->hidden;
    self->groups = split_groups(g, env->world);
    self->rows = moe_split_of(env->world, env->hidden, 1);
    self->rope = moe_rope_table(env->ropes, device, &g->rotary, env->context, error);
    if (self->rope == NULL || load_weights(self, env->loader, error) != 0) {
        return NULL;
    }
    self->attention = (moe_attention_t) {
        .heads = self->groups.count * shared, .latent = g->head, .rope = g->head,
        .scale = g->scale, .groups = self->groups.count, .apart = 1, .window = g->window,
        .sinks = self->sinks ? self->sinks + self->groups.first * shared : NULL
    };
    if (device->ops->reserve_attention(device, &self->attention, env->context, error) != 0)
    {
        return NULL;
    }
    return self;
}


/* x: [n, heads * head] */
static void normalise(const gqa_t *self, const float *weight, uint32_t n, uint32_t heads, float *x)
{
    const moe_gqa_t *g = self->gqa;
    const uint32_t each = g->norm == MOE_QK_NORM_HEAD ? heads : 1;
    const uint32_t size = heads / each * g->head;

    if (g->norm == MOE_QK_NORM_HEAD || g->norm == MOE_QK_NORM_WHOLE) {
        self->device->ops->rms_norm(self->device, x, size, weight, g->norm_eps, n * each, size, x,
                                    size);
    }
}


/* x: n heads, `stride` apart, that are rotated. */
static void normalise_rotated(const gqa_t *self, const float *weight, uint32_t n, float *x,
                              size_t stride)
{
    if (self->gqa->norm == MOE_QK_NORM_ROTATED) {
        self->device->ops->rms_norm(self->device, x, stride, weight, self->gqa->norm_eps, n,
                                    self->gqa->head, x, stride);
    }
}


/* q and k of x, normalised; values at their places in kv. */
static void project(const gqa_t *self, uint32_t n, const float *x, const scratch_t *s)
{
    const moe_gqa_t *g = self->gqa;
    const size_t q_size = (size_t) g->heads * g->head, k_size = (size_t) g->kv_heads * g->head;
    const moe_linear_t jobs[3] = {
        {self->q, x, self->hidden, 0, s->q, q_size, 0},
        {self->k, x, self->hidden, 0, s->k, k_size, 0},
        {self->v, x, self->hidden, 0, s->kv, 2 * k_size, (size_t) 2 * g->head},
    };

    self->device->ops->linear(self->device, jobs, 3, n);
    normalise(self, self->q_norm, n, g->heads, s->q);
    normalise(self, self->k_norm, n, g->kv_heads, s->k);
}


/* Averages of this rank's heads, then of all, into s->values. */
static int attend(const gqa_t *self, const moe_rows_t *rows, const moe_kv_t *cache,
                  const scratch_t *s, moe_error_t *error)
{
    const moe_device_ops_t *ops = self->device->ops;
    const size_t size = (size_t) self->groups.count * self->groups.unit;
    const size_t stride = moe_split_stride(&self->groups);
    float *own = moe_split_own(&self->groups, rows->n, s->parts, s->values);
    moe_kv_t slices = *cache;

    slices.rows = (char *) cache->rows
                  + self->groups.first * moe_kv_slice_bytes(cache->type,
                                                            (size_t) 2 * self->gqa->head);
    if (stride == size) {
        ops->attend(self->device, &self->attention, rows, &slices, s->query, own);
    } else {
        ops->attend(self->device, &self->attention, rows, &slices, s->query, s->q);
        ops->copy(self->device, s->q, size, rows->n, (uint32_t) size, own, stride);
    }
    return moe_split_gather(&self->groups, self->device, rows->n, s->parts, s->values, error);
}


static int project_out(const gqa_t *self, uint32_t n, const scratch_t *s, float *y,
                       moe_error_t *error)
{
    const size_t size = (size_t) self->groups.units * self->groups.unit;
    const moe_linear_t output = {
        self->output, s->values, size, 0, moe_split_own(&self->rows, n, s->parts, y),
        moe_split_stride(&self->rows), 0
    };

    self->device->ops->linear(self->device, &output, 1, n);
    return moe_split_gather(&self->rows, self->device, n, s->parts, y, error);
}


static int gqa_run(void *state, const moe_rows_t *rows, const moe_kv_t *cache, const float *x,
                   float *y, float *memory, moe_error_t *error)
{
    const gqa_t *self = state;
    const moe_gqa_t *g = self->gqa;
    const moe_device_ops_t *ops = self->device->ops;
    const size_t head = g->head, q_size = g->heads * head, kv_size = 2 * g->kv_heads * head;
    const size_t first = (size_t) self->groups.first * self->groups.unit;
    const scratch_t s = lay_out(self, rows->n, memory);

    project(self, rows->n, x, &s);
    ops->rope(self->device, rows, self->rope, g->rotary.interleaved, g->kv_heads, g->rotary.size,
              g->head, s.k, kv_size / 2, head, s.kv + head, kv_size, 2 * head);
    normalise_rotated(self, self->k_norm, rows->n * g->kv_heads, s.kv + head, 2 * head);
    ops->store(self->device, rows, s.kv, kv_size, g->kv_heads, 2 * g->head, cache);
    ops->rope(self->device, rows, self->rope, g->rotary.interleaved, self->attention.heads,
              g->rotary.size, g->head, s.q + first, q_size, head, s.query,
              self->attention.heads * head, head);
    normalise_rotated(self, self->q_norm, rows->n * self->attention.heads, s.query, head);
    return attend(self, rows, cache, &s, error) != 0
           || project_out(self, rows->n, &s, y, error) != 0 ? -1 : 0;
}


const moe_mixer_t moe_mixer_gqa = {
    .kind = MOE_MIXER_GQA,
    .most_parts = gqa_most_parts,
    .whole_bytes = gqa_whole_bytes,
    .cache_numbers = gqa_cache_numbers,
    .scratch_floats = gqa_scratch_floats,
    .create = gqa_create,
    .run = gqa_run,
};
