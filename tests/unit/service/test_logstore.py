from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import struct
import time
import zlib
from pathlib import Path

import pytest

from dgpu.core.model.ids import TaskId
from dgpu.core.model.wall_span import WallSpan
from dgpu.service.task_output.store import LogStore
from dgpu.wire.wall_time import SHOWN
from output_parts import NOW, is_found, is_stored, output, part, read

DAY_MS = 86_400_000


def test_what_was_stored_is_found_again_also_after_a_restart(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1), output(2, b"\0binary\xff" * 1_000, offset=77)], NOW)
    store.close()
    again = LogStore(tmp_path)
    assert is_found(again, output(1))
    assert is_found(again, output(2, b"\0binary\xff" * 1_000, offset=77))
    assert again.find(TaskId(3), 1) is None


def test_without_an_attempt_the_latest_is_found(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1, b"first", 1), output(1, b"second", 2)], NOW)
    found = store.find(TaskId(1))
    assert found is not None
    assert read(store, found) == {0: b"second"}


def test_the_same_attempt_is_stored_once(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1)], NOW)
    size = (tmp_path / "pack-00000001.bin").stat().st_size
    store.append([output(1)], NOW)
    assert (tmp_path / "pack-00000001.bin").stat().st_size == size


def test_a_lost_index_is_made_again_from_the_packs(tmp_path: Path) -> None:
    store = LogStore(tmp_path, pack_bytes=100)
    for task in range(1, 6):
        store.append([output(task, os.urandom(80))], NOW)
    store.close()
    for file in tmp_path.glob("index*"):
        file.unlink()
    again = LogStore(tmp_path, pack_bytes=100)
    assert all(is_stored(again, task) for task in range(1, 6))


def test_a_damaged_index_is_kept_aside_and_made_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1)], NOW)
    store.close()
    (tmp_path / "index.sqlite").write_bytes(b"this is no database" * 100)
    assert is_found(LogStore(tmp_path), output(1))
    assert len(list(tmp_path.glob("index.damaged-*"))) == 1


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_torn_entry_is_cut_and_what_was_before_it_stays(tmp_path: Path, kept: int) -> None:
    store = LogStore(tmp_path)
    store.append([output(1)], NOW)
    pack = tmp_path / "pack-00000001.bin"
    whole = pack.stat().st_size
    store.append([output(2)], NOW)
    store.close()
    for file in tmp_path.glob("index*"):
        file.unlink()
    os.truncate(pack, min(whole + kept, pack.stat().st_size - 1))
    again = LogStore(tmp_path)
    assert is_found(again, output(1))
    assert again.find(TaskId(2), 1) is None
    again.append([output(2)], NOW)
    assert is_found(again, output(2))


def test_a_full_disk_leaves_what_was_stored_and_the_next_try_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(tmp_path)
    store.append([output(1)], NOW)
    real = os.pwrite

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        store.append([output(2)], NOW)
    monkeypatch.setattr(os, "pwrite", real)
    assert not is_stored(store, 2)
    store.append([output(2)], NOW)
    assert is_found(store, output(1))
    assert is_found(store, output(2))


def test_the_oldest_pack_goes_when_there_is_too_much(tmp_path: Path) -> None:
    store = LogStore(tmp_path, pack_bytes=1_000, retention_bytes=3_000)
    for task in range(1, 11):
        store.append([output(task, os.urandom(900))], NOW)
    assert not is_stored(store, 1)
    assert store.find(TaskId(1)) is None
    assert is_stored(store, 10)
    assert sum(file.stat().st_size for file in tmp_path.glob("pack-*")) <= 4_000


def test_packs_that_are_too_old_go_and_the_one_in_use_stays(tmp_path: Path) -> None:
    store = LogStore(tmp_path, pack_bytes=100, retention_ms=1_000)
    store.append([output(1, os.urandom(200))], NOW)
    store.append([output(2, os.urandom(200))], NOW)
    written_ms = (tmp_path / "pack-00000001.bin").stat().st_mtime_ns // 1_000_000
    store.expire(written_ms + 2_000)
    assert [is_stored(store, task) for task in (1, 2)] == [False, True]


@pytest.mark.parametrize("jump_ms", [-3_650 * DAY_MS, -40 * DAY_MS, 40 * DAY_MS, 3_650 * DAY_MS])
def test_a_wall_clock_that_jumps_ages_no_pack(tmp_path: Path, jump_ms: int) -> None:
    """The times of files come from the wall clock, ages from the time of the journal."""
    store = LogStore(tmp_path, pack_bytes=100)
    at = time.time_ns() // 1_000_000 + jump_ms  # the time of the journal is another one than the wall clock's
    for task in (1, 2, 3):
        store.append([output(task, os.urandom(200))], at)
    store.expire(at + 29 * DAY_MS)
    assert [is_stored(store, task) for task in (1, 2, 3)] == [True, True, True]
    store.expire(at + 31 * DAY_MS)
    assert [is_stored(store, task) for task in (1, 2, 3)] == [False, False, True], "the last one is in use"


