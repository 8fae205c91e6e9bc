#include "engine/core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>


/* A message travels into a one-line log record and a JSON body: keep it printable and valid UTF-8. */
static void sanitise(char *text, size_t size)
{
    size_t length = strlen(text);

    if (length + 1 == size) {
        while (length > 0 && ((unsigned char) text[length - 1] & 0xc0) == 0x80) {
            length--;
        }
        if (length > 0 && (unsigned char) text[length - 1] >= 0xc0) {
            length--;
        }
        text[length] = '\0';
    }
    for (char *p = text; *p; p++) {
        if ((unsigned char) *p < 0x20 || *p == 0x7f) {
            *p = '?';
        }
    }
}


int moe_fail(moe_error_t *error, moe_error_code_t code, const char *format, ...)
{
    va_list args;

    error->code = code;
    va_start(args, format);
    vsnprintf(error->message, sizeof(error->message), format, args);
    va_end(args);
    sanitise(error->message, sizeof(error->message));
    return -1;
}


int moe_fail_in(moe_error_t *error, const char *format, ...)
{
    char prefix[sizeof(error->message)], message[sizeof(error->message)];
    va_list args;

    va_start(args, format);
    vsnprintf(prefix, sizeof(prefix), format, args);
    va_end(args);
    memcpy(message, error->message, sizeof(message));
    return moe_fail(error, error->code, "%s: %s", prefix, message);
}
