"""Workers of a node and their calls: inputs in, exact outputs out."""

from __future__ import annotations

import pytest

from dgpu.agent.lifecycle_words import KeepOutput, OutputStored, StartRuns, ThawRuns
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunsFrozen, RunsListed, RunsStarted
from dgpu.agent.session_words import (
    Received,
    Sampled,
)
from dgpu.agent.workers.machine import DRAIN_MS, HELLO_MS, LEAVE_MS
from dgpu.agent.workers.words import (
    ArgumentsStored,
    CallOutputClosed,
    CloseCallOutput,
    ConnectWorker,
    DeleteCallOutput,
    FetchArguments,
    HangUpWorker,
    PutResult,
    ResultStored,
    WorkerHungUp,
    WriteCallOutput,
)
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.core.model.task import Outcome
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.worker import frames
from worker_node import (
    GPU,
    GRACE_MS,
    SETUP,
    WORKER,
    Node,
    call,
    done,
    node_with_worker,
    start,
)


def test_a_worker_is_started_connected_and_told_as_ready() -> None:
    node = Node().feed(RunsListed(runs=())).connect()
    node.order(starts=[start()])
    assert [output.orders[0].worker for output in node.take(StartRuns)] == [SETUP]
    assert node.take(ConnectWorker) == []
    node.feed(RunsStarted(started=((WORKER, node.now_ms),)))
    assert node.take(ConnectWorker) == [ConnectWorker(lease_id=WORKER)]
    model = frames.ModelState(name="m", memory_mb=9, load_ms=70, used_ago_ms=0)
    node.say(frames.Hello(protocol=1, pid=5, models=(model,)), frames.Ready())
    state = node.messages[-1].workers.states[0]
    assert (state.lease_id, state.ready, [each.name for each in state.models]) == (WORKER, True, ["m"])


def test_a_call_goes_to_its_worker_and_its_result_to_the_scheduler() -> None:
    node = node_with_worker()
    node.order(calls=[call(20), call(21, model="m", timeout_ms=9)])
    told = node.told()
    assert [(each.lease, each.task_id, each.nonce) for each in told] == [(20, 120, "x"), (21, 121, "x")]
    node.say(done(20, result=b"\x01"), done(21, "raised", error="ValueError: no", traceback="t"))
    assert node.returned() == [(20, "returned", ""), (21, "raised", "ValueError: no")]
    assert len([message for message in node.messages if message.reports.returned]) == 1
    assert node.told() == []
    node.ack_all()
    assert node.told() == [frames.Taken(leases=(20, 21))]
    assert node.machine.held() == node.machine.lifecycle.held()


def test_a_long_call_is_reported_as_started() -> None:
    node = node_with_worker()
    node.order(calls=[call()]).say(frames.Started(lease=20))
    assert [each.lease_id for message in node.messages for each in message.reports.started] == [20]
    (held,) = [each for each in node.machine.held() if each.worker_lease_id]
    assert (held.lease_id, held.task_id, held.state.value, held.worker_lease_id) == (20, 120, "running", 7)


def test_calls_wait_for_the_hello_of_their_worker() -> None:
    node = Node().feed(RunsListed(runs=())).connect()
    node.order(starts=[start()], calls=[call()])
    node.feed(RunsStarted(started=((WORKER, node.now_ms),)))
    assert node.told() == []
    node.say(frames.Hello(protocol=1, pid=5))
    assert [each.lease for each in node.told()] == [20]


def test_calls_of_a_worker_that_died_are_lost_with_its_last_words_and_reported_before_its_end() -> None:
    node = node_with_worker()
    node.order(calls=[call(20), call(21)])
    node.end_run(outcome=Outcome.SIGNALED, signal=9, error="Killed")
    assert node.returned() == []  # the last bytes of its connection may still hold an end
    node.say(done(20))
    node.feed(WorkerHungUp(lease_id=WORKER))
    assert node.returned() == [
        (20, "returned", ""),
        (21, "worker_lost", "its worker was killed by signal 9: Killed"),
    ]
    assert node.take(HangUpWorker) == [HangUpWorker(lease_id=WORKER)]
    assert "releasing" in [lease.state.value for lease in node.machine.lifecycle.held()]


def test_the_end_of_a_worker_waits_only_a_moment_for_its_connection() -> None:
    node = node_with_worker()
    node.order(calls=[call()]).end_run(exit_code=1)
    node.wait(DRAIN_MS)
    assert node.returned() == [(20, "worker_lost", "its worker exited with code 1")]


def test_a_used_number_is_refused_and_a_repeated_order_is_answered_again() -> None:
    node = node_with_worker()
    node.order(calls=[call()])
    node.order(calls=[call()])
    assert len(node.told()) == 1
    node.say(done())
    node.order(calls=[call()])
    assert node.returned() == [(20, "returned", "")] * 2
    node.ack_all()
    node.order(calls=[call()])
    assert node.returned()[-1][:2] == (20, "worker_lost")


