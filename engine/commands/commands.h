/*
 * The commands of moe-engine, one file each.  A command gets its own arguments (argv[0] is its
 * name), writes results to stdout and everything else to stderr, and returns the exit code:
 * 0, or 1 after one line "moe-engine: ..." that names what is wrong.
 */

#ifndef MOE_COMMANDS_H
#define MOE_COMMANDS_H

#include <stdint.h>

#include "engine/core/error.h"

typedef struct {
    const char *name;
    const char *usage;          /* arguments, for the help text */
    const char *help;           /* one line */
    int (*run)(int argc, char **argv);
} moe_command_t;

extern const moe_command_t moe_command_bench;
extern const moe_command_t moe_command_inspect;
extern const moe_command_t moe_command_logits;
extern const moe_command_t moe_command_plan;
extern const moe_command_t moe_command_tokenize;
extern const moe_command_t moe_command_run;
extern const moe_command_t moe_command_serve;
extern const moe_command_t moe_command_synth;
extern const moe_command_t moe_command_topo;

/* Prints "moe-engine: message" to stderr; returns 1. */
int moe_command_fail(const moe_error_t *error);

/* A whole number in [low, high]; -1 when `text` is none. */
int moe_command_number(const char *text, uint64_t low, uint64_t high, uint64_t *value);

/* Prints how to call a command after a wrong option; returns 1. */
int moe_command_usage(const moe_command_t *command, const char *what);

/* The same for an option that is unknown, or whose value (NULL: none) is missing or wrong. */
int moe_command_wrong(const moe_command_t *command, const char *option, const char *value);

#endif
