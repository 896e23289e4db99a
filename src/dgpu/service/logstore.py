"""Output of attempts that are over, many in one file, and an index to find them.

A pack is a run of entries, only ever appended to: a header, then the bytes of one attempt, compressed. Packs are the truth.
The index (SQLite) knows how far into which pack it has read; after a crash the rest is read again from there. The
oldest pack goes when the store is too large or the pack too old.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dgpu.core.ids import LeaseId, TaskId

PACK_BYTES = 64 << 20
MOST_ENTRY_BYTES = 4 << 20

_MAGIC = b"DGO1"
_HEADER = struct.Struct(
    "<4sQQIQIII"
)  # magic, task, lease, attempt, offset, raw bytes, packed bytes, CRC of the packed
_HEADER_CRC = struct.Struct("<I")
_FRONT_BYTES = _HEADER.size + _HEADER_CRC.size
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    task_id INTEGER, attempt INTEGER, pack INTEGER, place INTEGER, PRIMARY KEY (task_id, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_pack ON entries (pack);
CREATE TABLE IF NOT EXISTS packs (pack INTEGER PRIMARY KEY, end INTEGER);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER);
"""


class AttemptOutput(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    attempt: int
    lease_id: LeaseId
    offset: int  # of content[0] in all that the attempt has written
    content: bytes


class LogStore:
    """Calls block. `append` comes from one thread at a time; `find` from any."""

    def __init__(
        self,
        folder: Path,
        *,
        retention_bytes: int = 10 << 30,
        retention_ms: int = 30 * 86_400_000,
        pack_bytes: int = PACK_BYTES,
    ) -> None:
        self._folder = folder
        self._retention_bytes = retention_bytes
        self._retention_ms = retention_ms
        self._pack_bytes = pack_bytes
        self._lock = threading.Lock()
        folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._packs: dict[int, int] = {}  # number -> bytes
        self._descriptor = -1
        self._current = 0
        try:
            self._begin(_open_index(folder / "index.sqlite"))
        except sqlite3.OperationalError:
            # A full disk must not keep a scheduler from starting: until the next start the index is in memory.
            self._begin(_memory_index())

    def _begin(self, index: sqlite3.Connection) -> None:
        self._index = index
        # A new index may stand for an old one, and what that one knew of is lost.
        self._index.execute("INSERT OR IGNORE INTO meta VALUES ('whole_since', ?)", (_now_ms(),))
        self._catch_up()

    def find(self, task_id: TaskId, attempt: int = 0) -> AttemptOutput | None:
        """One attempt's output; without an attempt, the latest that is stored."""
        query = "SELECT pack, place FROM entries WHERE task_id = ?"
        values: tuple[int, ...] = (task_id,)
        if attempt:
            query, values = query + " AND attempt = ?", (task_id, attempt)
        with self._lock:
            # Of the latest attempt, the lowest rank: see wire.ranks.
            latest = " ORDER BY attempt & 1048575 DESC, attempt LIMIT 1"
            row = self._index.execute(query + latest, values).fetchone()
        return None if row is None else self._read(row[0], row[1])

    def has(self, task_id: TaskId, attempt: int) -> bool:
        with self._lock:
            query = "SELECT 1 FROM entries WHERE task_id = ? AND attempt = ?"
            return self._index.execute(query, (task_id, attempt)).fetchone() is not None

    @property
    def whole_since_ms(self) -> int:
        """Of an attempt that ended later, nothing that was ever stored has gone."""
        with self._lock:
            query = "SELECT value FROM meta WHERE name = 'whole_since'"
            return int(self._index.execute(query).fetchone()[0])

    def append(self, outputs: Sequence[AttemptOutput], now_ms: int) -> None:
        """Durable when it returns. An OSError (a full disk) leaves what was stored before as it was."""
        fresh = [output for output in outputs if not self.has(output.task_id, output.attempt)]
        if not fresh:
            return
        if self._descriptor < 0 or self._packs[self._current] >= self._pack_bytes:
            self._begin_pack()
        start = self._packs[self._current]
        place = start
        rows: list[tuple[int, int, int, int]] = []
        try:
            for output in fresh:
                entry = _encode(output)
                _write_all(self._descriptor, entry, place)
                rows.append((output.task_id, output.attempt, self._current, place))
                place += len(entry)
            os.fdatasync(self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        self._packs[self._current] = place
        self._remember(rows, self._current, place)
        self.expire(now_ms)

    def expire(self, now_ms: int) -> None:
        """Delete the oldest packs while there is too much, and those that are too old."""
        for pack in sorted(self._packs):
            is_too_much = sum(self._packs.values()) > self._retention_bytes
            if pack == self._current or not (is_too_much or self._is_too_old(pack, now_ms)):
                return
            with self._lock:
                self._forget(pack, self._written_ms(pack) or now_ms)
                self._index.commit()
            self._path(pack).unlink(missing_ok=True)
            del self._packs[pack]

    def close(self) -> None:
        with self._lock:
            self._index.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self, pack: int, place: int) -> AttemptOutput | None:
        try:
            with self._path(pack).open("rb") as file:
                file.seek(place)
                return _decode(file.read(_FRONT_BYTES + MOST_ENTRY_BYTES))
        except FileNotFoundError:
            return None  # it expired between the index and here

    def _catch_up(self) -> None:
        """Take in what the index does not know: the end of the last pack after a crash, or all of it if it was lost."""
        known = dict(self._index.execute("SELECT pack, end FROM packs").fetchall())
        for path in sorted(self._folder.glob("pack-*.bin")):
            pack = int(path.stem.removeprefix("pack-"))
            end = known.get(pack, 0)
            rows: list[tuple[int, int, int, int]] = []
            if path.stat().st_size != end:
                end = _scan(path, pack, end, rows)
                self._remember(rows, pack, end)
            self._packs[pack] = end
        for pack in known.keys() - self._packs.keys():
            self._forget(pack, _now_ms())
        self._index.commit()
        self._current = max(self._packs, default=0)
        if self._current and self._packs[self._current] < self._pack_bytes:
            self._descriptor = os.open(self._path(self._current), os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._descriptor, self._packs[self._current])  # a torn entry was never acknowledged

    def _remember(self, rows: list[tuple[int, int, int, int]], pack: int, end: int) -> None:
        with self._lock:
            self._index.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)
            self._index.execute("INSERT OR REPLACE INTO packs VALUES (?, ?)", (pack, end))
            self._index.commit()

    def _forget(self, pack: int, written_ms: int) -> None:
        """What was stored until then ended before then."""
        self._index.execute("DELETE FROM entries WHERE pack = ?", (pack,))
        self._index.execute("DELETE FROM packs WHERE pack = ?", (pack,))
        self._index.execute("UPDATE meta SET value = max(value, ?) WHERE name = 'whole_since'", (written_ms,))

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
        written_ms = self._written_ms(pack)
        return written_ms is None or now_ms - written_ms > self._retention_ms

    def _written_ms(self, pack: int) -> int | None:
        """When it was last written to; None: somebody deleted it."""
        try:
            return self._path(pack).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def _path(self, pack: int) -> Path:
        return self._folder / f"pack-{pack:08}.bin"


