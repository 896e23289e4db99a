"""Which directories of ended tasks are kept, and how the others are deleted."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from dgpu.agent import deletion
from dgpu.agent.deletion import empty_trash, throw_away
from dgpu.agent.retention import Limits, Retention

DAY_MS = 86_400_000


def retention(tmp_path: Path, *, boot_id: str = "b1", **limits: int) -> Retention:
    return Retention(
        directory=tmp_path / "tasks",
        ledger=tmp_path / "workdirs.json",
        limits=Limits(**{"max_age_ms": 0, "max_bytes": 0, **limits}),
        boot_id=boot_id,
    )


def made(tmp_path: Path, name: str, size: int = 100_000) -> Path:
    directory = tmp_path / "tasks" / name
    directory.mkdir(parents=True)
    (directory / "file").write_bytes(b"x" * size)
    return directory


def sweep(keeper: Retention, now_ms: int, *in_use: str, older: bool = False) -> list[tuple[str, str]]:
    deleted = keeper.sweep(keeper.names(), frozenset(in_use), now_ms, older=older)
    return [(each.name, each.reason) for each in deleted]


def names(tmp_path: Path) -> set[str]:
    return {entry.name for entry in (tmp_path / "tasks").iterdir()} - {".trash"}


def test_directories_go_by_age(tmp_path) -> None:
    keeper = retention(tmp_path, max_age_ms=7 * DAY_MS)
    made(tmp_path, "task-1.1")
    assert sweep(keeper, 1_000) == []
    made(tmp_path, "task-2.1")
    assert sweep(keeper, 1_000 + 6 * DAY_MS) == []
    assert sweep(keeper, 2_000 + 7 * DAY_MS) == [("task-1.1", "age")]
    assert names(tmp_path) == {"task-2.1"}


def test_the_oldest_go_first_when_they_are_too_large(tmp_path) -> None:
    keeper = retention(tmp_path, max_bytes=250_000)
    for now_ms, name in ((1_000, "task-3.1"), (2_000, "task-1.1")):
        made(tmp_path, name)
        assert sweep(keeper, now_ms) == []
    made(tmp_path, "task-2.1")
    assert sweep(keeper, 3_000) == [("task-3.1", "size")]
    assert names(tmp_path) == {"task-1.1", "task-2.1"}


def test_a_directory_in_use_is_neither_deleted_nor_counted(tmp_path) -> None:
    keeper = retention(tmp_path, max_age_ms=1, max_bytes=1)
    made(tmp_path, "task-1.1")
    (tmp_path / "tasks" / "task-2.1").mkdir()
    assert sweep(keeper, 1_000, "task-1.1", "task-2.1") == []
    assert sweep(keeper, 10 * DAY_MS, "task-1.1", "task-2.1") == []
    assert names(tmp_path) == {"task-1.1", "task-2.1"}
    assert sweep(keeper, 11 * DAY_MS) == [("task-1.1", "size")]
    assert names(tmp_path) == set()


def test_age_counts_through_a_restart_and_not_through_a_reboot(tmp_path) -> None:
    """The wall clock is never asked: a wrong one deletes nothing."""
    made(tmp_path, "task-1.1")
    limits = {"max_age_ms": 7 * DAY_MS}
    sweep(retention(tmp_path, **limits), 1_000)
    assert sweep(retention(tmp_path, **limits), 4 * DAY_MS) == []
    rebooted = retention(tmp_path, boot_id="b2", **limits)
    assert sweep(rebooted, 400 * DAY_MS) == []
    assert sweep(rebooted, 403 * DAY_MS) == []
    assert sweep(rebooted, 404 * DAY_MS) == [("task-1.1", "age")]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"kept": {"task-1.1": 3}}', b'{"kept": 7, "boot_id": "b1"}']
)
def test_a_damaged_ledger_makes_directories_young_again(tmp_path, damage: bytes) -> None:
    made(tmp_path, "task-1.1")
    (tmp_path / "workdirs.json").write_bytes(damage)
    keeper = retention(tmp_path, max_age_ms=DAY_MS)
    assert sweep(keeper, 100 * DAY_MS) == []
    assert names(tmp_path) == {"task-1.1"}


def test_only_our_own_directories_are_touched(tmp_path) -> None:
    keeper = retention(tmp_path, max_age_ms=1)
    for name in ("results", "task-1", "task-1.1", "task-1.1.r2", "task-1.1~1", "17"):
        made(tmp_path, name)
    (tmp_path / "tasks" / "task-9.1").symlink_to(tmp_path)
    (tmp_path / "tasks" / "task-8.1").touch()
    sweep(keeper, 1_000)
    assert {name for name, _ in sweep(keeper, DAY_MS)} == {"task-1.1", "task-1.1.r2", "task-1.1~1"}
    assert names(tmp_path) == {"results", "task-1", "17", "task-9.1", "task-8.1"}
    sweep(keeper, 2 * DAY_MS, older=True)
    assert sweep(keeper, 3 * DAY_MS, older=True) == [("17", "age")]


def thrown(tmp_path: Path, name: str) -> int:
    """Returns what could not be deleted."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert throw_away(fd, name)
        return empty_trash(fd)
    finally:
        os.close(fd)


