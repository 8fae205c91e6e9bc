
/*
 * An engine is another executable: it cannot read the master's process
 * channel, and the master would respawn it without a pause.  So the child of
 * the master stays as this loop, which has no state but two descriptors to
 * wait on, the channel and a signalfd, and one deadline.  Both processes ask
 * the kernel to be killed when their parent dies, so nothing outlives a
 * master that was killed.
 */


#include "ngx_http_moe_module.h"
#include "http/engine_process.h"
#include "http/supervisor.h"

#include "engine/core/clock.h"

#include <ngx_channel.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>


#define NGX_HTTP_MOE_BACKOFF_FIRST   100     /* ms */
#define NGX_HTTP_MOE_BACKOFF_LAST    15000
#define NGX_HTTP_MOE_STABLE          60000   /* ends a row of crashes */
#define NGX_HTTP_MOE_LOCK_INTERVAL   50

/* The engine drains a moment later than the workers, which have the same
 * command: what they have accepted by then still reaches it. */
#define NGX_HTTP_MOE_QUIT_DELAY      250

/* where the engine finds its descriptors */
#define NGX_HTTP_MOE_LISTEN_FD       3
#define NGX_HTTP_MOE_SETTINGS_FD     4
#define NGX_HTTP_MOE_HIGH_FD         16


typedef struct {
    ngx_http_moe_engine_t   *engine;
    ngx_log_t               *log;
    ngx_fd_t                 lock;
    ngx_fd_t                 signals;
    ngx_pid_t                pid;         /* of moe-engine, or 0 */
    uint64_t                 start_at;    /* ms, while there is none */
    uint64_t                 started;     /* ms */
    uint64_t                 quit_at;     /* ms; 0: no drain is due */
    unsigned                 locked:1;
    unsigned                 quit:1;
} ngx_http_moe_supervisor_t;


