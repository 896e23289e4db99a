from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from dgpu.core.ids import LeaseId, TaskId
from dgpu.service.logstore import AttemptOutput, LogStore

NOW = 1_700_000_000_000


def output(task: int, content: bytes = b"hello\n", attempt: int = 1, offset: int = 0) -> AttemptOutput:
    return AttemptOutput(
        task_id=TaskId(task), attempt=attempt, lease_id=LeaseId(task), offset=offset, content=content
    )


def test_what_was_stored_is_found_again_also_after_a_restart(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1), output(2, b"\0binary\xff" * 1_000, offset=77)], NOW)
    store.close()
    again = LogStore(tmp_path)
    assert again.find(TaskId(1), 1) == output(1)
    assert again.find(TaskId(2), 1) == output(2, b"\0binary\xff" * 1_000, offset=77)
    assert again.find(TaskId(3), 1) is None


def test_without_an_attempt_the_latest_is_found(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1, b"first", 1), output(1, b"second", 2)], NOW)
    found = store.find(TaskId(1))
    assert found is not None
    assert found.content == b"second"


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
    assert all(again.has(TaskId(task), 1) for task in range(1, 6))


def test_a_damaged_index_is_kept_aside_and_made_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append([output(1)], NOW)
    store.close()
    (tmp_path / "index.sqlite").write_bytes(b"this is no database" * 100)
    assert LogStore(tmp_path).find(TaskId(1), 1) == output(1)
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
    assert again.find(TaskId(1), 1) == output(1)
    assert again.find(TaskId(2), 1) is None
    again.append([output(2)], NOW)
    assert again.find(TaskId(2), 1) == output(2)


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
    assert not store.has(TaskId(2), 1)
    store.append([output(2)], NOW)
    assert [store.find(TaskId(task), 1) for task in (1, 2)] == [output(1), output(2)]


def test_the_oldest_pack_goes_when_there_is_too_much(tmp_path: Path) -> None:
    store = LogStore(tmp_path, pack_bytes=1_000, retention_bytes=3_000)
    for task in range(1, 11):
        store.append([output(task, os.urandom(900))], NOW)
    assert not store.has(TaskId(1), 1)
    assert store.find(TaskId(1)) is None
    assert store.has(TaskId(10), 1)
    assert sum(file.stat().st_size for file in tmp_path.glob("pack-*")) <= 4_000


def test_packs_that_are_too_old_go_and_the_one_in_use_stays(tmp_path: Path) -> None:
    store = LogStore(tmp_path, pack_bytes=100, retention_ms=1_000)
    store.append([output(1, os.urandom(200))], NOW)
    store.append([output(2, os.urandom(200))], NOW)
    written_ms = (tmp_path / "pack-00000001.bin").stat().st_mtime_ns // 1_000_000
    store.expire(written_ms + 2_000)
    assert [store.has(TaskId(task), 1) for task in (1, 2)] == [False, True]


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
    assert not store.has(TaskId(1), 1)
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
