/* moe-engine synth: a model of random weights in a well-known shape, as a GGUF file. */

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/commands/commands.h"
#include "engine/core/threads.h"
#include "engine/model/synth.h"

static const struct {
    const char *name;
    moe_dtype_t dtype;
} types[] = {
    { "f32", MOE_F32 }, { "f16", MOE_F16 }, { "bf16", MOE_BF16 }, { "q8_0", MOE_Q8_0 },
    { "q6_k", MOE_Q6_K }, { "q5_k", MOE_Q5_K }, { "q5_0", MOE_Q5_0 }, { "q4_k", MOE_Q4_K },
    { "q4_0", MOE_Q4_0 }, { "mxfp4", MOE_MXFP4 },
};


static int find_type(const char *name, moe_dtype_t *type)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcasecmp(types[i].name, name) == 0) {
            *type = types[i].dtype;
            return 0;
        }
    }
    return -1;
}


static void show_progress(void *context, uint64_t done, uint64_t total)
{
    fprintf(stderr, "\rwriting %3u %%%s", (unsigned) (done * 100 / total),
            done == total ? "\r\033[K" : "");
}


static int synth(int argc, char **argv)
{
    moe_synth_options_t options = { .type = MOE_BF16, .threads = moe_cpu_count() };
    const char *path = NULL;
    uint64_t number;
    moe_error_t error;

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        int bad = 0;

        if (argv[i][0] != '-' && path == NULL) {
            path = argv[i];
            continue;
        }
        if (value && strcmp(argv[i], "--shape") == 0) {
            options.shape = value;
        } else if (value && strcmp(argv[i], "--type") == 0) {
            bad = find_type(value, &options.type);
        } else if (value && strcmp(argv[i], "--layers") == 0) {
            bad = moe_command_number(value, 1, 1024, &number);
            options.layers = (uint32_t) number;
        } else if (value && strcmp(argv[i], "--threads") == 0) {
            bad = moe_command_number(value, 1, 1024, &number);
            options.threads = (unsigned) number;
        } else if (value && strcmp(argv[i], "--seed") == 0) {
            bad = moe_command_number(value, 0, UINT64_MAX, &options.seed);
        } else {
            bad = -1;
        }
        if (bad) {
            return moe_command_wrong(&moe_command_synth, argv[i], argv[i + 1]);
        }
        i++;
    }
    if (options.shape == NULL || path == NULL) {
        return moe_command_usage(&moe_command_synth, "--shape and OUT.gguf are needed");
    }
    if (isatty(STDERR_FILENO)) {
        options.progress = show_progress;
    }
    return moe_synth(&options, path, &error) == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_synth = {
    .name = "synth",
    .usage = "--shape SHAPE [--layers N] [--type T] [--seed S] [--threads N] OUT.gguf",
    .help = "write a model of random weights (SHAPE: deepseek-v2-lite, deepseek-v3, mixtral-8x7b,"
            " olmoe-1b-7b, qwen3-30b-a3b, gpt-oss-20b, or for tests deepseek-tiny, mixtral-tiny,"
            " olmoe-tiny, qwen3-tiny, gpt-oss-tiny; T: bf16, f16, f32, q8_0, q6_k, q5_k, q5_0, q4_k,"
            " q4_0 or mxfp4)",
    .run = synth
};
