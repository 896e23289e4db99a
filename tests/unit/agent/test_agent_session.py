"""The conversation with a scheduler: inputs in, exact outputs out."""

from __future__ import annotations

import pytest

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle_words import Acked, FinishedRun, HeldRun, LeaseState, Ordered, Report, Welcomed
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunEnd, RunOrder
from dgpu.agent.session import Session
from dgpu.agent.session_calls import MAX_UNACKED
from dgpu.agent.session_words import (
    Begin,
    CardChecked,
    CheckCard,
    Connected,
    Dial,
    Disconnected,
    EpochSaved,
    Flush,
    GpusFound,
    HangUp,
    Heard,
    Identity,
    NodeGpu,
    Note,
    Opened,
    Received,
    Sampled,
    SaveEpoch,
    Send,
    SessionSettings,
    TakeSamples,
    Woke,
    Written,
)
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.task import Outcome
from dgpu.wire.proto import agent_pb2 as pb

GPU = NodeGpu(id=GpuId("GPU-a"), index=0, model="V100", memory_mb=16_384)


def session(*, epoch: int = 4, jitter: float = 1.0, addresses: tuple[str, ...] = ("m:1",)) -> Session:
    return Session(
        identity=Identity(node_id=NodeId("n1"), boot_id="b1", cpus_milli=8_000, ram_mb=64_000),
        settings=SessionSettings(addresses=addresses),
        joined=Joined(epoch=epoch),
        jitter=lambda: jitter,
        new_session_id=lambda: "s1",
    )


def welcome(epoch: int = 4, **facts) -> Received:
    facts = {"task_lease_ms": 60_000, "lease_action": "freeze", "heartbeat_timeout_ms": 15_000} | facts
    return Received(address="m:1", message=pb.FromScheduler(welcome=pb.Welcome(epoch=epoch, **facts)))


def opened(**facts) -> Session:
    """Registered at 100, welcomed at 200."""
    machine = session(**facts)
    machine.on_input(GpusFound(gpus=(GPU,)), 0)
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    machine.on_input(Written(address="m:1"), 110)
    machine.on_input(Sampled(samples=(Sample(gpu_id=GPU.id, temperature_c=40),)), 150)
    machine.on_input(welcome(keep=[1]), 200)
    assert machine.open
    return machine


def report(lease: int = 1) -> Report:
    ended = RunEnd(lease_id=LeaseId(lease), outcome=Outcome.EXITED, at_ms=300, exit_code=3)
    return Report(started=((LeaseId(lease), 250),), finished=(FinishedRun(end=ended),))


def sent(outputs) -> list[pb.FromAgent]:
    return [output.message for output in outputs if isinstance(output, Send)]


@pytest.mark.parametrize(
    ("timeout_ms", "beat_ms"), [(15_000, 5_000), (60_000, 5_000), (6_000, 2_000), (900, 300), (60, 50)]
)
def test_it_beats_three_times_within_the_silence_that_the_scheduler_allows(timeout_ms, beat_ms) -> None:
    """Otherwise a node with a patient agent would be lost and found again for ever."""
    machine = session()
    machine.on_input(GpusFound(gpus=(GPU,)), 0)
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    machine.on_input(Written(address="m:1"), 110)
    outputs = machine.on_input(welcome(heartbeat_timeout_ms=timeout_ms), 200)
    told = [output.detail for output in outputs if getattr(output, "event", "") == "heartbeat_shortened"]
    assert [f"every {beat_ms} ms instead of 5000" in text for text in told] == [True] * (beat_ms < 5_000)
    now, beats = 200, []
    while len(beats) < 3:
        now = max(now, machine.wake_at_ms)
        beats += [now for message in sent(machine.on_input(Woke(), now)) if message.HasField("heartbeat")]
        machine.on_input(Written(address="m:1"), now)
        ack = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=len(beats)))
        machine.on_input(Received(address="m:1", message=ack), now)
    assert beats == [200 + beat_ms * number for number in (1, 2, 3)]


def test_a_shorter_heartbeat_is_told_once() -> None:
    machine = session()
    machine.on_input(GpusFound(gpus=(GPU,)), 0)
    machine.on_input(Begin(), 0)
    notes = []
    for start in (100, 10_000, 20_000):
        machine.on_input(Connected(address="m:1"), start)
        machine.on_input(Written(address="m:1"), start + 10)
        notes += machine.on_input(welcome(heartbeat_timeout_ms=6_000), start + 100)
        machine.on_input(Disconnected(address="m:1", reason="gone"), start + 200)
        machine.on_input(Woke(), machine.wake_at_ms)
    assert [getattr(note, "event", "") for note in notes].count("heartbeat_shortened") == 1


