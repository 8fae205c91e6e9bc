#include "engine/model/gguf_config.h"

#include <stdio.h>
#include <string.h>

#include "engine/model/build.h"

static const moe_gguf_architecture_t *const architectures[] = {
    &moe_gguf_deepseek2,
    &moe_gguf_ernie4_5_moe,
    &moe_gguf_glm4moe,
    &moe_gguf_gpt_oss,
    &moe_gguf_hunyuan_moe,
    &moe_gguf_hy_v3,
    &moe_gguf_llama,
    &moe_gguf_minimax_m2,
    &moe_gguf_olmoe,
    &moe_gguf_qwen2moe,
    &moe_gguf_qwen3moe,
    NULL
};

const moe_tensor_name_t moe_gguf_in_layer[] = {
    { "eh_proj.weight", "nextn.eh_proj.weight" },
    { "input_layernorm.weight", "attn_norm.weight" },
    { "mlp.down_proj.weight", "ffn_down.weight" },
    { "mlp.experts.down_proj", "ffn_down_exps.weight" },
    { "mlp.experts.down_proj.weight", "ffn_down_exps.weight" },
    { "mlp.experts.gate_proj.weight", "ffn_gate_exps.weight" },
    { "mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight" },
    { "mlp.experts.up_proj.weight", "ffn_up_exps.weight" },
    { "mlp.gate.e_score_correction_bias", "exp_probs_b.bias" },
    { "mlp.gate.weight", "ffn_gate_inp.weight" },
    { "mlp.gate_proj.weight", "ffn_gate.weight" },
    { "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight" },
    { "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight" },
    { "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight" },
    { "mlp.up_proj.weight", "ffn_up.weight" },
    { "post_attention_layernorm.weight", "ffn_norm.weight" },
    { "self_attn.k_norm.weight", "attn_k_norm.weight" },
    { "self_attn.k_proj.bias", "attn_k.bias" },
    { "self_attn.k_proj.weight", "attn_k.weight" },
    { "self_attn.o_proj.bias", "attn_output.bias" },
    { "self_attn.o_proj.weight", "attn_output.weight" },
    { "self_attn.q_norm.weight", "attn_q_norm.weight" },
    { "self_attn.q_proj.bias", "attn_q.bias" },
    { "self_attn.q_proj.weight", "attn_q.weight" },
    { "self_attn.v_proj.bias", "attn_v.bias" },
    { "self_attn.v_proj.weight", "attn_v.weight" },
    { NULL, NULL }
};

const moe_tensor_name_t moe_gguf_outside[] = {
    { "lm_head.weight", "output.weight" },
    { "model.embed_tokens.weight", "token_embd.weight" },
    { "model.norm.weight", "output_norm.weight" },
    { NULL, NULL }
};

static const moe_gguf_key_t common_keys[] = {
    { "attention.head_count", "num_attention_heads" },
    { "attention.layer_norm_rms_epsilon", "rms_norm_eps" },
    { "block_count", "num_hidden_layers" },
    { "context_length", "max_position_embeddings" },
    { "embedding_length", "hidden_size" },
    { "expert_used_count", "num_experts_per_tok" },
    { "feed_forward_length", "intermediate_size" },
    { "nextn_predict_layers", NULL },
    { "rope.freq_base", "rope_theta" },
    { "rope.scaling.finetuned", NULL },
    { "rope.scaling.type", NULL },
    { "tensor_data_layout", NULL },
    { "vocab_size", "vocab_size" },
    { NULL, NULL }
};

static const moe_gguf_key_t scaling_keys[] = {
    { "rope.scaling.factor", "factor" },
    { "rope.scaling.original_context_length", "original_max_position_embeddings" },
    { "rope.scaling.yarn_beta_fast", "beta_fast" },
    { "rope.scaling.yarn_beta_slow", "beta_slow" },
    { NULL, NULL }
};


const char *moe_gguf_name(const moe_gguf_translation_t *translation, const char *stored,
                          char text[MOE_GGUF_NAME_SIZE])
{
    snprintf(text, MOE_GGUF_NAME_SIZE, "%s.%s", translation->architecture->architecture, stored);
    return text;
}


