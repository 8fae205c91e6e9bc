/*
 * The machine as far as it matters for ranks: its NUMA nodes, and where ranks run on them.
 *
 * Ranks are spread over the nodes in the machine's own order, neighbours next to each other; where
 * there are fewer ranks than nodes, each has several.  Threads that a bound thread starts run where
 * it does, and memory is where it is first written: binding a rank's thread before it makes
 * anything is all it takes.
 */

#ifndef MOE_TOPOLOGY_H
#define MOE_TOPOLOGY_H

#include <stdint.h>

#include "engine/core/error.h"

/* A NUMA node with CPUs that this process may run on. */
typedef struct {
    unsigned number;            /* the system's */
    unsigned package;           /* the socket it belongs to, the system's number */
    unsigned cores, cpus;       /* of these CPUs; cpus counts hardware threads */
    char cpu_list[128];         /* "0-3,8-11", cut when it is longer */
    uint64_t memory;            /* bytes */
} moe_numa_node_t;

typedef struct moe_topology_s moe_topology_t;

/* Asks the system (takes milliseconds).  NULL with MOE_SYSTEM or MOE_LIMIT. */
moe_topology_t *moe_topology_create(moe_error_t *error);
void moe_topology_free(moe_topology_t *topology);

/* At least 1. */
unsigned moe_topology_nodes(const moe_topology_t *topology);
const moe_numa_node_t *moe_topology_node(const moe_topology_t *topology, unsigned index);

/* What an access from a node to another's memory costs, in the firmware's unit (10: its own); 0
 * when the firmware does not say. */
unsigned moe_topology_distance(const moe_topology_t *topology, unsigned from, unsigned to);

/* The nodes of a rank: *count from the returned index on. */
unsigned moe_topology_place(const moe_topology_t *topology, uint32_t rank, uint32_t ranks,
                            unsigned *count);

/* Binds the calling thread to the CPUs of the rank's nodes; with one node it changes nothing.
 * 0, or -1 with MOE_SYSTEM. */
int moe_topology_bind(const moe_topology_t *topology, uint32_t rank, uint32_t ranks,
                      moe_error_t *error);

#endif
