/*
 * Random numbers are those of the engine's sampler: a function of (seed, position), so there is no
 * generator whose state would depend on the order in which requests are made.
 */

#include "t/bench/load/workload.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/serve/sampler.h"

#define FILE_LIMIT (256u << 20)
#define BODY_LIMIT (64u << 20)
#define SEEDS (UINT64_C(1) << 53)   /* what a JSON number holds exactly */

/* What is drawn for a request.  Its prompt's first part may be the same for all. */
typedef enum {
    DRAW_GAP = 1,
    DRAW_LENGTH,
    DRAW_WORDS,
    DRAW_PREFIX,
    DRAW_MAX_TOKENS,
    DRAW_SEED
} draw_t;


static double draw(const load_workload_t *workload, draw_t what, uint64_t number, uint32_t at)
{
    uint64_t key = workload->options->seed + (number * 8 + what) * UINT64_C(0x9e3779b97f4a7c15);

    return moe_sampler_uniform(key, at);
}


static uint32_t draw_in(const load_workload_t *workload, draw_t what, uint64_t number, uint32_t at,
                        load_range_t range)
{
    double width = (double) range.most - range.least + 1.0;

    return range.least + (uint32_t) (draw(workload, what, number, at) * width);
}


static int add(moe_buffer_t *out, const char *text, moe_error_t *error)
{
    return moe_buffer_append(out, text, strlen(text), error);
}


static int add_number(moe_buffer_t *out, const char *before, uint64_t number, moe_error_t *error)
{
    char text[96];

    snprintf(text, sizeof(text), "%s%llu", before, (unsigned long long) number);
    return add(out, text, error);
}


/* ---- prompts of a file ---- */

/* The member of a line's object that is the prompt, or NULL. */
static const char *prompt_member(const load_options_t *options, json_t *line, uint32_t *max_tokens)
{
    const char *name = load_is_chat(options) ? "messages" : "prompt";
    const json_t *most = json_object_get(line, "max_tokens");
    size_t members = json_object_get(line, name) ? 1 : 0;

    if (most) {
        json_int_t value = json_integer_value(most);

        if (value < 1 || value > INT32_MAX) {
            return NULL;
        }
        *max_tokens = (uint32_t) value;
    }
    return members == 1 && json_object_size(line) == members + (most ? 1 : 0) ? name : NULL;
}


/* "name": value of a prompt, as text that the caller frees. */
static char *prompt_text(const char *name, json_t *value)
{
    json_t *member = json_pack("{sO}", name, value);
    char *text = member ? json_dumps(member, JSON_COMPACT) : NULL;
    size_t size = text ? strlen(text) : 0;

    json_decref(member);
    if (text) {
        memmove(text, text + 1, size);      /* without the braces */
        text[size - 2] = '\0';
    }
    return text;
}


static char *plain_prompt(const load_options_t *options, json_t *string)
{
    json_t *messages;
    char *text;

    if (!load_is_chat(options)) {
        return prompt_text("prompt", string);
    }
    messages = json_pack("[{sssO}]", "role", "user", "content", string);
    text = messages ? prompt_text("messages", messages) : NULL;
    json_decref(messages);
    return text;
}


static int read_prompt(const load_options_t *options, const char *line, size_t size,
                       load_prompt_t *prompt)
{
    json_t *value = *line == '{' || *line == '"' ? json_loadb(line, size, JSON_DECODE_ANY, NULL)
                                                 : json_stringn(line, size);

    *prompt = (load_prompt_t) { .prompt = NULL };
    if (json_is_string(value)) {
        prompt->prompt = plain_prompt(options, value);
    } else if (json_is_object(value)) {
        const char *name = prompt_member(options, value, &prompt->max_tokens);

        prompt->prompt = name ? prompt_text(name, json_object_get(value, name)) : NULL;
    }
    json_decref(value);
    return prompt->prompt ? 0 : -1;
}


static int add_line(load_workload_t *workload, const char *line, size_t size)
{
    size_t n = workload->n_prompts;

    if ((n & (n - 1)) == 0) {
        size_t room = n ? 2 * n : 1;
        load_prompt_t *more = realloc(workload->prompts, room * sizeof(*more));

        if (more == NULL) {
            return -1;
        }
        workload->prompts = more;
    }
    if (read_prompt(workload->options, line, size, &workload->prompts[n]) != 0) {
        return -1;
    }
    workload->n_prompts++;
    return 0;
}


static int read_lines(load_workload_t *workload, FILE *file, moe_error_t *error)
{
    const char *name = workload->options->prompts;
    size_t room = 0, number = 0, total = 0;
    char *line = NULL;
    ssize_t size;
    int rc = 0;

    while (rc == 0 && (size = getline(&line, &room, file)) != -1) {
        number++;
        total += (size_t) size;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r')) {
            size--;
        }
        if (total > FILE_LIMIT) {
            rc = moe_fail(error, MOE_LIMIT, "%s: more than %u bytes", name, FILE_LIMIT);
        } else if (size > 0 && add_line(workload, line, (size_t) size) != 0) {
            rc = moe_fail(error, MOE_INVALID, "%s:%zu: neither UTF-8 text, nor a JSON string, nor"
                          " an object with \"%s\" and perhaps \"max_tokens\"", name, number,
                          load_is_chat(workload->options) ? "messages" : "prompt");
        }
    }
    free(line);
    if (rc == 0 && ferror(file)) {
        rc = moe_fail(error, MOE_SYSTEM, "%s: cannot be read", name);
    }
    return rc == 0 && workload->n_prompts == 0
               ? moe_fail(error, MOE_INVALID, "%s: no prompts", name)
               : rc;
}


