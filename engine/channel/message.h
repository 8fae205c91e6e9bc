/*
 * What the frames carry: requests to the engine, events back.
 *
 * A decoded message points into the payload it was decoded from (which must outlive it), except
 * moe_request_t: moe_request_decode copies, since a request outlives the read buffer.
 */

#ifndef MOE_MESSAGE_H
#define MOE_MESSAGE_H

#include <stdint.h>

#include "engine/channel/frame.h"

#define MOE_STOPS_LIMIT 16u
#define MOE_STOP_BYTES_LIMIT 1024u          /* of one stop string */
#define MOE_TOP_LOGPROBS_LIMIT 20u
#define MOE_ID_LIST_LIMIT 65536u            /* stop ids, biases, allowed ids: entries each */

/* A byte string; not NUL-terminated. */
typedef struct {
    const char *data;
    uint32_t size;
} moe_string_t;

typedef enum {
    MOE_PROMPT_TEXT = 1,        /* prompt: UTF-8 text */
    MOE_PROMPT_TOKENS,          /* prompt_ids */
    MOE_PROMPT_CHAT             /* prompt: JSON array of messages; template_arguments: JSON object */
} moe_prompt_kind_t;

enum {                          /* moe_request_t.flags */
    MOE_REQUEST_IGNORE_EOS = 1u << 0,
    MOE_REQUEST_INCLUDE_STOP = 1u << 1,         /* the stop string stays in the text */
    MOE_REQUEST_KEEP_SPECIAL = 1u << 2,         /* skip_special_tokens = false */
    MOE_REQUEST_NO_BOS = 1u << 3,               /* add_special_tokens = false */
    MOE_REQUEST_ECHO = 1u << 4,                 /* STARTED carries the prompt's text */
    MOE_REQUEST_PROMPT_IDS = 1u << 5,           /* STARTED carries the prompt's token ids */
    MOE_REQUEST_NO_GENERATION_PROMPT = 1u << 6, /* add_generation_prompt = false */
    MOE_REQUEST_CONTINUE_FINAL = 1u << 7        /* continue_final_message */
};

enum {                          /* moe_request_t.given: fields that the client set; the others take
                                 * the model's generation_config.json, then the neutral value */
    MOE_GIVEN_TEMPERATURE = 1u << 0,
    MOE_GIVEN_TOP_P = 1u << 1,
    MOE_GIVEN_TOP_K = 1u << 2,
    MOE_GIVEN_MIN_P = 1u << 3,
    MOE_GIVEN_REPETITION_PENALTY = 1u << 4,
    MOE_GIVEN_SEED = 1u << 5,
    MOE_GIVEN_MAX_TOKENS = 1u << 6
};

typedef struct {
    uint32_t id;
    float bias;
} moe_logit_bias_t;

typedef struct {
    moe_prompt_kind_t kind;
    uint32_t flags;
    uint32_t given;
    moe_string_t prompt;
    moe_string_t template_arguments;    /* chat_template_kwargs and friends; may be empty */
    const uint32_t *prompt_ids;
    uint32_t n_prompt_ids;

    uint32_t max_tokens;                /* not given: a default or, when 0, no limit, cut to what
                                         * the context holds */
    uint32_t min_tokens;
    float temperature;                  /* 0: greedy */
    float top_p;
    uint32_t top_k;                     /* 0: off */
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed;                      /* not given: the engine draws one */
    int32_t logprobs;                   /* -1: none; n: the token's and the n largest */
    int32_t prompt_logprobs;            /* the same for prompt tokens */
    int32_t priority;                   /* larger waits longer, as in vLLM */

    const moe_string_t *stops;
    uint32_t n_stops;
    const uint32_t *stop_ids;
    uint32_t n_stop_ids;
    const moe_logit_bias_t *biases;
    uint32_t n_biases;
    const uint32_t *allowed_ids;        /* empty: all */
    uint32_t n_allowed_ids;
} moe_request_t;

/* A request with neutral values: no penalties, temperature 1, no logprobs. */
void moe_request_defaults(moe_request_t *request);

/* Appends a REQUEST frame. */
int moe_request_encode(moe_buffer_t *out, uint64_t id, const moe_request_t *request,
                       moe_error_t *error);

/* Returns a request in one malloc block (free it with free), or NULL with MOE_INVALID (broken
 * payload, unknown kind, list over its limit, number not finite) or MOE_LIMIT. */
moe_request_t *moe_request_decode(const void *payload, size_t size, moe_error_t *error);

/* One token with its log-probability.  `text`: the token's own bytes, possibly no valid UTF-8. */
typedef struct {
    uint32_t id;
    float logprob;
    moe_string_t text;
} moe_candidate_t;

typedef struct {
    moe_candidate_t token;
    uint32_t n_top;
    moe_candidate_t top[MOE_TOP_LOGPROBS_LIMIT];    /* largest first */
} moe_logprob_t;

/*
 * Log-probability records are decoded one by one:
 *     for (i = 0; i < n_logprobs; i++) moe_logprob_next(&tokens.logprobs, &record);
 */
int moe_logprob_next(moe_reader_t *reader, moe_logprob_t *record);
int moe_logprob_write(moe_buffer_t *out, const moe_logprob_t *record, moe_error_t *error);

