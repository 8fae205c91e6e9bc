/* moe-engine inspect: what a model holds, and whether it can be served. */

#include <stdio.h>
#include <string.h>

#include "engine/channel/message.h"
#include "engine/commands/commands.h"
#include "engine/model/mapping.h"
#include "engine/model/model.h"
#include "engine/serve/loaded.h"

#define LABEL "%-15s"


/* 8,912,345 */
static const char *grouped(char text[32], uint64_t number)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%llu", (unsigned long long) number), size = 0;

    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            text[size++] = ',';
        }
        text[size++] = digits[i];
    }
    text[size] = '\0';
    return text;
}


static void print_sizes(const moe_model_t *model)
{
    char total[32], active[32];

    printf(LABEL "%s\n", "family", model->family);
    printf(LABEL "%s, %s active per token\n", "parameters", grouped(total, model->parameters),
           grouped(active, model->active_parameters));
    printf(LABEL "hidden %u, vocabulary %u, context %u%s\n", "sizes", model->hidden,
           model->vocabulary, model->context,
           model->head.tensor == model->embedding.tensor ? ", tied head" : "");
}


static void print_rope(const moe_rotary_t *rotary, uint32_t width)
{
    printf(LABEL "%s", "  rope", rotary->type);
    if (rotary->factor > 0) {
        printf(", factor %g", rotary->factor);
    }
    printf(", theta %g, ", rotary->theta);
    if (rotary->size < width) {
        printf("%u of ", rotary->size);
    }
    printf("%u dimensions in %s", width, rotary->interleaved ? "neighbouring pairs" : "halves");
    if (rotary->magnitude != 1) {
        printf(", magnitude %.7g", (double) rotary->magnitude);
    }
    if (rotary->long_frequencies != NULL) {
        printf(", other ones beyond %u tokens", rotary->short_context);
    }
    putchar('\n');
}


static void print_mla(const moe_mla_t *mla)
{
    printf(LABEL "MLA, %u heads of %u + %u rope, values %u, latent %u, ", "  mixer", mla->heads,
           mla->nope, mla->rope, mla->value, mla->kv_lora);
    if (mla->q_lora > 0) {
        printf("queries %u", mla->q_lora);
    } else {
        printf("queries not compressed");
    }
    printf(", softmax scale %.7g\n", (double) mla->scale);
    print_rope(&mla->rotary, mla->rope);
}


static void print_gqa(const moe_gqa_t *gqa)
{
    static const char *const norms[] = {
        [MOE_QK_NORM_NONE] = "", [MOE_QK_NORM_HEAD] = ", q and k normalised by head",
        [MOE_QK_NORM_ROTATED] = ", q and k normalised by head when rotated",
        [MOE_QK_NORM_WHOLE] = ", q and k normalised"
    };

    printf(LABEL "GQA, %u heads of %u, %u of keys and values%s%s%s%s, softmax scale %.7g\n",
           "  mixer", gqa->heads, gqa->head, gqa->kv_heads, norms[gqa->norm],
           gqa->biases ? ", biases" : "", gqa->output_bias ? " in all projections" : "",
           gqa->sinks.size > 0 ? ", sinks" : "", (double) gqa->scale);
    print_rope(&gqa->rotary, gqa->head);
}


static void print_router(const moe_block_t *moe)
{
    const moe_router_t *router = &moe->router;

    printf(LABEL "%u of width %u, %u per token", "  experts", router->experts, moe->width,
           router->top_k);
    if (router->groups > 1) {
        printf(" from %u of %u groups", router->groups_kept, router->groups);
    }
    if (moe->shared.width > 0) {
        printf(", shared of width %u%s", moe->shared.width,
               moe->shared_gate.tensor ? ", gated" : "");
    }
    if (moe->form.limit > 0) {
        printf(", activation limited to %g", (double) moe->form.limit);
    }
    printf("\n" LABEL "%s%s%s%s, scale %g\n", "  router",
           router->score == MOE_SCORE_SOFTMAX ? "softmax" : "sigmoid",
           router->gate.bias != NULL ? " with bias" : "",
           router->bias.size > 0 ? " with selection bias" : "",
           router->normalise ? ", normalised" : "", (double) router->scale);
}


static void print_windows(const moe_model_t *model)
{
    uint32_t n = 0, size = 0;

    for (uint32_t i = 0; i < model->n_layers; i++) {
        const moe_layer_t *layer = &model->layers[i];

        if (layer->mixer == MOE_MIXER_GQA && layer->gqa.window > 0) {
            size = layer->gqa.window;
            n++;
        }
    }
    if (n > 0) {
        printf(LABEL "of %u tokens in %u layers\n", "  window", size, n);
    }
}


/* Layers of one kind have the same sizes in every family: the first of each kind is described. */
static void print_layers(const moe_model_t *model)
{
    const moe_layer_t *dense = NULL, *moe = NULL;
    uint32_t n_moe = 0;

    for (uint32_t i = model->n_layers; i-- > 0;) {
        const moe_layer_t *layer = &model->layers[i];

        if (layer->is_moe) {
            moe = layer;
            n_moe++;
        } else {
            dense = layer;
        }
    }
    printf(LABEL "%u: %u dense, %u MoE\n", "layers", model->n_layers, model->n_layers - n_moe,
           n_moe);
    if (model->layers[0].mixer == MOE_MIXER_GQA) {
        print_gqa(&model->layers[0].gqa);
        print_windows(model);
    } else {
        print_mla(&model->layers[0].mla);
    }
    if (dense != NULL) {
        printf(LABEL "width %u\n", "  dense", dense->dense.width);
    }
    if (moe != NULL) {
        print_router(&moe->moe);
    }
}


