/*
 * Logger in nginx's error_log format, so that engine and nginx share one file:
 *
 *     2026/11/30 19:15:50 [notice] 123#124: moe-engine: message
 *
 * One write(2) per line keeps lines whole.  Safe from any thread.
 */

#ifndef MOE_LOG_H
#define MOE_LOG_H

typedef enum {              /* nginx's levels and numbers */
    MOE_LOG_EMERG = 1,
    MOE_LOG_ALERT,
    MOE_LOG_CRIT,
    MOE_LOG_ERR,
    MOE_LOG_WARN,
    MOE_LOG_NOTICE,
    MOE_LOG_INFO,
    MOE_LOG_DEBUG
} moe_log_level_t;

typedef struct {
    int fd;                 /* where lines go; not owned */
    moe_log_level_t level;  /* lines above it are dropped */
    const char *path;       /* for moe_log_reopen; NULL when there is no file behind fd */
} moe_log_t;

void moe_log(const moe_log_t *log, moe_log_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Opens `path` again (log rotation) and puts it under the same fd number; keeps the old file and
 * returns -1 when the new one cannot be opened. */
int moe_log_reopen(moe_log_t *log);

/* "error" -> MOE_LOG_ERR and so on; -1 when unknown.  nginx's spelling. */
int moe_log_level(const char *name);

#endif
