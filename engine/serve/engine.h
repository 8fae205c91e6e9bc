/*
 * The engine: a model, a scheduler thread that runs steps, threads that prepare prompts.
 *
 *     submit --> prompt threads --> scheduler thread --> sink
 *
 * moe_engine_submit, _cancel, _credit may be called from any thread; none of them waits for a step.
 * Events come through a sink, from the engine's threads.  An idle engine sleeps.
 */

#ifndef MOE_ENGINE_H
#define MOE_ENGINE_H

#include "engine/channel/message.h"
#include "engine/core/log.h"
#include "engine/ranks.h"
#include "engine/serve/sequence.h"

/*
 * Where events go.  `client` and `id` are those of moe_engine_submit; what an event points to is
 * valid during the call only.  A request's events: (admitted, started, tokens*, done) or failed, at
 * any place in that; then released, always and last, also when it was cancelled.  Events of one
 * request never overlap, those of different requests may.
 */
typedef struct {
    void (*admitted)(void *client, uint64_t id, const moe_admitted_t *admitted);
    void (*started)(void *client, uint64_t id, const moe_started_t *started,
                    const uint32_t *prompt_ids, const moe_logprob_t *logprobs);
    void (*tokens)(void *client, uint64_t id, const moe_deltas_t *deltas, const uint32_t *ids,
                   uint32_t n_ids, const moe_logprob_t *logprobs);
    void (*done)(void *client, uint64_t id, const moe_done_t *done);
    void (*failed)(void *client, uint64_t id, const moe_failure_t *failure);
    void (*released)(void *client, uint64_t id);
    void (*flush)(void *context);           /* after the events of a step */
    void (*changed)(void *context);         /* moe_engine_state has another code, or a rank is lost */
} moe_sink_t;

typedef struct {
    const char *model;              /* path (core/model_path.h); copied */
    const char *chat_template;      /* file of a template that replaces the model's; NULL: none;
                                     * copied */
    unsigned threads;               /* of all ranks; 0: one per CPU */
    uint32_t ranks;                 /* 0: 1 */
    uint32_t tensor_parallel;       /* ranks that share sequences; 0: 1 */
    uint32_t peer_timeout_ms;       /* longest wait for a rank; 0: that of ranks.h */
    moe_fault_t fault;              /* of a rank, for tests */
    uint32_t context;               /* 0: the model's; cut to what the cache holds */
    uint64_t kv_cache;              /* bytes; 0: 1 GiB, or half of what the weights leave */
    moe_kv_type_t kv_type;          /* of the cache's rows */
    moe_payload_t exchange;         /* form of rows that travel to experts */
    moe_overlap_t overlap;          /* what is computed meanwhile */
    uint32_t redundant_experts;     /* slots of a layer for copies of experts; 0: no placement */
    const char *tool_parser;        /* as of text/answer.h; NULL: chosen by the chat template */
    const char *reasoning_parser;   /* both only until the model is loaded */
    int no_prefix_cache;            /* computed prefixes are not kept for other requests */
    /* Of all groups of ranks together, each has its part: */
    uint32_t batch_tokens;          /* 0: 512 */
    uint32_t batch_sequences;       /* 0: 64; cut to batch_tokens */
    uint32_t step_time_ms;          /* 0: 50 */
    uint32_t batch_delay_ms;        /* an idle engine waits so long for company */
    uint32_t queue;                 /* requests beyond batch_sequences; 0: 256 */
    uint32_t queue_timeout_ms;      /* 0: 60000 */
    uint32_t credit;                /* tokens ahead of moe_engine_credit; 0: no flow control */
    const moe_log_t *log;           /* may be NULL */
    const moe_sink_t *sink;
    void *sink_context;             /* of flush and changed */
} moe_engine_options_t;

typedef struct moe_engine_s moe_engine_t;

/* How the options say that ranks are made: all but sizes and callbacks. */
void moe_engine_ranks_options(const moe_engine_options_t *options, moe_ranks_options_t *ranks);

/* Starts the threads and returns at once; the model is loaded by the scheduler thread (state
 * LOADING, then READY or FAILED).  NULL with MOE_SYSTEM or MOE_LIMIT. */
moe_engine_t *moe_engine_create(const moe_engine_options_t *options, moe_error_t *error);

/* Cancels everything, waits for the threads (a load in progress is waited for). */
void moe_engine_free(moe_engine_t *engine);

/* Waits until loading is over.  -1 with the error of a failed load. */
int moe_engine_wait(moe_engine_t *engine, moe_error_t *error);

/* -1 with the reason when a rank is lost, else 0.  Then no step runs any more and nothing else
 * happens: requests are released, without other events, by moe_engine_free. */
int moe_engine_lost(moe_engine_t *engine, moe_error_t *reason);

/* Hands a request over (the engine frees it).  -1, the request still being the caller's, with
 * MOE_UNAVAILABLE (not ready), MOE_LIMIT (queue full, memory) or MOE_INVALID (the client has a
 * request of this id already). */
int moe_engine_submit(moe_engine_t *engine, void *client, uint64_t id, moe_request_t *request,
                      moe_error_t *error);

/* Ends a request without further events but `released`, before the next step.  Unknown ids are
 * ignored: the request may just have ended. */
void moe_engine_cancel(moe_engine_t *engine, void *client, uint64_t id);
void moe_engine_cancel_all(moe_engine_t *engine, void *client);

/* The client has delivered so many tokens. */
void moe_engine_credit(moe_engine_t *engine, void *client, uint64_t id, uint32_t tokens);

/* Refuses new requests from now on; what runs and waits is finished. */
void moe_engine_drain(moe_engine_t *engine);

/* Requests that are not released yet. */
uint32_t moe_engine_alive(moe_engine_t *engine);

/* Snapshots; neither waits for a step.  The state's message lives as long as the engine. */
void moe_engine_state(moe_engine_t *engine, moe_state_t *state);
void moe_engine_stats(moe_engine_t *engine, moe_stats_t *stats);

/* Rows routed to each expert since the model was loaded, [*layers, *experts], for the caller to
 * free; NULL and two zeroes before, or without memory. */
uint64_t *moe_engine_expert_load(moe_engine_t *engine, uint32_t *layers, uint32_t *experts);

/* The loaded model's side, for commands; NULL before moe_engine_wait succeeded. */
const moe_lexicon_t *moe_engine_lexicon(const moe_engine_t *engine);
const char *moe_engine_isa(const moe_engine_t *engine);

#endif
