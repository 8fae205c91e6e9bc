/*
 * The one error type of the engine.
 *
 * A function that can fail returns 0 or -1 (or a pointer or NULL) and fills a moe_error_t that its
 * caller owns.  The message is one line that names the offending thing (file, key, tensor, field);
 * it never holds more than a short excerpt of the input.
 */

#ifndef MOE_ERROR_H
#define MOE_ERROR_H

typedef enum {
    MOE_OK = 0,
    MOE_INVALID,        /* the request or the command line asks for something impossible */
    MOE_TOO_LONG,       /* prompt and max_tokens do not fit into the context */
    MOE_BAD_MODEL,      /* a model file is missing, damaged or of an unknown kind */
    MOE_LIMIT,          /* a bound (memory, depth, steps, queue) was reached */
    MOE_UNAVAILABLE,    /* loading, draining, restarting: try again later */
    MOE_SYSTEM          /* a system call failed */
} moe_error_code_t;

typedef struct {
    moe_error_code_t code;
    char message[480];
} moe_error_t;

/* Sets code and formatted message (control characters replaced by '?', cut at the buffer's size on
 * a UTF-8 border); always returns -1, so that `return moe_fail(...)` reads well. */
int moe_fail(moe_error_t *error, moe_error_code_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the message; returns -1. */
int moe_fail_in(moe_error_t *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
