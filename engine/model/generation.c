/*
 * generation_config.json: sampling defaults, and the ids that end an answer.  Checkpoints name
 * those in up to three files which often disagree; the union is right, because an id that one of
 * them calls an end is one, and a missed end is an endless answer.  In GGUF both are metadata.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/core/given.h"
#include "engine/core/json.h"
#include "engine/model/build.h"

#define GENERATION_FILE "generation_config.json"
#define EOS_LIMIT 64u

/* tokenizer.ggml.token_type */
#define CONTROL 3
#define USER_DEFINED 4


static void add_eos(moe_model_t *model, moe_config_t *config, uint32_t id)
{
    for (uint32_t i = 0; i < model->n_eos_ids; i++) {
        if (model->eos_ids[i] == id) {
            return;
        }
    }
    if (model->n_eos_ids == EOS_LIMIT) {
        moe_config_fail(config, "eos_token_id", "more than %u ids in all", EOS_LIMIT);
        return;
    }
    model->eos_ids[model->n_eos_ids++] = id;
}


/* eos_token_id: an id, a list of ids or null. */
static void read_eos(moe_model_t *model, moe_config_t *config)
{
    json_t *value = moe_config_get(config, "eos_token_id");
    size_t n = json_is_array(value) ? json_array_size(value) : value != NULL;

    for (size_t i = 0; i < n && !config->failed; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_is_integer(id) || json_integer_value(id) < 0
            || json_integer_value(id) >= model->vocabulary)
        {
            moe_config_fail(config, "eos_token_id", "entry %zu is not a token id below vocab_size "
                            "%u", i, model->vocabulary);
            return;
        }
        add_eos(model, config, (uint32_t) json_integer_value(id));
    }
}


static void read_sampling(moe_generation_t *generation, moe_config_t *config)
{
    static const struct {
        const char *key;
        uint32_t bit;
        size_t offset;
        double minimum, maximum;
    } numbers[] = {
        { "temperature", MOE_GIVEN_TEMPERATURE, offsetof(moe_generation_t, temperature), 0, 100 },
        { "top_p", MOE_GIVEN_TOP_P, offsetof(moe_generation_t, top_p), 0, 1 },
        { "min_p", MOE_GIVEN_MIN_P, offsetof(moe_generation_t, min_p), 0, 1 },
        { "repetition_penalty", MOE_GIVEN_REPETITION_PENALTY,
          offsetof(moe_generation_t, repetition_penalty), 0.01, 100 },
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (moe_config_get(config, numbers[i].key) != NULL) {
            *(float *) ((char *) generation + numbers[i].offset) =
                (float) moe_config_number(config, numbers[i].key, numbers[i].minimum,
                                          numbers[i].maximum);
            generation->given |= numbers[i].bit;
        }
    }
    if (moe_config_get(config, "top_k") != NULL) {
        generation->top_k = moe_config_uint(config, "top_k", 0, 1u << 30);
        generation->given |= MOE_GIVEN_TOP_K;
    }
    if (!moe_config_bool_or(config, "do_sample", 1)) {
        generation->temperature = 0;
        generation->given |= MOE_GIVEN_TEMPERATURE;
    }
}


static int read_generation_file(moe_model_t *model, const char *directory, moe_error_t *error)
{
    json_t *object = moe_json_load(directory, GENERATION_FILE, 1, error);
    moe_config_t config = { .object = object, .where = GENERATION_FILE, .error = error };

    if (object == NULL) {
        return error->code == MOE_OK ? 0 : -1;
    }
    read_eos(model, &config);
    read_sampling(&model->generation, &config);
    json_decref(object);
    return config.failed ? -1 : 0;
}


/* A special token of tokenizer_config.json is a string or an object with its content. */
static const char *token_text(const json_t *token)
{
    return json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
}


/* Id of an added token, -1 when there is none of this text. */
static json_int_t find_added(const json_t *tokenizer, const char *text)
{
    const json_t *token, *id;
    size_t i;

    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, token) {
        const char *content = json_string_value(json_object_get(token, "content"));

        id = json_object_get(token, "id");
        if (content != NULL && strcmp(content, text) == 0 && json_is_integer(id)) {
            return json_integer_value(id);
        }
    }
    return -1;
}


/* Id of a token's text in tokenizer.json, -1 when it is not there: then it cannot be generated;
 * -2 with the error.  The vocabulary, which takes long to parse, is looked at only for what is no
 * added token. */
static json_int_t find_token(const char *directory, const char *text, moe_error_t *error)
{
    static const char file[] = "tokenizer.json";
    moe_json_part_t parts[2] = {
        { .object = "model", .key = "vocab" }, { .object = "model", .key = "merges" }
    };
    char *parts_text;
    json_t *tokenizer = moe_json_load_without(directory, file, 1, parts, 2, &parts_text, error);
    json_int_t id = find_added(tokenizer, text);

    free(parts_text);
    if (tokenizer != NULL && id == -1) {
        const json_t *value;

        json_decref(tokenizer);
        tokenizer = moe_json_load(directory, file, 1, error);
        value = json_object_get(json_object_get(json_object_get(tokenizer, "model"), "vocab"),
                                text);
        id = json_is_integer(value) ? json_integer_value(value) : -1;
    }
    if (tokenizer == NULL && error->code != MOE_OK) {
        id = -2;
    }
    json_decref(tokenizer);
    return id;
}


