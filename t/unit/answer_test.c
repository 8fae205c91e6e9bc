/*
 * Answers taken apart: each text with its markers as tokens and spelt out, cut at every byte, in
 * bytes, and in two places; what comes out must be the same.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/text/answer.h"
#include "engine/text/vocab.h"

#define DEMO "conf/models/nginx-directives-moe"

enum {                          /* of a row */
    TOKENS = 1,                 /* only with markers as tokens */
    SPELT = 2,                  /* only spelt out */
    NO_TOOLS = 4,               /* the request has none */
    ONE = 8                     /* parallel_tool_calls = false */
};

typedef struct {
    const char *tools, *reasoning;      /* parsers */
    const char *prompt;                 /* its end, as the template wrote it */
    const char *text;
    const char *expected;               /* R(reasoning) C(content) F(name|arguments) */
    int flags;
} row_t;

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},"
    "\"m\":{\"type\":[\"string\",\"null\"]},\"e\":{\"enum\":[\"1\",\"2\"]},"
    "\"y\":{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"null\"}]}}}}}]";

/* All markers, and which of them are special tokens. */
static const struct {
    const char *text;
    int special;
} markers[] = {
    { "<think>", 0 }, { "</think>", 0 }, { "<tool_call>", 0 }, { "</tool_call>", 0 },
    { "<arg_key>", 0 }, { "</arg_key>", 0 }, { "<arg_value>", 0 }, { "</arg_value>", 0 },
    { "<minimax:tool_call>", 0 }, { "</minimax:tool_call>", 0 }, { "[TOOL_CALLS]", 1 },
    { "[ARGS]", 1 }, { "[CALL_ID]", 1 }, { "<｜tool▁call▁begin｜>", 0 },
    { "<｜tool▁call▁end｜>", 0 }, { "<｜tool▁calls▁begin｜>", 0 }, { "<｜tool▁calls▁end｜>", 0 },
    { "<｜tool▁sep｜>", 0 }, { "<|tool_call_begin|>", 1 }, { "<|tool_call_end|>", 1 },
    { "<|tool_calls_section_begin|>", 1 }, { "<|tool_calls_section_end|>", 1 },
    { "<|tool_call_argument_begin|>", 1 }, { "<|start|>", 1 }, { "<|channel|>", 1 },
    { "<|constrain|>", 1 }, { "<|message|>", 1 }, { "<|end|>", 1 }, { "<|return|>", 1 },
    { "<|call|>", 1 }, { "<tool_call:opensource>", 1 }, { "</tool_call:opensource>", 1 },
    { "<tool_calls:opensource>", 1 }, { "</tool_calls:opensource>", 1 },
    { "<tool_sep:opensource>", 1 }, { "<arg_key:opensource>", 1 }, { "</arg_key:opensource>", 1 },
    { "<arg_value:opensource>", 1 }, { "</arg_value:opensource>", 1 }
};

#define N_MARKERS (sizeof(markers) / sizeof(markers[0]))

static moe_tokenizer_t *with_tokens, *without;


static int load(void **state)
{
    json_t *json = json_load_file(DEMO "/tokenizer.json", 0, NULL);
    json_t *added = json_object_get(json, "added_tokens");
    char directory[] = "/tmp/moe-answer-test-XXXXXX", path[64];
    moe_error_t error;

    without = moe_tokenizer_load(DEMO, &error);
    for (size_t i = 0; i < N_MARKERS; i++) {
        json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", (int) (100000 + i),
                                               "content", markers[i].text, "special",
                                               markers[i].special));
    }
    snprintf(path, sizeof(path), "%s/tokenizer.json", mkdtemp(directory));
    if (json_dump_file(json, path, 0) == 0) {
        with_tokens = moe_tokenizer_load(directory, &error);
    }
    unlink(path);
    rmdir(directory);
    json_decref(json);
    return with_tokens && without ? 0 : -1;
}


static int unload(void **state)
{
    moe_tokenizer_free(with_tokens);
    moe_tokenizer_free(without);
    return 0;
}


/* The marker that a text begins with, or N_MARKERS. */
static size_t marker_at(const char *text)
{
    size_t i = 0;

    while (i < N_MARKERS && strncmp(text, markers[i].text, strlen(markers[i].text)) != 0) {
        i++;
    }
    return i;
}


/* The text as it is pushed: `^` before a marker spells it out. */
static void encode(const moe_answer_t *answer, const char *text, int as_tokens, moe_buffer_t *out)
{
    moe_error_t error;

    while (*text) {
        size_t i = as_tokens && *text != '^' ? marker_at(text) : N_MARKERS;
        uint32_t id = i < N_MARKERS ? moe_tokenizer_added(with_tokens, markers[i].text,
                                                          strlen(markers[i].text)) : 0;
        int marker = i < N_MARKERS ? moe_answer_marker(answer, id) : -1;

        text += *text == '^';
        if (marker != -1) {
            assert_int_equal(moe_answer_mark(out, marker, &error), 0);
            text += strlen(markers[i].text);
        } else {
            assert_int_equal(moe_buffer_append(out, text++, 1, &error), 0);
        }
    }
}


