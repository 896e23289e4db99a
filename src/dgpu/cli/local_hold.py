"""Ties a task that holds GPUs of this machine to a local command.

The task runs a small shell script on this machine. Two named pipes connect it with this process: through one it tells
its GPUs, and its end closes the pipe. The other one is open as long as this process lives, however it ends; then the
script ends, too, and the GPUs are free. No clock and no connection to the scheduler is involved.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dgpu.cli.failures import ExitCode, complain

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.2
_STOP_SECONDS = 10.0  # from TERM to KILL
_SCRIPT = """\
[ -p "$1/gpus" ] || { echo "this task holds GPUs for dgpu alloc, and its client is not on this machine" >&2; exit 3; }
exec 3>"$1/gpus"
echo "$CUDA_VISIBLE_DEVICES" >&3
cat "$1/client" 3>&-
rm -f "$1/gpus" "$1/client" 2>/dev/null
rmdir "$1" 2>/dev/null
exit 0"""


@contextlib.contextmanager
def holding() -> Iterator[Hold]:
    directory = Path(tempfile.mkdtemp(prefix="dgpu-alloc-"))
    try:
        hold = Hold(directory)
        try:
            yield hold
        finally:
            hold.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Hold:
    """`command`: of the task. It may run as another Unix user, so the pipes are open to all who know their name."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o711)
        fds: list[int] = []
        for name, flags in (("gpus", os.O_RDONLY), ("client", os.O_RDWR)):
            os.mkfifo(directory / name)
            (directory / name).chmod(0o666)
            fds.append(os.open(directory / name, flags | os.O_NONBLOCK | os.O_CLOEXEC))
        self._gpus, self._client = fds
        self.command = ["/bin/sh", "-c", _SCRIPT, "dgpu-alloc", str(directory)]

    def wait_for_gpus(self, is_over: Callable[[], bool]) -> str | None:
        """What the task says, one word for each GPU with commas between. None: it has ended."""
        told = b""
        while not told.endswith(b"\n"):
            is_readable = bool(select.select([self._gpus], [], [], _LOOK_SECONDS)[0])
            piece = os.read(self._gpus, 65_536) if is_readable else b""
            told += piece
            if not piece and is_over():
                return None
            if is_readable and not piece:  # the script has ended before its task
                time.sleep(_LOOK_SECONDS)
        return told.decode().strip()

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> int | None:
        """The exit code of a local command. None: the task ended first, and the command was stopped."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the command, which decides
        try:
            child = subprocess.Popen(command, env={**os.environ, **env}, preexec_fn=_be_command)  # noqa: PLW1509
        except OSError as error:
            complain(f"{command[0]}: {error.strerror}")
            return ExitCode.NO_COMMAND
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        try:
            while child.poll() is None:
                if self._has_ended():
                    _stop_tree(child)
                    return None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_LOOK_SECONDS)
        finally:
            signal.signal(signal.SIGINT, before)
        return child.returncode if child.returncode >= 0 else 128 - child.returncode

    def close(self) -> None:
        os.close(self._gpus)
        os.close(self._client)

    def _has_ended(self) -> bool:
        """The script wrote one line; only its end makes the pipe readable again."""
        return bool(select.select([self._gpus], [], [], 0)[0]) and not os.read(self._gpus, 65_536)


def names_of_this_machine() -> set[str]:
    """As agents name themselves: the host name, whole and up to its first dot."""
    host = os.uname().nodename
    return {host, host.partition(".")[0]}


def _be_command() -> None:
    """In the child: Ctrl-C has its usual effect, and the command must not use GPUs that a killed client gave back."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _stop_tree(child: subprocess.Popen[bytes]) -> None:
    """The command and all processes that it started and that are still below it."""
    tree = _tree(child.pid)
    _signal(tree, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while _living(tree) and time.monotonic() < deadline:
        child.poll()
        time.sleep(_LOOK_SECONDS / 4)
    _signal(_living(tree) | (_tree(child.pid) if child.poll() is None else set()), signal.SIGKILL)
    child.wait()


_Process = tuple[int, int, int]  # pid, parent, start time: a pid may be used again


def _processes() -> set[_Process]:
    found: set[_Process] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found.add((int(entry.name), int(fields[1]), int(fields[19])))
    return found


def _tree(root: int) -> set[_Process]:
    everything = _processes()
    found, size = {each for each in everything if each[0] == root}, -1
    while len(found) > size:
        size = len(found)
        pids = {pid for pid, _, _ in found}
        found |= {each for each in everything if each[1] in pids}
    return found


def _living(tree: set[_Process]) -> set[_Process]:
    """Their parents may have ended meanwhile."""
    known = {(pid, start) for pid, _, start in tree}
    return {each for each in _processes() if (each[0], each[2]) in known}


def _signal(processes: set[_Process], number: int) -> None:
    for pid, _, _ in processes:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
