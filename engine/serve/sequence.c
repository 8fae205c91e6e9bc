/*
 * What ends a sequence, in the order in which it is looked at after each token:
 *
 *   an EOS of the model     STOP; counted and reported as an id, its text is not output
 *   a stop id               STOP; the same
 *   a stop string           STOP; the text ends before it (or after it, with INCLUDE_STOP)
 *   max_tokens              LENGTH; text held back for a stop string or an unfinished character
 *                           is released
 *
 * These look at the answer as the model writes it; only then is it taken apart into reasoning,
 * content and calls (text/answer.h).
 *
 * As in vLLM, INCLUDE_STOP also outputs the text of the EOS or stop id (special tokens have none
 * unless KEEP_SPECIAL), and neither ids nor strings end a sequence before min_tokens.
 *
 * A resumed sequence accepts the ids it is given as if it had drawn them, and drops what that puts
 * out: counts, held-back text and position are then what they were, and the next draw depends on
 * nothing else.
 */

#include "engine/serve/sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/prompt.h"


void moe_sequence_queue_push(moe_sequence_queue_t *queue, moe_sequence_t *sequence)
{
    sequence->queue_next = NULL;
    *(queue->last ? &queue->last->queue_next : &queue->first) = sequence;
    queue->last = sequence;
}


moe_sequence_t *moe_sequence_queue_pop(moe_sequence_queue_t *queue)
{
    moe_sequence_t *sequence = queue->first;

    if (sequence) {
        queue->first = sequence->queue_next;
        if (queue->first == NULL) {
            queue->last = NULL;
        }
        sequence->queue_next = NULL;
    }
    return sequence;
}


moe_sequence_t *moe_sequence_create(moe_request_t *request, void *client, uint64_t id,
                                    uint32_t credit, uint64_t now_ns, moe_error_t *error)
{
    moe_sequence_t *sequence = calloc(1, sizeof(*sequence));

    if (sequence == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a sequence");
        return NULL;
    }
    sequence->request = request;
    sequence->client = client;
    sequence->id = id;
    sequence->credit = credit;
    sequence->arrival_ns = now_ns;
    sequence->stop_index = -1;
    sequence->stop_id = -1;
    return sequence;
}


void moe_sequence_free(moe_sequence_t *sequence)
{
    if (sequence == NULL) {
        return;
    }
    moe_block_table_free(&sequence->task.table);
    moe_chain_free(&sequence->task.chain);
    moe_sampling_free(&sequence->sampling);
    moe_stop_free(sequence->stop);
    moe_answer_free(sequence->answer);
    moe_buffer_free(&sequence->piece);
    moe_buffer_free(&sequence->text);
    moe_deltas_free(&sequence->deltas);
    moe_buffer_free(&sequence->rendered);
    free(sequence->prompt_logprobs);
    free(sequence->tokens);
    free(sequence->request);
    free(sequence);
}


static void set_text(const moe_sequence_t *sequence, moe_candidate_t *candidate)
{
    size_t size = 0;

    candidate->text.data = moe_tokenizer_piece(sequence->lexicon->tokenizer, candidate->id, &size);
    candidate->text.size = candidate->text.data ? (uint32_t) size : 0;
}


/* The first token of a prompt has no probability. */
static void begin_prompt_logprobs(moe_sequence_t *sequence)
{
    moe_logprob_t *first = &sequence->prompt_logprobs[0];

    first->token = (moe_candidate_t) { .id = sequence->tokens[0], .logprob = NAN };
    set_text(sequence, &first->token);
    first->n_top = 0;
    sequence->n_prompt_logprobs = 1;
}


static void aim(moe_sequence_t *sequence)
{
    if (sequence->prompt_logprobs && sequence->n_prompt_logprobs < sequence->n_prompt) {
        sequence->task.outputs_from = sequence->n_prompt_logprobs - 1;
    } else {
        sequence->task.outputs_from = sequence->task.n_tokens - 1;
    }
}


static int allocate(moe_sequence_t *sequence, moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    size_t tokens = (size_t) sequence->n_prompt + sequence->max_tokens;

    sequence->tokens = malloc((tokens + 1) * sizeof(uint32_t));
    if (sequence->tokens == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %zu tokens", tokens);
    }
    if (request->prompt_logprobs >= 0 && request->n_resume_ids == 0) {
        sequence->prompt_logprobs = malloc(sequence->n_prompt * sizeof(moe_logprob_t));
        if (sequence->prompt_logprobs == NULL) {
            return moe_fail(error, MOE_LIMIT, "out of memory for %u log-probabilities",
                            sequence->n_prompt);
        }
    }
    if (request->n_stops > 0) {
        sequence->stop = moe_stop_create(request->stops, request->n_stops,
                                         (request->flags & MOE_REQUEST_INCLUDE_STOP) != 0, error);
        if (sequence->stop == NULL) {
            return -1;
        }
    }
    if (sequence->lexicon->prefix_key
        && moe_chain_init(&sequence->task.chain, sequence->lexicon->prefix_key, request->salt,
                          (uint32_t) tokens, error) != 0)
    {
        return -1;
    }
    return moe_buffer_reserve(&sequence->piece, 256, error)
           || moe_buffer_reserve(&sequence->text, 256, error)
           || moe_deltas_reserve(&sequence->deltas, 256, error)
           || moe_block_table_init(&sequence->task.table, (uint32_t) tokens, error) ? -1 : 0;
}


