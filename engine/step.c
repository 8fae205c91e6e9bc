/*
 * A step: the rows of a batch through all layers, together with the other ranks.
 *
 * They go all at once or, where they travel longer than it takes to read the experts once more,
 * in two halves: one computes while the other's rows travel.
 */

#include <assert.h>
#include <string.h>

#include "engine/forward_internal.h"

#define MIN_HALF 16u            /* rows of a half, at least: each reads all weights once more */

/* Rows that go through the layers together: a step's, or one of its halves. */
typedef struct {
    moe_rows_t rows;
    float *hidden, *normed, *mixed;
    moe_block_batch_t *block;
    const moe_forward_layer_t *under_way;           /* whose results travel; NULL: none do */
} micro_batch_t;


/* Appends the rows of one sequence. */
static void stage_sequence(moe_forward_t *f, const moe_batch_sequence_t *sequence, uint32_t index,
                           uint32_t *n_rows, uint32_t *n_outputs)
{
    const uint32_t end = sequence->position + sequence->n_tokens;
    const uint32_t blocks = (end + MOE_BLOCK_TOKENS - 1) / MOE_BLOCK_TOKENS;
    moe_staging_t *s = &f->host;

    assert(sequence->n_tokens >= 1 && sequence->n_tokens <= f->options.batch_rows - *n_rows);
    assert(end > sequence->position && end <= f->options.context);
    assert(sequence->n_outputs <= sequence->n_tokens
           && sequence->n_outputs <= f->options.batch_outputs - *n_outputs);
    for (uint32_t b = 0; b < blocks; b++) {
        assert(sequence->blocks[b] < f->n_blocks);
    }
    memcpy(s->tables + (size_t) index * f->table_stride, sequence->blocks,
           blocks * sizeof(uint32_t));
    for (uint32_t i = 0; i < sequence->n_tokens; i++) {
        assert(sequence->tokens[i] < f->model->vocabulary);
        if (i + sequence->n_outputs >= sequence->n_tokens) {
            s->outputs[(*n_outputs)++] = *n_rows;
        }
        s->tokens[*n_rows] = sequence->tokens[i];
        s->positions[*n_rows] = sequence->position + i;
        s->sequences[(*n_rows)++] = index;
    }
}


/* The step's rows on the device; returns the number of outputs. */
static uint32_t stage_batch(moe_forward_t *f, const moe_batch_t *batch, moe_rows_t *rows)
{
    const size_t word = sizeof(uint32_t);
    uint32_t n = 0, n_outputs = 0;

    assert(batch->n_sequences <= f->options.batch_sequences);
    for (uint32_t i = 0; i < batch->n_sequences; i++) {
        stage_sequence(f, &batch->sequences[i], i, &n, &n_outputs);
    }
    f->ops->upload(f->device, f->rows.tokens, f->host.tokens, n * word);
    f->ops->upload(f->device, f->rows.positions, f->host.positions, n * word);
    f->ops->upload(f->device, f->rows.sequences, f->host.sequences, n * word);
    f->ops->upload(f->device, f->rows.outputs, f->host.outputs, n_outputs * word);
    f->ops->upload(f->device, f->rows.tables, f->host.tables,
                   (size_t) batch->n_sequences * f->table_stride * word);
    *rows = (moe_rows_t) {
        n, f->rows.tokens, f->rows.positions, f->rows.sequences, f->rows.tables, f->table_stride
    };
    return n_outputs;
}


static void copy_blocks(moe_forward_t *f, const moe_batch_t *batch)
{
    for (uint32_t i = 0; i < batch->n_copies; i++) {
        const moe_block_copy_t *copy = &batch->copies[i];

        assert(copy->from < f->n_blocks && copy->to < f->n_blocks);
        assert(copy->tokens <= MOE_BLOCK_TOKENS);
        for (uint32_t l = 0; l < f->model->n_layers; l++) {
            f->ops->copy_rows(f->device, &f->layers[l].cache, copy->from, copy->to, copy->tokens);
        }
    }
}


static void norm(moe_forward_t *f, const float *x, const float *weight, uint32_t n, float *y)
{
    const uint32_t hidden = f->model->hidden;

    f->ops->rms_norm(f->device, x, hidden, weight, f->model->norm_eps, n, hidden, y, hidden);
}


/* Begins a step of `n` rows together with the other ranks, which say into how many micro-batches
 * all cut it; experts may move before it goes on. */
