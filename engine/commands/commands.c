#include "engine/commands/commands.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>


int moe_command_fail(const moe_error_t *error)
{
    fprintf(stderr, "moe-engine: %s\n", error->message);
    return 1;
}


int moe_command_usage(const moe_command_t *command, const char *what)
{
    fprintf(stderr, "moe-engine: %s; usage: moe-engine %s %s\n", what, command->name,
            command->usage);
    return 1;
}


int moe_command_wrong(const moe_command_t *command, const char *option, const char *value)
{
    const char *quote = value ? "\"" : "";
    char what[192];

    snprintf(what, sizeof(what), "unknown option or wrong value: \"%.64s\"%s%s%.64s%s", option,
             value ? " " : "", quote, value ? value : "", quote);
    return moe_command_usage(command, what);
}


int moe_command_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoull(text, &end, 10);
    return isdigit((unsigned char) *text) && *end == '\0' && errno == 0 && *value >= low
                   && *value <= high
               ? 0
               : -1;
}
