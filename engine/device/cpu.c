/*
 * The CPU back end: cuts each operation into items of some microseconds and runs them on the pool
 * with the kernels of the chosen instruction set.
 */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/cpu_attention.h"
#include "engine/device/cpu_dispatch.h"
#include "engine/device/cpu_memory.h"
#include "engine/device/cpu_pack.h"
#include "engine/device/device.h"
#include "kernels/cpu/kernels.h"

#define ITEM_FLOATS 8192u           /* of simple row operations: about 2 microseconds */
#define ITEM_PRODUCTS (1u << 17)    /* multiply-adds handed out at a time: about 10 microseconds */
#define ITEM_PANELS 4u              /* of a product: a multiple of every tile */
#define ITEM_ROWS 96u               /* of a product: a multiple of every tile */
#define MAX_JOBS 4u                 /* of one call for products */

typedef struct {
    moe_product_t product;
    size_t first_item, row_items;
} task_t;

typedef struct {
    moe_device_t device;
    const moe_kernels_t *kernels;
    moe_pool_t *pool;
    moe_arena_t arena;

    task_t *tasks;
    size_t max_tasks;

    moe_cpu_attention_t attention;
} cpu_t;


static cpu_t *cpu(moe_device_t *device)
{
    return (cpu_t *) device;
}


static size_t row_grain(size_t floats)
{
    return floats >= ITEM_FLOATS ? 1 : ITEM_FLOATS / (floats > 0 ? floats : 1);
}


/* Of n rows: as many as there are, where the device knows. */
static uint32_t live_rows(uint32_t n, const uint32_t *count)
{
    return count != NULL && *count < n ? *count : n;
}


static void cpu_free(moe_device_t *device)
{
    moe_arena_free(&cpu(device)->arena);
    free(device);
}


static const char *cpu_isa(const moe_device_t *device)
{
    return ((const cpu_t *) device)->kernels->name;
}


static void *cpu_allocate(moe_device_t *device, size_t size, moe_error_t *error)
{
    return moe_arena_allocate(&cpu(device)->arena, size, error);
}


/* Room for one task per matrix of `count`, in as many jobs as one call takes, and an end mark. */
static int reserve_tasks(cpu_t *self, uint32_t count, moe_error_t *error)
{
    const size_t needed = (size_t) count * MAX_JOBS + 1;

    if (needed > self->max_tasks) {
        self->tasks = moe_arena_allocate(&self->arena, needed * sizeof(task_t), error);
        self->max_tasks = self->tasks ? needed : 0;
    }
    return self->tasks ? 0 : -1;
}


static int has_bias(const moe_source_t *sources, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (sources[i].bias) {
            return 1;
        }
    }
    return 0;
}


static moe_matrix_t *cpu_pack(moe_device_t *device, const moe_source_t *sources, uint32_t count,
                              uint32_t rows, uint32_t columns, moe_error_t *error)
{
    cpu_t *self = cpu(device);
    moe_matrix_t *matrix = moe_arena_allocate(&self->arena, sizeof(*matrix), error);

    if (matrix == NULL || reserve_tasks(self, count, error) != 0) {
        return NULL;
    }
    matrix->count = count;
    matrix->rows = rows;
    matrix->columns = columns;
    matrix->element = moe_pack_element(sources, count);
    matrix->panels = ((size_t) rows + MOE_PANEL - 1) / MOE_PANEL;
    matrix->stride = matrix->panels * MOE_PANEL * columns * moe_pack_element_size(matrix->element);
    if (has_bias(sources, count)) {
        matrix->bias = matrix->stride;
        matrix->stride += matrix->panels * MOE_PANEL * sizeof(float);
    }
    matrix->data = moe_arena_allocate(&self->arena, matrix->stride * count, error);
    if (matrix->data == NULL) {
        return NULL;
    }
    moe_pack(self->pool, matrix, sources);
    return matrix;
}


static moe_matrix_t *cpu_reserve(moe_device_t *device, const moe_matrix_t *matrix,
                                 moe_error_t *error)
{
    moe_matrix_t *copy = cpu_allocate(device, sizeof(*copy), error);

    if (copy == NULL) {
        return NULL;
    }
    *copy = *matrix;
    copy->data = cpu_allocate(device, copy->stride * copy->count, error);
    return copy->data ? copy : NULL;
}


