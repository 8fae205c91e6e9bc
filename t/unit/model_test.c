/* Models: the demo model, tiny models of every switch, and configs damaged one key at a time. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/channel/message.h"
#include "engine/model/model.h"
#include "t/unit/tiny_model.h"


static void test_demo_model(void **state)
{
    moe_error_t error;
    moe_model_t *model = moe_model_open("conf/models/nginx-directives-moe", &error);
    const moe_layer_t *layer;

    assert_non_null(model);
    assert_string_equal(model->family, "deepseek_v3");
    assert_int_equal(model->hidden, 256);
    assert_int_equal(model->vocabulary, 2048);
    assert_int_equal(model->n_layers, 4);
    assert_int_equal(model->context, 2048);
    assert_int_equal(model->n_eos_ids, 1);
    assert_int_equal(model->eos_ids[0], 1);
    assert_int_equal(model->generation.given, MOE_GIVEN_TEMPERATURE);
    assert_true(model->generation.temperature == 0.0f);
    assert_int_equal(moe_tensors_count(model->tensors), 269);
    assert_int_equal(moe_tensors_bytes(model->tensors), 19924096);
    assert_false(model->layers[0].is_moe);
    assert_int_equal(model->layers[0].dense.width, 512);
    layer = &model->layers[3];
    assert_true(layer->is_moe);
    assert_int_equal(layer->moe.router.experts, 16);
    assert_int_equal(layer->moe.router.group, MOE_GROUP_TOP2_SUM);
    assert_int_equal(layer->moe.router.score, MOE_SCORE_SIGMOID);
    assert_int_equal(layer->moe.router.bias.size, 16);
    assert_int_equal(layer->moe.shared.width, 128);
    assert_int_equal(layer->mla.q_b.rows, 4 * 48);
    assert_true(layer->mla.scale == (float) (1 / sqrt(48)));
    assert_true(layer->mla.rotary.frequencies[0] == 1.0f);
    assert_true(model->parameters == 6978608);
    assert_true(model->active_parameters == 6978608 - 3u * 12 * 3 * 128 * 256);
    moe_model_close(model);
}


static moe_model_t *open_tiny(const tiny_model_t *options, moe_error_t *error)
{
    tiny_files_t files = tiny_model_make(options);
    char *directory = tiny_directory();
    moe_model_t *model;

    tiny_model_save(&files, directory);
    model = moe_model_open(directory, error);
    tiny_directory_remove(directory);
    tiny_model_free(&files);
    return model;
}


static void test_v2(void **state)
{
    tiny_model_t options = tiny_model_v2();
    moe_error_t error;
    moe_model_t *model = open_tiny(&options, &error);
    const moe_layer_t *layer;

    assert_non_null(model);
    layer = &model->layers[1];
    assert_int_equal(layer->mla.q_lora, 0);
    assert_null(layer->mla.q_a.tensor);
    assert_int_equal(layer->mla.q_b.columns, options.hidden);
    assert_int_equal(layer->moe.router.score, MOE_SCORE_SOFTMAX);
    assert_int_equal(layer->moe.router.group, MOE_GROUP_NONE);
    assert_int_equal(layer->moe.router.bias.size, 0);
    assert_int_equal(layer->moe.shared.width, 2 * options.expert_width);
    assert_true(layer->mla.rotary.magnitude == 1.0f);
    assert_true(fabs(layer->mla.scale * sqrt(24) - 1.2608038 * 1.2608038) < 1e-6);
    assert_true(fabs(layer->mla.rotary.frequencies[1] / (0.1 * (0.5 / 40 + 0.5)) - 1) < 1e-6);
    moe_model_close(model);

    /* V2's own code scales or normalises. */
    options.topk_method = "group_limited_greedy";
    options.groups = 4;
    options.groups_kept = 2;
    options.normalise = 1;
    options.scale = 16;
    model = open_tiny(&options, &error);
    assert_non_null(model);
    assert_int_equal(model->layers[1].moe.router.group, MOE_GROUP_MAX);
    assert_true(model->layers[1].moe.router.normalise);
    assert_true(model->layers[1].moe.router.scale == 1.0f);
    moe_model_close(model);
}


