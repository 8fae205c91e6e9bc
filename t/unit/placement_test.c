/* Placement of experts: invariants for random shapes and loads, hand-checked cases, figures. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/moe/placement.h"

#define MAX_EXPERTS 512u
#define MAX_RANKS 320u

static uint64_t state_of_random = 1;


/* [0, n) */
static uint32_t draw(uint32_t n)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) ((state_of_random >> 33) % n);
}


static void draw_loads(double *loads, uint32_t experts, unsigned kind)
{
    for (uint32_t e = 0; e < experts; e++) {
        switch (kind) {
        case 0: loads[e] = 0; break;                                    /* nothing yet */
        case 1: loads[e] = draw(1000); break;                           /* even */
        case 2: loads[e] = 1e6 / (1 + e); break;                        /* Zipf, sorted */
        case 3: loads[e] = draw(5) ? draw(10) : draw(100000); break;    /* a few hot ones */
        default: loads[e] = e == experts / 2 ? 1e9 : 1e-3 * draw(9);    /* one */
        }
    }
}


/* Expert e on rank e * ranks / experts, as without placement. */
static double naive_balance(const double *loads, uint32_t experts, uint32_t ranks)
{
    double rank_loads[MAX_RANKS] = {0}, sum = 0, most = 0;

    for (uint32_t e = 0; e < experts; e++) {
        rank_loads[(uint64_t) e * ranks / experts] += loads[e];
        sum += loads[e];
    }
    for (uint32_t r = 0; r < ranks; r++) {
        most = rank_loads[r] > most ? rank_loads[r] : most;
    }
    return most > 0 ? sum / ranks / most : 1;
}


static void check_map(const moe_placement_shape_t *shape, const moe_placement_map_t *map)
{
    static uint32_t seen[MAX_EXPERTS], domain_of[MAX_EXPERTS];
    const uint32_t group = shape->experts / shape->groups;
    const int by_group = shape->domains > 1 && shape->groups % shape->domains == 0
                         && shape->slots <= shape->experts / shape->domains;

    memset(domain_of, 0xff, sizeof(domain_of));
    for (uint32_t r = 0; r < shape->ranks; r++) {
        memset(seen, 0, sizeof(seen));
        for (uint32_t s = r * shape->slots; s < (r + 1) * shape->slots; s++) {
            const uint32_t e = map->experts[s], domain = r / (shape->ranks / shape->domains);

            assert_true(e < shape->experts);
            assert_int_equal(seen[e]++, 0);             /* no two replicas on one rank */
            if (by_group) {                             /* a group within one domain */
                assert_true(domain_of[e / group] == UINT32_MAX || domain_of[e / group] == domain);
                domain_of[e / group] = domain;
            }
        }
    }
    assert_int_equal(map->offsets[0], 0);
    assert_int_equal(map->offsets[shape->experts], shape->ranks * shape->slots);
    for (uint32_t e = 0; e < shape->experts; e++) {
        assert_true(map->offsets[e] < map->offsets[e + 1]);     /* at least one replica */
        for (uint32_t i = map->offsets[e]; i < map->offsets[e + 1]; i++) {
            assert_int_equal(map->experts[map->replicas[i]], e);
            assert_true(i == map->offsets[e] || map->replicas[i] > map->replicas[i - 1]);
        }
    }
}


static int draw_shape(moe_placement_shape_t *shape)
{
    moe_error_t error;

    *shape = (moe_placement_shape_t) {
        .domains = 1 + draw(4), .groups = 1 + draw(8), .slots = 1 + draw(12),
    };
    shape->ranks = shape->domains * (1 + draw(8));
    shape->experts = shape->groups * (1 + draw(16));
    return moe_placement_check(shape, &error) == 0;
}


static void test_random_shapes(void **state)
{
    static double loads[MAX_EXPERTS];
    unsigned shapes = 0;

    while (shapes < 2000) {
        moe_placement_shape_t shape;
        moe_placement_t *placement;
        moe_error_t error;

        if (!draw_shape(&shape)) {
            continue;
        }
        placement = moe_placement_create(&shape, 2, &error);
        assert_non_null(placement);
        assert_int_equal(placement->version, 0);
        check_map(&shape, &placement->maps[0]);
        draw_loads(loads, shape.experts, shapes % 5);
        moe_placement_solve(placement, 1, loads);
        check_map(&shape, &placement->maps[1]);
        /* The same loads, the same map, whatever was solved before. */
        moe_placement_solve(placement, 0, loads);
        assert_memory_equal(placement->maps[0].experts, placement->maps[1].experts,
                            shape.ranks * shape.slots * sizeof(uint32_t));
        assert_memory_equal(placement->maps[0].replicas, placement->maps[1].replicas,
                            shape.ranks * shape.slots * sizeof(uint32_t));
        moe_placement_free(placement);
        shapes++;
    }
}


