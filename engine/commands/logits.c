/* moe-engine logits: the largest logits after each token of a given sequence, for comparisons with
 * other implementations. */

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/commands/commands.h"
#include "engine/commands/session.h"
#include "engine/model/mapping.h"

#define CHUNK 64u           /* rows of a step */

typedef struct {
    const char *path, *tokens;
    uint64_t top;
    moe_engine_options_t engine;
} arguments_t;


static int parse_arguments(int argc, char **argv, arguments_t *a)
{
    *a = (arguments_t) {.top = 20};
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
        } else {
            bad = value ? moe_session_option(&a->engine, argv[i], value) : -1;
        }
        if (bad) {
            return moe_command_wrong(&moe_command_logits, argv[i], argv[i + 1]);
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


/* A step of the first group; the others have nothing to do but to take part. */
static const float *run_chunk(moe_ranks_t *ranks, const moe_batch_t *batch)
{
    static const moe_batch_t none;
    const moe_batch_t *batches[MOE_RANKS_LIMIT];
    const float *logits[MOE_RANKS_LIMIT];
    moe_error_t error;

    for (uint32_t g = 0; g < moe_ranks_groups(ranks); g++) {
        batches[g] = g == 0 ? batch : &none;
    }
    if (moe_ranks_step(ranks, batches, logits, &error) != 0) {
        /* A rank that is stuck cannot be waited for. */
        fflush(stdout);
        _exit(moe_command_fail(&error));
    }
    return logits[0];
}


static void run_tokens(moe_ranks_t *ranks, const uint32_t *ids, uint32_t n, uint32_t *table,
                       uint32_t *order, const moe_model_t *model, uint64_t top)
{
    for (uint32_t at = 0; at < n; at += CHUNK) {
        const uint32_t rows = n - at < CHUNK ? n - at : CHUNK;
        const moe_batch_sequence_t sequence = {ids + at, rows, at, table, rows};
        const moe_batch_t batch = {.sequences = &sequence, .n_sequences = 1};
        const float *logits = run_chunk(ranks, &batch);

        for (uint32_t i = 0; i < rows; i++) {
            print_position(logits + (size_t) i * model->vocabulary, model->vocabulary, order, top);
        }
    }
}


static int print_logits(moe_model_t *model, const uint32_t *ids, uint32_t n, const arguments_t *a,
                        moe_error_t *error)
{
    const uint32_t blocks = (n + MOE_BLOCK_TOKENS - 1) / MOE_BLOCK_TOKENS;
    uint32_t *table = malloc(blocks * sizeof(*table));
    uint32_t *order = malloc(model->vocabulary * sizeof(*order));
    moe_ranks_options_t options;
    moe_ranks_t *ranks = NULL;

    moe_engine_ranks_options(&a->engine, &options);
    options.forward.context = n;
    options.forward.batch_rows = options.forward.batch_outputs = CHUNK;
    options.forward.batch_sequences = 1;
    options.forward.cache_bytes = blocks * moe_forward_block_bytes(model, a->engine.kv_type);
    if (table == NULL || order == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", n);
    } else {
        ranks = moe_ranks_create(model, &options, error);
    }
    for (uint32_t b = 0; ranks && b < blocks; b++) {
        table[b] = b;
    }
    if (ranks) {
        run_tokens(ranks, ids, n, table, order, model, a->top);
    }
    moe_ranks_free(ranks);
    free(table);
    free(order);
    return ranks ? 0 : -1;
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
    if (moe_session_fault(&arguments.engine, &error) != 0) {
        return moe_command_fail(&error);
    }
    moe_mapping_handle_sigbus();
    model = moe_model_open(arguments.path, &error);
    if (model == NULL) {
        return moe_command_fail(&error);
    }
    ids = parse_tokens(arguments.tokens, model, &n, &error);
    status = ids ? print_logits(model, ids, n, &arguments, &error) : -1;
    free(ids);
    moe_model_close(model);
    return status == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_logits = {
    .name = "logits",
    .usage = "MODEL --tokens 1,2,3 [--top N] " MOE_SESSION_USAGE,
    .help = "print the largest logits after each token, one JSON line per position",
    .run = logits
};
