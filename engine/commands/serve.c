/*
 * moe-engine serve: the engine behind nginx.  Started by nginx's supervisor process with
 *
 *     --listen-fd N   a listening Unix stream socket
 *     --config-fd N   one JSON object, read to its end
 *
 * QUIT drains, TERM and INT end at once, USR1 reopens the log.  A model that cannot be loaded does
 * not end the process: it answers every request with the cause until it is told to go.
 */

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/commands/commands.h"
#include "engine/commands/session.h"
#include "engine/device/kv_type.h"
#include "engine/moe/settings.h"
#include "engine/model/mapping.h"
#include "engine/serve/server.h"

#define CONFIG_LIMIT 65536u

typedef struct {
    moe_engine_options_t engine;
    moe_server_options_t server;
    moe_log_t log;
} configuration_t;


static int parse_secret(const char *text, uint8_t *secret)
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(text) != 2 * MOE_CHANNEL_SECRET) {
        return -1;
    }
    for (unsigned i = 0; i < MOE_CHANNEL_SECRET; i++) {
        const char *high = strchr(digits, text[2 * i]), *low = strchr(digits, text[2 * i + 1]);

        if (high == NULL || low == NULL) {
            return -1;
        }
        secret[i] = (uint8_t) ((high - digits) << 4 | (low - digits));
    }
    return 0;
}


static int read_all(int fd, moe_buffer_t *text, moe_error_t *error)
{
    for (;;) {
        ssize_t n;

        if (moe_buffer_reserve(text, 4096, error) != 0) {
            return moe_fail_in(error, "--config-fd");
        }
        n = read(fd, text->data + text->size, 4096);
        if (n == -1 && errno != EINTR) {
            return moe_fail(error, MOE_SYSTEM, "--config-fd: %s", strerror(errno));
        }
        if (n == 0) {
            return 0;
        }
        text->size += n > 0 ? (size_t) n : 0;
    }
}


/* A number of the configuration within [0, most], stored with the width of its option. */
typedef struct {
    const char *key;
    json_int_t most;
    uint32_t *value32;
    uint64_t *value64;
} number_key_t;


static int set_number(const number_key_t *number, const json_t *value, moe_error_t *error)
{
    json_int_t n = json_integer_value(value);

    if (!json_is_integer(value) || n < 0 || n > number->most) {
        return moe_fail(error, MOE_INVALID, "configuration: %s: not a number from 0 to %lld",
                        number->key, (long long) number->most);
    }
    if (number->value64) {
        *number->value64 = (uint64_t) n;
    } else {
        *number->value32 = (uint32_t) n;
    }
    return 0;
}


static int set_string(configuration_t *c, const char *key, const char *text, moe_error_t *error)
{
    int level;

    if (strcmp(key, "model") == 0) {
        c->engine.model = text;
    } else if (strcmp(key, "chat_template") == 0) {
        c->engine.chat_template = text;
    } else if (strcmp(key, "log_path") == 0) {
        c->log.path = *text ? text : NULL;
    } else if (strcmp(key, "secret") == 0) {
        if (parse_secret(text, c->server.secret) != 0) {
            return moe_fail(error, MOE_INVALID, "configuration: secret: not %u hex digits",
                            2 * MOE_CHANNEL_SECRET);
        }
    } else if (strcmp(key, "log_level") == 0) {
        level = moe_log_level(text);
        if (level == -1) {
            return moe_fail(error, MOE_INVALID, "configuration: log_level: unknown level");
        }
        c->log.level = (moe_log_level_t) level;
    } else if (strcmp(key, "kv_type") == 0) {
        if (moe_kv_type_find(text, &c->engine.kv_type) != 0) {
            return moe_fail(error, MOE_INVALID, "configuration: kv_type: none of " MOE_KV_TYPES);
        }
    } else if (strcmp(key, "exchange") == 0) {
        if (moe_payload_find(text, &c->engine.exchange) != 0) {
            return moe_fail(error, MOE_INVALID, "configuration: exchange: none of " MOE_PAYLOADS);
        }
    } else if (strcmp(key, "overlap") == 0) {
        if (moe_overlap_find(text, &c->engine.overlap) != 0) {
            return moe_fail(error, MOE_INVALID, "configuration: overlap: none of " MOE_OVERLAPS);
        }
    } else if (strcmp(key, "tool_parser") == 0) {
        c->engine.tool_parser = text;
    } else if (strcmp(key, "reasoning_parser") == 0) {
        c->engine.reasoning_parser = text;
    } else if (strcmp(key, "prefix_cache") == 0) {
        if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0) {
            return moe_fail(error, MOE_INVALID, "configuration: prefix_cache: not on or off");
        }
        c->engine.no_prefix_cache = strcmp(text, "off") == 0;
    } else if (strcmp(key, "name") != 0 && strcmp(key, "chat_template_version") != 0) {
        return moe_fail(error, MOE_INVALID, "configuration: unknown key \"%.64s\"", key);
    }
    return 0;
}


