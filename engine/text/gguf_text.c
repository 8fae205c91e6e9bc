/*
 * The three kinds of tokenizer.ggml.model: byte-level BPE with a list of merges ("gpt2"), and
 * SentencePiece's two, both told by scores: BPE, where the pair that makes the token of the highest
 * score comes first ("llama"), and Unigram ("t5").
 */

#include "engine/text/gguf_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/json.h"
#include "engine/text/known_splits.h"

#define BLANK "\xe2\x96\x81"              /* U+2581, SentencePiece's space */

/* tokenizer.ggml.token_type */
enum {
    TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE
};

static const struct {
    const char *name, *key;
} special_tokens[] = {
    { "bos_token", "bos_token_id" },
    { "eos_token", "eos_token_id" },
    { "unk_token", "unknown_token_id" },
    { "sep_token", "seperator_token_id" },      /* sic */
    { "pad_token", "padding_token_id" },
    { "mask_token", "mask_token_id" },
};


static const json_t *get(const json_t *metadata, const char *key)
{
    char name[64];

    snprintf(name, sizeof(name), "tokenizer.ggml.%s", key);
    return json_object_get(metadata, name);
}


static int fail(moe_error_t *error, const char *key, const char *what)
{
    return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.%s: %s", key, what);
}


/* The token list, and in *types, where there is one, the types of its tokens. */
static const json_t *get_tokens(const json_t *metadata, const json_t **types, moe_error_t *error)
{
    const json_t *tokens = get(metadata, "tokens");

    *types = get(metadata, "token_type");
    if (json_array_size(tokens) == 0 || json_array_size(tokens) > MOE_TOKEN_ID_LIMIT) {
        fail(error, "tokens", "not a list of texts, or too long");
        return NULL;
    }
    if (*types != NULL && json_array_size(*types) != json_array_size(tokens)) {
        fail(error, "token_type", "not as long as the list of tokens");
        return NULL;
    }
    return tokens;
}


/* The text of the token that a key names; NULL with MOE_OK when the key is absent. */
static const json_t *named_token(const json_t *metadata, const char *key, moe_error_t *error)
{
    const json_t *id = get(metadata, key), *tokens = get(metadata, "tokens"), *text;

    error->code = MOE_OK;
    if (id == NULL) {
        return NULL;
    }
    text = json_is_integer(id) && json_integer_value(id) >= 0
           ? json_array_get(tokens, (size_t) json_integer_value(id)) : NULL;
    if (!json_is_string(text)) {
        fail(error, key, "not the id of a token");
        return NULL;
    }
    return text;
}


/* One kind of tokenizer.ggml.model. */
typedef struct {
    const char *name;
    int bos, eos;               /* put around a text unless add_bos_token, add_eos_token differ */
    /* Reads the rest of `tokenizer`, in the words of tokenizer.json, and the model, whose
     * vocabulary is there. */
    int (*read)(json_t *tokenizer, moe_token_model_t *model, const json_t *metadata,
                moe_error_t *error);
} kind_t;


static int out_of_memory(moe_error_t *error)
{
    return moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
}


static int token_type(const json_t *types, size_t id)
{
    return types == NULL ? TOKEN_NORMAL : (int) json_integer_value(json_array_get(types, id));
}


static int add_token(moe_vocab_t *vocab, json_t *added, const json_t *text, int type, size_t id,
                     moe_error_t *error)
{
    json_t *token;

    if (type == TOKEN_UNUSED) {
        return 0;
    }
    if (type < TOKEN_NORMAL || type > TOKEN_BYTE) {
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.token_type: token %zu has no type "
                        "that is known", id);
    }
    if (!json_is_string(text)) {
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.tokens: token %zu is not a text", id);
    }
    if (type == TOKEN_NORMAL || type == TOKEN_BYTE) {
        return moe_vocab_add(vocab, json_string_value(text), json_string_length(text),
                             (uint32_t) id, error) == 0
               ? 0 : moe_fail_in(error, "tokenizer.ggml.tokens");
    }
    token = json_pack("{s:I, s:O, s:b, s:b}", "id", (json_int_t) id, "content", text, "special",
                      type != TOKEN_USER_DEFINED, "normalized", 0);
    return json_array_append_new(added, token) == 0 ? 0 : out_of_memory(error);
}