static void write_deltas(const moe_deltas_t *deltas, moe_buffer_t *out)
{
    static const char letters[] = "?CRF";
    moe_error_t error;

    for (uint32_t i = 0; i < deltas->count; i++) {
        moe_delta_t delta = moe_deltas_at(deltas, i);
        int last = i + 1 == deltas->count || delta.kind == MOE_DELTA_CALL
                   || moe_deltas_at(deltas, i + 1).kind != delta.kind;
        int first = i == 0 || delta.kind == MOE_DELTA_CALL
                    || moe_deltas_at(deltas, i - 1).kind != delta.kind;

        if (first) {
            moe_buffer_append(out, (char[]) { letters[delta.kind], '(' }, 2, &error);
        }
        if (delta.kind == MOE_DELTA_CALL) {
            moe_buffer_append(out, delta.name.data, delta.name.size, &error);
            moe_buffer_append(out, "|", 1, &error);
        }
        moe_buffer_append(out, delta.text.data, delta.text.size, &error);
        if (last) {
            moe_buffer_append(out, ") ", 2, &error);
        }
    }
    out->size -= out->size > 0;
    moe_buffer_append(out, "", 1, &error);
}


static moe_answer_format_t *new_format(const row_t *row, int as_tokens)
{
    const moe_answer_settings_t settings = {
        .tool_parser = row->tools, .reasoning_parser = row->reasoning
    };
    moe_error_t error;
    moe_answer_format_t *format =
        moe_answer_format_create(&settings, as_tokens ? with_tokens : without, &error);

    assert_non_null(format);
    return format;
}


static moe_answer_t *new_answer(const row_t *row, const moe_answer_format_t *format)
{
    const char *prompt = row->prompt ? row->prompt : "<|user|>hi";
    moe_text_t text = { .n_trusted = 0 };
    moe_answer_options_t options = {
        .prompt = &text, .calls = !(row->flags & NO_TOOLS), .one_call = (row->flags & ONE) != 0,
        .tools = { tools_json, sizeof(tools_json) - 1 }, .seed = 1
    };
    moe_answer_t *answer;
    moe_error_t error;

    assert_int_equal(moe_text_append(&text, "u: </think><think>\n", 19, 0, &error), 0);
    assert_int_equal(moe_text_append(&text, prompt, strlen(prompt), 1, &error), 0);
    answer = moe_answer_create(format, &options, &error);
    assert_non_null(answer);
    moe_text_free(&text);
    return answer;
}


/* Pushes up to the cuts, which never lie inside of a mark, and so on in steps of `step`. */
static void run(const row_t *row, const moe_answer_format_t *format, int as_tokens, size_t cut,
                size_t other, size_t step)
{
    moe_answer_t *answer = new_answer(row, format);
    moe_buffer_t text = { .limit = 0 }, out = { .limit = 0 };
    moe_deltas_t deltas = { .count = 0 };
    moe_error_t error;
    size_t at = 0, next;

    encode(answer, row->text, as_tokens, &text);
    for (; at < text.size; at = next) {
        next = at < cut ? cut : at < other ? other : at + step;
        next = next > text.size ? text.size : next;
        next += next < text.size && (unsigned char) text.data[next - 1] == 0xff;
        assert_int_equal(moe_answer_push(answer, text.data + at, next - at, &deltas, &error), 0);
    }
    assert_int_equal(moe_answer_finish(answer, &deltas, &error), 0);
    write_deltas(&deltas, &out);
    if (strcmp(out.data, row->expected) != 0) {
        fail_msg("%s%s, cut at %zu, %zu and every %zu:\n%s\n%s\nnot\n%s", row->tools,
                 as_tokens ? "" : " (spelt)", cut, other, step, row->text, out.data,
                 row->expected);
    }
    moe_buffer_free(&text);
    moe_buffer_free(&out);
    moe_deltas_free(&deltas);
    moe_answer_free(answer);
}


static void check(const row_t *row, int as_tokens)
{
    moe_answer_format_t *format = new_format(row, as_tokens);
    size_t size = strlen(row->text);

    run(row, format, as_tokens, 0, 0, size + 1);
    for (size_t step = 1; step < 5; step++) {
        run(row, format, as_tokens, 0, 0, step);
    }
    for (size_t cut = 1; cut < size; cut++) {
        run(row, format, as_tokens, cut, 0, size);
        run(row, format, as_tokens, cut, cut + 1 + cut % 7, size);
    }
    moe_answer_format_free(format);
}


static void check_all(const row_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!(rows[i].flags & SPELT)) {
            check(&rows[i], 1);
        }
        if (!(rows[i].flags & TOKENS)) {
            check(&rows[i], 0);
        }
    }
}


#define CHECK(rows) check_all(rows, sizeof(rows) / sizeof(rows[0]))


