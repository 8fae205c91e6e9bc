/*
 * tokenizer.json: its small parts are read as a tree of JSON; the lists of the model, nearly the
 * whole file, go straight into the model's tables.
 */

#include "engine/text/tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core/json.h"
#include "engine/text/json_list.h"
#include "engine/text/tiktoken.h"

#define FILE_NAME "tokenizer.json"

/* What a pass over a vocabulary finds, and where its tokens go. */
typedef struct {
    moe_json_list_t list;
    moe_error_t *error;
    moe_vocab_t *vocab;         /* NULL: they are counted only */
    double *scores;             /* Unigram */
    size_t count, bytes;
    uint32_t n_ids;
} reader_t;


static int take_token(reader_t *reader, const char *text, size_t size, double id, double score)
{
    if (!(id >= 0 && id < MOE_TOKEN_ID_LIMIT && floor(id) == id)) {
        return moe_fail(reader->error, MOE_BAD_MODEL, "id of \"%.*s\" is not in 0..%u",
                        (int) (size < 60 ? size : 60), text, MOE_TOKEN_ID_LIMIT - 1);
    }
    if (reader->vocab != NULL) {
        if (reader->scores != NULL) {
            reader->scores[(uint32_t) id] = score;
        }
        return moe_vocab_add(reader->vocab, text, size, (uint32_t) id, reader->error);
    }
    reader->count++;
    reader->bytes += size;
    if ((uint32_t) id >= reader->n_ids) {
        reader->n_ids = (uint32_t) id + 1;
    }
    return 0;
}


/* {"token": id, ...} */
static int read_ids(reader_t *reader)
{
    size_t size, n = 0;
    const char *text;
    double id;
    int rc;

    while ((rc = moe_json_list_item(&reader->list, "{}", n)) == 1) {
        if (moe_json_list_key(&reader->list, &text, &size) != 0
            || moe_json_list_number(&reader->list, &id) != 0
            || take_token(reader, text, size, id, 0) != 0)
        {
            return -1;
        }
        n++;
    }
    return rc;
}


/* [["token", score], ...], by id */
static int read_scores(reader_t *reader)
{
    size_t size, n = 0;
    const char *text;
    double score;
    int rc;

    while ((rc = moe_json_list_item(&reader->list, "[]", n)) == 1) {
        if (moe_json_list_item(&reader->list, "[]", 0) != 1
            || moe_json_list_string(&reader->list, &text, &size) != 0
            || moe_json_list_item(&reader->list, "[]", 1) != 1
            || moe_json_list_number(&reader->list, &score) != 0
            || moe_json_list_item(&reader->list, "[]", 2) != 0)
        {
            return moe_fail(reader->error, MOE_BAD_MODEL, "entry %zu is not a text and its score",
                            n);
        }
        if (!isfinite(score)) {
            return moe_fail(reader->error, MOE_BAD_MODEL, "score of entry %zu is out of range", n);
        }
        if (take_token(reader, text, size, (double) n, score) != 0) {
            return -1;
        }
        n++;
    }
    return rc;
}


/* Reads the vocabulary twice: to count it, and into its tables.  *scores, where wanted, is the
 * caller's to free. */
static int read_vocab(moe_vocab_t *vocab, const moe_json_part_t *part,
                      int (*read)(reader_t *reader), double **scores, moe_error_t *error)
{
    reader_t reader = { .error = error };
    int rc = part->data != NULL ? 0 : moe_fail(error, MOE_BAD_MODEL, "missing");

    for (int pass = 0; rc == 0 && pass < 2; pass++) {
        moe_json_list_init(&reader.list, part->data, part->size, error);
        rc = read(&reader) == 0 ? moe_json_list_end(&reader.list) : -1;
        moe_json_list_free(&reader.list);
        if (rc != 0 || pass == 1) {
            break;
        }
        if (reader.count == 0) {
            rc = moe_fail(error, MOE_BAD_MODEL, "empty");
        } else {
            rc = moe_vocab_init(vocab, reader.count, reader.bytes, reader.n_ids, error);
        }
        reader.vocab = vocab;
        if (rc == 0 && scores != NULL) {
            reader.scores = *scores = calloc(reader.n_ids, sizeof(double));
            rc = *scores != NULL ? 0 : moe_fail(error, MOE_LIMIT, "out of memory for %u scores",
                                                reader.n_ids);
        }
    }
    return rc == 0 ? 0 : moe_fail_in(error, "vocab");
}