static void test_kimi(void **state)
{
    tiny_model_t options = tiny_model_defaults();
    moe_error_t error;
    moe_model_t *model;

    options.model_type = "kimi_k2";
    options.groups = options.groups_kept = 1;
    options.mtp = 0;
    model = open_tiny(&options, &error);
    assert_non_null(model);
    assert_int_equal(model->layers[2].moe.router.group, MOE_GROUP_NONE);
    assert_int_equal(model->layers[2].moe.router.bias.size, options.experts);
    moe_model_close(model);
}


/* A tied model uses the embedding, also when the file holds a head. */
static void test_tied(void **state)
{
    for (int stored = 0; stored < 2; stored++) {
        tiny_model_t options = tiny_model_defaults();
        tiny_files_t files;
        char *directory = tiny_directory();
        moe_error_t error;
        moe_model_t *model;

        options.tied = !stored;
        files = tiny_model_make(&options);
        json_object_set_new(files.config, "tie_word_embeddings", json_true());
        tiny_model_save(&files, directory);
        model = moe_model_open(directory, &error);
        assert_non_null(model);
        assert_ptr_equal(model->head.tensor, model->embedding.tensor);
        assert_string_equal(model->head.tensor->name, "model.embed_tokens.weight");
        moe_model_close(model);
        tiny_directory_remove(directory);
        tiny_model_free(&files);
    }
}


/* Tables of rotary frequencies that old writers saved are fine; what nobody knows is not. */
static void test_extra_tensors(void **state)
{
    static const struct {
        const char *name;
        int known;
    } cases[] = {
        { "model.layers.0.self_attn.rotary_emb.inv_freq", 1 },
        { "model.rotary_emb.inv_freq", 1 },
        { "model.layers.3.embed_tokens.weight", 1 },    /* of the MTP layer */
        { "model.layers.1.mlp.gate.bias", 0 },
        { "model.layers.0.self_attn.o_proj.bias", 0 },
        { "model.layers.1.mlp.experts.8.up_proj.weight", 0 },
        { "model.layers.30.eh_proj.weight", 0 },
        { "visual.patch_embed.weight", 0 },
    };
    tiny_model_t options = tiny_model_defaults();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny_files_t files = tiny_model_make(&options);
        char *directory = tiny_directory();
        moe_error_t error;
        moe_model_t *model;

        tiny_tensor(&files, "F32", "", cases[i].name, 4, 0, 0, 1);
        tiny_model_save(&files, directory);
        model = moe_model_open(directory, &error);
        if ((model != NULL) != cases[i].known) {
            fail_msg("%s: %s", cases[i].name, model != NULL ? "accepted" : error.message);
        }
        if (model == NULL) {
            assert_non_null(strstr(error.message, cases[i].name));
        }
        moe_model_close(model);
        tiny_directory_remove(directory);
        tiny_model_free(&files);
    }
}


/* Norms are widened exactly; the seed gives the same numbers before rounding. */
static void test_vectors_of_all_types(void **state)
{
    static const struct {
        const char *dtype;
        float step;                     /* relative, at 1 */
    } types[] = { { "F32", 0 }, { "F16", 0x1p-11f }, { "BF16", 0x1p-8f } };
    float exact[64];

    for (size_t t = 0; t < 3; t++) {
        tiny_model_t options = tiny_model_defaults();
        moe_error_t error;
        moe_model_t *model;

        options.dtype = types[t].dtype;
        model = open_tiny(&options, &error);
        assert_non_null(model);
        for (uint32_t i = 0; i < options.hidden; i++) {
            float value = model->final_norm.values[i];

            exact[i] = t == 0 ? value : exact[i];
            assert_true(fabsf(value - exact[i]) <= types[t].step);
            assert_true(value > 0.7f && value < 1.3f);
        }
        moe_model_close(model);
    }
}


