/*
 * The forward pass on tiny random models: near a double precision reference, and the same bits
 * however the work is cut: chunks, batches, threads, instruction sets, cache blocks.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/forward.h"
#include "kernels/cpu/kernels.h"
#include "t/unit/reference.h"
#include "t/unit/tiny_model.h"

#define MAX_TOKENS 320u
#define N_MODELS 8u
#define MAX_BLOCKS (MAX_TOKENS / MOE_BLOCK_TOKENS)

typedef struct {
    tiny_model_t options;
    char *directory;
    moe_model_t *model;
} fixture_t;


/* A model of each kind of attention. */
static tiny_model_t model_of(size_t index)
{
    static const char *const grouped[] = {
        "olmoe", "mixtral", "qwen3_moe", "minimax_m2", "glm4_moe", "qwen2_moe", "gpt_oss"
    };
    tiny_model_t options;

    if (index == 0) {
        return tiny_model_defaults();
    }
    options = tiny_model_gqa(grouped[index - 1]);
    options.biases |= index == 3;
    options.window = index == 2 ? 77 : index == 6 ? 9 : options.window;
    if (index == 2) {
        options.heads = 20;             /* more of a group than fit a panel */
        options.kv_heads = 1;
        options.head = 18;              /* slices that do not fill their groups */
    }
    return options;
}


static fixture_t open_model(tiny_model_t options)
{
    fixture_t f = {.options = options, .directory = tiny_directory()};
    tiny_files_t files = tiny_model_make(&options);
    moe_error_t error;

    tiny_model_save(&files, f.directory);
    tiny_model_free(&files);
    f.model = moe_model_open(f.directory, &error);
    if (f.model == NULL) {
        fail_msg("%s", error.message);
    }
    return f;
}


static void close_model(fixture_t *f)
{
    moe_model_close(f->model);
    tiny_directory_remove(f->directory);
}


static moe_forward_options_t default_options(const fixture_t *f)
{
    return (moe_forward_options_t) {
        .threads = 2, .cache_bytes = 64u << 20, .context = f->options.context,
        .batch_rows = MAX_TOKENS, .batch_sequences = 32, .batch_outputs = MAX_TOKENS,
    };
}


static moe_forward_t *create(const fixture_t *f, const moe_forward_options_t *options)
{
    moe_error_t error;
    moe_forward_t *forward = moe_forward_create(f->model, options, &error);

    if (forward == NULL) {
        fail_msg("%s", error.message);
    }
    return forward;
}


static void fill_tokens(uint32_t *tokens, size_t n, uint32_t vocabulary, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (seed >> 8) % vocabulary;
    }
}


/* Logits [n, vocabulary] of a sequence, `chunk` tokens a step; block b of it is
 * (first + b * step) % blocks of the cache. */
static float *run_alone(moe_forward_t *forward, const fixture_t *f, const uint32_t *tokens,
                        uint32_t n, uint32_t chunk, uint32_t first, uint32_t step)
{
    const uint32_t vocabulary = f->options.vocabulary;
    float *logits = malloc((size_t) n * vocabulary * sizeof(float));
    uint32_t blocks[MAX_BLOCKS];

    for (uint32_t b = 0; b < MAX_BLOCKS; b++) {
        blocks[b] = (first + b * step) % moe_forward_blocks(forward);
    }
    for (uint32_t at = 0; at < n; at += chunk) {
        const uint32_t rows = n - at < chunk ? n - at : chunk;
        const moe_batch_sequence_t sequence = {tokens + at, rows, at, blocks, rows};
        const moe_batch_t batch = {.sequences = &sequence, .n_sequences = 1};

        memcpy(logits + (size_t) at * vocabulary, moe_forward_step(forward, &batch, NULL),
               (size_t) rows * vocabulary * sizeof(float));
    }
    return logits;
}


