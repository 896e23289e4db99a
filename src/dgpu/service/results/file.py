"""The file of results of function calls: written by the follower from the journal, read by the scheduler.

Results are kept for a time and up to a size, the oldest go first. They never enter the history or a log.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dgpu.core.events import CallReturned
from dgpu.core.model.ids import TaskId
from dgpu.service.sqlite_files import (
    SUFFIXES,
    FileUnusable,
    is_empty,
    make_tables,
    open_to_write,
    open_version_to_read,
    transaction,
    use_log,
)

RESULTS_NAME: Final = "results.sqlite"
_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE results (
    task_id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    result BLOB NOT NULL,
    encoding TEXT NOT NULL,
    ref TEXT NOT NULL,
    size INTEGER NOT NULL,
    traceback TEXT NOT NULL
);
CREATE INDEX results_by_time ON results (at);
"""
_INSERT: Final = """INSERT OR REPLACE INTO results
(task_id, at, result, encoding, ref, size, traceback) VALUES (?,?,?,?,?,?,?)"""
_FIND: Final = "SELECT task_id, at, result, encoding, ref, size, traceback FROM results WHERE task_id = ?"
_BEFORE: Final = """SELECT task_id, at, result, encoding, ref, size, traceback FROM results
WHERE task_id < ? ORDER BY task_id DESC LIMIT ?"""
_OLDEST: Final = (
    "SELECT task_id, LENGTH(result) + LENGTH(traceback) FROM results ORDER BY at, task_id LIMIT ?"
)
_SIZE: Final = "SELECT LENGTH(result) + LENGTH(traceback) FROM results WHERE task_id = ?"
_TOTAL: Final = "SELECT COUNT(*), COALESCE(SUM(LENGTH(result) + LENGTH(traceback)), 0) FROM results"
_ROW_BYTES: Final = 128  # of a row besides its result and traceback
_PORTION: Final = 1_000  # rows that one trim deletes


class ResultLimits(msgspec.Struct, frozen=True, kw_only=True):
    ttl_ms: int = 86_400_000
    max_bytes: int = 1 << 30


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    at: int
    result: bytes
    encoding: str
    ref: str
    size: int
    traceback: str


def stored(event: CallReturned) -> StoredResult:
    return StoredResult(
        task_id=event.task_id,
        at=event.at,
        result=event.result,
        encoding=event.encoding,
        ref=event.ref,
        size=event.size,
        traceback=event.traceback,
    )


class ResultWriter:
    """Collects results while events are applied; `commit` writes them. A group that is noted twice changes nothing."""

    def __init__(self, path: Path, limits: ResultLimits) -> None:
        self._limits = limits
        self._rows: list[StoredResult] = []
        try:
            self._connection = open_to_write(path, _prepare)
        except FileUnusable:
            for suffix in SUFFIXES:  # results of the last day are lost; tasks and history are not
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._connection = open_to_write(path, _prepare)
        rows, size = self._connection.execute(_TOTAL).fetchone()
        self._bytes: int = size + rows * _ROW_BYTES

    def note(self, event: CallReturned) -> None:
        self._rows.append(stored(event))

    def commit(self, now_ms: int) -> None:
        """Raises sqlite3.OperationalError (a full disk): then the rows stay for the next try."""
        if not self._rows:
            return
        self._write(self._rows)
        self._rows = []
        self.trim(now_ms)

    def fill(self, rows: Sequence[StoredResult], now_ms: int) -> None:
        """Adds what another scheduler has. Raises sqlite3.OperationalError; then nothing was added."""
        if rows:
            self._write(rows)
            self.trim(now_ms)

    def _write(self, rows: Sequence[StoredResult]) -> None:
        added = 0
        with transaction(self._connection) as connection:
            for each in rows:
                known = connection.execute(_SIZE, (each.task_id,)).fetchone()
                connection.execute(_INSERT, msgspec.structs.astuple(each))
                added += len(each.result) + len(each.traceback) + _ROW_BYTES
                added -= known[0] + _ROW_BYTES if known else 0
        self._bytes += added

    def trim(self, now_ms: int) -> None:
        """Deletes results that are too old, and the oldest if there are too many bytes."""
        while self._is_over(now_ms):
            found = self._connection.execute(_OLDEST, (_PORTION,)).fetchall()
            if not found:
                self._bytes = 0
                return
            with transaction(self._connection) as connection:
                for task_id, size in found:
                    if not self._is_over(now_ms):
                        break
                    connection.execute("DELETE FROM results WHERE task_id = ?", (task_id,))
                    self._bytes -= size + _ROW_BYTES

    def _is_over(self, now_ms: int) -> bool:
        if self._bytes > self._limits.max_bytes:
            return True
        (oldest,) = self._connection.execute("SELECT MIN(at) FROM results").fetchone()
        return oldest is not None and oldest < now_ms - self._limits.ttl_ms

    def close(self) -> None:
        self._connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    is_new = is_empty(connection, _VERSION)
    use_log(connection)
    if is_new:
        make_tables(connection, _TABLES, _VERSION)


class ResultReader:
    """Calls block. They may come from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, task_ids: list[TaskId]) -> dict[TaskId, StoredResult]:
        try:
            return {found.task_id: found for each in task_ids for found in self._read(_FIND, (each,))}
        except sqlite3.Error:
            return {}

    def before(self, task_id: int, limit: int) -> list[StoredResult]:
        """Of the tasks with lower numbers, the latest first. Raises sqlite3.Error."""
        return self._read(_BEFORE, (task_id, limit))

    def _read(self, query: str, values: tuple[Any, ...]) -> list[StoredResult]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = open_version_to_read(self._path, _VERSION)
                if self._connection is None:
                    return []
                rows = self._connection.execute(query, values).fetchall()
            except sqlite3.Error:
                self._close()
                raise
        names = StoredResult.__struct_fields__
        return [StoredResult(**dict(zip(names, row, strict=True))) for row in rows]

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
