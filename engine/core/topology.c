/* hwloc knows: affinity, control groups and memory without CPUs are its business. */

#include "engine/core/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

struct moe_topology_s {
    hwloc_topology_t machine;
    unsigned n_nodes;
    moe_numa_node_t *nodes;
    hwloc_obj_t *objects;               /* [n_nodes] */
    unsigned *distances;                /* [n_nodes, n_nodes] */
};


/* Leaves the CPUs that the process may run on (of a machine that is made up, all). */
static int restrict_to_own(moe_topology_t *t, moe_error_t *error)
{
    hwloc_bitmap_t cpus;
    int rc;

    if (!hwloc_topology_is_thissystem(t->machine)) {
        return 0;
    }
    cpus = hwloc_bitmap_alloc();
    rc = cpus && hwloc_get_cpubind(t->machine, cpus, HWLOC_CPUBIND_PROCESS) == 0
         && hwloc_topology_restrict(t->machine, cpus, 0) == 0 ? 0 : -1;
    if (rc != 0) {
        moe_fail(error, MOE_SYSTEM, "hwloc cannot tell this process's CPUs: %s", strerror(errno));
    }
    hwloc_bitmap_free(cpus);
    return rc;
}


static int load(moe_topology_t *t, moe_error_t *error)
{
    if (hwloc_topology_init(&t->machine) != 0) {
        t->machine = NULL;
        return moe_fail(error, MOE_SYSTEM, "hwloc cannot be used: %s", strerror(errno));
    }
    if (hwloc_topology_load(t->machine) != 0) {
        return moe_fail(error, MOE_SYSTEM, "hwloc does not know this machine: %s",
                        strerror(errno));
    }
    return restrict_to_own(t, error);
}


static void describe(const moe_topology_t *t, hwloc_obj_t object, moe_numa_node_t *node)
{
    hwloc_obj_t package = hwloc_get_next_obj_covering_cpuset_by_type(
        t->machine, object->cpuset, HWLOC_OBJ_PACKAGE, NULL);
    const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(t->machine, object->cpuset,
                                                             HWLOC_OBJ_CORE);

    *node = (moe_numa_node_t) {
        .number = object->os_index,
        .package = package ? package->os_index : 0,
        .cpus = (unsigned) hwloc_bitmap_weight(object->cpuset),
        .memory = object->attr->numanode.local_memory
    };
    node->cores = cores > 0 ? (unsigned) cores : node->cpus;
    hwloc_bitmap_list_snprintf(node->cpu_list, sizeof(node->cpu_list), object->cpuset);
}


static int list_nodes(moe_topology_t *t, moe_error_t *error)
{
    const int found = hwloc_get_nbobjs_by_type(t->machine, HWLOC_OBJ_NUMANODE);
    const size_t most = found > 0 ? (size_t) found : 0;

    t->nodes = calloc(most + 1, sizeof(*t->nodes));
    t->objects = calloc(most + 1, sizeof(hwloc_obj_t));
    t->distances = calloc(most * most + 1, sizeof(*t->distances));
    if (t->nodes == NULL || t->objects == NULL || t->distances == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu NUMA nodes", most);
    }
    for (size_t i = 0; i < most; i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(t->machine, HWLOC_OBJ_NUMANODE, (unsigned) i);

        /* Memory without CPUs is nobody's place, nor are a node's CPUs counted twice when it has
         * two kinds of memory. */
        if (hwloc_bitmap_iszero(object->cpuset)
            || (t->n_nodes > 0
                && hwloc_bitmap_intersects(t->objects[t->n_nodes - 1]->cpuset, object->cpuset)))
        {
            continue;
        }
        describe(t, object, &t->nodes[t->n_nodes]);
        t->objects[t->n_nodes++] = object;
    }
    return t->n_nodes > 0 ? 0 : moe_fail(error, MOE_SYSTEM, "hwloc finds no NUMA node");
}


static void read_distances(moe_topology_t *t)
{
    struct hwloc_distances_s *found = NULL;
    hwloc_uint64_t forth, back;
    unsigned n = 1;

    if (hwloc_distances_get_by_name(t->machine, "NUMALatency", &n, &found, 0) != 0 || n < 1) {
        return;
    }
    for (unsigned i = 0; i < t->n_nodes; i++) {
        for (unsigned j = i; j < t->n_nodes; j++) {
            if (hwloc_distances_obj_pair_values(found, t->objects[i], t->objects[j], &forth, &back)
                == 0)
            {
                t->distances[i * t->n_nodes + j] = (unsigned) forth;
                t->distances[j * t->n_nodes + i] = (unsigned) back;
            }
        }
    }
    hwloc_distances_release(t->machine, found);
}


moe_topology_t *moe_topology_create(moe_error_t *error)
{
    moe_topology_t *t = calloc(1, sizeof(*t));

    if (t == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for the machine's topology");
        return NULL;
    }
    if (load(t, error) != 0 || list_nodes(t, error) != 0) {
        moe_topology_free(t);
        return NULL;
    }
    read_distances(t);
    return t;
}


void moe_topology_free(moe_topology_t *t)
{
    if (t == NULL) {
        return;
    }
    if (t->machine) {
        hwloc_topology_destroy(t->machine);
    }
    free(t->nodes);
    free(t->objects);
    free(t->distances);
    free(t);
}


unsigned moe_topology_nodes(const moe_topology_t *t)
{
    return t->n_nodes;
}


const moe_numa_node_t *moe_topology_node(const moe_topology_t *t, unsigned index)
{
    return &t->nodes[index];
}


unsigned moe_topology_distance(const moe_topology_t *t, unsigned from, unsigned to)
{
    return t->distances[from * t->n_nodes + to];
}


unsigned moe_topology_place(const moe_topology_t *t, uint32_t rank, uint32_t ranks,
                            unsigned *count)
{
    const uint64_t nodes = t->n_nodes, first = rank * nodes / ranks;
    const uint64_t end = (rank + 1) * nodes / ranks;

    *count = end > first ? (unsigned) (end - first) : 1;
    return (unsigned) first;
}


int moe_topology_bind(const moe_topology_t *t, uint32_t rank, uint32_t ranks, moe_error_t *error)
{
    unsigned count, first = moe_topology_place(t, rank, ranks, &count);
    hwloc_bitmap_t cpus;
    int rc = 0;

    if (t->n_nodes == 1) {
        return 0;
    }
    cpus = hwloc_bitmap_alloc();
    for (unsigned i = first; cpus && rc == 0 && i < first + count; i++) {
        rc = hwloc_bitmap_or(cpus, cpus, t->objects[i]->cpuset);
    }
    if (cpus == NULL || rc != 0
        || hwloc_set_cpubind(t->machine, cpus, HWLOC_CPUBIND_THREAD) != 0)
    {
        rc = moe_fail(error, MOE_SYSTEM, "rank %u cannot be bound to NUMA node %u: %s", rank,
                      t->nodes[first].number, strerror(errno));
    }
    hwloc_bitmap_free(cpus);
    return rc;
}