static ngx_int_t ngx_http_moe_supervisor_init(ngx_cycle_t *cycle,
    ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_log(ngx_cycle_t *cycle, ngx_log_t *log);
static ngx_int_t ngx_http_moe_supervisor_lock(ngx_http_moe_supervisor_t *sv);
static ngx_int_t ngx_http_moe_supervisor_user(ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_close(ngx_fd_t *keep, ngx_uint_t n);
static int ngx_http_moe_supervisor_next(ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_channel(ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_signals(ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_command(ngx_http_moe_supervisor_t *sv,
    int signo);
static void ngx_http_moe_supervisor_kill(ngx_http_moe_supervisor_t *sv,
    int signo);
static void ngx_http_moe_supervisor_reopen(ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_reap(ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_backoff(ngx_http_moe_supervisor_t *sv,
    uint64_t now);
static void ngx_http_moe_supervisor_start(ngx_http_moe_supervisor_t *sv);
static ngx_fd_t ngx_http_moe_supervisor_settings(
    ngx_http_moe_supervisor_t *sv);
static void ngx_http_moe_supervisor_exec(ngx_http_moe_supervisor_t *sv,
    ngx_fd_t settings, ngx_pid_t parent);


static uint64_t
ngx_http_moe_supervisor_now(void)
{
    return moe_now_ns() / 1000000;
}


void
ngx_http_moe_supervisor(ngx_cycle_t *cycle, void *data)
{
    int                        timeout;
    ngx_log_t                  log;
    struct pollfd              events[2];
    ngx_http_moe_supervisor_t  sv;

    ngx_memzero(&sv, sizeof(ngx_http_moe_supervisor_t));
    sv.engine = data;
    sv.log = &log;

    ngx_process = NGX_PROCESS_HELPER;
    ngx_http_moe_supervisor_log(cycle, &log);

    if (ngx_http_moe_supervisor_init(cycle, &sv) != NGX_OK) {
        /* the master respawns a child at once: not a busy loop */
        ngx_msleep(1000);
        exit(1);
    }

    for ( ;; ) {
        timeout = ngx_http_moe_supervisor_next(&sv);

        events[0].fd = ngx_channel;
        events[0].events = POLLIN;
        events[0].revents = 0;
        events[1].fd = sv.signals;
        events[1].events = POLLIN;
        events[1].revents = 0;

        if (poll(events, 2, timeout) == -1 && ngx_errno != NGX_EINTR) {
            ngx_log_error(NGX_LOG_ALERT, sv.log, ngx_errno, "poll() failed");
            exit(1);
        }

        ngx_time_update();

        if (events[1].revents) {
            ngx_http_moe_supervisor_signals(&sv);
        }

        if (events[0].revents) {
            ngx_http_moe_supervisor_channel(&sv);
        }
    }
}


static ngx_int_t
ngx_http_moe_supervisor_init(ngx_cycle_t *cycle, ngx_http_moe_supervisor_t *sv)
{
    sigset_t               set;
    ngx_fd_t               keep[5];
    ngx_http_moe_engine_t *engine;

    engine = sv->engine;

    sigfillset(&set);

    if (sigprocmask(SIG_SETMASK, &set, NULL) == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      "sigprocmask() failed");
        return NGX_ERROR;
    }

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGUSR1);

    sv->signals = signalfd(-1, &set, SFD_NONBLOCK|SFD_CLOEXEC);

    if (sv->signals == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno, "signalfd() failed");
        return NGX_ERROR;
    }

    sv->lock = open((char *) engine->lock.data,
                    O_RDWR|O_CREAT|O_CLOEXEC|O_NOFOLLOW, 0600);

    if (sv->lock == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      ngx_open_file_n " \"%V\" failed", &engine->lock);
        return NGX_ERROR;
    }

    keep[0] = ngx_channel;
    keep[1] = engine->listen;
    keep[2] = sv->lock;
    keep[3] = sv->signals;
    keep[4] = sv->log->file->fd;

    ngx_http_moe_supervisor_close(keep, 5);

    if (ngx_http_moe_supervisor_user(sv) != NGX_OK) {
        return NGX_ERROR;
    }

    /* after the change of user, which clears it */

    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      "prctl(PR_SET_PDEATHSIG) failed");
        return NGX_ERROR;
    }

    if (getppid() != ngx_parent) {
        exit(0);
    }

    ngx_setproctitle(engine->name);

    engine->shared->supervisor = ngx_pid;
    engine->shared->process = 0;
    engine->shared->phase = NGX_HTTP_MOE_ENGINE_WAITING;

    /* a supervisor that was killed took its engine with it */

    if (engine->shared->started) {
        ngx_http_moe_supervisor_backoff(sv, ngx_http_moe_supervisor_now());
    }

    return NGX_OK;
}


ngx_log_t *
ngx_http_moe_file_log(ngx_log_t *log)
{
    for ( /* void */ ; log; log = log->next) {
        if (log->file && log->file->fd != NGX_INVALID_FILE) {
            return log;
        }
    }

    return NULL;
}


/*
 * Only a log that is a file: sockets and memory of other kinds of logs belong
 * to the master.
 */

static void
ngx_http_moe_supervisor_log(ngx_cycle_t *cycle, ngx_log_t *log)
{
    ngx_log_t  *file;

    static ngx_open_file_t  ngx_stderr_file;

    file = ngx_http_moe_file_log(cycle->log);

    if (file) {
        *log = *file;

    } else {
        ngx_memzero(log, sizeof(ngx_log_t));
        ngx_stderr_file.fd = ngx_stderr;
        log->file = &ngx_stderr_file;
        log->log_level = NGX_LOG_ERR;
    }

    log->next = NULL;
    log->writer = NULL;
    log->handler = NULL;
    log->connection = 0;
    log->action = NULL;
}


static ngx_int_t
ngx_http_moe_supervisor_lock(ngx_http_moe_supervisor_t *sv)
{
    struct flock  lock;

    ngx_memzero(&lock, sizeof(struct flock));
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;

    if (fcntl(sv->lock, F_SETLK, &lock) == 0) {
        sv->locked = 1;
        return NGX_OK;
    }

    if (ngx_errno != NGX_EAGAIN && ngx_errno != NGX_EACCES) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      "fcntl(F_SETLK) \"%V\" failed", &sv->engine->lock);
        exit(1);
    }

    sv->engine->shared->replaces = 1;

    return NGX_AGAIN;
}


