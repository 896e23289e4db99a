"""Which parts of output travel between two schedulers, and whether they arrive as they were."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dgpu.core.model.ids import TaskId
from dgpu.service.copies import stock
from dgpu.service.copies.words import Entry
from dgpu.service.task_output.store import LogStore
from output_parts import NOW, is_found, output, part, read


@pytest.fixture
def stores(tmp_path: Path):
    pair = LogStore(tmp_path / "a"), LogStore(tmp_path / "b")
    yield pair
    for store in pair:
        store.close()


def copy(source: LogStore, target: LogStore) -> int:
    """Everything that the target lacks. Returns the number of messages."""
    messages = 0
    before = stock.FIRST_PAGE
    while before is not None:
        page = stock.page(source, before)
        while wanted := stock.lacking(target, page.runs):
            target.append(stock.unpacked(stock.entries(source, wanted)), NOW)
            messages += 1
        before = page.before
    return messages


def test_a_store_gets_what_it_lacks_and_nothing_twice(stores, monkeypatch) -> None:
    monkeypatch.setattr(stock, "PAGE_RUNS", 3)
    source, target = stores
    parts = [output(task, b"%d" % task * 50) for task in range(1, 9)]
    source.append(parts, NOW)
    target.append(parts[:2], NOW)
    assert copy(source, target) == 2  # pages 8 to 6 and 5 to 3
    assert all(is_found(target, each) for each in parts)
    assert copy(source, target) == copy(target, source) == 0


def test_large_output_travels_in_several_messages(stores, monkeypatch) -> None:
    monkeypatch.setattr(stock, "ENTRIES_BYTES", 100)
    source, target = stores
    pieces = [bytes(range(number, number + 90)) for number in range(5)]
    source.append([part(1, piece, offset=90 * place) for place, piece in enumerate(pieces)], NOW)
    source.append([part(1, b"", offset=450, end=450)], NOW)
    assert copy(source, target) > 1
    stored = target.find(TaskId(1), 1)
    assert stored is not None
    assert stored.missing == ()
    assert b"".join(read(target, stored).values()) == b"".join(pieces)


def test_gaps_stay_gaps_until_the_other_scheduler_can_fill_them(stores) -> None:
    source, target = stores
    source.append([part(1, b"head"), part(1, b"tail", offset=96, end=100, kept_until_ms=NOW)], NOW)
    copy(source, target)
    assert target.find(TaskId(1), 1) == source.find(TaskId(1), 1)
    source.append([part(1, b"-" * 92, offset=4)], NOW)
    assert copy(source, target) == 1
    stored = target.find(TaskId(1), 1)
    assert stored is not None
    assert stored.missing == ()


def test_output_of_a_repeated_attempt_replaces_the_earlier_one(stores) -> None:
    """After an accepted loss of groups, an attempt may run again under a later lease."""
    source, target = stores
    source.append([part(1, b"later", end=5, epoch=4)], NOW)
    target.append([part(1, b"earlier", end=7, epoch=3)], NOW)
    assert copy(target, source) == 0
    copy(source, target)
    assert is_found(target, part(1, b"later", end=5, epoch=4))


def test_a_run_whose_last_part_is_missing_is_not_offered(stores) -> None:
    source, target = stores
    source.append([part(1, b"head")], NOW)
    assert copy(source, target) == 0


def test_a_changed_part_is_refused(stores) -> None:
    source, target = stores
    source.append([output(1)], NOW)
    (entry,) = stock.entries(source, stock.lacking(target, stock.page(source, stock.FIRST_PAGE).runs))
    with pytest.raises(stock.DamagedEntry):
        stock.unpacked([msgspec.structs.replace(entry, content=entry.content[:-1] + b"x")])
    with pytest.raises(stock.DamagedEntry):
        stock.unpacked([Entry(b"", b"")])
