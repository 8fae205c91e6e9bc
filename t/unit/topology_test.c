/* Places of ranks on machines that are made up (hwloc's own means), and on this one. */

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/core/threads.h"
#include "engine/core/topology.h"


/* NULL: this one.  What is made up is not bound to unless it stands for this machine. */
static moe_topology_t *open_machine(const char *description, int is_this)
{
    moe_topology_t *topology;
    moe_error_t error;

    if (description) {
        setenv("HWLOC_SYNTHETIC", description, 1);
        setenv("HWLOC_THISSYSTEM", is_this ? "1" : "0", 1);
    }
    topology = moe_topology_create(&error);
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
    assert_non_null(topology);
    return topology;
}


static void test_this_machine(void **state)
{
    moe_topology_t *topology = open_machine(NULL, 1);
    unsigned cpus = 0;
    moe_error_t error;

    for (unsigned i = 0; i < moe_topology_nodes(topology); i++) {
        const moe_numa_node_t *node = moe_topology_node(topology, i);

        assert_true(node->cpus >= 1 && node->cores >= 1 && node->cpu_list[0] != '\0');
        cpus += node->cpus;
    }
    assert_true(cpus >= moe_cpu_count());
    assert_int_equal(moe_topology_bind(topology, 0, 1, &error), 0);
    assert_true(moe_cpu_count() <= cpus);
    moe_topology_free(topology);
}


static void test_nodes(void **state)
{
    moe_topology_t *topology = open_machine("pack:2 numa:2 core:3 pu:2", 0);
    const moe_numa_node_t *node = moe_topology_node(topology, 2);

    assert_int_equal(moe_topology_nodes(topology), 4);
    assert_int_equal(node->number, 2);
    assert_int_equal(node->package, 1);
    assert_int_equal(node->cores, 3);
    assert_int_equal(node->cpus, 6);
    assert_string_equal(node->cpu_list, "12-17");
    assert_int_equal(moe_topology_distance(topology, 1, 2), 0);
    moe_topology_free(topology);
}


static void test_places(void **state)
{
    static const struct {
        const char *machine;
        uint32_t ranks;
        unsigned first[8], count[8];
    } cases[] = {
        { "numa:1 pu:2", 2, { 0, 0 }, { 1, 1 } },
        { "numa:2 pu:2", 1, { 0 }, { 2 } },
        { "numa:2 pu:2", 2, { 0, 1 }, { 1, 1 } },
        { "numa:2 pu:2", 3, { 0, 0, 1 }, { 1, 1, 1 } },
        { "numa:2 pu:2", 8, { 0, 0, 0, 0, 1, 1, 1, 1 }, { 1, 1, 1, 1, 1, 1, 1, 1 } },
        { "numa:4 pu:2", 2, { 0, 2 }, { 2, 2 } },
        { "pack:2 numa:2 pu:2", 4, { 0, 1, 2, 3 }, { 1, 1, 1, 1 } },
        { "numa:3 pu:2", 2, { 0, 1 }, { 1, 2 } },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moe_topology_t *topology = open_machine(cases[i].machine, 0);

        for (uint32_t r = 0; r < cases[i].ranks; r++) {
            unsigned count;

            assert_int_equal(moe_topology_place(topology, r, cases[i].ranks, &count),
                             cases[i].first[r]);
            assert_int_equal(count, cases[i].count[r]);
        }
        moe_topology_free(topology);
    }
}


typedef struct {
    const moe_topology_t *topology;
    uint32_t rank;
    cpu_set_t own, child;
} binding_t;


static void *read_affinity(void *set)
{
    sched_getaffinity(0, sizeof(cpu_set_t), set);
    return NULL;
}


static void *bind_thread(void *argument)
{
    binding_t *binding = argument;
    pthread_t child;
    moe_error_t error;

    if (moe_topology_bind(binding->topology, binding->rank, 2, &error) == 0
        && pthread_create(&child, NULL, read_affinity, &binding->child) == 0)
    {
        read_affinity(&binding->own);
        pthread_join(child, NULL);
    }
    return NULL;
}


/* Two CPUs of this machine as two nodes: a rank's threads stay on its own. */
static void test_binding(void **state)
{
    moe_topology_t *topology;
    cpu_set_t all;

    read_affinity(&all);
    if (!CPU_ISSET(0, &all) || !CPU_ISSET(1, &all)) {
        skip();
    }
    topology = open_machine("numa:2 pu:1", 1);
    assert_int_equal(moe_topology_nodes(topology), 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        binding_t binding = { .topology = topology, .rank = rank };
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, bind_thread, &binding), 0);
        pthread_join(thread, NULL);
        assert_true(CPU_COUNT(&binding.own) == 1 && CPU_ISSET(rank, &binding.own));
        assert_true(CPU_EQUAL(&binding.own, &binding.child));
    }
    moe_topology_free(topology);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_binding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