static int begin_step(moe_forward_t *f, uint32_t n, uint32_t *micro_batches, moe_error_t *error)
{
    const moe_step_word_t word = {
        .rows = n, .micro_batches = f->cuts_steps && n >= 2 * MIN_HALF ? 2 : 1,
        .placement = f->placement ? f->placement->version : 0,
        .task = f->balance ? moe_balance_ask(f->balance) : MOE_BALANCE_NOTHING,
    };
    uint64_t rows = 0;
    moe_comm_t *all = f->options.world.all, *group = f->options.world.group;

    f->steps++;
    *micro_batches = 1;
    if (all == NULL) {
        return 0;
    }
    all->step = f->steps;
    if (group) {
        group->step = f->steps;
    }
    if (moe_step_agree(all, &word, f->words, error) != 0) {
        return -1;
    }
    for (uint32_t r = 0; r < all->ranks; r++) {
        if (f->words[r].micro_batches > 1) {
            *micro_batches = 2;
        }
        rows += f->words[r].rows;
    }
    return f->balance ? moe_balance_step(f->balance, (moe_balance_task_t) f->words[0].task,
                                         rows / f->options.world.parts, error)
                      : 0;
}


/* Rows [first, first + n) of a step. */
static micro_batch_t take_rows(moe_forward_t *f, const moe_rows_t *rows, uint32_t first, uint32_t n,
                               moe_block_batch_t *block)
{
    const size_t floats = (size_t) first * f->model->hidden;

    return (micro_batch_t) {
        .rows = {
            n, rows->tokens + first, rows->positions + first, rows->sequences + first,
            rows->tables, rows->table_stride
        },
        .hidden = f->hidden + floats, .normed = f->normed + floats, .mixed = f->mixed + floats,
        .block = block,
    };
}


/* x += mixer(norm(x)), and the norm for what follows. */
static int mix(moe_forward_t *f, const moe_forward_layer_t *layer, const micro_batch_t *m,
               moe_error_t *error)
{
    const uint32_t n = m->rows.n;

    norm(f, m->hidden, layer->input_norm, n, m->normed);
    if (layer->mixer->run(layer->mixer_state, &m->rows, &layer->cache, m->normed, m->mixed,
                          f->mixer_scratch, error) != 0)
    {
        return -1;
    }
    f->ops->add(f->device, m->mixed, f->model->residual_scale, n, f->model->hidden, m->hidden);
    norm(f, m->hidden, layer->post_norm, n, m->normed);
    return 0;
}


static void add_mixed(moe_forward_t *f, const micro_batch_t *m)
{
    f->ops->add(f->device, m->mixed, f->model->residual_scale, m->rows.n, f->model->hidden,
                m->hidden);
}


/* x += dense(norm(x)) */
static int run_dense(moe_forward_t *f, const moe_forward_layer_t *layer, const micro_batch_t *m,
                     moe_error_t *error)
{
    if (moe_dense_run(&layer->dense, m->normed, m->rows.n, f->ffn_scratch, m->mixed, error) != 0) {
        return -1;
    }
    add_mixed(f, m);
    return 0;
}


/* x += mixer(norm(x)); x += ffn(norm(x)) */
static int run_layer(moe_forward_t *f, const moe_forward_layer_t *layer, const micro_batch_t *m,
                     moe_error_t *error)
{
    if (mix(f, layer, m, error) != 0) {
        return -1;
    }
    if (!layer->is_moe) {
        return run_dense(f, layer, m, error);
    }
    if (moe_block_run(&layer->moe, m->block, f->options.overlap, m->normed, m->rows.n, m->mixed,
                      error) != 0)
    {
        return -1;
    }
    add_mixed(f, m);
    return 0;
}


static int run_layers(moe_forward_t *f, const moe_rows_t *rows, moe_error_t *error)
{
    const micro_batch_t all = take_rows(f, rows, 0, rows->n, &f->blocks[0]);

    for (uint32_t i = 0; i < f->model->n_layers; i++) {
        if (run_layer(f, &f->layers[i], &all, error) != 0) {
            return -1;
        }
    }
    return 0;
}


static int send_half(const moe_forward_layer_t *layer, const micro_batch_t *m, moe_error_t *error)
{
    return moe_block_send(&layer->moe, m->block, m->normed, m->rows.n, error);
}