def test_it_dials_and_registers_with_what_the_node_holds() -> None:
    machine = session()
    machine.on_input(GpusFound(gpus=(GPU,)), 0)
    assert machine.on_input(Begin(), 0) == [Dial(address="m:1")]
    held = (
        HeldRun(lease_id=LeaseId(1), task_id=TaskId(11), state=LeaseState.STOPPING),
        HeldRun(lease_id=LeaseId(2), task_id=TaskId(12), state=LeaseState.ENDED),
    )
    (message,) = sent(machine.on_input(Connected(address="m:1", held=held), 100))
    register = message.register
    assert (register.node_id, register.boot_id, register.session_id) == ("n1", "b1", "s1")
    assert register.highest_epoch == 4
    assert [gpu.uuid for gpu in register.gpus] == ["GPU-a"]
    assert [(lease.lease_id, lease.state) for lease in register.leases] == [
        (1, pb.HeldLease.RUNNING),
        (2, pb.HeldLease.FINISHED),
    ]


def test_a_welcome_renews_the_lease_from_the_moment_the_registration_was_sent() -> None:
    """A welcome that lay in a buffer for a minute must not renew anything."""
    machine = session()
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    machine.on_input(Written(address="m:1"), 100)
    assert machine.on_input(welcome(keep=[7]), 5_000) == [
        Note(event="registered", detail="m:1, epoch 4"),
        Heard(at_ms=100, lease_ms=60_000, action="freeze"),
        Opened(address="m:1", session_id="s1"),
        Welcomed(keep=frozenset({LeaseId(7)})),
        TakeSamples(),
    ]


def test_a_new_epoch_is_on_disk_before_anything_is_obeyed() -> None:
    machine = session(epoch=4)
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    assert machine.on_input(welcome(epoch=5), 200) == [SaveEpoch(address="m:1", joined=Joined(epoch=5))]
    orders = Received(
        address="m:1",
        message=pb.FromScheduler(orders=pb.Orders(starts=[pb.Start(lease_id=1, task_id=11, attempt=1)])),
    )
    assert machine.on_input(orders, 210) == []
    outputs = machine.on_input(EpochSaved(joined=Joined(epoch=5)), 220)
    start = RunOrder(lease_id=LeaseId(1), task_id=TaskId(11), attempt=1, detail=b"")
    assert outputs[-1] == Ordered(starts=(start,))
    assert machine.joined.epoch == 5


def test_a_scheduler_of_an_older_epoch_is_left() -> None:
    machine = session(epoch=4)
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    assert machine.on_input(welcome(epoch=3), 200) == [
        Note(event="scheduler_refused", detail="m:1: epoch 3 is older than 4"),
        HangUp(address="m:1", reason="epoch 3 is older than 4"),
    ]
    stale = Received(address="m:1", message=pb.FromScheduler(orders=pb.Orders(stops=[pb.Stop(lease_id=1)])))
    assert machine.on_input(stale, 210) == []


@pytest.mark.parametrize(
    ("jitter", "pauses"), [(1.0, [1, 2, 4, 8, 16, 30, 30]), (0.0, [0.5, 1, 2, 4, 8, 15, 15])]
)
def test_pauses_between_calls_double_up_to_half_a_minute(jitter, pauses) -> None:
    machine = session(jitter=jitter)
    now_ms = 0
    machine.on_input(Begin(), now_ms)
    seen = []
    for _ in pauses:
        machine.on_input(Disconnected(address="m:1", reason="refused"), now_ms)
        seen.append((machine.wake_at_ms - now_ms) / 1_000)
        assert machine.on_input(Woke(), machine.wake_at_ms - 1) == []
        now_ms = machine.wake_at_ms
        assert machine.on_input(Woke(), now_ms) == [Dial(address="m:1")]
    assert seen == pauses


def test_a_welcome_makes_the_next_pause_short_again() -> None:
    machine = session()
    machine.on_input(Begin(), 0)
    for _ in range(5):
        machine.on_input(Disconnected(address="m:1"), 0)
        machine.on_input(Woke(), machine.wake_at_ms)
    machine.on_input(Connected(address="m:1"), 100_000)
    machine.on_input(welcome(), 100_100)
    machine.on_input(Disconnected(address="m:1"), 200_000)
    assert machine.wake_at_ms == 201_000


