/* The registry of families, and the refusal of config keys that nobody here understands. */

#include <stddef.h>
#include <string.h>

#include "engine/model/config.h"
#include "engine/model/deepseek.h"
#include "engine/model/llama_like.h"
#include "engine/model/model.h"

const moe_family_t *const moe_families[] = {
    &moe_family_deepseek_v3,
    &moe_family_deepseek_v2,
    &moe_family_kimi_k2,
    &moe_family_olmoe,
    &moe_family_mixtral,
    &moe_family_qwen2_moe,
    &moe_family_qwen3_moe,
    &moe_family_qwen3_vl_moe,
    &moe_family_gpt_oss,
    &moe_family_minimax_m2,
    &moe_family_glm4_moe,
    &moe_family_glm4_moe_lite,
    &moe_family_hy_v3,
    &moe_family_ernie4_5_moe,
    &moe_family_hunyuan_v1_moe,
    &moe_family_granitemoe,
    &moe_family_granitemoeshared,
    NULL
};

/* Keys of any config.json that do not change what a trained model computes: bookkeeping, training,
 * Python class attributes that old writers dumped, token ids (read elsewhere). */
static const char *const neutral_keys[] = {
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "add_cross_attention",
    "architectures", "attention_dropout", "attn_implementation", "auto_map", "aux_loss_alpha",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "initializer_range", "is_decoder", "is_encoder_decoder",
    "label2id", "length_penalty", "max_length", "min_length", "model_type", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "quantization_config",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "router_aux_loss_coef", "sep_token_id", "seq_aux", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "typical_p", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache",
    NULL
};


/* Models of several kinds of input, and their keys that say nothing of the language model. */
static const char *const wrappers[] = { "kimi_k25", "qwen3_vl_moe", NULL };

static const char *const wrapper_keys[] = {
    "ignore_index", "image_token_id", "media_placeholder_token_id", "text_config",
    "tie_word_embeddings", "use_unified_vision_chunk", "video_placeholder", "video_token_id",
    "vision_config", "vision_end_token_id", "vision_start_token_id", NULL
};


/* But for weights quantised by the method `known`. */
static void refuse_quantised(moe_config_t *config, const char *known)
{
    const json_t *quantization = moe_config_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));

    if (quantization != NULL
        && (method == NULL || known == NULL || strcmp(method, known) != 0))
    {
        moe_config_fail(config, "quantization_config", "weights quantised by \"%.64s\" are not "
                        "supported", method != NULL ? method : "an unnamed method");
    }
}


int moe_family_enter_text(moe_config_t *config)
{
    const char *const *wrapper = wrappers;
    moe_config_t text, read = *config;
    const char *model_type = moe_config_string_or(&read, "model_type", "");
    int tied;

    while (*wrapper != NULL && strcmp(*wrapper, model_type) != 0) {
        wrapper++;
    }
    if (*wrapper == NULL) {
        return 0;
    }
    refuse_quantised(&read, NULL);
    moe_config_check_keys(&read, wrapper_keys, neutral_keys);
    if (moe_config_get(&read, "text_config") == NULL) {
        moe_config_fail(&read, "text_config", "missing");
    }
    text = moe_config_object(&read, "text_config");
    tied = moe_config_bool_or(&text, "tie_word_embeddings", 0);
    if (moe_config_bool_or(&read, "tie_word_embeddings", tied) != tied) {
        moe_config_fail(&read, "tie_word_embeddings", "not as in text_config");
    }
    if (read.failed || text.failed) {
        return -1;
    }
    *config = text;
    return 1;
}


const moe_family_t *moe_family_find(const moe_config_t *config)
{
    moe_config_t read = *config;
    const char *model_type = moe_config_string_or(&read, "model_type", NULL);
    const moe_family_t *family = NULL;

    if (model_type == NULL) {
        moe_config_fail(&read, "model_type", "missing");
        return NULL;
    }
    for (const moe_family_t *const *f = moe_families; *f != NULL; f++) {
        if (strcmp((*f)->model_type, model_type) == 0) {
            family = *f;
        }
    }
    if (family == NULL) {
        moe_config_fail(&read, "model_type", "\"%.64s\" is not a supported family", model_type);
        return NULL;
    }
    refuse_quantised(&read, family->quantised);
    moe_config_check_keys(&read, family->known_keys, neutral_keys);
    return read.failed ? NULL : family;
}
