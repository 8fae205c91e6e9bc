/*
 * The record is a list of slots that only grows: a closed mapping leaves its slot for the next one
 * and no slot is ever freed.  So the signal handler, which may interrupt or run beside anything,
 * can walk the list with atomic loads and never meets freed memory.  This is the one state the
 * engine keeps per process, because a signal handler gets no context.
 */

#include "engine/model/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct mapping_slot_s mapping_slot_t;

struct mapping_slot_s {
    mapping_slot_t *next;           /* set before the slot is published */
    _Atomic uintptr_t begin;        /* 0: free */
    _Atomic size_t size;
    char path[512];                 /* cut at the front: the end says more */
};

static _Atomic(mapping_slot_t *) slots;
static pthread_mutex_t slots_mutex = PTHREAD_MUTEX_INITIALIZER;     /* writers only */


static mapping_slot_t *slot_of(uintptr_t begin)
{
    mapping_slot_t *slot = atomic_load(&slots);

    while (slot != NULL && atomic_load(&slot->begin) != begin) {
        slot = slot->next;
    }
    return slot;
}


static int record(const moe_mapping_t *mapping, const char *path)
{
    size_t length = strlen(path);
    mapping_slot_t *slot;
    int published;

    pthread_mutex_lock(&slots_mutex);
    slot = slot_of(0);
    published = slot != NULL;
    if (!published) {
        slot = calloc(1, sizeof(*slot));
    }
    if (slot != NULL) {
        if (length >= sizeof(slot->path)) {
            path += length - (sizeof(slot->path) - 1);
            length = sizeof(slot->path) - 1;
        }
        memcpy(slot->path, path, length + 1);
        atomic_store(&slot->size, mapping->size);
        atomic_store(&slot->begin, (uintptr_t) mapping->data);
        if (!published) {
            slot->next = atomic_load(&slots);
            atomic_store(&slots, slot);
        }
    }
    pthread_mutex_unlock(&slots_mutex);
    return slot != NULL ? 0 : -1;
}


static int map_file(moe_mapping_t *mapping, int fd, const char *path, moe_error_t *error)
{
    struct stat st;
    void *data;

    if (fstat(fd, &st) == -1) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: not a regular file", path);
    }
    if (st.st_size == 0) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: empty file", path);
    }
    data = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: mmap: %s", path, strerror(errno));
    }
    mapping->data = data;
    mapping->size = (size_t) st.st_size;
    if (record(mapping, path) != 0) {
        munmap(data, mapping->size);
        *mapping = (moe_mapping_t) { 0 };
        return moe_fail(error, MOE_LIMIT, "%s: out of memory", path);
    }
    return 0;
}


int moe_mapping_open(moe_mapping_t *mapping, const char *path, moe_error_t *error)
{
    int fd, result;

    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
    }
    result = map_file(mapping, fd, path, error);
    close(fd);
    return result;
}


void moe_mapping_close(moe_mapping_t *mapping)
{
    mapping_slot_t *slot;

    if (mapping->data == NULL) {
        return;
    }
    pthread_mutex_lock(&slots_mutex);
    slot = slot_of((uintptr_t) mapping->data);
    if (slot != NULL) {
        atomic_store(&slot->begin, 0);
    }
    pthread_mutex_unlock(&slots_mutex);
    munmap((void *) (uintptr_t) mapping->data, mapping->size);
    mapping->data = NULL;
    mapping->size = 0;
}


static void write_text(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) == -1) {
        return;
    }
}


/* The slot of the mapping in which [address, address + size) lies. */
static const mapping_slot_t *slot_around(uintptr_t address, size_t size)
{
    const mapping_slot_t *slot;

    for (slot = atomic_load(&slots); slot != NULL; slot = slot->next) {
        uintptr_t begin = atomic_load(&slot->begin), length = atomic_load(&slot->size);

        if (begin != 0 && address >= begin && address - begin < length
            && size <= length - (address - begin))
        {
            return slot;
        }
    }
    return NULL;
}


/* Whole pages only: the others hold part of a neighbour too. */
void moe_mapping_release(const void *data, size_t size)
{
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), address = (uintptr_t) data;
    const uintptr_t begin = (address + page - 1) / page * page;
    const uintptr_t end = (address + size) / page * page;

    if (end > begin && slot_around(address, size) != NULL) {
        madvise((void *) begin, end - begin, MADV_DONTNEED);
    }
}


static void handle_sigbus(int signal_number, siginfo_t *info, void *context)
{
    const mapping_slot_t *slot = slot_around((uintptr_t) info->si_addr, 1);

    if (slot != NULL) {
        write_text("moe-engine: ");
        write_text(slot->path);
        write_text(": truncated or unreadable while in use\n");
        _exit(1);
    }
    signal(signal_number, SIG_DFL);     /* returning repeats the access: the default action */
}


void moe_mapping_handle_sigbus(void)
{
    struct sigaction action = { .sa_sigaction = handle_sigbus, .sa_flags = SA_SIGINFO };

    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
