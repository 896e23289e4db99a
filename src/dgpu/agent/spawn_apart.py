"""Starts a process whose directory or program may be on a dead file system. Standard library only.

posix_spawn waits until the child has its program, so a child that hangs would stop the keeper. Here the keeper forks:
the child changes directory, finds the program and executes it, and may hang without harm. It reports an error
through a pipe that closes automatically when the program starts. This costs more than twice the CPU time of
posix_spawn, so it is used only if a call may hang, to change the user where `launch_as` has not been compiled, or for a
task with output files, which the child opens.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from dgpu.agent.launch_as import Account
from dgpu.agent.output_files import OutputFiles, send_files
from dgpu.agent.spawn import (
    DEFAULT_SIGNALS,
    SHELL,
    CannotStart,
    Child,
    Ends,
    failure_of,
    find_program,
    no_directory,
    one_line,
    output_pipe,
    refusal_of,
)

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
_JOIN_SESSION_KEYRING = 1
_STEPS = frozenset({"user", "workdir", "interpreter", "program"})  # of launch_as.c
_libc = ctypes.CDLL(None, use_errno=True)


class Apart(NamedTuple):
    """What the child needs from the keeper."""

    null: int
    limits: tuple[int, int] | None
    account: Account | None = None  # None: the keeper's own user
    groups: tuple[str, ...] = ()  # files that move a process into its control groups
    ends: Ends | None = None  # None: a new pipe for its output
    files: OutputFiles | None = None


def spawn_apart(cwd: str, argv: list[str], env: dict[str, str], apart: Apart) -> Child:
    """Raises OSError if the fork fails."""
    with output_pipe(apart.null, apart.ends) as (read_ends, ends), _files_link(apart.files) as (far, near):
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        try:
            keeper = os.getpid()
            pid = os.fork()
            if pid == 0:
                _be_child(keeper, cwd, argv, env, _Streams(ends, status_write, near), apart)
        except OSError:
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
        os.set_blocking(status_read, False)
        files_fd = -1 if far is None else far.detach()
        return Child(pid, read_ends[0], status_read, read_ends[1], files_fd)


class _Streams(NamedTuple):
    ends: Ends
    status: int
    files: socket.socket | None


@contextlib.contextmanager
def _files_link(files: OutputFiles | None) -> Iterator[tuple[socket.socket | None, socket.socket | None]]:
    """The end of the scribe, which stays open if it is detached, and the end of the child."""
    if files is None:
        yield None, None
        return
    far, near = socket.socketpair()
    with far, near:
        yield far, near


def read_status(fd: int) -> CannotStart | bool | None:
    """Why it cannot start; True: its program has started; None: not known yet."""
    try:
        text = os.read(fd, 65_536)
    except BlockingIOError:
        return None
    except OSError:
        return True
    if not text:
        return True
    first, number, rest = text.decode(errors="replace").split("\0", 2)
    if first in _STEPS:
        return _in_words(first, int(number), one_line(rest))
    return CannotStart(first, int(number), one_line(rest))


def _in_words(step: str, number: int, name: str) -> CannotStart:
    """A failure of launch_as.c. No path is touched here: it may hang."""
    why = os.strerror(number)
    if step == "user":
        return CannotStart("node_fault", 126, f"cannot start as another user: {name}: {why}")
    if step == "workdir":
        return no_directory(name, why)
    return refusal_of(number, name, exists=step == "interpreter")


def _be_child(
    keeper: int,
    cwd: str,
    argv: list[str],
    env: dict[str, str],
    streams: _Streams,
    apart: Apart,
) -> NoReturn:
    ends, status, files_link = streams
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.setsid()
        fds: tuple[int, ...] = ends[:3]
        if ends.terminal:  # the first one that a new session opens becomes the controlling one
            fds = (os.open(ends.terminal, os.O_RDWR),) * 3
        for end, fd in enumerate(fds):
            os.dup2(fd, end)
        if apart.limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, apart.limits)
        if apart.account is not None:
            _become(apart.account, apart.groups)
        # Before its program starts, the child has no mark of the keeper, so it must die with the keeper.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(126)
        refusal = _enter(cwd)
        if refusal is None and apart.files is not None and files_link is not None:
            refusal = send_files(apart.files, files_link)
        _tell(status, refusal or _execute(argv, env))
    except BaseException as error:  # noqa: BLE001 - the last line of the process
        with contextlib.suppress(OSError):
            _tell(status, CannotStart("node_fault", 126, f"{argv[0]}: {error}"))
    finally:
        os._exit(126)


def _tell(status: int, failure: CannotStart) -> None:
    """Read by `read_status`."""
    os.write(status, "\0".join(map(str, failure)).encode(errors="replace"))


def _become(account: Account, groups: tuple[str, ...]) -> None:
    """As launch_as.c does it."""
    for path in groups:
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123 - a control group of the keeper
            file.write(b"0")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if account.max_processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (account.max_processes, account.max_processes))
    if not account.uid or not account.gid:
        raise PermissionError("never as root")
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if _SYS_KEYCTL is not None:  # not the session keyring of root; a kernel may have none
        _libc.syscall(ctypes.c_long(_SYS_KEYCTL), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
    os.umask(0o077)


def _enter(cwd: str) -> CannotStart | None:
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return no_directory(one_line(cwd), why)
    return None


def _execute(argv: list[str], env: dict[str, str]) -> CannotStart:
    """Returns only if it fails."""
    try:
        found = find_program(argv[0], env.get("PATH", os.defpath))
        if isinstance(found, CannotStart):
            return found
        try:
            os.execve(found, argv, env)  # noqa: S606 - the task's own command
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
        os.execve(SHELL, [SHELL, found, *argv[1:]], env)  # noqa: S606 - as a shell does with a script
    except (OSError, ValueError) as error:
        return failure_of(error, argv[0])
