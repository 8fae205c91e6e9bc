/*
 * What is wrong with a model of any family is refused by name: each of its tensors missing or of
 * another shape, tensors that the family does not have, each key of its config.json damaged.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/model/model.h"
#include "t/golden/reference_model.h"

typedef struct {
    const char *name;           /* of the case */
    tiny_files_t files;
    char *directory;
} fixture_t;


/* Whether the model is refused; if it is, in one line with these words. */
static int is_refused(const fixture_t *f, const char *what, const char *words)
{
    moe_error_t error;
    moe_model_t *model = moe_model_open(f->directory, &error);

    if (model != NULL) {
        moe_model_close(model);
        return 0;
    }
    if (strstr(error.message, words) == NULL || strchr(error.message, '\n') != NULL) {
        fail_msg("%s, %s: \"%s\" in \"%s\"?", f->name, what, words, error.message);
    }
    return 1;
}


static void expect_refusal(const fixture_t *f, const char *what, const char *words)
{
    if (!is_refused(f, what, words)) {
        fail_msg("%s, %s: not refused", f->name, what);
    }
}


static void write_tensors(const fixture_t *f, const json_t *header, size_t size)
{
    tiny_write_safetensors(f->directory, "model.safetensors", header, f->files.data, size, 0);
}


/* Of each entry of the case, the tensor with the highest numbers. */
static void last_name(const json_t *entry, char name[256])
{
    const char *at = json_string_value(json_object_get(entry, "name"));
    size_t size = 0;

    for (; *at != '\0'; at++) {
        if (*at == '{') {
            const char *end = strchr(at, '}'), *last = end;

            while (last[-1] != ',' && last[-1] != '{') {
                last--;
            }
            size += (size_t) snprintf(name + size, 256 - size, "%.*s", (int) (end - last), last);
            at = end;
        } else {
            name[size++] = *at;
        }
        assert_true(size < 255);
    }
    name[size] = '\0';
}


static void check_missing(const fixture_t *f, const char *name)
{
    json_t *header = json_deep_copy(f->files.header);
    char words[300];

    json_object_set(header, "another.name", json_object_get(header, name));
    json_object_del(header, name);
    write_tensors(f, header, f->files.size);
    json_decref(header);
    snprintf(words, sizeof(words), "%s: missing", name);
    expect_refusal(f, name, words);
}


static void check_shape(const fixture_t *f, const char *name)
{
    json_t *header = json_deep_copy(f->files.header), *info = json_object_get(header, name), *size;
    json_int_t count = 1;
    char words[300];
    size_t i;

    json_array_foreach(json_object_get(info, "shape"), i, size) {
        count *= json_integer_value(size);
    }
    json_object_set_new(info, "shape", json_pack("[i, I]", 2, count / 2));
    write_tensors(f, header, f->files.size);
    json_decref(header);
    snprintf(words, sizeof(words), "%s: shape [2, %lld], expected [", name, (long long) count / 2);
    expect_refusal(f, name, words);
}


/* 4 bytes more, which are a tensor. */
static void write_left_over(const fixture_t *f, const char *name)
{
    json_t *header = json_deep_copy(f->files.header);

    json_object_set_new(header, name, json_pack(
        "{s:s, s:[i], s:[I, I]}", "dtype", "F32", "shape", 1, "data_offsets",
        (json_int_t) f->files.size - 4, (json_int_t) f->files.size));
    write_tensors(f, header, f->files.size);
    json_decref(header);
}


/* What some files hold and no model needs: tables of frequencies, a layer that drafts. */
static void check_needless(const fixture_t *f)
{
    static const char *const names[] = {
        "model.layers.1.self_attn.rotary_emb.inv_freq", "model.layers.3.eh_proj.weight"
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        write_left_over(f, names[i]);
        assert_false(is_refused(f, names[i], "none"));
    }
}


