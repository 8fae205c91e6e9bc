/*
 * An answer in any format: how it is cut changes nothing, arguments of calls are JSON objects, and
 * what is no call and no reasoning is the text as it was.
 *
 * The first byte chooses the format and whether markers are tokens, the second one the request and
 * how the text is cut; bytes below 32 in the text are markers.
 */

#include <jansson.h>

#include "engine/text/answer.h"
#include "engine/text/vocab.h"
#include "t/fuzz/fuzz.h"

static const char *const formats[][2] = {
    { "hermes", "think" }, { "qwen3_coder", "think" }, { "glm", "none" }, { "minimax", "think" },
    { "deepseek", "think" }, { "kimi", "think" }, { "mistral", "none" }, { "harmony", "harmony" },
    { "hy3", "none" }
};

#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static const char *const markers[] = {
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "\t", "\n", "</arg_value>", "<minimax:tool_call>", "</minimax:tool_call>", "[TOOL_CALLS]",
    "[ARGS]", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>",
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
    "[CALL_ID]"
};

#define N_MARKERS (sizeof(markers) / sizeof(markers[0]))

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
    "{\"s\":{\"type\":\"string\"},\"n\":{\"type\":[\"number\",\"null\"]},"
    "\"b\":{\"anyOf\":[{\"type\":\"boolean\"},{\"enum\":[\"x\",1]}]}}}}}]";

static moe_tokenizer_t *tokenizers[2];
static moe_answer_format_t *tables[2][N_FORMATS];


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    json_t *json = json_load_file(FUZZ_MODEL "/tokenizer.json", 0, NULL);
    moe_error_t error;
    char *text;

    for (size_t i = 0; i < N_MARKERS; i++) {
        json_array_append_new(json_object_get(json, "added_tokens"),
                              json_pack("{s:i, s:s, s:b}", "id", (int) (100000 + i), "content",
                                        markers[i], "special", (int) (i & 1)));
    }
    text = json_dumps(json, JSON_COMPACT);
    fuzz_check(text != NULL);
    fuzz_write("tokenizer.json", text, strlen(text));
    free(text);
    json_decref(json);
    tokenizers[0] = moe_tokenizer_load(FUZZ_MODEL, &error);
    tokenizers[1] = moe_tokenizer_load(fuzz_directory(), &error);
    fuzz_check(tokenizers[0] != NULL && tokenizers[1] != NULL);
    for (size_t i = 0; i < 2 * N_FORMATS; i++) {
        moe_answer_settings_t settings = {
            .tool_parser = formats[i / 2][0], .reasoning_parser = formats[i / 2][1]
        };

        tables[i % 2][i / 2] = moe_answer_format_create(&settings, tokenizers[i % 2], &error);
        fuzz_check(tables[i % 2][i / 2] != NULL);
    }
    return 0;
}


/* `shown`: the same with all markers written out. */
static void encode(const moe_answer_t *answer, const fuzz_input_t *text, moe_buffer_t *out,
                   moe_buffer_t *shown)
{
    moe_error_t error;

    for (size_t i = 0; i < text->size; i++) {
        unsigned char byte = (unsigned char) text->data[i];
        const char *word = byte < N_MARKERS ? markers[byte] : (const char[]) { (char) byte, 0 };
        uint32_t id = byte < N_MARKERS ? moe_tokenizer_added(tokenizers[1], word, strlen(word))
                                       : MOE_NO_TOKEN;
        int marker = id == MOE_NO_TOKEN ? -1 : moe_answer_marker(answer, id);
        size_t size = byte < N_MARKERS ? strlen(word) : 1;

        moe_buffer_append(shown, word, size, &error);
        if (marker != -1) {
            moe_answer_mark(out, marker, &error);
        } else {
            moe_buffer_append(out, word, size, &error);
        }
    }
}


static void check(const moe_delta_t *delta)
{
    json_t *json;

    fuzz_check(moe_utf8_valid_prefix(delta->text.data, delta->text.size) == delta->text.size);
    if (delta->kind == MOE_DELTA_CALL) {
        json = json_loadb(delta->text.data, delta->text.size,
                          JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        fuzz_check(json_is_object(json));
        json_decref(json);
        fuzz_check(delta->id.size > 0 && delta->name.size > 0);
        fuzz_check(moe_utf8_valid_prefix(delta->name.data, delta->name.size) == delta->name.size);
    }
}


static void run(const moe_answer_format_t *format, unsigned flags, const fuzz_input_t *input,
                size_t step, moe_deltas_t *deltas)
{
    const moe_answer_options_t options = {
        .calls = (int) (flags & 1), .one_call = (int) (flags >> 1 & 1),
        .tools = { tools, sizeof(tools) - 1 }
    };
    moe_error_t error;
    moe_answer_t *answer = moe_answer_create(format, &options, &error);
    moe_buffer_t text = { .limit = 0 }, shown = { .limit = 0 };
    size_t next;

    fuzz_check(answer != NULL);
    encode(answer, input, &text, &shown);
    for (size_t at = 0; at < text.size; at = next) {
        next = step < text.size - at ? at + step : text.size;
        next += next < text.size && (unsigned char) text.data[next - 1] == 0xff;
        fuzz_check(moe_answer_push(answer, text.data + at, next - at, deltas, &error) == 0);
    }
    fuzz_check(moe_answer_finish(answer, deltas, &error) == 0);
    if (strcmp(moe_answer_format_reasoning(format), "harmony") != 0 && deltas->count == 1
        && moe_deltas_at(deltas, 0).kind == MOE_DELTA_CONTENT
        && memmem(shown.data, shown.size, "<think>", 7) == NULL)
    {
        fuzz_check(deltas->bytes.size == shown.size);
        fuzz_check(memcmp(deltas->bytes.data, shown.data, shown.size) == 0);
    }
    moe_buffer_free(&text);
    moe_buffer_free(&shown);
    moe_answer_free(answer);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size };
    uint8_t choice = fuzz_byte(&input), flags = fuzz_byte(&input);
    const moe_answer_format_t *format = tables[choice & 1][(choice >> 1) % N_FORMATS];
    moe_deltas_t whole = { .count = 0 }, cut = { .count = 0 };

    if (moe_utf8_valid_prefix(input.data, input.size) != input.size) {
        return 0;
    }
    run(format, flags, &input, SIZE_MAX, &whole);
    run(format, flags, &input, 1 + (flags >> 2), &cut);
    fuzz_check(whole.count == cut.count && whole.bytes.size == cut.bytes.size);
    fuzz_check(whole.count == 0
               || memcmp(whole.bytes.data, cut.bytes.data, whole.bytes.size) == 0);
    for (uint32_t i = 0; i < whole.count; i++) {
        moe_delta_t delta = moe_deltas_at(&whole, i);

        fuzz_check(moe_deltas_at(&cut, i).kind == delta.kind);
        check(&delta);
    }
    moe_deltas_free(&whole);
    moe_deltas_free(&cut);
    return 0;
}
