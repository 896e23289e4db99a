"""Finds every process of a task, however it tried to escape: children, sessions, orphans, marked environments.

Standard library only. All of a task's processes stay descendants of the keeper, because the keeper is a subreaper:
a process that loses its parent becomes the keeper's child. Processes are signalled through a pidfd and only if their
start time has not changed, so a reused pid is never hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

LEASE_MARKER = "DGPU_LEASE_ID"
KEEPER_MARKER = "DGPU_KEEPER"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_MAX_CANDIDATES = 64  # with more, one scan of /proc is cheaper
_MAX_LOOKS = 4
_MAX_LOOKS_AT_CHANGE = 20
_CHANGE_SECONDS = 0.001
_EMPTY_LOOKS = 4
# A process can name any part of its memory as its environment (prctl PR_SET_MM), gigabytes too. An exec takes 6 MiB.
_MAX_ENVIRON_BYTES = 8 << 20
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_SIGTIMEDWAIT = b"137" if os.uname().machine in {"aarch64", "riscv64"} else b"128"


class Proc(NamedTuple):
    pid: int
    ppid: int
    sid: int
    start_ticks: int  # since boot
    dead: bool


def read_proc(pid: int | str) -> Proc | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(fd, 1024)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name in parentheses may contain spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Proc(int(pid), int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in {b"Z", b"X"})


def uid_of(pid: int) -> int | None:
    """The real Unix user. Not the owner of the files in /proc: a process can make root their owner."""
    (text,) = _status_fields(pid, b"Uid:")
    return int(text) if text else None


def markers(pid: int) -> tuple[str, str]:
    """The lease and the keeper in a process's environment; empty if not set."""
    environ = b"\0" + _settled_environ(pid)
    return _value_in(environ, LEASE_MARKER), _value_in(environ, KEEPER_MARKER)


def _value_in(environ: bytes, name: str) -> str:
    """The last one counts. No list of all variables is made: there may be millions."""
    key = b"\0" + name.encode() + b"="
    at = environ.rfind(key)
    return "" if at < 0 else environ[at + len(key) :].partition(b"\0")[0].decode(errors="replace")


def _settled_environ(pid: int) -> bytes:
    """During an exec, a process shows no environment for a moment. Taking that as an answer would leave a marked
    process behind.
    """
    empty_looks = 0
    for _ in range(_MAX_LOOKS_AT_CHANGE):
        text = _environ(pid)
        if text != b"":
            return text or b""
        size = _environ_size(pid)
        # For a moment, an exec looks like a process without an environment, so only several readings in a row count:
        # on a busy machine, a process that calls exec repeatedly was seen that way twice.
        empty_looks = empty_looks + 1 if size == 0 else 0
        if size is None or empty_looks == _EMPTY_LOOKS:
            break
        time.sleep(_CHANGE_SECONDS)
    return b""


def _environ(pid: int) -> bytes | None:
    """None: it has ended, or cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - many of these are opened in a row
            return file.read(_MAX_ENVIRON_BYTES)
    except OSError:
        return None


def _environ_size(pid: int) -> int | None:
    """None: it has ended or is a kernel thread, and will never have one. Below 0: in the middle of an exec."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 49 or fields[0] in {b"Z", b"X"} or int(fields[6]) & _KERNEL_THREAD:
        return None
    begin, end = int(fields[47]), int(fields[48])
    return end - begin if begin and end else -1


def send(proc: Proc, number: int) -> None:
    """Signals exactly this process; an ended process is no error."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(proc.pid)
        try:
            now = read_proc(proc.pid)
            if now is not None and now.start_ticks == proc.start_ticks:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def pid_namespace(pid: int | str) -> str:
    """Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - many of these are read in a row


