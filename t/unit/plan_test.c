/* The plan's arithmetic: against real tensors, an enumeration, numbers computed elsewhere, and what
 * others have published about DeepSeek-V3. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "engine/core/json.h"
#include "engine/plan/plan.h"

#define DEMO "conf/models/nginx-directives-moe"

/* H100 SXM and H800: the latter's NVLink is cut. */
static const moe_plan_hardware_t h100 = {
    .memory = 80e9, .bandwidth = 3.35e12, .flops = 1979e12, .attention_flops = 989e12,
    .link = 50e9, .node_link = 450e9, .node = 8,
};
static const moe_plan_hardware_t h800 = {
    .memory = 80e9, .bandwidth = 3.35e12, .flops = 1979e12, .attention_flops = 989e12,
    .link = 50e9, .node_link = 160e9, .node = 8,
};

/* As DeepSeek and SGLang run it: everything in fp8, rows back in bf16, two micro-batches. */
static const moe_plan_work_t decode = {
    .mode = MOE_PLAN_DECODE, .context = 4096, .batch = 128, .weight_size = 1, .kv_size = 2,
    .dispatch_size = 1 + 4.0 / 128, .return_size = 2, .overlap = MOE_PLAN_OVERLAP_TWO_BATCH,
    .redundant = 32, .imbalance = 1,
};
static const moe_plan_work_t prefill = {
    .mode = MOE_PLAN_PREFILL, .context = 4096, .batch = 16384, .weight_size = 1, .kv_size = 2,
    .dispatch_size = 1 + 4.0 / 128, .return_size = 2, .dispatch_copies = MOE_PLAN_PER_NODE,
    .return_copies = MOE_PLAN_PER_NODE, .overlap = MOE_PLAN_OVERLAP_TWO_BATCH, .redundant = 32,
    .imbalance = 1, .expanded = 1,
};


static moe_model_t *describe(const char *directory, const char *name)
{
    moe_error_t error;
    json_t *config = moe_json_load(directory, name, 0, &error);
    moe_model_t *model = config != NULL ? moe_model_describe(config, &error) : NULL;

    if (model == NULL) {
        fail_msg("%s", error.message);
    }
    json_decref(config);
    return model;
}


static moe_plan_t plan_of(const moe_plan_hardware_t *hardware, const moe_plan_work_t *work,
                          uint32_t devices)
{
    moe_model_t *model = describe("t/golden", "deepseek_v3.json");
    moe_plan_t plan;
    moe_error_t error;

    assert_int_equal(moe_plan(model, hardware, work, devices, &plan, &error), 0);
    moe_model_close(model);
    return plan;
}


static void expect_near(const char *what, double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance * fabs(expected))) {
        fail_msg("%s is %.9g, not %.9g", what, value, expected);
    }
}


/* The description of a model is what its tensors confirm; weights are all but the vectors. */
static void test_demo_model(void **state)
{
    moe_error_t error;
    moe_model_t *model = moe_model_open(DEMO, &error), *described = describe(DEMO, "config.json");
    moe_plan_work_t work = decode;
    uint64_t vectors;
    moe_plan_t plan;

    assert_non_null(model);
    vectors = model->final_norm.size;
    assert_string_equal(described->family, model->family);
    assert_int_equal(described->n_layers, model->n_layers);
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i], *other = &described->layers[i];

        vectors += layer->input_norm.size + layer->post_norm.size + layer->mla.q_norm.size
                   + layer->mla.kv_norm.size;
        assert_int_equal(layer->is_moe, other->is_moe);
        if (layer->is_moe) {
            vectors += layer->moe.router.bias.size;
            assert_int_equal(layer->moe.width, other->moe.width);
            assert_int_equal(layer->moe.shared.width, other->moe.shared.width);
        }
    }
    work.weight_size = 2;
    assert_int_equal(moe_plan(described, &h100, &work, 1, &plan, &error), 0);
    assert_true(plan.weights == 2.0 * (double) (model->parameters - vectors));
    assert_int_equal(plan.slots, 16);
    moe_model_close(described);
    moe_model_close(model);
}


