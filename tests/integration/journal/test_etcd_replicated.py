"""Local copies of a journal in a real etcd."""

from __future__ import annotations

import pytest

from dgpu.core.digest import digest
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.bundle import SnapshotBundle
from dgpu.journal.engine import BelowFloor, FenceLost
from dgpu.journal.fetched import begin_from_engine
from dgpu.journal.file import FileJournal
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.journal.snapshot import write_snapshot
from dgpu.wire.records import encode_group
from engine_contract import elected
from unit.journal.samples import busy_cluster

GROUPS = busy_cluster(steps=60).groups
SIZES = {"segment_bytes": 1 << 14, "reserve_bytes": 1 << 13}


@pytest.fixture
def place(tmp_path, connect):
    opened = []

    def open_one(name: str) -> ReplicatedJournal:
        opened.append(ReplicatedJournal.open(tmp_path / name, connect(), **SIZES))
        opened[-1].recover()
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


def append(journal: ReplicatedJournal, first: int, last: int, *, epoch: int = 1) -> None:
    for index in range(first, last + 1):
        journal.append(epoch, index, encode_group(GROUPS[index - 1]))


def caught_up(journal: ReplicatedJournal) -> ReplicatedJournal:
    while journal.catch_up():
        pass
    return journal


def replay_to(index: int) -> ClusterState:
    return replay(event for group in GROUPS[:index] for event in group)


def state_after(index: int) -> str:
    return digest(replay_to(index))


def test_a_standby_takes_over_with_the_same_state(place, connect) -> None:
    engine = connect()
    term = elected(engine, "a")
    old, standby = place("a"), place("b")
    old.lead(term)
    append(old, 1, 30)
    caught_up(standby)
    append(old, 31, 40)
    engine.resign(term)
    new_term = elected(engine, "b")
    caught_up(standby).lead(new_term)
    append(standby, 41, 50, epoch=2)
    with pytest.raises(FenceLost):
        append(old, 41, 41)
    assert digest(standby.committed_state()) == state_after(50)
    assert digest(old.committed_state()) == state_after(40)
    assert digest(caught_up(old).committed_state()) == state_after(50)


def test_a_tail_that_was_never_committed_is_set_aside(place, connect, tmp_path) -> None:
    term = elected(connect(), "a")
    leader = place("a")
    leader.lead(term)
    append(leader, 1, 20)
    caught_up(place("b")).close()
    early = FileJournal.open(tmp_path / "b", **SIZES)
    early.recover()
    for index in range(21, 31):
        early.append(1, index, encode_group(GROUPS[index - 1]))
    early.close()
    append(leader, 21, 35, epoch=2)
    again = place("b")
    assert again.set_aside is not None
    assert (again.set_aside.first_index, again.set_aside.last_index) == (21, 30)
    assert digest(caught_up(again).committed_state()) == state_after(35)


def test_a_copy_below_the_floor_begins_with_the_snapshot(place, connect, tmp_path) -> None:
    engine = connect()
    term = elected(engine, "a")
    leader = place("a")
    leader.lead(term)
    append(leader, 1, 10)
    write_snapshot(tmp_path / "a", replay_to(5), index=5, epoch=1)
    bundle = SnapshotBundle(tmp_path / "a")
    engine.store_snapshot(term, bundle.index, bundle.epoch, bundle.parts(100))
    bundle.close()
    engine.delete_covered(term)
    with pytest.raises(BelowFloor, match="its snapshot must be fetched"):
        place("b")
    assert begin_from_engine(tmp_path / "b", connect()).index == 5
    assert digest(caught_up(place("b")).committed_state()) == state_after(10)
