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


int moe_loaded_open_texts(moe_loaded_t *loaded, const char *path, moe_error_t *error)
{
    const moe_model_t *model = loaded->model;
    size_t size;

    if (moe_texts_open(path, &loaded->tokenizer, &loaded->chat, error) != 0) {
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
static int measure_cache(const moe_model_t *model, uint64_t wanted, uint64_t *bytes,
                         moe_error_t *error)
{
    uint64_t available = moe_memory_available(), weights = moe_tensors_bytes(model->tensors);
    uint64_t left = available > weights ? available - weights : 0;

    *bytes = wanted;
    if (wanted == 0) {
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


static int open_forward(moe_loaded_t *loaded, const moe_engine_options_t *options,
                        moe_forward_options_t *forward, moe_error_t *error)
{
    uint32_t longest = loaded->model->context;

    if (options->context > longest) {
        return moe_fail(error, MOE_INVALID, "context %u exceeds the %u tokens that the model was"
                        " made for (max_position_embeddings)", options->context, longest);
    }
    if (measure_cache(loaded->model, options->kv_cache, &forward->cache_bytes, error) != 0) {
        return -1;
    }
    forward->threads = options->threads ? options->threads : moe_cpu_count();
    forward->kv_type = options->kv_type;
    forward->context = or_default(options->context, longest);
    forward->batch_rows = or_default(options->batch_tokens, DEFAULT_BATCH_TOKENS);
    forward->batch_sequences = or_default(options->batch_sequences, DEFAULT_BATCH_SEQUENCES);
    if (forward->batch_sequences > forward->batch_rows) {
        forward->batch_sequences = forward->batch_rows;
    }
    forward->batch_outputs = forward->batch_sequences + PROMPT_OUTPUTS;
    loaded->forward = moe_forward_create(loaded->model, forward, error);
    return loaded->forward ? 0 : -1;
}


static int open_samplers(moe_loaded_t *loaded, moe_error_t *error)
{
    unsigned threads = moe_pool_threads(moe_forward_pool(loaded->forward));

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


static int open_scheduler(moe_loaded_t *loaded, const moe_engine_options_t *options,
                          const moe_forward_options_t *forward, moe_error_t *error)
{
    moe_scheduler_options_t scheduler = {
        .batch_rows = forward->batch_rows,
        .batch_sequences = forward->batch_sequences,
        .batch_outputs = forward->batch_outputs,
        .step_time_ns = or_default(options->step_time_ms, DEFAULT_STEP_TIME_MS) * 1000000ull
    };
    uint32_t blocks = moe_forward_blocks(loaded->forward), context = forward->context;

    loaded->batch_tokens = forward->batch_rows;
    loaded->batch_sequences = forward->batch_sequences;
    if (blocks < moe_cache_blocks_for(context)) {
        context = blocks * MOE_BLOCK_TOKENS;
        moe_log(options->log, MOE_LOG_WARN, "kv_cache holds %u tokens, less than the context of"
                " %u: that is the longest sequence now", context, forward->context);
    }
    loaded->cache = moe_cache_create(blocks, error);
    if (loaded->cache == NULL
        || moe_prefix_key_init(&loaded->prefix_key, options->model,
                               moe_kv_type_name(options->kv_type), error) != 0)
    {
        return -1;
    }
    loaded->scheduler = moe_scheduler_create(&scheduler, loaded->cache, error);
    loaded->lexicon = (moe_lexicon_t) {
        .model = loaded->model,
        .tokenizer = loaded->tokenizer,
        .chat = loaded->chat,
        .context = context,
        .usable = loaded->usable,
        .prefix_key = options->no_prefix_cache ? NULL : &loaded->prefix_key
    };
    return loaded->scheduler ? 0 : -1;
}


int moe_loaded_open(moe_loaded_t *loaded, const moe_engine_options_t *options,
                    void (*progress)(void *context, uint64_t done, uint64_t total),
                    void *progress_context, moe_error_t *error)
{
    moe_forward_options_t forward = {
        .progress = progress,
        .progress_context = progress_context
    };

    memset(loaded, 0, sizeof(*loaded));
    loaded->model = moe_model_open(options->model, error);
    if (loaded->model == NULL) {
        return -1;
    }
    if (moe_loaded_open_texts(loaded, options->model, error) != 0
        || open_forward(loaded, options, &forward, error) != 0
        || open_scheduler(loaded, options, &forward, error) != 0
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
    moe_scheduler_free(loaded->scheduler);
    moe_cache_free(loaded->cache);
    if (loaded->forward) {
        moe_forward_free(loaded->forward);
    }
    free(loaded->usable);
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