/* DeepSeek-V3: 671 billion parameters, 70 KB of cache for a position. */
static void test_memory(void **state)
{
    moe_plan_work_t work = decode;
    moe_plan_t plan;

    work.weight_size = 2;
    plan = plan_of(&h100, &work, 1);
    assert_true(plan.weights == 2 * 671025397760.0);
    assert_true(plan.kv == 128.0 * 4096 * 61 * 576 * 2);
    assert_true(plan.buffers == 0 && !plan.fits && plan.sequences == 0);
    work = prefill;
    work.batch = 1000;
    assert_true(plan_of(&h100, &work, 32).kv == 4096 * 70272.0);       /* a piece of a prompt */
    work.context = 500;
    assert_true(plan_of(&h100, &work, 32).kv == 1000 * 70272.0);
    plan = plan_of(&h100, &decode, 144);
    assert_int_equal(plan.slots, 2);
    assert_true(plan.fits);
    assert_true(plan.sequences == floor((80e9 - plan.weights - plan.buffers) / (4096.0 * 70272)));
    assert_true(plan.expert_rows == 128 * 8 / 2);
}


/* A limited router on paper: counts destinations over all choices of groups and of experts. */
static double enumerate(unsigned experts, unsigned groups, unsigned kept, unsigned k,
                        unsigned destinations)
{
    double sum = 0, choices = 0;

    for (uint32_t g = 0; g < 1u << groups; g++) {
        if (__builtin_popcount(g) != (int) kept) {
            continue;
        }
        for (uint32_t chosen = 0; chosen < 1u << experts; chosen++) {
            uint32_t reached = 0;

            if (__builtin_popcount(chosen) != (int) k) {
                continue;
            }
            for (unsigned e = 0; e < experts; e++) {
                if (chosen >> e & 1) {
                    reached = g >> (e / (experts / groups)) & 1
                              ? reached | 1u << (e / (experts / destinations)) : UINT32_MAX;
                }
                if (reached == UINT32_MAX) {
                    break;
                }
            }
            if (reached != UINT32_MAX) {
                sum += __builtin_popcount(reached);
                choices++;
            }
        }
    }
    return sum / choices;
}


static void test_reached(void **state)
{
    static const unsigned cases[][5] = {        /* experts, groups, kept, k, destinations */
        {12, 4, 2, 3, 1}, {12, 4, 2, 3, 2}, {12, 4, 2, 3, 4}, {12, 4, 2, 3, 12},
        {16, 4, 3, 4, 2}, {16, 4, 3, 4, 8}, {16, 8, 2, 2, 4}, {12, 1, 1, 5, 4}, {8, 1, 1, 8, 4},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const unsigned *c = cases[i];
        const moe_router_t router = {
            .experts = c[0], .groups = c[1], .groups_kept = c[2], .top_k = c[3],
            .group = c[1] > 1 ? MOE_GROUP_TOP2_SUM : MOE_GROUP_NONE,
        };

        expect_near("destinations", moe_plan_reached(&router, c[4]),
                    enumerate(c[0], c[1], c[2], c[3], c[4]), 1e-12);
    }
}


/* Against a calculation of the same formulas in another language. */
static void test_times(void **state)
{
    const moe_plan_hardware_t hardware = {
        .memory = 1e12, .bandwidth = 3e12, .flops = 1e15, .attention_flops = 5e14, .link = 1e10,
        .node_link = 1e11, .node = 8,
    };
    const moe_plan_work_t work = {
        .context = 1000, .batch = 64, .weight_size = 2, .kv_size = 2, .dispatch_size = 2,
        .return_size = 2, .imbalance = 1,
    };
    const moe_plan_t plan = plan_of(&hardware, &work, 8);

    expect_near("mixer", plan.mixer, 9.783695e-3, 1e-6);
    expect_near("dense", plan.dense, 0.792723e-3, 1e-6);
    expect_near("shared", plan.shared, 1.702887e-3, 1e-6);
    expect_near("experts", plan.experts, 54.563346e-3, 1e-6);
    expect_near("exchange", plan.exchange, 7.450132e-3, 1e-6);
    expect_near("head", plan.head, 0.617786e-3, 1e-6);
    expect_near("step", plan.step, 74.910571e-3, 1e-6);
    expect_near("rate", plan.rate, 64 / 74.910571e-3, 1e-6);
    assert_true(plan.sent_far == 0 && plan.sent_near == 12845056);
    assert_true(plan.sent == 58 * plan.sent_near);
}


