"""A journal in an engine with local copies: commits first, copies afterwards, and tails that were never committed."""

from __future__ import annotations

import threading

import pytest

from dgpu.core.digest import digest
from dgpu.journal.checkpoint import (
    CHECKPOINT_NAME,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from dgpu.journal.engine import BelowFloor, EngineError, EngineUnavailable, FenceLost, Head, HeadMoved
from dgpu.journal.engine_state import EngineState
from dgpu.journal.errors import CorruptJournal, NotWritten
from dgpu.journal.format import encode_record
from dgpu.journal.journal import Room
from dgpu.journal.memory_engine import MemoryEngine
from dgpu.journal.replicated import Diverged
from dgpu.journal.segments import live_segments, scans
from dgpu.wire.records import SCHEMA, encode_group
from etcd_cluster import wait_until
from unit.journal.replicas import (
    GROUPS,
    append,
    caught_up,
    leading,
    records_in,
    state_after,
    write_locally,
)


def test_a_standby_copies_the_groups_of_the_leader(place, shared, tmp_path) -> None:
    engine = MemoryEngine(shared)
    leader = leading(place("a"), engine)
    append(leader, 1, 60)
    standby = place("b")
    assert caught_up(standby) == 60
    append(leader, 61, len(GROUPS))
    assert [group.index for group in standby.catch_up()] == list(range(61, len(GROUPS) + 1))
    assert standby.catch_up() == []
    assert records_in(tmp_path / "a") == records_in(tmp_path / "b")
    assert len(live_segments(tmp_path / "a")) > 2
    assert digest(standby.committed_state()) == state_after(len(GROUPS)) == digest(leader.committed_state())


def test_a_standby_takes_over_where_the_leader_stopped(place, shared, tmp_path) -> None:
    first, second = MemoryEngine(shared), MemoryEngine(shared)
    old = leading(place("a"), first)
    append(old, 1, 10)
    first.resign(old._term)
    new = leading(place("b"), second, "b")
    append(new, 11, 20, epoch=2)
    with pytest.raises(FenceLost):
        append(old, 11, 11)
    assert records_in(tmp_path / "a") == records_in(tmp_path / "b")[:10]
    assert caught_up(old) == 10
    assert records_in(tmp_path / "a") == records_in(tmp_path / "b")


def test_only_a_complete_copy_may_lead(place, shared) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 2)
    behind = place("b")
    with pytest.raises(HeadMoved, match="ends with group 0, the journal with group 2"):
        behind.lead(leader._term)
    with pytest.raises(ValueError, match="only the leader"):
        behind.append(1, 1, b"")


def test_a_lost_answer_does_not_store_a_group_twice(place, shared, tmp_path) -> None:
    engine = MemoryEngine(shared)
    journal = leading(place("a", engine), engine)
    engine.lost_answers = 3
    append(journal, 1, 2)
    assert engine.head().index == 2
    assert [index for index, _, _ in records_in(tmp_path / "a")] == [1, 2]
    assert journal.waits_since_ms is None


def test_an_append_waits_for_the_engine_until_the_scheduler_steps_down(place, shared, tmp_path) -> None:
    engine = MemoryEngine(shared)
    journal = leading(place("a", engine), engine)
    engine.is_down = True
    failed: list[BaseException] = []

    def write() -> None:
        try:
            append(journal, 1, 1)
        except EngineError as error:
            failed.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    wait_until(lambda: journal.waits_since_ms is not None, "the append does not wait")
    assert writing.is_alive()
    journal.step_down()
    writing.join(60)
    assert isinstance(failed[0], EngineUnavailable)
    assert records_in(tmp_path / "a") == []


def test_an_append_that_begins_after_the_scheduler_stepped_down_fails_like_one_in_flight(
    place, shared, tmp_path
) -> None:
    """The order for it may have been given just before. A ValueError would end the process."""
    journal = leading(place("a"), MemoryEngine(shared))
    append(journal, 1, 1)
    journal.step_down()
    with pytest.raises(EngineUnavailable, match="stepped down"):
        append(journal, 2, 2)
    assert [index for index, _, _ in records_in(tmp_path / "a")] == [1]


