/*
 * String operations that filters and methods share.
 */

#ifndef MOE_TEMPLATE_CASE_H
#define MOE_TEMPLATE_CASE_H

#include "engine/text/template_string.h"

typedef enum {
    MOE_CASE_UPPER,
    MOE_CASE_LOWER,
    MOE_CASE_CAPITALIZE,        /* first character of the string */
    MOE_CASE_TITLE              /* first letter of every run of letters */
} moe_case_t;

const moe_string_t *moe_string_case(moe_job_t *job, const moe_string_t *string, moe_case_t how);
/* Replaces the first `count` occurrences, all when negative. */
const moe_string_t *moe_string_replace(moe_job_t *job, const moe_string_t *string,
                                       const moe_string_t *old, const moe_string_t *new,
                                       int64_t count);
/* Python's split: by whitespace without a separator; at most `most` cuts, all when negative. */
moe_list_t *moe_string_split(moe_job_t *job, const moe_string_t *string,
                             const moe_string_t *separator, int64_t most);
moe_list_t *moe_string_split_right(moe_job_t *job, const moe_string_t *string,
                                   const moe_string_t *separator, int64_t most);
moe_list_t *moe_string_lines(moe_job_t *job, const moe_string_t *string, int keep_ends);

#endif
