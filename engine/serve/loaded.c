/*
 * The order of loading is that of cost: configuration, tokenizer and template are read before any
 * weight is touched, so a wrong file is reported in milliseconds.
 */

#include "engine/serve/loaded.h"

#include <stdlib.h>
#include <string.h>

#include "engine/core/memory.h"
#include "engine/device/kv_type.h"
#include "engine/serve/texts.h"

#define DEFAULT_KV_CACHE (1ull << 30)
#define DEFAULT_BATCH_TOKENS 512u
#define DEFAULT_BATCH_SEQUENCES 64u
#define DEFAULT_STEP_TIME_MS 50u
#define PROMPT_OUTPUTS 32u          /* rows of a step whose logits only prompt_logprobs wants */


static int open_answers(moe_loaded_t *loaded, const moe_engine_options_t *options,
                        moe_error_t *error)
{
    size_t size;
    const char *template = moe_chat_source(loaded->chat, &size);
    const moe_answer_settings_t settings = {
        .chat_template = { template, (uint32_t) size },
        .tool_parser = options->tool_parser,
        .reasoning_parser = options->reasoning_parser
    };

    loaded->answers = moe_answer_format_create(&settings, loaded->tokenizer, error);
    return loaded->answers ? 0 : -1;
}


int moe_loaded_open_texts(moe_loaded_t *loaded, const moe_engine_options_t *options,
                          moe_error_t *error)
{
    const moe_model_t *model = loaded->model;
    size_t size;

    if (moe_texts_open(options->model, options->chat_template, &loaded->tokenizer, &loaded->chat,
                       error) != 0
        || open_answers(loaded, options, error) != 0)
    {
        return -1;
    }
    loaded->usable = malloc(model->vocabulary);
    if (loaded->usable == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", model->vocabulary);
    }
    if (moe_tokenizer_size(loaded->tokenizer) > model->vocabulary) {
        return moe_fail(error, MOE_BAD_MODEL, "the tokenizer has %u tokens, the model's vocabulary"
                        " (vocab_size) only %u", moe_tokenizer_size(loaded->tokenizer),
                        model->vocabulary);
    }
    for (uint32_t id = 0; id < model->vocabulary; id++) {
        loaded->usable[id] = moe_tokenizer_piece(loaded->tokenizer, id, &size) != NULL;
    }
    return 0;
}


static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}


/* Memory for cache blocks.  Refused when it does not fit beside the weights: the kernel would hand
 * it out all the same, and kill the engine when it is used. */
static int measure_cache(const moe_model_t *model, const moe_engine_options_t *options,
                         uint64_t *bytes, moe_error_t *error)
{
    uint64_t available = moe_memory_available();
    uint64_t weights = moe_ranks_weights_needed(model, options->ranks, options->tensor_parallel,
                                                options->redundant_experts);
    uint64_t left = available > weights ? available - weights : 0;

    *bytes = options->kv_cache;
    if (*bytes == 0) {
        *bytes = left / 2 < DEFAULT_KV_CACHE ? left / 2 : DEFAULT_KV_CACHE;
    }
    if (left == 0 || *bytes > left) {
        return moe_fail(error, MOE_LIMIT, "too little memory: the weights take %llu MiB, kv_cache"
                        " %llu MiB, and %llu MiB are available",
                        (unsigned long long) (weights >> 20), (unsigned long long) (*bytes >> 20),
                        (unsigned long long) (available >> 20));
    }
    return 0;
}


/* What all groups of ranks have together; a group's forward pass has its part. */
static void set_sizes(moe_loaded_t *loaded, const moe_engine_options_t *options, uint32_t groups,
                      moe_forward_options_t *forward)
{
    loaded->batch_tokens = or_default(options->batch_tokens, DEFAULT_BATCH_TOKENS);
    loaded->batch_sequences = or_default(options->batch_sequences, DEFAULT_BATCH_SEQUENCES);
    if (loaded->batch_sequences > loaded->batch_tokens) {
        loaded->batch_sequences = loaded->batch_tokens;
    }
    forward->batch_rows = moe_groups_part(loaded->batch_tokens, 0, groups);
    forward->batch_sequences = moe_groups_part(loaded->batch_sequences, 0, groups);
    forward->batch_outputs = forward->batch_sequences + PROMPT_OUTPUTS;
    forward->cache_bytes /= or_default(options->ranks, 1);      /* each has one */
    forward->context = or_default(options->context, loaded->model->context);
}


