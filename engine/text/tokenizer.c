/*
 * Encoding goes through the stages of tokenizer.json in Hugging Face's order:
 *
 *     text -> added tokens -> normaliser -> normalised added tokens -> pre-tokeniser -> model
 *
 * Each stage works on the stretches between the tokens that an earlier one has found.  Provenance
 * travels with the text as far as the second search for added tokens, the last place where text
 * can become a special token.
 *
 * Everything is built when loading; an encoding has its scratch memory to itself.
 */

#include "engine/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/core/json.h"
#include "engine/text/added_tokens.h"
#include "engine/text/decoder.h"
#include "engine/text/normalizer.h"
#include "engine/text/pretokenizer.h"

#define PIECES_LIMIT ((size_t) 1 << 30)         /* bytes of all pieces of a vocabulary */
#define TEMPLATE_IDS_LIMIT 64u
#define NESTING_LIMIT 8u

typedef struct {
    size_t offset;              /* into piece_bytes */
    uint32_t size;
    unsigned char used, special;
} piece_t;

struct moe_tokenizer_s {
    moe_normalizer_t *normalizer;
    moe_pretokenizer_t *pretokenizer;
    moe_token_model_t *model;
    moe_vocab_t added;          /* may be in the model's vocabulary too, with the same ids */
    moe_added_tokens_t *raw, *normalized;       /* searched before, after the normaliser */
    moe_ids_t prefix, suffix;   /* what the post-processor puts around a text */
    piece_t *pieces;            /* by id; n_pieces of them */
    uint32_t n_pieces;
    moe_buffer_t piece_bytes;
    int strips_space;
};

/* One call of moe_tokenizer_encode. */
typedef struct {
    const moe_tokenizer_t *tokenizer;
    moe_matcher_t *matcher;
    moe_token_scratch_t scratch;
    moe_pieces_t pieces[2];
    moe_text_t normalized;
    moe_ids_t *ids;
    size_t limit;
    moe_error_t *error;
} encoder_t;


static int check_limit(const encoder_t *encoder)
{
    if (encoder->limit != 0 && encoder->ids->count > encoder->limit) {
        return moe_fail(encoder->error, MOE_TOO_LONG, "text is longer than %zu tokens",
                        encoder->limit);
    }
    return 0;
}


static int append_id(encoder_t *encoder, uint32_t id)
{
    return moe_ids_append(encoder->ids, id, encoder->error) == 0 ? check_limit(encoder) : -1;
}


static int append_ids(encoder_t *encoder, const moe_ids_t *ids)
{
    for (size_t i = 0; i < ids->count; i++) {
        if (append_id(encoder, ids->ids[i]) != 0) {
            return -1;
        }
    }
    return 0;
}


/* Text without added tokens.  `first`: the whole input starts here. */
static int encode_plain(encoder_t *encoder, const char *text, size_t size, int first)
{
    const moe_tokenizer_t *tokenizer = encoder->tokenizer;
    const moe_pieces_t *pieces;
    size_t start = 0;

    pieces = moe_pretokenizer_split(tokenizer->pretokenizer, encoder->matcher, text, size, first,
                                    encoder->pieces, encoder->error);
    if (pieces == NULL) {
        return -1;
    }
    for (size_t i = 0; i < pieces->count; i++) {
        if (moe_token_model_encode(tokenizer->model, &encoder->scratch, pieces->text.data + start,
                                   pieces->ends[i] - start, encoder->ids, encoder->error) != 0
            || check_limit(encoder) != 0)
        {
            return -1;
        }
        start = pieces->ends[i];
    }
    return 0;
}


/* Calls `plain` for the stretches of text[begin, end) between the added tokens of `set`. */
static int encode_between(encoder_t *encoder, const moe_added_tokens_t *set,
                          const moe_text_t *text, size_t begin, size_t end, int first,
                          int (*plain)(encoder_t *encoder, const moe_text_t *text, size_t start,
                                       size_t end, int first))
{
    size_t from = begin;

    while (from < end) {
        moe_span_t range = { end, end };
        const moe_added_token_t *token = moe_added_tokens_find(set, text, begin, from, end,
                                                               &range);

        if ((range.start > from && plain(encoder, text, from, range.start,
                                         first && from == begin) != 0)
            || (token != NULL && append_id(encoder, token->id) != 0))
        {
            return -1;
        }
        from = range.end;
    }
    return 0;
}