static ngx_int_t
ngx_http_moe_supervisor_user(ngx_http_moe_supervisor_t *sv)
{
    ngx_http_moe_engine_t  *engine;

    engine = sv->engine;

    if (engine->user == NULL) {
        return NGX_OK;
    }

    if (setgid(engine->gid) == -1
        || initgroups(engine->user, engine->gid) == -1
        || setuid(engine->uid) == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      "changing to user \"%s\" failed", engine->user);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* Closes what was inherited from the master, listening sockets above all. */

static void
ngx_http_moe_supervisor_close(ngx_fd_t *keep, ngx_uint_t n)
{
    ngx_fd_t    fd, last;
    ngx_uint_t  i;

    /* everything above the kept ones in one call, where the kernel has it */

    last = 3;

    for (i = 0; i < n; i++) {
        last = ngx_max(last, keep[i] + 1);
    }

    if (close_range(last, ~0U, 0) == -1) {
        last = (ngx_fd_t) ngx_min(sysconf(_SC_OPEN_MAX), 1 << 20);
    }

    for (fd = 3; fd < last; fd++) {

        for (i = 0; i < n; i++) {
            if (keep[i] == fd) {
                break;
            }
        }

        if (i == n) {
            (void) close(fd);
        }
    }
}


/* What is due now; returns for how many ms there is nothing to do, or -1. */

static int
ngx_http_moe_supervisor_next(ngx_http_moe_supervisor_t *sv)
{
    uint64_t  now;

    if (sv->quit && sv->pid == 0) {
        ngx_log_error(NGX_LOG_NOTICE, sv->log, 0, "exiting");
        exit(0);
    }

    now = ngx_http_moe_supervisor_now();

    if (sv->pid) {

        if (sv->quit_at == 0) {
            return -1;
        }

        if (now < sv->quit_at) {
            return (int) (sv->quit_at - now);
        }

        sv->quit_at = 0;
        ngx_http_moe_supervisor_kill(sv, SIGQUIT);

        return -1;
    }

    if (!sv->locked && ngx_http_moe_supervisor_lock(sv) != NGX_OK) {
        return NGX_HTTP_MOE_LOCK_INTERVAL;
    }

    if (now < sv->start_at) {
        return (int) (sv->start_at - now);
    }

    ngx_http_moe_supervisor_start(sv);

    if (sv->pid) {
        return -1;
    }

    ngx_http_moe_supervisor_backoff(sv, now);

    return (int) (sv->start_at - now);
}


static void
ngx_http_moe_supervisor_channel(ngx_http_moe_supervisor_t *sv)
{
    ngx_int_t      n;
    ngx_channel_t  ch;

    for ( ;; ) {
        n = ngx_read_channel(ngx_channel, &ch, sizeof(ngx_channel_t), sv->log);

        if (n == NGX_AGAIN) {
            return;
        }

        if (n == NGX_ERROR) {

            /* the master is gone */

            if (sv->pid) {
                (void) kill(sv->pid, SIGKILL);
            }

            exit(1);
        }

        switch (ch.command) {

        case NGX_CMD_QUIT:
            ngx_http_moe_supervisor_command(sv, SIGQUIT);
            break;

        case NGX_CMD_TERMINATE:
            ngx_http_moe_supervisor_command(sv, SIGTERM);
            break;

        case NGX_CMD_REOPEN:
            ngx_http_moe_supervisor_command(sv, SIGUSR1);
            break;

        case NGX_CMD_OPEN_CHANNEL:
            if (ch.fd != -1) {
                (void) close(ch.fd);
            }
            break;
        }
    }
}


static void
ngx_http_moe_supervisor_signals(ngx_http_moe_supervisor_t *sv)
{
    struct signalfd_siginfo  info;

    while (read(sv->signals, &info, sizeof(info)) == sizeof(info)) {

        if (info.ssi_signo == SIGCHLD) {
            ngx_http_moe_supervisor_reap(sv);

        } else {
            ngx_http_moe_supervisor_command(sv, (int) info.ssi_signo);
        }
    }
}


static void
ngx_http_moe_supervisor_command(ngx_http_moe_supervisor_t *sv, int signo)
{
    switch (signo) {

    case SIGUSR1:
        ngx_http_moe_supervisor_reopen(sv);
        break;

    case SIGQUIT:
        if (!sv->quit) {
            sv->quit = 1;
            sv->quit_at = ngx_http_moe_supervisor_now()
                          + NGX_HTTP_MOE_QUIT_DELAY;
            sv->engine->shared->phase = NGX_HTTP_MOE_ENGINE_QUITTING;
        }

        return;

    default: /* SIGTERM, SIGINT */
        sv->quit = 1;
        sv->quit_at = 0;
        sv->engine->shared->phase = NGX_HTTP_MOE_ENGINE_QUITTING;
    }

    ngx_http_moe_supervisor_kill(sv, signo);
}


static void
ngx_http_moe_supervisor_kill(ngx_http_moe_supervisor_t *sv, int signo)
{
    if (sv->pid && kill(sv->pid, signo) == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      "kill(%P, %d) failed", sv->pid, signo);
    }
}


