/*
 * The forward pass: one step of a batch through the layers of a model.
 *
 * A batch is a list of sequences, each with a run of consecutive tokens: one token (decode) or a
 * chunk of the prompt (prefill).  Every row's result is the same whatever else is in the batch,
 * however the prompt was cut into chunks, and however many threads run: rows never share an
 * accumulation.
 *
 * What a sequence remembers lives in cache blocks of MOE_BLOCK_TOKENS tokens, each holding all
 * layers' rows of its tokens.  The scheduler owns the numbering (which block belongs to whom), the
 * forward pass owns the memory.
 */

#ifndef MOE_FORWARD_H
#define MOE_FORWARD_H

#include "engine/comm/world.h"
#include "engine/core/threads.h"
#include "engine/model/model.h"
#include "engine/moe/balance.h"
#include "engine/moe/exchange.h"
#include "engine/moe/settings.h"
#include "kernels/kv.h"

#define MOE_BLOCK_TOKENS 16u

typedef struct moe_forward_s moe_forward_t;

typedef struct {
    moe_world_t world;          /* the ranks that run each step together; all zeroes: no others */
    unsigned threads;           /* >= 1 */
    uint64_t cache_bytes;       /* memory for cache blocks; at least one block is made */
    moe_kv_type_t kv_type;      /* of their rows */
    moe_payload_t exchange;     /* how rows travel to experts; equal on all ranks, as the next */
    moe_overlap_t overlap;
    moe_balance_options_t balance;      /* where experts are; equal on all ranks */
    uint32_t context;           /* longest sequence: sizes scratch memory; <= the model's context */
    uint32_t batch_rows;        /* most rows of a step */
    uint32_t batch_sequences;   /* most sequences of a step */
    uint32_t batch_outputs;     /* most rows of a step whose logits are wanted (>= 1) */
    void (*progress)(void *context, uint64_t done, uint64_t total);    /* loading; may be NULL */
    void *progress_context;
} moe_forward_options_t;

/* MOE_INVALID, with the numbers, when a tensor-parallel group of so many ranks would have one with
 * nothing to do. */
int moe_forward_check_parts(const moe_model_t *model, uint32_t parts, moe_error_t *error);

/* Packs the weights of `model` (which must stay open) and allocates everything a step needs:
 * a step allocates nothing.  NULL with MOE_INVALID, before any weight is read, when the options do
 * not fit the model; with MOE_LIMIT (memory) or MOE_BAD_MODEL. */
moe_forward_t *moe_forward_create(moe_model_t *model, const moe_forward_options_t *options,
                                  moe_error_t *error);
void moe_forward_free(moe_forward_t *forward);

/* The threads it runs on: free for other loops between steps, on the thread that calls step. */
moe_pool_t *moe_forward_pool(const moe_forward_t *forward);

/* Bytes of a cache block for this model, to size cache_bytes with.  0 when the model has a layer of
 * an unknown kind. */
uint64_t moe_forward_block_bytes(const moe_model_t *model, moe_kv_type_t type);

/* Bytes of the weights that the ranks of a tensor-parallel group do not divide. */
uint64_t moe_forward_whole_bytes(const moe_model_t *model);

uint32_t moe_forward_blocks(const moe_forward_t *forward);          /* number of cache blocks */
const char *moe_forward_isa(const moe_forward_t *forward);          /* "avx512", "avx2", "c" */

typedef struct {
    const uint32_t *tokens;     /* [n_tokens] ids < vocabulary */
    uint32_t n_tokens;          /* >= 1 */
    uint32_t position;          /* of the first token; earlier rows are in the cache already */
    const uint32_t *blocks;     /* block of position p: blocks[p / MOE_BLOCK_TOKENS]; covers all
                                 * positions up to the last of this step */
    uint32_t n_outputs;         /* logits wanted for the last n_outputs tokens (0..n_tokens) */
} moe_batch_sequence_t;

/* The rows of the first `tokens` tokens of a block, into another one. */
typedef struct {
    uint32_t from, to, tokens;
} moe_block_copy_t;

typedef struct {
    const moe_batch_sequence_t *sequences;
    uint32_t n_sequences;
    const moe_block_copy_t *copies;     /* done first, in their order */
    uint32_t n_copies;
} moe_batch_t;

/* Runs a step, of no sequences, too.  Returns logits [sum of n_outputs, vocabulary] f32 in batch
 * order, the same on all ranks of a group; valid until the next step.  The caller keeps within the
 * options (checked by assert).  NULL with MOE_UNAVAILABLE when another rank is lost; an only rank
 * does not fail. */
const float *moe_forward_step(moe_forward_t *forward, const moe_batch_t *batch,
                              moe_error_t *error);

/* Counts of rows routed to each expert since creation: [layers, experts], dense layers zero;
 * experts = moe_forward_experts.  For statistics. */
const uint64_t *moe_forward_expert_load(const moe_forward_t *forward);
uint32_t moe_forward_experts(const moe_forward_t *forward);

/* Rows that the experts of this rank have had from all ranks since creation, [layers]; of an only
 * rank 0.  For statistics. */
const uint64_t *moe_forward_arrived(const moe_forward_t *forward);

/* How many times the experts of a layer have been placed anew, the same on all ranks. */
uint32_t moe_forward_placement(const moe_forward_t *forward);

/* What this rank has sent to others since creation.  For statistics. */
moe_exchange_bytes_t moe_forward_exchanged(const moe_forward_t *forward);

#endif