def test_packs_of_earlier_versions_are_kept_when_the_journal_is_ahead_of_the_wall_clock(
    tmp_path: Path,
) -> None:
    store = LogStore(tmp_path, pack_bytes=100)
    wall_ms = time.time_ns() // 1_000_000
    for task in (1, 2):
        store.append([output(task, os.urandom(200))], wall_ms)
    at = wall_ms + 40 * DAY_MS
    SHOWN.follow({at: WallSpan(boot_id="b", boot_offset_ms=0, wall_offset_ms=-40 * DAY_MS)})
    try:
        store.expire(at)
    finally:
        SHOWN.follow({})
    assert is_stored(store, 1)


def test_the_store_knows_since_when_it_has_all(tmp_path: Path) -> None:
    """Who finds nothing of a later attempt knows that nothing was written."""
    store = LogStore(tmp_path, pack_bytes=100, retention_ms=1_000)
    began_ms = store.whole_since_ms
    store.append([output(1, os.urandom(200))], NOW)
    store.append([output(2, os.urandom(200))], NOW)
    assert store.whole_since_ms == began_ms
    pack = tmp_path / "pack-00000001.bin"
    os.utime(pack, ns=((began_ms + 50) * 1_000_000, (began_ms + 50) * 1_000_000))
    store.expire(began_ms + 2_000)
    assert not is_stored(store, 1)
    assert store.whole_since_ms == began_ms + 50
    store.close()
    assert LogStore(tmp_path).whole_since_ms == began_ms + 50


@pytest.mark.parametrize("pattern", ["pack-*", "*"])
def test_a_store_whose_files_were_deleted_does_not_claim_to_have_all(tmp_path: Path, pattern: str) -> None:
    store = LogStore(tmp_path)
    store.append([output(1)], NOW)
    ended_ms = store.whole_since_ms + 1
    store.close()
    while time.time_ns() // 1_000_000 <= ended_ms:
        time.sleep(0.001)
    for file in tmp_path.glob(pattern):
        file.unlink()
    assert LogStore(tmp_path).whole_since_ms > ended_ms


def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "logs")
    store.append([output(1)], NOW)
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "logs").iterdir()} == {0o600}


