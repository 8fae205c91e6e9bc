/* moe-engine run: one prompt or question; the text goes to stdout as it is generated. */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/commands/commands.h"
#include "engine/commands/session.h"
#include "engine/model/mapping.h"

typedef struct {
    const char *model, *prompt, *chat, *tools;
    moe_engine_options_t engine;
    moe_request_t request;
} arguments_t;

typedef struct {
    moe_session_t session;
    uint64_t queue_ns, prefill_ns;
    moe_delta_kind_t kind;      /* of what was printed last, or 0 */
    moe_done_t done;            /* `stop` is not kept */
    moe_error_t error;
} answer_t;


static void on_admitted(void *client, uint64_t id, const moe_admitted_t *admitted)
{
}


static void on_started(void *client, uint64_t id, const moe_started_t *started,
                       const uint32_t *prompt_ids, const moe_logprob_t *logprobs)
{
    answer_t *answer = client;

    answer->queue_ns = started->queue_ns;
    answer->prefill_ns = started->prefill_ns;
}


/* Reasoning is a paragraph of its own. */
static void on_tokens(void *client, uint64_t id, const moe_deltas_t *deltas, const uint32_t *ids,
                      uint32_t n_ids, const moe_logprob_t *logprobs)
{
    answer_t *answer = client;

    for (uint32_t i = 0; i < deltas->count; i++) {
        moe_delta_t delta = moe_deltas_at(deltas, i);

        if (answer->kind != 0 && answer->kind != delta.kind) {
            fputs("\n\n", stdout);
        }
        answer->kind = delta.kind;
        fwrite(delta.text.data, 1, delta.text.size, stdout);
    }
    fflush(stdout);
}


static void on_done(void *client, uint64_t id, const moe_done_t *done)
{
    answer_t *answer = client;

    answer->done = *done;
}


static void on_failed(void *client, uint64_t id, const moe_failure_t *failure)
{
    answer_t *answer = client;

    moe_session_failed(&answer->error, failure);
}


static void on_released(void *client, uint64_t id)
{
    answer_t *answer = client;

    moe_session_released(&answer->session);
}


static const moe_sink_t sink = {
    on_admitted,
    on_started,
    on_tokens,
    on_done,
    on_failed,
    on_released,
    moe_session_ignore,
    moe_session_changed
};


static int set_option(arguments_t *a, const char *name, const char *value)
{
    uint64_t number;
    char *end;

    if (strcmp(name, "-p") == 0) {
        a->prompt = value;
    } else if (strcmp(name, "--chat") == 0) {
        a->chat = value;
    } else if (strcmp(name, "--chat-template") == 0) {
        a->engine.chat_template = value;
    } else if (strcmp(name, "--tools") == 0) {
        a->tools = value;
    } else if (strcmp(name, "-n") == 0) {
        a->request.given |= MOE_GIVEN_MAX_TOKENS;
        if (moe_command_number(value, 1, UINT32_MAX, &number) != 0) {
            return -1;
        }
        a->request.max_tokens = (uint32_t) number;
    } else if (strcmp(name, "--temperature") == 0) {
        a->request.given |= MOE_GIVEN_TEMPERATURE;
        a->request.temperature = strtof(value, &end);
        return *value != '\0' && *end == '\0' ? 0 : -1;
    } else if (strcmp(name, "--seed") == 0) {
        a->request.given |= MOE_GIVEN_SEED;
        return moe_command_number(value, 0, UINT64_MAX, &a->request.seed);
    } else {
        return moe_session_option(&a->engine, name, value);
    }
    return 0;
}


static int parse_arguments(int argc, char **argv, arguments_t *a)
{
    memset(a, 0, sizeof(*a));
    moe_request_defaults(&a->request);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-' && a->model == NULL) {
            a->model = argv[i];
            continue;
        }
        if (i + 1 == argc || set_option(a, argv[i], argv[i + 1]) != 0) {
            return moe_command_wrong(&moe_command_run, argv[i], argv[i + 1]);
        }
        i++;
    }
    if (a->model == NULL || (a->prompt == NULL) == (a->chat == NULL)) {
        return moe_command_usage(&moe_command_run, "MODEL and one of -p and --chat"
                                 " are needed");
    }
    if (a->chat == NULL && (a->tools != NULL || a->engine.chat_template != NULL)) {
        return moe_command_usage(&moe_command_run, "--tools and --chat-template go with --chat");
    }
    return 0;
}


