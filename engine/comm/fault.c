#include "engine/comm/fault.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>


/* The number behind `name` and up to a colon; moves *text behind that.  -1 when there is none. */
static int read_number(const char **text, const char *name, uint64_t *number)
{
    const size_t length = strlen(name);
    char *end;

    if (strncmp(*text, name, length) != 0 || !isdigit((unsigned char) (*text)[length])) {
        return -1;
    }
    errno = 0;
    *number = strtoull(*text + length, &end, 10);
    if (errno != 0 || *end != ':') {
        return -1;
    }
    *text = end + 1;
    return 0;
}


int moe_fault_parse(const char *text, uint32_t ranks, moe_fault_t *fault, moe_error_t *error)
{
    const char *rest = text;
    uint64_t rank, step;

    *fault = (moe_fault_t) {.kind = MOE_FAULT_NONE};
    if (text == NULL || *text == '\0') {
        return 0;
    }
    if (read_number(&rest, "rank", &rank) != 0 || read_number(&rest, "step", &step) != 0
        || (strcmp(rest, "stall") != 0 && strcmp(rest, "exit") != 0))
    {
        return moe_fail(error, MOE_INVALID, "MOE_FAULT: \"%.64s\" is not rankR:stepS:stall or "
                        "rankR:stepS:exit", text);
    }
    if (ranks == 1) {
        return moe_fail(error, MOE_INVALID, "MOE_FAULT needs several ranks");
    }
    if (rank >= ranks) {
        return moe_fail(error, MOE_INVALID, "MOE_FAULT: there is no rank %llu among %u",
                        (unsigned long long) rank, ranks);
    }
    *fault = (moe_fault_t) {
        .kind = strcmp(rest, "stall") == 0 ? MOE_FAULT_STALL : MOE_FAULT_EXIT,
        .rank = (uint32_t) rank, .step = step,
    };
    return 0;
}
