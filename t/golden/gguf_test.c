/*
 * The same model from a directory and from GGUF: logits, token ids, renderings and settings are the
 * same, bit by bit, where the numbers are.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/forward.h"
#include "engine/model/model.h"
#include "engine/serve/texts.h"
#include "t/golden/reference_model.h"
#include "t/unit/gguf_convert.h"
#include "t/unit/tiny_model.h"

#define DEMO "conf/models/nginx-directives-moe"
#define TOKENS 70u


/* Logits of all positions of a fixed sequence, owned by the caller; NULL with the error. */
static float *logits_of(const char *path, size_t *size, moe_error_t *error)
{
    moe_model_t *model = moe_model_open(path, error);
    moe_forward_options_t options = {
        .threads = 2, .context = TOKENS, .batch_rows = TOKENS, .batch_sequences = 1,
        .batch_outputs = TOKENS,
    };
    uint32_t ids[TOKENS], blocks[(TOKENS + MOE_BLOCK_TOKENS - 1) / MOE_BLOCK_TOKENS];
    const moe_batch_sequence_t sequence = { ids, TOKENS, 0, blocks, TOKENS };
    const moe_batch_t batch = { .sequences = &sequence, .n_sequences = 1 };
    moe_forward_t *forward;
    float *logits = NULL;

    if (model == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (i * 37 + 11) % model->vocabulary;
        blocks[i / MOE_BLOCK_TOKENS] = i / MOE_BLOCK_TOKENS;
    }
    options.cache_bytes = sizeof(blocks) / sizeof(blocks[0])
                          * moe_forward_block_bytes(model, MOE_KV_F32);
    forward = moe_forward_create(model, &options, error);
    if (forward != NULL) {
        *size = (size_t) TOKENS * model->vocabulary;
        logits = malloc(*size * sizeof(float));
        memcpy(logits, moe_forward_step(forward, &batch, NULL), *size * sizeof(float));
    }
    moe_forward_free(forward);
    moe_model_close(model);
    return logits;
}


static float *expect_logits(const char *path, size_t *size)
{
    moe_error_t error;
    float *logits = logits_of(path, size, &error);

    if (logits == NULL) {
        fail_msg("%s: %s", path, error.message);
    }
    return logits;
}


/* Converts and computes; relative error against the directory's own logits. */
static double compare(const char *source, const gguf_options_t *options, const char *file)
{
    char *directory = tiny_directory(), path[PATH_MAX];
    size_t size, other_size;
    float *expected = expect_logits(source, &size), *logits;
    double error = 0, norm = 0;

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    gguf_convert(source, path, options);
    snprintf(path, sizeof(path), "%s%s", directory, file);
    logits = expect_logits(path, &other_size);
    assert_int_equal(size, other_size);
    for (size_t i = 0; i < size; i++) {
        error += pow((double) logits[i] - (double) expected[i], 2);
        norm += pow((double) expected[i], 2);
    }
    free(expected);
    free(logits);
    tiny_directory_remove(directory);
    return sqrt(error / norm);
}


static void test_demo_logits(void **state)
{
    static const struct {
        gguf_options_t options;
        const char *file;               /* what is opened; "": the directory */
    } cases[] = {
        { { .type = GGUF_BF16, .legacy = 0 }, "/model.gguf" },
        { { .type = GGUF_BF16, .legacy = 1 }, "" },
        { { .type = GGUF_F32, .legacy = 0 }, "/model.gguf" },
        { { .type = GGUF_BF16, .legacy = 0, .parts = 3 }, "/model-00001-of-00003.gguf" },
        { { .type = GGUF_BF16, .legacy = 1, .parts = 2 }, "" },
    };
    double error;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(compare(DEMO, &cases[i].options, cases[i].file) == 0);
    }
    /* Quantised once: near, but not the same. */
    error = compare(DEMO, &(gguf_options_t) { .type = GGUF_Q8_0, .legacy = 0 }, "/model.gguf");
    assert_true(error > 1e-4 && error < 0.1);
}


/* Every block format computes what its numbers in bf16 do. */
static void test_formats(void **state)
{
    char *directory = tiny_directory(), path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    for (size_t format = 0; format < GGUF_N_FORMATS; format++) {
        gguf_options_t options = { .type = GGUF_BF16, .random = 1, .format = format };
        float *logits[2];
        size_t size;

        for (options.widened = 0; options.widened < 2; options.widened++) {
            gguf_convert(DEMO, path, &options);
            logits[options.widened] = expect_logits(path, &size);
        }
        for (size_t i = 0; i < size; i++) {
            assert_true(isfinite(logits[0][i]));
        }
        assert_memory_equal(logits[0], logits[1], size * sizeof(float));
        free(logits[0]);
        free(logits[1]);
    }
    tiny_directory_remove(directory);
}