static int encode_normalized(encoder_t *encoder, const moe_text_t *text, size_t start, size_t end,
                             int first)
{
    return encode_plain(encoder, text->bytes.data + start, end - start, first);
}


static int encode_raw(encoder_t *encoder, const moe_text_t *text, size_t start, size_t end,
                      int first)
{
    moe_text_t *normalized = &encoder->normalized;

    moe_text_clear(normalized);
    if (moe_normalizer_apply(encoder->tokenizer->normalizer, encoder->matcher, text, start, end,
                             normalized, encoder->error) != 0)
    {
        return -1;
    }
    return encode_between(encoder, encoder->tokenizer->normalized, normalized, 0,
                          normalized->bytes.size, first, encode_normalized);
}


static int encode(encoder_t *encoder, const moe_text_t *text, unsigned flags)
{
    const moe_tokenizer_t *tokenizer = encoder->tokenizer;

    if ((flags & MOE_ENCODE_POST_PROCESS) && append_ids(encoder, &tokenizer->prefix) != 0) {
        return -1;
    }
    if (encode_between(encoder, tokenizer->raw, text, 0, text->bytes.size, 1, encode_raw) != 0) {
        return -1;
    }
    return flags & MOE_ENCODE_POST_PROCESS ? append_ids(encoder, &tokenizer->suffix) : 0;
}


int moe_tokenizer_encode(const moe_tokenizer_t *tokenizer, const moe_text_t *text, unsigned flags,
                         size_t limit, moe_ids_t *ids, moe_error_t *error)
{
    encoder_t encoder = {
        .tokenizer = tokenizer, .ids = ids, .limit = limit, .error = error
    };
    size_t valid = moe_utf8_valid_prefix(text->bytes.data, text->bytes.size);
    int rc = -1;

    if (valid != text->bytes.size) {
        return moe_fail(error, MOE_INVALID, "text is not valid UTF-8 at byte %zu", valid);
    }
    encoder.matcher = moe_matcher_create(error);
    if (moe_token_scratch_init(&encoder.scratch, tokenizer->model, error) == 0
        && encoder.matcher != NULL)
    {
        rc = encode(&encoder, text, flags);
    }
    moe_matcher_free(encoder.matcher);
    moe_token_scratch_free(&encoder.scratch);
    moe_pieces_free(&encoder.pieces[0]);
    moe_pieces_free(&encoder.pieces[1]);
    moe_text_free(&encoder.normalized);
    return rc;
}


const char *moe_tokenizer_kind(const moe_tokenizer_t *tokenizer)
{
    return tokenizer->model->unigram != NULL ? "Unigram" : "BPE";
}


uint32_t moe_tokenizer_size(const moe_tokenizer_t *tokenizer)
{
    return tokenizer->n_pieces;
}


const char *moe_tokenizer_piece(const moe_tokenizer_t *tokenizer, uint32_t id, size_t *size)
{
    if (id >= tokenizer->n_pieces || !tokenizer->pieces[id].used) {
        return NULL;
    }
    *size = tokenizer->pieces[id].size;
    return tokenizer->piece_bytes.data + tokenizer->pieces[id].offset;
}


int moe_tokenizer_is_special(const moe_tokenizer_t *tokenizer, uint32_t id)
{
    return id < tokenizer->n_pieces && tokenizer->pieces[id].special;
}


uint32_t moe_tokenizer_added(const moe_tokenizer_t *tokenizer, const char *text, size_t size)
{
    return moe_vocab_find(&tokenizer->added, text, size);
}


int moe_tokenizer_strips_space(const moe_tokenizer_t *tokenizer)
{
    return tokenizer->strips_space;
}