static void
ngx_http_moe_supervisor_reopen(ngx_http_moe_supervisor_t *sv)
{
    ngx_fd_t          fd;
    ngx_open_file_t  *file;

    file = sv->log->file;

    if (file->name.len == 0) {
        return;
    }

    fd = ngx_open_file(file->name.data, NGX_FILE_APPEND,
                       NGX_FILE_CREATE_OR_OPEN, NGX_FILE_DEFAULT_ACCESS);

    if (fd == NGX_INVALID_FILE) {
        ngx_log_error(NGX_LOG_ERR, sv->log, ngx_errno,
                      ngx_open_file_n " \"%V\" failed", &file->name);
        return;
    }

    if (dup2(fd, file->fd) == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno, "dup2() failed");
    }

    (void) ngx_close_file(fd);
}


static void
ngx_http_moe_supervisor_reap(ngx_http_moe_supervisor_t *sv)
{
    int                            status;
    ngx_pid_t                      pid;
    ngx_http_moe_engine_shared_t  *shared;

    shared = sv->engine->shared;

    for ( ;; ) {
        pid = waitpid(-1, &status, WNOHANG);

        if (pid <= 0) {
            return;
        }

        if (pid != sv->pid) {
            continue;
        }

        sv->pid = 0;
        shared->process = 0;

        if (sv->quit) {
            return;
        }

        if (WIFSIGNALED(status)) {
            ngx_log_error(NGX_LOG_ERR, sv->log, 0,
                          "%s %P exited on signal %d",
                          sv->engine->name, pid, WTERMSIG(status));
        } else {
            ngx_log_error(NGX_LOG_ERR, sv->log, 0,
                          "%s %P exited with code %d",
                          sv->engine->name, pid, WEXITSTATUS(status));
        }

        ngx_http_moe_supervisor_backoff(sv, ngx_http_moe_supervisor_now());
    }
}


static void
ngx_http_moe_supervisor_backoff(ngx_http_moe_supervisor_t *sv, uint64_t now)
{
    uint64_t                       delay;
    ngx_uint_t                     i;
    ngx_http_moe_engine_shared_t  *shared;

    shared = sv->engine->shared;

    if (sv->started && now - sv->started > NGX_HTTP_MOE_STABLE) {
        shared->crashes = 0;
    }

    delay = NGX_HTTP_MOE_BACKOFF_FIRST;

    for (i = 0; i < shared->crashes && delay < NGX_HTTP_MOE_BACKOFF_LAST; i++) {
        delay *= 2;
    }

    delay = ngx_min(delay, NGX_HTTP_MOE_BACKOFF_LAST);

    shared->crashes++;
    shared->replaces = 0;
    shared->phase = NGX_HTTP_MOE_ENGINE_BACKOFF;

    sv->start_at = now + delay;
}


