"""How SQLite files are opened: private, of the right version, and never closed half-way."""

from __future__ import annotations

import contextlib
import sqlite3
import stat

import pytest

from dgpu.service.sqlite_files import (
    FileUnusable,
    is_empty,
    make_tables,
    open_to_read,
    open_to_write,
    open_version_to_read,
    use_log,
)

VERSION = 3


def prepare(connection: sqlite3.Connection) -> None:
    is_new = is_empty(connection, VERSION)
    use_log(connection)
    if is_new:
        make_tables(connection, "CREATE TABLE words (word TEXT);", VERSION)


def test_nobody_else_reads_a_new_file(tmp_path) -> None:
    path = tmp_path / "f.sqlite"
    with contextlib.closing(open_to_write(path, prepare)) as connection:
        connection.execute("INSERT INTO words VALUES ('a')")
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {"f.sqlite": 0o600, "f.sqlite-wal": 0o600, "f.sqlite-shm": 0o600}


def test_a_file_of_another_version_is_refused_and_stays_as_it_is(tmp_path) -> None:
    path = tmp_path / "f.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 4")
    before = path.read_bytes()
    with pytest.raises(FileUnusable, match="version 4, this program writes 3"):
        open_to_write(path, prepare)
    assert path.read_bytes() == before
    assert open_version_to_read(path, VERSION) is None


def test_a_damaged_file_is_told_from_one_that_cannot_be_opened(tmp_path) -> None:
    """A damaged file is replaced. A file behind a lock or on a full disk must stay."""
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"not a database at all" * 100)
    with pytest.raises(FileUnusable, match="not a database"):
        open_to_write(damaged, prepare)

    locked = tmp_path / "locked.sqlite"
    with contextlib.closing(sqlite3.connect(locked, isolation_level=None)) as owner:
        owner.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            open_to_write(locked, prepare, timeout_seconds=0)

    with pytest.raises(sqlite3.OperationalError, match="No such file or directory"):
        open_to_write(tmp_path / "no folder" / "f.sqlite", prepare)


def test_a_reader_neither_writes_nor_creates(tmp_path) -> None:
    path = tmp_path / "a?b%20#.sqlite"  # a name that is no URI
    with pytest.raises(sqlite3.OperationalError):
        open_version_to_read(path, VERSION)
    assert not path.exists()
    open_to_write(path, prepare).close()
    with contextlib.closing(open_to_read(path)) as connection:
        assert connection.execute("SELECT * FROM words").fetchall() == []
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("INSERT INTO words VALUES ('a')")


def test_changes_begin_a_transaction_where_asked(tmp_path) -> None:
    path = tmp_path / "f.sqlite"
    with (
        contextlib.closing(open_to_write(path, prepare, begins_by_itself=True)) as writer,
        contextlib.closing(open_to_read(path)) as reader,
    ):
        writer.execute("INSERT INTO words VALUES ('a')")
        assert reader.execute("SELECT count(*) FROM words").fetchone() == (0,)
        writer.commit()
        assert reader.execute("SELECT count(*) FROM words").fetchone() == (1,)
