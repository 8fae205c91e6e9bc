#include "engine/core/model_path.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENDING ".gguf"


/* 1 for "NAME-0000K-of-0000N.gguf" with K > 1. */
static int is_later_part(const char *name)
{
    const char *dash = strstr(name, "-of-");
    unsigned number, count;
    int end = 0;

    for (; dash != NULL; dash = strstr(dash + 1, "-of-")) {
        if (dash - name >= 6 && sscanf(dash - 6, "-%5u-of-%5u" ENDING "%n", &number, &count, &end)
            == 2 && end > 0 && dash[-6 + end] == '\0')
        {
            return number > 1;
        }
    }
    return 0;
}


static int is_model(const char *name)
{
    size_t length = strlen(name);

    return name[0] != '.' && length > strlen(ENDING)
           && strcmp(name + length - strlen(ENDING), ENDING) == 0
           && strncmp(name, "mmproj", 6) != 0 && !is_later_part(name);
}


/* The name of the only model; empty when there is none. */
static int find_model(const char *path, char name[NAME_MAX + 1], moe_error_t *error)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;
    int several = 0;

    name[0] = '\0';
    if (directory == NULL) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
    }
    while (!several && (entry = readdir(directory)) != NULL) {
        if (!is_model(entry->d_name)) {
            continue;
        }
        if (name[0] != '\0') {
            several = 1;
            moe_fail(error, MOE_BAD_MODEL, "%s: holds more than one model, %.100s and %.100s: name "
                     "the file", path, name, entry->d_name);
        }
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    closedir(directory);
    return several ? -1 : 0;
}


/* A regular file is told by its first bytes, not by its name. */
static int check_file(const char *path, moe_error_t *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char magic[4];
    ssize_t n;

    if (fd == -1) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
    }
    n = read(fd, magic, sizeof(magic));
    close(fd);
    return n == sizeof(magic) && memcmp(magic, "GGUF", sizeof(magic)) == 0
           ? 0
           : moe_fail(error, MOE_BAD_MODEL, "%s: neither a directory nor a GGUF file", path);
}


/* `file` gets "directory/name", or `name` alone. */
static int join(const char *directory, const char *name, char *file, size_t size,
                moe_error_t *error)
{
    int length = directory != NULL ? snprintf(file, size, "%s/%s", directory, name)
                                   : snprintf(file, size, "%s", name);

    return length >= 0 && (size_t) length < size
           ? 0 : moe_fail(error, MOE_BAD_MODEL, "%s: path too long", name);
}


int moe_model_path(const char *path, char *file, size_t size, moe_error_t *error)
{
    char name[NAME_MAX + 1], config[PATH_MAX];
    struct stat st;

    if (stat(path, &st) == -1) {
        return moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(st.st_mode)) {
        return check_file(path, error) == 0 && join(NULL, path, file, size, error) == 0
               ? MOE_PATH_GGUF : -1;
    }
    if (join(path, "config.json", config, sizeof(config), error) != 0) {
        return -1;
    }
    if (stat(config, &st) == 0) {
        return MOE_PATH_DIRECTORY;
    }
    if (find_model(path, name, error) != 0) {
        return -1;
    }
    if (name[0] == '\0') {
        return MOE_PATH_DIRECTORY;
    }
    return join(path, name, file, size, error) == 0 ? MOE_PATH_GGUF : -1;
}
