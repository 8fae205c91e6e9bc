/*
 * What tokenizer.ggml.pre stands for: the splits of the original tokenizers, one after another, and
 * what else distinguishes them.  The regexes are those of the models' tokenizer.json files, not
 * llama.cpp's adaptations.
 */

#include "engine/text/gguf_text.h"

#include <stdio.h>
#include <string.h>

#include "engine/core/json.h"
#include "engine/text/vocab.h"

#define NAMES_LIMIT 6u
#define SPLITS_LIMIT 6u

/* Endings that most regexes share: symbols, line ends, blanks. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS "\\s+(?!\\S)|\\s+"
#define TAIL " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" BLANKS
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"

#define GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" BLANKS
#define CL100K CONTRACTIONS "|" WORDS "|\\p{N}{1,3}|" TAIL
#define QWEN2 CONTRACTIONS "|" WORDS "|\\p{N}|" TAIL
#define QWEN35 \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}" \
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" BLANKS
#define BAILING \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}" \
    "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|" BLANKS

/* Words by case, without the characters of `but`. */
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED_WORDS(but) \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER but "]*[" LOWER but "]+" CONTRACTIONS "?" \
    "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER but "]+[" LOWER but "]*" CONTRACTIONS "?"
#define O200K \
    CASED_WORDS("") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" BLANKS
#define KIMI "[\\p{Han}]+|" CASED_WORDS("&&[^\\p{Han}]") "|\\p{N}{1,3}|" TAIL

/* DeepSeek-V2's list of letters with case: Unicode 11's, some scripts left out. */
#define CASED \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}" \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}-\\x{377}\\x{37B}-\\x{37D}" \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}" \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}" \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}" \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}" \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}" \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}" \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}" \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}" \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}" \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}" \
    "\\x{214E}\\x{2183}-\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}" \
    "\\x{2CF2}-\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}" \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}" \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}" \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}" \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

static const struct {
    const char *names[NAMES_LIMIT];     /* values of tokenizer.ggml.pre */
    const char *splits[SPLITS_LIMIT];
    int nfc, whole, bos;                /* normalised; a piece that is a token is taken whole; BOS
                                         * unless add_bos_token says otherwise */
} pretokenizers[] = {
    { .names = { "default" },
      .splits = { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
    { .names = { "gpt-2" }, .splits = { GPT2 } },
    { .names = { "olmo" }, .splits = { GPT2 }, .nfc = 1 },
    { .names = { "llama-bpe", "llama3", "llama-v3", "lfm2", "falcon3", "pixtral" },
      .splits = { CL100K }, .whole = 1, .bos = 1 },
    { .names = { "glm4", "chatglm-bpe", "dbrx" }, .splits = { CL100K } },
    { .names = { "qwen2", "deepseek-r1-qwen", "megrez" }, .splits = { QWEN2 }, .nfc = 1 },
    { .names = { "hunyuan" }, .splits = { QWEN2 }, .whole = 1 },
    { .names = { "solar-open", "grok-2" }, .splits = { QWEN2 } },
    { .names = { "laguna" }, .splits = { "[^\\n]+|[\\n]+", QWEN2 } },
    { .names = { "bailingmoe", "bailingmoe2" }, .splits = { BAILING } },
    { .names = { "qwen35" }, .splits = { QWEN35 }, .nfc = 1 },
    { .names = { "gpt-4o", "llama4", "minimax-m2" }, .splits = { O200K } },
    { .names = { "kimi-k2" }, .splits = { KIMI }, .whole = 1 },
    { .names = { "deepseek-llm" },
      .splits = { "[\\r\\n]", "\\s?[" CASED "]+",
                  "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}"
                  "\\x{3000}-\\x{3002}]+",
                  "\\s+$", "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+",
                  "\\p{N}+" } },
    { .names = { "deepseek-v3", "hunyuan-dense", "joyai-llm" },
      .splits = { "\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
                  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                  "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
                  "|\\s*[\\r\\n]+|" BLANKS } },
    { .names = { "refact", "starcoder" }, .splits = { "\\p{N}", GPT2 } },
};

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


static int add_normal(json_t *vocab, const char *text, size_t id, moe_error_t *error)
{
    if (json_object_get(vocab, text) != NULL) {
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.tokens: \"%.60s\" is there twice",
                        text);
    }
    return json_object_set_new(vocab, text, json_integer((json_int_t) id)) == 0
           ? 0 : moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
}


static int add_token(json_t *vocab, json_t *added, const json_t *text, const json_t *type,
                     size_t id, moe_error_t *error)
{
    const char *string = json_string_value(text);
    int special = 1;
    json_t *token;

    if (string == NULL || strlen(string) != json_string_length(text)) {
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.tokens: token %zu is not a text, or "
                        "has a NUL inside", id);
    }
    switch (type == NULL ? TOKEN_NORMAL : json_integer_value(type)) {
    case TOKEN_NORMAL:
    case TOKEN_BYTE:
        return add_normal(vocab, string, id, error);
    case TOKEN_UNUSED:
        return 0;
    case TOKEN_USER_DEFINED:
        special = 0;
        break;
    case TOKEN_UNKNOWN:
    case TOKEN_CONTROL:
        break;
    default:
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.token_type: token %zu has no type "
                        "that is known", id);
    }
    token = json_pack("{s:I, s:O, s:b, s:b}", "id", (json_int_t) id, "content", text, "special",
                      special, "normalized", 0);
    return json_array_append_new(added, token) == 0
           ? 0 : moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
}