/* Added tokens are found in the text itself, so the model's vocabulary goes without them. */
static int read_tokens(json_t *tokenizer, moe_vocab_t *vocab, const json_t *metadata,
                       moe_error_t *error)
{
    const json_t *types, *tokens = get_tokens(metadata, &types, error), *text;
    json_t *added = json_array();
    size_t bytes = 0, i;
    int rc;

    if (json_object_set_new(tokenizer, "added_tokens", added) != 0) {
        return out_of_memory(error);
    }
    if (tokens == NULL) {
        return -1;
    }
    json_array_foreach(tokens, i, text) {
        bytes += json_string_length(text);
    }
    rc = moe_vocab_init(vocab, json_array_size(tokens), bytes, (uint32_t) json_array_size(tokens),
                        error);
    json_array_foreach(tokens, i, text) {
        rc = rc == 0 ? add_token(vocab, added, text, token_type(types, i), i, error) : rc;
    }
    return rc;
}


/* Some files leave out merges that follow from the ids, which are ranks then (`ranked`). */
static int read_merges(moe_merges_t *merges, const moe_vocab_t *vocab, const json_t *metadata,
                       int ranked, moe_error_t *error)
{
    const json_t *list = get(metadata, "merges"), *line;
    size_t i;

    if (list == NULL && ranked) {
        return moe_merges_derive(merges, vocab, NULL, error);
    }
    if (!json_is_array(list)) {
        return fail(error, "merges", "missing, or not a list");
    }
    json_array_foreach(list, i, line) {
        if (!json_is_string(line)) {
            return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.merges: entry %zu is not a pair",
                            i);
        }
        if (moe_merges_add_line(merges, vocab, json_string_value(line), json_string_length(line),
                                (uint32_t) i, error) != 0)
        {
            return moe_fail_in(error, "tokenizer.ggml.merges");
        }
    }
    return 0;
}


/* What tokenizer.ggml.pre stands for. */
static const moe_known_splits_t *find_splits(const json_t *metadata, moe_error_t *error)
{
    const json_t *pre = get(metadata, "pre");
    const char *name = pre == NULL ? "default" : json_string_value(pre);
    const moe_known_splits_t *known = name != NULL ? moe_known_splits(name) : NULL;

    if (known == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.pre: \"%.60s\" is not supported",
                 name != NULL ? name : "?");
    }
    return known;
}


/* "gpt2": what else there is follows from tokenizer.ggml.pre. */
static int read_byte_level(json_t *tokenizer, moe_token_model_t *model, const json_t *metadata,
                           moe_error_t *error)
{
    const moe_known_splits_t *known = find_splits(metadata, error);
    moe_bpe_settings_t settings = { .unknown = MOE_NO_TOKEN };
    moe_merges_t merges = { 0 };
    int prefix_space, rc;

    if (known == NULL
        || moe_json_flag(metadata, "tokenizer.ggml.add_space_prefix", 0, &prefix_space, error) != 0)
    {
        return -1;
    }
    if (json_object_set_new(tokenizer, "pre_tokenizer",
                            moe_known_splits_json(known, NULL, prefix_space)) != 0
        || json_object_set_new(tokenizer, "decoder", json_pack("{s:s}", "type", "ByteLevel")) != 0
        || (known->nfc
            && json_object_set_new(tokenizer, "normalizer", json_pack("{s:s}", "type", "NFC"))
               != 0))
    {
        return out_of_memory(error);
    }
    settings.ignore_merges = known->whole;
    rc = read_merges(&merges, &model->vocab, metadata, known->whole, error);
    if (rc == 0) {
        rc = moe_token_model_bpe(model, &merges, &settings, error);
    }
    moe_merges_free(&merges);
    return rc;
}


