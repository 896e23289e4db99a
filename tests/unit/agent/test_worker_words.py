"""Calls and workers in the conversation with a scheduler."""

from __future__ import annotations

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import Acked, HeldRun, LeaseState, Report
from dgpu.agent.node import NodeMachine, StreamOpened
from dgpu.agent.run.runner import RunsListed
from dgpu.agent.session import Session
from dgpu.agent.session_calls import Stream
from dgpu.agent.session_words import (
    Flush,
    Identity,
    Received,
    Send,
    SessionSettings,
    Written,
    register_message,
)
from dgpu.agent.workers.calls import (
    MAX_RESULT_BYTES,
    CallProgress,
    ReturnedCall,
    WorkerModel,
    WorkersSeen,
    WorkerState,
    workers_message,
)
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.wire.proto import agent_pb2 as pb

IDENTITY = Identity(node_id=NodeId("n1"), boot_id="b1", cpus_milli=8_000, ram_mb=64_000)


def connected_node() -> NodeMachine:
    session = Session(
        identity=IDENTITY,
        settings=SessionSettings(addresses=("m:1",)),
        joined=Joined(epoch=4),
        jitter=lambda: 1.0,
        new_session_id=lambda: "s1",
    )
    node = NodeMachine(session=session, lifecycle=Lifecycle())
    welcome = pb.FromScheduler(welcome=pb.Welcome(epoch=4, task_lease_ms=60_000, heartbeat_timeout_ms=15_000))
    for value in (
        RunsListed(runs=()),
        StreamOpened(address="m:1"),
        Written(address="m:1"),
        Received(address="m:1", message=welcome),
    ):
        node.on_input(value, 1_000)
    return node


def returned(lease_id: int, result: bytes = b"") -> ReturnedCall:
    return ReturnedCall(lease_id=LeaseId(lease_id), outcome="returned", at_ms=900, result=result, ran_ms=7)


def test_a_call_without_its_worker_is_reported_as_lost() -> None:
    """The scheduler places it again, on a worker that exists."""
    node = connected_node()
    orders = pb.Orders(calls=[pb.Call(lease_id=9, task_id=3, attempt=1, worker_lease_id=8)])
    node.on_input(Received(address="m:1", message=pb.FromScheduler(orders=orders)), 1_100)
    (sent,) = [each for each in node.on_input(Flush(), 1_100) if isinstance(each, Send)]
    (report,) = sent.message.reports.returned
    assert (report.lease_id, report.outcome, report.error) == (
        9,
        "worker_lost",
        "its worker is not on this node",
    )


def test_ends_of_calls_share_a_message_and_are_acknowledged() -> None:
    stream = Stream()
    stream.returned += [returned(1), returned(2)]
    message = stream.next_reports(1_000)
    assert message is not None
    assert [(each.lease_id, each.ran_ms, each.ago_ms) for each in message.returned] == [
        (1, 7, 100),
        (2, 7, 100),
    ]
    assert stream.on_reports_ack(1) == [Acked(returned=(LeaseId(1), LeaseId(2)))]


def test_large_results_are_spread_over_messages_and_come_before_ends_of_workers() -> None:
    """One message has a limit in bytes, and the end of a worker would end its calls too."""
    stream = Stream()
    half = b"x" * (MAX_RESULT_BYTES // 2)
    stream.returned += [returned(1, half), returned(2, half), returned(3, half)]
    stream.finished += Report().finished
    first, second = stream.next_reports(1_000), stream.next_reports(1_000)
    assert first is not None
    assert second is not None
    assert [each.lease_id for each in first.returned] == [1, 2]
    assert [each.lease_id for each in second.returned] == [3]


def test_only_the_newest_state_and_progress_is_sent() -> None:
    stream = Stream()
    stream.states[LeaseId(8)] = WorkerState(lease_id=LeaseId(8))
    model = WorkerModel(name="m", memory_mb=5, load_ms=70, used_at_ms=400)
    stream.states[LeaseId(8)] = WorkerState(lease_id=LeaseId(8), ready=True, models=(model,))
    stream.progress[LeaseId(9)] = CallProgress(lease_id=LeaseId(9), permille=400, text="epoch 2")
    seen = stream.take_seen()
    assert seen is not None
    message = workers_message(seen, 1_000)
    assert [(state.lease_id, state.ready) for state in message.states] == [(8, True)]
    assert message.states[0].models[0].used_ago_ms == 600
    assert [(each.permille, each.text) for each in message.progress] == [(400, "epoch 2")]
    assert stream.take_seen() is None


def test_a_held_call_names_its_worker() -> None:
    held = HeldRun(
        lease_id=LeaseId(9), task_id=TaskId(3), state=LeaseState.RUNNING, worker_lease_id=LeaseId(8)
    )
    register = register_message(IDENTITY, joined=Joined(epoch=4), session_id="s", gpus=(), held=(held,))
    assert register.leases[0].worker_lease_id == 8


def test_a_scheduler_without_a_session_gets_no_states() -> None:
    session = Session(
        identity=IDENTITY,
        settings=SessionSettings(addresses=("m:1",)),
        joined=Joined(epoch=4),
        jitter=lambda: 1.0,
        new_session_id=lambda: "s1",
    )
    assert session.on_input(WorkersSeen(states=(WorkerState(lease_id=LeaseId(8)),)), 1_000) == []
