/*
 * Which rank holds which experts: physical slots for logical experts, as data.
 *
 * Every rank has the same number of slots for each MoE layer.  Where there are more slots than
 * experts, loaded experts are held more than once and share their rows (EPLB: DeepSeek-V3, arXiv
 * 2412.19437, section 3.4).  The exchange sends by slot; nothing else of a step knows about
 * placement, and results do not depend on it: all replicas of an expert hold the same weights.
 *
 * How the engine uses it: moe/balance.h.
 */

#ifndef MOE_PLACEMENT_H
#define MOE_PLACEMENT_H

#include <stdint.h>

#include "engine/core/error.h"
#include "kernels/dispatch.h"

typedef struct {
    uint32_t experts;           /* logical experts of a layer */
    uint32_t groups;            /* that the router limits a row to some of; 1: it does not */
    uint32_t ranks;
    uint32_t domains;           /* of fast links: ranks / domains adjacent ranks each */
    uint32_t slots;             /* of a rank; at most `experts`: no rank needs one twice */
} moe_placement_shape_t;

/* One layer.  Slot s is on rank s / shape.slots. */
typedef struct {
    uint32_t *experts;          /* [ranks * slots]: the expert that a slot holds */
    uint32_t *replicas;         /* [ranks * slots]: slots by expert, ascending within one */
    uint32_t *offsets;          /* [experts + 1]: replicas of expert e are replicas[offsets[e] ..
                                 * offsets[e + 1]) */
} moe_placement_map_t;

typedef struct {
    uint32_t version;           /* set by who uses it: one more for each change of a map */
    uint32_t layers;
    moe_placement_shape_t shape;
    moe_placement_map_t *maps;  /* [layers] */
    void *work;                 /* of the solver */
} moe_placement_t;

/* MOE_INVALID, with the numbers, when a shape is impossible: too few slots, ranks that domains or
 * experts that groups do not divide. */
int moe_placement_check(const moe_placement_shape_t *shape, moe_error_t *error);

/* A placement of version 0 for experts that are equally loaded.  NULL with MOE_INVALID or
 * MOE_LIMIT. */
moe_placement_t *moe_placement_create(const moe_placement_shape_t *shape, uint32_t layers,
                                      moe_error_t *error);
void moe_placement_free(moe_placement_t *self);

/*
 * Places the experts of a layer by their loads [experts], which are >= 0 and finite.  Depends on
 * shape and loads only, ties go to the lower index.  Takes milliseconds (256 experts on 32 ranks:
 * two), so it runs beside the steps.
 *
 * Each expert has a replica, and no rank has two of one expert.  Where domains divide groups, a
 * group stays within one domain, so that a row of a group-limited router reaches few domains.
 */
void moe_placement_solve(moe_placement_t *self, uint32_t layer, const double *loads);

/* MOE_INVALID when what slots hold, [ranks * slots], is not a placement: an expert that does not
 * exist, that no slot holds, or that a rank has twice. */
int moe_placement_check_experts(const moe_placement_shape_t *shape, const uint32_t *experts,
                                moe_error_t *error);

/* A layer's slots hold these experts now, [ranks * slots], which have been checked. */
void moe_placement_assign(moe_placement_t *self, uint32_t layer, const uint32_t *experts);

/* Reorders experts [ranks * slots] within each rank so that what it holds already, by a map, stays
 * in its slot. */
void moe_placement_settle(const moe_placement_shape_t *shape, const moe_placement_map_t *map,
                          uint32_t *experts);

/* Mean load of a rank / largest load of a rank under a map, when replicas share their expert's load
 * evenly: 1 is perfect.  1 for no load at all. */
double moe_placement_balance(const moe_placement_shape_t *shape, const moe_placement_map_t *map,
                             const double *loads);

/* The slot that takes a row for an expert: replicas take turns.  A sender counts its own turns from
 * its rank on, so that senders with few rows do not all begin with the first replica. */
static inline uint32_t moe_placement_slot(const moe_placement_map_t *map, uint32_t expert,
                                          uint32_t turn)
{
    return moe_replica(map->replicas, map->offsets, expert, turn);
}

/* Loads as rows per interval with exponential ageing: the rows since the last call count
 * 1 - keep, all before them keep (0 <= keep < 1; half-life in calls: log(1/2) / log(keep)).
 * counts, seen: [experts] rows since the start, now and at the last call; seen becomes counts. */
void moe_placement_age(double *loads, uint64_t *seen, const uint64_t *counts, uint32_t experts,
                       double keep);

#endif
