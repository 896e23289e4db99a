"""Starts a process whose directory or program may be on a dead file system. Standard library only.

posix_spawn waits until the child has its program, so a child that hangs would stop the keeper. Here the keeper forks:
the child changes directory, finds the program and executes it, and may hang without harm. It reports an error
through a pipe that closes automatically when the program starts. This costs more than twice the CPU time of
posix_spawn, so it is used only if a call may hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import signal
from typing import NoReturn

from dgpu.agent.spawn import DEFAULT_SIGNALS, SHELL, CannotStart, Child, failure_of, find_program, one_line

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def spawn_apart(
    cwd: str, argv: list[str], env: dict[str, str], *, null: int, limits: tuple[int, int] | None
) -> Child:
    """Raises OSError if the fork fails."""
    output_read, output_write = os.pipe2(os.O_CLOEXEC)
    try:
        status_read, status_write = os.pipe2(os.O_CLOEXEC)
        try:
            keeper = os.getpid()
            pid = os.fork()
            if pid == 0:
                _be_child(keeper, cwd, argv, env, (null, output_write, status_write), limits)
        except OSError:
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
    except OSError:
        os.close(output_read)
        raise
    finally:
        os.close(output_write)
    os.set_blocking(output_read, False)
    os.set_blocking(status_read, False)
    return Child(pid, output_read, status_read)


def read_status(fd: int) -> CannotStart | bool | None:
    """Why it cannot start; True: its program has started; None: not known yet."""
    try:
        text = os.read(fd, 65_536)
    except BlockingIOError:
        return None
    except OSError:
        return True
    return CannotStart(*json.loads(text)) if text else True


def _be_child(
    keeper: int,
    cwd: str,
    argv: list[str],
    env: dict[str, str],
    fds: tuple[int, int, int],
    limits: tuple[int, int] | None,
) -> NoReturn:
    null, output, status = fds
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        # Before its program starts, the child has no mark of the keeper, so it must die with the keeper.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(126)
        os.setsid()
        for fd, end in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, end)
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        failure = _execute(cwd, argv, env)
        os.write(status, json.dumps(failure).encode())
    except BaseException as error:  # noqa: BLE001 - the last line of the process
        with contextlib.suppress(OSError):
            os.write(status, json.dumps(CannotStart("node_fault", 126, f"{argv[0]}: {error}")).encode())
    finally:
        os._exit(126)


def _execute(cwd: str, argv: list[str], env: dict[str, str]) -> CannotStart:
    """Returns only if it fails."""
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return CannotStart("cannot_start", 126, f"workdir {one_line(cwd)}: {why}")
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