/* DeepSeek-V3's router on 4 and 8 nodes: copies of a row that leave its node, and that devices of
 * one node give each other, counted with exact fractions elsewhere. */
static void test_copies(void **state)
{
    static const struct {
        uint32_t devices;
        double ranks_far, ranks_near, nodes_far, nodes_near;
    } cases[] = {
        {32, 4.9473846083, 1.4429871774, 2.1961573406, 5.7719487096},
        {64, 6.4394488189, 0.8049311024, 3.1753845589, 6.4394488189},
    };
    moe_plan_work_t work = decode;

    work.batch = 1;
    work.dispatch_size = 1;
    work.return_size = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_plan_t plan;

        work.dispatch_copies = MOE_PLAN_PER_RANK;
        plan = plan_of(&h100, &work, cases[i].devices);
        expect_near("far, by rank", plan.sent_far / 7168, cases[i].ranks_far, 1e-9);
        expect_near("near, by rank", plan.sent_near / 7168, cases[i].ranks_near, 1e-9);
        work.dispatch_copies = MOE_PLAN_PER_NODE;
        plan = plan_of(&h100, &work, cases[i].devices);
        expect_near("far, by node", plan.sent_far / 7168, cases[i].nodes_far, 1e-9);
        expect_near("near, by node", plan.sent_near / 7168, cases[i].nodes_near, 1e-9);
    }
}


/* What a change of one setting does to the whole. */
static void test_settings(void **state)
{
    moe_plan_hardware_t hardware = h100;
    moe_plan_work_t work = decode;
    moe_plan_t none, changed;

    work.overlap = MOE_PLAN_OVERLAP_NONE;
    none = plan_of(&hardware, &work, 64);
    expect_near("sum", none.mixer + none.dense + none.shared + none.experts + none.exchange
                + none.head, none.step, 1e-12);
    work.overlap = MOE_PLAN_OVERLAP_SHARED;
    changed = plan_of(&hardware, &work, 64);
    expect_near("hidden", none.step - changed.step, none.shared, 1e-9);     /* travel is longer */
    hardware.link = 50e12;
    changed = plan_of(&hardware, &work, 64);
    work.overlap = MOE_PLAN_OVERLAP_NONE;
    expect_near("hidden", plan_of(&hardware, &work, 64).step - changed.step,
                changed.exchange * (1 + 4.0 / 128) / (3 + 4.0 / 128), 1e-9);    /* the way there */
    hardware = h100;
    work.overlap = MOE_PLAN_OVERLAP_TWO_BATCH;
    changed = plan_of(&hardware, &work, 64);
    assert_true(changed.mixer >= none.mixer && changed.experts >= none.experts);
    assert_true(changed.step < none.step && changed.step > changed.exchange);

    work = decode;
    work.overlap = MOE_PLAN_OVERLAP_NONE;
    hardware.link = 25e9;
    changed = plan_of(&hardware, &work, 64);
    expect_near("slow link", changed.exchange, 2 * none.exchange, 1e-9);
    hardware = h100;
    hardware.latency = 1e-3;
    changed = plan_of(&hardware, &work, 64);
    expect_near("latency", changed.exchange - none.exchange, 58 * 2e-3, 1e-9);
    work.imbalance = 1.5;
    changed = plan_of(&h100, &work, 64);
    expect_near("imbalance", changed.exchange, 1.5 * none.exchange, 1e-9);
    work.imbalance = 1;
    work.dispatch_copies = MOE_PLAN_PER_RANK;
    changed = plan_of(&h100, &work, 64);
    assert_true(changed.sent < none.sent);
    work.dispatch_copies = MOE_PLAN_PER_NODE;
    assert_true(plan_of(&h100, &work, 64).sent_far < changed.sent_far);
    changed = plan_of(&h100, &work, 1);
    work.overlap = MOE_PLAN_OVERLAP_TWO_BATCH;
    assert_true(changed.exchange == 0 && plan_of(&h100, &work, 1).step == changed.step);
}


