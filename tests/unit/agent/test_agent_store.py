"""What a keeper and an agent must know again after a crash."""

from __future__ import annotations

import errno
import os

import pytest

from dgpu.agent import store
from dgpu.agent.epoch import Joined, JoinedFile, NotJoined
from dgpu.agent.store import LeaseLog
from dgpu.agent.workdirs import WorkDirs


def record(lease: int) -> dict:
    return {"lease": lease, "task": lease, "attempt": 1, "node": "n", "gpus": [], "started_ms": 1}


def test_begun_and_ended_leases_are_known_after_a_crash(tmp_path) -> None:
    log = LeaseLog(tmp_path / "leases.log")
    log.begin([record(1), record(2), record(3)])
    log.end({2: {"exit_code": 5}})
    log.forget([3])
    assert LeaseLog(tmp_path / "leases.log").live == {1: record(1), 2: record(2) | {"end": {"exit_code": 5}}}


@pytest.mark.parametrize("tail", [b'{"begin":[{"lea', b"\0\0\0\0", b"[]\n", b"\xff\xfe\n"])
def test_a_line_that_was_cut_is_passed_over(tmp_path, tail) -> None:
    log = LeaseLog(tmp_path / "leases.log")
    log.begin([record(1)])
    log.close()
    with (tmp_path / "leases.log").open("ab") as file:
        file.write(tail)
    assert LeaseLog(tmp_path / "leases.log").live == {1: record(1)}


def test_without_room_for_the_record_nothing_may_be_started(tmp_path, monkeypatch) -> None:
    log = LeaseLog(tmp_path / "leases.log")

    def full(fd: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        log.begin([record(1)])
    assert log.live == {}


def test_the_file_stays_small_however_many_leases_pass_through(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(store, "_COMPACT_BYTES", 5_000)
    log = LeaseLog(tmp_path / "leases.log")
    log.begin([record(1)])
    for lease in range(2, 500):
        log.begin([record(lease)])
        log.end({lease: {"exit_code": 0}})
        log.forget([lease])
    assert (tmp_path / "leases.log").stat().st_size < 6_000
    assert LeaseLog(tmp_path / "leases.log").live == {1: record(1)}


def test_the_highest_epoch_is_remembered_and_never_goes_back(tmp_path) -> None:
    file = JoinedFile(tmp_path)
    assert file.joined == Joined()
    file.save(Joined(epoch=7))
    with pytest.raises(NotJoined, match="epoch 3 is older than 7"):
        file.save(Joined(epoch=3))
    assert JoinedFile(tmp_path).joined == Joined(epoch=7)


def test_the_epoch_of_an_earlier_version_is_taken_over(tmp_path) -> None:
    (tmp_path / "epoch").write_text("7\n")
    file = JoinedFile(tmp_path)
    assert file.joined == Joined(epoch=7)
    joined = Joined(cluster_id="c", epoch=8, nonce="n")
    file.save(joined)
    assert JoinedFile(tmp_path).joined == joined
    assert not (tmp_path / "epoch").exists(), "one file to remove when the node is to move"


@pytest.mark.parametrize(
    ("welcome", "why"),
    [
        (
            Joined(cluster_id="other", epoch=9, nonce="m"),
            "belongs to cluster ours, the scheduler to cluster other",
        ),
        (Joined(epoch=9), "the scheduler to a cluster without an id"),
        (Joined(cluster_id="ours", epoch=7, nonce="m"), "epoch 7 is older than 8"),
        (Joined(cluster_id="ours", epoch=8, nonce="m"), "epoch 8 was begun by two schedulers"),
    ],
)
def test_a_node_that_has_joined_refuses_other_clusters_and_other_lines_of_epochs(
    tmp_path, welcome, why
) -> None:
    """Nodes of one host share the file: what one of them has joined binds the others too."""
    file = JoinedFile(tmp_path)
    file.save(Joined(cluster_id="ours", epoch=8, nonce="n"))
    with pytest.raises(NotJoined, match=why):
        file.save(welcome)
    file.save(Joined(cluster_id="ours", epoch=8, nonce="n"))
    file.save(Joined(cluster_id="ours", epoch=9, nonce="m"))


def test_a_work_directory_that_was_tampered_with_is_not_used_again(tmp_path) -> None:
    """A task can swap its directory for a link, or close it; the next task must not follow."""
    work_dirs = WorkDirs(tmp_path)
    work_dirs.take(1, "task-1.1")
    work_dirs.give_back(1)
    (tmp_path / "task-1.1").rmdir()
    (tmp_path / "task-1.1").symlink_to("/")
    assert work_dirs.take(2, "task-2.1") == f"{tmp_path}/task-2.1"
    assert (tmp_path / "task-1.1").is_symlink()
    (tmp_path / "task-2.1").chmod(0o500)
    work_dirs.give_back(2)
    assert work_dirs.take(3, "task-3.1") == f"{tmp_path}/task-3.1"
    assert (tmp_path / "task-2.1").is_dir()


def test_a_work_directory_with_files_is_never_given_to_another_task(tmp_path) -> None:
    """Neither by a rename nor by the removal of spare ones: the files are the results of an ended task."""
    work_dirs = WorkDirs(tmp_path)
    for lease in range(1, 101):
        work_dirs.take(lease, f"task-{lease}.1")
        (tmp_path / f"task-{lease}.1" / "result").touch()
    for lease in range(1, 101):
        work_dirs.give_back(lease)
    work_dirs.take(101, "task-101.1")
    assert list((tmp_path / "task-101.1").iterdir()) == []
    assert len(list(tmp_path.glob("task-*.1/result"))) == 100


def test_empty_work_directories_do_not_accumulate(tmp_path) -> None:
    work_dirs = WorkDirs(tmp_path)
    for lease in range(1, 101):
        work_dirs.take(lease, f"task-{lease}.1")
    for lease in range(1, 101):
        work_dirs.give_back(lease)
    assert len(list(tmp_path.iterdir())) == 64


def test_a_work_directory_in_use_again_is_not_spare(tmp_path) -> None:
    """Two clusters can use one name: the directory of the second task must not be moved to a third one."""
    work_dirs = WorkDirs(tmp_path)
    for lease, name in ((1, "task-1.1"), (2, "task-2.1")):
        work_dirs.take(lease, name)
    for lease in (1, 2):
        work_dirs.give_back(lease)
    work_dirs.take(3, "task-1.1")
    work_dirs.take(4, "task-4.1")
    assert (tmp_path / "task-1.1").is_dir()


def test_a_work_directory_of_another_cluster_is_set_aside(tmp_path) -> None:
    """Task numbers begin again with a new state directory; the files of the old task stay its own."""
    old = WorkDirs(tmp_path).take(1, "task-1.1")
    (tmp_path / "task-1.1" / "checkpoint").touch()
    assert WorkDirs(tmp_path).take(1, "task-1.1") == old
    assert list((tmp_path / "task-1.1").iterdir()) == []
    assert (tmp_path / "task-1.1~1" / "checkpoint").exists()


def test_a_work_directory_with_a_process_that_could_not_be_killed_is_not_used_again(tmp_path) -> None:
    work_dirs = WorkDirs(tmp_path)
    work_dirs.take(1, "task-1.1")
    work_dirs.give_back(1, reusable=False)
    work_dirs.take(2, "task-2.1")
    assert (tmp_path / "task-1.1").is_dir()
