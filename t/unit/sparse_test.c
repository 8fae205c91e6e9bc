/*
 * Configs of families with DeepSeek's kind of network, without weights: what they come to, and which
 * must be refused.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "engine/model/model.h"

#define ATTENTION \
    "\"hidden_act\": \"silu\", \"hidden_size\": 64, \"vocab_size\": 96, \"num_hidden_layers\": 4, " \
    "\"max_position_embeddings\": 256, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"attention_bias\": false"

static const char glm[] = "{" ATTENTION ", \"model_type\": \"glm4_moe\", \"head_dim\": 32, "
    "\"intermediate_size\": 96, \"moe_intermediate_size\": 24, \"n_routed_experts\": 8, "
    "\"n_shared_experts\": 2, \"num_experts_per_tok\": 3, \"first_k_dense_replace\": 2, "
    "\"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true, "
    "\"routed_scaling_factor\": 2.5, \"use_qk_norm\": true, \"num_nextn_predict_layers\": 1}";

static const char hy3[] = "{" ATTENTION ", \"model_type\": \"hy_v3\", \"intermediate_size\": 96, "
    "\"moe_intermediate_size\": 24, \"expert_hidden_dim\": 24, \"num_experts\": 8, "
    "\"num_shared_experts\": 1, \"num_experts_per_tok\": 3, \"router_scaling_factor\": 2.826, "
    "\"route_norm\": true, \"moe_router_enable_expert_bias\": true, \"qk_norm\": true, "
    "\"moe_router_use_sigmoid\": true, \"enable_moe_fp32_combine\": false, "
    "\"use_grouped_mm\": false, \"eod_token_id\": 5}";

static const char ernie[] = "{\"hidden_act\": \"silu\", \"hidden_size\": 64, \"vocab_size\": 96, "
    "\"num_hidden_layers\": 4, \"max_position_embeddings\": 256, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"rope_theta\": 500000.0, \"model_type\": \"ernie4_5_moe\", "
    "\"intermediate_size\": 96, \"moe_intermediate_size\": 24, \"moe_num_experts\": 8, "
    "\"moe_k\": 3, \"moe_num_shared_experts\": 2, \"moe_layer_start_index\": 1, "
    "\"moe_layer_end_index\": -1, \"moe_layer_interval\": 1, \"use_bias\": false}";

static const char hunyuan[] = "{" ATTENTION ", \"model_type\": \"hunyuan_v1_moe\", "
    "\"intermediate_size\": 48, \"moe_intermediate_size\": [24, 24, 24, 24], \"num_experts\": 8, "
    "\"num_shared_expert\": [1, 1, 1, 1], \"moe_topk\": [3, 3, 3, 3], \"norm_topk_prob\": true, "
    "\"use_qk_norm\": true, \"use_mla\": false, \"n_group\": false, \"q_lora_rank\": null, "
    "\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1000.0}}";


static moe_model_t *describe(const char *config, const char *change, moe_error_t *error)
{
    json_t *object = json_loads(config, 0, NULL), *changes = json_loads(change, 0, NULL);
    moe_model_t *model;

    assert_non_null(object);
    assert_non_null(changes);
    *error = (moe_error_t) { MOE_OK, "" };
    json_object_update_new(object, changes);
    model = moe_model_describe(object, error);
    json_decref(object);
    return model;
}


static void test_shapes(void **state)
{
    static const struct {
        const char *config, *change;
        unsigned moe_layers;            /* bit i: layer i has experts */
        uint32_t shared;
        moe_score_t score;
        int has_bias, normalise;
        float scale;
        moe_qk_norm_t norm;
        uint32_t rotated;
        int interleaved, tied;
    } cases[] = {
        { glm, "{}", 0xc, 48, MOE_SCORE_SIGMOID, 1, 1, 2.5f, MOE_QK_NORM_HEAD, 16, 0, 0 },
        { glm, "{\"use_qk_norm\": null, \"n_shared_experts\": 0, \"moe_layer_freq\": 3, "
          "\"norm_topk_prob\": false, \"rope_parameters\": {\"partial_rotary_factor\": 0.25}}",
          0x8, 0, MOE_SCORE_SIGMOID, 1, 0, 2.5f, MOE_QK_NORM_NONE, 8, 0, 0 },
        { glm, "{\"mlp_layer_types\": [\"sparse\", \"dense\", \"dense\", \"sparse\"]}", 0x9, 48,
          MOE_SCORE_SIGMOID, 1, 1, 2.5f, MOE_QK_NORM_HEAD, 16, 0, 0 },
        { hy3, "{}", 0xe, 24, MOE_SCORE_SIGMOID, 1, 1, 2.826f, MOE_QK_NORM_HEAD, 16, 0, 0 },
        { hy3, "{\"first_k_dense_replace\": 3, \"route_norm\": false, \"tie_word_embeddings\": true}",
          0x8, 24, MOE_SCORE_SIGMOID, 1, 0, 2.826f, MOE_QK_NORM_HEAD, 16, 0, 1 },
        { ernie, "{}", 0xe, 48, MOE_SCORE_SOFTMAX, 1, 1, 1, MOE_QK_NORM_NONE, 16, 1, 1 },
        { ernie, "{\"moe_layer_start_index\": 0, \"moe_layer_interval\": 2, "
          "\"moe_num_shared_experts\": 0, \"tie_word_embeddings\": false}", 0xa, 0,
          MOE_SCORE_SOFTMAX, 1, 1, 1, MOE_QK_NORM_NONE, 16, 1, 0 },
        { ernie, "{\"moe_layer_end_index\": 2}", 0x6, 48, MOE_SCORE_SOFTMAX, 1, 1, 1,
          MOE_QK_NORM_NONE, 16, 1, 1 },
        { hunyuan, "{}", 0xf, 48, MOE_SCORE_SOFTMAX, 0, 1, 1, MOE_QK_NORM_ROTATED, 16, 0, 0 },
        { hunyuan, "{\"moe_topk\": 3, \"num_shared_expert\": 2}", 0xf, 96, MOE_SCORE_SOFTMAX, 0, 1,
          1, MOE_QK_NORM_ROTATED, 16, 0, 0 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_error_t error;
        moe_model_t *model = describe(cases[i].config, cases[i].change, &error);

        if (model == NULL) {
            fail_msg("%zu: %s", i, error.message);
        }
        assert_int_equal(model->n_layers, 4);
        assert_int_equal(model->tied, cases[i].tied);
        for (uint32_t l = 0; l < model->n_layers; l++) {
            const moe_layer_t *layer = &model->layers[l];
            const moe_router_t *router = &layer->moe.router;

            assert_int_equal(layer->mixer, MOE_MIXER_GQA);
            assert_int_equal(layer->gqa.norm, cases[i].norm);
            assert_int_equal(layer->gqa.rotary.size, cases[i].rotated);
            assert_int_equal(layer->gqa.rotary.interleaved, cases[i].interleaved);
            assert_int_equal(layer->is_moe, cases[i].moe_layers >> l & 1);
            if (!layer->is_moe) {
                assert_int_equal(layer->dense.width, 96);
                continue;
            }
            assert_int_equal(layer->moe.width, 24);
            assert_int_equal(layer->moe.shared.width, cases[i].shared);
            assert_int_equal(router->experts, 8);
            assert_int_equal(router->top_k, 3);
            assert_int_equal(router->score, cases[i].score);
            assert_int_equal(router->bias.size, cases[i].has_bias ? 8 : 0);
            assert_int_equal(router->normalise, cases[i].normalise);
            assert_true(router->scale == cases[i].scale);
        }
        moe_model_close(model);
    }
}