static void
ngx_http_moe_supervisor_start(ngx_http_moe_supervisor_t *sv)
{
    ngx_fd_t                       settings;
    ngx_pid_t                      pid, parent;
    ngx_http_moe_engine_shared_t  *shared;

    shared = sv->engine->shared;

    settings = ngx_http_moe_supervisor_settings(sv);
    if (settings == NGX_INVALID_FILE) {
        return;
    }

    parent = ngx_getpid();
    pid = fork();

    if (pid == 0) {
        ngx_http_moe_supervisor_exec(sv, settings, parent);
    }

    (void) close(settings);

    if (pid == -1) {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno, "fork() failed");
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, sv->log, 0, "start %s %P",
                  sv->engine->path, pid);

    if (shared->started) {
        (void) ngx_atomic_fetch_add(&shared->restarts, 1);
    }

    sv->pid = pid;
    sv->started = ngx_http_moe_supervisor_now();
    shared->process = pid;
    shared->started = ngx_time();
    shared->phase = NGX_HTTP_MOE_ENGINE_RUNNING;
}


static ngx_fd_t
ngx_http_moe_supervisor_settings(ngx_http_moe_supervisor_t *sv)
{
    ngx_fd_t   fd;
    ngx_str_t  *text;

    text = &sv->engine->settings;

    fd = memfd_create("moe-settings", MFD_CLOEXEC);

    if (fd == -1
        || write(fd, text->data, text->len) != (ssize_t) text->len
        || lseek(fd, 0, SEEK_SET) == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, sv->log, ngx_errno,
                      "memfd for an engine's settings failed");
        if (fd != -1) {
            (void) close(fd);
        }

        return NGX_INVALID_FILE;
    }

    return fd;
}


/* In the child: nothing but the promised descriptors, then the executable. */

static void
ngx_http_moe_supervisor_exec(ngx_http_moe_supervisor_t *sv, ngx_fd_t settings,
    ngx_pid_t parent)
{
    int        listen, errors, null;
    char      *argv[7];
    sigset_t   set;
    ngx_fd_t   keep[2];

    /* out of the way of the numbers that are wanted; copies outlive exec */

    listen = fcntl(sv->engine->listen, F_DUPFD_CLOEXEC, NGX_HTTP_MOE_HIGH_FD);
    settings = fcntl(settings, F_DUPFD_CLOEXEC, NGX_HTTP_MOE_HIGH_FD);
    errors = fcntl(sv->log->file->fd, F_DUPFD_CLOEXEC, NGX_HTTP_MOE_HIGH_FD);
    null = open("/dev/null", O_RDWR|O_CLOEXEC);

    if (listen == -1 || settings == -1 || errors == -1 || null == -1
        || dup2(null, STDIN_FILENO) == -1
        || dup2(null, STDOUT_FILENO) == -1
        || dup2(errors, STDERR_FILENO) == -1
        || dup2(listen, NGX_HTTP_MOE_LISTEN_FD) == -1
        || dup2(settings, NGX_HTTP_MOE_SETTINGS_FD) == -1)
    {
        _exit(1);
    }

    keep[0] = NGX_HTTP_MOE_LISTEN_FD;
    keep[1] = NGX_HTTP_MOE_SETTINGS_FD;

    ngx_http_moe_supervisor_close(keep, 2);

    sigemptyset(&set);

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1
        || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == -1
        || getppid() != parent
        || sigprocmask(SIG_SETMASK, &set, NULL) == -1)
    {
        _exit(1);
    }

    argv[0] = sv->engine->path;
    argv[1] = "serve";
    argv[2] = "--listen-fd";
    argv[3] = ngx_value(NGX_HTTP_MOE_LISTEN_FD);
    argv[4] = "--config-fd";
    argv[5] = ngx_value(NGX_HTTP_MOE_SETTINGS_FD);
    argv[6] = NULL;

    (void) execve(argv[0], argv, environ);

    /* the log's own descriptor is closed by now, its copy is stderr */

    sv->log->file->fd = STDERR_FILENO;
    ngx_log_error(NGX_LOG_EMERG, sv->log, ngx_errno,
                  "execve(\"%s\") failed", argv[0]);
    _exit(1);
}
