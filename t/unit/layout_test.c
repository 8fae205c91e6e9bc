/*
 * The same model stored in other ways: experts of a layer in two tensors, of either orientation;
 * as the language model of one that sees.  Logits are the same, bit by bit.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/forward.h"
#include "engine/model/model.h"
#include "t/unit/tiny_model.h"

#define TOKENS 20u


/* Logits of all positions of a fixed sequence, owned by the caller. */
static float *logits_of(const tiny_files_t *files, size_t *size)
{
    moe_forward_options_t options = {
        .threads = 2, .context = TOKENS, .batch_rows = TOKENS, .batch_sequences = 1,
        .batch_outputs = TOKENS
    };
    const uint32_t blocks[2] = { 1, 0 };
    uint32_t ids[TOKENS];
    const moe_batch_sequence_t sequence = { ids, TOKENS, 0, blocks, TOKENS };
    const moe_batch_t batch = { .sequences = &sequence, .n_sequences = 1 };
    char *directory = tiny_directory();
    moe_error_t error;
    moe_model_t *model;
    moe_forward_t *forward;
    float *logits;

    tiny_model_save(files, directory);
    model = moe_model_open(directory, &error);
    if (model == NULL) {
        fail_msg("%s", error.message);
    }
    tiny_directory_remove(directory);
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (i * 37 + 11) % model->vocabulary;
    }
    options.cache_bytes = 2 * moe_forward_block_bytes(model, MOE_KV_F32);
    forward = moe_forward_create(model, &options, &error);
    assert_non_null(forward);
    *size = (size_t) TOKENS * model->vocabulary * sizeof(float);
    logits = malloc(*size);
    assert_non_null(logits);
    memcpy(logits, moe_forward_step(forward, &batch, NULL), *size);
    moe_forward_free(forward);
    moe_model_close(model);
    return logits;
}


static void check_same(const tiny_files_t *files, const tiny_files_t *others)
{
    size_t size, other_size;
    float *logits = logits_of(files, &size), *other = logits_of(others, &other_size);

    assert_int_equal(size, other_size);
    assert_memory_equal(logits, other, size);
    free(logits);
    free(other);
}


static void set_entry(tiny_files_t *files, const char *name, const char *dtype, json_t *shape,
                      size_t begin)
{
    json_object_set_new(files->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape,
                                  "data_offsets", (json_int_t) begin, (json_int_t) files->size));
}


static void append_bytes(tiny_files_t *files, const void *bytes, size_t size)
{
    files->data = realloc(files->data, files->size + size);
    assert_non_null(files->data);
    memcpy(files->data + files->size, bytes, size);
    files->size += size;
}


/* The tensors whose names do not hold `part`. */
static tiny_files_t copy_without(const tiny_files_t *files, const char *part)
{
    tiny_files_t copy = { .config = json_deep_copy(files->config), .header = json_object() };
    const char *name;
    json_t *info;

    json_object_foreach(files->header, name, info) {
        const json_t *offsets = json_object_get(info, "data_offsets");
        const size_t from = (size_t) json_integer_value(json_array_get(offsets, 0));
        const size_t to = (size_t) json_integer_value(json_array_get(offsets, 1));
        const size_t begin = copy.size;

        if (strstr(name, part) == NULL) {
            append_bytes(&copy, files->data + from, to - from);
            set_entry(&copy, name, json_string_value(json_object_get(info, "dtype")),
                      json_incref(json_object_get(info, "shape")), begin);
        }
    }
    return copy;
}


/* A matrix of two-byte elements into a place of another one of so many columns, or its transpose. */
static void place(const tiny_files_t *from, const char *prefix, unsigned expert, const char *name,
                  uint32_t rows, uint32_t columns, int turned, uint16_t *to, uint32_t to_columns)
{
    const json_t *offsets;
    const uint16_t *values;
    char full[128];

    snprintf(full, sizeof(full), "%s%u.%s.weight", prefix, expert, name);
    offsets = json_object_get(json_object_get(from->header, full), "data_offsets");
    assert_non_null(offsets);
    values = (const void *) (from->data + json_integer_value(json_array_get(offsets, 0)));
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            to[turned ? c * to_columns + r : r * to_columns + c] = values[r * columns + c];
        }
    }
}


