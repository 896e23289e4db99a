/* Becomes the Unix user of a task, then executes the task's program.
 *
 * The keeper starts it with posix_spawn, which cannot change the user itself. It gets an empty environment, so no
 * variable of a task affects it while it is root. The order comes from a memory file (see launch_as.py), because
 * arguments of a process are visible to every user. Paths of the task are used only after the change of user.
 * A failure is written to the status pipe, which closes by itself when the program starts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEYCTL_JOIN_SESSION_KEYRING 1
#define MAX_GROUPS 64
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static int status_fd;
static char *next, *end;

/* outcome NUL exit code NUL text; read by spawn_apart.read_status. */
static _Noreturn void fail(const char *outcome, int code, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(text, sizeof text, "%s%c%d%c", outcome, 0, code, 0);
    vsnprintf(text + length, sizeof text - length, format, arguments);
    va_end(arguments);
    size_t size = length + strlen(text + length);
    ssize_t ignored = write(status_fd, text, size);
    (void)ignored;
    _exit(126);
}

static void need(int result, const char *step)
{
    if (result != 0)
        fail("node_fault", 126, "cannot start as another user: %s: %s", step, strerror(errno));
}

static char *word(void)
{
    if (next >= end)
        fail("node_fault", 126, "cannot start as another user: the order is incomplete");
    char *found = next;
    next += strlen(next) + 1;
    return found;
}

static long number(void)
{
    return strtol(word(), NULL, 10);
}

static void read_order(int fd)
{
    struct stat found;
    need(fstat(fd, &found), "fstat");
    char *text = malloc(found.st_size + 1);
    need(text == NULL, "malloc");
    off_t size = 0;
    while (size < found.st_size) {
        ssize_t part = pread(fd, text + size, found.st_size - size, size);
        need(part <= 0, "read");
        size += part;
    }
    text[size] = 0;
    next = text;
    end = text + size;
    close(fd);
}

static void limit(int kind, long soft, long hard, const char *name)
{
    struct rlimit wanted = {soft < 0 ? RLIM_INFINITY : (rlim_t)soft, hard < 0 ? RLIM_INFINITY : (rlim_t)hard};
    need(setrlimit(kind, &wanted), name);
}

/* Before the change of user: only root may enter a group. */
static void enter_groups(void)
{
    for (long count = number(); count > 0; count--) {
        const char *path = word();
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        need(fd < 0 || write(fd, "0", 1) != 1, path);
        close(fd);
    }
}

static void become(void)
{
    gid_t groups[MAX_GROUPS];
    size_t count = 0;
    uid_t uid = number();
    gid_t gid = number();
    for (long left = number(); left > 0; left--) {
        need(count == MAX_GROUPS, "too many groups");
        groups[count++] = number();
    }
    errno = EPERM;
    need(uid == 0 || gid == 0, "never as root");
    need(setgroups(count, groups), "setgroups");
    need(setresgid(gid, gid, gid), "setresgid");
    need(setresuid(uid, uid, uid), "setresuid");
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL); /* not the one of root; a kernel may have none */
    umask(077);
}

static char **words(long count)
{
    char **found = calloc(count + 1, sizeof *found);
    need(found == NULL, "calloc");
    for (long i = 0; i < count; i++)
        found[i] = word();
    return found;
}

static _Noreturn void cannot_execute(const char *name, int error)
{
    switch (error) {
    case ENOENT:
        fail("cannot_start", 127, "%s: %s", name,
             strchr(name, '/') && access(name, F_OK) == 0 ? "its interpreter was not found" : "command not found");
    case EACCES:
        fail("cannot_start", 126, "%s: not executable", name);
    case E2BIG:
        fail("cannot_start", 126, "%s: command and environment are too large for the system", name);
    case EAGAIN: case ENOMEM: case EMFILE: case ENFILE: case EIO:
        fail("node_fault", 126, "%s: %s", name, strerror(error));
    default:
        fail("cannot_start", 126, "%s: %s", name, strerror(error));
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 126;
    int order_fd = atoi(argv[1]);
    status_fd = atoi(argv[2]);
    fcntl(status_fd, F_SETFD, FD_CLOEXEC);
    read_order(order_fd);
    pid_t keeper = number();
    enter_groups();
    limit(RLIMIT_CORE, 0, 0, "core limit");
    long soft = number(), hard = number();
    if (soft > 0)
        limit(RLIMIT_NOFILE, soft, hard, "limit of open files");
    long processes = number();
    if (processes > 0)
        limit(RLIMIT_NPROC, processes, processes, "limit of processes");
    become();
    /* After the change of user, which clears it. Until its program starts, this process has no mark of the keeper. */
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper)
        _exit(126);
    syscall(SYS_close_range, 3, status_fd - 1, 0);
    syscall(SYS_close_range, status_fd + 1, ~0U, 0);
    const char *directory = word();
    if (chdir(directory) != 0)
        fail("cannot_start", 126, "workdir %s: %s", directory, strerror(errno));
    char **arguments = words(number());
    environ = words(number());
    execvp(arguments[0], arguments); /* searches the task's own PATH; a script without an interpreter gets a shell */
    cannot_execute(arguments[0], errno);
}
