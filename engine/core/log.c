#include "engine/core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {
    "", "emerg", "alert", "crit", "error", "warn", "notice", "info", "debug"
};


void moe_log(const moe_log_t *log, moe_log_level_t level, const char *format, ...)
{
    char line[2048];
    struct tm tm;
    time_t now;
    va_list args;
    int length;

    if (log == NULL || level > log->level) {
        return;
    }
    now = time(NULL);
    localtime_r(&now, &tm);
    length = snprintf(line, sizeof(line), "%4d/%02d/%02d %02d:%02d:%02d [%s] %d#%d: moe-engine: ",
                      tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
                      tm.tm_sec, level_names[level], (int) getpid(), (int) gettid());
    va_start(args, format);
    length += vsnprintf(line + length, sizeof(line) - length, format, args);
    va_end(args);
    if (length > (int) sizeof(line) - 2) {
        length = sizeof(line) - 2;
    }
    line[length++] = '\n';
    while (write(log->fd, line, length) == -1 && errno == EINTR) {
    }
}


int moe_log_reopen(moe_log_t *log)
{
    int fd;

    if (log->path == NULL) {
        return 0;
    }
    fd = open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd == -1) {
        return -1;
    }
    if (dup3(fd, log->fd, O_CLOEXEC) == -1) {
        close(fd);
        return -1;
    }
    close(fd);
    return 0;
}


int moe_log_level(const char *name)
{
    for (int level = MOE_LOG_EMERG; level <= MOE_LOG_DEBUG; level++) {
        if (strcmp(name, level_names[level]) == 0) {
            return level;
        }
    }
    return -1;
}
