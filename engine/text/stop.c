/*
 * One Knuth-Morris-Pratt automaton per stop string.  Its state is the length of the longest prefix
 * of the string that the text ends with, so `position - state` is where the earliest match that is
 * still possible would start.  Text before all those starts is safe to release; a complete match
 * is final once no other string has begun before it.
 */

#include "engine/text/stop.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *text;
    uint32_t size;
    uint32_t state;             /* longest prefix that the text so far ends with; < size */
    uint32_t *border;           /* border[n]: longest proper border of the first n + 1 bytes */
} automaton_t;

struct moe_stop_s {
    automaton_t *automata;
    uint32_t n_automata;
    int include_stop;
    int matched;                /* index, or -1: final */
    int found;                  /* index of the best complete match so far, or -1 */
    uint64_t found_start, found_end;
    uint64_t position;          /* bytes of text seen */
    uint64_t released;          /* bytes of text released */
    moe_buffer_t held;          /* text from `released` to `position` */
};


static void compute_borders(automaton_t *automaton)
{
    uint32_t n = 0;

    automaton->border[0] = 0;
    for (uint32_t i = 1; i < automaton->size; i++) {
        while (n > 0 && automaton->text[i] != automaton->text[n]) {
            n = automaton->border[n - 1];
        }
        n += automaton->text[i] == automaton->text[n];
        automaton->border[i] = n;
    }
}


moe_stop_t *moe_stop_create(const moe_string_t *stops, uint32_t n_stops, int include_stop,
                            moe_error_t *error)
{
    moe_stop_t *stop = calloc(1, sizeof(*stop));

    if (stop != NULL) {
        stop->automata = calloc(n_stops ? n_stops : 1, sizeof(automaton_t));
    }
    if (stop == NULL || stop->automata == NULL) {
        goto no_memory;
    }
    stop->include_stop = include_stop;
    stop->matched = stop->found = -1;
    for (; stop->n_automata < n_stops; stop->n_automata++) {
        const moe_string_t *string = &stops[stop->n_automata];
        automaton_t *automaton = &stop->automata[stop->n_automata];
        char *copy;

        automaton->border = malloc(string->size * (sizeof(uint32_t) + 1));
        if (automaton->border == NULL) {
            goto no_memory;
        }
        copy = (char *) (automaton->border + string->size);
        memcpy(copy, string->data, string->size);
        automaton->text = copy;
        automaton->size = string->size;
        compute_borders(automaton);
    }
    return stop;

no_memory:
    moe_fail(error, MOE_LIMIT, "out of memory for %u stop strings", n_stops);
    moe_stop_free(stop);
    return NULL;
}


void moe_stop_free(moe_stop_t *stop)
{
    if (stop == NULL) {
        return;
    }
    for (uint32_t i = 0; i < stop->n_automata; i++) {
        free(stop->automata[i].border);
    }
    free(stop->automata);
    moe_buffer_free(&stop->held);
    free(stop);
}


/* Advances one automaton; 1 when its string is complete. */
static int advance(automaton_t *automaton, char byte)
{
    uint32_t n = automaton->state;

    while (n > 0 && automaton->text[n] != byte) {
        n = automaton->border[n - 1];
    }
    n += automaton->text[n] == byte;
    if (n == automaton->size) {
        automaton->state = automaton->border[n - 1];
        return 1;
    }
    automaton->state = n;
    return 0;
}


/* Where the earliest match that may still complete starts; `position` when there is none. */
static uint64_t earliest_candidate(const moe_stop_t *stop)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < stop->n_automata; i++) {
        if (stop->automata[i].state > longest) {
            longest = stop->automata[i].state;
        }
    }
    return stop->position - longest;
}


static void feed(moe_stop_t *stop, char byte)
{
    stop->position++;
    for (uint32_t i = 0; i < stop->n_automata; i++) {
        automaton_t *automaton = &stop->automata[i];
        uint64_t start = stop->position - automaton->size;

        if (advance(automaton, byte) && (stop->found == -1 || start < stop->found_start)) {
            stop->found = (int) i;
            stop->found_start = start;
            stop->found_end = stop->position;
        }
    }
    if (stop->found != -1 && earliest_candidate(stop) >= stop->found_start) {
        stop->matched = stop->found;
    }
}


/* Moves held text up to `end` (counted from the text's start) to `out`. */
static int release(moe_stop_t *stop, uint64_t end, moe_buffer_t *out, moe_error_t *error)
{
    size_t size = (size_t) (end - stop->released);

    if (moe_buffer_append(out, stop->held.data, size, error) != 0) {
        return -1;
    }
    moe_buffer_consume(&stop->held, size);
    stop->released = end;
    return 0;
}


static int release_match(moe_stop_t *stop, moe_buffer_t *out, moe_error_t *error)
{
    return release(stop, stop->include_stop ? stop->found_end : stop->found_start, out, error);
}


int moe_stop_push(moe_stop_t *stop, const char *text, size_t size, moe_buffer_t *out,
                  moe_error_t *error)
{
    uint64_t safe;

    if (moe_buffer_append(&stop->held, text, size, error) != 0) {
        return -2;
    }
    for (size_t i = 0; i < size && stop->matched == -1; i++) {
        feed(stop, text[i]);
    }
    if (stop->matched != -1) {
        return release_match(stop, out, error) != 0 ? -2 : stop->matched;
    }
    safe = earliest_candidate(stop);
    if (stop->found != -1 && stop->found_start < safe) {
        safe = stop->found_start;
    }
    return release(stop, safe, out, error) != 0 ? -2 : -1;
}


int moe_stop_finish(moe_stop_t *stop, moe_buffer_t *out, moe_error_t *error)
{
    stop->matched = stop->found;
    return stop->found != -1 ? release_match(stop, out, error)
                             : release(stop, stop->position, out, error);
}


int moe_stop_matched(const moe_stop_t *stop)
{
    return stop->matched;
}
