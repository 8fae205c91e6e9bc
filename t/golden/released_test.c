/*
 * The configs of released models: none of their keys may be unknown, and the weights that their
 * shapes add up to must be as many as were published.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>

#include "engine/plan/plan.h"

#define TOLERANCE 1e-3          /* vectors are not counted, published numbers are rounded */


/* Weights of the model, all on one device. */
static double count_weights(const moe_model_t *model)
{
    const moe_plan_hardware_t hardware = {
        .memory = 1e15, .bandwidth = 1e12, .flops = 1e15, .attention_flops = 1e15, .link = 1e12,
        .node_link = 1e12, .node = 1
    };
    const moe_plan_work_t work = {
        .context = 1, .batch = 1, .weight_size = 2, .kv_size = 2, .dispatch_size = 2,
        .return_size = 2, .imbalance = 1
    };
    moe_plan_t plan;
    moe_error_t error;

    if (moe_plan(model, &hardware, &work, 1, &plan, &error) != 0) {
        fail_msg("%s", error.message);
    }
    return plan.weights / 2;
}


static void test_released(void **state)
{
    json_t *models = json_load_file("t/golden/released.json", 0, NULL), *released;
    size_t i;

    assert_true(json_array_size(models) > 0);
    json_array_foreach(models, i, released) {
        const char *name = json_string_value(json_object_get(released, "name"));
        const double expected = json_number_value(json_object_get(released, "parameters"));
        moe_error_t error;
        moe_model_t *model = moe_model_describe(json_object_get(released, "config"), &error);
        double weights;

        if (model == NULL) {
            fail_msg("%s: %s", name, error.message);
        }
        weights = count_weights(model);
        print_message("%-36s %.5g billion\n", name, weights / 1e9);
        if (fabs(weights / expected - 1) > TOLERANCE) {
            fail_msg("%s: %.0f weights, not %.0f", name, weights, expected);
        }
        moe_model_close(model);
    }
    json_decref(models);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
