/* Normalisers of tokenizer.json: rewrite a text before it is cut into pieces. */

#ifndef MOE_NORMALIZER_H
#define MOE_NORMALIZER_H

#include "engine/core/json.h"
#include "engine/text/regex.h"
#include "engine/text/text.h"

typedef struct moe_normalizer_s moe_normalizer_t;       /* immutable */

/* `json`: the value of "normalizer"; null or NULL changes nothing.  NULL with MOE_BAD_MODEL. */
moe_normalizer_t *moe_normalizer_create(const json_t *json, moe_error_t *error);
void moe_normalizer_free(moe_normalizer_t *normalizer);

/* Appends the bytes [start, end) of `text` (valid UTF-8) to `out` in normal form.  What comes from
 * trusted bytes only is trusted.  -1 with MOE_LIMIT. */
int moe_normalizer_apply(const moe_normalizer_t *normalizer, moe_matcher_t *matcher,
                         const moe_text_t *text, size_t start, size_t end, moe_text_t *out,
                         moe_error_t *error);

#endif