static int read_file(load_workload_t *workload, moe_error_t *error)
{
    FILE *file = fopen(workload->options->prompts, "re");
    int rc;

    if (file == NULL) {
        return moe_fail(error, MOE_SYSTEM, "%s: %s", workload->options->prompts, strerror(errno));
    }
    rc = read_lines(workload, file, error);
    fclose(file);
    return rc;
}


/* ---- bodies ---- */

static int make_common(load_workload_t *workload, moe_error_t *error)
{
    const load_options_t *options = workload->options;
    json_t *object = options->body ? json_copy(options->body) : json_object();
    int failed = object == NULL;
    char *text;

    if (options->model) {
        failed |= json_object_set_new(object, "model", json_string(options->model));
    }
    failed |= json_object_set_new(object, "stream", json_boolean(options->stream));
    if (options->stream && options->usage) {
        failed |= json_object_set_new(object, "stream_options",
                                      json_pack("{sb}", "include_usage", 1));
    }
    text = failed ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (text == NULL) {
        return moe_fail(error, MOE_INVALID, "--model: no UTF-8 text, or out of memory");
    }
    failed = moe_buffer_append(&workload->common, text + 1, strlen(text) - 2, error);
    free(text);
    return failed;
}


int load_workload_open(load_workload_t *workload, const load_options_t *options,
                       moe_error_t *error)
{
    *workload = (load_workload_t) { .options = options };
    if (make_common(workload, error) != 0) {
        return -1;
    }
    return options->prompts ? read_file(workload, error) : 0;
}


void load_workload_close(load_workload_t *workload)
{
    for (size_t i = 0; i < workload->n_prompts; i++) {
        free(workload->prompts[i].prompt);
    }
    free(workload->prompts);
    moe_buffer_free(&workload->common);
}


static int add_item(const load_workload_t *workload, draw_t what, uint64_t number, uint32_t at,
                    moe_buffer_t *out, moe_error_t *error)
{
    static const char *const words[] = {
        "which", "server", "answers", "when", "a", "client", "asks", "for", "the", "size", "of",
        "buffers", "and", "how", "many", "connections", "may", "wait", "before", "one", "closes",
        "location", "request", "header", "value", "time", "default", "worker", "name", "path",
        "limit", "cache"
    };
    static const load_range_t any = { 0, sizeof(words) / sizeof(words[0]) - 1 };

    if (workload->options->ids.most) {
        return add_number(out, at ? "," : "", draw_in(workload, what, number, at,
                                                      workload->options->ids), error);
    }
    if (at > 0 && add(out, " ", error) != 0) {
        return -1;
    }
    return add(out, words[draw_in(workload, what, number, at, any)], error);
}


static int add_generated(const load_workload_t *workload, uint64_t number, moe_buffer_t *out,
                         moe_error_t *error)
{
    const load_options_t *options = workload->options;
    uint32_t length = draw_in(workload, DRAW_LENGTH, number, 0, options->length);
    const char *before = "\"prompt\":\"", *after = "\"";

    if (options->ids.most) {
        before = "\"prompt\":[";
        after = "]";
    } else if (load_is_chat(options)) {
        before = "\"messages\":[{\"role\":\"user\",\"content\":\"";
        after = "\"}]";
    }
    if (add(out, before, error) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < length; i++) {
        int shared = i < options->prefix;

        if (add_item(workload, shared ? DRAW_PREFIX : DRAW_WORDS, shared ? 0 : number, i, out,
                     error) != 0)
        {
            return -1;
        }
    }
    return add(out, after, error);
}


int load_workload_body(const load_workload_t *workload, uint64_t number, moe_buffer_t *out,
                       moe_error_t *error)
{
    const load_options_t *options = workload->options;
    const load_prompt_t *prompt = NULL;
    uint64_t max_tokens = 0;
    int rc;

    if (workload->n_prompts) {
        prompt = &workload->prompts[number % workload->n_prompts];
        max_tokens = prompt->max_tokens;
    }
    if (max_tokens == 0 && options->max_tokens.most) {
        max_tokens = draw_in(workload, DRAW_MAX_TOKENS, number, 0, options->max_tokens);
    }
    out->limit = BODY_LIMIT;
    rc = add(out, "{", error);
    rc |= moe_buffer_append(out, workload->common.data, workload->common.size, error);
    rc |= add(out, ",", error);
    rc |= prompt ? add(out, prompt->prompt, error) : add_generated(workload, number, out, error);
    if (max_tokens) {
        rc |= add_number(out, ",\"max_tokens\":", max_tokens, error);
    }
    if (options->seeds) {
        rc |= add_number(out, ",\"seed\":",
                         (uint64_t) (draw(workload, DRAW_SEED, number, 0) * (double) SEEDS), error);
    }
    return rc | add(out, "}", error);
}


uint64_t load_workload_gap(const load_workload_t *workload, uint64_t number)
{
    double gap = 1e9 / workload->options->rate;

    if (!workload->options->constant) {
        gap *= -log(1.0 - draw(workload, DRAW_GAP, number, 0));
    }
    return (uint64_t) gap;
}
