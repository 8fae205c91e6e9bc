/*
 * One table: an option's name, how its value is read and where it goes.
 */

#include "t/bench/load/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000u
#define REQUESTS_LIMIT 10000000u
#define CONCURRENCY_LIMIT 60000u
#define LENGTH_LIMIT 1000000u
#define SECONDS_LIMIT 604800.0
#define HEADERS_LIMIT 16384u
#define DEFAULT_OPEN_LIMIT 10000u

const char load_usage[] =
    "load [OPTIONS] URL\n"
    "\n"
    "URL is that of an OpenAI-compatible route: http[s]://HOST[:PORT]/v1/completions or\n"
    "/v1/chat/completions.\n"
    "\n"
    "arrivals\n"
    "  --concurrency N      closed loop: N clients, each asks again when it has its answer (1)\n"
    "  --rate R             open loop: R requests a second, at most --concurrency (10000) at once\n"
    "  --arrivals KIND      of the open loop: poisson (default) or constant\n"
    "  --requests N         how many\n"
    "  --duration S         for how long requests are sent; default, without --requests: 10\n"
    "  --warm-up S          requests of the first S seconds are not measured\n"
    "\n"
    "requests\n"
    "  --model NAME         the body's \"model\"\n"
    "  --prompts FILE       a prompt a line: plain text, or a JSON string, or an object with\n"
    "                       \"prompt\" or \"messages\" and perhaps \"max_tokens\"; used in turn\n"
    "  --length A[-B]       without a file: words of a generated prompt (16)\n"
    "  --ids A-B            generated prompts are lists of token ids from A to B\n"
    "  --prefix N           of these words or ids the first N are the same in all prompts\n"
    "  --max-tokens A[-B]   the body's \"max_tokens\"\n"
    "  --seed N             of everything that is drawn here (1)\n"
    "  --seeds              each request has a \"seed\" of its own\n"
    "  --body JSON          further members of each request, as {\"temperature\": 0}\n"
    "  --no-stream          answers in one piece\n"
    "  --no-usage           do not ask for usage in streams; an event counts as a token\n"
    "\n"
    "connections\n"
    "  --key KEY            Authorization: Bearer KEY\n"
    "  --header LINE        a further header, as 'Name: value'\n"
    "  --no-reuse           a connection for each request\n"
    "  --timeout S          of a request (600)\n"
    "  --ca FILE            certificates to trust instead of the system's\n"
    "  --insecure           trust any certificate\n"
    "\n"
    "results\n"
    "  --ttft MS, --itl MS, --tpot MS\n"
    "                       what counts for goodput: time to first token, longest pause between\n"
    "                       tokens, mean time per token after the first\n"
    "  --verify             then sends each request alone and compares the texts\n"
    "  --json               results as JSON\n"
    "\n"
    "SIGINT and SIGTERM end the run; what was measured is reported.\n"
    "Exit status: 0; 1 when --verify found a difference or no request succeeded; 2 for a wrong\n"
    "command line, or a server that cannot be reached.\n";

typedef int (*read_value_t)(load_options_t *options, void *to, const char *value);

typedef struct {
    const char *name;
    read_value_t read;              /* NULL: no value, sets an int */
    size_t offset;
    int flag;                       /* what a flag sets */
} option_t;


static int read_text(load_options_t *options, void *to, const char *value)
{
    *(const char **) to = value;
    return 0;
}


static int read_integer(const char *text, char **end, uint64_t least, uint64_t most,
                        uint64_t *value)
{
    errno = 0;
    *value = strtoull(text, end, 10);
    return isdigit((unsigned char) *text) && errno == 0 && *value >= least && *value <= most ? 0
                                                                                             : -1;
}


static int read_whole(const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end;

    return read_integer(text, &end, least, most, value) == 0 && *end == '\0' ? 0 : -1;
}


static int read_requests(load_options_t *options, void *to, const char *value)
{
    return read_whole(value, 1, REQUESTS_LIMIT, to);
}


static int read_seed(load_options_t *options, void *to, const char *value)
{
    return read_whole(value, 0, UINT64_MAX, to);
}


static int read_small(void *to, const char *value, uint64_t least, uint64_t most)
{
    uint64_t number;

    if (read_whole(value, least, most, &number) != 0) {
        return -1;
    }
    *(uint32_t *) to = (uint32_t) number;
    return 0;
}


static int read_concurrency(load_options_t *options, void *to, const char *value)
{
    return read_small(to, value, 1, CONCURRENCY_LIMIT);
}


static int read_prefix(load_options_t *options, void *to, const char *value)
{
    return read_small(to, value, 0, LENGTH_LIMIT);
}


static int read_range(load_options_t *options, void *to, const char *value)
{
    load_range_t *range = to;
    uint64_t least, most;
    char *end;

    if (read_integer(value, &end, 0, LENGTH_LIMIT, &least) != 0) {
        return -1;
    }
    most = least;
    if (*end == '-' && read_integer(end + 1, &end, least, LENGTH_LIMIT, &most) != 0) {
        return -1;
    }
    *range = (load_range_t) { (uint32_t) least, (uint32_t) most };
    return *end == '\0' && most > 0 ? 0 : -1;
}


