/* A token's text is a function of its rank among those that have one, and so are its merges. */

#include "engine/model/synth_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* Tokens but BOS and EOS, in the order of their ids: bytes, then what pairs of tokens merge to. */
static unsigned make_text(uint32_t index, char text[16], char merge[16])
{
    static const char letters[] = "\xc4\xa0" "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST";
    const uint32_t n = 47;      /* a blank (as the byte-level alphabet has it), 46 letters */
    uint32_t parts[3], n_parts = index < 256 ? 1 : index < 256 + n * n ? 2 : 3;
    unsigned size = 0, merge_size = 0;

    merge[0] = '\0';
    if (n_parts == 1) {
        uint32_t code = index > 0x20 && index < 0x7f ? index
                        : index >= 0xa1 && index != 0xad ? index
                        : 0x100 + (index <= 0x20 ? index : index <= 0xa0 ? index - 0x5e : 0x43);

        size = (unsigned) snprintf(text, 16, code < 0x80 ? "%c" : "%c%c",
                                   (int) (code < 0x80 ? code : 0xc0 | code >> 6),
                                   (int) (0x80 | (code & 0x3f)));
        return size;
    }
    index -= n_parts == 2 ? 256 : 256 + n * n;
    for (uint32_t i = n_parts; i-- > 0; index /= n) {
        parts[i] = index % n;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        const char *letter = parts[i] == 0 ? letters : letters + 1 + parts[i];
        const int bytes = parts[i] == 0 ? 2 : 1;

        size += (unsigned) snprintf(text + size, 16 - size, "%.*s", bytes, letter);
        merge_size += (unsigned) snprintf(merge + merge_size, 16 - merge_size, "%s%.*s",
                                          i + 1 == n_parts ? " " : "", bytes, letter);
    }
    return size;
}


/* Tokens and their types: control for BOS and EOS, then the `n` that have a text, unused ones. */
static int write_tokens(const moe_synth_text_t *text, uint32_t n, moe_gguf_writer_t *writer,
                        moe_error_t *error)
{
    int32_t *types = calloc(text->vocabulary, sizeof(*types));
    char token[32], merge[16];
    uint32_t next = 0;

    if (types == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", text->vocabulary);
    }
    moe_gguf_write_strings(writer, "tokenizer.ggml.tokens", text->vocabulary);
    for (uint32_t id = 0; id < text->vocabulary; id++) {
        unsigned size;

        if (id == text->bos || id == text->eos) {
            types[id] = 3;              /* control */
            size = (unsigned) snprintf(token, sizeof(token), "<|%s|>",
                                       id == text->bos ? "begin" : "end");
        } else if (next < n) {
            types[id] = 1;              /* normal */
            size = make_text(next++, token, merge);
        } else {
            types[id] = 5;              /* unused */
            size = (unsigned) snprintf(token, sizeof(token), "[PAD%u]", id);
        }
        moe_gguf_write_text(writer, token, size);
    }
    moe_gguf_write_ints(writer, "tokenizer.ggml.token_type", types, text->vocabulary);
    free(types);
    return 0;
}


int moe_synth_text_write(const moe_synth_text_t *text, moe_gguf_writer_t *writer,
                         moe_error_t *error)
{
    const int has_bos = text->bos != MOE_SYNTH_NO_TOKEN;
    const uint32_t most = 256 + 47 * 47 + 47 * 47 * 47, room = text->vocabulary - 1 - has_bos;
    const uint32_t n = room < most ? room : most;
    char token[32], merge[16];

    moe_gguf_write_string(writer, "tokenizer.ggml.model", "gpt2");
    moe_gguf_write_string(writer, "tokenizer.ggml.pre", text->pre);
    if (write_tokens(text, n, writer, error) != 0) {
        return -1;
    }
    moe_gguf_write_strings(writer, "tokenizer.ggml.merges", n - 256);
    for (uint32_t i = 256; i < n; i++) {
        make_text(i, token, merge);
        moe_gguf_write_text(writer, merge, strlen(merge));
    }
    if (has_bos) {
        moe_gguf_write_uint(writer, "tokenizer.ggml.bos_token_id", text->bos);
    }
    moe_gguf_write_uint(writer, "tokenizer.ggml.eos_token_id", text->eos);
    moe_gguf_write_bool(writer, "tokenizer.ggml.add_bos_token", has_bos);
    moe_gguf_write_string(writer, "tokenizer.chat_template",
                          "{% if bos_token %}{{ bos_token }}{% endif %}"
                          "{% for message in messages %}{{ message['role'] }}: "
                          "{{ message['content'] }}\n{% endfor %}assistant:");
    return 0;
}
