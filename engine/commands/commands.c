#include "engine/commands/commands.h"

#include <stdio.h>


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