static void reasoning(void **state)
{
    static const row_t rows[] = {
        { "none", "think", NULL, "<think>\na b\n</think>\n\nc d", "R(a b) C(c d)", 0 },
        { "none", "think", NULL, " \n<think>a</think>b", "R(a) C(b)", 0 },
        { "none", "think", NULL, "<think>\n\n</think>\n\nb\n", "C(b\n)", 0 },
        { "none", "think", NULL, "<think>a", "R(a)", 0 },
        { "none", "think", NULL, "<think>a\n\n", "R(a\n\n)", 0 },
        { "none", "think", NULL, "<think>a</think>", "R(a)", 0 },
        { "none", "think", NULL, "x <think>a</think>", "C(x <think>a</think>)", 0 },
        { "none", "think", NULL, "  x\n", "C(  x\n)", 0 },
        { "none", "think", NULL, "<think>a</think>b<think>c</think>",
          "R(a) C(b<think>c</think>)", 0 },
        { "none", "think", "<|assistant|><think>\n", "a\n</think>\nb", "R(a) C(b)", 0 },
        { "none", "think", "<|assistant|><think>", "a", "R(a)", 0 },
        { "none", "think", "<think>\n\n</think>\n\n", "a</think>b", "C(a</think>b)", 0 },
        { "none", "think", "<|assistant|></think>", "a", "C(a)", 0 },
        { "none", "think", NULL, "^<think>a^</think>b", "C(<think>a</think>b)", TOKENS },
        { "none", "think", NULL, "<think>say \"^</think>\"</think>b",
          "R(say \"</think>\") C(b)", TOKENS },
        { "none", "think", NULL, "<thin", "C(<thin)", 0 },
        { "none", "think", NULL, "<think>a</thin", "R(a</thin)", 0 },
        { "none", "think", NULL, "<think></thi</think>b", "R(</thi) C(b)", 0 },
        { "none", "none", NULL, "<think>a</think>b", "C(<think>a</think>b)", 0 },
        { "none", "think", NULL, "", "", 0 },
        { "hermes", "think", NULL, "<think>a <tool_call>{</think>\n\n<tool_call>\n"
          "{\"name\": \"f\", \"arguments\": {\"s\": \"</think>\"}}\n</tool_call>",
          "R(a <tool_call>{) F(f|{\"s\": \"</think>\"})", SPELT },
        /* reasoning that nobody closed ends where a special token begins calls */
        { "kimi", "think", "<think>", "a\n<|tool_calls_section_begin|><|tool_call_begin|>"
          "functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
          "R(a) F(f|{})", TOKENS },
    };

    CHECK(rows);
}


static void hermes(void **state)
{
    static const row_t rows[] = {
        { "hermes", "none", NULL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.50}}\n"
          "</tool_call>", "F(f|{\"n\": 1.50})", 0 },
        { "hermes", "none", NULL,
          "say\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
          "<tool_call>{\"arguments\":{\"a\":[1,{}]},\"name\":\"g\"}</tool_call>\n",
          "C(say) F(f|{}) F(g|{\"a\":[1,{}]})", 0 },
        { "hermes", "none", NULL,
          "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\nafter\n",
          "F(f|{}) C(after\n)", 0 },
        { "hermes", "none", NULL, "a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b ",
          "C(a <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> b )", NO_TOOLS },
        { "hermes", "none", NULL, "<tool_call>{\"name\":\"f\"}</tool_call>"
          "<tool_call>{\"name\":\"g\",\"parameters\":{\"x\":null}}</tool_call>"
          "<tool_call>{\"name\":\"h\",\"arguments\":\"{\\\"x\\\":1}\"}</tool_call>"
          "<tool_call>{\"name\":\"i\",\"arguments\":null}</tool_call>",
          "F(f|{}) F(g|{\"x\":null}) F(h|{\"x\":1}) F(i|{})", 0 },
        { "hermes", "none", NULL, "<tool_call>{\"name\":\"f\"}</tool_call>"
          "<tool_call>{\"name\":\"g\"}</tool_call>", "F(f|{})", ONE },
        /* the second marker inside a string: as text it is the string's */
        { "hermes", "none", NULL,
          "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"^</tool_call>\\\""
          "^</tool_call>\"}}</tool_call>",
          "F(f|{\"s\":\"</tool_call>\\\"</tool_call>\"})", 0 },
        { "hermes", "none", NULL,
          "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call>\"}}",
          "C(<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call>\"}})", TOKENS },
        /* no calls: what was read is content */
        { "hermes", "none", NULL, "x\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"s\":\"a",
          "C(x\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"s\":\"a)", 0 },
        { "hermes", "none", NULL, "<tool_call>no JSON</tool_call> y",
          "C(<tool_call>no JSON</tool_call> y)", 0 },
        { "hermes", "none", NULL, "<tool_call>[]</tool_call>", "C(<tool_call>[]</tool_call>)", 0 },
        { "hermes", "none", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
          "C(<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>)", 0 },
        { "hermes", "none", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}"
          "</tool_call>", "C(<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}"
          "</tool_call>)", 0 },
        { "hermes", "none", NULL, "<tool_call>{\"name\":\"\"}</tool_call>",
          "C(<tool_call>{\"name\":\"\"}</tool_call>)", 0 },
        { "hermes", "none", NULL, "<tool_call>{\"name\":\"f\",\"argu\\u006dents\":{\"a\":1}}"
          "</tool_call>", "C(<tool_call>{\"name\":\"f\",\"argu\\u006dents\":{\"a\":1}}"
          "</tool_call>)", 0 },
        { "hermes", "none", NULL, "<tool_call></tool_call>", "C(<tool_call></tool_call>)", 0 },
        { "hermes", "none", NULL, "a </tool_call> b", "C(a </tool_call> b)", 0 },
        { "hermes", "none", NULL, "^<tool_call>{\"name\":\"f\"}^</tool_call>",
          "C(<tool_call>{\"name\":\"f\"}</tool_call>)", TOKENS },
        /* a broken one before a good one */
        { "hermes", "none", NULL, "<tool_call>{\"na<tool_call>{\"name\":\"f\"}</tool_call>",
          "C(<tool_call>{\"na) F(f|{})", TOKENS },
        { "hermes", "none", NULL,
          "<tool_call>{]]]</tool_call><tool_call>{\"name\":\"f\"}</tool_call>",
          "C(<tool_call>{]]]</tool_call>) F(f|{})", 0 },
        /* whole but not closed */
        { "hermes", "none", NULL, "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"s\":\"é€\"}}\n",
          "F(f|{\"s\":\"é€\"})", 0 },
        { "hermes", "none", NULL, "<tool_cal", "C(<tool_cal)", 0 },
        { "hermes", "none", NULL, "a\n\n<tool_cat> ", "C(a\n\n<tool_cat> )", 0 },
    };

    CHECK(rows);
}


