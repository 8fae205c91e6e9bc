/* moe-engine plan: memory, traffic and the roofline of a model on more and more devices. */

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/commands/commands.h"
#include "engine/core/json.h"
#include "engine/core/model_path.h"
#include "engine/plan/plan.h"

#define SIZES_LIMIT 64u
#define DEVICES_LIMIT 65536u

typedef struct {
    const char *model;
    double sizes[SIZES_LIMIT];
    unsigned n_sizes;
    double devices, memory, bandwidth, flops, attention_flops, link, node_link, latency, node;
    double context, batch, redundant, imbalance;
    const char *mode, *weights, *kv, *payload, *return_payload, *dispatch, *back, *overlap, *mla;
    int json;
} arguments_t;

/* Options with a number; `whole`: no fractions. */
static const struct {
    const char *name;
    size_t offset;
    double low, high;
    int whole;
} numbers[] = {
    {"--devices", offsetof(arguments_t, devices), 1, DEVICES_LIMIT, 1},
    {"--node", offsetof(arguments_t, node), 1, DEVICES_LIMIT, 1},
    {"--memory", offsetof(arguments_t, memory), 1e-3, 1e9, 0},
    {"--bandwidth", offsetof(arguments_t, bandwidth), 1e-3, 1e9, 0},
    {"--flops", offsetof(arguments_t, flops), 1e-3, 1e9, 0},
    {"--attention-flops", offsetof(arguments_t, attention_flops), 1e-3, 1e9, 0},
    {"--link", offsetof(arguments_t, link), 1e-3, 1e9, 0},
    {"--node-link", offsetof(arguments_t, node_link), 1e-3, 1e9, 0},
    {"--latency", offsetof(arguments_t, latency), 0, 1e9, 0},
    {"--context", offsetof(arguments_t, context), 1, 1 << 30, 1},
    {"--batch", offsetof(arguments_t, batch), 1, 1 << 24, 1},
    {"--redundant", offsetof(arguments_t, redundant), 0, 1 << 20, 1},
    {"--imbalance", offsetof(arguments_t, imbalance), 1, 1e6, 0}
};

typedef struct {
    const char *word;
    double value;               /* bytes per number, or an enum's */
} word_t;

static const word_t modes[] = {
    {"decode", MOE_PLAN_DECODE}, {"prefill", MOE_PLAN_PREFILL}, {NULL, 0}
};
static const word_t copies[] = {
    {"slot", MOE_PLAN_PER_SLOT}, {"rank", MOE_PLAN_PER_RANK}, {"node", MOE_PLAN_PER_NODE}, {NULL, 0}
};
static const word_t overlaps[] = {
    {"none", MOE_PLAN_OVERLAP_NONE}, {"shared", MOE_PLAN_OVERLAP_SHARED},
    {"two_batch", MOE_PLAN_OVERLAP_TWO_BATCH}, {NULL, 0}
};
static const word_t forms[] = {{"absorbed", 0}, {"expanded", 1}, {NULL, 0}};

/* Blocks with their scales: fp8 one f32 for 128 x 128, q8_0 one f16 for 32, Q4_K 144 bytes for 256,
 * MXFP4 17 bytes for 32; rows that travel have one f32 for 128 numbers. */
static const word_t weight_types[] = {
    {"f32", 4}, {"bf16", 2}, {"fp8", 1 + 4.0 / 16384}, {"q8_0", 34.0 / 32}, {"q4_k", 144.0 / 256},
    {"mxfp4", 17.0 / 32}, {NULL, 0}
};
static const word_t kv_types[] = {{"f32", 4}, {"bf16", 2}, {"q8_0", 34.0 / 32}, {NULL, 0}};
static const word_t payloads[] = {
    {"f32", 4}, {"bf16", 2}, {"int8", 1 + 4.0 / 128}, {"fp8", 1 + 4.0 / 128}, {NULL, 0}
};

static const struct {
    const char *name;
    size_t offset;
    const word_t *words;
} choices[] = {
    {"--mode", offsetof(arguments_t, mode), modes},
    {"--weights", offsetof(arguments_t, weights), weight_types},
    {"--kv", offsetof(arguments_t, kv), kv_types},
    {"--payload", offsetof(arguments_t, payload), payloads},
    {"--return-payload", offsetof(arguments_t, return_payload), payloads},
    {"--dispatch", offsetof(arguments_t, dispatch), copies},
    {"--return", offsetof(arguments_t, back), copies},
    {"--overlap", offsetof(arguments_t, overlap), overlaps},
    {"--mla", offsetof(arguments_t, mla), forms}
};