/* The text of a value, whose reference is taken; *dumped is its owner. */
static int set_json(moe_string_t *string, json_t *value, char **dumped)
{
    *dumped = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (*dumped == NULL) {
        return -1;
    }
    *string = (moe_string_t) { *dumped, (uint32_t) strlen(*dumped) };
    return 0;
}


/* The question as a chat's message, and the tools of its file. */
static int set_chat(arguments_t *a, char *owned[2], moe_error_t *error)
{
    json_error_t where;
    json_t *tools;

    a->request.kind = MOE_PROMPT_CHAT;
    if (set_json(&a->request.prompt, json_pack("[{s:s, s:s}]", "role", "user", "content", a->chat),
                 &owned[0]) != 0)
    {
        return moe_fail(error, MOE_INVALID, "--chat: not valid UTF-8");
    }
    if (a->tools == NULL) {
        return 0;
    }
    tools = json_load_file(a->tools, JSON_ALLOW_NUL, &where);
    if (tools == NULL) {
        return moe_fail(error, MOE_INVALID, "--tools: %s", where.text);
    }
    return set_json(&a->request.tools, tools, &owned[1]) == 0
           ? 0 : moe_fail(error, MOE_LIMIT, "out of memory for tools");
}


static int answer_prompt(moe_engine_t *engine, arguments_t *a, answer_t *answer)
{
    char *owned[2] = { NULL, NULL };
    int rc = 0;

    if (a->chat) {
        rc = set_chat(a, owned, &answer->error);
    } else {
        a->request.prompt = (moe_string_t) { a->prompt, (uint32_t) strlen(a->prompt) };
    }
    if (rc == 0) {
        rc = moe_session_submit(&answer->session, engine, answer, 1, &a->request, &answer->error);
    }
    free(owned[0]);
    free(owned[1]);
    if (rc != 0) {
        return -1;
    }
    moe_session_wait(&answer->session, engine);
    return answer->error.code == MOE_OK ? 0 : -1;
}


static double rate(uint32_t tokens, uint64_t ns)
{
    return ns ? tokens * 1e9 / (double) ns : 0.0;
}


static void print_statistics(const moe_engine_t *engine, const answer_t *answer)
{
    const moe_done_t *done = &answer->done;
    uint32_t later = done->completion_tokens ? done->completion_tokens - 1 : 0;

    printf("\n");
    fprintf(stderr, "%s; prompt: %u tokens, %.1f ms, %.0f tokens/s; generated: %u tokens,"
            " %.1f ms, %.0f tokens/s; finish: %s\n", moe_engine_isa(engine), done->prompt_tokens,
            (double) answer->prefill_ns * 1e-6, rate(done->prompt_tokens, answer->prefill_ns),
            done->completion_tokens, (double) done->decode_ns * 1e-6, rate(later, done->decode_ns),
            done->reason == MOE_FINISH_STOP ? "stop" : "length");
}


static int run(int argc, char **argv)
{
    answer_t answer = { .session = MOE_SESSION_INITIALIZER };
    moe_engine_t *engine;
    arguments_t a;
    int rc;

    if (parse_arguments(argc, argv, &a) != 0) {
        return 1;
    }
    moe_mapping_handle_sigbus();
    a.engine.model = a.model;
    a.engine.sink = &sink;
    a.engine.sink_context = &answer.session;
    a.engine.batch_sequences = 1;
    if (moe_session_fault(&a.engine, &answer.error) != 0) {
        return moe_command_fail(&answer.error);
    }
    engine = moe_session_open(&a.engine, &answer.error);
    if (engine == NULL) {
        return moe_command_fail(&answer.error);
    }
    rc = answer_prompt(engine, &a, &answer);
    if (rc == 0) {
        print_statistics(engine, &answer);
    }
    moe_engine_free(engine);
    return rc == 0 ? 0 : moe_command_fail(&answer.error);
}


const moe_command_t moe_command_run = {
    .name = "run",
    .usage = "MODEL -p TEXT | --chat TEXT [--tools FILE] [--chat-template FILE] [-n N] "
             "[--temperature T] [--seed S] " MOE_SESSION_USAGE,
    .help = "continue a text or answer a question",
    .run = run
};