static void check_reference(tiny_model_t options, uint32_t n, double *worst)
{
    fixture_t f = open_model(options);
    const moe_forward_options_t forward_options = default_options(&f);
    uint32_t tokens[MAX_TOKENS];
    moe_forward_t *forward;
    double *expected;
    float *logits;

    /* the reference first: packing gives the pages back, and they must come again */
    fill_tokens(tokens, n, options.vocabulary, 5);
    expected = reference_logits(&options, f.model->tensors, tokens, n);
    forward = create(&f, &forward_options);
    logits = run_alone(forward, &f, tokens, n, n, 0, 1);
    for (uint32_t p = 0; p < n; p++) {
        double error = 0, norm = 0;

        for (uint32_t i = 0; i < options.vocabulary; i++) {
            const double value = expected[p * options.vocabulary + i];

            error += pow(logits[p * options.vocabulary + i] - value, 2);
            norm += value * value;
        }
        error = sqrt(error / norm);
        *worst = error > *worst ? error : *worst;
        if (!(error < 1e-5)) {
            fail_msg("%s, %u tokens: position %u is off by %.3g", options.model_type, n, p, error);
        }
    }
    free(expected);
    free(logits);
    moe_forward_free(forward);
    close_model(&f);
}


static void test_reference(void **state)
{
    tiny_model_t v3 = tiny_model_defaults(), v2 = tiny_model_v2(), odd = tiny_model_defaults();
    double worst = 0;

    check_reference(v3, 40, &worst);
    check_reference(v2, 40, &worst);
    v3.tied = 1;
    v3.dtype = "F16";
    v3.interleaved = 0;
    v3.groups = 1;
    v3.groups_kept = 1;
    check_reference(v3, 20, &worst);
    v2.topk_method = "group_limited_greedy";
    v2.groups = 4;
    v2.groups_kept = 2;
    v2.dtype = "F32";
    v2.scale = 16;
    v2.shared = 0;
    check_reference(v2, 20, &worst);

    odd.hidden = 52;
    odd.vocabulary = 101;
    odd.heads = 18;
    odd.q_lora = 19;
    odd.kv_lora = 21;
    odd.nope = 10;
    odd.rope = 6;
    odd.value = 7;
    odd.dense_width = 37;
    odd.expert_width = 23;
    odd.experts = 12;
    odd.top_k = 5;
    odd.context = MAX_TOKENS;
    check_reference(odd, 300, &worst);
    print_message("worst relative error %.2g\n", worst);
}


/* Each kind of cache row for itself: a row is read as it is kept, also in the step that writes it. */
static void check_chunks(tiny_model_t options)
{
    uint32_t tokens[MAX_TOKENS];
    moe_forward_options_t forward_options;
    const uint32_t n = 300, chunks[] = {1, 7, 16, 64, 257};
    fixture_t f;

    options.context = MAX_TOKENS;
    f = open_model(options);
    forward_options = default_options(&f);
    fill_tokens(tokens, n, options.vocabulary, 9);
    for (size_t type = MOE_KV_F32; type <= MOE_KV_Q8_0; type++) {
        moe_forward_t *forward;
        float *whole;

        forward_options.kv_type = type;
        forward = create(&f, &forward_options);
        whole = run_alone(forward, &f, tokens, n, n, 0, 1);
        for (size_t i = 0; i < 5; i++) {
            float *cut = run_alone(forward, &f, tokens, n, chunks[i], 3 + (uint32_t) i, 7);

            assert_memory_equal(cut, whole, (size_t) n * options.vocabulary * sizeof(float));
            free(cut);
        }
        free(whole);
        moe_forward_free(forward);
    }
    close_model(&f);
}


static void test_chunks(void **state)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        check_chunks(model_of(i));
    }
}


/* Relative error of logits [n]. */
static double relative_error(const float *y, const float *reference, size_t n)
{
    double error = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        error += pow((double) y[i] - reference[i], 2);
        norm += pow(reference[i], 2);
    }
    return sqrt(error / norm);
}


