/*
 * What a forward pass consists of, device-independent: a model's layer descriptors compiled into
 * weights on the device, the cache, and memory for a step (step.c).
 *
 * Memory is laid out once.  The cache is one array of blocks, each [layer][token][row].
 * Activations of a layer live in buffers for batch_rows rows that all layers use in turn, so memory
 * does not grow with the depth of the model.
 */

#include "engine/forward.h"

#include <stdlib.h>

#include "engine/forward_internal.h"
#include "engine/loader.h"
#include "engine/spread.h"


static void *allocate(moe_forward_t *f, size_t count, size_t size, moe_error_t *error)
{
    if (size > 0 && count > SIZE_MAX / size) {
        moe_fail(error, MOE_LIMIT, "out of memory for %zu items of %zu bytes", count, size);
        return NULL;
    }
    return f->ops->allocate(f->device, count * size, error);
}


int moe_forward_check_parts(const moe_model_t *model, uint32_t parts, moe_error_t *error)
{
    if (parts > model->hidden || parts > model->vocabulary) {
        return moe_fail(error, MOE_INVALID, "tensor_parallel %u: the model has %u tokens, of %u "
                        "numbers each", parts, model->vocabulary, model->hidden);
    }
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i];
        const moe_mixer_t *mixer = moe_mixer_find(layer->mixer);
        const uint32_t width = layer->is_moe ? layer->moe.shared.width : layer->dense.width;
        const uint32_t most = mixer ? mixer->most_parts(layer) : parts;

        if (parts > most) {
            return moe_fail(error, MOE_INVALID, "tensor_parallel %u: layer %u has %u heads to be "
                            "divided", parts, i, most);
        }
        if (width > 0 && parts > width) {
            return moe_fail(error, MOE_INVALID, "tensor_parallel %u: the network of layer %u has a "
                            "width of %u", parts, i, width);
        }
    }
    return 0;
}


static int check_options(const moe_model_t *model, const moe_forward_options_t *o,
                         moe_error_t *error)
{
    if (o->threads < 1 || o->batch_rows < 1 || o->batch_sequences < 1 || o->batch_outputs < 1) {
        return moe_fail(error, MOE_INVALID, "threads and batch sizes must be at least 1");
    }
    if (o->context < 1 || o->context > model->context) {
        return moe_fail(error, MOE_INVALID, "context %u: the model allows 1 to %u", o->context,
                        model->context);
    }
    if (o->batch_rows > 1u << 20 || o->batch_sequences > 1u << 20) {
        return moe_fail(error, MOE_INVALID, "batch sizes must be at most %u", 1u << 20);
    }
    return moe_forward_check_parts(model, o->world.parts, error);
}


static int make_placement(moe_forward_t *f, moe_error_t *error)
{
    const uint32_t ranks = f->options.world.ranks > 1 ? f->options.world.ranks : 1;
    moe_placement_shape_t shape;
    uint32_t layers;

    if (moe_spread(f->model, ranks, f->options.balance.redundant, &shape, &layers, error) != 0) {
        return -1;
    }
    f->experts = shape.experts;
    for (uint32_t i = 0; i < f->model->n_layers; i++) {
        f->top_k = f->model->layers[i].is_moe ? f->model->layers[i].moe.router.top_k : f->top_k;
    }
    f->counts = allocate(f, (size_t) f->model->n_layers * (f->experts ? f->experts : 1),
                         sizeof(uint64_t), error);
    if (f->counts == NULL || layers == 0) {
        return f->counts ? 0 : -1;
    }
    f->placement = moe_placement_create(&shape, layers, error);
    return f->placement ? 0 : -1;
}


static int make_balance(moe_forward_t *f, moe_error_t *error)
{
    uint32_t n = 0;

    if (f->options.balance.redundant == 0) {
        return 0;
    }
    f->moe_blocks = calloc(f->placement->layers, sizeof(*f->moe_blocks));
    if (f->moe_blocks == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u layers", f->placement->layers);
    }
    for (uint32_t i = 0; i < f->model->n_layers; i++) {
        if (f->layers[i].is_moe) {
            f->moe_blocks[n++] = &f->layers[i].moe;
        }
    }
    f->balance = moe_balance_create(f->moe_blocks, f->placement, f->top_k, &f->options.balance,
                                    error);
    return f->balance ? 0 : -1;
}


