/*
 * Which format a model has: the first one in the table whose sign is in the chat template, unless
 * the configuration names another.  The tokenizer then says which markers are tokens.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/text/answer_internal.h"

static const char none[] = "none", think[] = "think", harmony[] = "harmony";

static const char harmony_sign[] = "<|channel|>";

/* Markers of reasoning.  Where the template shows none: the last. */
static const char *const think_markers[][3] = {
    { "<think:opensource>", "</think:opensource>", NULL }, { "<think>", "</think>", NULL }
};

#define N_THINKS (sizeof(think_markers) / sizeof(think_markers[0]))

/* In the order of answer_harmony.c. */
static const char *const harmony_markers[] = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
    NULL
};

/* Those that share markers: first who has more of them. */
static const moe_call_style_t *const styles[] = {
    &moe_call_kimi, &moe_call_deepseek, &moe_call_minimax, &moe_call_qwen3_coder, &moe_call_glm,
    &moe_call_hy3, &moe_call_mistral, &moe_call_hermes
};

#define N_STYLES (sizeof(styles) / sizeof(styles[0]))


static int contains(const moe_answer_settings_t *settings, const char *sign)
{
    const moe_string_t *text = &settings->chat_template;

    return text->size > 0 && memmem(text->data, text->size, sign, strlen(sign)) != NULL;
}


/* The style of this name, or without one the style that the template shows. */
static const moe_call_style_t *find_style(const moe_answer_settings_t *settings, const char *name)
{
    for (size_t i = 0; i < N_STYLES; i++) {
        if (name ? strcmp(name, styles[i]->name) == 0 : contains(settings, styles[i]->sign)) {
            return styles[i];
        }
    }
    return NULL;
}


/* The template's markers of reasoning: which of them end it tells.  N_THINKS: it has none. */
static size_t find_think(const moe_answer_settings_t *settings)
{
    size_t i = 0;

    while (i < N_THINKS && !contains(settings, think_markers[i][1])) {
        i++;
    }
    return i;
}


static int is(const char *name, const char *other)
{
    return name != NULL && strcmp(name, other) == 0;
}


static int check_names(const moe_answer_settings_t *settings, moe_error_t *error)
{
    const char *tools = settings->tool_parser, *reasoning = settings->reasoning_parser;

    if (tools != NULL && !is(tools, none) && !is(tools, harmony)
        && find_style(settings, tools) == NULL)
    {
        return moe_fail(error, MOE_INVALID, "tool_parser \"%.64s\" is none of " MOE_TOOL_PARSERS,
                        tools);
    }
    if (reasoning != NULL && !is(reasoning, none) && !is(reasoning, harmony)
        && !is(reasoning, think))
    {
        return moe_fail(error, MOE_INVALID, "reasoning_parser \"%.64s\" is none of "
                        MOE_REASONING_PARSERS, reasoning);
    }
    if ((is(tools, harmony) && is(reasoning, think))
        || (is(reasoning, harmony) && tools != NULL && !is(tools, none) && !is(tools, harmony)))
    {
        return moe_fail(error, MOE_INVALID, "tool_parser %s does not go with reasoning_parser %s",
                        tools, reasoning);
    }
    return 0;
}


static void choose(moe_answer_format_t *format, const moe_answer_settings_t *settings)
{
    const char *tools = settings->tool_parser, *reasoning = settings->reasoning_parser;
    int forced = (tools != NULL && !is(tools, none)) || is(reasoning, think);
    int shown = contains(settings, harmony_sign) && !forced;

    if (is(tools, harmony) || is(reasoning, harmony) || shown) {
        format->machine = &moe_answer_harmony;
        format->calls = !is(tools, none);
        format->reasoning = !is(reasoning, none);
        return;
    }
    format->machine = &moe_answer_marked;
    format->style = is(tools, none) ? NULL : find_style(settings, tools);
    format->calls = format->style != NULL;
    format->reasoning = reasoning ? is(reasoning, think)
                                  : find_think(settings) < N_THINKS;
}


static void set_markers(moe_answer_format_t *format, unsigned first, const char *const *texts,
                        const moe_tokenizer_t *tokenizer)
{
    for (unsigned i = 0; texts[i] != NULL; i++) {
        moe_marker_t *marker = &format->markers[first + i];

        marker->text = texts[i];
        marker->size = (uint32_t) strlen(texts[i]);
        marker->index = (uint8_t) (first + i);
        marker->id = moe_tokenizer_added(tokenizer, marker->text, marker->size);
        marker->special = marker->id != MOE_NO_TOKEN
                          && moe_tokenizer_is_special(tokenizer, marker->id);
        if (marker->id == MOE_NO_TOKEN && marker->size > 0) {
            format->spelt[(unsigned char) marker->text[0]] = 1;
        }
    }
}


moe_answer_format_t *moe_answer_format_create(const moe_answer_settings_t *settings,
                                              const moe_tokenizer_t *tokenizer,
                                              moe_error_t *error)
{
    moe_answer_format_t *format;
    size_t i;

    if (check_names(settings, error) != 0) {
        return NULL;
    }
    format = calloc(1, sizeof(*format));
    if (format == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for the format of answers");
        return NULL;
    }
    choose(format, settings);
    if (format->machine == &moe_answer_harmony) {
        set_markers(format, MOE_MARKER_CALL, harmony_markers, tokenizer);
        return format;
    }
    if (format->reasoning) {
        i = find_think(settings);
        set_markers(format, MOE_MARKER_THINK, think_markers[i < N_THINKS ? i : N_THINKS - 1],
                    tokenizer);
    }
    if (format->style != NULL) {
        set_markers(format, MOE_MARKER_CALL, format->style->markers, tokenizer);
    }
    return format;
}


void moe_answer_format_free(moe_answer_format_t *format)
{
    free(format);
}


int moe_answer_format_marks(const moe_answer_format_t *format, int calls)
{
    return format->reasoning
           || (format->calls && (calls || format->machine == &moe_answer_harmony));
}


const char *moe_answer_format_tools(const moe_answer_format_t *format)
{
    return !format->calls ? none : format->style ? format->style->name : harmony;
}


const char *moe_answer_format_reasoning(const moe_answer_format_t *format)
{
    return !format->reasoning ? none : format->machine == &moe_answer_harmony ? harmony : think;
}
