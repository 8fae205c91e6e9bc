/*
 * A tiny model and random sequences, computed by ranks step by step in random chunks: what tests of
 * ranks compare.
 */

#ifndef RANKS_FIXTURE_H
#define RANKS_FIXTURE_H

#include "engine/ranks.h"
#include "t/unit/tiny_model.h"

#define MAX_RANKS 8u
#define SEQUENCES 13u
#define TOKENS 70u
#define BLOCKS ((TOKENS + MOE_BLOCK_TOKENS - 1) / MOE_BLOCK_TOKENS)
#define BATCH_ROWS 96u

typedef struct {
    tiny_model_t options;
    char *directory;
    moe_model_t *model;
    uint32_t tokens[SEQUENCES][TOKENS];
} fixture_t;


static inline uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (*seed >> 33) % below;
}


static inline fixture_t *open_model(tiny_model_t options)
{
    tiny_files_t files = tiny_model_make(&options);
    fixture_t *f = calloc(1, sizeof(*f));
    moe_error_t error;
    uint64_t seed = 7;

    assert_non_null(f);
    f->options = options;
    f->directory = tiny_directory();
    tiny_model_save(&files, f->directory);
    tiny_model_free(&files);
    f->model = moe_model_open(f->directory, &error);
    assert_non_null(f->model);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        for (uint32_t t = 0; t < TOKENS; t++) {
            f->tokens[i][t] = draw(&seed, options.vocabulary);
        }
    }
    return f;
}


static inline void close_model(fixture_t *f)
{
    moe_model_close(f->model);
    tiny_directory_remove(f->directory);
    free(f);
}


static inline moe_ranks_options_t rank_options(const fixture_t *f, uint32_t ranks)
{
    return (moe_ranks_options_t) {
        .ranks = ranks,
        .forward = {
            .threads = ranks > 2 ? ranks : 2, .context = TOKENS, .batch_rows = BATCH_ROWS,
            .batch_sequences = SEQUENCES, .batch_outputs = BATCH_ROWS,
            .cache_bytes = SEQUENCES * BLOCKS * moe_forward_block_bytes(f->model, MOE_KV_F32)
        }
    };
}


static inline moe_ranks_t *create(const fixture_t *f, const moe_ranks_options_t *options)
{
    moe_error_t error;
    moe_ranks_t *ranks = moe_ranks_create(f->model, options, &error);

    if (ranks == NULL) {
        fail_msg("%s", error.message);
    }
    return ranks;
}


/* ---- the same bits ---- */

typedef struct {
    moe_batch_sequence_t sequences[SEQUENCES];
    uint32_t numbers[SEQUENCES];
    moe_batch_t batch;
    uint32_t rows;
} group_batch_t;

typedef struct {
    uint32_t computed[SEQUENCES];
    uint32_t blocks[SEQUENCES][BLOCKS];
    float *logits;                      /* [SEQUENCES, TOKENS, vocabulary] */
} progress_t;


/* Some rows of some sequences of a group, often none. */
static inline void fill_group(const fixture_t *f, progress_t *p, uint32_t group, uint32_t groups,
                              uint64_t *seed, uint32_t chunk, group_batch_t *b)
{
    b->rows = 0;
    b->batch = (moe_batch_t) { .sequences = b->sequences };
    for (uint32_t i = group; i < SEQUENCES; i += groups) {
        uint32_t rows = 1 + draw(seed, chunk), left = TOKENS - p->computed[i];

        rows = rows < left ? rows : left;
        if (rows == 0 || b->rows + rows > BATCH_ROWS || draw(seed, 3) == 0) {
            continue;
        }
        b->numbers[b->batch.n_sequences] = i;
        b->sequences[b->batch.n_sequences++] = (moe_batch_sequence_t) {
            f->tokens[i] + p->computed[i], rows, p->computed[i], p->blocks[i], rows
        };
        b->rows += rows;
    }
}


