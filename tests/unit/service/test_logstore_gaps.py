"""Parts that arrive after the last part of an attempt."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from dgpu.core.model.ids import TaskId
from dgpu.service.task_output.store import LogStore
from output_parts import NOW, is_found, part, read


@pytest.mark.parametrize("reopens", [False, True])
def test_parts_behind_the_last_one_fill_gaps(tmp_path: Path, *, reopens: bool) -> None:
    """A scheduler that stores more than before is sent all of it again, and the node then deletes its files."""
    written = os.urandom(100)
    store = LogStore(tmp_path)
    store.append(
        [part(1, written[:10]), part(1, written[80:], offset=80, end=100, kept_until_ms=NOW + 9)], NOW
    )
    if reopens:
        store.close()
        store = LogStore(tmp_path)
    whole = [part(1, written[:60]), part(1, written[60:], offset=60, end=100)]
    store.append(whole, NOW)
    size = (tmp_path / "pack-00000001.bin").stat().st_size
    store.append(whole, NOW)
    assert (tmp_path / "pack-00000001.bin").stat().st_size == size, "nothing is stored twice"
    for again in (store, LogStore(tmp_path)):
        found = again.find(TaskId(1), 1)
        assert found is not None
        assert (found.end, found.missing, found.kept_until_ms) == (100, (), 0)
        assert read(again, found) == {
            0: written[:10],
            10: written[10:60],
            60: written[60:80],
            80: written[80:],
        }
    assert _last_rows(tmp_path) == [(80, 100, 100)]


def test_a_gap_is_filled_by_parts_of_one_batch(tmp_path: Path) -> None:
    """All that arrives during a sync is one batch: perhaps both times that an agent sent its output."""
    store = LogStore(tmp_path)
    store.append(
        [
            part(1, b"head"),
            part(1, b"tail", offset=20, end=24, kept_until_ms=NOW + 9),
            part(1, b"head and middle"),
            part(1, b"more tail", offset=15, end=24),
        ],
        NOW,
    )
    found = store.find(TaskId(1), 1)
    assert found is not None
    assert read(store, found) == {0: b"head", 4: b" and middle", 15: b"more ", 20: b"tail"}
    assert _last_rows(tmp_path) == [(20, 24, 24)]


def test_parts_behind_the_end_of_an_attempt_are_not_stored(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([part(1, b"tail", offset=6, end=10)], NOW)
    store.append([part(1, b"123456tail+", end=11), part(1, b"more", offset=11, end=15)], NOW)
    found = store.find(TaskId(1), 1)
    assert found is not None
    assert found.end == 10
    assert read(store, found) == {0: b"123456", 6: b"tail"}


def test_a_gap_in_front_of_the_end_is_filled_without_losing_the_end(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([part(1, b"head"), part(1, b"head", end=10)], NOW)
    store.append([part(1, b"middle", offset=4, end=10)], NOW)
    found = store.find(TaskId(1), 1)
    assert found is not None
    assert (found.end, found.ranges) == (10, ((0, 10),))


def test_output_of_the_first_format_is_completed(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([part(7, b"tail", offset=6, end=10)], NOW)
    store.close()
    index = sqlite3.connect(tmp_path / "index.sqlite")
    index.execute("INSERT INTO entries SELECT task_id, attempt, pack, place FROM parts")
    index.execute("DELETE FROM parts")
    index.commit()
    again = LogStore(tmp_path)
    again.append([part(7, b"123456tail", end=10)], NOW)
    assert is_found(again, part(7, b"123456tail", end=10))


def _last_rows(folder: Path) -> list[tuple[int, int, int]]:
    """Offset, end and total of the rows that tell the end of an attempt."""
    index = sqlite3.connect(folder / "index.sqlite")
    return index.execute("SELECT offset, end, total FROM parts WHERE total IS NOT NULL").fetchall()
