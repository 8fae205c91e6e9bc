/* GGUF: the container and its damages, metadata as a config, paths of models. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/stat.h>

#include "engine/core/model_path.h"
#include "engine/model/build.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_config.h"
#include "engine/model/model.h"
#include "engine/text/gguf_text.h"
#include "t/unit/gguf_convert.h"
#include "t/unit/tiny_model.h"


/*
 * Bytes from a text of words: "N1:5" to "N8:5" a number of so many bytes, "F:1.5" an f32, "S:name"
 * a string with its length, "Z:5" zeros, "P:32" padding, others themselves.
 */
static gguf_bytes_t assemble(const char *script)
{
    gguf_bytes_t bytes = { 0 };
    char word[96];
    int n;

    for (; sscanf(script, "%95s%n", word, &n) == 1; script += n) {
        char *argument = strchr(word, ':') ? strchr(word, ':') + 1 : word;

        if (word[0] == 'N' && argument != word) {
            gguf_number(&bytes, strtoull(argument, NULL, 10), (size_t) (word[1] - '0'));
        } else if (word[0] == 'F') {
            gguf_put(&bytes, &(float) { strtof(argument, NULL) }, 4);
        } else if (word[0] == 'S') {
            gguf_text(&bytes, argument, strlen(argument));
        } else if (word[0] == 'Z') {
            for (int i = atoi(argument); i > 0; i--) {
                gguf_number(&bytes, 0, 1);
            }
        } else if (word[0] == 'P') {
            gguf_pad(&bytes, (size_t) atoi(argument));
        } else {
            gguf_put(&bytes, word, strlen(word));
        }
    }
    return bytes;
}


static json_t *read_script(const char *script, moe_tensor_list_t *list, moe_error_t *error)
{
    gguf_bytes_t bytes = assemble(script);
    /* a copy of the exact size, so that ASan sees a byte read too many */
    unsigned char *exact = malloc(bytes.size ? bytes.size : 1);
    moe_mapping_t mapping = { exact, bytes.size };
    json_t *metadata;

    if (bytes.size > 0) {
        memcpy(exact, bytes.data, bytes.size);
    }
    moe_gguf_read(list, &mapping, "x.gguf", 0, &metadata, error);
    free(bytes.data);
    free(exact);
    return metadata;
}


#define HEAD "GGUF N4:3 "
#define KEY HEAD "N8:0 N8:1 S:a "                       /* one key, "a" */
#define TENSOR HEAD "N8:1 N8:0 S:t "                    /* one tensor, "t" */
#define TWO HEAD "N8:2 N8:0 S:t N4:1 N8:8 N4:0 N8:0 S:u N4:1 N8:8 N4:0 "

static void test_values(void **state)
{
    static const char script[] = HEAD "N8:1 N8:16 "
        "S:u8 N4:0 N1:200 S:i8 N4:1 N1:200 S:u16 N4:2 N2:65535 S:i16 N4:3 N2:65535 "
        "S:u32 N4:4 N4:4294967295 S:i32 N4:5 N4:4294967295 S:f32 N4:6 F:0.1 S:yes N4:7 N1:1 "
        "S:text N4:8 S:hello S:list N4:9 N4:8 N8:2 S:b S:c S:nested N4:9 N4:9 N8:2 N4:0 N8:1 N1:7 "
        "N4:7 N8:1 N1:0 S:none N4:9 N4:4 N8:0 S:u64 N4:10 N8:5 S:i64 N4:11 N8:18446744073709551615 "
        "S:f64 N4:12 N8:4602678819172646912 S:general.alignment N4:4 N4:64 "
        "S:t N4:2 N8:32 N8:3 N4:8 N8:0 P:64 Z:102";
    static const char expected[] =
        "{\"u8\":200,\"i8\":-56,\"u16\":65535,\"i16\":-1,\"u32\":4294967295,\"i32\":-1,\"f32\":0.1,"
        "\"yes\":true,\"text\":\"hello\",\"list\":[\"b\",\"c\"],\"nested\":[[7],[false]],"
        "\"none\":[],"
        "\"u64\":5,\"i64\":-1,\"f64\":0.5,\"general.alignment\":64}";
    moe_tensor_list_t list = { 0 };
    moe_error_t error;
    json_t *metadata = read_script(script, &list, &error);
    char *text = json_dumps(metadata, JSON_COMPACT | JSON_REAL_PRECISION(16));

    assert_string_equal(text, expected);
    assert_int_equal(list.count, 1);
    assert_string_equal(list.entries[0].tensor.name, "t");
    assert_string_equal(list.entries[0].tensor.type, "Q8_0");
    assert_int_equal(list.entries[0].tensor.shape[0], 3);
    assert_int_equal(list.entries[0].tensor.shape[1], 32);
    assert_int_equal(list.entries[0].tensor.size, 102);
    free(text);
    json_decref(metadata);
    moe_tensor_list_free(&list);
}


