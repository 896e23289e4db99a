"""The telemetry file: its layout, how it is opened, and how an unusable one is moved aside."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from pathlib import Path

from dgpu.service.sqlite_files import SUFFIXES, FileUnusable, is_empty, make_tables, open_to_write, use_log
from dgpu.service.telemetry.tiers import TIERS

TELEMETRY_NAME = "telemetry.sqlite"
TELEMETRY_VERSION = 1
SET_ASIDE = ".unusable"  # at most one is kept
PAGE_BYTES = 4_096
_WAL_BYTES = 16 << 20

# Rows of chunks are added and deleted in the order of time, so whole old pages become free.
_TABLES = "".join(
    f"CREATE TABLE {tier.table} (id INTEGER PRIMARY KEY, series INTEGER NOT NULL, start INTEGER NOT NULL, "
    f"body BLOB NOT NULL);\n"
    f"CREATE UNIQUE INDEX {tier.table}_by_series ON {tier.table} (series, start);\n"
    for tier in TIERS
)
SCHEMA_SQL = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE series (
    number INTEGER PRIMARY KEY, gpu TEXT NOT NULL UNIQUE, node TEXT NOT NULL, seen_at INTEGER NOT NULL
);
CREATE INDEX series_by_node ON series (node);
CREATE TABLE open (at INTEGER PRIMARY KEY, gpus BLOB NOT NULL, cluster BLOB NOT NULL);
{_TABLES}
"""


def open_for_writing(path: Path, *, max_bytes: int) -> sqlite3.Connection:
    """Raises FileUnusable, or sqlite3.OperationalError if the file itself may be intact."""
    return open_to_write(path, functools.partial(_prepare, max_bytes=max_bytes))


def _prepare(connection: sqlite3.Connection, *, max_bytes: int) -> None:
    is_new = is_empty(connection, TELEMETRY_VERSION)
    if is_new:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    use_log(connection)
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if is_new:
        make_tables(connection, SCHEMA_SQL, TELEMETRY_VERSION)
    # A last limit, in case trimming does not keep up. A larger file first shrinks by trimming.
    connection.execute(f"PRAGMA max_page_count = {max(max_bytes // PAGE_BYTES, 1)}")
    _check_layout(connection)


def _check_layout(connection: sqlite3.Connection) -> None:
    try:
        for table in ("meta", "series", "open", *(tier.table for tier in TIERS)):
            connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()  # noqa: S608 - constant text
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            raise FileUnusable(str(error)) from error
        raise


def set_aside(path: Path) -> Path:
    """Moves the file aside for inspection; an earlier one is replaced. The file's own log moves with it."""
    target = path.with_name(path.name + SET_ASIDE)
    for suffix in SUFFIXES:
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(target.with_name(target.name + suffix))
    return target