def test_deleting_follows_no_link(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "sub" / "link").symlink_to(outside)
    assert thrown(tmp_path, "tree") == 0
    assert not tree.exists()
    assert (outside / "precious").exists()


def test_a_very_deep_tree_is_deleted(tmp_path) -> None:
    """A recursive deletion ends with a RecursionError here, or without descriptors."""
    where = Path.cwd()
    (tmp_path / "tree").mkdir()
    os.chdir(tmp_path / "tree")
    try:
        for _ in range(3_000):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(where)
    assert thrown(tmp_path, "tree") == 0
    assert list((tmp_path / deletion.TRASH).iterdir()) == []


def test_directories_without_permissions_are_deleted(tmp_path) -> None:
    closed = tmp_path / "tree" / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner" / "file").touch()
    (closed / "inner").chmod(0)
    closed.chmod(0)
    assert thrown(tmp_path, "tree") == 0
    assert list((tmp_path / deletion.TRASH).iterdir()) == []


def swap_for_links(tree_fd: int, outside: Path, done: threading.Event) -> None:
    while not done.is_set():
        for name in ("a", "b"):
            with contextlib.suppress(OSError):
                os.rename(name, "moved", src_dir_fd=tree_fd, dst_dir_fd=tree_fd)
                os.symlink(outside, name, dir_fd=tree_fd)
                os.unlink(name, dir_fd=tree_fd)
                os.rename("moved", name, src_dir_fd=tree_fd, dst_dir_fd=tree_fd)


def test_a_tree_that_is_swapped_for_links_meanwhile_is_all_that_goes(tmp_path) -> None:
    """Of a process that outlived its task."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(50):
        (outside / f"precious{number}").touch()
    for _ in range(30):
        tree = tmp_path / "tree"
        for name in ("a", "b"):
            for number in range(20):
                (tree / name / f"sub{number}").mkdir(parents=True)
        tree_fd = os.open(tree, os.O_PATH)
        done = threading.Event()
        swapping = threading.Thread(target=swap_for_links, args=(tree_fd, outside, done))
        swapping.start()
        try:
            thrown(tmp_path, "tree")
        finally:
            done.set()
            swapping.join()
            os.close(tree_fd)
    assert len(list(outside.iterdir())) == 50


def test_temporary_directories_go_with_the_end_of_their_run(tmp_path) -> None:
    keeper = retention(tmp_path)
    for name in ("task-1.1", "task-1.1.tmp", "task-2.1.tmp"):
        made(tmp_path, name)
    assert sweep(keeper, 1_000, "task-2.1") == [("task-1.1.tmp", "temporary")]
    assert names(tmp_path) >= {"task-1.1", "task-2.1.tmp"}
