/*
 * Faults on demand: `rank2:step100:stall` makes rank 2 stay away from step 100 on, `exit` makes it
 * leave the group there.  They prove that a lost rank costs an error and never a hang.  The text is
 * the environment variable MOE_FAULT, which the command line reads and nothing below it.
 */

#ifndef MOE_FAULT_H
#define MOE_FAULT_H

#include <stdint.h>

#include "engine/core/error.h"

typedef enum {
    MOE_FAULT_NONE = 0,
    MOE_FAULT_STALL,
    MOE_FAULT_EXIT
} moe_fault_kind_t;

typedef struct {
    moe_fault_kind_t kind;
    uint32_t rank;
    uint64_t step;
} moe_fault_t;

/* Reads "rankR:stepS:stall" or ":exit" with R < ranks, of several; NULL or "" is no fault.  -1 with
 * MOE_INVALID. */
int moe_fault_parse(const char *text, uint32_t ranks, moe_fault_t *fault, moe_error_t *error);

#endif