/* Shorter rows are near f32, and as many more fit into the same memory as they are shorter. */
static void check_kv_types(tiny_model_t options)
{
    static const struct {
        double least, most, tokens;
    } bounds[] = {
        [MOE_KV_F32] = {0, 0, 1}, [MOE_KV_BF16] = {1e-4, 5e-3, 2}, [MOE_KV_Q8_0] = {1e-3, 3e-2, 3.7}
    };
    uint32_t tokens[MAX_TOKENS], blocks = 0;
    const uint32_t n = 200;
    float *reference = NULL;
    fixture_t f;

    options.context = MAX_TOKENS;
    options.kv_lora = 240;              /* 15 / 16 of a row that fills its groups */
    options.rope = 16;
    f = open_model(options);
    fill_tokens(tokens, n, options.vocabulary, 13);
    for (size_t type = MOE_KV_F32; type <= MOE_KV_Q8_0; type++) {
        moe_forward_options_t forward_options = default_options(&f);
        moe_forward_t *forward;
        float *logits;
        double error;

        forward_options.kv_type = type;
        forward = create(&f, &forward_options);
        logits = run_alone(forward, &f, tokens, n, n, 0, 1);
        if (reference == NULL) {
            reference = logits;
            blocks = moe_forward_blocks(forward);
        }
        error = relative_error(logits, reference, (size_t) n * options.vocabulary);
        print_message("kv_type %zu: relative error %.2g, blocks %u\n", type, error,
                      moe_forward_blocks(forward));
        assert_true(error >= bounds[type].least && error <= bounds[type].most);
        assert_true(moe_forward_blocks(forward) >= (uint32_t) (bounds[type].tokens * blocks));
        if (logits != reference) {
            free(logits);
        }
        moe_forward_free(forward);
    }
    free(reference);
    close_model(&f);
}


static void test_kv_types(void **state)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        tiny_model_t options = model_of(i);

        if (options.kv_heads > 0) {
            options.top_k = options.experts;    /* rounding changes no choice */
        }
        check_kv_types(options);
    }
}


/* 32 sequences of different lengths, each fed in pieces of its own size, all in the same steps;
 * only the last tokens' logits are asked for in odd ones. */
static void check_crowd(moe_forward_t *forward, const fixture_t *f,
                        uint32_t tokens[32][MAX_TOKENS], float **alone)
{
    const uint32_t vocabulary = f->options.vocabulary, n_blocks = 5;
    uint32_t done[32] = {0}, blocks[32][5], left = 32;

    for (uint32_t s = 0; s < 32; s++) {
        for (uint32_t b = 0; b < n_blocks; b++) {
            blocks[s][b] = (b * 32 + (s * 11) % 32) % moe_forward_blocks(forward);
        }
    }
    while (left > 0) {
        moe_batch_sequence_t sequences[32];
        uint32_t owners[32], n = 0;
        const float *logits;

        for (uint32_t s = 0; s < 32; s++) {
            const uint32_t rest = 10 + s * 2 - done[s], chunk = 1 + s % 9;
            const uint32_t rows = rest < chunk ? rest : chunk;

            if (rest > 0) {
                owners[n] = s;
                sequences[n++] = (moe_batch_sequence_t) {
                    tokens[s] + done[s], rows, done[s], blocks[s], s % 2 ? 1 : rows
                };
            }
        }
        logits = moe_forward_step(forward,
                                  &(moe_batch_t) {.sequences = sequences, .n_sequences = n}, NULL);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t s = owners[i], outputs = sequences[i].n_outputs;

            done[s] += sequences[i].n_tokens;
            assert_memory_equal(logits, alone[s] + (size_t) (done[s] - outputs) * vocabulary,
                                (size_t) outputs * vocabulary * sizeof(float));
            logits += (size_t) outputs * vocabulary;
            left -= done[s] == 10 + s * 2;
        }
    }
}


