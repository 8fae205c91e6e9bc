/*
 * Chat templates: an evaluator for the part of Jinja that models' templates use (statements,
 * expressions, filters, tests, methods; no inheritance, no imports), with Hugging Face's settings
 * (trim_blocks, lstrip_blocks, its own tojson).
 *
 * Templates and their variables are untrusted: steps, depth, memory and output are bounded.
 * A parsed template is immutable and may be rendered by many threads at once.
 */

#ifndef MOE_TEMPLATE_H
#define MOE_TEMPLATE_H

#include <jansson.h>

#include "engine/text/text.h"

typedef struct moe_template_s moe_template_t;

/* NULL with MOE_BAD_MODEL and the line at fault. */
moe_template_t *moe_template_parse(const char *source, size_t size, moe_error_t *error);
void moe_template_free(moe_template_t *template);

/* What it was parsed from; owned by the template. */
const char *moe_template_source(const moe_template_t *template, size_t *size);

/* 1 when a name or a string literal of the template is this word; `member`: names that are no
 * attribute do not count. */
int moe_template_mentions(const moe_template_t *template, const char *word, int member);

typedef struct {
    size_t steps;           /* evaluated nodes */
    size_t memory;          /* bytes of values alive during a render */
    size_t output;          /* bytes of text */
    unsigned depth;         /* nesting of expressions, loops, macro calls */
} moe_template_limits_t;

extern const moe_template_limits_t moe_template_default_limits;

/*
 * Renders into `out` (appended).  `variables`: object; strings of it are untrusted text.
 * `trusted`: object of names whose strings may become special tokens (bos_token, eos_token, ...);
 * may be NULL.  Neither is modified.  Literal text and literal strings of the template are trusted.
 * `trusted_fields` (or NULL): object of key -> array of words; a string of `variables` found under
 * such a key that equals one of the words is trusted, for templates that make a marker out of it
 * ("<|" + message.role + "|>").
 * On failure `out` holds what was rendered until then.
 * strftime_now uses `now` (seconds since the epoch, UTC).
 *
 * -1 with MOE_INVALID: raise_exception or a type error (the request does not fit the template);
 * MOE_LIMIT: a limit was reached.
 */
int moe_template_render(const moe_template_t *template, const json_t *variables,
                        const json_t *trusted, const json_t *trusted_fields, int64_t now,
                        const moe_template_limits_t *limits, moe_text_t *out, moe_error_t *error);

#endif