class Survey:
    """One scan of all processes of the machine."""

    def __init__(self) -> None:
        self.procs: dict[int, Proc] = {}
        self._children: dict[int, list[int]] = {}
        self._marks: dict[tuple[str, str], list[int]] = {}  # by keeper and lease, filled on first use
        for name in os.listdir("/proc"):  # noqa: PTH208 - as above
            if not name.isdigit():
                continue
            proc = read_proc(name)
            if proc is not None:
                self.procs[proc.pid] = proc
                self._children.setdefault(proc.ppid, []).append(proc.pid)

    def children(self, pid: int) -> list[Proc]:
        return [self.procs[child] for child in self._children.get(pid, ())]

    def with_descendants(self, roots: Iterable[int]) -> dict[int, Proc]:
        found: dict[int, Proc] = {}
        waiting = list(roots)
        while waiting:
            pid = waiting.pop()
            if pid in found or pid not in self.procs:
                continue
            found[pid] = self.procs[pid]
            waiting.extend(self._children.get(pid, ()))
        return found

    def marked(self, keeper: str, lease: int | None = None) -> Iterator[int]:
        """Processes that carry the keeper's mark, and the lease's if one is given."""
        if not self._marks:
            # Every environment is read once, for any number of leases.
            for pid in self.procs:
                by_lease, by_keeper = markers(pid)
                self._marks.setdefault((by_keeper, by_lease), []).append(pid)
        if lease is not None:
            yield from self._marks.get((keeper, str(lease)), ())
            return
        for (by_keeper, _), pids in self._marks.items():
            if by_keeper == keeper:
                yield from pids


class OrphanWatch:
    """Tells cheaply whether a process that just ended may have left others behind.

    The kernel assigns pids in a circle. A process started by a task has a pid between the task's own and the newest
    one, so only the few unknown pids in between need a look. The roots of a left-over tree are the keeper's own
    children by then.
    """

    def __init__(self) -> None:
        self._keeper = os.getpid()
        self._loadavg = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def newest_pid(self) -> int:
        return int(os.pread(self._loadavg, 128, 0).split()[4])

    def may_have_left(self, since_pid: int, mains: Container[int]) -> bool:
        checked = since_pid
        for _ in range(_MAX_LOOKS):
            newest = self.newest_pid()
            if newest == checked:
                return False
            if newest < checked or newest - checked > _MAX_CANDIDATES:
                return True
            for pid in range(checked + 1, newest + 1):
                if pid in mains:
                    continue
                proc = read_proc(pid)
                if proc is not None and proc.ppid == self._keeper and not proc.dead and not is_thread(pid):
                    return True
            checked = newest
        return True  # too many new pids to be sure: a full scan decides


def is_thread(pid: int) -> bool:
    """Threads take pids as well and can be opened, but are not listed."""
    (text,) = _status_fields(pid, b"Tgid:")
    return bool(text) and int(text) != pid


def handles(pid: int, number: int) -> bool:
    """Whether a process catches the signal, or has blocked it and waits for it. A shell that starts a program has
    blocked all signals for a moment. It does not sleep then, and would die of the signal.
    """
    bit = 1 << (number - 1)
    state, caught, blocked = _status_fields(pid, b"State:", b"SigCgt:", b"SigBlk:")
    if int(caught or b"0", 16) & bit:
        return True
    return (state == b"S" and bool(int(blocked or b"0", 16) & bit)) or _waits_for(pid, bit)


def _waits_for(pid: int, bit: int) -> bool:
    """Whether a thread is in sigwait: meanwhile the kernel shows its signals as not blocked."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            with contextlib.suppress(OSError, ValueError):
                if _waited_signals(pid, thread) & bit:
                    return True
    return False


def _waited_signals(pid: int, thread: str) -> int:
    """The set is the first argument of the system call, in the memory of the process."""
    with open(f"/proc/{pid}/task/{thread}/syscall", "rb") as file:  # noqa: PTH123 - as above
        number, *arguments = file.read().split()
    if number != _SIGTIMEDWAIT:
        return 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - as above
        memory.seek(int(arguments[0], 16))
        return int.from_bytes(memory.read(8), sys.byteorder)


def _status_fields(pid: int, *names: bytes) -> list[bytes]:
    """The first values of lines, all of one moment; empty ones if the process has ended."""
    values: dict[bytes, bytes] = {}
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - as above
        for line in file:
            name, *rest = line.split(None, 2)
            if name in names:
                values[name] = rest[0]
    return [values.get(name, b"") for name in names]
