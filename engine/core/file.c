#include "engine/core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>


int moe_file_path(char *path, const char *directory, const char *name, moe_error_t *error)
{
    return snprintf(path, PATH_MAX, "%s/%s", directory, name) < PATH_MAX
           ? 0 : moe_fail(error, MOE_BAD_MODEL, "%s: path too long", name);
}


/* The whole file at once: stdio would read it in pieces.  The file may shrink or grow
 * meanwhile; what was read up to `size` bytes counts. */
static char *read_file(int fd, size_t size, size_t *read_size)
{
    char *data = malloc(size ? size : 1);
    size_t n = 0;

    while (data != NULL && n < size) {
        ssize_t r = read(fd, data + n, size - n);

        if (r == -1 && errno == EINTR) {
            continue;
        }
        if (r == -1) {
            free(data);
            return NULL;
        }
        if (r == 0) {
            break;
        }
        n += (size_t) r;
    }
    *read_size = n;
    return data;
}


char *moe_file_load(const char *path, int optional, size_t limit, size_t *size,
                    moe_error_t *error)
{
    struct stat st;
    char *data;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    error->code = MOE_OK;
    if (fd == -1) {
        if (errno != ENOENT || !optional) {
            moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
        }
        return NULL;
    }
    if (fstat(fd, &st) == -1 || !S_ISREG(st.st_mode)) {
        moe_fail(error, MOE_BAD_MODEL, "%s: not a regular file", path);
        close(fd);
        return NULL;
    }
    if (st.st_size > (off_t) limit) {
        moe_fail(error, MOE_BAD_MODEL, "%s: larger than %zu bytes", path, limit);
        close(fd);
        return NULL;
    }
    data = read_file(fd, (size_t) st.st_size, size);
    if (data == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "%s: cannot be read: %s", path, strerror(errno));
    }
    close(fd);
    return data;
}