/* The switches that the demo model does not use. */
static void test_tiny_logits(void **state)
{
    tiny_model_t models[4] = {
        tiny_model_v2(), tiny_model_v2(), tiny_model_defaults(), tiny_model_defaults()
    };

    models[1].topk_method = "group_limited_greedy";
    models[1].groups = 4;
    models[1].groups_kept = 2;
    models[1].scale = 1.5;
    models[1].dtype = "F32";
    models[2].tied = 1;
    models[2].yarn = 1;
    models[2].scale = 2.827;
    models[3].model_type = "glm4_moe_lite";
    models[3].groups = models[3].groups_kept = 1;
    models[3].scale = 1.8;
    for (size_t i = 0; i < 4; i++) {
        tiny_files_t files = tiny_model_make(&models[i]);
        char *directory = tiny_directory();

        tiny_model_save(&files, directory);
        for (int legacy = 0; legacy < 2; legacy++) {
            gguf_options_t options = {
                .type = i == 1 ? GGUF_F32 : GGUF_BF16, .legacy = legacy, .prediction = i == 2
            };

            assert_true(compare(directory, &options, "/model.gguf") == 0);
        }
        tiny_directory_remove(directory);
        tiny_model_free(&files);
    }
}


/* Families with grouped queries, their numbers in all ways of packing. */
static void test_grouped_queries(void **state)
{
    static const char *const families[] = {
        "olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "minimax_m2", "glm4_moe"
    };
    static const uint32_t types[] = { GGUF_F32, GGUF_F16, GGUF_BF16 };
    static const char *const dtypes[] = { "F32", "F16", "BF16" };

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        for (int legacy = 0; legacy < 2; legacy++) {
            const size_t type = (i + (size_t) legacy) % 3;
            tiny_model_t options = tiny_model_gqa(families[i]);
            const int glm = strcmp(families[i], "glm4_moe") == 0;
            const int minimax = strcmp(families[i], "minimax_m2") == 0;
            const gguf_options_t gguf = {
                .type = types[type], .legacy = legacy, .prediction = glm && !legacy,
                .fused = minimax || (glm && legacy)
            };
            char *directory = tiny_directory();
            tiny_files_t files;

            options.dtype = dtypes[type];
            options.normalise = strcmp(families[i], "olmoe") != 0
                                && strcmp(families[i], "qwen2_moe") != 0;
            options.yarn = legacy;
            options.tied = legacy;
            options.qk_norm = !glm || legacy;
            options.biases = glm ? (uint32_t) legacy : options.biases;
            files = tiny_model_make(&options);
            tiny_model_save(&files, directory);
            assert_true(compare(directory, &gguf, "/model.gguf") == 0);
            tiny_directory_remove(directory);
            tiny_model_free(&files);
        }
    }
}


/* What GGUF tells of a config: not which layers are dense, which have windows but those of gpt-oss,
 * nor some types of scaling. */
static int is_told(const json_t *config)
{
    static const char *const untold[] = { "llama3", "longrope" };
    const json_t *scaling = json_object_get(config, "rope_scaling");
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    const char *model_type = json_string_value(json_object_get(config, "model_type"));

    if (json_is_integer(json_object_get(config, "sliding_window"))
        && !json_is_false(json_object_get(config, "use_sliding_window"))
        && strcmp(model_type, "gpt_oss") != 0)
    {
        return 0;
    }
    type = type != NULL ? type : json_string_value(json_object_get(scaling, "type"));
    for (size_t i = 0; type != NULL && i < sizeof(untold) / sizeof(untold[0]); i++) {
        if (strcmp(type, untold[i]) == 0) {
            return 0;
        }
    }
    return json_array_size(json_object_get(config, "mlp_only_layers")) == 0
           && json_integer_value(json_object_get(config, "decoder_sparse_step")) < 2
           && gguf_architecture(model_type) != NULL;
}


/* The models of every family.  Hunyuan's base frequency is rounded to f32; gpt-oss's limit is not
 * told. */
static void test_families(void **state)
{
    json_t *golden = json_load_file(REFERENCE_MODELS, 0, NULL), *test;
    size_t i, compared = 0;

    assert_non_null(golden);
    json_array_foreach(json_object_get(golden, "cases"), i, test) {
        const json_t *config = json_object_get(test, "config");
        const json_t *scaling = json_object_get(config, "rope_scaling");
        const int rounded = json_object_get(scaling, "alpha") != NULL;
        char *directory = tiny_directory();
        tiny_files_t files;
        double error;

        if (is_told(config)) {
            files = reference_model_make(test, "config");
            if (json_object_get(files.config, "swiglu_limit") != NULL) {
                json_object_set_new(files.config, "swiglu_limit", json_real(7));
            }
            tiny_model_save(&files, directory);
            error = compare(directory, &(gguf_options_t) { .type = GGUF_F32, .legacy = i % 2 },
                            "/model.gguf");
            if (!(error <= (rounded ? 1e-5 : 0))) {
                fail_msg("%s: %g", json_string_value(json_object_get(test, "name")), error);
            }
            compared++;
            tiny_model_free(&files);
        }
        tiny_directory_remove(directory);
    }
    assert_true(compared >= 10);
    json_decref(golden);
}