def test_a_call_that_is_not_answered_is_given_up() -> None:
    machine = session()
    machine.on_input(Begin(), 0)
    assert machine.on_input(Woke(), 10_000) == [HangUp(address="m:1", reason="no answer")]


def test_heartbeats_carry_the_latest_samples_and_their_answer_renews_the_lease_from_when_they_were_sent() -> (
    None
):
    machine = opened()
    assert machine.wake_at_ms == 4_700
    assert machine.on_input(Woke(), 4_700) == [TakeSamples()]
    machine.on_input(Sampled(samples=(Sample(gpu_id=GPU.id, temperature_c=71),)), 4_750)
    (message,) = sent(machine.on_input(Woke(), 5_200))
    assert message.heartbeat.seq == 1
    assert [sample.temperature_c for sample in message.heartbeat.samples] == [71]
    ack = Received(address="m:1", message=pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=1)))
    assert machine.on_input(ack, 9_000) == [Heard(at_ms=5_200, lease_ms=60_000, action="freeze")]
    assert machine.on_input(ack, 9_100) == []


def test_silence_ends_the_stream() -> None:
    machine = opened()
    machine.on_input(Woke(), 5_200)
    outputs = machine.on_input(Woke(), 15_200)
    assert outputs == [HangUp(address="m:1", reason="nothing heard for 15000 ms")]


def test_orders_read_after_a_silence_are_not_obeyed() -> None:
    """An agent that was stopped finds old orders in its buffer. The scheduler has given the node up meanwhile."""
    machine = opened()
    orders = Received(
        address="m:1", message=pb.FromScheduler(orders=pb.Orders(starts=[pb.Start(lease_id=1)]))
    )
    assert machine.on_input(orders, 15_200) == [HangUp(address="m:1", reason="nothing heard for 15000 ms")]
    assert machine.on_input(orders, 15_201) == []


def test_orders_read_after_the_task_lease_are_not_obeyed() -> None:
    """The scheduler says something, but confirms no heartbeat: leases of this node may be given away."""
    machine = opened()
    for at_ms in range(10_000, 60_001, 10_000):
        machine.on_input(Received(address="m:1", message=pb.FromScheduler()), at_ms)
    orders = Received(
        address="m:1", message=pb.FromScheduler(orders=pb.Orders(starts=[pb.Start(lease_id=1)]))
    )
    assert machine.on_input(orders, 60_100) == [
        HangUp(address="m:1", reason="orders arrived after the task lease was over")
    ]


def test_reports_that_gather_while_one_is_under_way_leave_together() -> None:
    machine = opened()
    machine.on_input(report(1), 300)
    (first,) = sent(machine.on_input(Flush(), 350))
    assert first.reports.seq == 1
    assert (first.reports.started[0].lease_id, first.reports.started[0].ago_ms) == (1, 100)
    assert (first.reports.finished[0].exit_code, first.reports.finished[0].outcome) == (3, "exited")
    machine.on_input(report(2), 360)
    machine.on_input(report(3), 370)
    assert machine.on_input(Flush(), 370) == []
    (second,) = sent(machine.on_input(Written(address="m:1"), 400))
    assert second.reports.seq == 2
    assert [each.lease_id for each in second.reports.finished] == [2, 3]


def test_an_acknowledgement_covers_all_reports_up_to_it() -> None:
    machine = opened()
    for lease in (1, 2):
        machine.on_input(report(lease), 300)
        machine.on_input(Flush(), 300)
        machine.on_input(Written(address="m:1"), 300)
    ack = Received(address="m:1", message=pb.FromScheduler(reports_ack=pb.ReportsAck(seq=2)))
    leases = (LeaseId(1), LeaseId(2))
    assert machine.on_input(ack, 400) == [Acked(started=leases, finished=leases)]
    assert machine.on_input(ack, 410) == []


def test_unacknowledged_messages_are_bounded_and_the_rest_waits() -> None:
    machine = opened()
    for lease in range(MAX_UNACKED + 5):
        machine.on_input(report(lease), 300)
        machine.on_input(Flush(), 300)
        machine.on_input(Written(address="m:1"), 300)
    ack = Received(address="m:1", message=pb.FromScheduler(reports_ack=pb.ReportsAck(seq=1)))
    (message,) = sent(machine.on_input(ack, 400))
    assert message.reports.seq == MAX_UNACKED + 1
    assert len(message.reports.finished) == 5


