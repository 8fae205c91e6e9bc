/*
 * A sequence: one request from its arrival to its last token.
 *
 *     I/O thread       moe_sequence_create     a shell that can be cancelled
 *     prompt thread    moe_sequence_prepare    checks, template, tokeniser, all memory it will need
 *     scheduler        moe_sequence_advance    after each step: token, text, finish
 *
 * After moe_sequence_prepare a step allocates nothing for it (unless the text of one token is
 * longer than any before, or a call of a tool is kept until it is whole).
 */

#ifndef MOE_SEQUENCE_H
#define MOE_SEQUENCE_H

#include "engine/serve/sampler.h"
#include "engine/serve/scheduler.h"
#include "engine/text/answer.h"
#include "engine/text/chat.h"
#include "engine/text/detokenizer.h"
#include "engine/text/stop.h"

#define MOE_CREDIT_UNLIMITED UINT32_MAX

/* What requests are prepared against: one per loaded model, immutable, shared by all threads. */
typedef struct {
    const moe_model_t *model;           /* vocabulary, EOS ids, generation defaults */
    const moe_tokenizer_t *tokenizer;
    const moe_chat_t *chat;
    const moe_answer_format_t *answers; /* of chats */
    uint32_t context;                   /* tokens a sequence may have */
    const uint8_t *usable;              /* [vocabulary] 1: the id has a token */
    const moe_prefix_key_t *prefix_key; /* NULL: prefixes are not cached */
} moe_lexicon_t;

typedef struct moe_sequence_s {
    moe_task_t task;                    /* first: the scheduler hands tasks back */
    moe_request_t *request;             /* owned */
    const moe_lexicon_t *lexicon;

    /* Identity and links; guarded by the engine's lock. */
    void *client;
    uint64_t id;
    struct moe_tenant_s *tenant;
    struct moe_sequence_s *hash_next, *queue_next, *control_next;
    int cancelled;
    int in_control;
    uint32_t credit_added;

    uint32_t *tokens;                   /* [n_prompt + max_tokens] */
    uint32_t n_prompt;
    uint32_t max_tokens;                /* effective */
    uint32_t generated;
    uint32_t n_new;                     /* tokens that the last advance added: 0 or 1 */
    uint32_t credit;                    /* tokens that may be sent; MOE_CREDIT_UNLIMITED */

    moe_sampling_t sampling;
    moe_detokenizer_t detokenizer;
    moe_stop_t *stop;                   /* NULL without stop strings */
    moe_answer_t *answer;               /* NULL: all is content */
    moe_buffer_t piece;                 /* scratch: text of one token */
    moe_buffer_t text;                  /* scratch: text that no stop string holds back */
    moe_deltas_t deltas;                /* what the last advance added to the answer */
    uint32_t reasoning_tokens;          /* of `generated` */
    moe_logprob_t logprob;              /* of the last token, when asked for */
    moe_logprob_t *prompt_logprobs;     /* [n_prompt] or NULL */
    uint32_t n_prompt_logprobs;         /* recorded so far */
    moe_buffer_t rendered;              /* text behind prompt_text unless the request holds it */
    moe_string_t prompt_text;           /* with MOE_REQUEST_ECHO */

    /* Of the step in progress. */
    const float *logits;                /* of its outputs */
    int outcome;                        /* of moe_sequence_advance */
    moe_error_t error;                  /* when the outcome is -1 */
    uint64_t previous_ns;               /* time of the token before this step's, 0: none */

    moe_finish_t finish;                /* 0 while it runs */
    int32_t stop_index;                 /* stop string that matched, or -1 */
    int64_t stop_id;                    /* stop id that matched, or -1 */

    uint64_t arrival_ns, scheduled_ns, first_token_ns, last_token_ns;
} moe_sequence_t;

/* First in, first out, through queue_next. */
typedef struct {
    moe_sequence_t *first, *last;
} moe_sequence_queue_t;

void moe_sequence_queue_push(moe_sequence_queue_t *queue, moe_sequence_t *sequence);
moe_sequence_t *moe_sequence_queue_pop(moe_sequence_queue_t *queue);

/* Takes the request over.  NULL with MOE_LIMIT: the request stays the caller's. */
moe_sequence_t *moe_sequence_create(moe_request_t *request, void *client, uint64_t id,
                                    uint32_t credit, uint64_t now_ns, moe_error_t *error);

/* Its blocks must have been given back (moe_scheduler_remove). */
void moe_sequence_free(moe_sequence_t *sequence);

/*
 * Makes the sequence ready for the scheduler: as it was behind the request's resume_ids, where there
 * are some.  When these end it (`finish` is set), there is nothing to schedule.  -1 with MOE_INVALID
 * or MOE_TOO_LONG (then *field is the OpenAI name of the request's field at fault, or NULL) or
 * MOE_LIMIT.
 */
int moe_sequence_prepare(moe_sequence_t *sequence, const moe_lexicon_t *lexicon,
                         const char **field, moe_error_t *error);

/*
 * Takes the outputs of a step: logits [task.step_outputs, vocabulary].  When they end with the row
 * of the last known token, the next token is drawn: returns 1 with `n_new`, `deltas`, `logprob` and
 * `finish` set (n_new is 0 when no token was asked for).  Returns 0 while the prompt is not
 * complete, -1 with MOE_LIMIT (memory).  Call after moe_scheduler_complete.
 */
int moe_sequence_advance(moe_sequence_t *sequence, moe_sampler_t *sampler, const float *logits,
                         uint64_t now_ns, moe_error_t *error);

/* Tokens of the prompt that were in the prefix cache. */
uint32_t moe_sequence_cached(const moe_sequence_t *sequence);

/* Id of the token that the last advance added. */
uint32_t moe_sequence_last_id(const moe_sequence_t *sequence);

#endif