static void encode(const char *path, const char *string, int trusted, moe_ids_t *ids)
{
    moe_tokenizer_t *tokenizer;
    moe_text_t text = { 0 };
    moe_error_t error;

    if (moe_texts_open(path, NULL, &tokenizer, NULL, &error) != 0) {
        fail_msg("%s: %s", path, error.message);
    }
    assert_int_equal(moe_text_append(&text, string, strlen(string), trusted, &error), 0);
    assert_int_equal(
        moe_tokenizer_encode(tokenizer, &text, MOE_ENCODE_POST_PROCESS, 0, ids, &error), 0);
    moe_text_free(&text);
    moe_tokenizer_free(tokenizer);
}


static void compare_pieces(const moe_tokenizer_t *a, const moe_tokenizer_t *b)
{
    assert_int_equal(moe_tokenizer_size(a), moe_tokenizer_size(b));
    for (uint32_t id = 0; id < moe_tokenizer_size(a); id++) {
        size_t size_a = 0, size_b = 0;
        const char *piece_a = moe_tokenizer_piece(a, id, &size_a);
        const char *piece_b = moe_tokenizer_piece(b, id, &size_b);

        assert_int_equal(size_a, size_b);
        assert_true((piece_a == NULL) == (piece_b == NULL));
        assert_true(piece_a == NULL || memcmp(piece_a, piece_b, size_a) == 0);
        assert_int_equal(moe_tokenizer_is_special(a, id), moe_tokenizer_is_special(b, id));
    }
}


static void compare_chats(const moe_chat_t *a, const moe_chat_t *b)
{
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":\"What is <|eos|> listen?\"}]";
    moe_text_t texts[2] = { { { 0 }, NULL, 0, 0 }, { { 0 }, NULL, 0, 0 } };
    const moe_chat_request_t request = {
        .messages = { messages, sizeof(messages) - 1 }, .add_generation_prompt = 1
    };
    const moe_chat_t *chats[2] = { a, b };
    moe_error_t error;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(moe_chat_render(chats[i], &request, &texts[i], &error), 0);
    }
    assert_int_equal(texts[0].bytes.size, texts[1].bytes.size);
    assert_true(texts[0].bytes.size > 60);
    assert_memory_equal(texts[0].bytes.data, texts[1].bytes.data, texts[0].bytes.size);
    assert_int_equal(texts[0].n_trusted, texts[1].n_trusted);
    moe_text_free(&texts[0]);
    moe_text_free(&texts[1]);
}


static void test_texts(void **state)
{
    static const char *const strings[] = {
        "", "listen 8080;", "Hello World's 12345  x\n\n  it'S \xe4\xb8\xad\xe6\x96\x87" "abc",
        "<|user|>proxy_pass<|eos|>", " \t\r\n  trailing  ",
        "caf\xc3\xa9 e\xcc\x81 \xf0\x9f\x98\x80",
        "#include <stdio.h>\nint main(void) { return 0; }",
    };
    char *directory = tiny_directory(), path[PATH_MAX];
    const char *models[2] = { DEMO, path };
    moe_tokenizer_t *tokenizers[2];
    moe_chat_t *chats[2];
    moe_error_t error;

    snprintf(path, sizeof(path), "%s/model.gguf", directory);
    gguf_convert(DEMO, path, &(gguf_options_t) { .type = GGUF_BF16, .legacy = 0 });
    for (size_t i = 0; i < 2 * sizeof(strings) / sizeof(strings[0]); i++) {
        moe_ids_t ids[2] = { { 0 }, { 0 } };

        encode(models[0], strings[i / 2], i % 2, &ids[0]);
        encode(models[1], strings[i / 2], i % 2, &ids[1]);
        assert_int_equal(ids[0].count, ids[1].count);
        assert_memory_equal(ids[0].ids, ids[1].ids, ids[0].count * sizeof(uint32_t));
        moe_ids_free(&ids[0]);
        moe_ids_free(&ids[1]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moe_texts_open(models[i], NULL, &tokenizers[i], &chats[i], &error), 0);
    }
    compare_pieces(tokenizers[0], tokenizers[1]);
    compare_chats(chats[0], chats[1]);
    for (int i = 0; i < 2; i++) {
        moe_tokenizer_free(tokenizers[i]);
        moe_chat_free(chats[i]);
    }
    tiny_directory_remove(directory);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_logits),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_tiny_logits),
        cmocka_unit_test(test_grouped_queries),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