/* How SentencePiece's models see a text, and what its tokens stand for. */
static int read_sentence_piece(json_t *tokenizer, const json_t *metadata, moe_error_t *error)
{
    json_t *normalizers = json_array(), *decoders = json_array();
    int prefix, single;

    json_object_set_new(tokenizer, "normalizer", json_pack("{s:s, s:o}", "type", "Sequence",
                                                           "normalizers", normalizers));
    json_object_set_new(tokenizer, "decoder", json_pack("{s:s, s:o}", "type", "Sequence",
                                                        "decoders", decoders));
    if (moe_json_flag(metadata, "tokenizer.ggml.add_space_prefix", 1, &prefix, error) != 0
        || moe_json_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces", 0, &single, error)
           != 0)
    {
        return -1;
    }
    if (single) {
        json_array_append_new(normalizers, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace",
                                                     "pattern", "Regex", "\\A +| +\\z| +(?= )",
                                                     "content", ""));
    }
    if (prefix) {
        json_array_append_new(normalizers, json_pack("{s:s, s:s}", "type", "Prepend", "prepend",
                                                     BLANK));
    }
    json_array_append_new(normalizers, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace",
                                                 "pattern", "String", " ", "content", BLANK));
    json_array_append_new(decoders, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace",
                                              "pattern", "String", BLANK, "content", " "));
    json_array_append_new(decoders, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(decoders, json_pack("{s:s}", "type", "Fuse"));
    if (prefix) {
        json_array_append_new(decoders, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                                  "content", " ", "start", 1, "stop", 0));
    }
    return 0;
}


/* The scores by id, which the caller frees; NULL with the error.  Tokens that no text is cut into
 * have the score -INFINITY. */
static double *read_scores(const json_t *metadata, const moe_vocab_t *vocab, moe_error_t *error)
{
    const json_t *list = get(metadata, "scores"), *types = get(metadata, "token_type");
    double *scores;

    if (json_array_size(list) != vocab->n_ids) {
        fail(error, "scores", "not a list as long as the list of tokens");
        return NULL;
    }
    scores = malloc(vocab->n_ids * sizeof(double));
    if (scores == NULL) {
        out_of_memory(error);
        return NULL;
    }
    for (uint32_t id = 0; id < vocab->n_ids; id++) {
        const json_t *score = json_array_get(list, id);

        scores[id] = token_type(types, id) == TOKEN_NORMAL ? json_number_value(score) : -INFINITY;
        if (!json_is_number(score) || !isfinite(json_number_value(score))) {
            moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.scores: entry %u is not a number", id);
            free(scores);
            return NULL;
        }
    }
    return scores;
}


typedef struct {
    double score;
    uint32_t id;
} scored_t;


static int compare_scores(const void *left, const void *right)
{
    const scored_t *a = left, *b = right;

    return (a->score < b->score) - (a->score > b->score);
}


/* Highest score, lowest rank; equal ones have the same, so that the leftmost pair comes first. */
static int derive_from_scores(moe_merges_t *merges, const moe_vocab_t *vocab,
                              const double *scores, moe_error_t *error)
{
    scored_t *sorted = malloc(vocab->n_ids * sizeof(*sorted));
    uint32_t *ranks = malloc(vocab->n_ids * sizeof(uint32_t)), rank = 0;
    int rc = sorted == NULL || ranks == NULL ? out_of_memory(error) : 0;

    for (uint32_t id = 0; rc == 0 && id < vocab->n_ids; id++) {
        sorted[id] = (scored_t) { scores[id], id };
    }
    if (rc == 0) {
        qsort(sorted, vocab->n_ids, sizeof(*sorted), compare_scores);
        for (uint32_t i = 0; i < vocab->n_ids; i++) {
            rank += i > 0 && sorted[i].score < sorted[i - 1].score;
            ranks[sorted[i].id] = sorted[i].score == -INFINITY ? MOE_NO_RANK : rank;
        }
        rc = moe_merges_derive(merges, vocab, ranks, error);
    }
    free(sorted);
    free(ranks);
    return rc;
}