static void test_refusals(void **state)
{
    static const struct {
        const char *config, *change, *message;
    } cases[] = {
        { glm, "{\"n_group\": 3}", "n_group: 3 does not divide n_routed_experts 8" },
        { glm, "{\"n_group\": 4, \"topk_group\": 1}",
          "num_experts_per_tok: 3 is more than the 2 experts of the topk_group groups" },
        { glm, "{\"topk_method\": \"greedy\"}", "topk_method: \"greedy\" is not supported here" },
        { glm, "{\"mlp_layer_types\": [\"dense\"]}", "mlp_layer_types: not an array" },
        { glm, "{\"moe_layer_start_index\": 1}", "moe_layer_start_index: unknown key" },
        { hy3, "{\"expert_hidden_dim\": 32}", "expert_hidden_dim: 32 is not within 24..24" },
        { hy3, "{\"moe_router_use_sigmoid\": false}", "moe_router_use_sigmoid: false is not" },
        { hy3, "{\"moe_router_enable_expert_bias\": false}", "expert_bias: false is not supported" },
        { hy3, "{\"qk_norm\": false}", "qk_norm: false is not supported" },
        { hy3, "{\"mlp_bias\": true}", "mlp_bias: true is not supported" },
        { hy3, "{\"num_experts\": null}", "num_experts: missing" },
        { ernie, "{\"use_bias\": true}", "use_bias: true is not supported" },
        { ernie, "{\"moe_use_aux_free\": false}", "moe_use_aux_free: false is not supported" },
        { ernie, "{\"moe_layer_end_index\": 4}", "moe_layer_end_index: 4 is not within 0..3" },
        { ernie, "{\"moe_layer_start_index\": -1}", "moe_layer_start_index: -1 is not within" },
        { ernie, "{\"moe_k\": 9}", "moe_k: 9 is not within 1..8" },
        { ernie, "{\"num_experts_per_tok\": 2}", "num_experts_per_tok: 2 is not within 3..3" },
        { hunyuan, "{\"moe_topk\": [3, 3, 2, 3]}", "moe_topk: layers that differ" },
        { hunyuan, "{\"moe_topk\": []}", "moe_topk: missing" },
        { hunyuan, "{\"moe_topk\": [9, 9, 9, 9]}", "moe_topk: 9 is not within 1..8" },
        { hunyuan, "{\"num_shared_expert\": [\"1\"]}", "num_shared_expert: not an integer" },
        { hunyuan, "{\"use_mla\": true}", "use_mla: true is not supported" },
        { hunyuan, "{\"use_cla\": true}", "use_cla: true is not supported" },
        { hunyuan, "{\"n_group\": 8}", "n_group: not true or false" },
        { hunyuan, "{\"norm_type\": \"layer\"}", "norm_type: \"layer\" is not supported" },
        { hunyuan, "{\"attention_head_dim\": 32}", "attention_head_dim: 32 is not within 16..16" },
        { hunyuan, "{\"moe_layer_num_skipped\": 1}", "moe_layer_num_skipped: 1 is not within 0..0" },
        { hunyuan, "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}",
          "\"dynamic\" is not supported without alpha" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_error_t error;
        moe_model_t *model = describe(cases[i].config, cases[i].change, &error);

        if (model != NULL || error.code != MOE_BAD_MODEL
            || strstr(error.message, cases[i].message) == NULL)
        {
            fail_msg("%s: \"%s\"", cases[i].change, error.message);
        }
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