/* Strings of the configuration point into `object`. */
static int apply_configuration(configuration_t *c, json_t *object, moe_error_t *error)
{
    moe_engine_options_t *e = &c->engine;
    uint32_t threads = 0, uid = getuid();
    const number_key_t numbers[] = {
        { "threads", 1024, &threads, NULL },
        { "ranks", MOE_RANKS_LIMIT, &e->ranks, NULL },
        { "tensor_parallel", MOE_RANKS_LIMIT, &e->tensor_parallel, NULL },
        { "redundant_experts", MOE_REDUNDANT_LIMIT, &e->redundant_experts, NULL },
        { "peer_timeout_ms", 3600000, &e->peer_timeout_ms, NULL },
        { "context", INT32_MAX, &e->context, NULL },
        { "kv_cache", INT64_MAX, NULL, &e->kv_cache },
        { "batch_tokens", 1 << 20, &e->batch_tokens, NULL },
        { "batch_sequences", 1 << 16, &e->batch_sequences, NULL },
        { "step_time_ms", 3600000, &e->step_time_ms, NULL },
        { "batch_delay_ms", 3600000, &e->batch_delay_ms, NULL },
        { "queue", 1 << 20, &e->queue, NULL },
        { "queue_timeout_ms", INT32_MAX, &e->queue_timeout_ms, NULL },
        { "uid", UINT32_MAX, &uid, NULL }
    };
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value) {
        const number_key_t *number = numbers;
        const number_key_t *end = numbers + sizeof(numbers) / sizeof(numbers[0]);

        while (number < end && strcmp(key, number->key) != 0) {
            number++;
        }
        if (number < end) {
            if (set_number(number, value, error) != 0) {
                return -1;
            }
        } else if (!json_is_string(value)) {
            return moe_fail(error, MOE_INVALID, "configuration: \"%.64s\": unknown key or not a"
                            " string", key);
        } else if (set_string(c, key, json_string_value(value), error) != 0) {
            return -1;
        }
    }
    e->threads = threads;
    c->server.uid = uid;
    if (e->model == NULL || json_object_get(object, "secret") == NULL) {
        return moe_fail(error, MOE_INVALID, "configuration: model and secret are needed");
    }
    return moe_session_fault(e, error);
}


/* Returns the object that the strings of the configuration point into. */
static json_t *read_configuration(configuration_t *c, int fd, moe_error_t *error)
{
    moe_buffer_t text = { .limit = CONFIG_LIMIT };
    json_error_t where;
    json_t *object = NULL;

    if (read_all(fd, &text, error) == 0) {
        object = json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES, &where);
        if (object == NULL) {
            moe_fail(error, MOE_INVALID, "configuration: %s", where.text);
        } else if (apply_configuration(c, object, error) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    /* The text holds the secret. */
    if (text.data) {
        explicit_bzero(text.data, text.size);
    }
    moe_buffer_free(&text);
    close(fd);
    return object;
}


static int open_signals(moe_error_t *error)
{
    sigset_t set;
    int fd;

    sigemptyset(&set);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd == -1) {
        moe_fail(error, MOE_SYSTEM, "signalfd: %s", strerror(errno));
    }
    return fd;
}


static int serve_configured(configuration_t *c, moe_error_t *error)
{
    moe_server_t *server = moe_server_create(&c->server, error);
    moe_engine_t *engine;
    moe_server_end_t end;
    moe_state_t state;

    if (server == NULL) {
        return -1;
    }
    c->engine.sink = &moe_server_sink;
    c->engine.sink_context = server;
    c->engine.credit = MOE_CHANNEL_CREDIT;
    c->engine.log = &c->log;
    engine = moe_engine_create(&c->engine, error);
    if (engine == NULL) {
        moe_server_free(server);
        return -1;
    }
    end = moe_server_run(server, engine);
    if (end == MOE_SERVER_LOST) {
        /* No rank is waited for.  Workers hand their requests to the next engine. */
        _exit(1);
    }
    moe_engine_state(engine, &state);
    if (end == MOE_SERVER_TERMINATED || state.code == MOE_STATE_LOADING) {
        /* At once: no step and no load is waited for. */
        _exit(0);
    }
    moe_engine_free(engine);
    moe_server_free(server);
    moe_log(&c->log, MOE_LOG_NOTICE, "drained, exiting");
    return 0;
}


static int serve(int argc, char **argv)
{
    configuration_t c = { .log = { .fd = STDERR_FILENO, .level = MOE_LOG_NOTICE } };
    uint64_t listen_fd = UINT64_MAX, config_fd = UINT64_MAX;
    pid_t parent = getppid();
    moe_error_t error;
    json_t *object;
    int rc;

    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        uint64_t *fd = strcmp(argv[i], "--listen-fd") == 0 ? &listen_fd
                       : strcmp(argv[i], "--config-fd") == 0 ? &config_fd : NULL;

        if (fd == NULL || moe_command_number(value, 0, INT32_MAX, fd) != 0) {
            return moe_command_wrong(&moe_command_serve, argv[i], argv[i + 1]);
        }
    }
    if (listen_fd == UINT64_MAX || config_fd == UINT64_MAX) {
        return moe_command_usage(&moe_command_serve, "both descriptors are needed");
    }
    /* The engine must not outlive whoever started it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == -1 || getppid() != parent) {
        return 1;
    }
    moe_mapping_handle_sigbus();
    c.server.listen_fd = (int) listen_fd;
    c.server.log = &c.log;
    c.server.signal_fd = open_signals(&error);
    object = c.server.signal_fd == -1 ? NULL : read_configuration(&c, (int) config_fd, &error);
    if (object == NULL) {
        moe_log(&c.log, MOE_LOG_ERR, "%s", error.message);
        return 1;
    }
    rc = serve_configured(&c, &error);
    if (rc != 0) {
        moe_log(&c.log, MOE_LOG_ERR, "%s", error.message);
    }
    json_decref(object);
    return rc == 0 ? 0 : 1;
}


const moe_command_t moe_command_serve = {
    .name = "serve",
    .usage = "--listen-fd N --config-fd N",
    .help = "serve nginx's workers (started by nginx)",
    .run = serve
};