static int read_tokenizer_files(moe_model_t *model, const char *directory, moe_error_t *error)
{
    json_t *settings = moe_json_load(directory, "tokenizer_config.json", 1, error);
    moe_config_t config = { .object = settings, .where = "tokenizer_config.json", .error = error };
    const char *text = token_text(json_object_get(settings, "eos_token"));
    json_int_t id;

    if (text == NULL) {
        json_decref(settings);
        return settings == NULL && error->code != MOE_OK ? -1 : 0;
    }
    id = find_token(directory, text, error);
    if (id >= model->vocabulary) {
        moe_config_fail(&config, "eos_token", "its id %lld is not below vocab_size %u",
                        (long long) id, model->vocabulary);
    } else if (id >= 0) {
        add_eos(model, &config, (uint32_t) id);
    } else if (id == -2) {
        config.failed = 1;
    }
    json_decref(settings);
    return config.failed ? -1 : 0;
}


int moe_model_read_generation(moe_model_t *model, const char *directory, moe_config_t *config,
                              moe_config_t *outer, moe_error_t *error)
{
    model->eos_ids = moe_model_allocate(model, EOS_LIMIT, sizeof(*model->eos_ids), error);
    if (model->eos_ids == NULL || read_generation_file(model, directory, error) != 0) {
        return -1;
    }
    read_eos(model, config);
    read_eos(model, outer);
    return config->failed || outer->failed ? -1 : read_tokenizer_files(model, directory, error);
}


static void set_named(json_t *object, json_t *names, const json_t *metadata, const char *key,
                      const char *stored)
{
    json_object_set(object, key, json_object_get(metadata, stored));
    json_object_set_new(names, key, json_string(stored));
}


/* What ends answers in some family; after the first one, which ends a message, an answer goes on
 * where there are the two behind it (gpt-oss). */
static const char *const ends[] = {
    "<|end|>", "<|return|>", "<|call|>", "</s>", "<EOT>", "<eos>", "<end_of_turn>",
    "<end_of_utterance>", "<turn|>", "<|calls|>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>",
    "<|eot_id|>", "<|flush|>", "<|im_end|>", "<|tool_response>", "[EOS]", "[EOT]", "[e~[", "_<EOT>",
    ("<\xef\xbd\x9c" "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>")
};

#define N_ENDS (sizeof(ends) / sizeof(ends[0]))


/* Files often name only one of the tokens that end an answer: the others are known by their texts,
 * as llama.cpp knows them. */
static void add_known_eos(moe_model_t *model, moe_config_t *config)
{
    const json_t *types = moe_config_get(config, "tokenizer.ggml.token_type"), *token;
    uint32_t ids[N_ENDS];
    size_t i;

    memset(ids, 0xff, sizeof(ids));
    json_array_foreach(moe_config_get(config, "tokenizer.ggml.tokens"), i, token) {
        const json_int_t type = json_integer_value(json_array_get(types, i));

        for (size_t e = 0; (type == CONTROL || type == USER_DEFINED) && e < N_ENDS; e++) {
            if (json_is_string(token) && strcmp(json_string_value(token), ends[e]) == 0) {
                ids[e] = (uint32_t) i;
            }
        }
    }
    for (size_t e = ids[1] != UINT32_MAX && ids[2] != UINT32_MAX; e < N_ENDS; e++) {
        if (ids[e] < model->vocabulary) {
            add_eos(model, config, ids[e]);
        }
    }
}


/* The ids that end a text, a turn or a message. */
static void read_gguf_eos(moe_model_t *model, moe_config_t *config)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (moe_config_get(config, keys[i]) != NULL) {
            uint32_t id = moe_config_uint(config, keys[i], 0, model->vocabulary - 1);

            if (!config->failed) {
                add_eos(model, config, id);
            }
        }
    }
    add_known_eos(model, config);
}


int moe_model_read_gguf_generation(moe_model_t *model, const json_t *metadata, const char *where,
                                   moe_error_t *error)
{
    moe_config_t config = { .object = metadata, .where = where, .error = error }, sampling = config;
    json_t *object = json_object(), *names = json_object();

    set_named(object, names, metadata, "temperature", "general.sampling.temp");
    set_named(object, names, metadata, "top_p", "general.sampling.top_p");
    set_named(object, names, metadata, "top_k", "general.sampling.top_k");
    set_named(object, names, metadata, "min_p", "general.sampling.min_p");
    set_named(object, names, metadata, "repetition_penalty", "general.sampling.penalty_repeat");
    sampling.object = object;
    sampling.names = names;
    read_sampling(&model->generation, &sampling);
    json_decref(object);
    json_decref(names);
    model->eos_ids = moe_model_allocate(model, EOS_LIMIT, sizeof(*model->eos_ids), error);
    if (model->eos_ids == NULL || sampling.failed) {
        return -1;
    }
    read_gguf_eos(model, &config);
    return config.failed ? -1 : 0;
}
