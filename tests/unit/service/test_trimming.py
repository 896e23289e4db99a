"""When the leader stores a snapshot in the engine, and what it deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpu.core.replay import replay
from dgpu.journal.engine import EngineHealth, FenceLost, Term
from dgpu.journal.memory_engine import MemoryEngine
from dgpu.journal.snapshot import SNAPSHOT_NAME, write_snapshot
from dgpu.service.leadership.trimming import Trimming
from dgpu.service.options import TrimRules
from engine_contract import elected, record_of
from unit.journal.replicas import GROUPS


class World:
    """A leader whose local snapshot follows when it is asked for."""

    def __init__(self, directory: Path, **rules: float) -> None:
        self.directory = directory
        self.engine = MemoryEngine()
        self.term: Term = elected(self.engine)
        self.last_index = self.copied_bytes = 0
        self.asked = 0
        self.health: EngineHealth | None = None
        self.trimming = Trimming(
            self.engine,
            self,
            self.term,
            directory,
            snapshot_soon=self._ask,
            health=lambda: self.health,
            rules=TrimRules(**{"max_groups": 50, "max_bytes": 10_000, **rules}),
        )

    def commit(self, groups: int, size: int = 10) -> None:
        for _ in range(groups):
            head = self.engine.head()
            record = record_of(head.index + 1, payload=bytes(size))
            self.engine.commit(self.term, head, head.index + 1, 1, record)
            self.last_index, self.copied_bytes = head.index + 1, self.copied_bytes + size

    def snapshot(self, index: int) -> None:
        write_snapshot(self.directory, replay(GROUPS[0]), index=index, epoch=1)

    @property
    def kept(self) -> list[int]:
        return sorted(self.engine.shared.state._records)

    def _ask(self) -> None:
        self.asked += 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_few_groups_stay(world: World) -> None:
    world.commit(49)
    world.snapshot(49)
    world.trimming.look()
    assert len(world.kept) == 49


def test_the_number_of_groups_is_bounded(world: World) -> None:
    world.commit(50)
    world.snapshot(48)
    world.trimming.look()
    assert (world.engine.snapshot().index, world.engine.floor()) == (48, 1)
    world.commit(47)
    world.snapshot(97)
    world.trimming.look()
    assert world.engine.snapshot().index == 48, "only 49 groups follow the snapshot"
    world.commit(1)
    world.trimming.look()
    assert (world.engine.snapshot().index, world.engine.floor()) == (97, 49)
    assert world.kept == list(range(49, 99)), "a scheduler that fetched the snapshot of group 48 reads on"


def test_the_bytes_of_groups_are_bounded(world: World) -> None:
    for index in (9, 18):
        world.commit(9, 1_200)
        world.snapshot(index)
        world.trimming.look()
        assert world.engine.snapshot().index == index
    assert world.kept == list(range(10, 19))


def test_a_large_snapshot_is_stored_less_often(tmp_path: Path) -> None:
    world = World(tmp_path, max_bytes=100, times_snapshot=4)
    world.commit(1, 200)
    world.snapshot(1)
    world.trimming.look()
    size = sum(map(len, world.engine.shared.state._snapshot_parts))
    world.commit(1, 3 * size)
    world.snapshot(2)
    world.trimming.look()
    assert world.engine.snapshot().index == 1
    world.commit(1, size)
    world.snapshot(3)
    world.trimming.look()
    assert world.engine.snapshot().index == 3
    assert world.kept == [2, 3]


def test_fewer_groups_are_kept_when_the_engine_is_nearly_full(tmp_path: Path) -> None:
    world = World(tmp_path, few_groups=5)
    world.commit(6)
    world.snapshot(6)
    world.trimming.look()
    assert len(world.kept) == 6
    world.health = EngineHealth(size_bytes=60, quota_bytes=100)
    world.trimming.look()
    assert world.kept == []


def test_an_old_snapshot_is_not_worth_storing(world: World) -> None:
    world.commit(60)
    world.snapshot(20)
    world.trimming.look()
    assert (len(world.kept), world.asked) == (60, 1)
    world.snapshot(60)
    world.trimming.look()
    assert world.engine.snapshot().index == 60


def test_without_a_snapshot_nothing_is_deleted(world: World) -> None:
    world.commit(60)
    world.trimming.look()
    assert (len(world.kept), world.asked) == (60, 1)


def test_a_damaged_snapshot_deletes_nothing(world: World) -> None:
    world.commit(60)
    world.snapshot(60)
    path = world.directory / SNAPSHOT_NAME
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    world.trimming.look()
    assert len(world.kept) == 60
    assert world.engine.floor() == 1


@pytest.mark.parametrize("trouble", ["is_down", "is_full"])
def test_trouble_of_the_engine_is_survived(world: World, trouble: str) -> None:
    world.commit(60)
    world.snapshot(60)
    place = world.engine if trouble == "is_down" else world.engine.shared.state
    setattr(place, trouble, True)
    world.trimming.look()
    assert len(world.kept) == 60
    setattr(place, trouble, False)
    world.trimming.look()
    assert world.engine.snapshot().index == 60


def test_a_later_leader_deletes_what_an_earlier_one_left(world: World) -> None:
    """The floor was moved, then the leader died."""
    world.commit(60)
    world.engine.store_snapshot(world.term, 40, 1, [b""])
    assert len(world.kept) == 60
    world.trimming.look()
    assert len(world.kept) == 20


def test_a_leader_that_was_replaced_stops(world: World) -> None:
    world.commit(60)
    world.snapshot(60)
    world.engine.resign(world.term)
    with pytest.raises(FenceLost):
        world.trimming.look()
    assert world.engine.floor() == 1