static void record(const moe_sequence_t *sequence, const moe_sampler_t *sampler,
                   const float *logits, uint32_t id, int32_t n_top, moe_logprob_t *logprob)
{
    moe_sampler_logprobs(sampler, logits, id, (uint32_t) n_top, logprob);
    set_text(sequence, &logprob->token);
    for (uint32_t i = 0; i < logprob->n_top; i++) {
        set_text(sequence, &logprob->top[i]);
    }
}


/* Moves the piece through the stop matcher into the text. */
static int release(moe_sequence_t *sequence, moe_error_t *error)
{
    const moe_buffer_t *piece = &sequence->piece;
    int index;

    if (sequence->stop == NULL || sequence->generated <= sequence->request->min_tokens) {
        return moe_buffer_append(&sequence->text, piece->data, piece->size, error);
    }
    index = moe_stop_push(sequence->stop, piece->data, piece->size, &sequence->text, error);
    if (index >= 0) {
        sequence->stop_index = index;
        sequence->finish = MOE_FINISH_STOP;
    }
    return index == -2 ? -1 : 0;
}


/* The generation is over without a stop string: nothing stays held back.  A match that only waited
 * for a longer one counts after all. */
static int release_rest(moe_sequence_t *sequence, moe_error_t *error)
{
    int index;

    sequence->piece.size = 0;
    if (moe_detokenizer_finish(&sequence->detokenizer, &sequence->piece, error) != 0
        || release(sequence, error) != 0)
    {
        return -1;
    }
    if (sequence->stop == NULL || sequence->stop_index >= 0) {
        return 0;
    }
    if (moe_stop_finish(sequence->stop, &sequence->text, error) != 0) {
        return -1;
    }
    index = moe_stop_matched(sequence->stop);
    if (index >= 0) {
        sequence->stop_index = index;
        sequence->finish = MOE_FINISH_STOP;
    }
    return 0;
}


static int contains(const uint32_t *ids, uint32_t n_ids, uint32_t id)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        if (ids[i] == id) {
            return 1;
        }
    }
    return 0;
}


/* Decides by the id alone. */
static void look_at_id(moe_sequence_t *sequence, uint32_t id)
{
    const moe_sampling_params_t *params = &sequence->sampling.params;

    if (contains(params->end_ids, params->n_end_ids, id)) {
        sequence->finish = MOE_FINISH_STOP;
    } else if (contains(params->stop_ids, params->n_stop_ids, id)) {
        sequence->finish = MOE_FINISH_STOP;
        sequence->stop_id = id;
    }
}


/* What token `id`, whose text is not wanted when it ended the sequence, adds to the answer. */
static int add_token(moe_sequence_t *sequence, uint32_t id, int wanted, moe_error_t *error)
{
    int marker = sequence->answer != NULL ? moe_answer_marker(sequence->answer, id) : -1;
    int rc;

    if (marker == -1 && !wanted) {
        return 0;
    }
    sequence->piece.size = 0;
    if (marker == -1) {
        rc = moe_detokenizer_push(&sequence->detokenizer, id, &sequence->piece, error);
    } else {
        rc = moe_detokenizer_finish(&sequence->detokenizer, &sequence->piece, error) != 0
             || moe_answer_mark(&sequence->piece, marker, error) != 0;
    }
    return rc == 0 ? release(sequence, error) : -1;
}


/* Takes apart what was released. */
static int interpret(moe_sequence_t *sequence, moe_error_t *error)
{
    const moe_buffer_t *text = &sequence->text;
    moe_answer_t *answer = sequence->answer;
    int reasoned, rc;

    if (answer == NULL) {
        return moe_deltas_add(&sequence->deltas, MOE_DELTA_CONTENT, text->data, text->size, error);
    }
    reasoned = moe_answer_reasons(answer);
    rc = moe_answer_push(answer, text->data, text->size, &sequence->deltas, error);
    sequence->reasoning_tokens += reasoned || moe_answer_reasons(answer);
    if (rc == 0 && sequence->finish) {
        rc = moe_answer_finish(answer, &sequence->deltas, error);
    }
    return rc;
}


static int accept(moe_sequence_t *sequence, uint32_t id, moe_error_t *error)
{
    int wanted;

    sequence->text.size = 0;
    moe_deltas_clear(&sequence->deltas);
    sequence->tokens[sequence->task.n_tokens++] = id;
    sequence->generated++;
    sequence->n_new = 1;
    moe_sampling_note(&sequence->sampling, id);
    look_at_id(sequence, id);
    wanted = !sequence->finish || (sequence->request->flags & MOE_REQUEST_INCLUDE_STOP);
    if (add_token(sequence, id, wanted, error) != 0) {
        return -1;
    }
    if (!sequence->finish && sequence->generated == sequence->max_tokens) {
        sequence->finish = MOE_FINISH_LENGTH;
    }
    if (sequence->finish && sequence->stop_index < 0 && release_rest(sequence, error) != 0) {
        return -1;
    }
    return interpret(sequence, error);
}


