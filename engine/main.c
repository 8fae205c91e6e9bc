/* moe-engine: the command line. */

#include <stdio.h>
#include <string.h>

#include "engine/commands/commands.h"


static const moe_command_t *const commands[] = {
    &moe_command_run,
    &moe_command_bench,
    &moe_command_inspect,
    &moe_command_logits,
    &moe_command_plan,
    &moe_command_topo,
    &moe_command_tokenize,
    &moe_command_synth,
    &moe_command_serve,
    NULL
};


static void print_command(FILE *out, const moe_command_t *command)
{
    fprintf(out, "  moe-engine %s %s\n      %s\n", command->name, command->usage, command->help);
}


static void print_help(FILE *out)
{
    fprintf(out, "moe-engine " MOE_VERSION ": inference engine for Mixture-of-Experts models\n\n");
    for (const moe_command_t *const *c = commands; *c; c++) {
        print_command(out, *c);
    }
}


int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("moe-engine " MOE_VERSION);
        return 0;
    }
    for (const moe_command_t *const *c = commands; *c; c++) {
        if (strcmp(argv[1], (*c)->name) == 0) {
            if (argc == 3 && strcmp(argv[2], "--help") == 0) {
                print_command(stdout, *c);
                return 0;
            }
            return (*c)->run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "moe-engine: unknown command \"%s\" (see moe-engine --help)\n", argv[1]);
    return 1;
}