static void print_eos(const moe_model_t *model)
{
    printf(LABEL "%s", "end of text", model->n_eos_ids == 0 ? "no ids given" : "");
    for (uint32_t i = 0; i < model->n_eos_ids; i++) {
        printf("%s%u", i > 0 ? ", " : "", model->eos_ids[i]);
    }
    putchar('\n');
}


static void print_sampling(const moe_generation_t *generation)
{
    const struct {
        uint32_t bit;
        const char *name;
        double value;
    } settings[] = {
        { MOE_GIVEN_TEMPERATURE, "temperature", (double) generation->temperature },
        { MOE_GIVEN_TOP_P, "top_p", (double) generation->top_p },
        { MOE_GIVEN_TOP_K, "top_k", generation->top_k },
        { MOE_GIVEN_MIN_P, "min_p", (double) generation->min_p },
        { MOE_GIVEN_REPETITION_PENALTY, "repetition_penalty",
          (double) generation->repetition_penalty },
    };
    const char *separator = "";

    printf(LABEL "%s", "sampling", generation->given == 0 ? "no defaults given" : "");
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (generation->given & settings[i].bit) {
            printf("%s%s %g", separator, settings[i].name, settings[i].value);
            separator = ", ";
        }
    }
    putchar('\n');
}


/* What the tensors of one format take. */
typedef struct {
    const char *type;
    size_t count;
    uint64_t bytes;
} share_t;


static size_t count_types(const moe_tensors_t *tensors, share_t *shares, size_t most)
{
    size_t n = 0;

    for (size_t i = 0; i < moe_tensors_count(tensors); i++) {
        const moe_tensor_t *tensor = moe_tensors_at(tensors, i);
        size_t s = 0;

        while (s < n && strcmp(shares[s].type, tensor->type) != 0) {
            s++;
        }
        if (s == most) {
            continue;
        }
        if (s == n) {
            shares[n++] = (share_t) { .type = tensor->type };
        }
        shares[s].count++;
        shares[s].bytes += tensor->size;
    }
    return n;
}


static void print_types(const moe_tensors_t *tensors)
{
    share_t shares[32];
    const size_t n = count_types(tensors, shares, sizeof(shares) / sizeof(shares[0]));
    char text[32];

    printf(LABEL "%zu in %s, %s bytes\n", "tensors", moe_tensors_count(tensors),
           moe_tensors_source(tensors), grouped(text, moe_tensors_bytes(tensors)));
    for (size_t s = 0; s < n; s++) {
        printf("  %-13s%zu, %s bytes\n", shares[s].type, shares[s].count,
               grouped(text, shares[s].bytes));
    }
}


static void print_tensors(const moe_tensors_t *tensors)
{
    putchar('\n');
    for (size_t i = 0; i < moe_tensors_count(tensors); i++) {
        const moe_tensor_t *tensor = moe_tensors_at(tensors, i);

        printf("%-8s %-60s [", tensor->type, tensor->name);
        for (unsigned d = 0; d < tensor->n_dims; d++) {
            printf("%s%llu", d > 0 ? ", " : "", (unsigned long long) tensor->shape[d]);
        }
        puts("]");
    }
}


static void print_texts(const moe_loaded_t *loaded)
{
    char text[32];
    size_t size;

    moe_chat_source(loaded->chat, &size);
    printf(LABEL "%u tokens, %s\n", "tokenizer", moe_tokenizer_size(loaded->tokenizer),
           moe_tokenizer_kind(loaded->tokenizer));
    if (size == 0) {
        printf(LABEL "none\n", "chat template");
        return;
    }
    printf(LABEL "%s bytes%s\n", "chat template", grouped(text, size),
           moe_chat_takes_tools(loaded->chat) ? ", shows tools" : "");
    printf(LABEL "%s\n", "  tool calls", moe_answer_format_tools(loaded->answers));
    printf(LABEL "%s\n", "  reasoning", moe_answer_format_reasoning(loaded->answers));
}


static int inspect(int argc, char **argv)
{
    const char *path = NULL;
    moe_loaded_t loaded = { 0 };
    moe_model_t *model;
    moe_error_t error;
    int tensors = 0, rc;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tensors") == 0) {
            tensors = 1;
        } else if (argv[i][0] == '-' || path != NULL) {
            return moe_command_wrong(&moe_command_inspect, argv[i], NULL);
        } else {
            path = argv[i];
        }
    }
    if (path == NULL) {
        return moe_command_usage(&moe_command_inspect, "MODEL is needed");
    }
    moe_mapping_handle_sigbus();
    model = moe_model_open(path, &error);
    if (model == NULL) {
        return moe_command_fail(&error);
    }
    print_sizes(model);
    print_layers(model);
    print_eos(model);
    print_sampling(&model->generation);
    print_types(model->tensors);
    if (tensors) {
        print_tensors(model->tensors);
    }
    loaded.model = model;
    rc = moe_loaded_open_texts(&loaded, &(moe_engine_options_t) { .model = path }, &error);
    if (rc == 0) {
        print_texts(&loaded);
    }
    moe_loaded_close(&loaded);
    return rc == 0 ? 0 : moe_command_fail(&error);
}


const moe_command_t moe_command_inspect = {
    .name = "inspect",
    .usage = "MODEL [--tensors]",
    .help = "print what a model holds and whether it can be served",
    .run = inspect
};
