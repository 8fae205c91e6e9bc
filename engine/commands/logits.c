/* moe-engine logits: the largest logits after each token of a given sequence, for comparisons with
 * other implementations. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/commands/commands.h"
#include "engine/device/kv_type.h"
#include "engine/forward.h"
#include "engine/model/mapping.h"

#define CHUNK 64u           /* rows of a step */

typedef struct {
    const char *path, *tokens;
    uint64_t top, threads;
    moe_kv_type_t kv_type;
} arguments_t;


static int parse_arguments(int argc, char **argv, arguments_t *a)
{
    *a = (arguments_t) {.top = 20, .threads = moe_cpu_count()};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        int bad = 0;

        if (argv[i][0] != '-' && a->path == NULL) {
            a->path = argv[i];
            continue;
        }
        if (value && strcmp(argv[i], "--tokens") == 0) {
            a->tokens = value;
        } else if (value && strcmp(argv[i], "--top") == 0) {
            bad = moe_command_number(value, 1, UINT32_MAX, &a->top);
        } else if (value && strcmp(argv[i], "--threads") == 0) {
            bad = moe_command_number(value, 1, 1024, &a->threads);
        } else if (value && strcmp(argv[i], "--kv-type") == 0) {
            bad = moe_kv_type_find(value, &a->kv_type);
        } else {
            bad = -1;
        }
        if (bad) {
            return moe_command_wrong(&moe_command_logits, argv[i]);
        }
        i++;
    }
    if (a->path == NULL || a->tokens == NULL) {
        return moe_command_usage(&moe_command_logits, "MODEL and --tokens are needed");
    }
    return 0;
}


/* "1,2,3" into ids (owned by the caller); NULL on failure. */
static uint32_t *parse_tokens(const char *text, const moe_model_t *model, uint32_t *n,
                              moe_error_t *error)
{
    uint32_t *ids = malloc(model->context * sizeof(*ids));
    char *end = (char *) text;

    if (ids == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", model->context);
        return NULL;
    }
    for (*n = 0; *end != '\0' || *n == 0;) {
        const char *start = *n > 0 ? end + 1 : end;
        unsigned long id = strtoul(start, &end, 10);

        if (!isdigit((unsigned char) *start) || (*end != ',' && *end != '\0')
            || id >= model->vocabulary)
        {
            moe_fail(error, MOE_INVALID, "--tokens: token %u is not a number below %u", *n + 1,
                     model->vocabulary);
            free(ids);
            return NULL;
        }
        if (*n == model->context) {
            moe_fail(error, MOE_TOO_LONG, "--tokens: more than %u tokens", model->context);
            free(ids);
            return NULL;
        }
        ids[(*n)++] = (uint32_t) id;
    }
    return ids;
}


static int compare_logits(const void *a, const void *b, void *context)
{
    const float *logits = context;
    const uint32_t i = *(const uint32_t *) a, j = *(const uint32_t *) b;

    if (logits[i] != logits[j]) {
        return logits[i] > logits[j] ? -1 : 1;
    }
    return i < j ? -1 : i > j;
}


static void print_position(const float *logits, uint32_t vocabulary, uint32_t *order,
                           uint64_t top)
{
    const uint32_t n = top < vocabulary ? (uint32_t) top : vocabulary;

    for (uint32_t i = 0; i < vocabulary; i++) {
        order[i] = i;
    }
    qsort_r(order, vocabulary, sizeof(*order), compare_logits, (void *) logits);
    printf("{\"ids\":[");
    for (uint32_t i = 0; i < n; i++) {
        printf("%s%u", i > 0 ? "," : "", order[i]);
    }
    printf("],\"logits\":[");
    for (uint32_t i = 0; i < n; i++) {
        printf("%s%.9g", i > 0 ? "," : "", (double) logits[order[i]]);
    }
    printf("]}\n");
}


static int run_tokens(moe_model_t *model, const uint32_t *ids, uint32_t n, const arguments_t *a,
                      moe_error_t *error)
{
    const uint32_t blocks = (n + MOE_BLOCK_TOKENS - 1) / MOE_BLOCK_TOKENS;
    moe_forward_options_t options = {
        .threads = (unsigned) a->threads, .cache_bytes = 0, .context = n, .batch_rows = CHUNK,
        .batch_sequences = 1, .batch_outputs = CHUNK, .kv_type = a->kv_type,
    };
    uint32_t *table = malloc(blocks * sizeof(*table));
    uint32_t *order = malloc(model->vocabulary * sizeof(*order));
    moe_forward_t *forward = NULL;

    if (table == NULL || order == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", n);
    } else {
        options.cache_bytes = blocks * moe_forward_block_bytes(model, a->kv_type);
        forward = moe_forward_create(model, &options, error);
    }
    for (uint32_t at = 0; forward && at < n; at += CHUNK) {
        const uint32_t rows = n - at < CHUNK ? n - at : CHUNK;
        const moe_batch_sequence_t sequence = {ids + at, rows, at, table, rows};
        const moe_batch_t batch = {.sequences = &sequence, .n_sequences = 1};
        const float *logits;

        for (uint32_t b = 0; b < blocks; b++) {
            table[b] = b;
        }
        logits = moe_forward_step(forward, &batch, NULL);
        for (uint32_t i = 0; i < rows; i++) {
            print_position(logits + (size_t) i * model->vocabulary, model->vocabulary, order,
                           a->top);
        }
    }
    moe_forward_free(forward);
    free(table);
    free(order);
    return forward ? 0 : -1;
}


static int logits(int argc, char **argv)
{
    moe_error_t error;
    moe_model_t *model;
    arguments_t arguments;
    uint32_t *ids, n = 0;
    int status;

    if (parse_arguments(argc, argv, &arguments) != 0) {
        return 1;
    }
    moe_mapping_handle_sigbus();
    model = moe_model_open(arguments.path, &error);
    if (model == NULL) {
        return moe_command_fail(&error);
    }
    ids = parse_tokens(arguments.tokens, model, &n, &error);
    status = ids ? run_tokens(model, ids, n, &arguments, &error) : -1;
    free(ids);
    moe_model_close(model);
    return status == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_logits = {
    .name = "logits",
    .usage = "MODEL --tokens 1,2,3 [--top N] [--threads N] [--kv-type f32|bf16|q8_0]",
    .help = "print the largest logits after each token, one JSON line per position",
    .run = logits
};
