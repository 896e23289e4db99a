from __future__ import annotations

import pytest

from dgpu.core.commands import CancelTasks, DrainNode, RemoveNode, ReportFinished, SubmitTasks
from dgpu.core.digest import digest
from dgpu.core.events import TasksSubmitted
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.task import Outcome
from dgpu.core.rejections import JournalUnavailable, StorageFull, TooBusy, UnknownNode, UnknownTask
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.journal import Room
from dgpu.service.machine import commit as pipeline
from dgpu.service.machine import commit_queue
from dgpu.service.machine.commit import CommitPipeline
from dgpu.service.machine.inputs import AgentSaid, Execute, NotStored, Read, RoomChanged
from dgpu.service.machine.outputs import Append, Publish, ReadNow, Reply, ReplyFailed
from dgpu.wire.records import SCHEMA, decode_group
from unit.service.cluster import START, Bench, register, spec, starts, submit


def test_nobody_hears_of_a_submit_before_it_is_durable() -> None:
    bench = Bench()
    bench.ask(submit())
    assert [type(o) for o in bench.decide()] == [Append]
    replies = [o for o in bench.commit() if isinstance(o, Reply)]
    assert [type(reply.result[0]) for reply in replies] == [TasksSubmitted]


def test_commands_that_come_while_a_group_is_in_flight_share_the_next_one() -> None:
    bench = Bench()
    bench.ask(submit())
    bench.decide()
    for _ in range(3):
        bench.ask(submit())
    assert bench.decide() == []
    bench.commit()
    bench.decide()
    assert [append.index for append in bench.appended] == [1, 2, 3]
    assert len(decode_group(bench.appended[-1].payload, SCHEMA)) == 3


def test_the_outputs_of_a_commit_are_replies_then_the_publication_then_the_reads() -> None:
    bench = Bench()
    bench.ask(submit())
    bench.decide()
    assert bench.put(Read(request_id=77)) == []
    assert [type(o) for o in bench.commit()] == [Reply, Publish, ReadNow]


def test_a_read_without_a_group_in_flight_is_answered_at_once() -> None:
    assert Bench().put(Read(request_id=5)) == [ReadNow(request_id=5)]


def test_the_journal_rebuilds_the_state_that_was_committed() -> None:
    bench = Bench()
    bench.run(submit(3))
    bench.run(CancelTasks(task_ids=(TaskId(2),)))
    events = [event for append in bench.appended for event in decode_group(append.payload, SCHEMA)]
    assert digest(replay(events)) == digest(bench.state)


def test_a_refusal_needs_no_record_and_is_answered_at_once() -> None:
    bench = Bench()
    bench.ask(RemoveNode(node_id=NodeId("nowhere")))
    assert bench.decide() == [Reply(request_id=1, result=UnknownNode(node_id=NodeId("nowhere")))]
    assert not bench.scheduler.in_flight


def test_a_refusal_waits_for_what_it_was_decided_upon() -> None:
    """The refused cancel saw a task that could still be lost with the group."""
    bench = Bench()
    bench.ask(submit())
    bench.ask(CancelTasks(task_ids=(TaskId(1),)))
    bench.ask(CancelTasks(task_ids=(TaskId(1),)))
    assert [type(o) for o in bench.decide()] == [Append]
    assert [o.request_id for o in bench.commit() if isinstance(o, Reply)] == [1, 2, 3]


def test_a_command_that_cannot_be_decided_harms_none_of_its_neighbours() -> None:
    bench = Bench()
    bench.ask(submit())
    bench.ask(SubmitTasks(entries=(("many", spec()),)))  # type: ignore[arg-type]
    bench.ask(submit())
    outputs = bench.settle()
    assert [o.request_id for o in outputs if isinstance(o, Reply)] == [1, 3]
    assert [o.request_id for o in outputs if isinstance(o, ReplyFailed)] == [2]
    assert len(bench.state.tasks) == 2


def test_a_command_that_cannot_be_written_down_changes_nothing() -> None:
    """A lone surrogate cannot be encoded; found out after applying, memory and journal would differ for good."""
    bench = Bench()
    bench.run(submit())
    before = digest(bench.state)
    bench.ask(SubmitTasks(entries=submit().entries, idempotency_key="\ud800", fingerprint="f"))
    assert [type(o).__name__ for o in bench.settle()] == ["ReplyFailed", "Remark"]
    assert digest(bench.state) == before


def test_time_never_goes_back() -> None:
    bench = Bench()
    bench.run(submit())
    bench.now -= 3_600_000
    bench.run(submit())
    assert bench.state.tasks[TaskId(2)].created_at == START


def test_with_only_the_reserve_left_submits_are_refused_and_the_rest_goes_on() -> None:
    bench = Bench()
    bench.run(submit())
    bench.put(RoomChanged(room=Room.RESERVE, sure_bytes=8 << 20))
    assert bench.run(submit()) == StorageFull()
    assert len(bench.run(CancelTasks(task_ids=(TaskId(1),)))) == 1
    bench.put(RoomChanged(room=Room.OK, sure_bytes=32 << 20))
    assert isinstance(bench.run(submit()), tuple)


