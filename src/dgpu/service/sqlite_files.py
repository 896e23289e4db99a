"""What the SQLite files of the service have in common: writing all or nothing, and what stands under their names."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = ("", "-wal", "-shm", "-journal")


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
    """The files under the name now, by suffix: device and inode."""
    found = {}
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            told = path.with_name(path.name + suffix).stat()
            found[suffix] = (told.st_dev, told.st_ino)
    return found


def remove_leftovers(path: Path, names: dict[str, tuple[int, int]]) -> None:
    """Of a file that went without them: its log would be read into the next one of that name. Another's log stays."""
    now = names_of(path)
    for suffix in SUFFIXES[1:]:
        if suffix in now and now[suffix] == names.get(suffix):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
