"""The state of `dgpu up`: one directory, one lock, one record of the running processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dgpu.entry.processes import ProcessRef


class UpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """up.json: read by the command line and the SDK (url, token_file), by `down` and by the next `up`."""

    url: str
    token_file: str
    grpc_address: str
    version: str
    started_at: str
    ready: bool = False
    pid: int = 0
    supervisor: ProcessRef | None = None
    scheduler: ProcessRef | None = None
    agent: ProcessRef | None = None
    nodes: int = 0
    gpus: str = ""  # for people


def default_state_dir() -> Path:
    """The SDK uses the same path."""
    chosen = os.environ.get("DGPU_DATA_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state"
    return root / "dgpu"


class StateDir:
    def __init__(self, path: Path | None) -> None:
        self.is_default = path is None
        self.path = (path or default_state_dir()).absolute()

    @property
    def scheduler_dir(self) -> Path:
        return self.path / "scheduler"

    @property
    def tasks_dir(self) -> Path:
        return self.path / "agent"

    @property
    def token_file(self) -> Path:
        return self.scheduler_dir / "token"

    @property
    def record_file(self) -> Path:
        return self.path / "up.json"

    def log_file(self, name: str) -> Path:
        return self.path / f"{name}.log"

    def hold_file(self, name: str) -> Path:
        """Held open by the service of this name while it lives: see `processes.Service`."""
        return self.path / f"{name}.hold"

    @property
    def lock_file(self) -> Path:
        """Held open by the `up` that runs here."""
        return self.path / "up.lock"

    def config_file(self, name: str) -> Path:
        return self.path / f"{name}.yaml"

    def create(self) -> None:
        for directory in (self.path, self.scheduler_dir, self.tasks_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def lock(self) -> int | None:
        """A descriptor to keep open, or None if another `up` holds the lock."""
        return self._lock(self.lock_file.name)

    def lock_start(self) -> int | None:
        """The same for a start in the background, until it is ready: only one process may write the log."""
        return self._lock("up.start.lock")

    def _lock(self, name: str) -> int | None:
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_locked(self) -> bool:
        if not self.lock_file.exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def stopped_tasks(self) -> list[str]:
        """Tasks that `down --stop-tasks` ended without a scheduler. The next `up` cancels them, then starts nodes."""
        try:
            return msgspec.json.decode(self._stopped_file.read_bytes(), type=list[str])
        except (OSError, msgspec.MsgspecError):
            return []

    def note_stopped(self, task_ids: Iterable[str]) -> None:
        """Adds to the list. Raises OSError if it cannot be written."""
        write_private(self._stopped_file, msgspec.json.encode(sorted({*self.stopped_tasks(), *task_ids})))

    def forget_stopped(self) -> None:
        self._stopped_file.unlink(missing_ok=True)

    @property
    def _stopped_file(self) -> Path:
        return self.path / "stopped-tasks.json"

    def read_record(self) -> UpRecord | None:
        try:
            return msgspec.json.decode(self.record_file.read_bytes(), type=UpRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def write_record(self, record: UpRecord) -> None:
        write_private(self.record_file, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")

    def remove_record(self) -> None:
        self.record_file.unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Writes the file atomically, readable for the owner only."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