def test_without_any_room_nothing_is_decided() -> None:
    bench = Bench()
    bench.put(RoomChanged(room=Room.NONE, sure_bytes=0))
    reply = bench.put(Execute(request_id=1, command=DrainNode(node_id=NodeId("n1"))))
    assert reply == [Reply(request_id=1, result=StorageFull())]
    assert bench.decide() == []


def test_a_batch_larger_than_what_surely_fits_waits_for_the_next_segment() -> None:
    bench = Bench()
    bench.put(RoomChanged(room=Room.OK, sure_bytes=1 << 20))
    bench.ask(submit(detail=b"x" * (3 << 20)))
    assert bench.settle() == []
    bench.put(RoomChanged(room=Room.OK, sure_bytes=32 << 20))
    assert len([o for o in bench.settle() if isinstance(o, Reply)]) == 1


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MAX_QUEUED", 4)
    bench = Bench()
    bench.ask(submit())
    bench.ask(submit())
    reply = bench.put(Execute(request_id=9, command=submit()))
    assert reply == [Reply(request_id=9, result=TooBusy(queued=2))]


def test_a_group_is_bounded_by_number_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MAX_GROUP_COMMANDS", 2)
    commits = CommitPipeline(ClusterState(), 0)
    for number in range(3):
        commits.offer(number, submit())
    first = commits.decide(START)
    assert first is not None
    assert [origin for origin, _ in first.results] == [0, 1]
    commits.commit(first.index)
    monkeypatch.setattr(pipeline, "MAX_GROUP_BYTES", 1_000)
    for number in range(2):
        commits.offer(number, submit(detail=b"x" * 600))
    second = commits.decide(START)
    assert second is not None
    assert [origin for origin, _ in second.results] == [2]


def test_a_commit_out_of_turn_is_a_bug() -> None:
    bench = Bench()
    bench.ask(submit())
    bench.decide()
    with pytest.raises(AssertionError, match="was in flight"):
        bench.scheduler._commit.commit(99)


def test_unknown_tasks_are_refused_by_id() -> None:
    assert Bench().run(CancelTasks(task_ids=(TaskId(4),))) == UnknownTask(task_id=TaskId(4))


def test_reports_with_long_errors_do_not_outgrow_the_reserve() -> None:
    """A group that does not fit where room was promised would end the process."""
    state = ClusterState()
    bench = Bench(state)
    bench.say(1, register(gpus=0))
    bench.ask(submit(500, gpus=0))
    leases = starts(bench.settle())
    commits = CommitPipeline(state, 0)
    commits.room = Room.RESERVE
    commits.sure_bytes = 256 << 10
    for lease in leases:
        commits.offer(
            lease, ReportFinished(lease_id=LeaseId(lease), outcome=Outcome.CANNOT_START, error="x" * 1_000)
        )
    group = commits.decide(START)
    assert group is not None
    assert len(group.results) < len(leases) == 500
    assert len(group.payload) <= commits.sure_bytes


def test_a_group_that_is_stored_nowhere_is_undone_and_what_agents_said_is_decided_again() -> None:
    """People are told to ask again. An agent's registration must not get lost between two states."""
    bench = Bench()
    bench.run(submit(2))
    before = bench.scheduler.state.fork()
    bench.put(AgentSaid(connection_id=7, message=register("n1", gpus=2)))
    refused = bench.ask(submit())
    bench.put(Read(request_id=99))
    bench.decide()
    assert len(bench.scheduler.state.nodes) == 1
    bench.put(Read(request_id=100))
    lost = bench.appended.pop()
    outputs = bench.put(NotStored(index=lost.index, state=before, refusal=StorageFull()))
    assert outputs == [Reply(request_id=refused, result=StorageFull()), ReadNow(request_id=100)]
    assert (len(bench.scheduler.state.nodes), sorted(bench.scheduler.state.tasks)) == (0, [1, 2])
    assert bench.decide() == []  # until there is room
    bench.put(RoomChanged(room=Room.OK, sure_bytes=1 << 20))
    assert len(starts(bench.settle())) == 2
    assert bench.appended[-1].index >= lost.index
    events = [event for group in bench.appended for event in decode_group(group.payload, SCHEMA)]
    assert digest(replay(events)) == digest(bench.scheduler.state)


def test_commands_that_wait_when_the_last_room_goes_are_refused() -> None:
    bench = Bench()
    request_id = bench.ask(submit())
    outputs = bench.put(RoomChanged(room=Room.NONE, trouble="the files are gone", sure_bytes=0))
    refusal = JournalUnavailable(reason="the files are gone")
    assert [o for o in outputs if isinstance(o, Reply)] == [Reply(request_id=request_id, result=refusal)]
    assert bench.scheduler.queued == 0


def test_a_state_that_becomes_another_is_that_other_one() -> None:
    bench = Bench()
    bench.say(7, register("n1", gpus=2))
    bench.run(submit(5))
    fork, other = bench.scheduler.state.fork(), ClusterState()
    other.become(fork)
    for name in (
        name for name in dir(other) if not name.startswith("__") and not callable(getattr(other, name))
    ):
        mine, theirs = getattr(other, name), getattr(fork, name)
        assert mine is theirs or (isinstance(mine, int | str) and mine == theirs), name
    check_invariants(other)
    assert digest(other) == digest(bench.scheduler.state)
