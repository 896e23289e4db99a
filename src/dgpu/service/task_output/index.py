"""The index file of stored output: its tables, and how it is opened. It can always be rebuilt from the packs."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from dgpu.service.sqlite_files import FileUnusable, open_to_write, use_log
from dgpu.service.task_output.pack import OutputPart

INDEX_NAME = "index.sqlite"

# `entries` belongs to the first format: whole attempts. The entry itself contains the other fields.
_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    task_id INTEGER, attempt INTEGER, pack INTEGER, place INTEGER, PRIMARY KEY (task_id, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_pack ON entries (pack);
CREATE TABLE IF NOT EXISTS parts (
    task_id INTEGER, attempt INTEGER, offset INTEGER, end INTEGER, pack INTEGER, place INTEGER,
    total INTEGER, lease_id INTEGER, node TEXT, kept_until INTEGER, PRIMARY KEY (task_id, attempt, offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_by_pack ON parts (pack);
CREATE TABLE IF NOT EXISTS packs (pack INTEGER PRIMARY KEY, end INTEGER);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER);
"""
REPLACED = "DELETE FROM parts WHERE task_id = ? AND attempt = ? AND lease_id < ?"
INSERT = "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
COUNT_ROWS = """
SELECT pack, count(*) FROM (SELECT pack FROM entries UNION ALL SELECT pack FROM parts) GROUP BY pack
"""
DELETE_SOME = (
    """DELETE FROM parts WHERE (task_id, attempt, offset)
    IN (SELECT task_id, attempt, offset FROM parts WHERE pack = ? LIMIT ?)""",
    """DELETE FROM entries WHERE (task_id, attempt)
    IN (SELECT task_id, attempt FROM entries WHERE pack = ? LIMIT ?)""",
)

Row = tuple[int, int, int, int, int, int, int | None, int, str, int]


def open_index(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.OperationalError for a full disk or a lock."""
    try:
        return open_to_write(path, _prepare, timeout_seconds=5, begins_by_itself=True, is_shared=True)
    except FileUnusable:
        # It can be rebuilt from the packs. The damaged file is kept for inspection.
        path.rename(path.with_name(f"index.damaged-{time.time_ns()}"))
        return open_index(path)


def _prepare(index: sqlite3.Connection) -> None:
    use_log(index)
    index.executescript(_TABLES)


def memory_index() -> sqlite3.Connection:
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.executescript(_TABLES)
    return index


def copy_index(index: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """A new file with the content of an open index whose file was deleted. Raises sqlite3.Error."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    copied = open_index(path)
    index.backup(copied)
    return copied


def identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file that has the name now; None: no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def row_of(part: OutputPart, pack: int, place: int) -> Row:
    total = part.end if part.is_last else None
    end = part.offset + len(part.content)
    return (
        part.task_id,
        part.attempt,
        part.offset,
        end,
        pack,
        place,
        total,
        part.lease_id,
        part.node_id,
        part.kept_until_ms,
    )
