/* moe-engine topo: the machine as ranks see it, where each of them runs, what it holds. */

#include <stdio.h>
#include <string.h>

#include "engine/commands/commands.h"
#include "engine/core/memory.h"
#include "engine/core/topology.h"
#include "engine/model/mapping.h"
#include "engine/ranks.h"
#include "engine/spread.h"

typedef struct {
    const char *model;
    uint64_t ranks, tensor_parallel, threads, redundant;
} arguments_t;


static int parse_arguments(int argc, char **argv, arguments_t *a)
{
    *a = (arguments_t) {.ranks = 1, .tensor_parallel = 1, .threads = moe_cpu_count()};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        uint64_t *number = strcmp(argv[i], "--ranks") == 0               ? &a->ranks
                           : strcmp(argv[i], "--tensor-parallel") == 0   ? &a->tensor_parallel
                           : strcmp(argv[i], "--threads") == 0           ? &a->threads
                           : strcmp(argv[i], "--redundant-experts") == 0 ? &a->redundant
                                                                         : NULL;
        const int copies = number == &a->redundant;
        const uint64_t most = copies ? MOE_REDUNDANT_LIMIT : MOE_RANKS_LIMIT;

        if (number == NULL && argv[i][0] != '-' && a->model == NULL) {
            a->model = argv[i];
        } else if (number == NULL || value == NULL
                   || moe_command_number(value, !copies, most, number) != 0)
        {
            return moe_command_wrong(&moe_command_topo, argv[i], number ? value : NULL);
        } else {
            i++;
        }
    }
    return 0;
}


static void print_machine(const moe_topology_t *topology)
{
    const unsigned n = moe_topology_nodes(topology);

    printf("%u NUMA node%s; %u CPUs may be used, %.1f GiB of memory are available\n", n,
           n == 1 ? "" : "s", moe_cpu_count(), (double) moe_memory_available() / (1 << 30));
    for (unsigned i = 0; i < n; i++) {
        const moe_numa_node_t *node = moe_topology_node(topology, i);

        printf("node %u: package %u, %u core%s, CPUs %s, %.1f GiB\n", node->number, node->package,
               node->cores, node->cores == 1 ? "" : "s", node->cpu_list,
               (double) node->memory / (1 << 30));
    }
}


/* What reaching from a node (row) into another's memory (column) costs. */
static void print_distances(const moe_topology_t *topology)
{
    const unsigned n = moe_topology_nodes(topology);

    if (n == 1) {
        return;
    }
    if (moe_topology_distance(topology, 0, 0) == 0) {
        puts("\nthe firmware does not tell the distances between nodes");
        return;
    }
    printf("\ndistance");
    for (unsigned i = 0; i < n; i++) {
        printf(" %5u", moe_topology_node(topology, i)->number);
    }
    for (unsigned i = 0; i < n; i++) {
        printf("\n%8u", moe_topology_node(topology, i)->number);
        for (unsigned j = 0; j < n; j++) {
            printf(" %5u", moe_topology_distance(topology, i, j));
        }
    }
    putchar('\n');
}


static void print_rank(const arguments_t *a, const moe_topology_t *topology, uint32_t rank)
{
    const uint32_t ranks = (uint32_t) a->ranks, parts = (uint32_t) a->tensor_parallel;
    const unsigned threads = moe_ranks_share((unsigned) a->threads, rank, ranks);
    unsigned count, first = moe_topology_place(topology, rank, ranks, &count);

    printf("rank %u: ", rank);
    if (parts > 1) {
        printf("group %u, part %u of %u; ", rank / parts, rank % parts + 1, parts);
    }
    printf("%u thread%s", threads, threads == 1 ? "" : "s");
    if (ranks == 1 || moe_topology_nodes(topology) == 1) {
        puts(", not bound");
        return;
    }
    printf(" on node%s", count == 1 ? "" : "s");
    for (unsigned i = first; i < first + count; i++) {
        printf(" %u", moe_topology_node(topology, i)->number);
    }
    putchar('\n');
}


/* The experts of a rank's slots: "0-15, 3". */
static void print_held(const moe_placement_t *placement, uint32_t rank)
{
    const uint32_t slots = placement->shape.slots;
    const uint32_t *held = placement->maps[0].experts + (size_t) rank * slots;

    printf("rank %u: experts", rank);
    for (uint32_t s = 0, run; s < slots; s = run) {
        for (run = s + 1; run < slots && held[run] == held[run - 1] + 1; run++) {
        }
        printf("%s %u", s > 0 ? "," : "", held[s]);
        if (run > s + 1) {
            printf("-%u", held[run - 1]);
        }
    }
    putchar('\n');
}


static int print_placement(const arguments_t *a, const moe_model_t *model, moe_error_t *error)
{
    moe_placement_shape_t shape;
    moe_placement_t *placement;
    uint32_t layers;

    if (moe_spread(model, (uint32_t) a->ranks, (uint32_t) a->redundant, &shape, &layers, error)
        != 0)
    {
        return -1;
    }
    if (layers == 0) {
        printf("\n%s has no experts\n", a->model);
        return 0;
    }
    placement = moe_placement_create(&shape, layers, error);
    if (placement == NULL) {
        return -1;
    }
    printf("\n%u experts in %u slots of each rank, in each of %u layers\n", shape.experts,
           shape.slots, layers);
    for (uint32_t r = 0; r < shape.ranks; r++) {
        print_held(placement, r);
    }
    moe_placement_free(placement);
    return 0;
}


/* Nothing is printed of ranks that cannot be. */
static int open_model(const arguments_t *a, moe_model_t **model, moe_error_t *error)
{
    const uint32_t ranks = (uint32_t) a->ranks, parts = (uint32_t) a->tensor_parallel;

    *model = NULL;
    if (moe_ranks_check(ranks, parts, (unsigned) a->threads, error) != 0) {
        return -1;
    }
    if (a->model == NULL) {
        return 0;
    }
    moe_mapping_handle_sigbus();
    *model = moe_model_open(a->model, error);
    return *model == NULL
           || moe_ranks_check_model(*model, ranks, parts, (uint32_t) a->redundant, error) != 0
               ? -1 : 0;
}


static int print_all(const arguments_t *a, const moe_model_t *model, moe_error_t *error)
{
    moe_topology_t *topology = moe_topology_create(error);

    if (topology == NULL) {
        return -1;
    }
    print_machine(topology);
    print_distances(topology);
    putchar('\n');
    for (uint32_t r = 0; r < a->ranks; r++) {
        print_rank(a, topology, r);
    }
    moe_topology_free(topology);
    return model ? print_placement(a, model, error) : 0;
}


static int topo(int argc, char **argv)
{
    moe_model_t *model;
    moe_error_t error;
    arguments_t a;
    int rc;

    if (parse_arguments(argc, argv, &a) != 0) {
        return 1;
    }
    rc = open_model(&a, &model, &error) != 0 || print_all(&a, model, &error) != 0 ? -1 : 0;
    moe_model_close(model);
    return rc == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_topo = {
    .name = "topo",
    .usage = "[MODEL] [--ranks N] [--tensor-parallel N] [--threads N] [--redundant-experts N]",
    .help = "print NUMA nodes and distances, where each rank runs, and which experts it holds",
    .run = topo
};