static int cpu_alike(const moe_matrix_t *a, const moe_matrix_t *b)
{
    return a->count == b->count && a->rows == b->rows && a->columns == b->columns
           && a->element == b->element && a->bias == b->bias;
}


static void *cpu_packed(const moe_matrix_t *matrix, size_t *size)
{
    *size = matrix->stride;
    return matrix->data;
}


static void cpu_upload(moe_device_t *device, void *memory, const void *host, size_t size)
{
    if (size > 0) {
        memcpy(memory, host, size);
    }
}


static const void *cpu_read(moe_device_t *device, const void *memory, size_t size)
{
    return memory;
}


/* Operations on rows share one description: each takes what it needs. */
typedef struct {
    const cpu_t *self;
    const moe_rows_t *rows;
    const moe_matrix_t *matrix;
    const moe_kv_t *cache;
    const moe_swiglu_t *form;
    const float *x, *weight, *other;
    size_t x_stride, x_step, y_stride, y_step;
    const uint32_t *index;
    float eps, scale;
    int interleaved;
    uint32_t size, width, copies, heads;
    float *y;
} row_job_t;


static void embed_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;
    const moe_matrix_t *m = j->matrix;

    for (size_t i = first; i < last; i++) {
        float *y = j->y + i * m->columns;

        j->self->kernels->embed(m->data, m->element, m->columns, j->rows->tokens[i], y);
        for (size_t c = 0; c < m->columns && j->scale != 1; c++) {
            y[c] *= j->scale;
        }
    }
}


static void cpu_embed(moe_device_t *device, const moe_matrix_t *matrix, const moe_rows_t *rows,
                      float scale, float *y)
{
    row_job_t job = {.self = cpu(device), .matrix = matrix, .rows = rows, .scale = scale, .y = y};

    moe_pool_run(cpu(device)->pool, embed_rows, &job, rows->n, row_grain(matrix->columns));
}


static void gather_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        memcpy(j->y + i * j->size, j->x + (size_t) j->index[i] * j->size,
               j->size * sizeof(float));
    }
}


static void cpu_gather(moe_device_t *device, const float *x, const uint32_t *index, uint32_t n,
                       uint32_t size, float *y)
{
    row_job_t job = {.x = x, .index = index, .size = size, .y = y};

    moe_pool_run(cpu(device)->pool, gather_rows, &job, n, row_grain(size));
}


static void copy_floats(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        memcpy(j->y + i * j->y_stride, j->x + i * j->x_stride, j->size * sizeof(float));
    }
}


static void cpu_copy(moe_device_t *device, const float *x, size_t x_stride, uint32_t n,
                     uint32_t size, float *y, size_t y_stride)
{
    row_job_t job = {.x = x, .x_stride = x_stride, .size = size, .y = y, .y_stride = y_stride};

    moe_pool_run(cpu(device)->pool, copy_floats, &job, n, row_grain(size));
}


static void norm_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        j->self->kernels->rms_norm(j->x + i * j->x_stride, j->weight, j->eps, j->size,
                                   j->y + i * j->y_stride);
    }
}


static void cpu_rms_norm(moe_device_t *device, const float *x, size_t x_stride,
                         const float *weight, float eps, uint32_t n, uint32_t size, float *y,
                         size_t y_stride)
{
    row_job_t job = {.self = cpu(device), .x = x, .x_stride = x_stride, .weight = weight,
                     .eps = eps, .size = size, .y = y, .y_stride = y_stride};

    moe_pool_run(cpu(device)->pool, norm_rows, &job, n, row_grain(size));
}


static void swiglu_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        const size_t at = i * j->size;

        j->self->kernels->swiglu(j->form, j->x + at, j->other + at, j->size, j->y + at);
    }
}


static void cpu_swiglu(moe_device_t *device, const moe_swiglu_t *form, const float *gate,
                       const float *up, uint32_t n, const uint32_t *count, uint32_t size, float *y)
{
    row_job_t job = {.self = cpu(device), .form = form, .x = gate, .other = up, .size = size,
                     .y = y};

    moe_pool_run(cpu(device)->pool, swiglu_rows, &job, live_rows(n, count),
                 row_grain((size_t) size * 4));
}


static void gate_each_row(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        j->self->kernels->gate_row(j->x[i], j->size, j->y + i * j->size);
    }
}


static void cpu_gate_rows(moe_device_t *device, const float *scores, uint32_t n, uint32_t size,
                          float *y)
{
    row_job_t job = {.self = cpu(device), .x = scores, .size = size, .y = y};

    moe_pool_run(cpu(device)->pool, gate_each_row, &job, n, row_grain(size));
}