def test_a_restart_continues(place, shared, tmp_path) -> None:
    engine = MemoryEngine(shared)
    journal = leading(place("a"), engine)
    append(journal, 1, 30)
    journal.close()
    shared.state.revoke_leader()
    again = place("a")
    assert again.head.index == 30
    assert again.set_aside is None
    append(leading(again, engine), 31, 40, epoch=2)
    assert digest(again.committed_state()) == state_after(40)


@pytest.mark.parametrize("kind", ["behind", "missing", "damaged", "ahead"])
def test_the_checkpoint_only_saves_time(place, shared, tmp_path, kind) -> None:
    journal = leading(place("a"), MemoryEngine(shared))
    append(journal, 1, 20)
    behind = Checkpoint(index=20, chain=journal.head.chain)
    append(journal, 21, 30)
    journal.close()
    file = tmp_path / "a" / CHECKPOINT_NAME
    assert read_checkpoint(tmp_path / "a") == Checkpoint(index=30, chain=journal.head.chain)
    if kind == "missing":
        file.unlink()
    elif kind == "damaged":
        file.write_bytes(file.read_bytes().replace(b"3", b"4", 1))
    else:
        ahead = Checkpoint(index=31, chain=b"\1" * 32)
        write_checkpoint(tmp_path / "a", behind if kind == "behind" else ahead)
    again = place("a")
    assert again.head.index == 30
    assert again.head.chain == journal.head.chain
    assert again.set_aside is None


def test_a_wrong_checkpoint_does_not_hide_the_truth(place, shared, tmp_path) -> None:
    journal = leading(place("a"), MemoryEngine(shared))
    append(journal, 1, 30)
    journal.close()
    write_checkpoint(tmp_path / "a", Checkpoint(index=10, chain=b"\1" * 32))
    assert place("a").head == Head(index=30, epoch=1, chain=journal.head.chain)


def test_a_copy_below_the_floor_needs_a_snapshot(place, shared) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 5)
    behind = place("b")
    caught_up(behind)
    behind.close()
    append(leader, 6, 10)
    leader._engine.store_snapshot(leader._term, 6, 1, [b""])
    with pytest.raises(BelowFloor, match="no group 6, its first one is 7: its snapshot must be fetched"):
        place("b")
    with pytest.raises(BelowFloor, match="no group 1"):
        place("c")


def test_a_journal_may_begin_in_the_engine_after_its_first_groups(place, shared, tmp_path) -> None:
    """A single scheduler becomes one of several: head and floor name its end, and so does its checkpoint."""
    write_locally(tmp_path / "a", 1, 10, epoch=1)
    seed = b"s" * 32
    shared.state.head = Head(index=10, epoch=1, chain=seed, revision=1)
    shared.state.floor, shared.state._chains = 11, {10: seed}
    with pytest.raises(Diverged):
        place("a")
    write_checkpoint(tmp_path / "a", Checkpoint(index=10, chain=seed))
    journal = leading(place("a"), MemoryEngine(shared))
    append(journal, 11, 20)
    assert digest(journal.committed_state()) == state_after(20)
    journal.close()
    assert place("a").head.index == 20


def test_an_engine_that_went_back_is_noticed(place, shared) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 3)
    standby = place("b")
    caught_up(standby)
    shared.state = EngineState()  # restored from an older copy
    with pytest.raises(Diverged, match="ends with group 3"):
        standby.catch_up()


def test_records_that_do_not_fit_the_hash_are_not_copied(place, shared, tmp_path) -> None:
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 3)
    other = encode_record(schema=SCHEMA, epoch=1, index=2, payload=encode_group(GROUPS[2]))
    standby = place("b")
    for bad, error in ((other, Diverged), (other[:-8], CorruptJournal)):
        shared.state._records[2] = bad
        with pytest.raises(error):
            standby.catch_up()
    assert records_in(tmp_path / "b") == []


