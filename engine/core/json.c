#include "engine/core/json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>


json_t *moe_json_load(const char *directory, const char *name, int optional, moe_error_t *error)
{
    char path[PATH_MAX];
    json_error_t where;
    struct stat st;
    json_t *json;
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
    json = json_loadfd(fd, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    close(fd);
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
