/* How the experts of a model are spread over ranks. */

#ifndef MOE_SPREAD_H
#define MOE_SPREAD_H

#include "engine/model/model.h"
#include "engine/moe/placement.h"

/*
 * Fills the shape of its placements, and *layers: those that have experts (0: shape->experts is 0,
 * too).  Each rank has as many slots as the others.  `redundant` of all slots of a layer are for
 * copies; with 0 of them, slots that are left over hold some.
 *
 * -1 with MOE_BAD_MODEL when layers differ in their numbers of experts, MOE_INVALID when there
 * cannot be so many copies, or when experts of one layer differ in form, so that they must stay.
 */
int moe_spread(const moe_model_t *model, uint32_t ranks, uint32_t redundant,
               moe_placement_shape_t *shape, uint32_t *layers, moe_error_t *error);

#endif