static void mistral(void **state)
{
    static const row_t rows[] = {
        { "mistral", "none", NULL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}}]",
          "F(f|{\"n\": 1})", 0 },
        { "mistral", "none", NULL, "a [TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"s\":\"]\"}},"
          " {\"name\":\"g\",\"arguments\":{}}] b", "C(a) F(f|{\"s\":\"]\"}) F(g|{}) C(b)", 0 },
        { "mistral", "none", NULL,
          "[TOOL_CALLS]f[ARGS]{\"s\": \"}\"}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}",
          "F(f|{\"s\": \"}\"}) F(g|{})", 0 },
        { "mistral", "none", NULL, "[TOOL_CALLS]f{\"n\": 1}", "F(f|{\"n\": 1})", 0 },
        { "mistral", "none", NULL, "[TOOL_CALLS]f[ARGS]", "C([TOOL_CALLS]f[ARGS])", 0 },
        { "mistral", "none", NULL, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"n\":1",
          "C([TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"n\":1)", 0 },
        { "mistral", "none", NULL, "[TOOL_CALLS][{\"name\":\"f\"}, 7]",
          "C([TOOL_CALLS][{\"name\":\"f\"}, 7])", 0 },
        { "mistral", "none", NULL, "[TOOL_CALLS]", "C([TOOL_CALLS])", 0 },
        { "mistral", "none", NULL, "[TOOL", "C([TOOL)", 0 },
    };

    CHECK(rows);
}


#define DS_CALLS "<｜tool▁calls▁begin｜>"
#define DS_CALLS_END "<｜tool▁calls▁end｜>"
#define DS_CALL "<｜tool▁call▁begin｜>"
#define DS_CALL_END "<｜tool▁call▁end｜>"
#define DS_SEP "<｜tool▁sep｜>"


static void deepseek(void **state)
{
    static const row_t rows[] = {
        { "deepseek", "think", "<｜Assistant｜><think>\n", "why\n</think>\n\n" DS_CALLS DS_CALL
          "function" DS_SEP "f\n```json\n{\"s\": \"```\"}\n```" DS_CALL_END "\n" DS_CALL "function"
          DS_SEP "g\n```json\n{}\n```" DS_CALL_END DS_CALLS_END,
          "R(why) F(f|{\"s\": \"```\"}) F(g|{})", 0 },
        { "deepseek", "none", NULL,
          "ok" DS_CALLS DS_CALL "f" DS_SEP "{\"n\": 1}" DS_CALL_END DS_CALL
          "g" DS_SEP DS_CALL_END DS_CALLS_END "\n", "C(ok) F(f|{\"n\": 1}) F(g|{})", 0 },
        { "deepseek", "none", NULL, DS_CALLS DS_CALL "f" DS_SEP "{\"n\": 1}" DS_CALL_END DS_CALL
          "g" DS_SEP "{\"n\":", "F(f|{\"n\": 1}) C(" DS_CALL "g" DS_SEP "{\"n\":)", 0 },
        { "deepseek", "none", NULL, DS_CALLS DS_CALL "f" DS_SEP,
          "C(" DS_CALLS DS_CALL "f" DS_SEP ")", 0 },
        { "deepseek", "none", NULL, DS_CALLS "text", "C(" DS_CALLS "text)", 0 },
        { "deepseek", "none", NULL, DS_CALL "function" DS_SEP "f\n{}" DS_CALL_END,
          "C(" DS_CALL "function" DS_SEP "f\n{}" DS_CALL_END ")", 0 },
        { "deepseek", "none", NULL, DS_CALL "f {}" DS_CALL_END, "C(" DS_CALL "f {}" DS_CALL_END ")",
          0 },
    };

    CHECK(rows);
}


