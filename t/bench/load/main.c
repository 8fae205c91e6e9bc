/*
 * load: requests at an OpenAI-compatible server, closed or open loop, and what its users would see.
 */

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "t/bench/load/report.h"


static volatile sig_atomic_t interrupted;


static void on_signal(int number)
{
    interrupted = 1;
}


/* The first signal ends the run, which is then reported; the next one ends the program. */
static void catch_signals(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int) SA_RESETHAND };

    signal(SIGPIPE, SIG_IGN);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}


/* A socket for each request at once. */
static void allow_many_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}


static int run_and_report(load_run_t *run, moe_error_t *error)
{
    load_verdict_t verdict, *compared = NULL;
    int status;

    if (load_run(run, error) != 0) {
        return -1;
    }
    status = run->failed == run->n_records;
    if (run->options->verify && !*run->interrupted) {
        if (load_verify(run, &verdict, error) != 0) {
            return -1;
        }
        compared = &verdict;
        if (verdict.different || verdict.unknown) {
            fprintf(stderr, "load: %s\n", verdict.different ? verdict.example.message
                                                            : "solo answers are missing");
            status = 1;
        }
    }
    load_report(run, compared);
    return status;
}


static int load(const load_options_t *options, moe_error_t *error)
{
    load_endpoint_t endpoint = { .tls = NULL };
    load_workload_t workload = { .options = NULL };
    load_run_t run = { .options = options, .workload = &workload, .endpoint = &endpoint,
                       .interrupted = &interrupted };
    int status = -1;

    snprintf(endpoint.host, sizeof(endpoint.host), "%s", options->host);
    snprintf(endpoint.port, sizeof(endpoint.port), "%s", options->port);
    if (load_workload_open(&workload, options, error) == 0
        && load_endpoint_open(&endpoint, options->tls, options->ca, options->insecure, error) == 0)
    {
        status = run_and_report(&run, error);
    }
    load_run_free(&run);
    load_endpoint_close(&endpoint);
    load_workload_close(&workload);
    return status;
}


int main(int argc, char **argv)
{
    load_options_t options;
    moe_error_t error;
    int status, help;

    catch_signals();
    allow_many_files();
    status = load_options_parse(&options, argc, argv, &help, &error);
    if (status == 0 && help) {
        fputs(load_usage, stdout);
    } else if (status == 0) {
        status = load(&options, &error);
    }
    load_options_free(&options);
    if (status == -1) {
        fprintf(stderr, "load: %s\n", error.message);
        return 2;
    }
    return status;
}
