"""Output of ended attempts, many in one file, and an index to find them.

A pack is a sequence of entries that only grows; see pack. Packs are authoritative. The index (SQLite) records how far
it has read each pack; after a crash the rest is read again. The oldest pack is deleted when the store is too large, has
too many entries, or the pack is too old.

An attempt is stored in parts: its first bytes and its last ones. It can be found once its last part is stored. Later
parts fill gaps. After an accepted loss of groups an attempt may be repeated under a later lease: its output then
replaces the earlier one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.task_output.byte_ranges import Range, merged, uncovered
from dgpu.service.task_output.coverage import Coverage
from dgpu.service.task_output.index import (
    COUNT_ROWS,
    DELETE_SOME,
    INDEX_NAME,
    INSERT,
    REPLACED,
    Row,
    copy_index,
    identity,
    memory_index,
    open_index,
    row_of,
)
from dgpu.service.task_output.marked import MarkedBytes
from dgpu.service.task_output.pack import (
    FRONT_BYTES,
    MAX_ENTRY_BYTES,
    MAX_NODE_BYTES,
    OutputPart,
    copy_pack,
    decode,
    encode,
    scan,
    set_time,
    write_all,
)
from dgpu.service.task_output.stored import StoredOutput
from dgpu.wire.wall_time import SHOWN

PACK_BYTES = 64 << 20
MAX_ROWS = 2_000_000  # of the index, about 150 bytes each
_PACKS_OF_ROWS = 16  # a pack has at most this share of all rows, so that not too many are deleted at once
_ROWS_PER_DELETE = 5_000  # a reader waits for at most one of these
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700

_LATEST = " ORDER BY attempt & 1048575 DESC, attempt LIMIT 1"  # of the latest attempt, the lowest rank: see wire.ranks


class LogStore:
    """Calls block. Call `append` and `mend` from one thread at a time; the others from any thread."""

    def __init__(
        self,
        folder: Path,
        *,
        retention_bytes: int = 10 << 30,
        retention_ms: int = 30 * 86_400_000,
        pack_bytes: int = PACK_BYTES,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._folder = folder
        self._retention_bytes = retention_bytes
        self._retention_ms = retention_ms
        self._pack_bytes = pack_bytes
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self.report: Callable[[str], object] = lambda _: None  # called when files were deleted during use
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._packs: dict[int, int] = {}  # number -> bytes
        self._rows: dict[int, int] = {}  # number -> rows of the index
        self._descriptor = -1
        self._current = 0
        self._index_file: tuple[int, int] | None = None  # None: the index is in memory
        try:
            self._begin(open_index(folder / INDEX_NAME))
        except sqlite3.OperationalError:
            # A full disk must not keep the scheduler from starting: until the next start the index is in memory.
            self._begin(memory_index())
            self._index_file = None

    def _begin(self, index: sqlite3.Connection) -> None:
        self._index = index
        self._index_file = identity(self._folder / INDEX_NAME)
        # A new index may replace an old one, whose entries are then lost.
        self._index.execute("INSERT OR IGNORE INTO meta VALUES ('whole_since', ?)", (_now_ms(),))
        self._index.commit()
        self._catch_up()

    def find(self, task_id: TaskId, attempt: int = 0) -> StoredOutput | None:
        """One attempt; without an attempt number, the latest stored one."""
        which, values = ("", (task_id,)) if not attempt else (" AND attempt = ?", (task_id, attempt))
        with self._lock:
            last = "SELECT attempt, lease_id, node, total, kept_until FROM parts WHERE task_id = ?"
            row = self._index.execute(f"{last}{which} AND total IS NOT NULL{_LATEST}", values).fetchone()
            older = "SELECT attempt, pack, place FROM entries WHERE task_id = ?"
            old = self._index.execute(f"{older}{which}{_LATEST}", values).fetchone() if row is None else None
            ranges = self._ranges(task_id, row[0]) if row is not None else []
        if row is None:
            return None if old is None else self._find_old(old[1], old[2])
        covered = tuple(merged(ranges))
        is_whole = not list(uncovered(covered, 0, row[3]))  # a part after the last one may have filled a gap
        return StoredOutput(
            task_id=task_id,
            attempt=row[0],
            lease_id=LeaseId(row[1]),
            node_id=NodeId(row[2]),
            end=row[3],
            kept_until_ms=0 if is_whole else row[4],
            ranges=covered,
        )

    def piece(self, stored: StoredOutput, offset: int) -> tuple[int, bytes] | None:
        """The first stored bytes at or after an offset, and their start. None: there are none."""
        while True:
            with self._lock:
                query = """SELECT end, pack, place FROM parts
                    WHERE task_id = ? AND attempt = ? AND end > offset AND end > ?
                    AND lease_id = ? ORDER BY offset LIMIT 1"""
                values = (stored.task_id, stored.attempt, offset, stored.lease_id)
                row = self._index.execute(query, values).fetchone()
                if row is None:
                    query = "SELECT -1, pack, place FROM entries WHERE task_id = ? AND attempt = ?"
                    row = self._index.execute(query, values[:2]).fetchone()
            if row is None:
                return None
            part = self.read(row[1], row[2])
            if part is not None and part.offset + len(part.content) > offset:
                begin = max(offset, part.offset)
                return begin, MarkedBytes(part.content[begin - part.offset :], begin, part.marks)
            if row[0] <= offset:
                return None
            offset = row[0]  # damaged, or expired meanwhile

    def select(self, query: str, values: tuple[int, ...]) -> list[tuple[Any, ...]]:
        """Rows of the index."""
        with self._lock:
            return self._index.execute(query, values).fetchall()

    @property
    def is_nearly_full(self) -> bool:
        """More output would soon drive out older output."""
        return sum(self._packs.values()) > self._retention_bytes * 9 // 10

    @property
    def whole_since_ms(self) -> int:
        """All stored output of attempts that ended later is still there."""
        with self._lock:
            query = "SELECT value FROM meta WHERE name = 'whole_since'"
            return int(self._index.execute(query).fetchone()[0])

    def append(self, parts: Sequence[OutputPart], now_ms: int) -> None:
        """Returns when the parts are durable. An OSError (a full disk) leaves earlier parts unchanged."""
        self.mend()
        fresh = self._fresh(parts)
        if not fresh:
            return
        if self._descriptor < 0 or self._is_pack_full():
            self._begin_pack()
        start = self._packs[self._current]
        place = start
        rows: list[Row] = []
        try:
            for part in fresh:
                entry = encode(part)
                write_all(self._descriptor, entry, place)
                rows.append(row_of(part, self._current, place))
                place += len(entry)
            os.fdatasync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        self._packs[self._current] = place
        set_time(self._descriptor, now_ms)
        self._remember(rows, self._current, place)
        self.expire(now_ms)

    def _fresh(self, parts: Sequence[OutputPart]) -> list[OutputPart]:
        """The parts that are not stored yet: an agent that started again repeats what it sent before."""
        known: dict[tuple[TaskId, int, LeaseId], Coverage] = {}
        fresh: list[OutputPart] = []
        for part in parts:
            run = (part.task_id, part.attempt)
            key = (*run, part.lease_id)
            if key not in known:
                with self._lock:
                    stored_under = self._lease(*run) or part.lease_id
                    if part.lease_id < stored_under:
                        continue
                    is_known = part.lease_id == stored_under
                    known[key] = Coverage(self._ranges(*run), self._end(*run)) if is_known else Coverage()
            fresh += known[key].take(part)
        return fresh

    def expire(self, now_ms: int) -> None:
        """Deletes the oldest packs while the store is too large, and packs that are too old."""
        for pack in sorted(self._packs):
            is_too_much = (
                sum(self._packs.values()) > self._retention_bytes or sum(self._rows.values()) > self._max_rows
            )
            if pack == self._current or not (is_too_much or self._is_too_old(pack, now_ms)):
                return
            self._forget(pack, self._written_ms(pack) or now_ms)
            self._path(pack).unlink(missing_ok=True)
            del self._packs[pack]
            self._rows.pop(pack, None)

    def mend(self) -> None:
        """Restores files that were deleted during use, and reports it.

        The current pack and the index are open, so they are copied. Other packs are lost.
        """
        gone = [pack for pack in self._packs if not self._path(pack).exists()]
        is_index_gone = self._index_file not in {None, identity(self._folder / INDEX_NAME)}
        is_replaced = self._descriptor >= 0 and not os.fstat(self._descriptor).st_nlink
        if not (gone or is_index_gone or is_replaced):
            return
        self._folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        if self._descriptor >= 0 and (is_replaced or self._current in gone):
            old, self._descriptor = self._descriptor, copy_pack(self._descriptor, self._path(self._current))
            os.close(old)
        if is_index_gone:
            self._replace_index()
        lost = [pack for pack in gone if not self._path(pack).exists()]
        lost_bytes = sum(self._packs[pack] for pack in lost)
        for pack in lost:
            self._forget(pack, _now_ms())
            del self._packs[pack]
            self._rows.pop(pack, None)
        note = f"files in {self._folder} were deleted or replaced; they were restored"
        self.report(f"{note}, but {lost_bytes:,} bytes of stored output are lost" if lost else note)

    def _replace_index(self) -> None:
        path = self._folder / INDEX_NAME
        with self._lock:
            self._index.commit()  # an open transaction would block the copy forever
            old, self._index = self._index, copy_index(self._index, path)
            self._index_file = identity(path)
            old.close()

    def close(self) -> None:
        with self._lock:
            self._index.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _find_old(self, pack: int, place: int) -> StoredOutput | None:
        part = self.read(pack, place)
        if part is None:
            return None
        return StoredOutput(
            task_id=part.task_id,
            attempt=part.attempt,
            lease_id=part.lease_id,
            node_id=part.node_id,
            end=part.end,
            kept_until_ms=0,
            ranges=((part.offset, part.end),) if part.content else (),
        )

    def _ranges(self, task_id: TaskId, attempt: int) -> list[Range]:
        query = "SELECT offset, end FROM parts WHERE task_id = ? AND attempt = ?"
        return self._index.execute(query, (task_id, attempt)).fetchall()

    def _end(self, task_id: TaskId, attempt: int) -> int | None:
        """The total size of the output; None: its last part is not stored."""
        query = "SELECT total FROM parts WHERE task_id = ? AND attempt = ? AND total IS NOT NULL"
        row = self._index.execute(query, (task_id, attempt)).fetchone()
        return None if row is None else int(row[0])

    def _lease(self, task_id: TaskId, attempt: int) -> int:
        """The lease of the attempt's stored parts; 0: there are none."""
        query = "SELECT max(lease_id) FROM parts WHERE task_id = ? AND attempt = ?"
        return int(self._index.execute(query, (task_id, attempt)).fetchone()[0] or 0)

    def read(self, pack: int, place: int) -> OutputPart | None:
        """None: it is damaged, or it expired meanwhile."""
        try:
            with self._path(pack).open("rb") as file:
                file.seek(place)
                return decode(file.read(FRONT_BYTES + MAX_NODE_BYTES + MAX_ENTRY_BYTES))
        except FileNotFoundError:
            return None

    def _catch_up(self) -> None:
        """Reads what the index lacks: the end of the last pack after a crash, or everything if the index was lost."""
        known = dict(self._index.execute("SELECT pack, end FROM packs").fetchall())
        for path in sorted(self._folder.glob("pack-*.bin")):
            pack = int(path.stem.removeprefix("pack-"))
            end = known.get(pack, 0)
            if path.stat().st_size != end:
                rows: list[Row] = []
                for place, behind, part in scan(path, end):
                    rows.append(row_of(part, pack, place))
                    end = behind
                self._remember(rows, pack, end)
            self._packs[pack] = end
        for pack in known.keys() - self._packs.keys():
            self._forget(pack, _now_ms())
        self._rows = {}
        for pack, rows_of in self._index.execute(COUNT_ROWS).fetchall():
            self._rows[pack] = rows_of
        self._current = max(self._packs, default=0)
        if self._current and not self._is_pack_full():
            self._descriptor = os.open(self._path(self._current), os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._descriptor, self._packs[self._current])  # a torn entry was never acknowledged

    def _remember(self, rows: list[Row], pack: int, end: int) -> None:
        leases: dict[tuple[int, int], int] = {}
        for row in rows:
            leases[row[:2]] = max(row[7], leases.get(row[:2], 0))
        with self._lock:
            self._index.executemany(REPLACED, [(*run, lease_id) for run, lease_id in leases.items()])
            self._index.executemany(INSERT, [row for row in rows if row[7] == leases[row[:2]]])
            self._index.execute("INSERT OR REPLACE INTO packs VALUES (?, ?)", (pack, end))
            self._index.commit()
        self._rows[pack] = self._rows.get(pack, 0) + len(rows)

    def _forget(self, pack: int, written_ms: int) -> None:
        """Output stored until that time ended before it. Recorded first: a crash in between leaves no false promise."""
        with self._lock:
            self._index.execute(
                "UPDATE meta SET value = max(value, ?) WHERE name = 'whole_since'", (written_ms,)
            )
            self._index.commit()
        for delete_some in DELETE_SOME:
            deleted = _ROWS_PER_DELETE
            while deleted == _ROWS_PER_DELETE:
                with self._lock:
                    deleted = self._index.execute(delete_some, (pack, _ROWS_PER_DELETE)).rowcount
                    self._index.commit()
        with self._lock:
            self._index.execute("DELETE FROM packs WHERE pack = ?", (pack,))
            self._index.commit()

    def _is_pack_full(self) -> bool:
        rows = self._rows.get(self._current, 0)
        return self._packs[self._current] >= self._pack_bytes or rows >= max(
            1, self._max_rows // _PACKS_OF_ROWS
        )

    def _begin_pack(self) -> None:
        pack = self._current + 1
        descriptor = os.open(
            self._path(pack), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE_FILE
        )
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._current, self._packs[pack] = descriptor, pack, 0

    def _is_too_old(self, pack: int, now_ms: int) -> bool:
        """Packs of earlier versions have the time of the wall clock, which may be wrong: in doubt they are kept."""
        written_ms = self._written_ms(pack)
        youngest_now_ms = min(now_ms, SHOWN.wall_ms(now_ms))
        return written_ms is None or youngest_now_ms - written_ms > self._retention_ms

    def _written_ms(self, pack: int) -> int | None:
        """The time of the last write, as a time of the journal; None: the file was deleted."""
        try:
            return self._path(pack).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def _path(self, pack: int) -> Path:
        return self._folder / f"pack-{pack:08}.bin"


def _now_ms() -> int:
    return SHOWN.at_ms(time.time_ns() // 1_000_000)