static json_t *get(const moe_gguf_translation_t *t, const char *stored)
{
    char name[MOE_GGUF_NAME_SIZE];

    return moe_config_get(&t->metadata, moe_gguf_name(t, stored, name));
}


int moe_gguf_has(const moe_gguf_translation_t *translation, const char *stored)
{
    return get(translation, stored) != NULL;
}


uint32_t moe_gguf_uint(moe_gguf_translation_t *translation, const char *stored, uint32_t minimum,
                       uint32_t maximum)
{
    char name[MOE_GGUF_NAME_SIZE];

    return moe_config_uint(&translation->metadata, moe_gguf_name(translation, stored, name),
                           minimum, maximum);
}


uint32_t moe_gguf_uint_or(moe_gguf_translation_t *translation, const char *stored,
                          uint32_t otherwise, uint32_t minimum, uint32_t maximum)
{
    return moe_gguf_has(translation, stored)
           ? moe_gguf_uint(translation, stored, minimum, maximum) : otherwise;
}


static void name_key(moe_gguf_translation_t *t, const char *key, const char *name)
{
    if (json_object_set_new(t->names, key, json_string(name)) != 0) {
        moe_config_fail(&t->metadata, name, "out of memory");
    }
}


void moe_gguf_set(moe_gguf_translation_t *translation, json_t *object, const char *key,
                  json_t *value, const char *stored)
{
    char name[MOE_GGUF_NAME_SIZE];

    if (json_object_set_new(object, key, value) != 0) {
        moe_config_fail(&translation->metadata, key, "out of memory");
    }
    if (stored != NULL) {
        name_key(translation, key, moe_gguf_name(translation, stored, name));
    }
}


void moe_gguf_default(moe_gguf_translation_t *translation, const char *key, json_t *value,
                      const char *stored)
{
    if (moe_gguf_has(translation, stored)) {
        json_decref(value);
    } else {
        moe_gguf_set(translation, translation->config, key, value, stored);
    }
}


void moe_gguf_count_layers(moe_gguf_translation_t *translation)
{
    uint32_t layers = moe_gguf_uint(translation, "block_count", 1, MOE_LAYERS_LIMIT);
    char name[64];

    for (; layers > 1; layers--) {
        snprintf(name, sizeof(name), "model.layers.%u.eh_proj.weight", layers - 1);
        if (moe_tensors_find(translation->tensors, name) == NULL) {
            break;
        }
    }
    moe_gguf_set(translation, translation->config, "num_hidden_layers", json_integer(layers),
                 "block_count");
}


void moe_gguf_drop_zero(moe_gguf_translation_t *translation, const char *key)
{
    const json_t *value = json_object_get(translation->config, key);

    if (json_is_number(value) && json_number_value(value) == 0) {
        json_object_del(translation->config, key);
    }
}


/* Keys are named whether or not they are there: the config's reader says which it misses. */
static void rename_keys(moe_gguf_translation_t *t, json_t *object, const moe_gguf_key_t *keys)
{
    char name[MOE_GGUF_NAME_SIZE];

    for (; keys->stored != NULL; keys++) {
        json_t *value = get(t, keys->stored);

        if (keys->key == NULL) {
            continue;
        }
        if (value != NULL) {
            moe_gguf_set(t, object, keys->key, json_incref(value), keys->stored);
        } else {
            name_key(t, keys->key, moe_gguf_name(t, keys->stored, name));
        }
    }
}


/* Without a type, or with a factor of 1, positions are not scaled. */
static void read_scaling(moe_gguf_translation_t *t)
{
    char name[MOE_GGUF_NAME_SIZE];
    const char *type = moe_config_string_or(&t->metadata,
                                            moe_gguf_name(t, "rope.scaling.type", name), "linear");
    double factor = moe_config_number_or(&t->metadata,
                                         moe_gguf_name(t, "rope.scaling.factor", name), 1, 0, 1e6);

    if (strcmp(type, "none") == 0 || (strcmp(type, "linear") == 0 && (factor == 1 || factor == 0)))
    {
        return;
    }
    t->scaling = json_object();
    moe_gguf_set(t, t->config, "rope_scaling", t->scaling, "rope.scaling");
    moe_gguf_set(t, t->scaling, "rope_type", json_string(type), "rope.scaling.type");
    rename_keys(t, t->scaling, scaling_keys);
}