#define KIMI_CALL(id, arguments)                                                                   \
    "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" arguments "<|tool_call_end|>"
#define KIMI_CALLS(calls) "<|tool_calls_section_begin|>" calls "<|tool_calls_section_end|>"


static void kimi(void **state)
{
    static const row_t rows[] = {
        { "kimi", "think", NULL, "<think>why</think>so " KIMI_CALLS(KIMI_CALL(" functions.f:0 ",
          "{\"n\":1}") KIMI_CALL("functions.g:1", "{}")), "R(why) C(so) F(f|{\"n\":1}) F(g|{})",
          0 },
        { "kimi", "none", NULL, KIMI_CALLS(KIMI_CALL("plain", "{\"s\":\"^<|tool_call_end|>\"}")),
          "F(plain|{\"s\":\"<|tool_call_end|>\"})", 0 },
        { "kimi", "none", NULL, KIMI_CALLS(KIMI_CALL("functions.f:0", "{")),
          "C(" KIMI_CALLS(KIMI_CALL("functions.f:0", "{")) ")", 0 },
        { "kimi", "none", NULL, KIMI_CALLS("<|tool_call_begin|>functions.f:0<|tool_call_end|>"),
          "C(" KIMI_CALLS("<|tool_call_begin|>functions.f:0<|tool_call_end|>") ")", 0 },
    };

    CHECK(rows);
}


static void qwen3_coder(void **state)
{
    static const row_t rows[] = {
        { "qwen3_coder", "none", NULL,
          "ok\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n"
          "<parameter=n>\n12\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=o>\n"
          "{\"k\": [1, 2.50]}\n</parameter>\n</function>\n</tool_call>",
          "C(ok) F(f|{\"s\":\"12\",\"n\":12,\"b\":true,\"o\":{\"k\": [1, 2.50]}})", 0 },
        { "qwen3_coder", "none", NULL,
          "<tool_call>\n<function=f>\n<parameter=s>\n  x\n\n\"</parameter>\" "
          "é\n</parameter>\n</function>\n</tool_call>",
          "F(f|{\"s\":\"  x\\n\\n\\\"</parameter>\\\" é\"})", 0 },
        { "qwen3_coder", "none", NULL, "<tool_call><function=f></function></tool_call>"
          "<tool_call><function=g></function><function=h></function></tool_call>",
          "F(f|{}) F(g|{}) F(h|{})", 0 },
        { "qwen3_coder", "none", NULL, "<tool_call><function=f><parameter=n>five</parameter>"
          "<parameter=m>null</parameter><parameter=e>1</parameter><parameter=y>None</parameter>"
          "<parameter=u>[1]</parameter><parameter=v>x</parameter></function></tool_call>",
          "F(f|{\"n\":\"five\",\"m\":null,\"e\":\"1\",\"y\":null,\"u\":[1],\"v\":\"x\"})", 0 },
        { "qwen3_coder", "none", NULL, "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n"
          "</function>", "F(f|{\"s\":\"a\"})", 0 },
        { "qwen3_coder", "none", NULL,
          "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n",
          "C(<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n)", 0 },
        { "qwen3_coder", "none", NULL, "<tool_call>\n<function=f>\n<parameter=s>\na",
          "C(<tool_call>\n<function=f>\n<parameter=s>\na)", 0 },
        { "qwen3_coder", "none", NULL, "<tool_call><function=f>x</function></tool_call>",
          "C(<tool_call><function=f>x</function></tool_call>)", 0 },
        { "qwen3_coder", "none", NULL,
          "<tool_call><function=f><parameter=s>1</parameter><parameter=s>2"
          "</parameter></function></tool_call>", "C(<tool_call><function=f><parameter=s>1"
          "</parameter><parameter=s>2</parameter></function></tool_call>)", 0 },
        { "qwen3_coder", "none", NULL, "<tool_call><function=></function></tool_call>",
          "C(<tool_call><function=></function></tool_call>)", 0 },
    };

    CHECK(rows);
}


static void minimax(void **state)
{
    static const row_t rows[] = {
        { "minimax", "think", "]~b]ai\n<think>\n", "hm\n</think>\n\n<minimax:tool_call>\n"
          "<invoke name=\"f\">\n<parameter name=\"s\">a > b</parameter>\n<parameter name=\"n\">7"
          "</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
          "R(hm) F(f|{\"s\":\"a > b\",\"n\":7}) F(g|{})", 0 },
        { "minimax", "none", NULL,
          "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a",
          "C(<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a)", 0 },
    };

    CHECK(rows);
}