static int compute_half(const moe_forward_layer_t *layer, const micro_batch_t *m,
                        moe_error_t *error)
{
    if (moe_block_shared(&layer->moe, m->block, error) != 0) {
        return -1;
    }
    moe_block_experts(&layer->moe, m->block);
    return 0;
}


static int return_half(const moe_forward_layer_t *layer, micro_batch_t *m, moe_error_t *error)
{
    m->under_way = layer;
    return moe_block_return_send(&layer->moe, m->block, error);
}


/* Ends the layer whose results travel. */
static int end_half(moe_forward_t *f, micro_batch_t *m, moe_error_t *error)
{
    const moe_forward_layer_t *layer = m->under_way;

    if (layer == NULL) {
        return 0;
    }
    m->under_way = NULL;
    if (moe_block_return_recv(&layer->moe, m->block, m->mixed, error) != 0) {
        return -1;
    }
    add_mixed(f, m);
    return 0;
}


/* As run_layer, for both halves: one of them computes while the other's rows travel.  The results
 * of `b` still do at the start and the end.  Attention takes `a` first: rows of one sequence, of
 * which the later may be in `b`. */
static int run_halves(moe_forward_t *f, const moe_forward_layer_t *layer, micro_batch_t *a,
                      micro_batch_t *b, moe_error_t *error)
{
    if (mix(f, layer, a, error) != 0 || end_half(f, b, error) != 0) {
        return -1;
    }
    if (!layer->is_moe) {
        return run_dense(f, layer, a, error) != 0 || mix(f, layer, b, error) != 0
               || run_dense(f, layer, b, error) != 0 ? -1 : 0;
    }
    return send_half(layer, a, error) != 0 || mix(f, layer, b, error) != 0
           || moe_block_recv(&layer->moe, a->block, error) != 0
           || send_half(layer, b, error) != 0 || compute_half(layer, a, error) != 0
           || moe_block_recv(&layer->moe, b->block, error) != 0
           || return_half(layer, a, error) != 0 || compute_half(layer, b, error) != 0
           || end_half(f, a, error) != 0 || return_half(layer, b, error) != 0 ? -1 : 0;
}


static int run_layers_in_halves(moe_forward_t *f, const moe_rows_t *rows, moe_error_t *error)
{
    const uint32_t parts = f->options.world.parts, n = rows->n;
    const uint32_t half = (n + 1) / 2, up = (half + parts - 1) / parts * parts;
    const uint32_t first = up < n ? up : n;                     /* the shares of `a` are equal */
    micro_batch_t a = take_rows(f, rows, 0, first, &f->blocks[0]);
    micro_batch_t b = take_rows(f, rows, first, n - first, &f->blocks[1]);

    for (uint32_t i = 0; i < f->model->n_layers; i++) {
        if (run_halves(f, &f->layers[i], &a, &b, error) != 0) {
            return -1;
        }
    }
    return end_half(f, &b, error);
}


/* Logits of the rows that are wanted. */
static int run_head(moe_forward_t *f, uint32_t n, moe_error_t *error)
{
    const uint32_t hidden = f->model->hidden;
    const moe_linear_t head = {
        f->head, f->picked, hidden, 0,
        moe_split_own(&f->vocabulary, n, f->head_scratch, f->logits),
        moe_split_stride(&f->vocabulary), 0
    };

    f->ops->gather(f->device, f->hidden, f->rows.outputs, n, hidden, f->picked);
    norm(f, f->picked, f->final_norm, n, f->picked);
    f->ops->linear(f->device, &head, 1, n);
    return moe_split_gather(&f->vocabulary, f->device, n, f->head_scratch, f->logits, error);
}


const float *moe_forward_step(moe_forward_t *f, const moe_batch_t *batch, moe_error_t *error)
{
    moe_rows_t rows;
    uint32_t n_outputs = stage_batch(f, batch, &rows), micro_batches;

    if (begin_step(f, rows.n, &micro_batches, error) != 0) {
        return NULL;
    }
    copy_blocks(f, batch);
    f->ops->embed(f->device, f->embedding, &rows, f->model->embedding_scale, f->hidden);
    if ((micro_batches > 1 ? run_layers_in_halves : run_layers)(f, &rows, error) != 0) {
        return NULL;
    }
    if (run_head(f, n_outputs, error) != 0) {
        return NULL;
    }
    return f->ops->read(f->device, f->logits,
                        (size_t) n_outputs * f->model->vocabulary * sizeof(float));
}