def test_a_full_engine_is_like_a_full_disk(place, shared, tmp_path) -> None:
    engine = MemoryEngine(shared)
    journal = leading(place("a"), engine)
    append(journal, 1, 2)
    shared.state.is_full = True
    with pytest.raises(NotWritten, match="quota"):
        append(journal, 3, 3)
    assert journal.room is Room.NONE
    assert "quota" in journal.room_lacks
    assert digest(journal.committed_state()) == state_after(2)
    journal.prepare()
    assert journal.room is Room.NONE
    shared.state.is_full = False
    journal.prepare()
    assert journal.room is Room.OK
    append(journal, 3, 3)
    assert len(records_in(tmp_path / "a")) == 3


def test_a_full_disk_after_the_commit_delays_only_the_copy(place, shared, tmp_path, monkeypatch) -> None:
    """The group is committed, so it must be acknowledged; nothing more is accepted until the copy is complete."""
    engine = MemoryEngine(shared)
    journal = leading(place("a"), engine)
    append(journal, 1, 2)

    def full(*_args):
        raise NotWritten("no room")

    with monkeypatch.context() as patch:
        patch.setattr(journal._local, "append_record", full)
        append(journal, 3, 3)
        assert engine.head().index == 3
        assert journal.room is Room.NONE
        with pytest.raises(NotWritten):
            append(journal, 4, 4)
        assert engine.head().index == 3
        assert digest(journal.committed_state()) == state_after(3)
    journal.prepare()
    assert journal.room is Room.OK
    append(journal, 4, 4)
    assert [index for index, _, _ in records_in(tmp_path / "a")] == [1, 2, 3, 4]


def test_groups_that_were_copied_before_the_disk_was_full_are_told(
    place, shared, tmp_path, monkeypatch
) -> None:
    """The state of the standby must have exactly the groups of its files."""
    leader = leading(place("a"), MemoryEngine(shared))
    append(leader, 1, 6)
    standby = place("b")
    write = standby._local.append_record

    def full_after_two(epoch: int, index: int, record: bytes) -> None:
        if index > 2:
            raise NotWritten("no room")
        write(epoch, index, record)

    with monkeypatch.context() as patch:
        patch.setattr(standby._local, "append_record", full_after_two)
        assert [group.index for group in standby.catch_up()] == [1, 2]
        with pytest.raises(NotWritten):
            standby.catch_up()
        assert standby.last_index == 2
    assert [group.index for group in standby.catch_up()] == [3, 4, 5, 6]
    assert digest(standby.committed_state()) == state_after(6)


def test_with_a_full_local_disk_nothing_is_committed(place, shared, monkeypatch) -> None:
    engine = MemoryEngine(shared)
    journal = leading(place("a"), engine)
    append(journal, 1, 2)
    monkeypatch.setattr(journal._local, "_stuck", "no room on the disk")
    with pytest.raises(NotWritten, match="no room on the disk"):
        append(journal, 3, 3)
    assert engine.head().index == 2


def test_a_copy_that_was_interrupted_is_completed(place, shared, tmp_path) -> None:
    """Killed between the commit and the end of the local write."""
    journal = leading(place("a"), MemoryEngine(shared))
    append(journal, 1, 3)
    journal.close()
    (segment,) = live_segments(tmp_path / "a")
    (_, result) = next(iter(scans((segment,))))
    content = bytearray(segment.path.read_bytes())
    last = result.records[-1].offset
    content[last + 50 :] = bytes(len(content) - last - 50)
    segment.path.write_bytes(content)
    again = place("a")
    assert again.head.index == 2
    assert caught_up(again) == 1
    assert digest(again.committed_state()) == state_after(3)