static void glm(void **state)
{
    static const row_t rows[] = {
        { "glm", "think", NULL,
          "\n<think>hm</think>\nok\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1"
          "</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n",
          "R(hm) C(ok) F(f|{\"s\":\"1\",\"n\":1})", 0 },
        { "glm", "none", NULL, "<tool_call>f<arg_key>a</arg_key><arg_value>[1,\n2]</arg_value>"
          "<arg_key>o</arg_key><arg_value>{}</arg_value></tool_call><tool_call>g</tool_call>",
          "F(f|{\"a\":[1,\n2],\"o\":{}}) F(g|{})", 0 },
        { "glm", "none", NULL,
          "<tool_call>f<arg_key>s</arg_key><arg_value>^</arg_value>\n ^<arg_key>"
          "</arg_value></tool_call>", "F(f|{\"s\":\"</arg_value>\\n <arg_key>\"})", TOKENS },
        { "glm", "none", NULL, "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>",
          "C(<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>)", 0 },
        { "glm", "none", NULL, "<tool_call>f<arg_key>s</arg_key>a</tool_call>",
          "C(<tool_call>f<arg_key>s</arg_key>a</tool_call>)", 0 },
        { "glm", "none", NULL,
          "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>b</tool_call>",
          "C(<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>b</tool_call>)", 0 },
        { "glm", "none", NULL, "<tool_call>f<arg_key>s<think></arg_key><arg_value>a</arg_value>"
          "</tool_call>", "F(f|{\"s<think>\":\"a\"})", 0 },
        { "glm", "think", NULL, "<tool_call>f<arg_key>s<think></arg_key><arg_value>a</arg_value>"
          "</tool_call>", "C(<tool_call>f<arg_key>s<think></arg_key><arg_value>a</arg_value>"
          "</tool_call>)", TOKENS },
    };

    CHECK(rows);
}


#define HY3(text) "<" text ":opensource>"


static void hy3(void **state)
{
    static const row_t rows[] = {
        { "hy3", "none", NULL, "ok" HY3("tool_calls") "\n" HY3("tool_call") "f" HY3("tool_sep") "\n"
          HY3("arg_key") "s" HY3("/arg_key") "\n" HY3("arg_value") "1" HY3("/arg_value") "\n"
          HY3("/tool_call") "\n" HY3("tool_call") "g" HY3("tool_sep") HY3("/tool_call")
          HY3("/tool_calls"), "C(ok) F(f|{\"s\":\"1\"}) F(g|{})", 0 },
        { "hy3", "none", NULL, HY3("tool_call") "f" HY3("tool_sep"),
          "C(" HY3("tool_call") "f" HY3("tool_sep") ")", 0 },
        { "hy3", "none", NULL, HY3("tool_call") "f" HY3("/tool_call"),
          "C(" HY3("tool_call") "f" HY3("/tool_call") ")", 0 },
    };

    CHECK(rows);
}


static void harmony(void **state)
{
    static const row_t rows[] = {
        { "harmony", "harmony", "<|start|>assistant", "<|channel|>analysis<|message|>hm<|end|>"
          "<|start|>assistant<|channel|>final<|message|>\nso\n<|return|>", "R(hm) C(\nso\n)", 0 },
        { "harmony", "harmony", "<|start|>assistant",
          "<|channel|>analysis<|message|>a<|end|><|start|>"
          "assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant to=functions.f"
          "<|channel|>commentary json<|message|>{\"n\": 1}<|call|>",
          "R(a\n\nb) F(f|{\"n\": 1})", 0 },
        { "harmony", "harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f "
          "<|constrain|>json<|message|>{\"s\":\"^<|call|>\"}<|call|><|start|>assistant<|channel|>"
          "commentary to=functions.g<|message|>{}", "F(f|{\"s\":\"<|call|>\"}) F(g|{})", 0 },
        { "harmony", "harmony", "<|start|>assistant", "<|channel|>commentary<|message|>Let me see."
          "<|end|><|start|>assistant<|channel|>final<|message|>Seen.",
          "C(Let me see.\n\nSeen.)", 0 },
        { "harmony", "harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f "
          "<|constrain|>json<|message|>{\"n\":", "C({\"n\":)", 0 },
        { "harmony", "harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f"
          "<|message|>{\"n\":1}<|call|>", "C({\"n\":1})", NO_TOOLS },
        { "none", "harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f"
          "<|message|>{\"n\":1}<|call|>", "C({\"n\":1})", 0 },
        { "harmony", "none", "<|start|>assistant", "<|channel|>analysis<|message|>hm<|end|>",
          "C(hm)", 0 },
        { "harmony", "harmony", "<|start|>assistant", "no channels", "C(no channels)", 0 },
        { "harmony", "harmony", "<|start|>assistant", "<|channel|>final", "", 0 },
        { "harmony", "harmony", "<|start|>assistant",
          "<|channel|>analysis<|message|>a<|start|>assistant"
          "<|channel|>final<|message|>b<|end|>c", "R(a) C(b\n\nc)", 0 },
        { "harmony", "harmony", "<|start|>assistant<|channel|>final<|message|>", "a", "C(a)", 0 },
        { "harmony", "harmony", "<|start|>assistant",
          "<|channel|>commentary to=functions.f<|message|>"
          "{}<|call|><|channel|>commentary to=functions.g<|message|><|call|>", "F(f|{})", ONE },
    };

    CHECK(rows);
}


