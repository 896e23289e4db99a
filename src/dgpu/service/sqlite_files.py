"""How the service opens its SQLite files, writes them all or nothing, and compares the files under their names."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from dgpu.journal.durable import PRIVATE_FILE

SUFFIXES = ("", "-wal", "-shm", "-journal")


class FileUnusable(Exception):  # noqa: N818 - the name states the failure
    """The file is damaged or of another version. A new one must replace it."""


def open_to_write(
    path: Path,
    prepare: Callable[[sqlite3.Connection], object],
    *,
    timeout_seconds: float = 10.0,
    begins_by_itself: bool = False,
    is_shared: bool = False,
) -> sqlite3.Connection:
    """`prepare` checks the file and creates its tables.

    With `begins_by_itself`, a change begins a transaction and `commit()` ends it. With `is_shared`, threads share the
    connection and take turns. Raises FileUnusable, or sqlite3.OperationalError for a full disk or a lock: then the file
    itself may be intact.
    """
    try:
        # SQLite itself would use mode 0644.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
    except OSError as error:
        raise sqlite3.OperationalError(str(error)) from error
    connection = sqlite3.connect(
        path,
        isolation_level="DEFERRED" if begins_by_itself else None,
        timeout=timeout_seconds,
        check_same_thread=not is_shared,
    )
    try:
        prepare(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise FileUnusable(str(error)) from error
        raise
    return connection


def open_to_read(path: Path, *, timeout_seconds: float = 5.0) -> sqlite3.Connection:
    """Threads may share the connection and take turns. A missing file is not created: sqlite3.OperationalError."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro",
        uri=True,
        isolation_level=None,
        timeout=timeout_seconds,
        check_same_thread=False,
    )


def open_version_to_read(
    path: Path, version: int, *, timeout_seconds: float = 5.0
) -> sqlite3.Connection | None:
    """None for a file of another version. A file that is being created has version 0."""
    connection = open_to_read(path, timeout_seconds=timeout_seconds)
    try:
        found = _version_of(connection)
    except sqlite3.Error:
        connection.close()
        raise
    if found == version:
        return connection
    connection.close()
    return None


def is_empty(connection: sqlite3.Connection, version: int) -> bool:
    """Raises FileUnusable for another version, before the file is changed."""
    found = _version_of(connection)
    if found not in {0, version}:
        raise FileUnusable(f"it has version {found}, this program writes {version}")
    return found == 0


def make_tables(connection: sqlite3.Connection, sql: str, version: int) -> None:
    connection.executescript(f"BEGIN; {sql} PRAGMA user_version = {version}; COMMIT;")


def use_log(connection: sqlite3.Connection) -> None:
    """Readers do not block the writer. A power cut may lose the last transactions, but never damages the file."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _version_of(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def names_of(path: Path) -> dict[str, tuple[int, int]]:
    """The current files of this name, by suffix: device and inode."""
    found = {}
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            told = path.with_name(path.name + suffix).stat()
            found[suffix] = (told.st_dev, told.st_ino)
    return found


def remove_leftovers(path: Path, names: dict[str, tuple[int, int]]) -> None:
    """Removes the remaining files of a deleted database: its log would be read into the next file of that name. The log
    of another database stays.
    """
    now = names_of(path)
    for suffix in SUFFIXES[1:]:
        if suffix in now and now[suffix] == names.get(suffix):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