static void check_tensors(fixture_t *f, const json_t *test)
{
    static const char *const others[] = {
        "model.extra.weight", "model.layers.0.extra.weight",
        "model.layers.0.self_attn.extra.weight", "model.layers.0.self_attn.o_proj.scale",
        "model.layers.2.mlp.experts.8.up_proj.bias", "model.layers.3.input_layernorm.weight",
        "lm_head.bias"
    };
    const json_t *entry;
    char name[256], words[300];
    size_t i;

    json_array_foreach(json_object_get(test, "tensors"), i, entry) {
        last_name(entry, name);
        check_missing(f, name);
        check_shape(f, name);
    }
    f->files.data = realloc(f->files.data, f->files.size + 4);
    tiny_check(f->files.data != NULL, "realloc");
    memset(f->files.data + f->files.size, 0, 4);
    f->files.size += 4;
    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        write_left_over(f, others[i]);
        snprintf(words, sizeof(words), "%s: not part of this model", others[i]);
        expect_refusal(f, others[i], words);
    }
    check_needless(f);
    f->files.size -= 4;
    write_tensors(f, f->files.header, f->files.size);
}


/* Writes the config with `key` set to a value, which is stolen. */
static void write_config(const fixture_t *f, const char *key, json_t *value)
{
    json_t *config = json_deep_copy(f->files.config);

    json_object_set_new(config, key, value);
    tiny_write_json(f->directory, "config.json", config);
    json_decref(config);
}


static void check_config(const fixture_t *f, const char *key, json_t *value, const char *words)
{
    write_config(f, key, value);
    expect_refusal(f, key, words);
}


/* Keys that change nothing, at all or beside the others: what they hold may be ignored. */
static int is_neutral(const json_t *config, const char *key)
{
    static const char *const neutral[] = {
        "architectures", "attention_dropout", "bos_token_id", "enable_moe_fp32_combine",
        "experts_per_token", "initial_context_length", "max_window_layers", "num_mtp_modules",
        "num_nextn_predict_layers", "output_router_logits", "pad_token_id", "router_aux_loss_coef",
        "torch_dtype", "use_mtp"
    };

    for (size_t i = 0; i < sizeof(neutral) / sizeof(neutral[0]); i++) {
        if (strcmp(neutral[i], key) == 0) {
            return 1;
        }
    }
    return strcmp(key, "sliding_window") == 0
           && json_is_false(json_object_get(config, "use_sliding_window"));
}


static void check_configs(const fixture_t *f)
{
    json_t *value, *scaling = json_object_get(f->files.config, "rope_scaling");
    const char *key;

    json_object_foreach(f->files.config, key, value) {
        write_config(f, key, json_pack("{s:[]}", "strange"));
        if (!is_refused(f, key, key) && !is_neutral(f->files.config, key)) {
            fail_msg("%s, %s: not refused", f->name, key);
        }
    }
    scaling = json_is_object(scaling) ? json_deep_copy(scaling) : json_object();
    json_object_del(scaling, "type");
    json_object_set_new(scaling, "rope_type", json_string("magic"));
    check_config(f, "rope_scaling", scaling, "rope_type: \"magic\" is not supported");
    check_config(f, "model_type", json_string("magic_moe"),
                 "model_type: \"magic_moe\" is not a supported family");
    check_config(f, "quantization_config", json_pack("{s:s}", "quant_method", "magic"),
                 "quantization_config: weights quantised by \"magic\" are not supported");
    check_config(f, "attn_magic", json_true(), "attn_magic: unknown key");
    check_config(f, "hidden_act", json_string("magic"), "hidden_act: \"magic\"");
    tiny_write_json(f->directory, "config.json", f->files.config);
}


static void test_refusals(void **state)
{
    json_t *golden = json_load_file(REFERENCE_MODELS, 0, NULL);
    const json_t *test;
    size_t i;

    assert_non_null(golden);
    json_array_foreach(json_object_get(golden, "cases"), i, test) {
        fixture_t f = {
            .name = json_string_value(json_object_get(test, "name")),
            .files = reference_model_make(test, "config"), .directory = tiny_directory()
        };

        tiny_model_save(&f.files, f.directory);
        check_configs(&f);
        check_tensors(&f, test);
        assert_false(is_refused(&f, "undamaged", "none"));
        tiny_directory_remove(f.directory);
        tiny_model_free(&f.files);
    }
    json_decref(golden);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