/* Makes the table of decoded bytes. */
static int fill_pieces(moe_tokenizer_t *tokenizer, const moe_decoder_t *decoder,
                       moe_matcher_t *matcher, moe_error_t *error)
{
    const moe_vocab_t *vocab = &tokenizer->model->vocab;
    moe_buffer_t piece = { 0 };
    int rc = 0;

    tokenizer->piece_bytes.limit = PIECES_LIMIT;
    for (uint32_t id = 0; rc == 0 && id < tokenizer->n_pieces; id++) {
        piece_t *entry = &tokenizer->pieces[id];
        const moe_token_t *token;

        if (id < vocab->n_ids && vocab->tokens[id].text != NULL) {
            token = &vocab->tokens[id];
        } else if (id < tokenizer->added.n_ids && tokenizer->added.tokens[id].text != NULL) {
            token = &tokenizer->added.tokens[id];
        } else {
            continue;
        }
        piece.size = 0;
        if (moe_buffer_append(&piece, token->text, token->size, error) != 0
            || moe_decoder_apply(decoder, matcher, token == &tokenizer->added.tokens[id], &piece,
                                 error) != 0
            || moe_buffer_append(&tokenizer->piece_bytes, piece.data, piece.size, error) != 0)
        {
            rc = -1;
        }
        entry->used = 1;
        entry->size = (uint32_t) piece.size;
        entry->offset = tokenizer->piece_bytes.size - piece.size;
    }
    moe_buffer_free(&piece);
    return rc;
}


static int read_decoder(moe_tokenizer_t *tokenizer, const json_t *json, moe_error_t *error)
{
    moe_decoder_t *decoder = moe_decoder_create(json_object_get(json, "decoder"), error);
    moe_matcher_t *matcher = NULL;
    int rc = -1;

    if (decoder != NULL) {
        tokenizer->strips_space = moe_decoder_strips_space(decoder);
        matcher = moe_matcher_create(error);
    }
    if (matcher != NULL) {
        rc = fill_pieces(tokenizer, decoder, matcher, error);
    }
    moe_matcher_free(matcher);
    moe_decoder_free(decoder);
    return rc == 0 ? 0 : moe_fail_in(error, "decoder");
}


/* Makes a token findable: in raw text as it is written, in normalised text in normal form. */
static int add_searched(moe_tokenizer_t *tokenizer, moe_matcher_t *matcher, const char *content,
                        size_t size, const moe_added_token_t *token, int normalized,
                        moe_error_t *error)
{
    moe_text_t text = { 0 }, normal = { 0 };
    int rc = -1;

    if (!normalized) {
        return moe_added_tokens_add(tokenizer->raw, content, size, token, error);
    }
    if (moe_text_append(&text, content, size, 1, error) == 0
        && moe_normalizer_apply(tokenizer->normalizer, matcher, &text, 0, size, &normal, error)
           == 0)
    {
        rc = moe_added_tokens_add(tokenizer->normalized, normal.bytes.data, normal.bytes.size,
                                  token, error);
    }
    moe_text_free(&text);
    moe_text_free(&normal);
    return rc;
}


static int read_added_token(moe_tokenizer_t *tokenizer, moe_matcher_t *matcher,
                            const json_t *json, moe_error_t *error)
{
    const moe_vocab_t *vocab = &tokenizer->model->vocab;
    moe_added_token_t token;
    size_t size;
    const char *content = moe_json_string(json, "content", &size, error);
    int normalized;

    if (content == NULL || moe_json_flag(json, "special", 0, &token.special, error) != 0
        || moe_json_flag(json, "lstrip", 0, &token.lstrip, error) != 0
        || moe_json_flag(json, "rstrip", 0, &token.rstrip, error) != 0
        || moe_json_flag(json, "single_word", 0, &token.single_word, error) != 0
        || moe_json_flag(json, "normalized", !token.special, &normalized, error) != 0)
    {
        return -1;
    }
    token.id = (uint32_t) json_integer_value(json_object_get(json, "id"));
    if (moe_vocab_add(&tokenizer->added, content, size, token.id, error) != 0) {
        return -1;
    }
    if (token.id < vocab->n_ids && vocab->tokens[token.id].text != NULL
        ? vocab->tokens[token.id].size != size
          || memcmp(vocab->tokens[token.id].text, content, size) != 0
        : moe_vocab_find(vocab, content, size) != MOE_NO_TOKEN)
    {
        return moe_fail(error, MOE_BAD_MODEL, "\"%.60s\" with id %u contradicts the vocabulary",
                        content, token.id);
    }
    tokenizer->pieces[token.id].special = token.special != 0;
    return add_searched(tokenizer, matcher, content, size, &token, normalized, error);
}


