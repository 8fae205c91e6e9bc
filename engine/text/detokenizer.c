/*
 * The only state is the tail: at most three bytes that are a valid beginning of a character.  A
 * byte that does not continue it makes the tail a maximal invalid part, and is looked at afresh;
 * so what comes out depends on the bytes only, not on how tokens cut them.
 */

#include "engine/text/detokenizer.h"

#include <string.h>

#include "engine/text/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"


void moe_detokenizer_init(moe_detokenizer_t *detokenizer, const moe_tokenizer_t *tokenizer,
                          int keep_special)
{
    memset(detokenizer, 0, sizeof(*detokenizer));
    detokenizer->tokenizer = tokenizer;
    detokenizer->keep_special = keep_special;
    detokenizer->started = !moe_tokenizer_strips_space(tokenizer);
}


/* Feeds one byte to a tail that is not empty; *used tells whether the byte became part of it. */
static int push_byte(moe_detokenizer_t *detokenizer, char byte, int *used, moe_buffer_t *out,
                     moe_error_t *error)
{
    char *tail = detokenizer->tail;
    size_t n, size = detokenizer->n_tail;
    moe_utf8_kind_t kind;

    tail[size] = byte;
    kind = moe_utf8_classify(tail, size + 1, &n);
    *used = kind != MOE_UTF8_INVALID;
    if (kind == MOE_UTF8_INCOMPLETE) {
        detokenizer->n_tail++;
        return 0;
    }
    detokenizer->n_tail = 0;
    return kind == MOE_UTF8_VALID ? moe_buffer_append(out, tail, size + 1, error)
                                  : moe_buffer_append(out, REPLACEMENT, 3, error);
}


static int push_bytes(moe_detokenizer_t *detokenizer, const char *data, size_t size,
                      moe_buffer_t *out, moe_error_t *error)
{
    size_t i = 0, length;
    int used;

    while (i < size) {
        if (detokenizer->n_tail > 0) {
            if (push_byte(detokenizer, data[i], &used, out, error) != 0) {
                return -1;
            }
            i += (size_t) used;
            continue;
        }
        length = moe_utf8_valid_prefix(data + i, size - i);
        if (moe_buffer_append(out, data + i, length, error) != 0) {
            return -1;
        }
        i += length;
        if (i == size) {
            break;
        }
        if (moe_utf8_classify(data + i, size - i, &length) == MOE_UTF8_INCOMPLETE) {
            memcpy(detokenizer->tail, data + i, length);
            detokenizer->n_tail = (unsigned) length;
        } else if (moe_buffer_append(out, REPLACEMENT, 3, error) != 0) {
            return -1;
        }
        i += length;
    }
    return 0;
}


int moe_detokenizer_push(moe_detokenizer_t *detokenizer, uint32_t id, moe_buffer_t *out,
                         moe_error_t *error)
{
    size_t size;
    const char *piece = moe_tokenizer_piece(detokenizer->tokenizer, id, &size);

    if (piece == NULL || size == 0
        || (!detokenizer->keep_special && moe_tokenizer_is_special(detokenizer->tokenizer, id)))
    {
        return 0;
    }
    if (!detokenizer->started) {
        detokenizer->started = 1;
        if (piece[0] == ' ') {
            piece++;
            size--;
        }
    }
    return push_bytes(detokenizer, piece, size, out, error);
}


int moe_detokenizer_finish(moe_detokenizer_t *detokenizer, moe_buffer_t *out, moe_error_t *error)
{
    if (detokenizer->n_tail == 0) {
        return 0;
    }
    detokenizer->n_tail = 0;
    return moe_buffer_append(out, REPLACEMENT, 3, error);
}