/* "a b" or ["a", "b"]; `left` is memory for one of them. */
static int read_merge(moe_json_list_t *list, moe_merges_t *merges, const moe_vocab_t *vocab,
                      size_t n, moe_buffer_t *left)
{
    const char *text;
    size_t size;

    if (moe_json_list_at(list, '"')) {
        if (moe_json_list_string(list, &text, &size) != 0) {
            return -1;
        }
        if (n == 0 && size > 8 && memcmp(text, "#version", 8) == 0) {
            return 0;                   /* the first line of old merges.txt */
        }
        return moe_merges_add_line(merges, vocab, text, size, (uint32_t) n, list->error);
    }
    left->size = 0;
    if (!moe_json_list_at(list, '[') || moe_json_list_item(list, "[]", 0) != 1
        || moe_json_list_string(list, &text, &size) != 0
        || moe_buffer_append(left, text, size, list->error) != 0
        || moe_json_list_item(list, "[]", 1) != 1
        || moe_json_list_string(list, &text, &size) != 0
        || moe_json_list_item(list, "[]", 2) != 0)
    {
        return moe_fail(list->error, MOE_BAD_MODEL, "entry %zu is not a pair", n);
    }
    return moe_merges_add(merges, vocab, left->size > 0 ? left->data : "", left->size, text, size,
                          (uint32_t) n, list->error);
}


static int read_merges(moe_merges_t *merges, const moe_vocab_t *vocab, const moe_json_part_t *part,
                       moe_error_t *error)
{
    moe_buffer_t left = { 0 };
    moe_json_list_t list;
    size_t n = 0;
    int rc;

    if (part->data == NULL) {
        return moe_fail(error, MOE_BAD_MODEL, "merges: missing");
    }
    moe_json_list_init(&list, part->data, part->size, error);
    while ((rc = moe_json_list_item(&list, "[]", n)) == 1) {
        if (read_merge(&list, merges, vocab, n, &left) != 0) {
            rc = -1;
            break;
        }
        n++;
    }
    if (rc == 0) {
        rc = moe_json_list_end(&list);
    }
    moe_json_list_free(&list);
    moe_buffer_free(&left);
    return rc == 0 ? 0 : moe_fail_in(error, "merges");
}


static int read_unknown(const json_t *json, const moe_vocab_t *vocab, uint32_t *id,
                        moe_error_t *error)
{
    const json_t *unknown = json_object_get(json, "unk_token");

    *id = MOE_NO_TOKEN;
    if (unknown == NULL || json_is_null(unknown)) {
        return 0;
    }
    if (!json_is_string(unknown)) {
        return moe_fail(error, MOE_BAD_MODEL, "\"unk_token\" is not a string");
    }
    *id = moe_vocab_find(vocab, json_string_value(unknown), json_string_length(unknown));
    return *id != MOE_NO_TOKEN ? 0 : moe_fail(error, MOE_BAD_MODEL,
                                              "unk_token \"%.60s\" is not a token",
                                              json_string_value(unknown));
}


/* What would change the ids and is not implemented: no model served needs it. */
static int refuse_variants(const json_t *json, moe_error_t *error)
{
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const json_t *dropout = json_object_get(json, "dropout");

    if (dropout != NULL && !json_is_null(dropout)
        && !(json_is_number(dropout) && json_number_value(dropout) == 0))
    {
        return moe_fail(error, MOE_BAD_MODEL, "dropout is not supported");
    }
    for (unsigned i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(json, affixes[i]);

        if (affix != NULL && !json_is_null(affix)
            && !(json_is_string(affix) && json_string_length(affix) == 0))
        {
            return moe_fail(error, MOE_BAD_MODEL, "%s is not supported", affixes[i]);
        }
    }
    return 0;
}