/* STARTED: the request was admitted and its first token is there. */
typedef struct {
    uint32_t prompt_tokens;
    uint32_t cached_tokens;             /* of these, taken from the prefix cache */
    uint64_t queue_ns;                  /* from arrival in the engine to the first scheduled step */
    uint64_t prefill_ns;                /* from there to the first token */
    moe_string_t prompt_text;           /* with MOE_REQUEST_ECHO */
    uint32_t n_prompt_ids;              /* with MOE_REQUEST_PROMPT_IDS */
    const uint8_t *prompt_ids;          /* u32 little-endian each, unaligned: moe_id_at */
    uint32_t n_logprobs;                /* with prompt_logprobs: one per prompt token; the first
                                         * token's logprob is NaN (nothing precedes it) */
    moe_reader_t logprobs;
} moe_started_t;

/* TOKENS: what one step added to one sequence. */
typedef struct {
    moe_string_t text;                  /* valid UTF-8, may be empty (held back) */
    uint32_t n_ids;
    const uint8_t *ids;                 /* moe_id_at */
    uint32_t n_logprobs;                /* n_ids when asked for, else 0 */
    moe_reader_t logprobs;
} moe_tokens_t;

typedef enum {
    MOE_FINISH_STOP = 1,                /* end token, stop string or stop id */
    MOE_FINISH_LENGTH                   /* max_tokens or context */
} moe_finish_t;

typedef struct {
    moe_finish_t reason;
    moe_string_t stop;                  /* the stop string that matched, or empty */
    int64_t stop_id;                    /* the stop id that matched (not an EOS), or -1 */
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t completion_tokens;
    uint64_t decode_ns;                 /* from the first token to the last */
} moe_done_t;

/* ERROR: nothing more follows for this request. */
typedef struct {
    moe_error_code_t code;
    moe_string_t field;                 /* the request's field at fault, or empty */
    moe_string_t message;
} moe_failure_t;

typedef enum {
    MOE_STATE_LOADING = 1,
    MOE_STATE_READY,
    MOE_STATE_DRAINING,
    MOE_STATE_FAILED                    /* the model cannot be loaded: `message` says why */
} moe_state_code_t;

/* STATE: sent on HELLO, on every change and every MOE_CHANNEL_HEARTBEAT_MS. */
typedef struct {
    moe_state_code_t code;
    uint32_t progress;                  /* loading: per cent */
    uint32_t context;                   /* tokens a sequence may have */
    uint32_t vocabulary;
    uint32_t running;
    uint32_t waiting;
    uint64_t steps;                     /* counts finished steps */
    uint64_t step_started_ns;           /* age of the step in progress; 0: none */
    uint64_t loaded_unix;               /* seconds since the epoch */
    moe_string_t message;
} moe_state_t;

/* Histograms of the metrics, in API.md's buckets. */
#define MOE_TTFT_BUCKETS 22u            /* 1 ms * 2^i: 1 ms ... 2097 s, +Inf last */
#define MOE_ITL_BUCKETS 21u             /* 0.1 ms * 2^i */
#define MOE_TOKEN_BUCKETS 18u           /* 1 * 2^i tokens */

typedef struct {
    uint64_t count;
    double sum;                         /* seconds or tokens */
    uint64_t buckets[MOE_TTFT_BUCKETS]; /* not cumulative */
} moe_histogram_t;

/* STATS_REPLY: fixed layout, same build on both ends. */
typedef struct {
    uint64_t running, waiting;
    uint64_t blocks_used, blocks_total;
    uint64_t prompt_tokens, generation_tokens;
    uint64_t cache_queries, cache_hits;         /* tokens */
    uint64_t preemptions;
    uint64_t finished_stop, finished_length, finished_cancelled, finished_error;
    uint64_t steps, step_rows;                  /* rows: tokens through the model */
    uint64_t memory_bytes;                      /* resident set */
    uint64_t load_ns;
    moe_histogram_t ttft, itl, queue, e2e, prompt, generation;
} moe_stats_t;

uint32_t moe_id_at(const uint8_t *ids, uint32_t index);

int moe_started_encode(moe_buffer_t *out, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs,
                       moe_error_t *error);
int moe_started_decode(const void *payload, size_t size, moe_started_t *started);

int moe_tokens_encode(moe_buffer_t *out, uint64_t id, moe_string_t text, const uint32_t *ids,
                      uint32_t n_ids, const moe_logprob_t *logprobs, moe_error_t *error);
int moe_tokens_decode(const void *payload, size_t size, moe_tokens_t *tokens);

int moe_done_encode(moe_buffer_t *out, uint64_t id, const moe_done_t *done, moe_error_t *error);
int moe_done_decode(const void *payload, size_t size, moe_done_t *done);

int moe_failure_encode(moe_buffer_t *out, uint64_t id, const moe_failure_t *failure,
                       moe_error_t *error);
int moe_failure_decode(const void *payload, size_t size, moe_failure_t *failure);

int moe_state_encode(moe_buffer_t *out, const moe_state_t *state, moe_error_t *error);
int moe_state_decode(const void *payload, size_t size, moe_state_t *state);

int moe_credit_encode(moe_buffer_t *out, uint64_t id, uint32_t tokens, moe_error_t *error);
int moe_credit_decode(const void *payload, size_t size, uint32_t *tokens);

int moe_stats_encode(moe_buffer_t *out, uint64_t id, const moe_stats_t *stats, moe_error_t *error);
int moe_stats_decode(const void *payload, size_t size, moe_stats_t *stats);

/* Bucket borders of the histograms above: upper bound of bucket i (the last is infinite). */
double moe_histogram_bound(double first, unsigned bucket);
void moe_histogram_add(moe_histogram_t *histogram, double first, unsigned buckets, double value);

#endif
