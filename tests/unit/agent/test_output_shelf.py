"""Output that stays on a node: how much, how long, and which goes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.agent import output_shelf
from dgpu.agent.chunks import ChunkWriter, extent
from dgpu.agent.output_shelf import OutputShelf
from dgpu.agent.output_words import OutputSettled, ReadFiles
from dgpu.core.model.ids import LeaseId, TaskId

HOUR_MS = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def shelf(directory: Path, clock: Clock, **limits: int) -> OutputShelf:
    return OutputShelf(directory, clock_ms=clock, **{"min_free_bytes": 0, **limits})


def write(directory: Path, lease: int, text: bytes, cap_bytes: int = 1 << 30) -> None:
    writer = ChunkWriter(directory / str(lease), cap_bytes)
    writer.append(text)
    writer.close()


def keep(store: OutputShelf, lease: int, text: bytes) -> None:
    write(store.directory, lease, text)
    store.keep(OutputSettled(lease_id=LeaseId(lease), task_id=TaskId(1), attempt=1, is_whole=False))


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in (directory / "kept").iterdir() if entry.is_dir())


def test_the_oldest_goes_when_there_is_too_much(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock, max_bytes=250)
    for lease in (1, 2, 3):
        keep(store, lease, b"x" * 100)
        clock.ms += HOUR_MS
        store.tidy()
    assert names(tmp_path) == ["2.1.1", "3.1.1"]


def test_what_is_too_old_goes_by_the_time_the_agent_has_counted(tmp_path, clock, monkeypatch) -> None:
    """Also over a restart, with a wall clock that is forty days ahead for one boot: that counts one day at most."""
    wall_ms = 1_700_000_000_000
    monkeypatch.setattr(output_shelf, "_wall_ms", lambda: wall_ms)
    store = shelf(tmp_path, clock, max_age_ms=50 * HOUR_MS)
    keep(store, 1, b"x")
    clock.ms += 20 * HOUR_MS
    store.tidy()
    wall_ms += 40 * 24 * HOUR_MS
    clock.ms = 0  # a new boot
    again = shelf(tmp_path, clock, max_age_ms=50 * HOUR_MS)
    again.tidy()
    assert names(tmp_path) == ["1.1.1"]
    wall_ms -= 40 * 24 * HOUR_MS
    clock.ms += 7 * HOUR_MS
    again.tidy()
    assert names(tmp_path) == []


def test_a_disk_that_is_nearly_full_gets_the_room_of_kept_output(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock, min_free_bytes=1 << 60)
    keep(store, 1, b"x")
    assert names(tmp_path) == []


def test_output_that_waits_for_a_scheduler_loses_its_middle_before_all_of_it(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock, max_bytes=2_500)
    for lease in (1, 2):
        write(tmp_path, lease, b"x" * 1_600, cap_bytes=1_600)
        is_too_much = store.waits(LeaseId(lease), 1_600)
    assert is_too_much
    store.tidy()
    assert extent(tmp_path / "1") == (0, 1_600)
    assert len(list((tmp_path / "1").glob("0*"))) == 2
    assert len(list((tmp_path / "2").glob("0*"))) == 16
    for lease in (1, 2):
        store.is_settled(LeaseId(lease))
    assert not store.waits(LeaseId(3), 100)


def test_a_damaged_file_of_ages_loses_no_output(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock)
    keep(store, 1, b"x")
    (tmp_path / "kept" / "ages.json").write_text("{")
    again = shelf(tmp_path, clock)
    again.tidy()
    assert names(tmp_path) == ["1.1.1"]


def test_a_lease_number_that_is_used_again_gives_no_output_of_another_task(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock)
    keep(store, 1, b"of task 1")
    write(tmp_path, 1, b"of task 2")

    def read(task: int, run: tuple[int, int] | None) -> bytes:
        ask = ReadFiles(
            ticket=1,
            lease_id=LeaseId(1),
            task_id=TaskId(task),
            attempt=1,
            offset=0,
            tail_bytes=0,
            max_bytes=99,
        )
        return store.read(ask, is_running=False, run=run).data  # type: ignore[arg-type]

    assert read(1, (2, 1)) == b"of task 1"
    assert read(2, (2, 1)) == b"of task 2"
    assert read(3, (2, 1)) == b""


def test_output_that_one_scheduler_has_goes_before_output_that_none_has(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock, max_bytes=250)
    for lease in (1, 2, 3):
        write(tmp_path, lease, b"x" * 100)
        store.waits(LeaseId(lease), 100)
    store.is_received(LeaseId(2))
    store.tidy()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "3"]


def test_a_disk_that_is_nearly_full_gets_the_room_of_output_that_one_scheduler_has(tmp_path, clock) -> None:
    store = shelf(tmp_path, clock, min_free_bytes=1 << 60)
    for lease in (1, 2):
        write(tmp_path, lease, b"x" * 100)
        store.waits(LeaseId(lease), 100)
    store.is_received(LeaseId(1))
    store.tidy()
    assert [entry.name for entry in tmp_path.iterdir()] == ["2"]
