/* The pre-tokenizers that files only name: tokenizer.ggml.pre of GGUF, tiktoken.model. */

#ifndef MOE_KNOWN_SPLITS_H
#define MOE_KNOWN_SPLITS_H

#include <jansson.h>

#define MOE_SPLIT_NAMES_LIMIT 6u
#define MOE_SPLITS_LIMIT 6u

typedef struct {
    const char *names[MOE_SPLIT_NAMES_LIMIT];   /* values of tokenizer.ggml.pre; up to a NULL */
    const char *splits[MOE_SPLITS_LIMIT];       /* regexes, one after another */
    int nfc;                    /* the text is normalised before */
    int whole;                  /* a piece that is a token is taken whole */
    int bos;                    /* a text begins with BOS unless add_bos_token says otherwise */
} moe_known_splits_t;

/* NULL when the name is unknown. */
const moe_known_splits_t *moe_known_splits(const char *name);

/* The "pre_tokenizer" of tokenizer.json that does the splits and then goes to the byte-level
 * alphabet, a new reference; NULL when memory ran out.  `first`, which is taken over, is its first
 * step (NULL: none). */
json_t *moe_known_splits_json(const moe_known_splits_t *splits, json_t *first,
                              int add_prefix_space);

#endif
