/*
 * tokenizer DIRECTORY FILE ROUNDS: medians of the seconds that DIRECTORY/tokenizer.json takes to
 * load and of the megabytes per second at which FILE is encoded, and bytes per token.  Seconds are
 * those of the processor: there is one thread.
 */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/core/file.h"
#include "engine/text/tokenizer.h"

#define ROUNDS_LIMIT 100
#define FILE_LIMIT ((size_t) 1 << 30)


static int compare(const void *left, const void *right)
{
    double a = *(const double *) left, b = *(const double *) right;

    return (a > b) - (a < b);
}


static double median(double *values, int n)
{
    qsort(values, (size_t) n, sizeof(*values), compare);
    return values[n / 2];
}


static double processor_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}


int main(int argc, char **argv)
{
    int rounds = argc == 4 ? atoi(argv[3]) : 0;
    double load[ROUNDS_LIMIT], encode[ROUNDS_LIMIT];
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    moe_error_t error;
    size_t size;
    char *data;

    if (rounds < 1 || rounds > ROUNDS_LIMIT) {
        fprintf(stderr, "usage: tokenizer DIRECTORY FILE ROUNDS\n");
        return 2;
    }
    data = moe_file_load(argv[2], 0, FILE_LIMIT, &size, &error);
    if (data == NULL || moe_text_append(&text, data, size, 0, &error) != 0) {
        goto failed;
    }
    for (int i = 0; i < rounds; i++) {
        double start = processor_seconds();
        moe_tokenizer_t *tokenizer = moe_tokenizer_load(argv[1], &error);

        load[i] = processor_seconds() - start;
        ids.count = 0;
        start = processor_seconds();
        if (tokenizer == NULL
            || moe_tokenizer_encode(tokenizer, &text, 0, 0, &ids, &error) != 0)
        {
            moe_tokenizer_free(tokenizer);
            goto failed;
        }
        encode[i] = (double) size / 1e6 / (processor_seconds() - start);
        moe_tokenizer_free(tokenizer);
    }
    printf("%.4f %.3f %.3f\n", median(load, rounds), median(encode, rounds),
           (double) size / (double) ids.count);
    moe_ids_free(&ids);
    moe_text_free(&text);
    free(data);
    return 0;

failed:
    fprintf(stderr, "%s\n", error.message);
    moe_ids_free(&ids);
    moe_text_free(&text);
    free(data);
    return 1;
}