def test_a_waiting_call_is_cancelled_by_the_node_and_a_running_one_by_the_worker() -> None:
    node = node_with_worker()
    node.order(calls=[call(20, args_ref="a" * 64), call(21)])
    assert node.take(FetchArguments) == [
        FetchArguments(lease_id=LeaseId(20), worker_lease_id=WORKER, sha256="a" * 64)
    ]
    node.order(stops=[pb.Stop(lease_id=20, reason="cancelled"), pb.Stop(lease_id=21, reason="cancelled")])
    assert node.returned() == [(20, "cancelled", "stopped before it was started")]
    assert node.told()[1:] == [frames.Cancel(lease=21)]
    node.say(done(21, "raised", error="KeyboardInterrupt"))
    assert node.returned()[1:] == [(21, "cancelled", "KeyboardInterrupt")]
    assert node.stops() == []


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "timeout"])
def test_a_call_that_does_not_end_takes_its_worker_with_it(cancelled: bool) -> None:
    node = node_with_worker()
    node.order(calls=[call(20, timeout_ms=3_000), call(21)]).say(frames.Started(lease=20))
    if cancelled:
        node.order(stops=[pb.Stop(lease_id=20, reason="cancelled")])
    limit_ms = GRACE_MS if cancelled else GRACE_MS + 3_000
    node.wait(limit_ms - 500)
    assert node.stops() == []
    node.wait(500)
    assert node.stops() == [(WORKER, 0)]
    node.feed(WorkerHungUp(lease_id=WORKER)).end_run(outcome=Outcome.STOPPED, signal=9)
    assert [each[:2] for each in node.returned()] == [
        (20, "cancelled" if cancelled else "timeout"),
        (21, "worker_lost"),
    ]


def test_a_worker_without_a_heartbeat_is_ended_and_its_gpu_is_faulty() -> None:
    node = node_with_worker()
    node.wait(29_500)
    node.say(frames.Beat(at=1.0))
    node.wait(29_500)
    assert node.stops() == []
    node.wait(500)
    assert node.stops() == [(WORKER, 0)]
    state = node.messages[-1].workers.states[0]
    assert (state.lease_id, state.down) == (WORKER, "no heartbeat for 30 s")
    node.feed(Sampled(samples=(Sample(gpu_id=GPU),)))
    node.wait(6_000)
    beat = next(message for message in reversed(node.messages) if message.heartbeat.seq)
    assert beat.heartbeat.samples[0].fault == "a worker on it gave no heartbeat for 30 s"
    node.feed(WorkerHungUp(lease_id=WORKER)).end_run(outcome=Outcome.STOPPED, signal=9)
    assert WORKER not in node.machine.workers.book.workers


def test_time_limits_do_not_count_the_time_of_a_freeze() -> None:
    node = node_with_worker()
    node.order(calls=[call(20, timeout_ms=3_000)]).say(frames.Started(lease=20))
    node.feed(RunsFrozen(lease_ids=(WORKER,)))
    node.wait(100_000)
    assert node.stops() == []
    seq = max(message.heartbeat.seq for message in node.messages)
    ack = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=seq))
    node.feed(Received(address="m:1", message=ack))
    assert [thaw.lease_ids for thaw in node.take(ThawRuns)] == [(WORKER,)]
    node.wait(12_500)
    assert node.stops() == []
    node.wait(1_000)
    assert node.stops() == [(WORKER, 0)]


def test_an_idle_worker_leaves_by_itself_when_it_is_stopped() -> None:
    node = node_with_worker()
    node.order(stops=[pb.Stop(lease_id=WORKER, reason="gave_way")])
    assert (node.told(), node.stops()) == ([frames.Leave()], [])
    node.feed(WorkerHungUp(lease_id=WORKER)).end_run()
    (lease,) = node.machine.lifecycle.held()
    assert lease.state.value == "releasing"
    assert node.machine.lifecycle._leases[WORKER].end.outcome is Outcome.STOPPED


def test_a_worker_that_does_not_leave_is_stopped_as_any_run() -> None:
    node = node_with_worker()
    node.order(stops=[pb.Stop(lease_id=WORKER, reason="idle")])
    node.wait(LEAVE_MS)
    assert node.stops() == [(WORKER, GRACE_MS)]


def test_a_worker_with_work_is_stopped_at_once() -> None:
    node = node_with_worker()
    node.order(calls=[call()], stops=[pb.Stop(lease_id=WORKER, reason="cancelled")])
    assert node.stops() == [(WORKER, GRACE_MS)]


def test_calls_of_a_lost_connection_are_sent_again_only_if_the_worker_does_not_have_them() -> None:
    node = node_with_worker()
    node.order(calls=[call(20), call(21)])
    assert len(node.told()) == 2
    node.feed(WorkerHungUp(lease_id=WORKER))
    node.order(stops=[pb.Stop(lease_id=21, reason="cancelled")])
    node.say(frames.Hello(protocol=1, pid=5, calls=(frames.HeldCall(lease=20, state="running"),)))
    assert [type(each).__name__ for each in node.told()] == ["Call", "Cancel"]
    assert node.stops() == []