def test_an_attempt_in_parts_is_found_when_its_last_part_is_there(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([part(1, b"head"), part(1, b"tail", offset=100)], NOW)
    assert store.find(TaskId(1), 1) is None
    store.append([part(1, b"!", offset=104, end=105, kept_until_ms=NOW + 9)], NOW)
    for again in (store, LogStore(tmp_path)):
        found = again.find(TaskId(1), 1)
        assert found is not None
        assert (found.node_id, found.lease_id, found.end) == ("n1", (3 << 32) + 1, 105)
        assert (found.ranges, found.missing) == (((0, 4), (100, 105)), ((4, 100),))
        assert found.kept_until_ms == NOW + 9
        assert read(again, found) == {0: b"head", 100: b"tail", 104: b"!"}
        assert again.piece(found, 102) == (102, b"il")


def test_an_agent_that_begins_anew_stores_nothing_twice(tmp_path: Path) -> None:
    """The pieces of the second time begin and end elsewhere."""
    store = LogStore(tmp_path)
    store.append([part(1, b"abcdef"), part(1, b"xyz", offset=20)], NOW)
    store.append([part(1, b"abcd"), part(1, b"efgh", offset=4)], NOW)
    store.append([part(1, b"wxyz", offset=19, end=23)], NOW)
    found = store.find(TaskId(1), 1)
    assert found is not None
    assert read(store, found) == {0: b"abcdef", 6: b"gh", 19: b"w", 20: b"xyz"}
    assert (found.ranges, found.end) == (((0, 8), (19, 23)), 23)


def test_the_end_of_an_attempt_is_known_though_all_its_bytes_were_deleted_on_its_node(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([part(1, b"", offset=500, end=500)], NOW)
    found = store.find(TaskId(1), 1)
    assert found is not None
    assert found.missing == ((0, 500),)
    assert store.piece(found, 0) is None


def test_rows_of_the_index_have_a_bound(tmp_path: Path) -> None:
    """A million tasks that write one line each fit into few bytes, but not into few rows."""
    store = LogStore(tmp_path, max_rows=160)
    for first in range(1, 2_001, 20):
        store.append([output(task) for task in range(first, first + 20)], NOW)
    rows = sqlite3.connect(tmp_path / "index.sqlite").execute("SELECT count(*) FROM parts").fetchone()[0]
    assert 100 <= rows <= 160 + 20
    assert is_stored(store, 2_000)
    assert not is_stored(store, 1)
    store.close()
    again = LogStore(tmp_path, max_rows=160)
    again.append([output(3_000)], NOW)
    assert is_stored(again, 2_000)


def test_a_pack_of_the_first_format_is_read(tmp_path: Path) -> None:
    """With its index, and without."""
    content = b"of before\n"
    packed = zlib.compress(content, 1)
    front = struct.pack("<4sQQIQIII", b"DGO1", 7, 3, 1, 50, len(content), len(packed), zlib.crc32(packed))
    (tmp_path / "pack-00000001.bin").write_bytes(front + struct.pack("<I", zlib.crc32(front)) + packed)
    LogStore(tmp_path).close()
    index = sqlite3.connect(tmp_path / "index.sqlite")
    index.execute("DELETE FROM parts")
    index.execute("INSERT INTO entries VALUES (7, 1, 1, 0)")
    index.commit()
    with_index = LogStore(tmp_path)
    for store in (with_index, None):
        if store is None:
            with_index.close()
            for file in tmp_path.glob("index*"):
                file.unlink()
            store = LogStore(tmp_path)  # noqa: PLW2901 - the second round
        assert is_found(store, output(7, content, offset=50))
        found = store.find(TaskId(7))
        assert found is not None
        assert found.missing == ((0, 50),)
        assert is_stored(store, 7)


def test_a_deleted_folder_is_made_again_with_the_output_that_is_still_open(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "logs", pack_bytes=1)
    notes: list[str] = []
    store.report = notes.append
    lost, kept, later = output(1, b"lost"), output(2, b"kept"), output(3, b"later")
    store.append([lost], NOW)
    store.append([kept], NOW)
    shutil.rmtree(tmp_path / "logs")
    store.append([later], NOW)
    (note,) = notes
    assert "were restored" in note
    assert "bytes of stored output are lost" in note
    for opened in (store, LogStore(tmp_path / "logs")):
        assert is_found(opened, kept)
        assert is_found(opened, later)
        assert opened.find(TaskId(1)) is None, "it is named as lost, not read in vain"
        assert opened.whole_since_ms > NOW
    store.mend()
    assert len(notes) == 1


def test_nothing_is_lost_with_the_index_alone(tmp_path: Path) -> None:
    store = LogStore(tmp_path, pack_bytes=1)
    notes: list[str] = []
    store.report = notes.append
    kept = [output(1), output(2)]
    for each in kept:
        store.append([each], NOW)
    since_ms = store.whole_since_ms
    for file in tmp_path.glob("index.sqlite*"):
        file.unlink()
    store.mend()
    (note,) = notes
    assert "are lost" not in note
    store.append([output(3)], NOW)
    store.close()
    again = LogStore(tmp_path)
    assert all(is_found(again, each) for each in [*kept, output(3)])
    assert again.whole_since_ms == since_ms


def test_while_the_folder_cannot_be_made_again_nothing_counts_as_stored(tmp_path: Path) -> None:
    """The node keeps its output until it is."""
    store = LogStore(tmp_path / "logs")
    store.append([output(1)], NOW)
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "logs").write_text("not a folder")
    with pytest.raises(OSError, match="exists"):
        store.append([output(2)], NOW)
    (tmp_path / "logs").unlink()
    store.append([output(2)], NOW)
    assert is_found(store, output(1))
    assert is_found(store, output(2))


def test_an_index_that_nothing_was_stored_in_is_made_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "logs")
    shutil.rmtree(tmp_path / "logs")
    store.mend()
    store.append([output(1)], NOW)
    assert is_found(LogStore(tmp_path / "logs"), output(1))


@pytest.mark.parametrize("reopens", [False, True])
def test_an_attempt_that_was_made_once_more_after_a_loss_has_the_output_of_its_last_run(
    tmp_path: Path, *, reopens: bool
) -> None:
    """A rewound journal gives the number of an attempt once more, under a lease of a later epoch."""
    store = LogStore(tmp_path)
    first = part(7, b"0123456789", end=10)
    store.append([part(7, b"01"), part(7, b"89", offset=8, end=10)], NOW)
    seen = store.find(TaskId(7), 1)
    store.append([part(7, b"ab", epoch=5)], NOW)
    assert store.find(TaskId(7), 1) is None, "until its last part is there"
    assert seen is not None
    assert store.piece(seen, 0) is None, "a reader gets no mixture"
    store.append([part(7, b"cd", offset=2, end=4, epoch=5)], NOW)
    store.append([first], NOW)  # its node still has it and sends it again
    store.append([part(8, b"old", end=3), part(8, b"new", end=3, epoch=5)], NOW)
    if reopens:  # with an index that is made again
        store.close()
        for path in tmp_path.glob("index.sqlite*"):
            path.unlink()
        store = LogStore(tmp_path)
    stored = store.find(TaskId(7), 1)
    assert stored is not None
    assert (stored.lease_id, stored.end) == ((5 << 32) + 7, 4)
    assert read(store, stored) == {0: b"ab", 2: b"cd"}
    assert is_found(store, part(8, b"new", end=3, epoch=5))
    store.close()
