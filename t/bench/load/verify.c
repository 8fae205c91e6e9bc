#include "t/bench/load/verify.h"

#include <stdlib.h>
#include <string.h>


static int compare_hashes(const void *a, const void *b)
{
    uint64_t x = (*(const load_record_t *const *) a)->body_hash;
    uint64_t y = (*(const load_record_t *const *) b)->body_hash;

    return (x > y) - (x < y);
}


/* The records by their bodies; the numbers of different ones. */
static size_t sort_records(const load_run_t *run, const load_record_t **sorted, uint64_t *numbers)
{
    size_t n = 0;

    for (size_t i = 0; i < run->n_records; i++) {
        sorted[i] = &run->records[i];
    }
    qsort(sorted, run->n_records, sizeof(*sorted), compare_hashes);
    for (size_t i = 0; i < run->n_records; i++) {
        if (i == 0 || sorted[i]->body_hash != sorted[i - 1]->body_hash) {
            numbers[n++] = sorted[i]->number;
        }
    }
    return n;
}


/* The bytes that both begin with. */
static size_t common(const load_record_t *a, const load_record_t *b)
{
    size_t most = a->text_size < b->text_size ? a->text_size : b->text_size, n = 0;

    while (n < most && a->text[n] == b->text[n]) {
        n++;
    }
    return n;
}


/* `solo` is NULL when its turn did not come. */
static void compare(const load_record_t *record, const load_record_t *solo,
                    load_verdict_t *verdict)
{
    size_t same;

    if (solo == NULL || !solo->succeeded) {
        verdict->unknown++;
        return;
    }
    verdict->compared++;
    same = common(record, solo);
    if (same == record->text_size
        && (!record->succeeded
            || (same == solo->text_size && strcmp(record->finish, solo->finish) == 0)))
    {
        return;
    }
    if (verdict->different++ == 0) {
        moe_fail(&verdict->example, MOE_INVALID,
                 "request %llu differs at byte %zu: \"%.100s\" (%s), alone \"%.100s\" (%s)",
                 (unsigned long long) record->number, same, record->text + same, record->finish,
                 solo->text + same, solo->finish);
    }
}


static void compare_all(const load_run_t *run, const load_record_t **sorted,
                        const load_run_t *solo, load_verdict_t *verdict)
{
    size_t at = 0;

    for (size_t i = 0; i < run->n_records; i++) {
        at += i > 0 && sorted[i]->body_hash != sorted[i - 1]->body_hash;
        compare(sorted[i], at < solo->n_records ? &solo->records[at] : NULL, verdict);
    }
}


int load_verify(const load_run_t *run, load_verdict_t *verdict, moe_error_t *error)
{
    const load_record_t **sorted = malloc((run->n_records + 1) * sizeof(*sorted));
    uint64_t *numbers = malloc((run->n_records + 1) * sizeof(*numbers));
    load_options_t options = *run->options;
    load_run_t solo = { .options = &options, .workload = run->workload,
                        .endpoint = run->endpoint, .numbers = numbers,
                        .interrupted = run->interrupted };
    int rc = -1;

    *verdict = (load_verdict_t) { .compared = 0 };
    if (sorted == NULL || numbers == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory for the comparison");
    } else {
        options.rate = 0.0;
        options.concurrency = 1;
        options.duration_ns = options.warm_up_ns = 0;
        options.requests = sort_records(run, sorted, numbers);
        rc = load_run(&solo, error);
    }
    if (rc == 0) {
        compare_all(run, sorted, &solo, verdict);
    }
    load_run_free(&solo);
    free(sorted);
    free(numbers);
    return rc;
}