static inline void keep_logits(const fixture_t *f, progress_t *p, const group_batch_t *b,
                               const float *logits)
{
    const size_t vocabulary = f->options.vocabulary;

    for (uint32_t i = 0; i < b->batch.n_sequences; i++) {
        const uint32_t number = b->numbers[i], rows = b->sequences[i].n_tokens;

        memcpy(p->logits + ((size_t) number * TOKENS + p->computed[number]) * vocabulary, logits,
               rows * vocabulary * sizeof(float));
        p->computed[number] += rows;
        logits += rows * vocabulary;
    }
}


static inline int is_complete(const progress_t *p)
{
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        if (p->computed[i] < TOKENS) {
            return 0;
        }
    }
    return 1;
}


/* Logits of all sequences, chunks of at most `chunk` tokens in a random order. */
static inline float *compute(const fixture_t *f, moe_ranks_t *ranks, uint32_t chunk, uint64_t seed)
{
    const uint32_t groups = moe_ranks_groups(ranks);
    static group_batch_t batches[MAX_RANKS];
    const moe_batch_t *pointers[MAX_RANKS];
    const float *logits[MAX_RANKS];
    progress_t p = { .computed = { 0 } };
    moe_error_t error;

    p.logits = malloc(SEQUENCES * TOKENS * f->options.vocabulary * sizeof(float));
    assert_non_null(p.logits);
    for (uint32_t i = 0; i < SEQUENCES * BLOCKS; i++) {
        p.blocks[i / BLOCKS][i % BLOCKS] = i;
    }
    while (!is_complete(&p)) {
        for (uint32_t g = 0; g < groups; g++) {
            fill_group(f, &p, g, groups, &seed, chunk, &batches[g]);
            pointers[g] = &batches[g].batch;
        }
        if (moe_ranks_step(ranks, pointers, logits, &error) != 0) {
            fail_msg("%s", error.message);
        }
        for (uint32_t g = 0; g < groups; g++) {
            keep_logits(f, &p, &batches[g], logits[g]);
        }
    }
    return p.logits;
}


static inline void check_counts(const fixture_t *f, const moe_ranks_t *ranks)
{
    const uint32_t experts = f->options.experts;
    uint64_t *counts = calloc((size_t) f->options.layers * experts, sizeof(*counts)), sum;

    assert_non_null(counts);
    moe_ranks_expert_load(ranks, counts);
    for (uint32_t l = f->options.dense_layers; l < f->options.layers; l++) {
        sum = 0;
        for (uint32_t e = 0; e < experts; e++) {
            sum += counts[l * experts + e];
        }
        assert_int_equal(sum, SEQUENCES * TOKENS * f->options.top_k);
    }
    free(counts);
}


/* Returns the bytes of rows that all ranks sent to experts of others. */
static inline uint64_t check_bits(const fixture_t *f, const moe_ranks_options_t *options,
                                  uint32_t chunk, uint64_t seed, const float *expected)
{
    moe_ranks_t *ranks = create(f, options);
    float *logits = compute(f, ranks, chunk, seed);
    uint64_t sent = 0;

    assert_memory_equal(logits, expected,
                        SEQUENCES * TOKENS * f->options.vocabulary * sizeof(float));
    check_counts(f, ranks);
    for (uint32_t r = 0; r < moe_ranks_count(ranks); r++) {
        sent += moe_forward_exchanged(moe_ranks_forward(ranks, r)).dispatch_rows;
    }
    free(logits);
    moe_ranks_free(ranks);
    return sent;
}


/* What ranks are compared with. */
static inline float *compute_alone(const fixture_t *f, moe_payload_t exchange)
{
    moe_ranks_options_t options = rank_options(f, 1);
    moe_ranks_t *ranks;
    float *logits;

    options.forward.exchange = exchange;
    ranks = create(f, &options);
    logits = compute(f, ranks, TOKENS, 1);
    moe_ranks_free(ranks);
    return logits;
}

#endif