static void check_crowds(tiny_model_t model)
{
    fixture_t f = open_model(model);
    moe_forward_options_t options = default_options(&f);
    static uint32_t tokens[32][MAX_TOKENS];
    moe_forward_t *forward = create(&f, &options);
    float *alone[32];

    for (uint32_t s = 0; s < 32; s++) {
        fill_tokens(tokens[s], MAX_TOKENS, f.options.vocabulary, s);
        alone[s] = run_alone(forward, &f, tokens[s], 10 + s * 2, 100, 0, 1);
    }
    check_crowd(forward, &f, tokens, alone);
    moe_forward_free(forward);
    options.threads = 1;
    forward = create(&f, &options);
    check_crowd(forward, &f, tokens, alone);
    moe_forward_free(forward);
    for (uint32_t s = 0; s < 32; s++) {
        free(alone[s]);
    }
    close_model(&f);
}


static void test_crowd(void **state)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        check_crowds(model_of(i));
    }
}


/* Rows of another sequence, shared or copied, give what computing them would have given; also when
 * the block that they are copied from is written in the same step. */
static void check_shared_rows(tiny_model_t model)
{
    enum { N = 100, BLOCKS = 7 };
    static const uint32_t cuts[] = {1, 15, 16, 17, 40, 63, 64, 99};
    fixture_t f = open_model(model);
    moe_forward_options_t options = default_options(&f);
    const uint32_t vocabulary = f.options.vocabulary;
    moe_forward_t *forward;
    uint32_t tokens[MAX_TOKENS];
    float *whole;

    options.kv_type = MOE_KV_Q8_0;
    forward = create(&f, &options);
    fill_tokens(tokens, N, vocabulary, 4);
    whole = run_alone(forward, &f, tokens, N, N, 0, 1);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const uint32_t cut = cuts[i], shared = cut / MOE_BLOCK_TOKENS, free_block = 2 * BLOCKS;
        uint32_t blocks[BLOCKS], other[] = {shared};
        const moe_block_copy_t copies[] = {
            {shared, free_block + 1, cut % MOE_BLOCK_TOKENS},
            {free_block, shared, MOE_BLOCK_TOKENS},
            {free_block + 1, BLOCKS + shared, cut % MOE_BLOCK_TOKENS},
        };
        const moe_batch_sequence_t sequences[] = {
            {tokens, 5, 0, other, 0}, {tokens + cut, N - cut, cut, blocks, N - cut}
        };
        const moe_batch_t batch = {sequences, 2, copies, 3};

        free(run_alone(forward, &f, tokens, N, N, 0, 1));
        for (uint32_t b = 0; b < BLOCKS; b++) {
            blocks[b] = b < shared ? b : BLOCKS + b;
        }
        assert_memory_equal(moe_forward_step(forward, &batch, NULL), whole + (size_t) cut * vocabulary,
                            (size_t) (N - cut) * vocabulary * sizeof(float));
    }
    free(whole);
    moe_forward_free(forward);
    close_model(&f);
}


static void test_shared_rows(void **state)
{
    check_shared_rows(tiny_model_defaults());
    check_shared_rows(tiny_model_gqa("gpt_oss"));
}


static void check_threads_and_instruction_sets(tiny_model_t model)
{
    fixture_t f = open_model(model);
    moe_forward_options_t options = default_options(&f);
    uint32_t tokens[MAX_TOKENS];
    const uint32_t n = 100;
    const char *forced = getenv("MOE_ISA");
    float *first[3] = {NULL};

    fill_tokens(tokens, n, f.options.vocabulary, 2);
    for (size_t k = 0; moe_kernels_name(k); k++) {
        for (unsigned i = 0; i < 6; i++) {
            const unsigned type = i % 3;
            moe_forward_t *forward;
            float *logits;

            options.kv_type = type;
            options.threads = 1 + (i + (unsigned) k) % 3;
            setenv("MOE_ISA", moe_kernels_name(k), 1);
            forward = create(&f, &options);
            assert_string_equal(moe_forward_isa(forward), moe_kernels_name(k));
            logits = run_alone(forward, &f, tokens, n, 33, 0, 1);
            if (first[type] == NULL) {
                first[type] = logits;
            } else {
                assert_memory_equal(logits, first[type],
                                    (size_t) n * f.options.vocabulary * sizeof(float));
                free(logits);
            }
            moe_forward_free(forward);
        }
    }
    for (unsigned type = 0; type < 3; type++) {
        free(first[type]);
    }
    if (forced) {
        setenv("MOE_ISA", forced, 1);
    } else {
        unsetenv("MOE_ISA");
    }
    close_model(&f);
}