/* Takes up where an engine that is gone stopped. */
static int replay(moe_sequence_t *sequence, moe_error_t *error)
{
    const moe_request_t *request = sequence->request;
    const moe_lexicon_t *lexicon = sequence->lexicon;

    for (uint32_t i = 0; i < request->n_resume_ids; i++) {
        uint32_t id = request->resume_ids[i];

        if (id >= lexicon->model->vocabulary || !lexicon->usable[id]) {
            return moe_fail(error, MOE_INVALID, "token %u to resume behind, %u, is not in the"
                            " vocabulary", i, id);
        }
        if (sequence->finish || i == sequence->max_tokens) {
            return moe_fail(error, MOE_INVALID, "%u tokens to resume behind, but the answer ends"
                            " after %u", request->n_resume_ids, i);
        }
        if (accept(sequence, id, error) != 0) {
            return -1;
        }
    }
    return 0;
}


int moe_sequence_prepare(moe_sequence_t *sequence, const moe_lexicon_t *lexicon,
                         const char **field, moe_error_t *error)
{
    moe_sampling_params_t params;
    moe_ids_t ids = { .count = 0 };
    int rc;

    *field = NULL;
    sequence->lexicon = lexicon;
    rc = moe_prompt_sampling(sequence, &params, field, error) != 0
         || moe_prompt_encode(sequence, &ids, field, error) != 0
         || moe_prompt_measure(sequence, ids.count, &sequence->max_tokens, field, error) != 0;
    if (rc == 0) {
        sequence->n_prompt = (uint32_t) ids.count;
        rc = allocate(sequence, error) != 0
             || moe_sampling_init(&sequence->sampling, &params, ids.ids, sequence->n_prompt,
                                  sequence->max_tokens, error) != 0;
    }
    if (rc == 0) {
        memcpy(sequence->tokens, ids.ids, ids.count * sizeof(uint32_t));
        sequence->task.tokens = sequence->tokens;
        sequence->task.n_tokens = sequence->n_prompt;
        sequence->task.priority = sequence->request->priority;
        moe_detokenizer_init(&sequence->detokenizer, lexicon->tokenizer,
                             (sequence->request->flags & MOE_REQUEST_KEEP_SPECIAL) != 0);
        if (sequence->prompt_logprobs) {
            begin_prompt_logprobs(sequence);
        }
        rc = replay(sequence, error);
        moe_chain_extend(&sequence->task.chain, sequence->tokens, sequence->task.n_tokens);
        aim(sequence);
    }
    moe_ids_free(&ids);
    return rc ? -1 : 0;
}


/* Logits of row r say how likely token r + 1 was. */
static uint32_t take_prompt_rows(moe_sequence_t *sequence, const moe_sampler_t *sampler,
                                 const float *logits)
{
    uint32_t vocabulary = sequence->lexicon->model->vocabulary, taken = 0;
    uint32_t row = sequence->task.computed - sequence->task.step_outputs;

    while (taken < sequence->task.step_outputs && row + 1 < sequence->n_prompt) {
        uint32_t at = sequence->n_prompt_logprobs++;

        record(sequence, sampler, logits + (size_t) taken * vocabulary, sequence->tokens[at],
               sequence->request->prompt_logprobs, &sequence->prompt_logprobs[at]);
        row++;
        taken++;
    }
    return taken;
}


int moe_sequence_advance(moe_sequence_t *sequence, moe_sampler_t *sampler, const float *logits,
                         uint64_t now_ns, moe_error_t *error)
{
    moe_task_t *task = &sequence->task;
    uint32_t taken, id;

    taken = take_prompt_rows(sequence, sampler, logits);
    sequence->n_new = 0;
    moe_deltas_clear(&sequence->deltas);
    if (taken == task->step_outputs) {
        aim(sequence);
        return 0;
    }
    if (sequence->first_token_ns == 0) {
        sequence->first_token_ns = now_ns;
    }
    if (sequence->max_tokens == 0) {
        sequence->finish = MOE_FINISH_LENGTH;
        return 1;
    }
    logits += (size_t) taken * sequence->lexicon->model->vocabulary;
    id = moe_sampler_draw(sampler, &sequence->sampling, logits, task->n_tokens);
    if (sequence->request->logprobs >= 0) {
        record(sequence, sampler, logits, id, sequence->request->logprobs, &sequence->logprob);
    }
    sequence->last_token_ns = now_ns;
    if (accept(sequence, id, error) != 0) {
        return -1;
    }
    aim(sequence);
    return 1;
}


uint32_t moe_sequence_cached(const moe_sequence_t *sequence)
{
    /* What was found for a resumed sequence may reach into its answer. */
    return sequence->task.cached < sequence->n_prompt ? sequence->task.cached : sequence->n_prompt;
}


uint32_t moe_sequence_last_id(const moe_sequence_t *sequence)
{
    return sequence->tokens[sequence->task.n_tokens - 1];
}
