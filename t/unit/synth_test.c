/* Models of random weights: they load in every type, route evenly, and are the same every time. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/stat.h>

#include "engine/forward.h"
#include "engine/model/synth.h"
#include "engine/serve/texts.h"
#include "t/unit/gguf_convert.h"
#include "t/unit/tiny_model.h"

#define TOKENS 256u


static gguf_bytes_t content(const char *path)
{
    gguf_bytes_t bytes = { 0 };
    FILE *file = fopen(path, "rb");
    struct stat st;

    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &st), 0);
    bytes.data = malloc((size_t) st.st_size);
    bytes.size = fread(bytes.data, 1, (size_t) st.st_size, file);
    assert_int_equal(bytes.size, st.st_size);
    fclose(file);
    return bytes;
}


static void make(const moe_synth_options_t *options, const char *path)
{
    moe_error_t error;

    if (moe_synth(options, path, &error) != 0) {
        fail_msg("%s", error.message);
    }
}


/* The share of the busiest expert against an even share, over all layers but the first, which may
 * have none. */
static double busiest(const moe_forward_t *forward, const moe_model_t *model)
{
    const uint64_t *load = moe_forward_expert_load(forward);
    const uint32_t experts = moe_forward_experts(forward);
    uint64_t most = 0, all = 0;

    for (uint32_t i = experts; i < model->n_layers * experts; i++) {
        most = load[i] > most ? load[i] : most;
        all += load[i];
    }
    return (double) most * (model->n_layers - 1) * experts / (double) all;
}


static void run(const char *path, const char *family)
{
    moe_error_t error = { MOE_OK, "" };
    moe_model_t *model = moe_model_open(path, &error);
    moe_forward_options_t options = {
        .threads = 2, .context = TOKENS, .batch_rows = TOKENS, .batch_sequences = 1,
        .batch_outputs = 1,
    };
    uint32_t ids[TOKENS], blocks[TOKENS / MOE_BLOCK_TOKENS];
    const moe_batch_sequence_t sequence = { ids, TOKENS, 0, blocks, 1 };
    const moe_batch_t batch = { .sequences = &sequence, .n_sequences = 1 };
    moe_forward_t *forward;
    const float *logits;

    assert_string_equal(error.message, "");
    assert_string_equal(model->family, family);
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (i * 37 + 11) % model->vocabulary;
        blocks[i / MOE_BLOCK_TOKENS] = i / MOE_BLOCK_TOKENS;
    }
    options.cache_bytes = TOKENS / MOE_BLOCK_TOKENS * moe_forward_block_bytes(model, MOE_KV_F32);
    forward = moe_forward_create(model, &options, &error);
    assert_non_null(forward);
    logits = moe_forward_step(forward, &batch, NULL);
    for (uint32_t i = 0; i < model->vocabulary; i++) {
        assert_true(isfinite(logits[i]) && fabsf(logits[i]) < 100);
    }
    assert_true(busiest(forward, model) < 3);
    moe_forward_free(forward);
    moe_model_close(model);
}


static void test_types(void **state)
{
    char *directory = tiny_directory(), path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    for (moe_dtype_t type = MOE_F32; type <= MOE_MXFP4; type++) {
        make(&(moe_synth_options_t) { .shape = "deepseek-tiny", .type = type, .threads = 2 }, path);
        run(path, "deepseek_v3");
    }
    tiny_directory_remove(directory);
}


static void test_architectures(void **state)
{
    static const char *const shapes[][2] = {
        { "olmoe-tiny", "olmoe" }, { "mixtral-tiny", "mixtral" }, { "qwen3-tiny", "qwen3_moe" },
        { "gpt-oss-tiny", "gpt_oss" },
    };
    char *directory = tiny_directory(), path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        make(&(moe_synth_options_t) { .shape = shapes[i][0], .type = MOE_Q4_K, .threads = 2 },
             path);
        run(path, shapes[i][1]);
    }
    tiny_directory_remove(directory);
}


