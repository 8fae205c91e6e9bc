#ifndef MOE_TEMPLATE_SELECT_H
#define MOE_TEMPLATE_SELECT_H

#include "engine/text/template_ast.h"

/* What a filter's `attribute` argument picks from an item: "a.b.0" or an index; the item itself
 * when undefined or none. */
int moe_select_attribute(moe_job_t *job, const moe_value_t *item, const moe_value_t *attribute,
                         moe_value_t *result);

#endif