static void ids(void **state)
{
    static const row_t rows[] = {
        { .tools = "hermes", .reasoning = "none", .text = "<tool_call>{\"name\":\"f\"}</tool_call"
          ">" },
        { .tools = "kimi", .reasoning = "none",
          .text = KIMI_CALL("functions.f:3", "{}") KIMI_CALL("functions.f:3", "{}")
                  KIMI_CALL("g", "{}") KIMI_CALL("functions.h:99999999", "{}") }
    };
    static const char *const kimi_ids[] = { "functions.f:3", "functions.f:4", "functions.g:5",
                                            "functions.h:99999999" };
    moe_answer_format_t *formats[2] = { new_format(&rows[0], 1), new_format(&rows[1], 1) };
    moe_answer_t *answer = new_answer(&rows[0], formats[0]);
    moe_deltas_t deltas = { .count = 0 };
    moe_buffer_t text = { .limit = 0 };
    moe_error_t error;

    encode(answer, rows[0].text, 1, &text);
    for (unsigned i = 0; i < 3000; i++) {
        assert_int_equal(moe_answer_push(answer, text.data, text.size, &deltas, &error), 0);
    }
    assert_int_equal(deltas.count, 3000);
    for (uint32_t i = 0; i < deltas.count; i++) {
        moe_string_t id = moe_deltas_at(&deltas, i).id;

        assert_int_equal(id.size, 9);
        for (uint32_t k = 0; k < 9; k++) {
            assert_true((id.data[k] >= '0' && id.data[k] <= '9')
                        || (id.data[k] >= 'A' && id.data[k] <= 'Z')
                        || (id.data[k] >= 'a' && id.data[k] <= 'z'));
        }
        for (uint32_t k = 0; k < i && i < 500; k++) {
            assert_memory_not_equal(id.data, moe_deltas_at(&deltas, k).id.data, 9);
        }
    }
    moe_answer_free(answer);
    moe_deltas_clear(&deltas);
    text.size = 0;

    answer = new_answer(&rows[1], formats[1]);
    encode(answer, rows[1].text, 1, &text);
    assert_int_equal(moe_answer_push(answer, text.data, text.size, &deltas, &error), 0);
    assert_int_equal(deltas.count, 4);
    for (uint32_t i = 0; i < deltas.count; i++) {
        moe_string_t id = moe_deltas_at(&deltas, i).id;

        assert_int_equal(id.size, strlen(kimi_ids[i]));
        assert_memory_equal(id.data, kimi_ids[i], id.size);
    }
    moe_answer_free(answer);
    moe_deltas_free(&deltas);
    moe_buffer_free(&text);
    moe_answer_format_free(formats[0]);
    moe_answer_format_free(formats[1]);
}


/* The final message that the client wrote decides where the answer goes on; its other messages
 * do not. */
static void prompts(void **state)
{
    static const struct {
        const char *given, *trusted, *final;
        int reasons;
    } rows[] = {
        { "<think>", "<|assistant|>", "", 0 }, { "", "<|assistant|><think>\n", "", 1 },
        { "<think>", "<|assistant|>", "so", 0 }, { "", "<|assistant|>", "<think>\nso", 1 },
        { "", "<|assistant|>", "<think>\nso</think> ", 0 }, { "", "<think>", "so", 1 },
        { "", "<think>", "so</think>b", 0 }, { "<think>", "", "", 1 }, { "", "", "", 0 }
    };
    static const row_t row = { .tools = "none", .reasoning = "think" };
    moe_answer_format_t *format = new_format(&row, 1);
    moe_error_t error;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        moe_text_t prompt = { .n_trusted = 0 };
        moe_answer_options_t options = { .prompt = &prompt };
        moe_answer_t *answer;

        moe_text_append(&prompt, rows[i].given, strlen(rows[i].given), 0, &error);
        moe_text_append(&prompt, rows[i].trusted, strlen(rows[i].trusted), 1, &error);
        moe_text_append(&prompt, rows[i].final, strlen(rows[i].final), 0, &error);
        answer = moe_answer_create(format, &options, &error);
        assert_non_null(answer);
        if (moe_answer_reasons(answer) != rows[i].reasons) {
            fail_msg("row %zu", i);
        }
        moe_answer_free(answer);
        moe_text_free(&prompt);
    }
    moe_answer_format_free(format);
}


