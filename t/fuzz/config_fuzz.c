/* config.json, generation_config.json and tokenizer_config.json, separated by NUL, beside the demo
 * model's weights.  A model that opens keeps within what its descriptors promise, and so does the
 * description of one without weights. */

#include <limits.h>

#include "engine/core/json.h"
#include "engine/model/model.h"
#include "t/fuzz/fuzz.h"


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char weights[PATH_MAX], path[128];

    fuzz_check(realpath(FUZZ_MODEL "/model.safetensors", weights) != NULL);
    snprintf(path, sizeof(path), "%s/model.safetensors", fuzz_directory());
    fuzz_check(symlink(weights, path) == 0);
    return 0;
}


static void write_optional(const char *name, fuzz_input_t part)
{
    if (part.size) {
        fuzz_write(name, part.data, part.size);
    } else {
        fuzz_remove(name);
    }
}


static void check_shapes(const moe_model_t *model)
{
    fuzz_check(model->hidden && model->vocabulary && model->n_layers && model->context);
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i];

        if (layer->is_moe) {
            const moe_router_t *router = &layer->moe.router;

            fuzz_check(router->top_k >= 1 && router->top_k <= router->experts);
            fuzz_check(router->group == MOE_GROUP_NONE
                       || (router->groups_kept <= router->groups
                           && router->experts % router->groups == 0));
        }
    }
}


static void check_model(const moe_model_t *model)
{
    check_shapes(model);
    fuzz_check(model->final_norm.size == model->hidden);
    for (uint32_t i = 0; i < model->n_layers; i++) {
        fuzz_check(model->layers[i].input_norm.size == model->hidden);
    }
    for (uint32_t i = 0; i < model->n_eos_ids; i++) {
        fuzz_check(model->eos_ids[i] < model->vocabulary);
    }
}


static void describe_model(void)
{
    moe_error_t error;
    json_t *config = moe_json_load(fuzz_directory(), "config.json", 0, &error);
    moe_model_t *model = config != NULL ? moe_model_describe(config, &error) : NULL;

    if (model != NULL) {
        check_shapes(model);
    } else {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
    }
    moe_model_close(model);
    json_decref(config);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size };
    fuzz_input_t config = fuzz_part(&input);
    moe_model_t *model;
    moe_error_t error;

    fuzz_write("config.json", config.data, config.size);
    write_optional("generation_config.json", fuzz_part(&input));
    write_optional("tokenizer_config.json", fuzz_part(&input));
    describe_model();
    model = moe_model_open(fuzz_directory(), &error);
    if (model == NULL) {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        return 0;
    }
    check_model(model);
    moe_model_close(model);
    return 0;
}