static int read_positive(load_options_t *options, void *to, const char *value)
{
    char *end;

    *(double *) to = strtod(value, &end);
    return *value && *end == '\0' && isfinite(*(double *) to) && *(double *) to > 0.0 ? 0 : -1;
}


static int read_seconds(load_options_t *options, void *to, const char *value)
{
    double seconds;

    if (read_positive(options, &seconds, value) != 0 || seconds > SECONDS_LIMIT) {
        return -1;
    }
    *(uint64_t *) to = (uint64_t) (seconds * SECOND);
    return 0;
}


static int read_arrivals(load_options_t *options, void *to, const char *value)
{
    *(int *) to = strcmp(value, "constant") == 0;
    return *(int *) to || strcmp(value, "poisson") == 0 ? 0 : -1;
}


/* A whole header line; nothing in it may begin another one. */
static int add_header(load_options_t *options, const char *name, const char *value)
{
    moe_buffer_t *headers = &options->headers;
    moe_error_t ignored;

    if (strpbrk(value, "\r\n")) {
        return -1;
    }
    headers->limit = HEADERS_LIMIT;
    return moe_buffer_append(headers, name, strlen(name), &ignored) != 0
                   || moe_buffer_append(headers, value, strlen(value), &ignored) != 0
                   || moe_buffer_append(headers, "\r\n", 2, &ignored) != 0
               ? -1
               : 0;
}


static int read_key(load_options_t *options, void *to, const char *value)
{
    return add_header(options, "Authorization: Bearer ", value);
}


static int read_header(load_options_t *options, void *to, const char *value)
{
    return strchr(value, ':') > value ? add_header(options, "", value) : -1;
}


static int read_body(load_options_t *options, void *to, const char *value)
{
    json_decref(options->body);
    options->body = json_loads(value, JSON_REJECT_DUPLICATES, NULL);
    return json_is_object(options->body) ? 0 : -1;
}

#define AT(member) offsetof(load_options_t, member)

static const option_t table[] = {
    { "--arrivals", read_arrivals, AT(constant), 0 },
    { "--body", read_body, AT(body), 0 },
    { "--ca", read_text, AT(ca), 0 },
    { "--concurrency", read_concurrency, AT(concurrency), 0 },
    { "--duration", read_seconds, AT(duration_ns), 0 },
    { "--header", read_header, AT(headers), 0 },
    { "--ids", read_range, AT(ids), 0 },
    { "--insecure", NULL, AT(insecure), 1 },
    { "--itl", read_positive, AT(itl_ms), 0 },
    { "--json", NULL, AT(json), 1 },
    { "--key", read_key, AT(headers), 0 },
    { "--length", read_range, AT(length), 0 },
    { "--max-tokens", read_range, AT(max_tokens), 0 },
    { "--model", read_text, AT(model), 0 },
    { "--no-reuse", NULL, AT(reuse), 0 },
    { "--no-stream", NULL, AT(stream), 0 },
    { "--no-usage", NULL, AT(usage), 0 },
    { "--prefix", read_prefix, AT(prefix), 0 },
    { "--prompts", read_text, AT(prompts), 0 },
    { "--rate", read_positive, AT(rate), 0 },
    { "--requests", read_requests, AT(requests), 0 },
    { "--seed", read_seed, AT(seed), 0 },
    { "--seeds", NULL, AT(seeds), 1 },
    { "--timeout", read_seconds, AT(timeout_ns), 0 },
    { "--tpot", read_positive, AT(tpot_ms), 0 },
    { "--ttft", read_positive, AT(ttft_ms), 0 },
    { "--verify", NULL, AT(verify), 1 },
    { "--warm-up", read_seconds, AT(warm_up_ns), 0 }
};


static int copy_part(char *to, size_t size, const char *from, size_t length)
{
    if (length == 0 || length >= size) {
        return -1;
    }
    memcpy(to, from, length);
    to[length] = '\0';
    return 0;
}


/* SCHEME://HOST[:PORT]/PATH, the host of IPv6 in brackets. */
static int read_url(load_options_t *options, const char *url)
{
    const char *host, *path, *port, *end;
    uint64_t number;

    options->tls = strncmp(url, "https://", 8) == 0;
    if (!options->tls && strncmp(url, "http://", 7) != 0) {
        return -1;
    }
    host = url + (options->tls ? 8 : 7);
    path = host + strcspn(host, "/?#");
    if (*path != '/' || strpbrk(url, " \t\r\n#@")) {
        return -1;
    }
    end = *host == '[' ? memchr(host, ']', (size_t) (path - host)) : NULL;
    port = memchr(end ? end : host, ':', (size_t) (path - (end ? end : host)));
    if (copy_part(options->path, sizeof(options->path), path, strlen(path)) != 0) {
        return -1;
    }
    strcpy(options->port, options->tls ? "443" : "80");
    if (port && (copy_part(options->port, sizeof(options->port), port + 1,
                           (size_t) (path - port - 1)) != 0
                 || read_whole(options->port, 1, 65535, &number) != 0))
    {
        return -1;
    }
    if (end) {
        host++;
    } else {
        end = port ? port : path;
    }
    return copy_part(options->host, sizeof(options->host), host, (size_t) (end - host));
}