static int load_moe(moe_forward_t *f, uint32_t index, moe_loader_t *loader, moe_error_t *error)
{
    moe_block_env_t env = {
        .world = &f->options.world, .placement = f->placement,
        .batch_rows = f->options.batch_rows, .counts = f->counts + (size_t) index * f->experts,
        .arrived = &f->arrived[index],
    };

    for (uint32_t i = 0; i < index; i++) {
        env.layer += f->layers[i].is_moe;
    }
    return moe_block_create(&f->layers[index].moe, &f->model->layers[index].moe, loader, &env,
                            error);
}


static moe_mixer_env_t mixer_env(moe_forward_t *f, moe_loader_t *loader)
{
    return (moe_mixer_env_t) {
        .loader = loader, .world = &f->options.world, .ropes = &f->ropes,
        .hidden = f->model->hidden, .context = f->options.context,
        .batch_rows = f->options.batch_rows,
    };
}


static int load_layer(moe_forward_t *f, uint32_t index, moe_loader_t *loader, moe_error_t *error)
{
    const moe_layer_t *descriptor = &f->model->layers[index];
    const moe_mixer_env_t env = mixer_env(f, loader);
    moe_forward_layer_t *layer = &f->layers[index];

    layer->mixer = moe_mixer_find(descriptor->mixer);
    if (layer->mixer == NULL) {
        return moe_fail(error, MOE_BAD_MODEL, "unknown kind of attention %d",
                        (int) descriptor->mixer);
    }
    if ((layer->input_norm = moe_load_vector(loader, &descriptor->input_norm, error)) == NULL
        || (layer->post_norm = moe_load_vector(loader, &descriptor->post_norm, error)) == NULL
        || (layer->mixer_state = layer->mixer->create(descriptor, &env, error)) == NULL)
    {
        return -1;
    }
    layer->is_moe = descriptor->is_moe;
    if (layer->is_moe) {
        return load_moe(f, index, loader, error);
    }
    return moe_dense_create(&layer->dense, &descriptor->dense, &f->options.world, loader, error);
}


/* Where the head is the embedding one matrix is enough, unless this rank's head is a part of it; it
 * has been counted as loaded. */
static moe_matrix_t *load_head(moe_forward_t *f, moe_loader_t *loader, moe_error_t *error)
{
    const moe_weight_t *embedding = &f->model->embedding, *head = &f->model->head;
    const int tied = head->tensor == embedding->tensor
                     && head->offset == embedding->offset;

    f->vocabulary = moe_split_of(&f->options.world, f->model->vocabulary, 1);
    if (!tied) {
        return moe_split_load(&f->vocabulary, loader, head, error);
    }
    return f->options.world.group == NULL
               ? f->embedding : moe_load_slices(loader, head, 1, f->vocabulary.first, 0,
                                                f->vocabulary.count, 0, error);
}


static int load_weights(moe_forward_t *f, moe_error_t *error)
{
    const moe_model_t *model = f->model;
    moe_loader_t loader = {
        .device = f->device, .progress = f->options.progress,
        .progress_context = f->options.progress_context,
        .total = moe_tensors_bytes(model->tensors),
    };

    f->embedding = moe_load_matrix(&loader, &model->embedding, error);
    if (f->embedding == NULL) {
        return -1;
    }
    for (uint32_t i = 0; i < model->n_layers; i++) {
        if (load_layer(f, i, &loader, error) != 0) {
            return moe_fail_in(error, "layer %u", i);
        }
    }
    f->final_norm = moe_load_vector(&loader, &model->final_norm, error);
    f->head = load_head(f, &loader, error);
    if (f->final_norm == NULL || f->head == NULL) {
        return -1;
    }
    if (loader.progress) {
        loader.progress(loader.progress_context, loader.total, loader.total);
    }
    return 0;
}


static size_t row_bytes(const moe_layer_t *layer, moe_kv_type_t type)
{
    const moe_mixer_t *mixer = moe_mixer_find(layer->mixer);

    return mixer ? moe_kv_row_bytes(type, mixer->cache_numbers(layer)) : 0;
}


uint64_t moe_forward_block_bytes(const moe_model_t *model, moe_kv_type_t type)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < model->n_layers; i++) {
        bytes += row_bytes(&model->layers[i], type) * MOE_BLOCK_TOKENS;
    }
    return bytes;
}


uint64_t moe_forward_whole_bytes(const moe_model_t *model)
{
    uint64_t bytes = moe_weight_bytes(&model->embedding);

    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i];
        const moe_mixer_t *mixer = moe_mixer_find(layer->mixer);

        bytes += mixer ? mixer->whole_bytes(layer) : 0;
        bytes += layer->is_moe ? moe_weight_bytes(&layer->moe.router.gate) : 0;
    }
    return bytes;
}


