/*
 * The arena and the budgets of a parse or a render.
 *
 * Memory is handed out from chunks and freed all at once; what is counted against the limit is what
 * was asked for, so a limit means the same whatever the chunks are.  Work is counted in steps: one
 * per evaluated node, one per 64 bytes copied or scanned, so that no operator is a way around it.
 */

#include "engine/text/template_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_SIZE ((size_t) 32 << 10)
#define BYTES_PER_STEP 64

struct moe_chunk_s {
    moe_chunk_t *next;
    size_t used, size;
    _Alignas(16) char data[];
};


static moe_chunk_t *add_chunk(moe_job_t *job, size_t size)
{
    int large = size > CHUNK_SIZE / 4;
    size_t room = large ? size : CHUNK_SIZE;
    moe_chunk_t *chunk = calloc(1, sizeof(*chunk) + room);

    if (chunk == NULL) {
        moe_job_fail_code(job, MOE_LIMIT, "out of memory");
        return NULL;
    }
    chunk->size = room;
    chunk->used = 0;
    /* A chunk for one large thing goes behind the current one, which still has room. */
    if (large && job->chunks != NULL) {
        chunk->next = job->chunks->next;
        job->chunks->next = chunk;
    } else {
        chunk->next = job->chunks;
        job->chunks = chunk;
    }
    return chunk;
}


int moe_job_charge_memory(moe_job_t *job, size_t size)
{
    if (size > job->memory_limit - job->memory) {
        return moe_job_fail_code(job, MOE_LIMIT, "more than %zu bytes of memory needed",
                                 job->memory_limit);
    }
    job->memory += size;
    return 0;
}


void *moe_job_alloc(moe_job_t *job, size_t size)
{
    moe_chunk_t *chunk = job->chunks;
    char *memory;

    if (moe_job_charge_memory(job, size) != 0) {
        return NULL;
    }
    size = (size + 15) & ~(size_t) 15;
    if (chunk == NULL || chunk->size - chunk->used < size) {
        chunk = add_chunk(job, size);
        if (chunk == NULL) {
            return NULL;
        }
    }
    memory = chunk->data + chunk->used;
    chunk->used += size;
    return memory;
}


void *moe_job_grow(moe_job_t *job, void *items, size_t count, size_t *capacity, size_t item_size)
{
    void *larger;

    if (count < *capacity) {
        return items;
    }
    *capacity = *capacity > 0 ? 2 * *capacity : 4;
    larger = moe_job_alloc(job, *capacity * item_size);
    if (larger != NULL && count > 0) {
        memcpy(larger, items, count * item_size);
    }
    return larger;
}


void moe_job_free(moe_job_t *job)
{
    moe_chunk_t *next;

    for (moe_chunk_t *chunk = job->chunks; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    job->chunks = NULL;
    json_decref(job->parsed);
    job->parsed = NULL;
}


int moe_job_charge(moe_job_t *job, size_t steps)
{
    if (steps > job->steps_limit - job->steps) {
        job->steps = job->steps_limit;
        return moe_job_fail_code(job, MOE_LIMIT, "more than %zu steps needed", job->steps_limit);
    }
    job->steps += steps;
    return 0;
}


int moe_job_charge_bytes(moe_job_t *job, size_t bytes)
{
    return moe_job_charge(job, bytes / BYTES_PER_STEP);
}


int moe_job_enter(moe_job_t *job)
{
    if (job->depth >= job->depth_limit) {
        return moe_job_fail_code(job, job->fault == MOE_BAD_MODEL ? MOE_BAD_MODEL : MOE_LIMIT,
                                 "nested more than %u levels deep", job->depth_limit);
    }
    job->depth++;
    return 0;
}


void moe_job_leave(moe_job_t *job)
{
    job->depth--;
}


static int fail(moe_job_t *job, moe_error_code_t code, const char *format, va_list args)
{
    char message[sizeof(job->error->message)];

    vsnprintf(message, sizeof(message), format, args);
    return moe_fail(job->error, code, "template line %d: %s", job->line, message);
}


int moe_job_fail(moe_job_t *job, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail(job, job->fault, format, args);
    va_end(args);
    return -1;
}


int moe_job_fail_code(moe_job_t *job, moe_error_code_t code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail(job, code, format, args);
    va_end(args);
    return -1;
}
