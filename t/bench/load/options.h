/*
 * The command line.
 */

#ifndef LOAD_OPTIONS_H
#define LOAD_OPTIONS_H

#include <jansson.h>
#include <stdint.h>

#include "engine/core/buffer.h"

typedef struct {
    uint32_t least, most;           /* every number between them is as likely */
} load_range_t;

typedef struct {
    /* the server */
    int tls;
    char host[256];
    char port[8];
    char path[1024];
    const char *ca;
    int insecure;
    int reuse;                      /* of connections */
    uint64_t timeout_ns;            /* of a request */
    moe_buffer_t headers;           /* further lines of the request's head */

    /* arrivals */
    double rate;                    /* requests per second; 0: closed loop */
    int constant;                   /* gaps of open-loop arrivals, instead of exponential ones */
    uint32_t concurrency;           /* clients of a closed loop; most requests at once of an open */
    uint64_t requests;              /* how many, at most */
    uint64_t duration_ns;           /* 0: until all requests were sent */
    uint64_t warm_up_ns;

    /* requests */
    const char *model;
    const char *prompts;            /* file of prompts; NULL: generated */
    load_range_t length;            /* of generated prompts, in words or ids */
    load_range_t ids;               /* prompts are token ids of this range; most 0: words */
    uint32_t prefix;                /* words or ids that all generated prompts begin with */
    load_range_t max_tokens;        /* most 0: the server's own */
    uint64_t seed;
    int seeds;                      /* each request gets a seed of its own */
    int stream, usage;
    json_t *body;                   /* further members of each request, or NULL */

    /* results */
    double ttft_ms, itl_ms, tpot_ms;    /* targets of goodput; 0: none */
    int verify, json;
} load_options_t;

/* Fills options from the command line; a failure is MOE_INVALID.  `help` is set when only that was
 * asked for. */
int load_options_parse(load_options_t *options, int argc, char **argv, int *help,
                       moe_error_t *error);
void load_options_free(load_options_t *options);

extern const char load_usage[];

/* Does the API's path ask for messages instead of a prompt? */
int load_is_chat(const load_options_t *options);

#endif