static int read_bpe(moe_token_model_t *model, const json_t *json, const moe_json_part_t parts[2],
                    moe_error_t *error)
{
    moe_bpe_settings_t settings;
    moe_merges_t merges = { 0 };
    int rc = -1;

    if (refuse_variants(json, error) == 0
        && moe_json_flag(json, "byte_fallback", 0, &settings.byte_fallback, error) == 0
        && moe_json_flag(json, "fuse_unk", 0, &settings.fuse_unknown, error) == 0
        && moe_json_flag(json, "ignore_merges", 0, &settings.ignore_merges, error) == 0
        && read_vocab(&model->vocab, &parts[0], read_ids, NULL, error) == 0
        && read_merges(&merges, &model->vocab, &parts[1], error) == 0
        && read_unknown(json, &model->vocab, &settings.unknown, error) == 0)
    {
        rc = moe_token_model_bpe(model, &merges, &settings, error);
    }
    moe_merges_free(&merges);
    return rc;
}


static int read_unigram(moe_token_model_t *model, const json_t *json,
                        const moe_json_part_t parts[2], moe_error_t *error)
{
    const json_t *unknown = json_object_get(json, "unk_id");
    moe_unigram_settings_t settings;
    double *scores = NULL;
    int rc = -1;

    if (moe_json_flag(json, "byte_fallback", 0, &settings.byte_fallback, error) == 0
        && read_vocab(&model->vocab, &parts[0], read_scores, &scores, error) == 0)
    {
        json_int_t id = json_is_integer(unknown) ? json_integer_value(unknown) : -1;

        settings.unknown = (uint32_t) id;
        rc = id >= 0 && id < (json_int_t) model->vocab.n_ids
             ? moe_token_model_unigram(model, scores, &settings, error)
             : moe_fail(error, MOE_BAD_MODEL, "\"unk_id\" is not the id of a token");
    }
    free(scores);
    return rc;
}


static moe_token_model_t *read_model(const json_t *json, const moe_json_part_t parts[2],
                                     moe_error_t *error)
{
    const json_t *type = json_object_get(json, "type");
    const char *name = type == NULL ? "BPE" : json_string_value(type);
    moe_token_model_t *model;
    int rc;

    if (!json_is_object(json)) {
        moe_fail(error, MOE_BAD_MODEL, "not an object");
        return NULL;
    }
    model = moe_token_model_create(error);
    if (model == NULL) {
        return NULL;
    }
    if (name != NULL && strcmp(name, "BPE") == 0) {
        rc = read_bpe(model, json, parts, error);
    } else if (name != NULL && strcmp(name, "Unigram") == 0) {
        rc = read_unigram(model, json, parts, error);
    } else {
        rc = moe_fail(error, MOE_BAD_MODEL, "type \"%.60s\" is not supported, only BPE and Unigram",
                      name != NULL ? name : "?");
    }
    if (rc != 0) {
        moe_token_model_free(model);
        return NULL;
    }
    return model;
}


moe_tokenizer_t *moe_tokenizer_load(const char *directory, moe_error_t *error)
{
    moe_json_part_t parts[2] = {
        { .object = "model", .key = "vocab" }, { .object = "model", .key = "merges" }
    };
    moe_tokenizer_t *tokenizer = NULL;
    moe_token_model_t *model;
    json_t *json;
    char *text;

    if (moe_tiktoken_is_in(directory)) {
        return moe_tiktoken_load(directory, error);
    }
    json = moe_json_load_without(directory, FILE_NAME, 0, parts, 2, &text, error);
    if (json == NULL) {
        return NULL;
    }
    model = read_model(json_object_get(json, "model"), parts, error);
    if (model == NULL) {
        error->code = MOE_BAD_MODEL;
        moe_fail_in(error, "model");
    } else {
        tokenizer = moe_tokenizer_create(json, model, error);
    }
    json_decref(json);
    free(text);
    if (tokenizer == NULL) {
        moe_fail_in(error, FILE_NAME);
    }
    return tokenizer;
}
