/*
 * Models of random weights in the shape of well-known ones, as GGUF files: for measurements and
 * tests where the real weights are not at hand.  Weights are normally distributed with the
 * deviation that keeps activations in range, so that routing is balanced and nothing degenerates;
 * the tokenizer is made up (bytes, and pairs and triples of letters), in the real one's size.  Same
 * options, same bytes.
 */

#ifndef MOE_SYNTH_H
#define MOE_SYNTH_H

#include "engine/core/error.h"
#include "engine/model/format.h"

typedef struct {
    const char *shape;                  /* a name of the table in synth.c */
    uint32_t layers;                    /* 0: as many as the shape has */
    moe_dtype_t type;                   /* of the matrices; where its blocks do not fit the rows,
                                         * Q5_0 for Q4_K and Q8_0 for others, else F16 */
    unsigned threads;
    uint64_t seed;
    void (*progress)(void *context, uint64_t done, uint64_t total);     /* bytes; may be NULL */
    void *progress_context;
} moe_synth_options_t;

/* Writes the file `path`.  -1 with MOE_INVALID (no such shape, too many layers), MOE_SYSTEM or
 * MOE_LIMIT, and no file. */
int moe_synth(const moe_synth_options_t *options, const char *path, moe_error_t *error);

#endif