/* Added tokens are found in the text itself, so the model's vocabulary goes without them. */
static int read_tokens(json_t *tokenizer, const json_t *metadata, int whole, moe_error_t *error)
{
    json_t *vocab = json_object(), *added = json_array(), *model;
    const json_t *types, *tokens = get_tokens(metadata, &types, error);
    json_t *merges = (json_t *) (uintptr_t) get(metadata, "merges");
    int rc = tokens == NULL ? -1 : 0;

    for (size_t i = 0; rc == 0 && i < json_array_size(tokens); i++) {
        rc = add_token(vocab, added, json_array_get(tokens, i), json_array_get(types, i), i, error);
    }
    if (rc == 0 && !json_is_array(merges)) {
        rc = fail(error, "merges", "missing, or not a list");
    }
    model = json_pack("{s:s, s:o, s:O?, s:b}", "type", "BPE", "vocab", vocab, "merges", merges,
                      "ignore_merges", whole);
    if ((json_object_set_new(tokenizer, "added_tokens", added) != 0
         || json_object_set_new(tokenizer, "model", model) != 0) && rc == 0)
    {
        rc = moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return rc;
}


/* The row that has the name; -1 when none has. */
static int find_pretokenizer(const char *name)
{
    for (size_t i = 0; i < sizeof(pretokenizers) / sizeof(pretokenizers[0]); i++) {
        for (size_t k = 0; k < NAMES_LIMIT && pretokenizers[i].names[k] != NULL; k++) {
            if (strcmp(pretokenizers[i].names[k], name) == 0) {
                return (int) i;
            }
        }
    }
    return -1;
}


json_t *moe_gguf_pretokenizer(const char *name, int add_prefix_space)
{
    const int which = find_pretokenizer(name);
    json_t *steps;

    if (which == -1) {
        return NULL;
    }
    steps = json_array();
    for (size_t i = 0; i < SPLITS_LIMIT && pretokenizers[which].splits[i] != NULL; i++) {
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern",
                                               "Regex", pretokenizers[which].splits[i], "behavior",
                                               "Isolated"));
    }
    json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                           "add_prefix_space", add_prefix_space, "use_regex", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
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


/* Everything that follows from tokenizer.ggml.pre; *which is its row. */
static int read_pretokenizer(json_t *tokenizer, const json_t *metadata, int *which,
                             moe_error_t *error)
{
    const json_t *pre = get(metadata, "pre");
    const char *name = pre == NULL ? "default" : json_string_value(pre);
    int prefix_space;

    *which = name != NULL ? find_pretokenizer(name) : -1;
    if (*which == -1) {
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.pre: \"%.60s\" is not supported",
                        name != NULL ? name : "?");
    }
    if (moe_json_flag(metadata, "tokenizer.ggml.add_space_prefix", 0, &prefix_space, error) != 0) {
        return -1;
    }
    if (json_object_set_new(tokenizer, "pre_tokenizer", moe_gguf_pretokenizer(name, prefix_space))
            != 0
        || json_object_set_new(tokenizer, "decoder", json_pack("{s:s}", "type", "ByteLevel")) != 0
        || (pretokenizers[*which].nfc
            && json_object_set_new(tokenizer, "normalizer", json_pack("{s:s}", "type", "NFC"))
               != 0))
    {
        return moe_fail(error, MOE_LIMIT, "out of memory for a tokenizer");
    }
    return 0;
}


static int read_tokenizer(json_t *tokenizer, const json_t *metadata, moe_error_t *error)
{
    const char *model = json_string_value(get(metadata, "model"));
    int bos, eos, which = 0;

    if (model == NULL) {
        return fail(error, "model", "missing");
    }
    if (strcmp(model, "gpt2") != 0) {
        return moe_fail(error, MOE_BAD_MODEL, "tokenizer.ggml.model: \"%.60s\" is not supported, "
                        "only gpt2", model);
    }
    if (read_pretokenizer(tokenizer, metadata, &which, error) != 0
        || moe_json_flag(metadata, "tokenizer.ggml.add_bos_token", pretokenizers[which].bos, &bos,
                         error) != 0
        || moe_json_flag(metadata, "tokenizer.ggml.add_eos_token", 0, &eos, error) != 0)
    {
        return -1;
    }
    return read_tokens(tokenizer, metadata, pretokenizers[which].whole, error) != 0
           || read_ends(tokenizer, metadata, bos, eos, error) != 0 ? -1 : 0;
}


moe_tokenizer_t *moe_gguf_tokenizer(const json_t *metadata, const char *where, moe_error_t *error)
{
    json_t *json = json_object();
    moe_tokenizer_t *tokenizer = NULL;

    if (read_tokenizer(json, metadata, error) == 0) {
        tokenizer = moe_tokenizer_create(json, error);
        if (tokenizer == NULL) {
            moe_fail_in(error, "tokenizer.ggml");
        }
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
    moe_chat_t *chat = NULL;
    int rc = 0;

    if (template != NULL) {
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