static void test_widening(void **state)
{
    static const struct {
        uint16_t half;
        float value;
    } cases[] = {
        { 0x3c00, 1.0f }, { 0xc000, -2.0f }, { 0x7bff, 65504.0f }, { 0x0001, 0x1p-24f },
        { 0x8001, -0x1p-24f }, { 0x03ff, 1023 * 0x1p-24f }, { 0x0400, 0x1p-14f }, { 0x0000, 0.0f },
        { 0x3555, 1365 * 0x1p-12f },
    };
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files;
    char *directory = tiny_directory();
    moe_error_t error;
    moe_model_t *model;
    size_t offset;

    options.dtype = "F16";
    files = tiny_model_make(&options);
    offset = 2u * options.vocabulary * options.hidden;      /* model.norm follows the embedding */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memcpy(files.data + offset + 2 * i, &cases[i].half, 2);
    }
    tiny_model_save(&files, directory);
    model = moe_model_open(directory, &error);
    assert_non_null(model);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(model->final_norm.values[i] == cases[i].value);
    }
    moe_model_close(model);

    memcpy(files.data + offset + 6, &(uint16_t) { 0x7c00 }, 2);
    tiny_model_save(&files, directory);
    assert_null(moe_model_open(directory, &error));
    assert_non_null(strstr(error.message, "model.norm.weight: element 3"));
    tiny_directory_remove(directory);
    tiny_model_free(&files);
}