static int open_ranks(moe_loaded_t *loaded, const moe_engine_options_t *options,
                      const moe_loaded_events_t *events, moe_error_t *error)
{
    moe_ranks_options_t ranks;
    uint32_t longest = loaded->model->context;

    moe_engine_ranks_options(options, &ranks);
    ranks.lost = events->lost;
    ranks.lost_context = events->context;
    ranks.forward.progress = events->progress;
    ranks.forward.progress_context = events->context;
    if (options->context > longest) {
        return moe_fail(error, MOE_INVALID, "context %u exceeds the %u tokens that the model was"
                        " made for (max_position_embeddings)", options->context, longest);
    }
    if (moe_ranks_check(ranks.ranks, ranks.tensor_parallel, ranks.forward.threads, error) != 0
        || moe_ranks_check_model(loaded->model, ranks.ranks, ranks.tensor_parallel,
                                 options->redundant_experts, error) != 0
        || measure_cache(loaded->model, options, &ranks.forward.cache_bytes, error) != 0)
    {
        return -1;
    }
    set_sizes(loaded, options, or_default(ranks.ranks, 1) / or_default(ranks.tensor_parallel, 1),
              &ranks.forward);
    loaded->ranks = moe_ranks_create(loaded->model, &ranks, error);
    return loaded->ranks ? 0 : -1;
}


static int open_samplers(moe_loaded_t *loaded, moe_error_t *error)
{
    unsigned threads = moe_ranks_threads(loaded->ranks);

    loaded->samplers = calloc(threads, sizeof(moe_sampler_t *));
    if (loaded->samplers == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u samplers", threads);
    }
    for (loaded->n_samplers = 0; loaded->n_samplers < threads; loaded->n_samplers++) {
        loaded->samplers[loaded->n_samplers] =
            moe_sampler_create(loaded->model->vocabulary, loaded->usable, error);
        if (loaded->samplers[loaded->n_samplers] == NULL) {
            return -1;
        }
    }
    return 0;
}


/* The longest sequence: what a group's cache can hold. */
static uint32_t cut_context(const moe_loaded_t *loaded, const moe_engine_options_t *options,
                            uint32_t blocks)
{
    uint32_t context = or_default(options->context, loaded->model->context);

    if (blocks < moe_cache_blocks_for(context)) {
        moe_log(options->log, MOE_LOG_WARN, "kv_cache holds %u tokens%s, less than the context of"
                " %u: that is the longest sequence now", blocks * MOE_BLOCK_TOKENS,
                moe_ranks_groups(loaded->ranks) > 1 ? " of a rank" : "", context);
        context = blocks * MOE_BLOCK_TOKENS;
    }
    return context;
}


static int open_groups(moe_loaded_t *loaded, const moe_engine_options_t *options,
                       moe_error_t *error)
{
    const uint32_t groups = moe_ranks_groups(loaded->ranks);
    const uint32_t blocks = moe_forward_blocks(moe_ranks_forward(loaded->ranks, 0));
    const moe_scheduler_options_t scheduler = {
        .batch_rows = loaded->batch_tokens,
        .batch_sequences = loaded->batch_sequences,
        .batch_outputs = loaded->batch_sequences + PROMPT_OUTPUTS,
        .step_time_ns = or_default(options->step_time_ms, DEFAULT_STEP_TIME_MS) * 1000000ull
    };

    loaded->logits = calloc(groups, sizeof(float *));
    loaded->drawn = calloc(groups, sizeof(size_t));
    if (loaded->logits == NULL || loaded->drawn == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u groups of ranks", groups);
    }
    if (moe_groups_init(&loaded->groups, groups, &scheduler, blocks, error) != 0
        || moe_prefix_key_init(&loaded->prefix_key, options->model,
                               moe_kv_type_name(options->kv_type), error) != 0)
    {
        return -1;
    }
    loaded->lexicon = (moe_lexicon_t) {
        .model = loaded->model,
        .tokenizer = loaded->tokenizer,
        .chat = loaded->chat,
        .answers = loaded->answers,
        .context = cut_context(loaded, options, blocks),
        .usable = loaded->usable,
        .prefix_key = options->no_prefix_cache ? NULL : &loaded->prefix_key
    };
    return 0;
}


int moe_loaded_open(moe_loaded_t *loaded, const moe_engine_options_t *options,
                    const moe_loaded_events_t *events, moe_error_t *error)
{
    memset(loaded, 0, sizeof(*loaded));
    loaded->model = moe_model_open(options->model, error);
    if (loaded->model == NULL) {
        return -1;
    }
    if (moe_loaded_open_texts(loaded, options, error) != 0
        || open_ranks(loaded, options, events, error) != 0
        || open_groups(loaded, options, error) != 0
        || open_samplers(loaded, error) != 0)
    {
        moe_loaded_close(loaded);
        return -1;
    }
    return 0;
}


void moe_loaded_close(moe_loaded_t *loaded)
{
    for (unsigned i = 0; i < loaded->n_samplers; i++) {
        moe_sampler_free(loaded->samplers[i]);
    }
    free(loaded->samplers);
    moe_groups_free(&loaded->groups);
    free(loaded->logits);
    free(loaded->drawn);
    moe_ranks_free(loaded->ranks);
    free(loaded->usable);
    moe_answer_format_free(loaded->answers);
    if (loaded->chat) {
        moe_chat_free(loaded->chat);
    }
    if (loaded->tokenizer) {
        moe_tokenizer_free(loaded->tokenizer);
    }
    if (loaded->model) {
        moe_model_close(loaded->model);
    }
    memset(loaded, 0, sizeof(*loaded));
}
