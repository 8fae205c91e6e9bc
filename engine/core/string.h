/* A byte string that belongs to somebody else. */

#ifndef MOE_STRING_H
#define MOE_STRING_H

#include <stdint.h>

typedef struct {
    const char *data;           /* not NUL-terminated */
    uint32_t size;              /* bytes */
} moe_string_t;

#endif