static void test_damaged_files(void **state)
{
    static const struct {
        const char *script, *message;
    } cases[] = {
        { "GGU", "not a GGUF file" },
        { "GGML N4:3", "not a GGUF file" },
        { "GGUF N4:1 N8:0 N8:0", "GGUF version 1 is not supported" },
        { "GGUF N4:50331648 N8:0 N8:0", "a big-endian file?" },
        { HEAD "N8:0 N4:0", "ends inside its header" },
        { HEAD "N8:1048577 N8:0", "more than 1048576" },
        { HEAD "N8:0 N8:65537", "65537 metadata keys" },
        { HEAD "N8:0 N8:1 N8:100000 abc", "ends inside its header" },
        { HEAD "N8:0 N8:1 N8:18446744073709551615 abc", "ends inside its header" },
        { HEAD "N8:0 N8:1 N8:0 N4:0 N1:0", "metadata: a key of 0 bytes" },
        { HEAD "N8:0 N8:1 N8:256 Z:300", "metadata: a key of 256 bytes" },
        { HEAD "N8:0 N8:1 N8:2 Z:20", "metadata: a key of 2 bytes, or with a NUL" },
        { HEAD "N8:0 N8:1 S:\xff N4:0 N1:0", "the key is not valid UTF-8" },
        { HEAD "N8:0 N8:2 S:a N4:0 N1:0 S:a N4:0 N1:0", "a: given twice" },
        { KEY "N4:13 Z:8", "a: unknown type 13" },
        { KEY "N4:7 N1:2", "a: a boolean is neither 0 nor 1" },
        { KEY "N4:6 F:nan", "a: not a finite number" },
        { KEY "N4:12 N8:9218868437227405312", "a: not a finite number" },
        { KEY "N4:10 N8:9223372036854775808", "a: 9223372036854775808 is too large" },
        { KEY "N4:8 S:\xc3(", "a: not valid UTF-8" },
        { KEY "N4:8 N8:9 abc", "a: ends inside its header" },
        { KEY "N4:9 N4:0 N8:4194305 Z:99", "a: array of 4194305: more than 4194304" },
        { KEY "N4:9 N4:0 N8:100 Z:99", "a: ends inside its header" },
        { KEY "N4:9 N4:13 N8:1 Z:99", "a: unknown type 13" },
        { KEY "N4:9 N4:9 N8:1 N4:9 N8:1 N4:9 N8:1 N4:9 N8:1 N4:9 N8:1", "nested deeper than 4" },
        { HEAD "N8:0 N8:1 S:general.alignment N4:4 N4:48", "general.alignment: 48 is not a power" },
        { HEAD "N8:0 N8:1 S:general.alignment N4:4 N4:0", "general.alignment: 0 is not within" },
        { HEAD "N8:0 N8:1 S:general.alignment N4:8 S:x", "general.alignment: not an integer" },
        { HEAD "N8:1 N8:0 N8:0 Z:99", "a tensor's name of 0 bytes" },
        { TENSOR "N4:0 N4:0 N8:0", "t: 0 dimensions" },
        { TENSOR "N4:5 Z:60", "t: 5 dimensions" },
        { TENSOR "N4:2 N8:8 N8:0 N4:0 N8:0", "t: dimension 1 is 0" },
        { TENSOR "N4:2 N8:4294967296 N8:4294967296 N4:0 N8:0", "t: dimension 1 is 4294967296" },
        { TENSOR "N4:1 N8:4611686018427387904 N4:0 N8:0", "t: larger than the file" },
        { TENSOR "N4:1 N8:8 N4:4 N8:0", "t: unknown type 4" },
        { TENSOR "N4:1 N8:8 N4:41 N8:0", "t: unknown type 41" },
        { TENSOR "N4:2 N8:48 N8:2 N4:8 N8:0", "t: rows of 48 elements, not a multiple of the 32" },
        { TENSOR "N4:2 N8:128 N8:2 N4:12 N8:0", "t: rows of 128 elements" },
        { TENSOR "N4:1 N8:8 N4:0 N8:0 P:32 Z:31", "t: lies beyond the file's 31 bytes" },
        { TENSOR "N4:1 N8:8 N4:0 N8:0", "t: lies beyond the file's 0 bytes" },
        { TENSOR "N4:1 N8:8 N4:0 N8:16 P:32 Z:64", "t: offset 16" },
        { TENSOR "N4:1 N8:8 N4:0 N8:18446744073709551584 P:32 Z:64", "t: offset 1844674407370955" },
        { TENSOR "N4:1 N8:8 N4:0 N8:32 P:32 Z:64", "t: offset: leave a gap after the header" },
        { TENSOR "N4:1 N8:8 N4:0 N8:0 P:32 Z:65", "the file is 33 bytes longer" },
        { TWO "N8:0 P:32 Z:64", "offset: overlap with" },
        { TWO "N8:64 P:32 Z:96", "u: offset: leave a gap after t" },
        { TWO "N8:32 P:32 Z:32", "u: lies beyond" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_tensor_list_t list = { 0 };
        moe_error_t error = { MOE_OK, "" };
        json_t *metadata = read_script(cases[i].script, &list, &error);

        if (metadata != NULL || strstr(error.message, cases[i].message) == NULL
            || strncmp(error.message, "x.gguf: ", 8) != 0)
        {
            fail_msg("%s: \"%s\" instead of \"%s\"", cases[i].script, error.message,
                     cases[i].message);
        }
        assert_true(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        moe_tensor_list_free(&list);
    }
}


/* A file cut anywhere is refused, and nothing behind its end is read. */
static void test_truncated_anywhere(void **state)
{
    gguf_bytes_t whole = assemble(HEAD "N8:1 N8:3 S:a N4:9 N4:8 N8:2 S:b S:c S:d N4:6 F:1 S:e "
                                  "N4:12 N8:0 S:t N4:1 N8:8 N4:0 N8:0 P:32 Z:32");

    for (size_t size = 1; size <= whole.size; size++) {
        unsigned char *exact = malloc(size);
        moe_mapping_t mapping = { exact, size };
        moe_tensor_list_t list = { 0 };
        moe_error_t error;
        json_t *metadata;

        memcpy(exact, whole.data, size);
        assert_int_equal(moe_gguf_read(&list, &mapping, "x.gguf", 0, &metadata, &error),
                         size == whole.size ? 0 : -1);
        json_decref(metadata);
        moe_tensor_list_free(&list);
        free(exact);
    }
    free(whole.data);
}


/* A tiny model as GGUF in a directory of its own. */
static char *make_gguf(const tiny_model_t *options, const gguf_options_t *gguf, char path[PATH_MAX])
{
    tiny_files_t files = tiny_model_make(options);
    char *source = tiny_directory(), *directory = tiny_directory();

    tiny_model_save(&files, source);
    snprintf(path, PATH_MAX, "%s/model.gguf", directory);
    gguf_convert(source, path, gguf);
    tiny_directory_remove(source);
    tiny_model_free(&files);
    return directory;
}


typedef struct {
    const char *edits;                  /* over the metadata; null removes */
    const char *expected;               /* the error, or what the config must hold, as JSON */
} config_case_t;


/* Reads the file's metadata after the edits: 0 with the config, or -1. */
static int check_config(const char *path, const json_t *edits, moe_config_t *config,
                        moe_error_t *error)
{
    json_t *metadata;
    moe_tensors_t *tensors = moe_tensors_open_gguf(path, &metadata, error);
    moe_model_t *model = calloc(1, sizeof(*model));
    const moe_family_t *family = NULL;
    int rc;

    assert_non_null(model);
    assert_non_null(tensors);
    json_object_update(metadata, (json_t *) (uintptr_t) edits);
    rc = moe_gguf_config(config, metadata, "model.gguf", tensors, error);
    if (rc == 0) {
        family = moe_family_find(config);
        rc = family != NULL ? family->describe(family, model, config, error) : -1;
    }
    json_decref(metadata);
    moe_tensors_close(tensors);
    moe_model_close(model);
    return rc;
}


static void check_configs(const tiny_model_t *options, const config_case_t *cases, size_t n)
{
    char path[PATH_MAX], *directory;

    directory = make_gguf(options, &(gguf_options_t) { .type = GGUF_BF16 }, path);
    for (size_t i = 0; i < n; i++) {
        moe_error_t error = { MOE_OK, "" };
        json_t *edits = json_loads(cases[i].edits, 0, NULL), *value;
        json_t *expected = json_loads(cases[i].expected, 0, NULL);
        moe_config_t config = { 0 };
        const int rc = check_config(path, edits, &config, &error);
        const char *key;

        if (expected == NULL
            && (rc == 0 || strncmp(error.message, "model.gguf: ", 12) != 0
                || strstr(error.message, cases[i].expected) == NULL))
        {
            fail_msg("%s: \"%s\"", cases[i].edits, rc == 0 ? "accepted" : error.message);
        }
        json_object_foreach(expected, key, value) {
            const json_t *found = json_object_get(config.object, key);

            if (rc != 0 || !(json_is_null(value) ? found == NULL : json_equal(found, value))) {
                fail_msg("%s: %s: %s", cases[i].edits, key, error.message);
            }
        }
        json_decref((json_t *) (uintptr_t) config.object);
        json_decref((json_t *) (uintptr_t) config.names);
        json_decref(edits);
        json_decref(expected);
    }
    tiny_directory_remove(directory);
}


static void test_config(void **state)
{
    static const config_case_t cases[] = {
        { "{}", "{\"model_type\": \"deepseek_v3\", \"qk_nope_head_dim\": 16, \"v_head_dim\": 16,"
          " \"topk_method\": \"noaux_tc\", \"n_group\": 4, \"tie_word_embeddings\": false}" },
        { "{\"deepseek2.expert_gating_func\": null}", "{\"model_type\": \"deepseek_v3\"}" },
        { "{\"deepseek2.expert_gating_func\": 1}",
          "{\"model_type\": \"deepseek_v2\", \"topk_method\": \"group_limited_greedy\"}" },
        { "{\"deepseek2.vocab_size\": null}", "{\"vocab_size\": 96}" },
        { "{\"deepseek2.expert_weights_scale\": 0.0, \"deepseek2.expert_weights_norm\": null}",
          "{\"routed_scaling_factor\": null, \"norm_topk_prob\": false}" },
        { "{\"deepseek2.expert_group_count\": null, \"deepseek2.expert_count\": 256,"
          " \"deepseek2.embedding_length\": 7168}", "{\"n_group\": 8, \"topk_group\": 4}" },
        { "{\"deepseek2.rope.scaling.type\": \"yarn\", \"deepseek2.rope.scaling.factor\": 40.0,"
          " \"deepseek2.rope.scaling.original_context_length\": 4096,"
          " \"deepseek2.rope.scaling.yarn_beta_fast\": 1.0,"
          " \"deepseek2.rope.scaling.yarn_log_multiplier\": 0.0707}",
          "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 40.0, \"beta_fast\": 1.0,"
          " \"original_max_position_embeddings\": 4096, \"mscale\": 0.707,"
          " \"mscale_all_dim\": 0.707}}" },
        { "{\"general.architecture\": \"llama\"}",
          "general.architecture: \"llama\" without experts is not" },
        { "{\"general.architecture\": \"mamba\"}", "general.architecture: \"mamba\" is not" },
        { "{\"general.architecture\": null}", "general.architecture: missing" },
        { "{\"general.type\": \"adapter\"}", "general.type: \"adapter\" is not a model" },
        { "{\"deepseek2.attention.scale\": 1.0}", "deepseek2.attention.scale: unknown key" },
        { "{\"deepseek2.embedding_length\": null}", "deepseek2.embedding_length: missing" },
        { "{\"deepseek2.attention.head_count\": 5000}",
          "deepseek2.attention.head_count: 5000 is not within 1..4096" },
        { "{\"deepseek2.attention.head_count\": [4, 4]}",
          "deepseek2.attention.head_count: not an integer" },
        { "{\"deepseek2.attention.key_length_mla\": 8}",
          "deepseek2.attention.key_length_mla: 8 is not within 9" },
        { "{\"deepseek2.attention.key_length\": 41}", "deepseek2.attention.key_length: 41" },
        { "{\"deepseek2.attention.head_count_kv\": 4}", "head_count_kv: 4 is not within 1..1" },
        { "{\"deepseek2.expert_gating_func\": 3}", "deepseek2.expert_gating_func: 3" },
        { "{\"deepseek2.expert_used_count\": 9}", "deepseek2.expert_used_count: 9 is not within" },
        { "{\"deepseek2.rope.scaling.type\": \"other\"}",
          "deepseek2.rope.scaling.type: \"other\" is not supported" },
        { "{\"deepseek2.rope.scaling.type\": \"yarn\"}", "deepseek2.rope.scaling.factor: missing" },
    };
    const tiny_model_t options = tiny_model_defaults();

    check_configs(&options, cases, sizeof(cases) / sizeof(cases[0]));
}


static void test_grouped_config(void **state)
{
    static const config_case_t llama[] = {
        { "{}", "{\"model_type\": \"mixtral\", \"num_local_experts\": 8, \"head_dim\": 16,"
          " \"num_key_value_heads\": 2, \"intermediate_size\": 32, \"norm_topk_prob\": null}" },
        { "{\"llama.tensor_data_layout\": \"Meta AI original pth\","
          " \"llama.expert_weights_scale\": 0.0, \"llama.expert_gating_func\": 1,"
          " \"llama.expert_weights_norm\": true, \"llama.rope.dimension_count\": null}",
          "{\"model_type\": \"mixtral\"}" },
        { "{\"llama.expert_count\": null}", "\"llama\" without experts" },
        { "{\"llama.expert_weights_norm\": false}", "llama.expert_weights_norm: false is not" },
        { "{\"llama.expert_weights_scale\": 2.5}", "llama.expert_weights_scale: 2.5 is not" },
        { "{\"llama.expert_gating_func\": 2}", "llama.expert_gating_func: 2 is not" },
        { "{\"llama.rope.dimension_count\": 8}", "llama.rope.dimension_count: 8 is not within" },
        { "{\"llama.attention.value_length\": 8}", "llama.attention.value_length: 8 is not" },
        { "{\"llama.attention.key_length\": 15, \"llama.attention.value_length\": 15,"
          " \"llama.rope.dimension_count\": null}",
          "llama.attention.key_length: 15 is not an even number" },
        { "{\"llama.attention.head_count_kv\": [2, 2]}",
          "llama.attention.head_count_kv: not an integer" },
        { "{\"llama.attention.sliding_window\": 64}", "sliding_window: unknown key" },
    };
    static const config_case_t olmoe[] = {
        { "{\"olmoe.attention.clamp_kqv\": 0.0}",
          "{\"model_type\": \"olmoe\", \"norm_topk_prob\": false, \"clip_qkv\": null}" },
        { "{\"olmoe.expert_weights_norm\": true}", "{\"norm_topk_prob\": true}" },
        { "{\"olmoe.attention.clamp_kqv\": 8.0}", "olmoe.attention.clamp_kqv: clipping is not" },
        { "{\"olmoe.feed_forward_length\": null}", "olmoe.feed_forward_length: missing" },
    };
    static const config_case_t qwen2[] = {
        { "{}", "{\"model_type\": \"qwen2_moe\", \"norm_topk_prob\": false, \"num_experts\": 8,"
          " \"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 64}" },
        { "{\"qwen2moe.expert_feed_forward_length\": null, \"qwen2moe.feed_forward_length\": 96,"
          " \"qwen2moe.expert_shared_feed_forward_length\": null}",
          "{\"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 96}" },
        { "{\"qwen2moe.feed_forward_length\": 2, \"qwen2moe.expert_feed_forward_length\": null}",
          "qwen2moe.expert_feed_forward_length: 0 is not within" },
    };
    static const config_case_t qwen3[] = {
        { "{}", "{\"model_type\": \"qwen3_moe\", \"norm_topk_prob\": true, \"num_experts\": 8,"
          " \"moe_intermediate_size\": 32}" },
        { "{\"qwen3moe.expert_feed_forward_length\": null}",
          "qwen3moe.expert_feed_forward_length: missing" },
        { "{\"qwen3moe.expert_shared_count\": 1}", "qwen3moe.expert_shared_count: unknown key" },
    };
    static const config_case_t minimax[] = {
        { "{}", "{\"model_type\": \"minimax_m2\", \"intermediate_size\": 32, \"rotary_dim\": 8,"
          " \"num_local_experts\": 8, \"scoring_func\": \"sigmoid\"}" },
        { "{\"minimax-m2.feed_forward_length\": 9, \"minimax-m2.expert_feed_forward_length\": 32}",
          "{\"intermediate_size\": 32}" },
        { "{\"minimax-m2.expert_gating_func\": 1}", "minimax-m2.expert_gating_func: 1 is not" },
        { "{\"minimax-m2.expert_weights_norm\": false}", "expert_weights_norm: false is not" },
        { "{\"minimax-m2.rope.dimension_count\": 17}", "rope.dimension_count: 17 is not within" },
    };
    static const config_case_t glm[] = {
        { "{}", "{\"model_type\": \"glm4_moe\", \"rotary_dim\": 8, \"attention_bias\": true,"
          " \"use_qk_norm\": true, \"num_hidden_layers\": 3, \"n_routed_experts\": 8,"
          " \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, \"norm_topk_prob\": true}" },
        { "{\"glm4moe.rope.dimension_count\": null}", "{\"rotary_dim\": 16}" },
        { "{\"glm4moe.expert_weights_scale\": 0.0}", "{\"routed_scaling_factor\": null}" },
        { "{\"glm4moe.expert_gating_func\": 1}", "glm4moe.expert_gating_func: 1 is not" },
        { "{\"glm4moe.rope.dimension_sections\": [8, 12, 12, 0]}", "unknown key" },
    };
    tiny_model_t options = tiny_model_gqa("mixtral");

    check_configs(&options, llama, sizeof(llama) / sizeof(llama[0]));
    options = tiny_model_gqa("olmoe");
    check_configs(&options, olmoe, sizeof(olmoe) / sizeof(olmoe[0]));
    options = tiny_model_gqa("qwen2_moe");
    check_configs(&options, qwen2, sizeof(qwen2) / sizeof(qwen2[0]));
    options = tiny_model_gqa("qwen3_moe");
    check_configs(&options, qwen3, sizeof(qwen3) / sizeof(qwen3[0]));
    options = tiny_model_gqa("minimax_m2");
    check_configs(&options, minimax, sizeof(minimax) / sizeof(minimax[0]));
    options = tiny_model_gqa("glm4_moe");
    check_configs(&options, glm, sizeof(glm) / sizeof(glm[0]));
}


typedef struct {
    const char *from, *to;              /* the same length; first occurrence in the file */
    const char *message;
} damage_t;


static void check_damages(tiny_model_t options, int legacy, const damage_t *cases, size_t n)
{
    const gguf_options_t gguf = { .type = GGUF_F32, .legacy = legacy };
    char path[PATH_MAX], *directory;
    gguf_bytes_t whole = { 0 };
    moe_error_t error;
    FILE *file;

    options.dtype = "F32";
    directory = make_gguf(&options, &gguf, path);
    file = fopen(path, "rb");
    whole.data = malloc(1 << 22);
    whole.size = fread(whole.data, 1, 1 << 22, file);
    fclose(file);
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(cases[i].from) + (strchr(cases[i].from, '\4') ? 4 : 0);
        unsigned char *found = memmem(whole.data, whole.size, cases[i].from, length);
        moe_model_t *model;

        assert_non_null(found);
        memcpy(found, cases[i].to, length);
        gguf_save(whole.data, whole.size, path);
        memcpy(found, cases[i].from, length);
        model = moe_model_open(path, &error);
        if (model != NULL || strstr(error.message, cases[i].message) == NULL) {
            fail_msg("%s: \"%s\"", cases[i].message, model ? "accepted" : error.message);
        }
    }
    free(whole.data);
    tiny_directory_remove(directory);
}


/* Whole models: what is missing, left over or of another shape is named as the file names it. */
static void test_damaged_models(void **state)
{
    static const damage_t deepseek[] = {
        { "output_norm.weight", "output_morn.weight", "model.gguf: output_norm.weight: missing" },
        { "blk.2.attn_k_b.weight", "blk.2.attn_k_x.weight", "blk.2.attn_kv_b.weight: missing" },
        { "blk.2.ffn_up_exps.weight", "blk.2.ffn_op_exps.weight", "ffn_up_exps.weight: missing" },
        { "blk.1.exp_probs_b.bias", "blk.1.exp_probs_c.bias", "blk.1.exp_probs_b.bias: missing" },
        { "deepseek2.expert_count\4\0\0\0\x08", "deepseek2.expert_count\4\0\0\0\x10",
          "blk.1.ffn_gate_inp.weight: shape [8, 64], expected [16, 64]" },
        { "output.weight", "input_.weight", "input_.weight: not part of this model" },
    };
    static const damage_t mixtral[] = {
        { "blk.2.attn_k.weight", "blk.2.attn_x.weight", "blk.2.attn_k.weight: missing" },
        { "blk.1.ffn_up_exps.weight", "blk.1.ffn_op_exps.weight", "ffn_up_exps.weight: missing" },
        { "output.weight", "attn_q.biasxx", "attn_q.biasxx: not part of this model" },
    };
    static const damage_t separate[] = {
        { "blk.1.ffn_up.7.weight", "blk.1.ffn_up.8.weight", "blk.1.ffn_up.7.weight: missing" },
        { "blk.1.ffn_up.0.weight", "blk.1.ffn_up..weight0", "ffn_up_exps.weight: missing" },
        { "llama.expert_count\4\0\0\0\x08", "llama.expert_count\4\0\0\0\x07",
          "blk.0.ffn_gate_inp.weight: shape [8, 64], expected [7, 64]" },
    };

    check_damages(tiny_model_defaults(), 0, deepseek, sizeof(deepseek) / sizeof(deepseek[0]));
    check_damages(tiny_model_gqa("mixtral"), 0, mixtral, sizeof(mixtral) / sizeof(mixtral[0]));
    check_damages(tiny_model_gqa("mixtral"), 1, separate, sizeof(separate) / sizeof(separate[0]));
}


/* Tokens whose texts say that they end answers do, where they are control tokens. */
static void test_ends(void **state)
{
    static const struct {
        const char *tokens[6];
        uint32_t types[6];
        uint32_t n, ids[3];             /* eos_token_id is 0 */
    } cases[] = {
        { { "a", "b", "<|im_end|>", "<|endoftext|>" }, { 1, 1, 3, 4 }, 3, { 0, 2, 3 } },
        { { "a", "b", "<|im_end|>", "<|endoftext|>" }, { 1, 1, 1, 6 }, 1, { 0 } },
        { { "a", "<|end|>", "<|return|>", "<|start|>" }, { 1, 3, 3, 3 }, 3, { 0, 1, 2 } },
        { { "a", "<|end|>", "<|return|>", "<|call|>" }, { 1, 3, 3, 3 }, 3, { 0, 2, 3 } },
    };
    const tiny_model_t options = tiny_model_gqa("olmoe");
    char path[PATH_MAX], *directory;

    directory = make_gguf(&options, &(gguf_options_t) { .type = GGUF_BF16 }, path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_error_t error;
        moe_model_t *model = moe_model_open(path, &error);
        json_t *metadata = json_object(), *tokens = json_array(), *types = json_array();

        for (size_t t = 0; t < 6 && cases[i].tokens[t] != NULL; t++) {
            json_array_append_new(tokens, json_string(cases[i].tokens[t]));
            json_array_append_new(types, json_integer(cases[i].types[t]));
        }
        json_object_set_new(metadata, "tokenizer.ggml.tokens", tokens);
        json_object_set_new(metadata, "tokenizer.ggml.token_type", types);
        json_object_set_new(metadata, "tokenizer.ggml.eos_token_id", json_integer(0));
        assert_non_null(model);
        model->n_eos_ids = 0;
        assert_int_equal(moe_model_read_gguf_generation(model, metadata, "x", &error), 0);
        assert_int_equal(model->n_eos_ids, cases[i].n);
        for (uint32_t e = 0; e < cases[i].n; e++) {
            uint32_t found = 0;

            while (found < cases[i].n && model->eos_ids[found] != cases[i].ids[e]) {
                found++;
            }
            assert_true(found < cases[i].n);
        }
        json_decref(metadata);
        moe_model_close(model);
    }
    tiny_directory_remove(directory);
}


static int open_and_close(const char *path, moe_error_t *error)
{
    moe_model_t *model = moe_model_open(path, error);

    moe_model_close(model);
    return model != NULL ? 0 : -1;
}


static void test_parts(void **state)
{
    const tiny_model_t options = tiny_model_defaults();
    char path[PATH_MAX], other[PATH_MAX], *directory;
    moe_error_t error;

    directory = make_gguf(&options, &(gguf_options_t) { .type = GGUF_BF16, .parts = 3 }, path);
    snprintf(path, sizeof(path), "%s/model-00002-of-00003.gguf", directory);
    assert_int_equal(open_and_close(directory, &error), 0);
    assert_int_equal(open_and_close(path, &error), -1);
    assert_non_null(strstr(error.message, "split.no: part 2 of 3"));

    snprintf(other, sizeof(other), "%s/model-00003-of-00003.gguf", directory);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(open_and_close(directory, &error), -1);
    assert_non_null(strstr(error.message, "model-00002-of-00003.gguf: split.no: 2 is not within"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_and_close(directory, &error), -1);
    assert_non_null(strstr(error.message, "model-00002-of-00003.gguf: No such file"));

    snprintf(path, sizeof(path), "%s/model-00001-of-00003.gguf", directory);
    snprintf(other, sizeof(other), "%s/other.gguf", directory);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(open_and_close(other, &error), -1);
    assert_non_null(strstr(error.message, "does not end with -00001-of-00003.gguf"));
    tiny_directory_remove(directory);
}


static void test_paths(void **state)
{
    char *directory = tiny_directory(), path[PATH_MAX], file[PATH_MAX];
    moe_error_t error;

    assert_int_equal(moe_model_path("/no/such", file, sizeof(file), &error), -1);
    assert_non_null(strstr(error.message, "/no/such: No such file"));
    assert_int_equal(moe_model_path(directory, file, sizeof(file), &error), MOE_PATH_DIRECTORY);
    tiny_write(directory, "mmproj-a.gguf", "GGUF", 4);
    tiny_write(directory, ".hidden.gguf", "GGUF", 4);
    tiny_write(directory, "a-00002-of-00002.gguf", "GGUF", 4);
    assert_int_equal(moe_model_path(directory, file, sizeof(file), &error), MOE_PATH_DIRECTORY);
    tiny_write(directory, "a-00001-of-00002.gguf", "GGUF", 4);
    assert_int_equal(moe_model_path(directory, file, sizeof(file), &error), MOE_PATH_GGUF);
    snprintf(path, sizeof(path), "%s/a-00001-of-00002.gguf", directory);
    assert_string_equal(file, path);
    assert_int_equal(moe_model_path(path, file, sizeof(file), &error), MOE_PATH_GGUF);
    assert_int_equal(moe_model_path(path, file, 8, &error), -1);
    tiny_write(directory, "b.gguf", "GGUF", 4);
    assert_int_equal(moe_model_path(directory, file, sizeof(file), &error), -1);
    assert_non_null(strstr(error.message, "holds more than one model"));
    tiny_write(directory, "config.json", "{}", 2);
    assert_int_equal(moe_model_path(directory, file, sizeof(file), &error), MOE_PATH_DIRECTORY);
    snprintf(path, sizeof(path), "%s/config.json", directory);
    assert_int_equal(moe_model_path(path, file, sizeof(file), &error), -1);
    assert_non_null(strstr(error.message, "neither a directory nor a GGUF file"));
    tiny_directory_remove(directory);
}


static void test_damaged_texts(void **state)
{
    static const struct {
        const char *edits, *message;
    } cases[] = {
        { "{\"model\": \"bert\"}", "tokenizer.ggml.model: \"bert\" is not supported" },
        { "{\"model\": \"llama\"}", "tokenizer.ggml.scores: not a list as long as" },
        { "{\"model\": \"llama\", \"scores\": [0, -1, 0]}", "tokenizer.ggml.scores: not a list" },
        { "{\"model\": \"llama\", \"scores\": [0, -1, 0, \"1\"]}",
          "tokenizer.ggml.scores: entry 3 is not a number" },
        { "{\"model\": \"llama\", \"scores\": [0, -1, 0, -3], \"unknown_token_id\": 4}",
          "tokenizer.ggml.unknown_token_id: not the id of a token" },
        { "{\"model\": \"llama\", \"scores\": [0, -1, 0, -3], \"token_type\": [6, 1, 3, 1]}",
          "byte fallback without a token <0x00>" },
        { "{\"model\": \"t5\", \"scores\": [0, -1, 0, -3], \"unknown_token_id\": -1}",
          "tokenizer.ggml.unknown_token_id: not the id of a token" },
        { "{\"model\": \"t5\", \"precompiled_charsmap\": [1]}",
          "tokenizer.ggml.precompiled_charsmap: not supported" },
        { "{\"model\": null}", "tokenizer.ggml.model: missing" },
        { "{\"pre\": \"magic\"}", "tokenizer.ggml.pre: \"magic\" is not supported" },
        { "{\"pre\": 5}", "tokenizer.ggml.pre: \"?\" is not supported" },
        { "{\"tokens\": null}", "tokenizer.ggml.tokens: not a list" },
        { "{\"tokens\": [\"a\", \"b\", \"<s>\", \"a\"]}",
          "tokenizer.ggml.tokens: token \"a\" is there twice" },
        { "{\"tokens\": [\"a\", \"b\", 5, \"ab\"]}",
          "tokenizer.ggml.tokens: token 2 is not a text" },
        { "{\"token_type\": [1, 1]}", "tokenizer.ggml.token_type: not as long" },
        { "{\"token_type\": [1, 1, 9, 1]}", "token_type: token 2 has no type that is known" },
        { "{\"merges\": null}", "tokenizer.ggml.merges: missing" },
        { "{\"merges\": [\"a c\"]}", "tokenizer.ggml.merges: \"c\" of entry 0" },
        { "{\"bos_token_id\": 4}", "tokenizer.ggml.bos_token_id: not the id of a token" },
        { "{\"bos_token_id\": null}", "tokenizer.ggml.bos_token_id: missing" },
        { "{\"add_bos_token\": 1}", "\"tokenizer.ggml.add_bos_token\" is not a boolean" },
    };
    static const char base[] =
        "{\"model\": \"gpt2\", \"pre\": \"qwen2\", \"tokens\": [\"a\", \"b\", \"<s>\", \"ab\"],"
        " \"token_type\": [1, 1, 3, 1], \"merges\": [\"a b\"], \"bos_token_id\": 2,"
        " \"add_bos_token\": true}";
    moe_tokenizer_t *tokenizer;
    moe_chat_t *chat;
    moe_error_t error;

    for (size_t i = 0; i <= sizeof(cases) / sizeof(cases[0]); i++) {
        const int whole = i == sizeof(cases) / sizeof(cases[0]);
        json_t *keys = json_loads(base, 0, NULL), *metadata = json_object(), *value;
        json_t *edits = json_loads(whole ? "{}" : cases[i].edits, 0, NULL);
        char name[64];
        const char *key;

        json_object_update(keys, edits);
        json_object_foreach(keys, key, value) {
            snprintf(name, sizeof(name), "tokenizer.ggml.%s", key);
            if (!json_is_null(value)) {
                json_object_set(metadata, name, value);
            }
        }
        tokenizer = moe_gguf_tokenizer(metadata, "x.gguf", &error);
        if (whole) {
            assert_non_null(tokenizer);
            moe_tokenizer_free(tokenizer);
            json_object_set_new(metadata, "tokenizer.chat_template", json_string("{{"));
            chat = moe_gguf_chat(metadata, "x.gguf", NULL, &error);
            assert_null(chat);
            assert_non_null(strstr(error.message, "x.gguf: chat_template: template line 1"));
            json_object_set_new(metadata, "tokenizer.chat_template", json_string("plain"));
            json_object_set_new(metadata, "tokenizer.chat_template.tool_use", json_string("tools"));
            chat = moe_gguf_chat(metadata, "x.gguf", NULL, &error);
            assert_non_null(chat);
            assert_true(moe_chat_takes_tools(chat));
            moe_chat_free(chat);
        } else if (tokenizer != NULL || strstr(error.message, cases[i].message) == NULL
                   || strncmp(error.message, "x.gguf: ", 8) != 0)
        {
            fail_msg("%s: \"%s\"", cases[i].edits, tokenizer ? "accepted" : error.message);
        }
        json_decref(keys);
        json_decref(edits);
        json_decref(metadata);
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_truncated_anywhere),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_grouped_config),
        cmocka_unit_test(test_damaged_models),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_damaged_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