static int read_number(const char *text, double low, double high, int whole, double *value)
{
    char *end;

    *value = strtod(text, &end);
    return end != text && *end == '\0' && *value >= low && *value <= high
           && (!whole || floor(*value) == *value) ? 0 : -1;
}


/* "1,8,32" */
static int read_sizes(arguments_t *a, const char *list)
{
    char *copy = strdup(list), *rest = copy, *item;
    int rc = copy != NULL ? 0 : -1;

    a->n_sizes = 0;
    while (rc == 0 && (item = strsep(&rest, ",")) != NULL) {
        rc = a->n_sizes == SIZES_LIMIT ? -1
             : read_number(item, 1, DEVICES_LIMIT, 1, &a->sizes[a->n_sizes++]);
    }
    free(copy);
    return rc;
}


static const word_t *find_word(const word_t *words, const char *text)
{
    while (words->word != NULL && strcmp(words->word, text) != 0) {
        words++;
    }
    return words->word != NULL ? words : NULL;
}


static int read_option(arguments_t *a, const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(name, numbers[i].name) == 0) {
            return read_number(value, numbers[i].low, numbers[i].high, numbers[i].whole,
                               (double *) ((char *) a + numbers[i].offset));
        }
    }
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (strcmp(name, choices[i].name) == 0) {
            *(const char **) ((char *) a + choices[i].offset) = value;
            return find_word(choices[i].words, value) != NULL ? 0 : -1;
        }
    }
    return strcmp(name, "--sizes") == 0 ? read_sizes(a, value) : -1;
}


/* Sizes of expert parallelism up to the number of devices, that number at last. */
static void default_sizes(arguments_t *a)
{
    static const unsigned usual[] = {1, 2, 4, 8, 16, 32, 64, 72, 96, 128, 144, 192, 256, 320};

    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++) {
        if (usual[i] < a->devices && (usual[i] <= a->node || fmod(usual[i], a->node) == 0)) {
            a->sizes[a->n_sizes++] = usual[i];
        }
    }
    a->sizes[a->n_sizes++] = a->devices;
}


static int parse_arguments(int argc, char **argv, arguments_t *a)
{
    *a = (arguments_t) {
        .devices = 320, .node = 8, .memory = 80, .bandwidth = 3350, .link = 50, .node_link = 450,
        .context = 4096, .imbalance = 1, .mode = "decode", .kv = "bf16", .payload = "bf16",
        .dispatch = "rank", .back = "slot", .overlap = "shared", .mla = "absorbed",
    };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            a->json = 1;
        } else if (argv[i][0] != '-' && a->model == NULL) {
            a->model = argv[i];
        } else if (i + 1 == argc || read_option(a, argv[i], argv[i + 1]) != 0) {
            return moe_command_wrong(&moe_command_plan, argv[i], argv[i + 1]);
        } else {
            i++;
        }
    }
    if (a->model == NULL) {
        return moe_command_usage(&moe_command_plan, "a model directory or a config.json is needed");
    }
    return 0;
}


