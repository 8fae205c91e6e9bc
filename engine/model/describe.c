/* Models without weights: what config.json alone says. */

#include <stdio.h>
#include <stdlib.h>

#include "engine/model/model.h"


moe_model_t *moe_model_describe(const json_t *config, moe_error_t *error)
{
    moe_model_t *model = calloc(1, sizeof(*model));
    json_t *shapes = json_deep_copy(config);
    moe_config_t source = { .where = "config.json", .error = error };
    const moe_family_t *family = NULL;

    if (model == NULL || shapes == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for the model's description");
    } else {
        json_object_del(shapes, "quantization_config");
        json_object_del(json_object_get(shapes, "text_config"), "quantization_config");
        source.object = shapes;
        family = moe_family_enter_text(&source) < 0 ? NULL : moe_family_find(&source);
    }
    if (family == NULL || family->describe(family, model, &source, error) != 0) {
        moe_model_close(model);
        model = NULL;
    } else {
        snprintf(model->family, sizeof(model->family), "%s", family->model_type);
    }
    json_decref(shapes);
    return model;
}