/* Blocks of [layer][token][row]. */
static int make_cache(moe_forward_t *f, moe_error_t *error)
{
    const moe_model_t *model = f->model;
    const moe_kv_type_t type = f->options.kv_type;
    const uint64_t block_bytes = moe_forward_block_bytes(model, type);
    const uint64_t blocks = f->options.cache_bytes / block_bytes;
    char *memory;

    f->n_blocks = blocks < 1 ? 1 : blocks > UINT32_MAX ? UINT32_MAX : (uint32_t) blocks;
    memory = allocate(f, f->n_blocks, block_bytes, error);
    if (memory == NULL) {
        return moe_fail_in(error, "cache of %u blocks", f->n_blocks);
    }
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const size_t bytes = row_bytes(&model->layers[i], type);

        f->layers[i].cache = (moe_kv_t) {
            .rows = memory,
            .type = type,
            .block_stride = block_bytes,
            .row_stride = bytes,
            .block_tokens = MOE_BLOCK_TOKENS
        };
        memory += bytes * MOE_BLOCK_TOKENS;
    }
    return 0;
}


static int make_staging(moe_forward_t *f, moe_staging_t *s, moe_error_t *error)
{
    const size_t rows = f->options.batch_rows, word = sizeof(uint32_t);
    const size_t tables = (size_t) f->options.batch_sequences * f->table_stride;

    return (s->tokens = allocate(f, rows, word, error)) == NULL
                   || (s->positions = allocate(f, rows, word, error)) == NULL
                   || (s->sequences = allocate(f, rows, word, error)) == NULL
                   || (s->tables = allocate(f, tables, word, error)) == NULL
                   || (s->outputs = allocate(f, f->options.batch_outputs, word, error)) == NULL
               ? -1
               : 0;
}


/* Of an exchange for steps of `batch_rows` rows. */
static moe_exchange_options_t exchange_options(const moe_forward_t *f, uint32_t batch_rows)
{
    return (moe_exchange_options_t) {
        .device = f->device, .world = &f->options.world, .experts = f->experts,
        .top_k = f->top_k, .hidden = f->model->hidden, .slots = f->placement->shape.slots,
        .rows = moe_block_rows(&f->options.world, batch_rows), .payload = f->options.exchange,
    };
}


/* Memory for the experts; the blocks of all layers share it. */
static int make_moe(moe_forward_t *f, moe_error_t *error)
{
    moe_exchange_options_t options;

    if (f->placement == NULL) {
        return 0;
    }
    options = exchange_options(f, f->options.batch_rows);
    if (moe_block_batch_create(&f->blocks[0], &options, f->ffn_scratch, error) != 0) {
        return -1;
    }
    f->cuts_steps = f->options.overlap == MOE_OVERLAP_TWO_BATCH && f->options.world.all != NULL;
    if (!f->cuts_steps) {
        return 0;
    }
    options = exchange_options(f, f->options.batch_rows / 2);
    return moe_block_batch_create(&f->blocks[1], &options, f->ffn_scratch, error);
}


/* Scratch memory for whichever layer needs most. */
static int make_scratch(moe_forward_t *f, moe_error_t *error)
{
    const moe_mixer_env_t env = mixer_env(f, NULL);
    const size_t head = moe_split_scratch(&f->vocabulary, f->options.batch_outputs);
    moe_exchange_options_t exchange = {.rows = 0};
    size_t mixer = 0, ffn = 0;

    if (f->placement) {
        exchange = exchange_options(f, f->options.batch_rows);
    }
    for (uint32_t i = 0; i < f->model->n_layers; i++) {
        const moe_forward_layer_t *layer = &f->layers[i];
        const size_t m = layer->mixer->scratch_floats(&f->model->layers[i], &env);
        const size_t w = layer->is_moe ? moe_block_scratch(&layer->moe, &exchange)
                                       : moe_dense_scratch(&layer->dense, f->options.batch_rows);

        mixer = m > mixer ? m : mixer;
        ffn = w > ffn ? w : ffn;
    }
    return (f->mixer_scratch = allocate(f, mixer, sizeof(float), error)) == NULL
                   || (f->ffn_scratch = allocate(f, ffn, sizeof(float), error)) == NULL
                   || (f->head_scratch = allocate(f, head, sizeof(float), error)) == NULL
               ? -1
               : 0;
}