static void test_small_cases(void **state)
{
    static const struct {
        const char *what;
        moe_placement_shape_t shape;
        double loads[8];
        uint32_t experts[16];
    } cases[] = {
        {"nothing known: in turn", {4, 1, 2, 1, 2}, {0}, {0, 2, 1, 3}},
        {"heavy with light", {4, 1, 2, 1, 2}, {4, 3, 2, 1}, {0, 3, 1, 2}},
        {"the hot one twice", {3, 1, 2, 1, 2}, {6, 2, 2}, {0, 1, 0, 2}},
        {"at most once on a rank", {3, 1, 3, 1, 2}, {9, 0, 0}, {0, 1, 0, 1, 0, 2}},
        {"spare slots of unknown loads", {2, 1, 3, 1, 1}, {0}, {0, 0, 1}},
        {"exchanged after packing", {6, 1, 2, 1, 3}, {5, 5, 4, 3, 3, 0}, {0, 1, 5, 2, 3, 4}},
        {"groups stay together", {4, 2, 2, 2, 2}, {4, 3, 2, 1}, {0, 1, 2, 3}},
        {"a domain's hot one twice", {6, 2, 4, 2, 2}, {8, 1, 1, 1, 1, 1}, {0, 1, 0, 2, 3, 4, 3, 5}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const moe_placement_shape_t *shape = &cases[i].shape;
        moe_error_t error;
        moe_placement_t *placement = moe_placement_create(shape, 1, &error);

        assert_non_null(placement);
        moe_placement_solve(placement, 0, cases[i].loads);
        check_map(shape, placement->maps);
        if (memcmp(placement->maps[0].experts, cases[i].experts,
                   shape->ranks * shape->slots * sizeof(uint32_t)) != 0)
        {
            for (uint32_t s = 0; s < shape->ranks * shape->slots; s++) {
                print_message("%u ", placement->maps[0].experts[s]);
            }
            fail_msg("%s", cases[i].what);
        }
        moe_placement_free(placement);
    }
}


/* The turns of a sender reach every replica equally often. */
static void test_turns(void **state)
{
    const moe_placement_shape_t shape = {3, 1, 3, 1, 2};
    const double loads[] = {9, 1, 0};
    moe_error_t error;
    moe_placement_t *placement = moe_placement_create(&shape, 1, &error);
    uint32_t seen[6] = {0};

    assert_non_null(placement);
    moe_placement_solve(placement, 0, loads);
    for (uint32_t turn = 0; turn < 300; turn++) {
        seen[moe_placement_slot(&placement->maps[0], 0, turn)]++;
    }
    for (uint32_t s = 0; s < 6; s++) {
        assert_int_equal(seen[s], placement->maps[0].experts[s] == 0 ? 100 : 0);
    }
    moe_placement_free(placement);
}


static double balance_of(const moe_placement_shape_t *shape, const double *loads)
{
    moe_error_t error;
    moe_placement_t *placement = moe_placement_create(shape, 1, &error);
    double balance;

    assert_non_null(placement);
    moe_placement_solve(placement, 0, loads);
    balance = moe_placement_balance(shape, &placement->maps[0], loads);
    moe_placement_free(placement);
    return balance;
}


/* Mean / largest load of a rank on skewed loads: naive, packed, and with redundant slots. */
static void test_balance(void **state)
{
    static const struct {
        uint32_t experts, groups, ranks, domains, redundant;
        unsigned kind;                      /* of draw_loads */
        double least;                       /* that the placement must reach */
    } cases[] = {
        {64, 1, 4, 1, 4, 2, .97},
        {256, 8, 32, 4, 32, 3, .71},        /* DeepSeek-V3, prefill: groups bind */
        {256, 1, 32, 1, 32, 3, .97},
        {256, 1, 144, 1, 32, 3, .43},       /* decode: two slots a rank */
        {256, 1, 32, 1, 32, 2, .97},
        {160, 8, 16, 2, 16, 2, .69},
    };
    static double loads[MAX_EXPERTS];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_placement_shape_t shape = {
            .experts = cases[i].experts, .groups = cases[i].groups, .ranks = cases[i].ranks,
            .domains = cases[i].domains,
            .slots = (cases[i].experts + cases[i].redundant) / cases[i].ranks,
        };
        double naive, balance;

        draw_loads(loads, shape.experts, cases[i].kind);
        naive = naive_balance(loads, shape.experts, shape.ranks);
        balance = balance_of(&shape, loads);
        print_message("%3u experts, %3u ranks, %u domains, %2u redundant: balance %.3f, naive "
                      "%.3f\n", shape.experts, shape.ranks, shape.domains, cases[i].redundant,
                      balance, naive);
        assert_true(balance > naive);
        assert_true(balance >= cases[i].least && balance <= 1 + 1e-9);
    }
}


