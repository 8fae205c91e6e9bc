/*
 * An answer taken apart while it comes: reasoning, content, calls of tools.
 *
 * Families mark these in their own ways (<think>...</think>, <tool_call>{json}</tool_call>,
 * channels ...).  A marker that the tokenizer has as an added token counts only as that token: the
 * same text spelt out in ordinary tokens is text.  Other markers are found in the text, however
 * tokens cut it.
 *
 * A call is output only when it is whole and its arguments are a JSON object; what looked like one
 * and is none is content, with its markers written out.  White space between content, reasoning
 * and calls belongs to none of them.
 */

#ifndef MOE_ANSWER_H
#define MOE_ANSWER_H

#include "engine/core/delta.h"
#include "engine/text/tokenizer.h"

/* How a model marks its answers: one per model, immutable. */
typedef struct moe_answer_format_s moe_answer_format_t;

/* Names for messages. */
#define MOE_TOOL_PARSERS                                                                           \
    "deepseek, glm, harmony, hermes, hy3, kimi, minimax, mistral, qwen3_coder or none"
#define MOE_REASONING_PARSERS "harmony, think or none"

typedef struct {
    moe_string_t chat_template;         /* its markers choose what the names leave open */
    const char *tool_parser;            /* a name, "none", or NULL */
    const char *reasoning_parser;       /* a name, "none", or NULL */
} moe_answer_settings_t;

/* NULL with MOE_INVALID (unknown name, names that exclude each other) or MOE_LIMIT. */
moe_answer_format_t *moe_answer_format_create(const moe_answer_settings_t *settings,
                                              const moe_tokenizer_t *tokenizer,
                                              moe_error_t *error);
void moe_answer_format_free(moe_answer_format_t *format);

/* What was chosen: a name or "none". */
const char *moe_answer_format_tools(const moe_answer_format_t *format);
const char *moe_answer_format_reasoning(const moe_answer_format_t *format);

/* Whether answers can be anything but content; `calls`: as below. */
int moe_answer_format_marks(const moe_answer_format_t *format, int calls);

typedef struct {
    const moe_text_t *prompt;   /* as rendered: its end tells whether reasoning has begun */
    int calls;                  /* calls are looked for */
    int one_call;               /* and all but the first are dropped */
    moe_string_t tools;         /* JSON array of the request: the types of arguments; or empty */
    uint64_t seed;              /* of the calls' ids */
} moe_answer_options_t;

typedef struct moe_answer_s moe_answer_t;

/* Keeps nothing of `options`.  NULL with MOE_INVALID (tools) or MOE_LIMIT. */
moe_answer_t *moe_answer_create(const moe_answer_format_t *format,
                                const moe_answer_options_t *options, moe_error_t *error);
void moe_answer_free(moe_answer_t *answer);

/* The marker that a token is in this answer, or -1.  moe_answer_mark puts it into the text that is
 * pushed, in place of the token's own, in two bytes that no UTF-8 text contains. */
int moe_answer_marker(const moe_answer_t *answer, uint32_t id);
int moe_answer_mark(moe_buffer_t *text, int marker, moe_error_t *error);

/* Feeds valid UTF-8 (cut anywhere) with marks in it; adds to `out` what is certain.  -1 with
 * MOE_LIMIT. */
int moe_answer_push(moe_answer_t *answer, const char *text, size_t size, moe_deltas_t *out,
                    moe_error_t *error);

/* The answer is over: adds what is left. */
int moe_answer_finish(moe_answer_t *answer, moe_deltas_t *out, moe_error_t *error);

/* Whether what comes next is reasoning. */
int moe_answer_reasons(const moe_answer_t *answer);

#endif
