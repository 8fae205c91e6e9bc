#include "engine/core/json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>


/* The whole file at once: json_loadfd() reads a byte per system call.  The file may shrink or grow
 * meanwhile; what was read up to `size` bytes is parsed. */
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


json_t *moe_json_load(const char *directory, const char *name, int optional, moe_error_t *error)
{
    char path[PATH_MAX];
    json_error_t where;
    struct stat st;
    json_t *json;
    size_t size;
    char *data;
    int fd;

    error->code = MOE_OK;
    if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int) sizeof(path)) {
        moe_fail(error, MOE_BAD_MODEL, "%s: path too long", name);
        return NULL;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
    if (st.st_size > (off_t) MOE_JSON_FILE_LIMIT) {
        moe_fail(error, MOE_BAD_MODEL, "%s: larger than %u bytes", path, MOE_JSON_FILE_LIMIT);
        close(fd);
        return NULL;
    }
    data = read_file(fd, (size_t) st.st_size, &size);
    if (data == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "%s: cannot be read: %s", path, strerror(errno));
        close(fd);
        return NULL;
    }
    close(fd);
    json = json_loadb(data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    free(data);
    if (json == NULL) {
        moe_fail(error, MOE_BAD_MODEL, "%s: %s, line %d", path, where.text, where.line);
        return NULL;
    }
    if (!json_is_object(json)) {
        moe_fail(error, MOE_BAD_MODEL, "%s: not a JSON object", path);
        json_decref(json);
        return NULL;
    }
    return json;
}


int moe_json_flag(const json_t *object, const char *key, int fallback, int *value,
                  moe_error_t *error)
{
    const json_t *field = json_object_get(object, key);

    if (field != NULL && !json_is_boolean(field) && !json_is_null(field)) {
        return moe_fail(error, MOE_BAD_MODEL, "\"%s\" is not a boolean", key);
    }
    *value = json_is_boolean(field) ? json_is_true(field) : fallback;
    return 0;
}


const char *moe_json_string(const json_t *object, const char *key, size_t *size,
                            moe_error_t *error)
{
    const json_t *field = json_object_get(object, key);

    if (!json_is_string(field)) {
        moe_fail(error, MOE_BAD_MODEL, "\"%s\" is not a string", key);
        return NULL;
    }
    *size = json_string_length(field);
    return json_string_value(field);
}
