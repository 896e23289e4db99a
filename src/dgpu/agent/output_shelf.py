"""Output files of ended attempts on a node: waiting for upload, or kept because the scheduler has only parts of them.

`OUTPUT/LEASE` belongs to an attempt that runs or waits for its upload. `OUTPUT/kept/LEASE.TASK.ATTEMPT` is the whole
output of an attempt whose first and last bytes the scheduler has stored. Kept output is deleted when it is too old or
too large in total, or when the disk is nearly full, oldest first.

Calls that read or write files block: use a thread. Ages count while the agent runs, so a wrong wall clock deletes
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dgpu.agent import chunks
from dgpu.agent.marks import read_marks
from dgpu.agent.output_words import FilesRead, OutputSettled, ReadFiles
from dgpu.core.model.ids import LeaseId, TaskId

DEFAULT_MAX_BYTES = 20 * 1024**3
DEFAULT_MAX_AGE_MS = 7 * 86_400_000
MAX_KEPT = 10_000  # directories
MIN_FREE_BYTES = 256 * 1024**2  # on the disk: with less, kept output is deleted
_MAX_AWAY_MS = 86_400_000  # the most that counts for a time without an agent, which only the wall clock knows


class _Kept:
    __slots__ = ("age_ms", "size")

    def __init__(self, size: int, age_ms: int) -> None:
        self.size = size
        self.age_ms = age_ms


class OutputShelf:
    """One per agent, for all its nodes."""

    def __init__(
        self,
        directory: Path,
        *,
        clock_ms: Callable[[], int],
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_age_ms: int = DEFAULT_MAX_AGE_MS,
        min_free_bytes: int = MIN_FREE_BYTES,
    ) -> None:
        self.directory = directory
        self.max_age_ms = max_age_ms
        self._clock_ms = clock_ms
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._kept_dir = directory / "kept"
        self._ages = self._kept_dir / "ages.json"
        self._lock = threading.Lock()
        self._waiting: dict[LeaseId, int] = {}  # bytes of attempts that wait for their upload, oldest first
        self._waiting_bytes = 0
        self._received: dict[LeaseId, None] = {}  # those of them that one scheduler has whole, oldest first
        self._kept_bytes = 0
        self._counted_ms = clock_ms()
        self._kept: dict[str, _Kept] | None = None  # None: not read yet

    def read(self, ask: ReadFiles, *, is_running: bool, run: tuple[TaskId, int] | None) -> FilesRead:
        """`run`: task and attempt of the lease, if the node knows it."""
        own = self.directory / f"{ask.lease_id:d}"
        directory = self._kept_dir / _name(ask.lease_id, ask.task_id, ask.attempt)
        is_other = run is not None and ask.task_id and run != (ask.task_id, ask.attempt)
        if not is_other and (own.is_dir() or not directory.is_dir()):
            directory = own
        first, end = chunks.extent(directory)
        offset = max(first, end - ask.tail_bytes) if ask.tail_bytes else ask.offset
        found_at, data = chunks.read_at(directory, offset, ask.max_bytes) if ask.max_bytes else (offset, b"")
        return FilesRead(
            ticket=ask.ticket,
            is_there=directory.is_dir(),
            is_running=is_running and not is_other,
            end=end,
            offset=found_at,
            data=data,
            marks=read_marks(directory, found_at, found_at + len(data)) if data else b"",
        )

    def waits(self, lease_id: LeaseId, size: int) -> bool:
        """The attempt has ended and waits for its upload. True: over the limit, call `tidy`."""
        self._waiting[lease_id] = size
        self._waiting_bytes += size
        return self._total() > self._max_bytes

    def is_received(self, lease_id: LeaseId) -> None:
        """One scheduler has all of it: if room is needed, it goes before output that none has."""
        if lease_id in self._waiting:
            self._received[lease_id] = None

    def is_settled(self, lease_id: LeaseId) -> None:
        self._received.pop(lease_id, None)
        self._waiting_bytes -= self._waiting.pop(lease_id, 0)

    def keep(self, settled: OutputSettled) -> None:
        """Keeps output that the scheduler has only in part."""
        own = self.directory / f"{settled.lease_id:d}"
        name = _name(settled.lease_id, settled.task_id, settled.attempt)
        with self._lock:
            kept = self._look()
            with contextlib.suppress(OSError):
                if own.is_dir():
                    self._delete(name)
                    self._kept_dir.mkdir(mode=0o700, exist_ok=True)
                    own.rename(self._kept_dir / name)
                    kept[name] = _Kept(chunks.size(self._kept_dir / name), 0)
                    self._kept_bytes += kept[name].size
            self._make_room()
            self._save()

    def tidy(self) -> None:
        """Counts time and deletes output that is too old; call it about every minute."""
        with self._lock:
            now_ms = self._clock_ms()
            passed_ms, self._counted_ms = now_ms - self._counted_ms, now_ms
            kept = self._look()
            for each in kept.values():
                each.age_ms += passed_ms
            for name in [name for name, each in kept.items() if each.age_ms > self.max_age_ms]:
                self._delete(name)
            self._make_room()
            if kept or self._ages.exists():
                self._save()

    # -- leaves

    def _make_room(self) -> None:
        kept = self._look()
        by_age = sorted(kept, key=lambda name: -kept[name].age_ms)
        while by_age and (self._total() > self._max_bytes or len(kept) > MAX_KEPT or self._is_disk_low()):
            self._delete(by_age.pop(0))
        for lease_id in list(self._received):
            if self._total() <= self._max_bytes and not self._is_disk_low():
                break
            self._received.pop(lease_id, None)
            self._shrink(lease_id, _remove)
        for shrink in (chunks.thin, _remove):
            for lease_id in list(self._waiting)[:-1]:  # the newest stays in any case
                if self._total() <= self._max_bytes:
                    return
                self._shrink(lease_id, shrink)

    def _shrink(self, lease_id: LeaseId, shrink: Callable[[Path], None]) -> None:
        own = self.directory / f"{lease_id:d}"
        shrink(own)
        size = chunks.size(own)
        if lease_id in self._waiting:
            self._waiting_bytes += size - self._waiting[lease_id]
            self._waiting[lease_id] = size

    def _total(self) -> int:
        return self._kept_bytes + self._waiting_bytes

    def _is_disk_low(self) -> bool:
        try:
            found = os.statvfs(self.directory)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < self._min_free_bytes

    def _delete(self, name: str) -> None:
        shutil.rmtree(self._kept_dir / name, ignore_errors=True)
        gone = self._look().pop(name, None)
        self._kept_bytes -= gone.size if gone is not None else 0

    def _look(self) -> dict[str, _Kept]:
        """Reads the disk once; the file of ages may be missing or damaged."""
        if self._kept is not None:
            return self._kept
        ages: dict[str, int] = {}
        away_ms = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            saved = json.loads(self._ages.read_bytes())
            ages = {str(name): int(age_ms) for name, age_ms in saved["ages"].items()}
            away_ms = min(max(0, _wall_ms() - int(saved["wall_ms"])), _MAX_AWAY_MS)
        self._kept = {}
        with contextlib.suppress(OSError):
            for entry in sorted(self._kept_dir.iterdir()):
                if entry.is_dir():
                    age_ms = ages.get(entry.name, 0) + away_ms
                    self._kept[entry.name] = _Kept(chunks.size(entry), age_ms)
                    self._kept_bytes += self._kept[entry.name].size
        return self._kept

    def _save(self) -> None:
        ages = {name: each.age_ms for name, each in self._look().items()}
        fresh = self._ages.with_suffix(".new")
        with contextlib.suppress(OSError):  # a lost age starts from 0 again
            fresh.write_text(json.dumps({"wall_ms": _wall_ms(), "ages": ages}))
            fresh.replace(self._ages)


def _name(lease_id: LeaseId, task_id: TaskId, attempt: int) -> str:
    return f"{lease_id:d}.{task_id:d}.{attempt:d}"


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