/* Checks ids and makes room for the tokens and for the pieces of all ids. */
static int size_added_tokens(moe_tokenizer_t *tokenizer, const json_t *list, moe_error_t *error)
{
    uint32_t n_ids = 0;
    size_t i, bytes = 0;
    const json_t *item;

    json_array_foreach(list, i, item) {
        const json_t *id = json_object_get(item, "id");
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;

        if (value < 0 || value >= (json_int_t) MOE_TOKEN_ID_LIMIT) {
            return moe_fail(error, MOE_BAD_MODEL, "id of entry %zu is not in 0..%u", i,
                            MOE_TOKEN_ID_LIMIT - 1);
        }
        if ((uint32_t) value >= n_ids) {
            n_ids = (uint32_t) value + 1;
        }
        bytes += json_string_length(json_object_get(item, "content"));
    }
    if (moe_vocab_init(&tokenizer->added, json_array_size(list), bytes, n_ids, error) != 0) {
        return -1;
    }
    tokenizer->n_pieces = tokenizer->model->vocab.n_ids;
    if (tokenizer->n_pieces < n_ids) {
        tokenizer->n_pieces = n_ids;
    }
    tokenizer->pieces = calloc(tokenizer->n_pieces, sizeof(piece_t));
    if (tokenizer->pieces == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u tokens", tokenizer->n_pieces);
    }
    return 0;
}


static int read_added_tokens(moe_tokenizer_t *tokenizer, const json_t *json, moe_error_t *error)
{
    const json_t *list = json_object_get(json, "added_tokens"), *item;
    moe_matcher_t *matcher;
    size_t i;
    int rc;

    if (list != NULL && !json_is_array(list) && !json_is_null(list)) {
        return moe_fail(error, MOE_BAD_MODEL, "added_tokens: not a list");
    }
    tokenizer->raw = moe_added_tokens_create(error);
    tokenizer->normalized = moe_added_tokens_create(error);
    matcher = moe_matcher_create(error);
    rc = tokenizer->raw == NULL || tokenizer->normalized == NULL || matcher == NULL ? -1 : 0;
    if (rc == 0) {
        rc = size_added_tokens(tokenizer, list, error);
    }
    json_array_foreach(list, i, item) {
        rc = rc == 0 ? read_added_token(tokenizer, matcher, item, error) : rc;
    }
    moe_matcher_free(matcher);
    return rc == 0 ? 0 : moe_fail_in(error, "added_tokens");
}


/* The ids that a TemplateProcessing calls `name`. */
static int append_template_ids(const moe_tokenizer_t *tokenizer, const json_t *json,
                               const char *name, moe_ids_t *out, moe_error_t *error)
{
    const json_t *special = json_object_get(json_object_get(json, "special_tokens"), name);
    const json_t *ids = json_object_get(special, "ids"), *id;
    size_t i;

    if (json_array_size(ids) == 0) {
        return moe_fail(error, MOE_BAD_MODEL, "no ids for \"%.60s\"", name);
    }
    json_array_foreach(ids, i, id) {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;

        if (value < 0 || value >= (json_int_t) tokenizer->n_pieces) {
            return moe_fail(error, MOE_BAD_MODEL, "\"%.60s\" has an id that is not a token", name);
        }
        if (out->count >= TEMPLATE_IDS_LIMIT) {
            return moe_fail(error, MOE_BAD_MODEL, "more than %u tokens", TEMPLATE_IDS_LIMIT);
        }
        if (moe_ids_append(out, (uint32_t) value, error) != 0) {
            return -1;
        }
    }
    return 0;
}