/* All experts of a layer in two tensors, each one's matrices as they are or transposed. */
static void fuse_layer(tiny_files_t *to, const tiny_files_t *from, const tiny_model_t *o,
                       const char *prefix, int turned)
{
    const uint32_t width = o->expert_width, hidden = o->hidden;
    const size_t size = (size_t) width * hidden, both_bytes = 2 * size * sizeof(uint16_t);
    const uint32_t columns = turned ? 2 * width : hidden;
    uint16_t *both = malloc(both_bytes);
    size_t begin = to->size;
    char name[128];

    assert_non_null(both);
    for (unsigned e = 0; e < o->experts; e++) {
        place(from, prefix, e, "gate_proj", width, hidden, turned, both, columns);
        place(from, prefix, e, "up_proj", width, hidden, turned, both + (turned ? width : size),
              columns);
        append_bytes(to, both, both_bytes);
    }
    snprintf(name, sizeof(name), "%sgate_up_proj", prefix);
    set_entry(to, name, o->dtype, json_pack("[i, i, i]", o->experts, turned ? hidden : 2 * width,
                                            columns), begin);
    begin = to->size;
    for (unsigned e = 0; e < o->experts; e++) {
        place(from, prefix, e, "down_proj", hidden, width, turned, both, turned ? hidden : width);
        append_bytes(to, both, both_bytes / 2);
    }
    snprintf(name, sizeof(name), "%sdown_proj", prefix);
    set_entry(to, name, o->dtype, json_pack("[i, i, i]", o->experts, turned ? width : hidden,
                                            turned ? hidden : width), begin);
    free(both);
}


static void test_fused_experts(void **state)
{
    /* Of a hidden size of 64: one where a transposed pair has the same shape, one where a single
     * matrix has, one where none has. */
    static const uint32_t widths[] = { 32, 64, 48 };

    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        tiny_model_t options = i == 0 ? tiny_model_defaults() : tiny_model_gqa("qwen3_moe");
        tiny_files_t files;

        options.expert_width = widths[i];
        options.mtp = 0;
        files = tiny_model_make(&options);
        for (int turned = 0; turned < 2; turned++) {
            tiny_files_t fused = copy_without(&files, ".mlp.experts.");
            char prefix[64];

            for (uint32_t l = options.dense_layers; l < options.layers; l++) {
                snprintf(prefix, sizeof(prefix), "model.layers.%u.mlp.experts.", l);
                fuse_layer(&fused, &files, &options, prefix, turned);
            }
            check_same(&files, &fused);
            tiny_model_free(&fused);
        }
        tiny_model_free(&files);
    }
}


/* The config around that of the language model; what it says must be understood. */
static json_t *wrap_config(const tiny_files_t *files)
{
    json_t *outer = json_pack("{s:s, s:O, s:{s:i}, s:i, s:i, s:b, s:[i]}", "model_type",
                              "kimi_k25", "text_config", files->config, "vision_config", "depth",
                              2, "media_placeholder_token_id", 5, "ignore_index", -100,
                              "tie_word_embeddings", 0, "eos_token_id", 7);

    assert_non_null(outer);
    return outer;
}


/* The language model's tensors under another name, and one of the part that sees. */
static tiny_files_t wrap(const tiny_files_t *files, int newer)
{
    tiny_files_t wrapped = copy_without(files, "none");
    json_t *header = json_object(), *info;
    const char *name, *vision = newer ? "model.visual.proj.weight" : "vision_tower.proj.weight";
    const size_t begin = wrapped.size;
    char full[128];

    json_object_foreach(wrapped.header, name, info) {
        if (!newer) {
            snprintf(full, sizeof(full), "language_model.%s", name);
        } else if (strncmp(name, "model.", 6) == 0) {
            snprintf(full, sizeof(full), "model.language_model.%s", name + 6);
        } else {
            snprintf(full, sizeof(full), "%s", name);
        }
        json_object_set(header, full, info);
    }
    json_decref(wrapped.header);
    wrapped.header = header;
    append_bytes(&wrapped, (float[3]) { 1, 2, 3 }, 12);
    set_entry(&wrapped, vision, "F32", json_pack("[i]", 3), begin);
    json_decref(wrapped.config);
    wrapped.config = wrap_config(files);
    return wrapped;
}


static void test_wrapped_models(void **state)
{
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files;

    options.model_type = "kimi_k2";
    options.groups = 1;
    options.groups_kept = 1;
    files = tiny_model_make(&options);
    for (int newer = 0; newer < 2; newer++) {
        tiny_files_t wrapped = wrap(&files, newer);

        check_same(&files, &wrapped);
        tiny_model_free(&wrapped);
    }
    tiny_model_free(&files);
}


/* Qwen3-VL's language model is Qwen3-MoE, with experts in two tensors and positions of three axes
 * that are the same for text. */