static void add_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    j->self->kernels->add(j->x + first * j->size, j->scale, (last - first) * j->size,
                          j->y + first * j->size);
}


static void cpu_add(moe_device_t *device, const float *x, float scale, uint32_t n, uint32_t size,
                    float *y)
{
    row_job_t job = {.self = cpu(device), .x = x, .scale = scale, .size = size, .y = y};

    moe_pool_run(cpu(device)->pool, add_rows, &job, n, row_grain(size));
}


static void rope_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        const float *table = j->weight + (size_t) j->rows->positions[i] * j->size;

        for (uint32_t h = 0; h < j->heads; h++) {
            const float *x = j->x + i * j->x_stride + h * j->x_step;
            float *y = j->y + i * j->y_stride + h * j->y_step;

            j->self->kernels->rope(x, table, j->interleaved, j->size, y);
            if (j->width > j->size && x != y) {
                memcpy(y + j->size, x + j->size, (j->width - j->size) * sizeof(*y));
            }
        }
    }
}


static void cpu_rope(moe_device_t *device, const moe_rows_t *rows, const float *table,
                     int interleaved, uint32_t heads, uint32_t size, uint32_t width,
                     const float *x, size_t x_stride, size_t x_step, float *y, size_t y_stride,
                     size_t y_step)
{
    row_job_t job = {.self = cpu(device), .rows = rows, .weight = table, .heads = heads,
                     .interleaved = interleaved, .size = size, .width = width, .x = x,
                     .x_stride = x_stride, .x_step = x_step, .y = y, .y_stride = y_stride,
                     .y_step = y_step};

    moe_pool_run(cpu(device)->pool, rope_rows, &job, rows->n,
                 row_grain((size_t) heads * width * 4));
}


static void store_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;
    const moe_rows_t *rows = j->rows;
    const moe_kv_t *c = j->cache;

    for (size_t i = first; i < last; i++) {
        const uint32_t position = rows->positions[i];
        const uint32_t *table = rows->tables + (size_t) rows->sequences[i] * rows->table_stride;
        const size_t block = table[position / c->block_tokens];

        char *row = (char *) c->rows + block * c->block_stride
                    + position % c->block_tokens * c->row_stride;

        for (size_t s = 0; s < j->heads; s++) {
            j->self->kernels->store_row(c->type, j->x + i * j->x_stride + s * j->size, j->size,
                                        row + s * moe_kv_slice_bytes(c->type, j->size));
        }
    }
}


static void cpu_store(moe_device_t *device, const moe_rows_t *rows, const float *x,
                      size_t x_stride, uint32_t slices, uint32_t size, const moe_kv_t *cache)
{
    row_job_t job = {.self = cpu(device), .rows = rows, .x = x, .x_stride = x_stride,
                     .heads = slices, .size = size, .cache = cache};

    moe_pool_run(cpu(device)->pool, store_rows, &job, rows->n, row_grain((size_t) slices * size));
}


static void cpu_copy_rows(moe_device_t *device, const moe_kv_t *cache, uint32_t from,
                          uint32_t to, uint32_t tokens)
{
    if (from != to) {
        char *rows = cache->rows;

        memcpy(rows + to * cache->block_stride, rows + from * cache->block_stride,
               tokens * cache->row_stride);
    }
}


typedef struct {
    const moe_kernels_t *kernels;
    const moe_conversion_t *conversion;
    size_t from_bytes, to_bytes;        /* of a row */
} convert_job_t;


static void convert_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const convert_job_t *j = context;
    const moe_conversion_t *c = j->conversion;

    for (size_t i = first; i < last; i++) {
        const void *from = (const char *) c->from
                           + (c->from_index ? c->from_index[i] : i) * j->from_bytes;
        void *to = (char *) c->to + (c->to_index ? c->to_index[i] : i) * j->to_bytes;

        if (c->from_type == c->to_type) {
            memcpy(to, from, j->to_bytes);
        } else if (c->from_type == MOE_PAYLOAD_F32) {
            j->kernels->encode_row(c->to_type, from, c->size, to);
        } else {
            j->kernels->decode_row(c->from_type, from, c->size, to);
        }
    }
}