/* Puts a template around what earlier post-processors made. */
static int read_template(moe_tokenizer_t *tokenizer, const json_t *json, moe_error_t *error)
{
    const json_t *single = json_object_get(json, "single"), *item;
    moe_ids_t prefix = { 0 }, *out = &prefix;
    int rc = 0;
    size_t i;

    json_array_foreach(single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));

        if (name != NULL) {
            rc = append_template_ids(tokenizer, json, name, out, error);
        } else if (json_object_get(item, "Sequence") != NULL && out == &prefix) {
            out = &tokenizer->suffix;
        } else {
            rc = moe_fail(error, MOE_BAD_MODEL, "entry %zu of \"single\" is not understood", i);
        }
        if (rc != 0) {
            break;
        }
    }
    if (rc == 0 && out == &prefix) {
        rc = moe_fail(error, MOE_BAD_MODEL, "\"single\" has no Sequence");
    }
    for (i = 0; rc == 0 && i < tokenizer->prefix.count; i++) {
        rc = moe_ids_append(&prefix, tokenizer->prefix.ids[i], error);
    }
    moe_ids_free(&tokenizer->prefix);
    tokenizer->prefix = prefix;
    return rc;
}


static int read_post_processor(moe_tokenizer_t *tokenizer, const json_t *json, unsigned depth,
                               moe_error_t *error)
{
    size_t size, i;
    const json_t *list, *item;
    const char *type;

    if (json == NULL || json_is_null(json)) {
        return 0;
    }
    type = moe_json_string(json, "type", &size, error);
    if (type == NULL) {
        return -1;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return 0;                       /* moves offsets only */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(tokenizer, json, error) == 0 ? 0 : moe_fail_in(error, "%s", type);
    }
    if (strcmp(type, "Sequence") != 0) {
        return moe_fail(error, MOE_BAD_MODEL, "unknown type \"%.60s\"", type);
    }
    list = json_object_get(json, "processors");
    if (!json_is_array(list) || depth == NESTING_LIMIT) {
        return moe_fail(error, MOE_BAD_MODEL, "Sequence without a list, or too deep");
    }
    json_array_foreach(list, i, item) {
        if (read_post_processor(tokenizer, item, depth + 1, error) != 0) {
            return -1;
        }
    }
    return 0;
}


static int read_tokenizer(moe_tokenizer_t *tokenizer, const json_t *json, moe_error_t *error)
{
    tokenizer->normalizer = moe_normalizer_create(json_object_get(json, "normalizer"), error);
    if (tokenizer->normalizer == NULL) {
        return moe_fail_in(error, "normalizer");
    }
    tokenizer->pretokenizer = moe_pretokenizer_create(json_object_get(json, "pre_tokenizer"),
                                                      error);
    if (tokenizer->pretokenizer == NULL) {
        return moe_fail_in(error, "pre_tokenizer");
    }
    if (read_added_tokens(tokenizer, json, error) != 0
        || read_decoder(tokenizer, json, error) != 0)
    {
        return -1;
    }
    return read_post_processor(tokenizer, json_object_get(json, "post_processor"), 0, error) == 0
           ? 0 : moe_fail_in(error, "post_processor");
}


moe_tokenizer_t *moe_tokenizer_create(const json_t *json, moe_token_model_t *model,
                                      moe_error_t *error)
{
    moe_tokenizer_t *tokenizer = calloc(1, sizeof(*tokenizer));

    if (tokenizer == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
        moe_token_model_free(model);
        return NULL;
    }
    tokenizer->model = model;
    if (read_tokenizer(tokenizer, json, error) != 0) {
        error->code = MOE_BAD_MODEL;
        moe_tokenizer_free(tokenizer);
        return NULL;
    }
    return tokenizer;
}


void moe_tokenizer_free(moe_tokenizer_t *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    moe_normalizer_free(tokenizer->normalizer);
    moe_pretokenizer_free(tokenizer->pretokenizer);
    moe_token_model_free(tokenizer->model);
    moe_vocab_free(&tokenizer->added);
    moe_added_tokens_free(tokenizer->raw);
    moe_added_tokens_free(tokenizer->normalized);
    moe_ids_free(&tokenizer->prefix);
    moe_ids_free(&tokenizer->suffix);
    free(tokenizer->pieces);
    moe_buffer_free(&tokenizer->piece_bytes);
    free(tokenizer);
}