/* Descriptors of the families with grouped queries. */
static void test_grouped_queries(void **state)
{
    static const struct {
        const char *family;
        moe_qk_norm_t norm;
        uint32_t norm_size;
    } cases[] = {
        { "olmoe", MOE_QK_NORM_WHOLE, 96 }, { "mixtral", MOE_QK_NORM_NONE, 0 },
        { "qwen3_moe", MOE_QK_NORM_HEAD, 16 }, { "qwen2_moe", MOE_QK_NORM_NONE, 0 },
        { "gpt_oss", MOE_QK_NORM_NONE, 0 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny_model_t options = tiny_model_gqa(cases[i].family);
        const uint32_t attention = 2 * (96 + 32) * 64 + (i > 0 ? cases[i].norm_size * 2 : 96 + 32);
        const uint32_t experts = 8 * (3 * 32 * 64 + (i == 4 ? 2 * 32 + 64 : 0));
        const uint32_t shared = i == 3 ? 3 * 64 * 64 + 64 : 0;
        const uint32_t biases = i == 3 ? 96 + 2 * 32 : i == 4 ? 96 + 2 * 32 + 64 + 6 + 8 : 0;
        const moe_layer_t *layer;
        moe_error_t error;
        moe_model_t *model = open_tiny(&options, &error);

        if (model == NULL) {
            fail_msg("%s: %s", cases[i].family, error.message);
        }
        assert_string_equal(model->family, cases[i].family);
        layer = &model->layers[0];
        assert_int_equal(layer->mixer, MOE_MIXER_GQA);
        assert_int_equal(layer->gqa.norm, cases[i].norm);
        assert_int_equal(layer->gqa.q_norm.size, cases[i].norm_size);
        assert_int_equal(layer->gqa.k.rows, 32);
        assert_int_equal(layer->gqa.window, i == 4 ? 12 : 0);
        assert_int_equal(model->layers[1].gqa.window, 0);
        assert_int_equal(layer->gqa.sinks.size, i == 4 ? 6 : 0);
        assert_true(layer->moe.experts[7].form.limit == (i == 4 ? 0.75f : 0));
        assert_true(layer->gqa.scale == 0.25f);
        assert_true(layer->moe.router.normalise == options.normalise);
        assert_true(model->parameters
                    == 2u * 96 * 64 + 64
                           + 3u * (2 * 64 + attention + biases + 8 * 64 + experts + shared));
        assert_true(model->parameters - model->active_parameters == 3u * experts / 8 * 5);
        moe_model_close(model);
    }
}


/* What to do to config.json (a JSON object merged into it, or a key to delete) and what the message
 * must contain. */
typedef struct {
    const char *change, *remove, *message;
} damage_t;


static void check_damage(tiny_model_t options, const damage_t *cases, size_t n)
{
    tiny_files_t files = tiny_model_make(&options);
    char *directory = tiny_directory();
    moe_error_t error;

    tiny_model_save(&files, directory);
    for (size_t i = 0; i < n; i++) {
        json_t *config = json_deep_copy(files.config);

        if (cases[i].change != NULL) {
            json_t *change = json_loads(cases[i].change, JSON_ALLOW_NUL, NULL);

            assert_non_null(change);
            json_object_update_new(config, change);
        } else {
            json_object_del(config, cases[i].remove);
        }
        tiny_write_json(directory, "config.json", config);
        json_decref(config);
        assert_null(moe_model_open(directory, &error));
        assert_int_equal(error.code, MOE_BAD_MODEL);
        if (strstr(error.message, cases[i].message) == NULL) {
            fail_msg("expected \"%s\" in \"%s\"", cases[i].message, error.message);
        }
    }
    tiny_directory_remove(directory);
    tiny_model_free(&files);
}


static void test_damaged_configs(void **state)
{
    static const damage_t cases[] = {
        { NULL, "hidden_size", "config.json: hidden_size: missing" },
        { NULL, "num_experts_per_tok", "config.json: num_experts_per_tok: missing" },
        { NULL, "model_type", "config.json: model_type: missing" },
        { "{\"hidden_size\": null}", NULL, "hidden_size: missing" },
        { "{\"hidden_size\": \"64\"}", NULL, "hidden_size: not an integer" },
        { "{\"hidden_size\": 64.0}", NULL, "hidden_size: not an integer" },
        { "{\"hidden_size\": -64}", NULL, "hidden_size: -64 is not within" },
        { "{\"hidden_size\": 0}", NULL, "hidden_size: 0 is not within" },
        { "{\"hidden_size\": 4294967360}", NULL, "hidden_size: 4294967360 is not within" },
        { "{\"vocab_size\": 9223372036854775807}", NULL, "vocab_size" },
        { "{\"num_hidden_layers\": 100000000}", NULL, "num_hidden_layers" },
        { "{\"num_attention_heads\": 65536}", NULL, "num_attention_heads" },
        { "{\"num_key_value_heads\": 2}", NULL, "num_key_value_heads" },
        { "{\"q_lora_rank\": 0}", NULL, "q_lora_rank" },
        { "{\"qk_rope_head_dim\": 7}", NULL, "qk_rope_head_dim: 7 is odd" },
        { "{\"head_dim\": 16}", NULL, "head_dim" },
        { "{\"qk_head_dim\": 25}", NULL, "qk_head_dim" },
        { "{\"rms_norm_eps\": \"1e-6\"}", NULL, "rms_norm_eps: not a number" },
        { "{\"rms_norm_eps\": -1}", NULL, "rms_norm_eps" },
        { "{\"attn_magic\": 1}", NULL, "config.json: attn_magic: unknown key" },
        { "{\"attention_bias\": true}", NULL, "attention_bias" },
        { "{\"attention_bias\": 0}", NULL, "attention_bias: not true or false" },
        { "{\"mlp_bias\": true}", NULL, "mlp_bias" },
        { "{\"hidden_act\": \"gelu\"}", NULL, "hidden_act: \"gelu\"" },
        { "{\"hidden_act\": 1}", NULL, "hidden_act: not a string" },
        { "{\"model_type\": \"kimi_k3\"}", NULL, "\"kimi_k3\" is not a supported family" },
        { "{\"quantization_config\": {\"quant_method\": \"fp8\"}}", NULL,
          "quantization_config: weights quantised by \"fp8\"" },
        { "{\"quantization_config\": [1]}", NULL, "quantization_config: weights quantised" },
        { "{\"hidden_act\": \"silu\\u0000\"}", NULL, "hidden_act: not a string" },
        { "{\"scoring_func\": \"softmax\"}", NULL, "scoring_func: \"softmax\"" },
        { "{\"topk_method\": \"greedy\"}", NULL, "topk_method: \"greedy\"" },
        { "{\"n_group\": 3}", NULL, "n_group: 3 does not divide" },
        { "{\"n_group\": 8}", NULL, "n_group: 8 leaves fewer than 2" },
        { "{\"topk_group\": 5}", NULL, "topk_group: 5 is not within 1..4" },
        { "{\"topk_group\": 1}", NULL, "num_experts_per_tok: 3 is more than the 2" },
        { "{\"num_experts_per_tok\": 9}", NULL, "num_experts_per_tok: 9 is not within 1..8" },
        { "{\"n_routed_experts\": 0}", NULL, "n_routed_experts" },
        { "{\"routed_scaling_factor\": 0}", NULL, "routed_scaling_factor" },
        { "{\"first_k_dense_replace\": 4}", NULL, "first_k_dense_replace" },
        { "{\"moe_layer_freq\": [0, 1, 1]}", NULL, "moe_layer_freq: not an integer" },
        { "{\"mlp_layer_types\": [\"dense\"]}", NULL, "mlp_layer_types" },
        { "{\"mlp_layer_types\": [\"dense\", \"sparse\", 1]}", NULL, "mlp_layer_types: entry 2" },
        { "{\"rope_scaling\": {\"type\": \"other\", \"factor\": 2}}", NULL,
          "rope_scaling: rope_type: \"other\"" },
        { "{\"rope_scaling\": {\"type\": \"yarn\"}}", NULL, "rope_scaling: factor: missing" },
        { "{\"rope_scaling\": {\"factor\": 2}}", NULL, "rope_scaling: factor: unknown key" },
        { "{\"rope_scaling\": []}", NULL, "rope_scaling: not an object" },
        { "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"magic\": 1,"
          " \"original_max_position_embeddings\": 64}}", NULL, "rope_scaling: magic: unknown key" },
        { "{\"rope_parameters\": {\"rope_theta\": 1}}", NULL, "rope_parameters: rope_theta" },
        { "{\"rope_parameters\": {}, \"rope_scaling\": {}}", NULL, "rope_scaling: given twice" },
        { "{\"rope_theta\": 0}", NULL, "rope_theta" },
        { "{\"eos_token_id\": 96}", NULL, "config.json: eos_token_id: entry 0" },
        { "{\"eos_token_id\": [1, -1]}", NULL, "eos_token_id: entry 1" },
        { "{\"eos_token_id\": \"1\"}", NULL, "eos_token_id: entry 0" },
        /* Consistent configs that the tensors contradict. */
        { "{\"hidden_size\": 72}", NULL,
          "model.embed_tokens.weight: shape [96, 64], expected [96, 72]" },
        { "{\"v_head_dim\": 8}", NULL, "model.layers.0.self_attn.kv_b_proj.weight: shape" },
        { "{\"q_lora_rank\": null}", NULL, "model.layers.0.self_attn.q_proj.weight: missing" },
        { "{\"n_routed_experts\": 12}", NULL, "model.layers.1.mlp.gate.weight: shape" },
        { "{\"num_hidden_layers\": 2}", NULL, "not part of this model" },
        { "{\"num_hidden_layers\": 5}", NULL, "model.layers.4.input_layernorm.weight: missing" },
        { "{\"n_shared_experts\": null}", NULL,
          "model.layers.1.mlp.shared_experts.down_proj.weight: not part of this model (6 such" },
    };

    check_damage(tiny_model_defaults(), cases, sizeof(cases) / sizeof(cases[0]));
}


static void test_damaged_grouped_configs(void **state)
{
    static const damage_t olmoe[] = {
        { NULL, "num_experts", "config.json: num_experts: missing" },
        { NULL, "rope_theta", "config.json: rope_theta: missing" },
        { "{\"clip_qkv\": 8.0}", NULL, "clip_qkv: clipping is not supported" },
        { "{\"attention_bias\": true}", NULL, "layers.0.self_attn.q_proj.bias: missing" },
        { "{\"sliding_window\": 128}", NULL, "sliding_window: windows are not supported" },
        { "{\"num_key_value_heads\": 4}", NULL, "num_key_value_heads: 4 does not divide" },
        { "{\"num_key_value_heads\": 12}", NULL, "num_key_value_heads: 12 is not within 1..6" },
        { "{\"num_key_value_heads\": 3}", NULL, "self_attn.k_proj.weight: shape [32, 64]" },
        { "{\"head_dim\": 15}", NULL, "head_dim: 15 is not an even number" },
        { "{\"hidden_act\": \"gelu\"}", NULL, "hidden_act: \"gelu\"" },
        { "{\"moe_intermediate_size\": 32}", NULL, "moe_intermediate_size: unknown key" },
        { "{\"intermediate_size\": 48}", NULL, "experts.0.gate_proj.weight: shape" },
        { "{\"num_hidden_layers\": 2}", NULL, "not part of this model" },
        { "{\"num_experts\": 7}", NULL, "mlp.gate.weight: shape" },
        { "{\"model_type\": \"qwen3_moe\", \"moe_intermediate_size\": 32}", NULL,
          "self_attn.q_norm.weight: shape [96], expected [16]" },
        { "{\"rope_scaling\": {\"type\": \"other\", \"factor\": 2}}", NULL,
          "rope_scaling: rope_type: \"other\"" },
    };
    static const damage_t mixtral[] = {
        { "{\"sliding_window\": 0}", NULL, "sliding_window: 0 is not within" },
        { "{\"use_sliding_window\": true}", NULL, "use_sliding_window: unknown key" },
        { "{\"num_experts\": 8}", NULL, "num_experts: unknown key" },
        { "{\"norm_topk_prob\": false}", NULL, "norm_topk_prob: unknown key" },
        { "{\"num_experts_per_tok\": 9}", NULL, "num_experts_per_tok: 9 is not within 1..8" },
    };
    static const damage_t qwen2[] = {
        { NULL, "shared_expert_intermediate_size", "shared_expert_intermediate_size: missing" },
        { "{\"shared_expert_intermediate_size\": 32}", NULL,
          "mlp.shared_expert.gate_proj.weight: shape [64, 64], expected [32, 64]" },
        { "{\"qkv_bias\": false}", NULL, "_proj.bias: not part of this model (9 such" },
        { "{\"attention_bias\": false}", NULL, "attention_bias: unknown key" },
        { "{\"use_sliding_window\": 1}", NULL, "use_sliding_window: not true or false" },
        { "{\"layer_types\": [\"full_attention\"]}", NULL, "layer_types: not an array of" },
        { "{\"layer_types\": [\"full_attention\", \"chunked_attention\", \"\"]}", NULL,
          "layer_types: entry 1 is neither" },
        { "{\"mlp_only_layers\": [2]}", NULL, "layers.2.mlp.gate_proj.weight: missing" },
    };
    static const damage_t gpt_oss[] = {
        { "{\"swiglu_limit\": 0}", NULL, "swiglu_limit: 0 is not within" },
        { "{\"swiglu_alpha\": -1}", NULL, "swiglu_alpha: -1 is not within" },
        { "{\"experts_per_token\": 4}", NULL, "experts_per_token: 4 is not within 3..3" },
        { "{\"initial_context_length\": 32}", NULL, "initial_context_length: 32 is not within" },
        { NULL, "rope_scaling", "rope_scaling: missing" },
        { NULL, "sliding_window", "sliding_window: missing" },
        { "{\"attention_bias\": false}", NULL, "_proj.bias: not part of this model (12 such" },
        { "{\"layer_types\": [\"sliding_attention\", \"full_attention\", \"linear\"]}", NULL,
          "layer_types: entry 2 is neither" },
        { "{\"use_sliding_window\": true}", NULL, "use_sliding_window: unknown key" },
        { "{\"intermediate_size\": 48}", NULL,
          "experts.gate_up_proj: shape [8, 64, 64], expected [8, 64, 96]" },
        { "{\"quantization_config\": {\"quant_method\": \"gptq\"}}", NULL,
          "quantization_config: weights quantised by \"gptq\"" },
    };
    static const damage_t qwen3[] = {
        { "{\"use_sliding_window\": true}", NULL, "sliding_window: missing" },
        { "{\"layer_types\": []}", NULL, "layer_types: unknown key" },
        { "{\"mlp_only_layers\": 1}", NULL, "mlp_only_layers: not an array" },
        { "{\"mlp_only_layers\": [3]}", NULL, "mlp_only_layers: entry 0 is no layer" },
        { "{\"mlp_only_layers\": [1]}", NULL, "layers.1.mlp.gate_proj.weight: missing" },
        { "{\"decoder_sparse_step\": 2}", NULL, "layers.0.mlp.gate_proj.weight: missing" },
        { "{\"shared_expert_intermediate_size\": 8}", NULL,
          "shared_expert_intermediate_size: 8 is not within 0..0" },
        { "{\"qkv_bias\": true}", NULL, "qkv_bias: true is not supported here" },
        { "{\"use_qk_norm\": false}", NULL, "k_norm.weight: not part of this model" },
        { "{\"num_local_experts\": 4}", NULL, "num_local_experts: 4 is not within 8..8" },
        { NULL, "moe_intermediate_size", "moe_intermediate_size: missing" },
    };

    static const damage_t minimax[] = {
        { "{\"rotary_dim\": 18}", NULL, "rotary_dim: 18 is not within 2..16" },
        { "{\"partial_rotary_factor\": 0.25}", NULL,
          "rotary_dim: 8, but partial_rotary_factor 0.25 of 16" },
        { "{\"scoring_func\": \"softmax\"}", NULL, "scoring_func: \"softmax\" is not supported" },
        { "{\"use_routing_bias\": false}", NULL, "e_score_correction_bias: not part of this" },
        { "{\"use_qk_norm\": false}", NULL, "self_attn.k_norm.weight: not part of this model" },
        { "{\"qk_norm_type\": \"per_head\"}", NULL, "qk_norm_type: \"per_head\" is not supported" },
        { "{\"shared_intermediate_size\": 32}", NULL, "shared_intermediate_size: 32" },
        { "{\"attn_type_list\": [1, 0, 1]}", NULL, "attn_type_list: entry 1 is not 1" },
        { "{\"attn_type_list\": [1]}", NULL, "attn_type_list: not an array" },
        { "{\"layernorm_mlp_beta\": 3.5}", NULL, "layernorm_mlp_beta: 3.5 is not within 1..1" },
        { "{\"attention_bias\": true}", NULL, "attention_bias: unknown key" },
    };
    static const damage_t glm[] = {
        { "{\"use_qk_norm\": false}", NULL, "self_attn.k_norm.weight: not part of this model" },
        { "{\"attention_bias\": false}", NULL, "self_attn.k_proj.bias: not part of this model" },
        { "{\"first_k_dense_replace\": 0}", NULL, "layers.0.mlp.gate.weight: missing" },
        { "{\"n_shared_experts\": 2}", NULL, "shared_experts.gate_proj.weight: shape [32, 64]" },
        { "{\"scoring_func\": \"softmax\"}", NULL, "scoring_func: \"softmax\" is not supported" },
        { "{\"partial_rotary_factor\": 0.2}", NULL, "partial_rotary_factor: 3 of 16" },
        { "{\"num_experts\": 8}", NULL, "num_experts: unknown key" },
        { "{\"num_hidden_layers\": 2}", NULL, "layers.2.input_layernorm.weight: not part of" },
    };

    check_damage(tiny_model_gqa("olmoe"), olmoe, sizeof(olmoe) / sizeof(olmoe[0]));
    check_damage(tiny_model_gqa("mixtral"), mixtral, sizeof(mixtral) / sizeof(mixtral[0]));
    check_damage(tiny_model_gqa("qwen2_moe"), qwen2, sizeof(qwen2) / sizeof(qwen2[0]));
    check_damage(tiny_model_gqa("gpt_oss"), gpt_oss, sizeof(gpt_oss) / sizeof(gpt_oss[0]));
    check_damage(tiny_model_gqa("qwen3_moe"), qwen3, sizeof(qwen3) / sizeof(qwen3[0]));
    check_damage(tiny_model_gqa("minimax_m2"), minimax, sizeof(minimax) / sizeof(minimax[0]));
    check_damage(tiny_model_gqa("glm4_moe"), glm, sizeof(glm) / sizeof(glm[0]));
}


/* Spellings that must be accepted and mean the same. */
static void test_equal_configs(void **state)
{
    static const char *const changes[] = {
        "{\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"], \"first_k_dense_replace\": 3}",
        "{\"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}",
        "{\"rope_scaling\": {\"type\": \"default\"}, \"head_dim\": 8, \"qk_head_dim\": 24}",
        "{\"torch_dtype\": \"bfloat16\", \"quantization_config\": null, \"moe_layer_freq\": 1}",
    };
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files = tiny_model_make(&options);
    char *directory = tiny_directory();
    moe_error_t error;

    tiny_model_save(&files, directory);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        json_t *config = json_deep_copy(files.config);
        moe_model_t *model;

        json_object_update_new(config, json_loads(changes[i], 0, NULL));
        tiny_write_json(directory, "config.json", config);
        json_decref(config);
        model = moe_model_open(directory, &error);
        if (model == NULL) {
            fail_msg("%s: %s", changes[i], error.message);
        }
        assert_false(model->layers[0].is_moe);
        assert_true(model->layers[1].is_moe && model->layers[2].is_moe);
        assert_true(model->layers[1].mla.rotary.frequencies[1] == 0.1f);
        moe_model_close(model);
    }
    tiny_directory_remove(directory);
    tiny_model_free(&files);
}