/* From one device to a cluster: ever fewer experts to read, ever more to send. */
static void test_curve(void **state)
{
    static const uint32_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 320};
    moe_plan_t last = {.slots = UINT32_MAX, .weights = INFINITY, .experts = INFINITY};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const moe_plan_t plan = plan_of(&h100, &decode, sizes[i]);

        assert_true(plan.slots <= last.slots && plan.slots * sizes[i] >= 256);
        assert_true(plan.weights <= last.weights);
        assert_true(plan.experts <= last.experts || i == 1);    /* from here on in two batches */
        assert_true(plan.sent >= last.sent && plan.exchange >= last.exchange);
        last = plan;
    }
}


static void test_nodes(void **state)
{
    moe_model_t *model = describe("t/golden", "deepseek_v3.json");
    moe_plan_t plan;
    moe_error_t error;

    assert_int_equal(moe_plan(model, &h100, &decode, 12, &plan, &error), -1);
    assert_int_equal(error.code, MOE_INVALID);
    assert_string_equal(error.message,
                        "12 devices are no whole number of nodes with 8 devices");
    assert_int_equal(moe_plan(model, &h100, &decode, 0, &plan, &error), -1);
    assert_int_equal(moe_plan(model, &h100, &decode, 3, &plan, &error), 0);
    moe_model_close(model);
}


/* Bytes that DeepEP states for 128 rows on 128 devices: 192 us at 39 GB/s there, 369 us at 39 GB/s
 * back, the own device's included. */
static void test_published_traffic(void **state)
{
    moe_plan_work_t work = decode;
    moe_plan_t plan;

    work.return_size = 0;
    plan = plan_of(&h800, &work, 128);
    expect_near("there", (plan.sent_far + plan.sent_near) * 128 / 127, 192e-6 * 39e9, .03);
    work.return_size = 2;
    work.dispatch_size = 0;
    plan = plan_of(&h800, &work, 128);
    expect_near("back", (plan.sent_far + plan.sent_near) * 128 / 127, 369e-6 * 39e9, .03);
}


/* Tokens per second and node that others have measured are below the roofline; README.md says by
 * how much and why. */
static void test_published_rates(void **state)
{
    static const struct {
        const char *what;
        const moe_plan_hardware_t *hardware;
        const moe_plan_work_t *work;
        uint32_t devices, batch, context;
        double measured, roofline;
    } cases[] = {
        {"DeepSeek online, prefill with cache hits", &h800, &prefill, 32, 16384, 4096, 73700,
         138731},
        {"DeepSeek's profile, prefill", &h800, &prefill, 32, 16384, 4096, 62713, 138731},
        {"SGLang, prefill of 1k", &h100, &prefill, 32, 16384, 1024, 57674, 139655},
        {"SGLang, prefill of 2k", &h100, &prefill, 32, 16384, 2048, 54543, 139346},
        {"SGLang, prefill of 4k", &h100, &prefill, 32, 16384, 4096, 50302, 138731},
        {"SGLang, balanced, prefill of 4k", &h100, &prefill, 32, 16384, 4096, 59337, 138731},
        {"DeepSeek online, decode", &h800, &decode, 144, 128, 4989, 14800, 38449},
        {"DeepSeek's profile, decode", &h800, &decode, 128, 128, 4096, 18598, 38883},
        {"SGLang, decode", &h100, &decode, 72, 256, 2000, 22282, 42658},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_plan_work_t work = *cases[i].work;
        moe_plan_t plan;

        work.batch = cases[i].batch;
        work.context = cases[i].context;
        plan = plan_of(cases[i].hardware, &work, cases[i].devices);
        print_message("%-42s measured %6.0f, roofline %6.0f: %2.0f %%\n", cases[i].what,
                      cases[i].measured, 8 * plan.rate, 100 * cases[i].measured / (8 * plan.rate));
        assert_true(plan.fits);
        expect_near(cases[i].what, 8 * plan.rate, cases[i].roofline, .005);
        assert_true(cases[i].measured < 8 * plan.rate);
    }
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_model),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_reached),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_curve),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_published_traffic),
        cmocka_unit_test(test_published_rates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