/* One expert with 30 % of the rows, 4 ranks, 4 redundant slots: no rank above 1.15 of the mean. */
static void test_hot_expert(void **state)
{
    static double loads[MAX_EXPERTS];

    for (uint32_t experts = 8; experts <= 256; experts *= 2) {
        const moe_placement_shape_t shape = {
            .experts = experts, .groups = 1, .ranks = 4, .domains = 1, .slots = experts / 4 + 1,
        };
        double balance;

        for (uint32_t e = 0; e < experts; e++) {
            loads[e] = e == 3 ? 30 : 70.0 / (experts - 1);
        }
        balance = balance_of(&shape, loads);
        print_message("%3u experts, one hot: most loaded rank %.3f x mean, naive %.3f\n", experts,
                      1 / balance, 1 / naive_balance(loads, experts, 4));
        assert_true(1 / balance <= 1.15);
    }
}


static void test_impossible_shapes(void **state)
{
    static const struct {
        moe_placement_shape_t shape;
        const char *message;
    } cases[] = {
        {{0, 1, 1, 1, 1}, "cannot place 0 experts in 1 groups on 1 ranks in 1 domains with 1 slots "
         "each"},
        {{1, 1, 1u << 20, 1, 1u << 20}, "cannot place 1 experts in 1 groups on 1048576 ranks in 1 "
         "domains with 1048576 slots each"},
        {{9, 1, 4, 1, 2}, "9 experts do not fit into 2 slots on each of 4 ranks"},
        {{4, 1, 4, 1, 5}, "5 slots of a rank are more than the 4 experts"},
        {{8, 1, 4, 3, 2}, "3 domains do not divide 4 ranks"},
        {{8, 3, 4, 1, 2}, "3 groups do not divide 8 experts"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_error_t error;

        assert_null(moe_placement_create(&cases[i].shape, 1, &error));
        assert_int_equal(error.code, MOE_INVALID);
        assert_string_equal(error.message, cases[i].message);
    }
    moe_placement_free(NULL);
}


/* Another placement is taken over as it is; what both have on a rank stays in its slot. */
static void test_take_over(void **state)
{
    const moe_placement_shape_t shape = {6, 1, 2, 1, 4};
    static const uint32_t other[8] = {5, 2, 0, 4, 1, 0, 3, 2}, held[8] = {0, 1, 2, 3, 2, 3, 4, 5};
    static const uint32_t settled[8] = {0, 5, 2, 4, 2, 3, 0, 1};
    static const struct {
        uint32_t slot, expert;
        const char *message;
    } wrong[] = {
        {7, 6, "not a placement: slot 3 of rank 1 holds expert 6"},
        {2, 5, "not a placement: slot 2 of rank 0 holds expert 5"},
        {4, 4, "not a placement: no slot holds expert 1"},
    };
    moe_error_t error;
    moe_placement_t *placement = moe_placement_create(&shape, 2, &error);
    moe_placement_map_t *map = &placement->maps[1];
    uint32_t experts[8];

    assert_int_equal(moe_placement_check_experts(&shape, other, &error), 0);
    moe_placement_assign(placement, 1, other);
    assert_memory_equal(map->experts, other, sizeof(other));
    check_map(&shape, map);
    assert_true(map->offsets[2] - map->offsets[1] == 1 && map->replicas[map->offsets[1]] == 4);

    moe_placement_assign(placement, 1, held);
    memcpy(experts, other, sizeof(experts));
    moe_placement_settle(&shape, map, experts);
    assert_memory_equal(experts, settled, sizeof(settled));

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(experts, other, sizeof(experts));
        experts[wrong[i].slot] = wrong[i].expert;
        assert_int_equal(moe_placement_check_experts(&shape, experts, &error), -1);
        assert_int_equal(error.code, MOE_INVALID);
        assert_string_equal(error.message, wrong[i].message);
    }
    moe_placement_free(placement);
}


static void test_ageing(void **state)
{
    double loads[2] = {0};
    uint64_t seen[2] = {0};
    const uint64_t counts[3][2] = {{8, 0}, {8, 4}, {16, 4}};

    moe_placement_age(loads, seen, counts[0], 2, .5);
    assert_true(loads[0] == 4 && loads[1] == 0);
    moe_placement_age(loads, seen, counts[1], 2, .5);
    assert_true(loads[0] == 2 && loads[1] == 2);
    moe_placement_age(loads, seen, counts[2], 2, .5);
    assert_true(loads[0] == 5 && loads[1] == 1);
    assert_true(seen[0] == 16 && seen[1] == 4);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_small_cases),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_hot_expert),
        cmocka_unit_test(test_impossible_shapes),
        cmocka_unit_test(test_take_over),
        cmocka_unit_test(test_ageing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