static void chosen(void **state)
{
    static const struct {
        const char *template, *tools, *reasoning, *expected;
    } rows[] = {
        { "{{ messages }}", NULL, NULL, "none none" },
        { "a <tool_call> b </think>", NULL, NULL, "hermes think" },
        { "<tool_call><function=", NULL, NULL, "qwen3_coder none" },
        { "<tool_call><arg_key></think>", NULL, NULL, "glm think" },
        { "<minimax:tool_call></think>", NULL, NULL, "minimax think" },
        { "<｜tool▁call▁begin｜>", NULL, NULL, "deepseek none" },
        { "<|tool_call_begin|>", NULL, NULL, "kimi none" },
        { "[TOOL_CALLS]", NULL, NULL, "mistral none" },
        { "<|channel|><|message|>", NULL, NULL, "harmony harmony" },
        { "<tool_call></think>", "none", NULL, "none think" },
        { "<tool_call></think>", "glm", "none", "glm none" },
        { "<tool_call>", NULL, "think", "hermes think" },
        { "<|channel|>", "none", NULL, "none harmony" },
        { "<|channel|>", "none", "none", "none none" },
        { "<|channel|>", NULL, "none", "harmony none" },
        { "<|channel|>", "hermes", NULL, "hermes none" },
        { "<tool_call>", "harmony", NULL, "harmony harmony" },
        { "<tool_sep:opensource></think:opensource>", NULL, NULL, "hy3 think" },
        { "", "hermez", NULL, "tool_parser \"hermez\" is none of deepseek, glm, harmony, hermes, "
          "hy3, kimi, minimax, mistral, qwen3_coder or none" },
        { "", NULL, "hermes", "reasoning_parser \"hermes\" is none of harmony, think or none" },
        { "", "harmony", "think",
          "tool_parser harmony does not go with reasoning_parser think" },
        { "", "glm", "harmony", "tool_parser glm does not go with reasoning_parser harmony" },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const moe_answer_settings_t settings = {
            { rows[i].template, (uint32_t) strlen(rows[i].template) }, rows[i].tools,
            rows[i].reasoning
        };
        moe_error_t error;
        moe_answer_format_t *format = moe_answer_format_create(&settings, without, &error);
        char names[64];

        if (format == NULL) {
            assert_int_equal(error.code, MOE_INVALID);
            assert_string_equal(error.message, rows[i].expected);
            continue;
        }
        snprintf(names, sizeof(names), "%s %s", moe_answer_format_tools(format),
                 moe_answer_format_reasoning(format));
        assert_string_equal(names, rows[i].expected);
        moe_answer_format_free(format);
    }
}


/* `depth` arrays in an argument, and an argument of `size` bytes. */
static void push_large(const char *tools, size_t depth, size_t size, int is_call)
{
    const row_t row = { .tools = tools, .reasoning = "none" };
    moe_answer_format_t *format = new_format(&row, 0);
    moe_answer_t *answer = new_answer(&row, format);
    moe_deltas_t deltas = { .count = 0 };
    moe_buffer_t text = { .limit = 0 };
    moe_error_t error;
    size_t total = 0;

    moe_buffer_append(&text, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":", 40, &error);
    for (size_t i = 0; i < 2 * depth; i++) {
        moe_buffer_append(&text, i < depth ? "[" : "]", 1, &error);
    }
    moe_buffer_append(&text, depth ? ",\"y\":\"" : "0,\"y\":\"", depth ? 6 : 7, &error);
    for (size_t i = 0; i < size; i++) {
        moe_buffer_append(&text, "x", 1, &error);
    }
    moe_buffer_append(&text, "\"}}</tool_call>", 15, &error);
    for (size_t at = 0; at < text.size; at += 1000) {
        size_t n = text.size - at < 1000 ? text.size - at : 1000;

        assert_int_equal(moe_answer_push(answer, text.data + at, n, &deltas, &error), 0);
    }
    assert_int_equal(moe_answer_finish(answer, &deltas, &error), 0);
    for (uint32_t i = 0; i < deltas.count; i++) {
        moe_delta_t delta = moe_deltas_at(&deltas, i);

        assert_int_equal(delta.kind, is_call ? MOE_DELTA_CALL : MOE_DELTA_CONTENT);
        assert_memory_equal(delta.text.data, text.data + (is_call ? 35 : total), delta.text.size);
        total += delta.text.size;
    }
    assert_int_equal(total, is_call ? text.size - 35 - 13 : text.size);
    moe_buffer_free(&text);
    moe_deltas_free(&deltas);
    moe_answer_free(answer);
    moe_answer_format_free(format);
}


static void large(void **state)
{
    push_large("hermes", 0, 1000000, 1);
    push_large("hermes", 0, 1100000, 0);
    push_large("hermes", 1000, 10, 1);
    push_large("hermes", 100000, 10, 0);
    push_large("glm", 0, 1000000, 0);
    push_large("qwen3_coder", 100000, 2000000, 0);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning), cmocka_unit_test(hermes), cmocka_unit_test(mistral),
        cmocka_unit_test(deepseek), cmocka_unit_test(kimi), cmocka_unit_test(qwen3_coder),
        cmocka_unit_test(minimax), cmocka_unit_test(glm), cmocka_unit_test(hy3),
        cmocka_unit_test(harmony),
        cmocka_unit_test(ids), cmocka_unit_test(prompts), cmocka_unit_test(chosen),
        cmocka_unit_test(large)
    };

    return cmocka_run_group_tests(tests, load, unload);
}
