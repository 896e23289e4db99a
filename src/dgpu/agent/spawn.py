"""Starts a process of a task. Standard library only; runs in the keeper, which is single-threaded.

The keeper itself calls chdir before the spawn: posix_spawn cannot do it, and the keeper needs no directory of its
own. Only for paths that cannot hang; `starter` uses `spawn_apart` for all others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

from dgpu.file_limit import raise_file_limit

SHELL = "/bin/sh"
DEFAULT_SIGNALS = [
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
]
_NODE_ERRORS = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO}
_MAX_ERROR_CHARACTERS = 500

SpawnAction = tuple[int, int, int] | tuple[int, int, str, int, int]


class Child(NamedTuple):
    pid: int
    output_fd: int  # the reading end, non-blocking; -1: the caller gave it its streams
    status_fd: int = -1  # of a child that may hang before its program starts: see spawn_apart
    errors_fd: int = -1  # as output_fd, for stderr; -1: it shares the pipe of stdout
    files_fd: int = -1  # a socket on which it sends its output files; -1: it has none


class Ends(NamedTuple):
    """The standard streams of a child that has no output pipe of its own."""

    input: int = -1
    output: int = -1
    errors: int = -1
    terminal: str = ""  # a path: opened as the controlling terminal, for all three


class CannotStart(NamedTuple):
    outcome: str  # of core.task.Outcome: cannot_start or node_fault
    exit_code: int
    error: str


NO_PROGRAM = CannotStart("cannot_start", 127, "the command is empty or contains a NUL")


class Spawner:
    def __init__(self) -> None:
        self.null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.limits = raise_file_limit()

    def spawn(self, order: dict[str, Any], own_dir: str, ends: Ends | None = None) -> Child | CannotStart:
        failure = self._enter(order["cwd"], own_dir)
        if failure is not None:
            return failure
        argv: list[str] = order["argv"]
        env: dict[str, str] = order["env"]
        try:
            found = find_program(argv[0], env.get("PATH", os.defpath))
            if isinstance(found, CannotStart):
                return found
            with output_pipe(self.null, ends) as (read_ends, own):
                with self._limits_of_tasks():
                    pid = self._execute(found, argv, env, stream_actions(own))
                return Child(pid, read_ends[0], errors_fd=read_ends[1])
        except (OSError, ValueError) as error:
            return failure_of(error, argv[0])

    def _enter(self, cwd: str, own_dir: str) -> CannotStart | None:
        if cwd and not cwd.startswith("/"):
            return CannotStart("cannot_start", 126, f"workdir {one_line(cwd)} is not an absolute path")
        try:
            os.chdir(cwd or own_dir)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            if cwd:
                return no_directory(one_line(cwd), why)
            return CannotStart("node_fault", 126, f"cannot enter the task's directory: {why}")
        return None

    @contextlib.contextmanager
    def _limits_of_tasks(self) -> Iterator[None]:
        """Set before the start: a task must not see the keeper's own limit or pass it on to its children."""
        if self.limits is None:
            yield
            return
        own = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, own)

    def _execute(self, path: str, argv: list[str], env: dict[str, str], actions: list[SpawnAction]) -> int:
        try:
            return os.posix_spawn(
                path, argv, env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=DEFAULT_SIGNALS
            )
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
        # A script without an interpreter line: run it as a shell would.
        argv = [SHELL, path, *argv[1:]]
        return os.posix_spawn(
            SHELL, argv, env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=DEFAULT_SIGNALS
        )


@contextlib.contextmanager
def output_pipe(null: int, ends: Ends | None) -> Iterator[tuple[tuple[int, int], Ends]]:
    """The reading ends of two new pipes, for stdout and stderr, and the streams of a child that writes into them; or
    the given streams.

    The writing ends are closed at the end, the reading ends only after an error. Raises OSError.
    """
    if ends is not None:
        yield (-1, -1), ends
        return
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        with _other_pipe() as (errors_read, errors_write):
            os.set_blocking(read_end, False)
            yield (read_end, errors_read), Ends(null, write_end, errors_write)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)


@contextlib.contextmanager
def _other_pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(read_end, False)
        yield read_end, write_end
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)


def stream_actions(ends: Ends) -> list[SpawnAction]:
    """For posix_spawn in a new session: a terminal that is opened there becomes the controlling one."""
    if ends.terminal:
        opening: SpawnAction = (os.POSIX_SPAWN_OPEN, 0, ends.terminal, os.O_RDWR, 0)
        return [opening, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
    return [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(ends[:3])]


def no_directory(cwd: str, why: str | None) -> CannotStart:
    help_text = (
        "It must exist on the node: use a shared file system, -w DIR for another directory, --upload to send this one, "
        "or --clean-env for an empty one"
    )
    return CannotStart("cannot_start", 126, f"workdir {cwd}: {why}. {help_text}")


def find_program(name: str, search_path: str) -> str | CannotStart:
    """The file to execute, looked up in the task's own PATH as a shell would; relative to the current directory."""
    if not name or "\0" in name:
        return NO_PROGRAM
    if "/" in name:
        return name
    refused = False
    for directory in search_path.split(":"):
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112 - as above
            return path
        refused = refused or os.path.isfile(path)  # noqa: PTH113 - as above
    if refused:
        return CannotStart("cannot_start", 126, f"{one_line(name)}: not executable")
    return CannotStart("cannot_start", 127, f"{one_line(name)}: command not found")


def failure_of(error: OSError | ValueError, name: str) -> CannotStart:
    name = one_line(name)
    if not isinstance(error, OSError):
        return CannotStart("cannot_start", 126, f"{name}: {error}")
    number = error.errno or 0
    exists = number == errno.ENOENT and (os.path.exists(error.filename or "") or os.path.exists(name))  # noqa: PTH110 - as above
    return refusal_of(number, name, exists=exists)


def refusal_of(number: int, name: str, *, exists: bool) -> CannotStart:
    """Why a program was not executed, from the error of the system. `exists`: the file of that name."""
    if number == errno.ENOENT:
        why = "its interpreter was not found" if exists else "command not found"
        return CannotStart("cannot_start", 127, f"{name}: {why}")
    words = {
        errno.E2BIG: "command and environment are too large for the system",
        errno.EACCES: "not executable",
    }
    outcome = "node_fault" if number in _NODE_ERRORS else "cannot_start"
    return CannotStart(outcome, 126, f"{name}: {words.get(number, os.strerror(number))}")


def one_line(text: str) -> str:
    """One printable line."""
    line = "".join(
        character if character.isprintable() else "?" for character in text[:_MAX_ERROR_CHARACTERS]
    )
    return line if len(text) <= _MAX_ERROR_CHARACTERS else line + "…"
