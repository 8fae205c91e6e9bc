#include "engine/moe/settings.h"

#include <string.h>

static const char *const payloads[] = {
    [MOE_PAYLOAD_F32] = "f32",
    [MOE_PAYLOAD_BF16] = "bf16",
    [MOE_PAYLOAD_INT8] = "int8",
    [MOE_PAYLOAD_FP8] = "fp8"
};

static const char *const overlaps[] = {
    [MOE_OVERLAP_SHARED] = "shared",
    [MOE_OVERLAP_OFF] = "off",
    [MOE_OVERLAP_TWO_BATCH] = "two_batch"
};

#define COUNT(names) (sizeof(names) / sizeof((names)[0]))


/* The index of a name; n when there is none. */
static size_t find(const char *const *names, size_t n, const char *name)
{
    size_t i = 0;

    while (i < n && strcmp(name, names[i]) != 0) {
        i++;
    }
    return i;
}


const char *moe_payload_name(moe_payload_t payload)
{
    return payloads[payload];
}


const char *moe_overlap_name(moe_overlap_t overlap)
{
    return overlaps[overlap];
}


int moe_payload_find(const char *name, moe_payload_t *payload)
{
    const size_t i = find(payloads, COUNT(payloads), name);

    *payload = i < COUNT(payloads) ? (moe_payload_t) i : *payload;
    return i < COUNT(payloads) ? 0 : -1;
}


int moe_overlap_find(const char *name, moe_overlap_t *overlap)
{
    const size_t i = find(overlaps, COUNT(overlaps), name);

    *overlap = i < COUNT(overlaps) ? (moe_overlap_t) i : *overlap;
    return i < COUNT(overlaps) ? 0 : -1;
}
