/*
 * What an OpenAI-compatible answer says, streamed or in one piece: text, usage, how it ended.
 */

#ifndef LOAD_ANSWER_H
#define LOAD_ANSWER_H

#include <stdint.h>

#include "engine/core/buffer.h"

#define LOAD_KIND 80u               /* bytes of an error's kind, NUL included */

typedef struct {
    int keep_text;                  /* set by the owner before load_answer_begin */
    moe_buffer_t text;              /* of choice 0, when it is kept */
    uint32_t pieces;                /* events that brought something of the answer */
    uint64_t prompt_tokens, completion_tokens;
    int has_usage;
    int done;                       /* [DONE], or a whole answer */
    char finish[32];                /* finish_reason; empty: none yet */
    char failure[LOAD_KIND];        /* kind of an error event; empty: none */

    moe_buffer_t frame;             /* an event that was parsed; empty: none to compare with */
    size_t text_at, text_size;      /* its text within it */
} load_answer_t;

void load_answer_begin(load_answer_t *answer);
void load_answer_free(load_answer_t *answer);

/* The data of one event.  Returns 1 when it brought something of the answer, 0 when not, -1 with
 * MOE_INVALID when it is no event of such an API. */
int load_answer_event(load_answer_t *answer, const char *data, size_t size, moe_error_t *error);

/* The body of an answer in one piece.  0, or -1 with MOE_INVALID. */
int load_answer_whole(load_answer_t *answer, const char *data, size_t size, moe_error_t *error);

/* Makes the kind of an error of its status and, where the body has one, its type. */
void load_answer_refused(int status, const char *body, size_t size, char kind[LOAD_KIND]);

#endif