/* The id for characters without a token. */
static int read_unknown(const json_t *metadata, json_int_t fallback, uint32_t *id,
                        moe_error_t *error)
{
    const json_t *value = get(metadata, "unknown_token_id");
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : fallback;

    if ((value != NULL && !json_is_integer(value)) || number < 0
        || number >= (json_int_t) json_array_size(get(metadata, "tokens")))
    {
        return fail(error, "unknown_token_id", "not the id of a token");
    }
    *id = (uint32_t) number;
    return 0;
}


static int has_bytes(const json_t *metadata)
{
    const json_t *types = get(metadata, "token_type");

    for (size_t i = 0; i < json_array_size(types); i++) {
        if (token_type(types, i) == TOKEN_BYTE) {
            return 1;
        }
    }
    return 0;
}


static int read_scored_bpe(json_t *tokenizer, moe_token_model_t *model, const json_t *metadata,
                           moe_error_t *error)
{
    moe_bpe_settings_t settings = {
        .byte_fallback = has_bytes(metadata), .fuse_unknown = 1
    };
    moe_merges_t merges = { 0 };
    double *scores = NULL;
    int rc = -1;

    if (read_sentence_piece(tokenizer, metadata, error) == 0
        && read_unknown(metadata, 0, &settings.unknown, error) == 0)
    {
        scores = read_scores(metadata, &model->vocab, error);
    }
    if (scores != NULL && derive_from_scores(&merges, &model->vocab, scores, error) == 0) {
        rc = moe_token_model_bpe(model, &merges, &settings, error);
    }
    moe_merges_free(&merges);
    free(scores);
    return rc;
}


static int read_unigram(json_t *tokenizer, moe_token_model_t *model, const json_t *metadata,
                        moe_error_t *error)
{
    moe_unigram_settings_t settings = { .byte_fallback = has_bytes(metadata) };
    double *scores = NULL;
    int rc = -1;

    if (json_array_size(get(metadata, "precompiled_charsmap")) > 0) {
        return fail(error, "precompiled_charsmap", "not supported");
    }
    if (read_sentence_piece(tokenizer, metadata, error) == 0
        && read_unknown(metadata, 2, &settings.unknown, error) == 0)
    {
        scores = read_scores(metadata, &model->vocab, error);
    }
    if (scores != NULL) {
        rc = moe_token_model_unigram(model, scores, &settings, error);
    }
    free(scores);
    return rc;
}


/* The ids around a text, as a TemplateProcessing. */
static int read_ends(json_t *tokenizer, const json_t *metadata, int bos, int eos,
                     moe_error_t *error)
{
    static const char *const keys[2] = { "bos_token_id", "eos_token_id" };
    const int wanted[2] = { bos, eos };
    json_t *single = json_array(), *special = json_object(), *template;
    int rc = 0;

    for (int i = 0; i < 2; i++) {
        if (i == 1) {
            json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A"));
        }
        if (wanted[i] && named_token(metadata, keys[i], error) == NULL) {
            rc = error->code == MOE_OK ? fail(error, keys[i], "missing") : -1;
        } else if (wanted[i]) {
            json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", keys[i]));
            json_object_set_new(special, keys[i], json_pack("{s:[O]}", "ids",
                                                            get(metadata, keys[i])));
        }
    }
    template = json_pack("{s:s, s:o, s:o}", "type", "TemplateProcessing", "single", single,
                         "special_tokens", special);
    if (json_object_set_new(tokenizer, "post_processor", template) != 0 && rc == 0) {
        rc = moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return rc;
}


static const kind_t kinds[] = {
    { "gpt2", 0, 0, read_byte_level },
    { "llama", 1, 0, read_scored_bpe },
    { "t5", 0, 1, read_unigram },
};


static const kind_t *find_kind(const json_t *metadata, moe_error_t *error)
{
    const char *name = json_string_value(get(metadata, "model"));

    if (name == NULL) {
        fail(error, "model", "missing");
        return NULL;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            return &kinds[i];
        }
    }
    moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.model: \"%.60s\" is not supported, only gpt2, "
             "llama and t5", name);
    return NULL;
}