static void test_generation(void **state)
{
    static const struct {
        const char *generation, *message;
    } bad[] = {
        { "[]", "generation_config.json: not a JSON object" },
        { "{\"eos_token_id\": [1, 96]}", "generation_config.json: eos_token_id: entry 1" },
        { "{\"temperature\": -1}", "generation_config.json: temperature" },
        { "{\"top_p\": 1.5}", "generation_config.json: top_p" },
        { "{\"top_k\": 1.5}", "generation_config.json: top_k" },
        { "{\"do_sample\": 1}", "generation_config.json: do_sample" },
    };
    static const char good[] = "{\"eos_token_id\": [5, 1], \"temperature\": 0.5, \"top_p\": 0.95, "
                               "\"top_k\": 20, \"repetition_penalty\": 1.25}";
    static const char tokenizer[] = "{\"added_tokens\": [{\"id\": 7, \"content\": \"<end>\"}]}";
    static const char settings[] = "{\"eos_token\": {\"content\": \"<end>\"}}";
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files = tiny_model_make(&options);
    char *directory = tiny_directory();
    moe_error_t error;
    moe_model_t *model;

    tiny_model_save(&files, directory);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tiny_write(directory, "generation_config.json", bad[i].generation,
                   strlen(bad[i].generation));
        assert_null(moe_model_open(directory, &error));
        if (strstr(error.message, bad[i].message) == NULL) {
            fail_msg("expected \"%s\" in \"%s\"", bad[i].message, error.message);
        }
    }
    tiny_write(directory, "generation_config.json", good, strlen(good));
    tiny_write(directory, "tokenizer_config.json", settings, strlen(settings));
    tiny_write(directory, "tokenizer.json", tokenizer, strlen(tokenizer));
    model = moe_model_open(directory, &error);
    assert_non_null(model);
    assert_int_equal(model->n_eos_ids, 3);
    assert_memory_equal(model->eos_ids, ((uint32_t[]) { 5, 1, 7 }), 3 * sizeof(uint32_t));
    assert_int_equal(model->generation.given, MOE_GIVEN_TEMPERATURE | MOE_GIVEN_TOP_P
                     | MOE_GIVEN_TOP_K | MOE_GIVEN_REPETITION_PENALTY);
    assert_true(model->generation.temperature == 0.5f && model->generation.top_k == 20);
    assert_true(model->generation.repetition_penalty == 1.25f);
    moe_model_close(model);
    tiny_directory_remove(directory);
    tiny_model_free(&files);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_model),
        cmocka_unit_test(test_v2),
        cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_extra_tensors),
        cmocka_unit_test(test_vectors_of_all_types),
        cmocka_unit_test(test_widening),
        cmocka_unit_test(test_grouped_queries),
        cmocka_unit_test(test_damaged_configs),
        cmocka_unit_test(test_damaged_grouped_configs),
        cmocka_unit_test(test_equal_configs),
        cmocka_unit_test(test_generation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
