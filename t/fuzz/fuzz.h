/*
 * What the fuzz targets share.  A target reads one input, which may be anything, and checks what
 * holds for every input; a check that fails aborts, and libFuzzer keeps the input.
 */

#ifndef MOE_FUZZ_H
#define MOE_FUZZ_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FUZZ_MODEL "conf/models/nginx-directives-moe"

#define fuzz_check(condition)                                                       \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                \
        }                                                                           \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* What is left of an input, to be taken piece by piece. */
typedef struct {
    const char *data;
    size_t size;
} fuzz_input_t;


/* The next byte, 0 at the end. */
static inline uint8_t fuzz_byte(fuzz_input_t *input)
{
    if (input->size == 0) {
        return 0;
    }
    input->size--;
    return (uint8_t) *input->data++;
}


/* What comes before the next NUL, or all of it: for inputs of several texts. */
static inline fuzz_input_t fuzz_part(fuzz_input_t *input)
{
    const char *end = input->size ? memchr(input->data, 0, input->size) : NULL;
    fuzz_input_t part = { input->data, end ? (size_t) (end - input->data) : input->size };
    size_t used = part.size + (end != NULL);

    input->data += used;
    input->size -= used;
    return part;
}


static char fuzz_path[64];


static inline void fuzz_leave(void)
{
    DIR *directory = opendir(fuzz_path);
    struct dirent *entry;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        unlinkat(dirfd(directory), entry->d_name, 0);
    }
    if (directory != NULL) {
        closedir(directory);
    }
    rmdir(fuzz_path);
}


/* A directory in memory for this process; the functions under test read files. */
static inline const char *fuzz_directory(void)
{
    if (fuzz_path[0] == '\0') {
        snprintf(fuzz_path, sizeof(fuzz_path), "/dev/shm/moe-fuzz-XXXXXX");
        fuzz_check(mkdtemp(fuzz_path) != NULL);
        atexit(fuzz_leave);
    }
    return fuzz_path;
}


static inline void fuzz_write(const char *name, const void *data, size_t size)
{
    char path[128];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", fuzz_directory(), name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fuzz_check(fd != -1 && write(fd, data, size) == (ssize_t) size);
    close(fd);
}


static inline void fuzz_remove(const char *name)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", fuzz_directory(), name);
    unlink(path);
}

#endif
