"""Processes that may outlive this one, identified by pid and start time, so that a reused pid never matches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

LOG_BYTES = 8 << 20  # a longer log file of a service is rotated; one older file is kept
_MAX_COMMAND_BYTES = 1 << 20
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 15.0  # between SIGTERM and SIGKILL
_LISTEN = "0A"  # in the kernel's tables of sockets


class ProcessRef(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    start_ticks: int  # since boot
    boot_id: str


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def command_line(pid: int) -> bytes:
    """Arguments, each with a zero byte behind it. Only the first megabyte: a process can make its own endless. Raises
    OSError.
    """
    with Path(f"/proc/{pid}/cmdline").open("rb", buffering=0) as file:
        return file.read(_MAX_COMMAND_BYTES) or b""


def process_ref(pid: int) -> ProcessRef | None:
    """None if the process does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name in front may contain any character
    if fields[0] in {"Z", "X"}:
        return None
    return ProcessRef(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id())


def is_alive(ref: ProcessRef | None) -> bool:
    return ref is not None and process_ref(ref.pid) == ref


def stop_process(ref: ProcessRef, grace_seconds: float = _GRACE_SECONDS) -> bool:
    """SIGTERM, then SIGKILL. False: it had already ended."""
    if not is_alive(ref):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(ref.pid, signal.SIGTERM)
    if not _wait(lambda: not is_alive(ref), grace_seconds):
        with contextlib.suppress(ProcessLookupError):
            os.kill(ref.pid, signal.SIGKILL)
        _wait(lambda: not is_alive(ref), 5.0)
    return True


def holders(file: Path) -> list[ProcessRef]:
    """Living processes that have the file open, except this one and children that inherited it from such a process."""
    wanted = os.path.realpath(file)
    pids = {
        int(process.name) for process in Path("/proc").glob("[0-9]*") if wanted in _open_files(process)
    } - {os.getpid()}
    found = [process_ref(pid) for pid in sorted(pids) if _parent_pid(pid) not in pids]
    return [ref for ref in found if ref is not None]


def processes_of(held: Path, recorded: ProcessRef | None) -> list[ProcessRef]:
    """Living processes that hold the file open, and the recorded one if it lives."""
    found = holders(held)
    return [*found, recorded] if recorded and recorded not in found and is_alive(recorded) else found


def _parent_pid(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _open_files(process: Path) -> Iterator[str]:
    try:
        entries = list((process / "fd").iterdir())
    except OSError:
        return  # another user's process, or one that has ended
    for entry in entries:
        with contextlib.suppress(OSError):  # closed meanwhile
            yield str(entry.readlink())


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class Service:
    """A child process with a log file. It has its own session, so Ctrl-C does not reach it.

    The child inherits a descriptor of `hold_file` and keeps it open until it ends. The file exists before the child,
    so `holders(hold_file)` always finds the child, even if its parent was killed before it could record the pid.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log_file: Path,
        environ: Mapping[str, str],
        hold_file: Path,
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log_file = log_file
        self.hold_file = hold_file
        self.environ = dict(environ)
        self.process: subprocess.Popen[bytes] | None = None
        self.ref: ProcessRef | None = None
        self.started_at = 0.0

    def start(self) -> None:
        with (
            open(self.log_file, "ab", opener=_private) as log,
            open(self.hold_file, "ab", opener=_private) as hold,
        ):
            self.process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environ,
                cwd="/",  # a service must not block the removal of its data directory
                start_new_session=True,
                pass_fds=(hold.fileno(),),
            )
        self.ref = process_ref(self.process.pid)
        self.started_at = time.monotonic()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll() if self.process is not None else -1

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def listens_on(self, port: int) -> bool:
        """Whether this process listens, and not another one that took the port first."""
        if self.process is None:
            return False
        process = Path(f"/proc/{self.process.pid}")
        try:
            tables = [(process / "net" / name).read_text(encoding="ascii") for name in ("tcp", "tcp6")]
            own = {str(entry.readlink()) for entry in (process / "fd").iterdir()}
        except OSError:
            return False  # it has ended, or a file was just closed: the next check decides
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        listening = (
            row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port
        )
        return any(f"socket:[{inode}]" in own for inode in listening)

    @property
    def uptime_seconds(self) -> float:
        return time.monotonic() - self.started_at

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def reap(self) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self, lines: int = 12) -> str:
        return tail(self.log_file, lines)


def set_aside(log_file: Path) -> None:
    """Starts a new file; one older file is kept."""
    with contextlib.suppress(FileNotFoundError):
        log_file.replace(log_file.with_suffix(".log.1"))


def bound_log(log_file: Path) -> None:
    """Copies and truncates, because the writer has the file open. It appends, so its next line is at the start."""
    try:
        if log_file.stat().st_size <= LOG_BYTES:
            return
        with log_file.open("rb+") as log, log_file.with_suffix(".log.1").open("wb") as older:
            log.seek(-LOG_BYTES // 2, os.SEEK_END)
            older.write(log.read(LOG_BYTES // 2))
            log.truncate(0)
    except OSError:
        return  # a log problem must not end a service


def tail(log_file: Path, lines: int) -> str:
    try:
        with log_file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 16_384))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