/* The config of a directory, or that file itself. */
static json_t *load_config(const char *path, moe_error_t *error)
{
    const size_t length = strlen(path);
    char *directory, *slash, file[PATH_MAX];
    json_t *config;

    if (length < 5 || strcmp(path + length - 5, ".json") != 0) {
        const int kind = moe_model_path(path, file, sizeof(file), error);

        if (kind == MOE_PATH_DIRECTORY) {
            return moe_json_load(path, "config.json", 0, error);
        }
        if (kind == MOE_PATH_GGUF) {
            moe_fail(error, MOE_INVALID, "%s: a config.json is needed, not GGUF", path);
        }
        return NULL;
    }
    directory = strdup(path);
    if (directory == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    slash = strrchr(directory, '/');
    if (slash == NULL) {
        config = moe_json_load(".", path, 0, error);
    } else {
        *slash = '\0';
        config = moe_json_load(directory, slash + 1, 0, error);
    }
    free(directory);
    return config;
}


/* What was not given follows from what was; weights are as in the checkpoint, bf16 or fp8. */
static void complete(arguments_t *a, const json_t *config)
{
    const json_t *quantization = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    int fp8;

    if (a->weights == NULL) {
        a->weights = method != NULL && strcmp(method, "fp8") == 0 ? "fp8" : "bf16";
    }
    fp8 = strcmp(a->weights, "fp8") == 0;
    if (a->attention_flops == 0) {
        a->attention_flops = a->flops == 0 ? 989 : fp8 ? a->flops / 2 : a->flops;
    }
    if (a->flops == 0) {
        a->flops = fp8 ? 2 * a->attention_flops : a->attention_flops;
    }
    if (a->return_payload == NULL) {
        a->return_payload = strcmp(a->payload, "f32") == 0 ? "f32" : "bf16";
    }
    if (a->batch == 0) {
        a->batch = strcmp(a->mode, "prefill") == 0 ? 16384 : 128;
    }
    if (a->n_sizes == 0) {
        default_sizes(a);
    }
}


static moe_plan_hardware_t hardware_of(const arguments_t *a)
{
    return (moe_plan_hardware_t) {
        .memory = a->memory * 1e9, .bandwidth = a->bandwidth * 1e9, .flops = a->flops * 1e12,
        .attention_flops = a->attention_flops * 1e12, .link = a->link * 1e9,
        .node_link = a->node_link * 1e9, .latency = a->latency * 1e-6, .node = (uint32_t) a->node,
    };
}


static moe_plan_work_t work_of(const arguments_t *a)
{
    return (moe_plan_work_t) {
        .mode = (moe_plan_mode_t) find_word(modes, a->mode)->value,
        .context = (uint32_t) a->context,
        .batch = (uint32_t) a->batch,
        .weight_size = find_word(weight_types, a->weights)->value,
        .kv_size = find_word(kv_types, a->kv)->value,
        .dispatch_size = find_word(payloads, a->payload)->value,
        .return_size = find_word(payloads, a->return_payload)->value,
        .dispatch_copies = (moe_plan_copies_t) find_word(copies, a->dispatch)->value,
        .return_copies = (moe_plan_copies_t) find_word(copies, a->back)->value,
        .overlap = (moe_plan_overlap_t) find_word(overlaps, a->overlap)->value,
        .redundant = (uint32_t) a->redundant,
        .imbalance = a->imbalance,
        .expanded = (int) find_word(forms, a->mla)->value,
    };
}


static void print_head(const arguments_t *a, const moe_model_t *model)
{
    if (a->json) {
        printf("{\"family\":\"%s\",\"mode\":\"%s\",\"context\":%.0f,\"batch\":%.0f,"
               "\"weights\":\"%s\",\"kv\":\"%s\",\"payload\":\"%s\",\"return_payload\":\"%s\","
               "\"overlap\":\"%s\",\"plans\":[", model->family, a->mode, a->context, a->batch,
               a->weights, a->kv, a->payload, a->return_payload, a->overlap);
        return;
    }
    printf("%s, %s: %.0f %s per device, context %.0f; weights %s, cache %s; rows there %s per %s, "
           "back %s per %s; overlap %s\n", model->family, a->mode, a->batch,
           strcmp(a->mode, "decode") == 0 ? "sequences" : "tokens", a->context, a->weights, a->kv,
           a->payload, a->dispatch, a->return_payload, a->back, a->overlap);
    printf("device: %g GB, %g GB/s, %g TFLOP/s (attention %g); links %g GB/s, within %g devices "
           "%g GB/s\n\n", a->memory, a->bandwidth, a->flops, a->attention_flops, a->link, a->node,
           a->node_link);
    printf("%5s %5s | %8s %7s %8s | %8s %9s %9s | %7s %7s %7s %7s %8s %6s %8s | %9s %9s %10s\n",
           "EP", "slots", "weights", "cache", "seqs", "rows per", "MB/layer", "MB/step", "mixer",
           "dense", "shared", "experts", "exchange", "head", "step", "tokens/s", "tokens/s",
           "tokens/s");
    printf("%5s %5s | %8s %7s %8s | %8s %9s %9s | %7s %7s %7s %7s %8s %6s %8s | %9s %9s %10s\n",
           "", "", "GB", "GB", "that fit", "expert", "sent", "sent", "ms", "ms", "ms", "ms", "ms",
           "ms", "ms", "device", "node", "all");
}


static void print_json(const arguments_t *a, const moe_plan_t *p, int first)
{
    printf("%s\n  {\"devices\":%u,\"slots\":%u,\"weight_bytes\":%.0f,\"kv_bytes\":%.0f,"
           "\"buffer_bytes\":%.0f,\"sequences\":%.0f,\"fits\":%s,\"rows_per_expert\":%.3f,"
           "\"layer_bytes_far\":%.0f,\"layer_bytes_near\":%.0f,\"step_bytes\":%.0f,"
           "\"mixer_ms\":%.4f,\"dense_ms\":%.4f,\"shared_ms\":%.4f,\"experts_ms\":%.4f,"
           "\"exchange_ms\":%.4f,\"head_ms\":%.4f,\"step_ms\":%.4f,\"tokens_per_s\":%.1f,"
           "\"tokens_per_s_all\":%.1f}", first ? "" : ",", p->devices, p->slots, p->weights, p->kv,
           p->buffers, p->sequences, p->fits ? "true" : "false", p->expert_rows, p->sent_far,
           p->sent_near, p->sent, p->mixer * 1e3, p->dense * 1e3, p->shared * 1e3,
           p->experts * 1e3, p->exchange * 1e3, p->head * 1e3, p->step * 1e3, p->rate,
           p->rate * p->devices);
}


static void print_row(const arguments_t *a, const moe_plan_t *p)
{
    const double node = p->devices < a->node ? p->devices : a->node;

    printf("%5u %5u | %8.1f %7.1f %8.0f | %8.1f %9.2f %9.1f | %7.2f %7.2f %7.2f %7.2f %8.2f %6.2f "
           "%8.2f | ", p->devices, p->slots, p->weights * 1e-9, p->kv * 1e-9, p->sequences,
           p->expert_rows, (p->sent_far + p->sent_near) * 1e-6, p->sent * 1e-6, p->mixer * 1e3,
           p->dense * 1e3, p->shared * 1e3, p->experts * 1e3, p->exchange * 1e3, p->head * 1e3,
           p->step * 1e3);
    if (p->fits) {
        printf("%9.0f %9.0f %10.0f\n", p->rate, p->rate * node, p->rate * p->devices);
    } else {
        printf("%9s %9s %10s\n", "-", "-", "-");
    }
}


static int print_plans(const arguments_t *a, const moe_model_t *model, moe_error_t *error)
{
    const moe_plan_hardware_t hardware = hardware_of(a);
    const moe_plan_work_t work = work_of(a);
    moe_plan_t plans[SIZES_LIMIT];
    int missing = 0;

    for (unsigned i = 0; i < a->n_sizes; i++) {
        if (moe_plan(model, &hardware, &work, (uint32_t) a->sizes[i], &plans[i], error) != 0) {
            return -1;
        }
        missing |= !plans[i].fits;
    }
    print_head(a, model);
    for (unsigned i = 0; i < a->n_sizes; i++) {
        if (a->json) {
            print_json(a, &plans[i], i == 0);
        } else {
            print_row(a, &plans[i]);
        }
    }
    if (a->json) {
        puts("\n]}");
    } else if (missing) {
        puts("\n-: weights, cache and the exchange's buffers do not fit into the memory");
    }
    return 0;
}


static int run(int argc, char **argv)
{
    moe_model_t *model = NULL;
    moe_error_t error;
    json_t *config;
    arguments_t a;
    int rc = -1;

    if (parse_arguments(argc, argv, &a) != 0) {
        return 1;
    }
    config = load_config(a.model, &error);
    if (config != NULL) {
        complete(&a, config);
        model = moe_model_describe(config, &error);
    }
    if (model != NULL) {
        rc = print_plans(&a, model, &error);
    }
    moe_model_close(model);
    json_decref(config);
    return rc == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_plan = {
    .name = "plan",
    .usage = "MODEL|config.json [--devices N] [--sizes 1,8,32] [--node N]\n"
             "      [--memory GB] [--bandwidth GB/s] [--flops TFLOP/s]\n"
             "      [--attention-flops TFLOP/s] [--link GB/s] [--node-link GB/s] [--latency US]\n"
             "      [--mode decode|prefill] [--context TOKENS] [--batch ROWS]\n"
             "      [--weights f32|bf16|fp8|q8_0|q4_k|mxfp4] [--kv f32|bf16|q8_0]\n"
             "      [--payload f32|bf16|int8|fp8] [--return-payload f32|bf16|int8|fp8]\n"
             "      [--dispatch slot|rank|node] [--return slot|rank|node]\n"
             "      [--overlap none|shared|two_batch] [--redundant SLOTS] [--imbalance FACTOR]\n"
             "      [--mla absorbed|expanded] [--json]",
    .help = "memory, traffic and the roofline of a step on one device, a node, a cluster",
    .run = run
};