/* 1 where a text begins with BOS unless the file says otherwise. */
static int begins_with_bos(const kind_t *kind, const json_t *metadata)
{
    const char *pre = json_string_value(get(metadata, "pre"));
    const moe_known_splits_t *known = pre != NULL ? moe_known_splits(pre) : NULL;

    return kind->bos || (kind->read == read_byte_level && known != NULL && known->bos);
}


static int read_tokenizer(json_t *tokenizer, moe_token_model_t *model, const json_t *metadata,
                          moe_error_t *error)
{
    const kind_t *kind = find_kind(metadata, error);
    int bos, eos;

    if (kind == NULL || read_tokens(tokenizer, &model->vocab, metadata, error) != 0
        || kind->read(tokenizer, model, metadata, error) != 0
        || moe_json_flag(metadata, "tokenizer.ggml.add_bos_token",
                         begins_with_bos(kind, metadata), &bos, error) != 0
        || moe_json_flag(metadata, "tokenizer.ggml.add_eos_token", kind->eos, &eos, error) != 0)
    {
        return -1;
    }
    return read_ends(tokenizer, metadata, bos, eos, error);
}


moe_tokenizer_t *moe_gguf_tokenizer(const json_t *metadata, const char *where, moe_error_t *error)
{
    json_t *json = json_object();
    moe_token_model_t *model = moe_token_model_create(error);
    moe_tokenizer_t *tokenizer = NULL;

    if (model != NULL && read_tokenizer(json, model, metadata, error) == 0) {
        tokenizer = moe_tokenizer_create(json, model, error);
        if (tokenizer == NULL) {
            moe_fail_in(error, "tokenizer.ggml");
        }
    } else {
        error->code = MOE_BAD_MODEL;
        moe_token_model_free(model);
    }
    json_decref(json);
    if (tokenizer == NULL) {
        moe_fail_in(error, "%s", where);
    }
    return tokenizer;
}


moe_chat_t *moe_gguf_chat(const json_t *metadata, const char *where, const char *override,
                          moe_error_t *error)
{
    json_t *config = json_object();
    json_t *template = json_object_get(metadata, "tokenizer.chat_template");
    json_t *tool_use = json_object_get(metadata, "tokenizer.chat_template.tool_use");
    moe_chat_t *chat = NULL;
    int rc = 0;

    if (template != NULL && tool_use != NULL) {
        json_object_set_new(config, "chat_template",
                            json_pack("[{s:s, s:O}, {s:s, s:O}]", "name", "default", "template",
                                      template, "name", "tool_use", "template", tool_use));
    } else if (template != NULL) {
        json_object_set(config, "chat_template", template);
    }
    for (size_t i = 0; rc == 0 && i < sizeof(special_tokens) / sizeof(special_tokens[0]); i++) {
        const json_t *text = named_token(metadata, special_tokens[i].key, error);

        if (text != NULL) {
            json_object_set(config, special_tokens[i].name, (json_t *) (uintptr_t) text);
        }
        rc = error->code == MOE_OK ? 0 : moe_fail_in(error, "%s", where);
    }
    if (rc == 0) {
        chat = moe_chat_create(config, where, override, error);
    }
    json_decref(config);
    return chat;
}
