/*
 * The splits of the original tokenizers, one after another, and what else distinguishes them.  The
 * regexes are those of the models' own files, not llama.cpp's adaptations.
 */

#include "engine/text/known_splits.h"

#include <string.h>

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

static const moe_known_splits_t known[] = {
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


const moe_known_splits_t *moe_known_splits(const char *name)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        for (size_t k = 0; k < MOE_SPLIT_NAMES_LIMIT && known[i].names[k] != NULL; k++) {
            if (strcmp(known[i].names[k], name) == 0) {
                return &known[i];
            }
        }
    }
    return NULL;
}


json_t *moe_known_splits_json(const moe_known_splits_t *splits, json_t *first,
                              int add_prefix_space)
{
    json_t *steps = json_array();

    if (first != NULL) {
        json_array_append_new(steps, first);
    }
    for (size_t i = 0; i < MOE_SPLITS_LIMIT && splits->splits[i] != NULL; i++) {
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern",
                                               "Regex", splits->splits[i], "behavior",
                                               "Isolated"));
    }
    json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                           "add_prefix_space", add_prefix_space, "use_regex", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}
