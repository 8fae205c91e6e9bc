/*
 * Where a rank stands among the ranks of a model.
 *
 * Experts are spread over all ranks.  Sequences belong to groups of `parts` adjacent ranks: the
 * ranks of a group hold the same rows, each computes its part of the output rows of every split
 * matrix (heads, dense layers, shared experts, output head), and they gather what they computed.
 */

#ifndef MOE_WORLD_H
#define MOE_WORLD_H

#include "engine/comm/comm.h"

/* All zeroes: the only rank. */
typedef struct {
    uint32_t rank, ranks;
    uint32_t part, parts;       /* rank % parts: its place in its group; ranks / parts groups */
    moe_comm_t *all;            /* over all ranks; NULL: there is one */
    moe_comm_t *group;          /* over the ranks of its group; NULL: parts is 1 */
} moe_world_t;

#endif