static void test_same_bytes(void **state)
{
    char *directory = tiny_directory(), path[PATH_MAX];
    moe_synth_options_t options = {
        .shape = "deepseek-tiny", .type = MOE_Q4_K, .threads = 1, .layers = 2
    };
    gguf_bytes_t files[3];

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    for (int i = 0; i < 3; i++) {
        options.threads = 1 + (unsigned) i;
        options.seed = i == 2;
        make(&options, path);
        files[i] = content(path);
    }
    assert_int_equal(files[0].size, files[1].size);
    assert_memory_equal(files[0].data, files[1].data, files[0].size);
    assert_int_equal(files[0].size, files[2].size);
    assert_memory_not_equal(files[0].data, files[2].data, files[0].size);
    for (int i = 0; i < 3; i++) {
        free(files[i].data);
    }
    tiny_directory_remove(directory);
}


/* Some bytes, some pairs, a BOS where the shape has one. */
static void check_texts(const char *shape, int bos)
{
    static const char string[] = "the Quick brown\nfox \xe2\x82\xac \x01\x7f 12";
    char *directory = tiny_directory(), path[PATH_MAX];
    moe_tokenizer_t *tokenizer;
    moe_text_t text = { 0 };
    moe_buffer_t back = { 0 };
    moe_ids_t ids = { 0 };
    moe_chat_t *chat;
    moe_error_t error;

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    make(&(moe_synth_options_t) { .shape = shape, .type = MOE_Q4_0, .threads = 1, .layers = 1 },
         path);
    assert_int_equal(moe_texts_open(path, NULL, &tokenizer, &chat, &error), 0);
    assert_int_equal(moe_tokenizer_size(tokenizer), 2560);
    assert_int_equal(moe_text_append(&text, string, strlen(string), 0, &error), 0);
    assert_int_equal(moe_tokenizer_encode(tokenizer, &text, MOE_ENCODE_POST_PROCESS, 0, &ids,
                                          &error), 0);
    assert_true(ids.count < strlen(string) - 5);            /* something was merged */
    for (size_t i = (size_t) bos; i < ids.count; i++) {
        size_t size;
        const char *piece = moe_tokenizer_piece(tokenizer, ids.ids[i], &size);

        moe_buffer_append(&back, piece, size, &error);
    }
    assert_int_equal(back.size, strlen(string));
    assert_memory_equal(back.data, string, back.size);
    moe_buffer_free(&back);
    moe_ids_free(&ids);
    moe_text_free(&text);
    moe_tokenizer_free(tokenizer);
    moe_chat_free(chat);
    tiny_directory_remove(directory);
}


static void test_texts(void **state)
{
    check_texts("deepseek-tiny", 1);
    check_texts("qwen3-tiny", 0);
}


static void test_failures(void **state)
{
    static const struct {
        moe_synth_options_t options;
        const char *path, *message;
    } cases[] = {
        { { .shape = "magic", .type = MOE_BF16, .threads = 1 }, "/x",
          "no shape \"magic\"; there are " },
        { { .shape = "deepseek-tiny", .type = MOE_BF16, .threads = 1, .layers = 5 }, "/x",
          "deepseek-tiny has 4 layers, not 5" },
        { { .shape = "deepseek-tiny", .type = MOE_BF16, .threads = 1 }, "/no/such/x.gguf",
          "/no/such/x.gguf.part: No such file" },
        { { .shape = "deepseek-tiny", .type = MOE_BF16, .threads = 1 }, "/dev/full/x",
          "/dev/full/x.part: Not a directory" },
        { { .shape = "deepseek-tiny", .type = MOE_BF16, .threads = 1 }, "/tmp",
          "/tmp: is no regular file" },
    };
    moe_error_t error;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(moe_synth(&cases[i].options, cases[i].path, &error), -1);
        assert_non_null(strstr(error.message, cases[i].message));
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_failures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
