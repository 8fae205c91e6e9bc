/* A made-up tokenizer and chat template for a GGUF file: bytes, pairs and triples of letters. */

#ifndef MOE_SYNTH_TEXT_H
#define MOE_SYNTH_TEXT_H

#include "engine/model/gguf_write.h"

#define MOE_SYNTH_NO_TOKEN UINT32_MAX

typedef struct {
    const char *pre;                    /* tokenizer.ggml.pre */
    uint32_t vocabulary;
    uint32_t bos, eos;                  /* ids; bos may be MOE_SYNTH_NO_TOKEN */
} moe_synth_text_t;

/* Writes the metadata.  -1 with MOE_LIMIT. */
int moe_synth_text_write(const moe_synth_text_t *text, moe_gguf_writer_t *writer,
                         moe_error_t *error);

#endif