static int make_activations(moe_forward_t *f, moe_error_t *error)
{
    const size_t rows = f->options.batch_rows, outputs = f->options.batch_outputs;
    const size_t hidden = f->model->hidden, word = sizeof(float);
    const size_t rounded = rows + f->options.world.parts;       /* what moe_block_run needs */

    f->table_stride = (f->options.context + MOE_BLOCK_TOKENS - 1) / MOE_BLOCK_TOKENS;
    if (make_staging(f, &f->host, error) != 0 || make_staging(f, &f->rows, error) != 0
        || (f->hidden = allocate(f, rows * hidden, word, error)) == NULL
        || (f->normed = allocate(f, rows * hidden, word, error)) == NULL
        || (f->mixed = allocate(f, rounded * hidden, word, error)) == NULL
        || (f->picked = allocate(f, outputs * hidden, word, error)) == NULL
        || (f->logits = allocate(f, outputs * f->model->vocabulary, word, error)) == NULL)
    {
        return -1;
    }
    return make_scratch(f, error) != 0 || make_moe(f, error) != 0 ? -1 : 0;
}


moe_forward_t *moe_forward_create(moe_model_t *model, const moe_forward_options_t *options,
                                  moe_error_t *error)
{
    moe_forward_t *f;

    if (check_options(model, options, error) != 0) {
        return NULL;
    }
    f = calloc(1, sizeof(*f));
    if (f == NULL || (f->layers = calloc(model->n_layers, sizeof(*f->layers))) == NULL
        || (f->arrived = calloc(model->n_layers, sizeof(uint64_t))) == NULL)
    {
        moe_forward_free(f);
        moe_fail(error, MOE_LIMIT, "out of memory for %u layers", model->n_layers);
        return NULL;
    }
    f->model = model;
    f->options = *options;
    if (options->world.all
        && (f->words = calloc(options->world.ranks, sizeof(moe_step_word_t))) == NULL)
    {
        moe_forward_free(f);
        moe_fail(error, MOE_LIMIT, "out of memory for %u ranks", options->world.ranks);
        return NULL;
    }
    f->pool = moe_pool_create(options->threads, error);
    f->device = f->pool ? moe_device_cpu(f->pool, error) : NULL;
    f->ops = f->device ? f->device->ops : NULL;
    if (f->device == NULL || make_placement(f, error) != 0 || load_weights(f, error) != 0
        || make_balance(f, error) != 0 || make_cache(f, error) != 0
        || make_activations(f, error) != 0)
    {
        moe_forward_free(f);
        return NULL;
    }
    return f;
}


void moe_forward_free(moe_forward_t *f)
{
    if (f == NULL) {
        return;
    }
    moe_balance_free(f->balance);
    if (f->device) {
        f->ops->free(f->device);
    }
    moe_pool_free(f->pool);
    moe_placement_free(f->placement);
    moe_block_batch_free(&f->blocks[0]);
    moe_block_batch_free(&f->blocks[1]);
    free(f->layers);
    free(f->arrived);
    free(f->moe_blocks);
    free(f->words);
    free(f);
}


moe_pool_t *moe_forward_pool(const moe_forward_t *f)
{
    return f->pool;
}


uint32_t moe_forward_blocks(const moe_forward_t *f)
{
    return f->n_blocks;
}


const char *moe_forward_isa(const moe_forward_t *f)
{
    return f->ops->isa(f->device);
}


const uint64_t *moe_forward_expert_load(const moe_forward_t *f)
{
    return f->ops->read(f->device, f->counts,
                        (size_t) f->model->n_layers * f->experts * sizeof(uint64_t));
}


uint32_t moe_forward_experts(const moe_forward_t *f)
{
    return f->experts;
}


const uint64_t *moe_forward_arrived(const moe_forward_t *f)
{
    return f->arrived;
}


uint32_t moe_forward_placement(const moe_forward_t *f)
{
    return f->placement ? f->placement->version : 0;
}


moe_exchange_bytes_t moe_forward_exchanged(const moe_forward_t *f)
{
    const moe_exchange_bytes_t *a = &f->blocks[0].exchange.bytes, *b = &f->blocks[1].exchange.bytes;

    return (moe_exchange_bytes_t) {
        .dispatch_rows = a->dispatch_rows + b->dispatch_rows,
        .dispatch_lists = a->dispatch_lists + b->dispatch_lists,
        .return_rows = a->return_rows + b->return_rows,
    };
}