def _open_index(path: Path) -> sqlite3.Connection:
    old_mask = os.umask(0o077)
    try:
        index = sqlite3.connect(path, check_same_thread=False)
        try:
            index.execute("PRAGMA journal_mode = WAL")
            index.execute("PRAGMA synchronous = NORMAL")
            index.executescript(_TABLES)
        except sqlite3.OperationalError:
            index.close()
            raise  # a full disk or a lock: the file itself may be sound
        except sqlite3.DatabaseError:
            # It can be made again from the packs; keep the damaged one for whoever wants to know.
            index.close()
            path.rename(path.with_name(f"index.damaged-{time.time_ns()}"))
            return _open_index(path)
    finally:
        os.umask(old_mask)
    return index


def _memory_index() -> sqlite3.Connection:
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.executescript(_TABLES)
    return index


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode(output: AttemptOutput) -> bytes:
    packed = zlib.compress(output.content, 1)
    front = _HEADER.pack(
        _MAGIC,
        output.task_id,
        output.lease_id,
        output.attempt,
        output.offset,
        len(output.content),
        len(packed),
        zlib.crc32(packed),
    )
    return b"".join((front, _HEADER_CRC.pack(zlib.crc32(front)), packed))


def _front(content: bytes) -> tuple[int, int, int, int, int, int, int] | None:
    if len(content) < _FRONT_BYTES:
        return None
    magic, task_id, lease_id, attempt, offset, raw_bytes, packed_bytes, crc = _HEADER.unpack_from(content)
    if magic != _MAGIC or _HEADER_CRC.unpack_from(content, _HEADER.size)[0] != zlib.crc32(
        content[: _HEADER.size]
    ):
        return None
    return task_id, lease_id, attempt, offset, raw_bytes, packed_bytes, crc


def _decode(content: bytes) -> AttemptOutput | None:
    front = _front(content)
    if front is None:
        return None
    task_id, lease_id, attempt, offset, raw_bytes, packed_bytes, crc = front
    packed = content[_FRONT_BYTES : _FRONT_BYTES + packed_bytes]
    if len(packed) < packed_bytes or zlib.crc32(packed) != crc or raw_bytes > MOST_ENTRY_BYTES:
        return None
    return AttemptOutput(
        task_id=TaskId(task_id),
        attempt=attempt,
        lease_id=LeaseId(lease_id),
        offset=offset,
        content=zlib.decompress(packed),
    )


def _scan(path: Path, pack: int, start: int, rows: list[tuple[int, int, int, int]]) -> int:
    """Where the whole entries end. Contents are checked: after a power cut any page of a batch may be missing."""
    place = start
    with path.open("rb") as file:
        file.seek(place)
        while (front := _front(head := file.read(_FRONT_BYTES))) is not None:
            packed = file.read(front[5])
            if _decode(head + packed) is None:
                break
            rows.append((front[0], front[2], pack, place))
            place += len(head) + len(packed)
    return place


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