static void cpu_convert(moe_device_t *device, const moe_conversion_t *conversion, uint32_t n,
                        const uint32_t *count)
{
    convert_job_t job = {
        .kernels = cpu(device)->kernels, .conversion = conversion,
        .from_bytes = moe_payload_row_bytes(conversion->from_type, conversion->size),
        .to_bytes = moe_payload_row_bytes(conversion->to_type, conversion->size),
    };

    moe_pool_run(cpu(device)->pool, convert_rows, &job, live_rows(n, count),
                 row_grain(conversion->size));
}


static void combine_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const row_job_t *j = context;

    for (size_t i = first; i < last; i++) {
        j->self->kernels->combine(j->x, j->index + i * j->copies, j->weight + i * j->copies,
                                  j->copies, j->other ? j->other + i * j->size : NULL, j->size,
                                  j->y + i * j->size);
    }
}


static void cpu_combine(moe_device_t *device, const float *x, const uint32_t *places,
                        const float *weights, uint32_t top_k, const float *shared, uint32_t n,
                        uint32_t size, float *y)
{
    row_job_t job = {.self = cpu(device), .x = x, .index = places, .weight = weights,
                     .copies = top_k, .other = shared, .size = size, .y = y};

    moe_pool_run(cpu(device)->pool, combine_rows, &job, n, row_grain((size_t) size * top_k));
}


/* Products */

static void run_tasks(void *context, size_t first, size_t last, unsigned thread)
{
    const cpu_t *self = context;
    const task_t *task = self->tasks;

    while (first >= task[1].first_item) {
        task++;
    }
    for (size_t i = first; i < last; i++) {
        moe_product_t p;
        size_t item, panel, row;

        while (i >= task[1].first_item) {
            task++;
        }
        item = i - task->first_item;
        panel = item / task->row_items * ITEM_PANELS;
        row = item % task->row_items * ITEM_ROWS;
        p = task->product;
        p.panels = (const char *) p.panels
                   + panel * MOE_PANEL * p.depth * moe_pack_element_size(p.element);
        p.columns = p.columns - panel * MOE_PANEL;
        p.columns = p.columns < ITEM_PANELS * MOE_PANEL ? p.columns : ITEM_PANELS * MOE_PANEL;
        p.bias = p.bias ? p.bias + panel * MOE_PANEL : NULL;
        p.rows = p.rows - row < ITEM_ROWS ? p.rows - row : ITEM_ROWS;
        p.x += row * p.x_stride;
        p.y += row * p.y_stride + panel * MOE_PANEL;
        self->kernels->product(&p);
    }
}


static void cpu_products(cpu_t *self, const moe_linear_t *jobs, uint32_t n_jobs,
                         const uint32_t *offsets, uint32_t n)
{
    size_t n_tasks = 0, items = 0, products = 0;

    for (uint32_t j = 0; j < n_jobs; j++) {
        const moe_matrix_t *m = jobs[j].matrix;

        for (uint32_t i = 0; i < m->count; i++) {
            const size_t start = offsets ? offsets[i] : 0;
            const size_t rows = offsets ? offsets[i + 1] - offsets[i] : n;
            const char *data = m->data + i * m->stride;
            task_t *task = &self->tasks[n_tasks];

            if (rows == 0) {
                continue;
            }
            n_tasks++;
            assert(n_tasks < self->max_tasks);
            task->product = (moe_product_t) {
                .panels = data, .element = m->element, .depth = m->columns, .columns = m->rows,
                .bias = m->bias ? (const float *) (const void *) (data + m->bias) : NULL,
                .rows = rows,
                .x = jobs[j].x + start * jobs[j].x_stride + i * jobs[j].x_step,
                .x_stride = jobs[j].x_stride,
                .y = jobs[j].y + start * jobs[j].y_stride + i * jobs[j].y_step,
                .y_stride = jobs[j].y_stride,
            };
            task->first_item = items;
            task->row_items = (rows + ITEM_ROWS - 1) / ITEM_ROWS;
            items += task->row_items * ((m->panels + ITEM_PANELS - 1) / ITEM_PANELS);
            products += rows * m->rows * m->columns;
        }
    }
    if (items > 0) {
        self->tasks[n_tasks].first_item = items;
        moe_pool_run(self->pool, run_tasks, self, items,
                     ITEM_PRODUCTS / (products / items + 1) + 1);
    }
}


static void cpu_linear(moe_device_t *device, const moe_linear_t *jobs, uint32_t n_jobs, uint32_t n)
{
    cpu_products(cpu(device), jobs, n_jobs, NULL, n);
}