/* Every file has the embedding; not every one the number of its rows. */
static void complete_common(moe_gguf_translation_t *t)
{
    const moe_tensor_t *embedding = moe_tensors_find(t->tensors, "model.embed_tokens.weight");

    if (json_object_get(t->config, "vocab_size") == NULL && embedding != NULL) {
        moe_gguf_set(t, t->config, "vocab_size", json_integer((json_int_t) embedding->shape[0]),
                     "vocab_size");
    }
    moe_gguf_set(t, t->config, "tie_word_embeddings",
                 json_boolean(moe_tensors_find(t->tensors, "lm_head.weight") == NULL), NULL);
    read_scaling(t);
}


static int is_stored(const moe_gguf_key_t *keys, const char *stored)
{
    while (keys->stored != NULL && strcmp(keys->stored, stored) != 0) {
        keys++;
    }
    return keys->stored != NULL;
}


static int is_known(const moe_gguf_architecture_t *architecture, const char *stored)
{
    for (size_t i = 0; i < MOE_GGUF_KEY_TABLES && architecture->keys[i] != NULL; i++) {
        if (is_stored(architecture->keys[i], stored)) {
            return 1;
        }
    }
    return is_stored(common_keys, stored) || is_stored(scaling_keys, stored);
}


/* Keys of the architecture that nobody understands may change what the model computes. */
static void check_keys(moe_gguf_translation_t *t)
{
    const size_t length = strlen(t->architecture->architecture);
    const char *key;
    json_t *value;

    json_object_foreach((json_t *) (uintptr_t) t->metadata.object, key, value) {
        if (strncmp(key, t->architecture->architecture, length) == 0 && key[length] == '.'
            && !is_known(t->architecture, key + length + 1))
        {
            moe_config_fail(&t->metadata, key,
                            "unknown key: it may change what the model computes");
        }
    }
}


static void find_architecture(moe_gguf_translation_t *t)
{
    const char *name = moe_config_string_or(&t->metadata, "general.architecture", NULL);
    const char *type = moe_config_string_or(&t->metadata, "general.type", "model");

    if (strcmp(type, "model") != 0) {
        moe_config_fail(&t->metadata, "general.type", "\"%.64s\" is not a model", type);
    }
    if (name == NULL) {
        moe_config_fail(&t->metadata, "general.architecture", "missing");
        return;
    }
    for (size_t i = 0; architectures[i] != NULL; i++) {
        if (strcmp(architectures[i]->architecture, name) == 0) {
            t->architecture = architectures[i];
            return;
        }
    }
    moe_config_fail(&t->metadata, "general.architecture", "\"%.64s\" is not a supported family",
                    name);
}


int moe_gguf_config(moe_config_t *config, const json_t *metadata, const char *where,
                    moe_tensors_t *tensors, moe_error_t *error)
{
    moe_gguf_translation_t t = {
        .metadata = { .object = metadata, .where = where, .error = error }, .tensors = tensors,
        .config = json_object(), .names = json_object()
    };

    find_architecture(&t);
    if (!t.metadata.failed) {
        moe_tensors_translate(tensors, &t.architecture->tensors);
        rename_keys(&t, t.config, common_keys);
        for (size_t i = 0; i < MOE_GGUF_KEY_TABLES && t.architecture->keys[i] != NULL; i++) {
            rename_keys(&t, t.config, t.architecture->keys[i]);
        }
        complete_common(&t);
        t.architecture->complete(&t);
        check_keys(&t);
    }
    if (t.metadata.failed) {
        json_decref(t.config);
        json_decref(t.names);
        return -1;
    }
    *config = (moe_config_t) {
        .object = t.config, .where = where, .names = t.names, .error = error
    };
    return 0;
}