def test_reports_without_a_stream_are_left_to_the_next_welcome() -> None:
    machine = opened()
    machine.on_input(Disconnected(address="m:1"), 300)
    assert machine.on_input(report(), 310) == []
    machine.on_input(Woke(), machine.wake_at_ms)
    machine.on_input(Connected(address="m:1"), 2_000)
    machine.on_input(Written(address="m:1"), 2_000)
    machine.on_input(welcome(), 2_100)
    assert machine.on_input(Flush(), 2_100) == []


def test_a_changed_list_of_gpus_is_told_once() -> None:
    machine = opened()
    machine.on_input(GpusFound(gpus=()), 300)
    (message,) = sent(machine.on_input(Flush(), 300))
    assert message.WhichOneof("body") == "inventory"
    machine.on_input(Written(address="m:1"), 310)
    machine.on_input(GpusFound(gpus=()), 320)
    assert machine.on_input(Flush(), 320) == []


def test_no_heartbeat_behind_a_changed_list_carries_samples_from_before_it() -> None:
    machine = opened()
    machine.on_input(GpusFound(gpus=()), 300)
    machine.on_input(Flush(), 300)
    machine.on_input(Written(address="m:1"), 310)
    (beat,) = sent(machine.on_input(Woke(), 5_200))
    assert beat.WhichOneof("body") == "heartbeat"
    assert not beat.heartbeat.samples


def test_a_check_is_handed_on_and_its_answer_follows_a_fresh_heartbeat() -> None:
    """The heartbeat tells whether the fault is gone; the answer must not overtake it."""
    machine = opened()
    ask = pb.FromScheduler(orders=pb.Orders(checks=[pb.Check(uuid="GPU-a", number=3)]))
    outputs = machine.on_input(Received(address="m:1", message=ask), 300)
    assert [output for output in outputs if isinstance(output, CheckCard)] == [
        CheckCard(gpu_id=GPU.id, number=3)
    ]
    machine.on_input(CardChecked(gpu_id=GPU.id, number=3, ok=False, evidence="lost"), 400)
    (beat,) = sent(machine.on_input(Flush(), 400))
    assert beat.WhichOneof("body") == "heartbeat"
    (answer,) = sent(machine.on_input(Written(address="m:1"), 410))
    assert answer.checked == pb.Checked(uuid="GPU-a", number=3, ok=False, evidence="lost")


def test_an_answer_of_an_old_stream_is_not_sent_on_a_new_one() -> None:
    """The scheduler asks again with its welcome."""
    machine = opened()
    machine.on_input(CardChecked(gpu_id=GPU.id, number=3, ok=True, evidence="well"), 400)
    machine.on_input(Disconnected(address="m:1"), 500)
    machine.on_input(Woke(), 5_000)
    machine.on_input(Connected(address="m:1"), 5_100)
    machine.on_input(Written(address="m:1"), 5_110)
    machine.on_input(welcome(), 5_200)
    outputs = sent(machine.on_input(Written(address="m:1"), 5_300)) + sent(machine.on_input(Flush(), 5_400))
    assert all(message.WhichOneof("body") != "checked" for message in outputs)


def test_an_epoch_that_cannot_be_saved_is_not_waited_for_for_ever() -> None:
    machine = session(epoch=4)
    machine.on_input(Begin(), 0)
    machine.on_input(Connected(address="m:1"), 100)
    assert machine.on_input(welcome(epoch=5), 200) == [SaveEpoch(address="m:1", joined=Joined(epoch=5))]
    assert machine.on_input(Woke(), 10_100) == [HangUp(address="m:1", reason="no answer")]
    machine.on_input(Disconnected(address="m:1"), 10_101)
    assert machine.on_input(Woke(), machine.wake_at_ms) == [Dial(address="m:1")]


def test_an_acknowledgement_that_came_with_orders_is_heard_before_them() -> None:
    machine = opened()
    machine.on_input(report(1), 300)
    machine.on_input(Flush(), 300)
    start = pb.Start(lease_id=2, task_id=12, attempt=1, detail=b"{}")
    orders = pb.Orders(starts=[start], reports_ack=1)
    outputs = machine.on_input(Received(address="m:1", message=pb.FromScheduler(orders=orders)), 310)
    assert outputs == [
        Acked(started=(LeaseId(1),), finished=(LeaseId(1),)),
        Ordered(starts=(RunOrder(lease_id=LeaseId(2), task_id=TaskId(12), attempt=1),)),
    ]