static void cpu_grouped(moe_device_t *device, const moe_linear_t *jobs, uint32_t n_jobs,
                        const uint32_t *offsets)
{
    cpu_products(cpu(device), jobs, n_jobs, offsets, 0);
}


/* Attention */

static int cpu_reserve_attention(moe_device_t *device, const moe_attention_t *attention,
                                 uint32_t context, moe_error_t *error)
{
    cpu_t *self = cpu(device);

    return moe_cpu_reserve_attention(&self->attention, &self->arena,
                                     moe_pool_threads(self->pool), attention, context, error);
}


static void cpu_attend(moe_device_t *device, const moe_attention_t *attention,
                       const moe_rows_t *rows, const moe_kv_t *cache, const float *query,
                       float *y)
{
    cpu_t *self = cpu(device);

    moe_cpu_attend(&self->attention, self->kernels, self->pool, attention, rows, cache, query, y);
}


/* Routing */

typedef struct {
    const cpu_t *self;
    moe_route_t route;
    float *scores, *keys, *weights;
    uint32_t *ids;
} route_job_t;


static void route_rows(void *context, size_t first, size_t last, unsigned thread)
{
    const route_job_t *j = context;
    const size_t experts = j->route.experts, top_k = j->route.top_k;

    for (size_t i = first; i < last; i++) {
        j->self->kernels->route(&j->route, j->scores + i * experts, j->keys + i * experts,
                                j->ids + i * top_k, j->weights + i * top_k);
    }
}


static void cpu_route(moe_device_t *device, const moe_routing_t *r, uint32_t n, float *scores,
                      float *keys, uint32_t *ids, float *weights)
{
    route_job_t job = {
        .self = cpu(device), .scores = scores, .keys = keys, .ids = ids, .weights = weights,
        .route = {
            .experts = r->experts, .top_k = r->top_k, .sigmoid = r->sigmoid, .groups = r->groups,
            .groups_kept = r->groups_kept, .group_top = r->group_top, .normalise = r->normalise,
            .scale = r->scale, .bias = r->bias,
        },
    };

    moe_pool_run(cpu(device)->pool, route_rows, &job, n,
                 row_grain((size_t) r->experts * (r->top_k + 4)));
}


static void cpu_plan_dispatch(moe_device_t *device, const moe_dispatch_t *dispatch,
                              const uint32_t *ids, uint32_t n)
{
    moe_cpu_plan_dispatch(dispatch, ids, n);
}


static void cpu_plan_arrival(moe_device_t *device, const moe_dispatch_t *dispatch)
{
    moe_cpu_plan_arrival(dispatch);
}


static const moe_device_ops_t cpu_ops = {
    .name = "cpu",
    .free = cpu_free,
    .isa = cpu_isa,
    .allocate = cpu_allocate,
    .pack = cpu_pack,
    .reserve = cpu_reserve,
    .alike = cpu_alike,
    .packed = cpu_packed,
    .reserve_attention = cpu_reserve_attention,
    .upload = cpu_upload,
    .read = cpu_read,
    .embed = cpu_embed,
    .gather = cpu_gather,
    .copy = cpu_copy,
    .rms_norm = cpu_rms_norm,
    .linear = cpu_linear,
    .grouped = cpu_grouped,
    .swiglu = cpu_swiglu,
    .gate_rows = cpu_gate_rows,
    .add = cpu_add,
    .rope = cpu_rope,
    .store = cpu_store,
    .copy_rows = cpu_copy_rows,
    .attend = cpu_attend,
    .route = cpu_route,
    .plan_dispatch = cpu_plan_dispatch,
    .plan_arrival = cpu_plan_arrival,
    .convert = cpu_convert,
    .combine = cpu_combine,
};


moe_device_t *moe_device_cpu(moe_pool_t *pool, moe_error_t *error)
{
    const char *isa = getenv("MOE_ISA");
    cpu_t *self;

    isa = isa && *isa ? isa : NULL;
    if (moe_kernels_find(isa) == NULL) {
        moe_fail(error, MOE_INVALID, "MOE_ISA: \"%s\" is not an instruction set of this CPU", isa);
        return NULL;
    }
    self = calloc(1, sizeof(*self));
    if (self == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a device");
        return NULL;
    }
    self->device.ops = &cpu_ops;
    self->kernels = moe_kernels_find(isa);
    self->pool = pool;
    return &self->device;
}
