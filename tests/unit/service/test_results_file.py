"""The file of results of function calls: bounded by time and by size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dgpu.core.events import CallReturned
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.service.results.file import RESULTS_NAME, ResultLimits, ResultReader, ResultWriter

LIMITS = ResultLimits(ttl_ms=1_000, max_bytes=4_000)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ResultWriter]:
    writer = ResultWriter(tmp_path / RESULTS_NAME, LIMITS)
    yield writer
    writer.close()


def returned(number: int, *, at: int = 0, size: int = 872) -> CallReturned:
    """1,000 bytes with its row."""
    result = bytes([number]) * size
    return CallReturned(at=at, task_id=TaskId(number), lease_id=LeaseId(number), result=result, size=size)


def kept(tmp_path: Path) -> list[int]:
    reader = ResultReader(tmp_path / RESULTS_NAME)
    found = sorted(reader.find([TaskId(number) for number in range(1, 10)]))
    reader.close()
    return found


def test_the_oldest_results_go_first_when_there_are_too_many_bytes(
    tmp_path: Path, writer: ResultWriter
) -> None:
    for number in (1, 2, 3, 4):
        writer.note(returned(number, at=number))
    writer.commit(now_ms=10)
    assert kept(tmp_path) == [1, 2, 3, 4]
    writer.note(returned(5, at=5))
    writer.commit(now_ms=10)
    assert kept(tmp_path) == [2, 3, 4, 5]


def test_results_that_are_noted_again_count_once(tmp_path: Path, writer: ResultWriter) -> None:
    """After a restart, the last groups of the journal are read again. No result may go because of that."""
    for _ in range(5):
        for number in (1, 2, 3):
            writer.note(returned(number, at=number))
        writer.commit(now_ms=10)
    assert kept(tmp_path) == [1, 2, 3]


def test_old_results_go_without_new_ones(tmp_path: Path, writer: ResultWriter) -> None:
    writer.note(returned(1, at=100))
    writer.note(returned(2, at=200))
    writer.commit(now_ms=200)
    writer.trim(now_ms=1_150)
    assert kept(tmp_path) == [2]