static void test_threads_and_instruction_sets(void **state)
{
    check_threads_and_instruction_sets(tiny_model_v2());
    for (size_t i = 1; i < N_MODELS; i++) {
        check_threads_and_instruction_sets(model_of(i));
    }
}


/* Every routed row is counted once, dense layers not at all. */
static void test_expert_load(void **state)
{
    fixture_t f = open_model(tiny_model_defaults());
    const moe_forward_options_t options = default_options(&f);
    moe_forward_t *forward = create(&f, &options);
    const uint64_t *load = moe_forward_expert_load(forward);
    uint32_t tokens[MAX_TOKENS];

    assert_int_equal(moe_forward_experts(forward), f.options.experts);
    fill_tokens(tokens, 50, f.options.vocabulary, 2);
    free(run_alone(forward, &f, tokens, 50, 9, 0, 1));
    for (uint32_t layer = 0; layer < f.options.layers; layer++) {
        uint64_t sum = 0;

        for (uint32_t e = 0; e < f.options.experts; e++) {
            sum += load[layer * f.options.experts + e];
        }
        assert_int_equal(sum, layer < f.options.dense_layers ? 0 : 50 * f.options.top_k);
    }
    moe_forward_free(forward);
    close_model(&f);
}


typedef struct {
    uint64_t done, total;
    unsigned calls;
} progress_t;


static void watch(void *context, uint64_t done, uint64_t total)
{
    progress_t *p = context;

    assert_true(done >= p->done && done <= total && (p->total == 0 || p->total == total));
    p->done = done;
    p->total = total;
    p->calls++;
}


static void test_loading(void **state)
{
    fixture_t f = open_model(tiny_model_defaults());
    moe_forward_options_t options = default_options(&f);
    progress_t progress = {0};
    moe_forward_t *forward;

    options.progress = watch;
    options.progress_context = &progress;
    options.cache_bytes = 0;
    forward = create(&f, &options);
    assert_int_equal(moe_forward_blocks(forward), 1);
    assert_int_equal(progress.done, progress.total);
    assert_true(progress.calls > 10);
    moe_forward_free(forward);

    options.progress = NULL;
    options.cache_bytes = 7 * moe_forward_block_bytes(f.model, MOE_KV_F32) + 1;
    forward = create(&f, &options);
    assert_int_equal(moe_forward_blocks(forward), 7);
    moe_forward_free(forward);
    close_model(&f);
}


static void test_refused(void **state)
{
    fixture_t f = open_model(tiny_model_defaults());
    const moe_forward_options_t good = default_options(&f);
    const char *forced = getenv("MOE_ISA");
    moe_error_t error;

    for (int i = 0; i < 8; i++) {
        moe_forward_options_t options = good;

        options.threads -= i == 0 ? 2 : 0;
        options.context += i == 1;
        options.context -= i == 2 ? good.context : 0;
        options.batch_rows -= i == 3 ? good.batch_rows : 0;
        options.batch_sequences -= i == 4 ? good.batch_sequences : 0;
        options.batch_outputs -= i == 5 ? good.batch_outputs : 0;
        options.cache_bytes = i == 6 ? UINT64_MAX : good.cache_bytes;
        setenv("MOE_ISA", i == 7 ? "mmx" : "c", 1);
        assert_null(moe_forward_create(f.model, &options, &error));
        assert_int_equal(error.code, i == 6 ? MOE_LIMIT : MOE_INVALID);
    }
    assert_non_null(strstr(error.message, "mmx"));
    if (forced) {
        setenv("MOE_ISA", forced, 1);
    } else {
        unsetenv("MOE_ISA");
    }
    moe_forward_free(NULL);
    close_model(&f);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_kv_types),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_shared_rows),
        cmocka_unit_test(test_threads_and_instruction_sets),
        cmocka_unit_test(test_expert_load),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
