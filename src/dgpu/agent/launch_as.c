/* Becomes the Unix user of a task, then executes the task's program.
 *
 * The keeper starts it with posix_spawn, which cannot change the user itself. Its arguments are those of the task. Its
 * environment is the order (see launch_as.py), then the environment of the task: other users can read arguments.
 *
 * It uses no C library and is linked statically. So no variable of a task affects it while it is root, and it starts
 * three times as fast. Paths of the task are used only after the change of user.
 * A failure is written to the status pipe, which closes by itself when the program starts.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define KEYCTL_JOIN_SESSION_KEYRING 1
#define MAX_GROUPS 64
#define MAX_PATH 4096
#define MAX_TOLD 2048
#define SHELL "/bin/sh"
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#if defined(__x86_64__)
__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call run\n");

static long call(long number, long a, long b, long c, long d, long e)
{
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x0, sp\n bl run\n");

static long call(long number, long a, long b, long c, long d, long e)
{
    register long code __asm__("x8") = number;
    register long result __asm__("x0") = a;
    register long second __asm__("x1") = b, third __asm__("x2") = c, fourth __asm__("x3") = d, fifth __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(code), "r"(second), "r"(third), "r"(fourth), "r"(fifth) : "memory");
    return result;
}
#else
#error "no system calls for this machine: the keeper forks instead"
#endif

#define CALL(number, a, b, c) call(number, (long)(a), (long)(b), (long)(c), 0, 0)

static int status_fd;
static char **next; /* word of the order */

static long length_of(const char *text)
{
    long length = 0;
    while (text[length])
        length++;
    return length;
}

static char *append(char *place, const char *text, long max)
{
    while (*text && max-- > 0)
        *place++ = *text++;
    return place;
}

/* step NUL error number NUL name; read by spawn_apart.read_status, which puts it into words. */
static _Noreturn void fail(const char *step, long error, const char *name)
{
    char text[MAX_TOLD + 64], digits[] = {'0' + error / 100 % 10, '0' + error / 10 % 10, '0' + error % 10, 0};
    char *place = append(text, step, 32);
    *place++ = 0;
    place = append(place, digits, 3);
    *place++ = 0;
    place = append(place, name, MAX_TOLD);
    CALL(SYS_write, status_fd, text, place - text);
    for (;;)
        CALL(SYS_exit_group, 126, 0, 0);
}

static void need(long result, const char *action)
{
    if (result < 0)
        fail("user", -result, action);
}

static char *word(void)
{
    if (*next == 0)
        fail("user", EINVAL, "the order is incomplete");
    char *found = *next++;
    while (*found && *found != '=') /* an entry of an environment has a name, which says nothing here */
        found++;
    return *found ? found + 1 : found;
}

static long number(void)
{
    const char *text = word();
    int is_negative = *text == '-';
    long found = 0;
    for (text += is_negative; *text; text++) {
        need(*text < '0' || *text > '9' ? -EINVAL : 0, "a number of the order");
        found = found * 10 + *text - '0';
    }
    return is_negative ? -found : found;
}

static void limit(int kind, long soft, long hard, const char *name)
{
    struct rlimit wanted = {soft < 0 ? RLIM_INFINITY : (rlim_t)soft, hard < 0 ? RLIM_INFINITY : (rlim_t)hard};
    need(call(SYS_prlimit64, 0, kind, (long)&wanted, 0, 0), name);
}

/* Before the change of user: only root may enter a group. */
static void enter_groups(void)
{
    for (long count = number(); count > 0; count--) {
        const char *path = word();
        long fd = CALL(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
        need(fd, path);
        need(CALL(SYS_write, fd, "0", 1), path);
        CALL(SYS_close, fd, 0, 0);
    }
}

static void become(void)
{
    unsigned groups[MAX_GROUPS];
    long count = 0, uid = number(), gid = number();
    for (long left = number(); left > 0; left--) {
        need(count == MAX_GROUPS ? -E2BIG : 0, "groups");
        groups[count++] = number();
    }
    need(uid <= 0 || gid <= 0 ? -EPERM : 0, "never as root");
    need(CALL(SYS_setgroups, count, groups, 0), "setgroups");
    need(CALL(SYS_setresgid, gid, gid, gid), "setresgid");
    need(CALL(SYS_setresuid, uid, uid, uid), "setresuid");
    need(CALL(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0), "no_new_privs");
    CALL(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0, 0); /* not the one of root; a kernel may have none */
    CALL(SYS_umask, 077, 0, 0);
}

/* Returns the error. A script without an interpreter gets a shell: the place before the arguments is free by then. */
static long execute(char *path, char **arguments, char **environment)
{
    long error = -CALL(SYS_execve, path, arguments, environment);
    if (error != ENOEXEC)
        return error;
    char *first = arguments[0], *before = arguments[-1];
    arguments[-1] = SHELL;
    arguments[0] = path;
    error = -CALL(SYS_execve, SHELL, arguments - 1, environment);
    arguments[0] = first;
    arguments[-1] = before;
    return error;
}

/* Looks in each directory of the task's own PATH, as a shell does. Returns the error. */
static long search(const char *directories, char **arguments, char **environment)
{
    long refused = 0;
    for (const char *at = directories;; at++) {
        const char *begin = at;
        while (*at && *at != ':')
            at++;
        char path[MAX_PATH];
        if (at - begin + length_of(arguments[0]) + 3 <= MAX_PATH) {
            char *place = at == begin ? append(path, ".", 1) : append(path, begin, at - begin);
            *place++ = '/';
            place = append(place, arguments[0], MAX_PATH);
            *place = 0;
            long error = execute(path, arguments, environment);
            if (error == EACCES)
                refused = error;
            else if (error != ENOENT && error != ENOTDIR && error != ESTALE && error != ENODEV && error != ETIMEDOUT)
                return error;
        }
        if (*at == 0)
            return refused ? refused : ENOENT;
    }
}

static int has_slash(const char *text)
{
    while (*text && *text != '/')
        text++;
    return *text == '/';
}

/* `stack`: the number of arguments, the arguments, NULL, the environment, NULL. */
_Noreturn void run(long *stack)
{
    char **arguments = (char **)(stack + 1);
    next = arguments + *stack + 1;
    status_fd = number();
    CALL(SYS_fcntl, status_fd, F_SETFD, FD_CLOEXEC);
    long keeper = number();
    enter_groups();
    limit(RLIMIT_CORE, 0, 0, "core limit");
    long soft = number(), hard = number();
    if (soft > 0)
        limit(RLIMIT_NOFILE, soft, hard, "limit of open files");
    long processes = number();
    if (processes > 0)
        limit(RLIMIT_NPROC, processes, processes, "limit of processes");
    become();
    /* After the change of user, which clears it. A keeper that dies now would not find this process. */
    CALL(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0);
    if (CALL(SYS_getppid, 0, 0, 0) != keeper)
        CALL(SYS_exit_group, 126, 0, 0);
    CALL(SYS_close_range, 3, status_fd - 1, 0);
    CALL(SYS_close_range, status_fd + 1, ~0U, 0);
    const char *directory = word(), *search_path = word();
    long error = -CALL(SYS_chdir, directory, 0, 0);
    if (error)
        fail("workdir", error, directory);
    char *name = arguments[0];
    if (!has_slash(name))
        fail("program", search(search_path, arguments, next), name);
    error = execute(name, arguments, next);
    int is_there = CALL(SYS_faccessat, AT_FDCWD, name, 0) == 0;
    fail(error == ENOENT && is_there ? "interpreter" : "program", error, name);
}