def test_a_worker_that_breaks_the_protocol_is_ended_with_the_reason() -> None:
    node = node_with_worker()
    node.order(calls=[call()])
    node.feed(WorkerHungUp(lease_id=WORKER, broken="not a frame"))
    assert node.stops() == [(WORKER, 0)]
    node.end_run(outcome=Outcome.STOPPED, signal=9)
    assert node.returned()[0][2].endswith("the worker broke the protocol: not a frame")


def test_a_worker_of_another_protocol_and_one_that_never_answers_are_ended() -> None:
    node = Node().feed(RunsListed(runs=())).connect().order(starts=[start()])
    node.feed(RunsStarted(started=((WORKER, node.now_ms),)))
    node.wait(HELLO_MS - 500)
    assert node.stops() == []
    node.wait(500)
    assert node.stops() == [(WORKER, 0)]
    other = Node().feed(RunsListed(runs=())).connect().order(starts=[start()])
    other.feed(RunsStarted(started=((WORKER, other.now_ms),))).say(frames.Hello(protocol=9, pid=5))
    assert other.stops() == [(WORKER, 0)]


def test_output_of_a_call_is_written_kept_and_deleted() -> None:
    node = node_with_worker()
    node.order(calls=[call(20), call(21)])
    node.say(frames.Output(lease=20, stream=2, data=b"oh"))
    assert node.take(WriteCallOutput) == [
        WriteCallOutput(lease_id=LeaseId(20), worker_lease_id=WORKER, stream=1, data=b"oh")
    ]
    node.say(done(20), done(21))
    assert node.take(CloseCallOutput) == [CloseCallOutput(lease_id=LeaseId(20))]
    assert node.machine.is_running(LeaseId(20))  # a reader must not stop before the last bytes
    node.ack_all()
    node.feed(CallOutputClosed(lease_id=LeaseId(20), output_bytes=2))
    assert node.take(KeepOutput) == [
        KeepOutput(lease_id=LeaseId(20), task_id=TaskId(120), attempt=1, output_bytes=2)
    ]
    assert node.machine.run_of(LeaseId(20)) == (TaskId(120), 1)
    node.feed(OutputStored(lease_ids=(LeaseId(20),)))
    assert node.take(DeleteCallOutput) == [DeleteCallOutput(lease_ids=(LeaseId(20),))]
    assert node.machine.run_of(LeaseId(20)) is None


def test_large_arguments_and_results_travel_beside_the_frames() -> None:
    node = node_with_worker()
    node.order(calls=[call(args_ref="a" * 64)])
    node.feed(ArgumentsStored(lease_id=LeaseId(20), worker_lease_id=WORKER, name="args-20"))
    assert [each.args_file for each in node.told()] == ["args-20"]
    node.say(done(result_file="r", sha256="b" * 64, size=9))
    assert node.take(PutResult) == [
        PutResult(lease_id=LeaseId(20), worker_lease_id=WORKER, name="r", sha256="b" * 64, size=9)
    ]
    assert node.returned() == []
    node.feed(ResultStored(lease_id=LeaseId(20)))
    (report,) = [each for message in node.messages for each in message.reports.returned]
    assert (report.outcome, report.ref, report.size, report.result) == ("returned", "b" * 64, 9, b"")


def test_a_result_that_is_too_large_for_a_report_fails_its_call_only() -> None:
    """The scheduler takes such a report for a fault of the node and ends its session."""
    node = node_with_worker()
    node.order(calls=[call()])
    node.say(done(result=b"x" * (frames.MAX_INLINE_BYTES + 1)))
    (report,) = [each for message in node.messages for each in message.reports.returned]
    assert (report.outcome, report.result) == ("cannot_encode", b"")
    assert "262,145 bytes within a frame" in report.error


def test_progress_and_models_are_told_and_models_are_in_the_samples() -> None:
    node = node_with_worker()
    node.order(calls=[call()])
    node.say(
        frames.Progress(lease=20, permille=1_400, text="epoch 2"),
        frames.Models(models=(frames.ModelState(name="m"), frames.ModelState(name="n", loading=True))),
    )
    workers = node.messages[-1].workers
    assert [(each.lease_id, each.permille, each.text) for each in workers.progress] == [
        (20, 1_000, "epoch 2")
    ]
    assert [(each.name, each.loading) for each in workers.states[0].models] == [("m", False), ("n", True)]
    (sample,) = node.machine.workers.with_models((Sample(gpu_id=GPU),), node.now_ms)
    assert sample.loaded_models == ("m",)


def test_a_call_is_taken_back_only_before_it_begins_and_never_ends_its_worker() -> None:
    node = node_with_worker()
    node.order(calls=[call(20), call(21)])
    node.say(frames.Started(lease=20))
    node.order(stops=[pb.Stop(lease_id=20, reason="taken_back"), pb.Stop(lease_id=21, reason="taken_back")])
    assert node.told()[2:] == [frames.Cancel(lease=21, queued=True)]
    node.say(frames.Done(lease=21, outcome="cancelled", error="taken back before it began"))
    assert node.returned() == [(21, "cancelled", "taken back before it began")]
    node.wait(GRACE_MS * 2)
    assert node.stops() == []