static const option_t *find_option(const char *name)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strcmp(table[i].name, name) == 0) {
            return &table[i];
        }
    }
    return NULL;
}


/* One argument, and its value where it has one; returns how many were used, or -1. */
static int read_argument(load_options_t *options, char **argv, moe_error_t *error)
{
    const option_t *option = find_option(argv[0]);
    void *to;

    if (option == NULL) {
        return moe_fail(error, MOE_INVALID, "unknown option \"%.64s\"", argv[0]);
    }
    to = (char *) options + option->offset;
    if (option->read == NULL) {
        *(int *) to = option->flag;
        return 1;
    }
    if (argv[1] == NULL || option->read(options, to, argv[1]) != 0) {
        return moe_fail(error, MOE_INVALID, "%s: wrong value \"%.64s\"", argv[0],
                        argv[1] ? argv[1] : "");
    }
    return 2;
}


static int is_repeatable(const load_options_t *options)
{
    const json_t *temperature = json_object_get(options->body, "temperature");

    return options->seeds || json_object_get(options->body, "seed")
           || (json_is_number(temperature) && json_number_value(temperature) == 0.0);
}


/* Several choices' texts have no order in a stream: they could not be compared. */
static int check_body(const load_options_t *options, moe_error_t *error)
{
    static const char *const made_here[] = { "prompt", "messages", "max_tokens" };
    const json_t *n = json_object_get(options->body, "n");

    if (n && json_integer_value(n) != 1) {
        return moe_fail(error, MOE_INVALID, "--body: \"n\" other than 1");
    }
    for (size_t i = 0; i < sizeof(made_here) / sizeof(made_here[0]); i++) {
        if (json_object_get(options->body, made_here[i])) {
            return moe_fail(error, MOE_INVALID, "--body: \"%s\" has an option of its own",
                            made_here[i]);
        }
    }
    if (options->seeds && json_object_get(options->body, "seed")) {
        return moe_fail(error, MOE_INVALID, "--seeds, and a seed in --body");
    }
    return 0;
}


/* What the options say together. */
static int check(load_options_t *options, moe_error_t *error)
{
    if (options->host[0] == '\0') {
        return moe_fail(error, MOE_INVALID, "a URL is needed");
    }
    if (options->verify && !is_repeatable(options)) {
        return moe_fail(error, MOE_INVALID, "--verify needs --seeds, or --body with a temperature"
                        " of 0 or a seed: other answers cannot be repeated");
    }
    if (check_body(options, error) != 0) {
        return -1;
    }
    if (options->ids.most && load_is_chat(options)) {
        return moe_fail(error, MOE_INVALID, "--ids: messages cannot be token ids");
    }
    if (options->requests == 0 && options->duration_ns == 0) {
        options->duration_ns = UINT64_C(10) * SECOND;
    }
    if (options->duration_ns && options->duration_ns <= options->warm_up_ns) {
        return moe_fail(error, MOE_INVALID, "--warm-up takes all of --duration");
    }
    if (options->requests == 0) {
        options->requests = REQUESTS_LIMIT;
    }
    if (options->concurrency == 0) {
        options->concurrency = options->rate > 0.0 ? DEFAULT_OPEN_LIMIT : 1;
    }
    return 0;
}


int load_options_parse(load_options_t *options, int argc, char **argv, int *help,
                       moe_error_t *error)
{
    *options = (load_options_t) {
        .reuse = 1, .timeout_ns = UINT64_C(600) * SECOND, .length = { 16, 16 }, .seed = 1,
        .stream = 1, .usage = 1
    };
    *help = 0;
    for (int i = 1; i < argc;) {
        int used = 1;

        if (strcmp(argv[i], "--help") == 0) {
            *help = 1;
            return 0;
        }
        if (argv[i][0] != '-') {
            if (options->host[0] || read_url(options, argv[i]) != 0) {
                return moe_fail(error, MOE_INVALID, "not a URL of a route, or a second one:"
                                " \"%.200s\"", argv[i]);
            }
        } else {
            used = read_argument(options, argv + i, error);
        }
        if (used == -1) {
            return -1;
        }
        i += used;
    }
    return check(options, error);
}


void load_options_free(load_options_t *options)
{
    json_decref(options->body);
    moe_buffer_free(&options->headers);
}


int load_is_chat(const load_options_t *options)
{
    return strstr(options->path, "/chat/") != NULL;
}
