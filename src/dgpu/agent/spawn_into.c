/* Starts a program in a control group (v2) and in a session of its own. The keeper loads it (spawn_into.py).
 *
 * A process that moves itself into a group stops every fork and exit on the machine for the time of the move. A process
 * that is created in its group does not. Python has no call for that.
 *
 * As with posix_spawn, the child uses the memory of the keeper until its program starts, and the keeper waits.
 */
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>

#define STACK_BYTES 16384
#define SIGNAL_SET_BYTES 8
#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif

struct order {
    const char *program;
    char **arguments, **environment;
    int null_fd, output_fd, errors_fd, status_fd;
    long error; /* of the child */
};

/* struct clone_args of Linux 5.7. Older headers lack its last field. */
struct clone_order {
    unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
        cgroup;
};

/* struct sigaction of the kernel, without a handler: the default action. */
static const long default_action[4] = {0};

#if defined(__x86_64__)
static long call(long number, long a, long b, long c, long d)
{
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

/* The child begins with an empty stack, so it calls `run` and never returns here. */
static long clone_child(struct clone_order *how, void (*run)(struct order *), struct order *order)
{
    long result;
    __asm__ volatile("syscall\n"
                     "test %%rax, %%rax\n"
                     "jnz 1f\n"
                     "xor %%ebp, %%ebp\n"
                     "mov %[order], %%rdi\n"
                     "call *%[run]\n"
                     "1:\n"
                     : "=a"(result)
                     : "a"(SYS_clone3), "D"(how), "S"(sizeof *how), [run] "r"(run), [order] "r"(order)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static long call(long number, long a, long b, long c, long d)
{
    register long code __asm__("x8") = number;
    register long result __asm__("x0") = a;
    register long second __asm__("x1") = b, third __asm__("x2") = c, fourth __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(code), "r"(second), "r"(third), "r"(fourth) : "memory");
    return result;
}

/* The child begins with an empty stack, so it calls `run` and never returns here. */
static long clone_child(struct clone_order *how, void (*run)(struct order *), struct order *order)
{
    register long code __asm__("x8") = SYS_clone3;
    register long result __asm__("x0") = (long)how;
    register long size __asm__("x1") = sizeof *how;
    __asm__ volatile("svc 0\n"
                     "cbnz x0, 1f\n"
                     "mov x29, xzr\n"
                     "mov x0, %[order]\n"
                     "blr %[run]\n"
                     "1:\n"
                     : "+r"(result)
                     : "r"(code), "r"(size), [run] "r"(run), [order] "r"(order)
                     : "memory", "x30");
    return result;
}
#else
#error "no system calls for this machine: tasks enter their groups themselves"
#endif

#define CALL(number, a, b, c, d) call(number, (long)(a), (long)(b), (long)(c), (long)(d))

/* In the child. Handlers of the keeper are gone already; signals that it ignores get their default action here. */
static void run_child(struct order *order)
{
    static const int ignored[] = {SIGPIPE, SIGXFSZ, SIGINT, SIGHUP};
    const unsigned long none = 0;
    for (unsigned each = 0; each < sizeof ignored / sizeof *ignored; each++)
        CALL(SYS_rt_sigaction, ignored[each], default_action, 0, SIGNAL_SET_BYTES);
    CALL(SYS_rt_sigprocmask, SIG_SETMASK, &none, 0, SIGNAL_SET_BYTES);
    CALL(SYS_setsid, 0, 0, 0, 0);
    CALL(SYS_dup3, order->null_fd, 0, 0, 0);
    CALL(SYS_dup3, order->output_fd, 1, 0, 0);
    CALL(SYS_dup3, order->errors_fd, 2, 0, 0);
    CALL(SYS_fcntl, order->status_fd, F_SETFD, 0, 0);
    order->error = CALL(SYS_execve, order->program, order->arguments, order->environment, 0);
    for (;;)
        CALL(SYS_exit, 127, 0, 0, 0);
}

/* Returns the pid, or an error below 0. Descriptors 0 to 2 must be in use, and by no descriptor given here. */
long spawn_into(int group_fd, const char *program, char **arguments, char **environment, int null_fd, int output_fd,
                int errors_fd, int status_fd)
{
    char stack[STACK_BYTES] __attribute__((aligned(16)));
    struct order order = {program, arguments, environment, null_fd, output_fd, errors_fd, status_fd, 0};
    struct clone_order how = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND | CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .stack = (unsigned long)stack,
        .stack_size = sizeof stack,
        .cgroup = (unsigned long)group_fd,
    };
    long pid = clone_child(&how, run_child, &order);
    if (pid > 0 && order.error < 0) {
        CALL(SYS_wait4, pid, 0, 0, 0);
        return order.error;
    }
    return pid;
}