static void test_qwen3_vl(void **state)
{
    const tiny_model_t options = tiny_model_gqa("qwen3_moe");
    tiny_files_t files = tiny_model_make(&options), wrapped;
    tiny_files_t fused = copy_without(&files, ".mlp.experts.");
    char prefix[64];

    for (uint32_t l = 0; l < options.layers; l++) {
        snprintf(prefix, sizeof(prefix), "model.layers.%u.mlp.experts.", l);
        fuse_layer(&fused, &files, &options, prefix, 1);
    }
    json_object_set_new(fused.config, "model_type", json_string("qwen3_vl_moe_text"));
    json_object_set_new(fused.config, "rope_scaling", json_pack(
        "{s:s, s:b, s:[i, i, i]}", "rope_type", "default", "mrope_interleaved", 1,
        "mrope_section", 4, 2, 2));
    wrapped = wrap(&fused, 1);
    json_object_set_new(wrapped.config, "model_type", json_string("qwen3_vl_moe"));
    json_object_set_new(wrapped.config, "image_token_id", json_integer(5));
    check_same(&files, &wrapped);
    tiny_model_free(&wrapped);
    tiny_model_free(&fused);
    tiny_model_free(&files);
}


/* What is said of the outer config, of the inner one, and of tensors. */
static void test_wrapped_damage(void **state)
{
    static const struct {
        const char *outer, *text, *message;
    } cases[] = {
        { "{\"text_config\": null}", "{}", "/config.json: text_config: missing" },
        { "{\"text_config\": []}", "{}", "/config.json: text_config: not an object" },
        { "{\"magic\": 1}", "{}", "/config.json: magic: unknown key" },
        { "{\"model_type\": \"kimi_k3\"}", "{}",
          "/config.json: model_type: \"kimi_k3\" is not a supported family" },
        { "{\"tie_word_embeddings\": true}", "{}", "tie_word_embeddings: not as in text_config" },
        { "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}", "{}",
          "quantization_config: weights quantised by \"compressed-tensors\"" },
        { "{}", "{\"quantization_config\": {\"quant_method\": \"fp8\"}}",
          "text_config: quantization_config: weights quantised by \"fp8\"" },
        { "{}", "{\"model_type\": \"other\"}",
          "/config.json: text_config: model_type: \"other\" is not a supported family" },
        { "{}", "{\"magic\": 1}", "/config.json: text_config: magic: unknown key" },
        { "{}", "{\"vocab_size\": 95}", "language_model.model.embed_tokens.weight: shape" },
        { "{\"eos_token_id\": 96}", "{}", "/config.json: eos_token_id: entry 0 is not a token id" },
    };
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files = tiny_model_make(&options), wrapped = wrap(&files, 0);
    json_t *text = json_object_get(wrapped.config, "text_config");
    char *directory = tiny_directory();
    moe_error_t error;

    tiny_model_save(&wrapped, directory);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *config = json_deep_copy(wrapped.config), *inner = json_deep_copy(text);

        json_object_update_new(inner, json_loads(cases[i].text, 0, NULL));
        json_object_set_new(config, "text_config", inner);
        json_object_update_new(config, json_loads(cases[i].outer, 0, NULL));
        tiny_write_json(directory, "config.json", config);
        json_decref(config);
        assert_null(moe_model_open(directory, &error));
        if (error.code != MOE_BAD_MODEL || strstr(error.message, cases[i].message) == NULL) {
            fail_msg("expected \"%s\" in \"%s\"", cases[i].message, error.message);
        }
    }
    tiny_directory_remove(directory);
    tiny_model_free(&wrapped);
    tiny_model_free(&files);
}


/* Ids that end an answer are those of both configs; a description needs no weights. */
static void test_wrapped_settings(void **state)
{
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files = tiny_model_make(&options), wrapped = wrap(&files, 0);
    char *directory = tiny_directory();
    moe_error_t error;
    moe_model_t *model;

    tiny_model_save(&wrapped, directory);
    model = moe_model_open(directory, &error);
    assert_non_null(model);
    assert_string_equal(model->family, "deepseek_v3");
    assert_int_equal(model->n_eos_ids, 2);
    assert_memory_equal(model->eos_ids, ((uint32_t[]) { 1, 7 }), 2 * sizeof(uint32_t));
    moe_model_close(model);

    json_object_set_new(json_object_get(wrapped.config, "text_config"), "quantization_config",
                        json_pack("{s:s}", "quant_method", "compressed-tensors"));
    model = moe_model_describe(wrapped.config, &error);
    assert_non_null(model);
    assert_int_equal(model->hidden, options.hidden);
    moe_model_close(model);
    tiny_directory_remove(directory);
    tiny_model_free(&wrapped);
    tiny_model_free(&files);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_experts),
        cmocka_unit_test(test_wrapped_models),
        cmocka_unit_test(test_qwen3_vl),
        cmocka_unit_test(test_wrapped_damage),
        cmocka_unit_test(test_wrapped_settings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
