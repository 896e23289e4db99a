"""Leases on a node: inputs in, exact outputs out."""

from __future__ import annotations

from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import (
    Acked,
    CheckRelease,
    FinishedRun,
    ForgetRuns,
    GpusReleased,
    HeldRun,
    KeepOutput,
    LeaseState,
    Ordered,
    OutputStored,
    Report,
    StartRuns,
    StopRuns,
    ThawRuns,
    Welcomed,
)
from dgpu.agent.run.runner import (
    KnownRun,
    RunEnd,
    RunnerLost,
    RunOrder,
    RunsEnded,
    RunsFrozen,
    RunsListed,
    RunsStarted,
    StopOrder,
)
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from dgpu.core.model.task import Outcome

L1, L2 = LeaseId(1), LeaseId(2)
GPU = GpuId("GPU-a")


def order(lease_id: LeaseId = L1, *gpus: GpuId) -> RunOrder:
    return RunOrder(lease_id=lease_id, task_id=TaskId(10 + lease_id), attempt=1, gpu_ids=gpus)


def end(lease_id: LeaseId = L1, **facts) -> RunEnd:
    return RunEnd(lease_id=lease_id, outcome=facts.pop("outcome", Outcome.EXITED), at_ms=50, **facts)


def ready() -> Lifecycle:
    lifecycle = Lifecycle(grace_ms=7_000)
    assert lifecycle.on_input(RunsListed(runs=()), 0) == []
    return lifecycle


def running(*orders: RunOrder) -> Lifecycle:
    lifecycle = ready()
    lifecycle.on_input(Ordered(starts=orders), 0)
    lifecycle.on_input(RunsStarted(started=tuple((each.lease_id, 5) for each in orders)), 5)
    return lifecycle


def test_a_start_is_given_to_the_runner_once_however_often_it_is_ordered() -> None:
    lifecycle = ready()
    assert lifecycle.on_input(Ordered(starts=(order(),)), 1) == [StartRuns(orders=(order(),))]
    assert lifecycle.on_input(Ordered(starts=(order(),)), 2) == []
    assert lifecycle.on_input(RunsStarted(started=((L1, 3),)), 3) == [Report(started=((L1, 3),))]
    assert lifecycle.on_input(Ordered(starts=(order(),)), 4) == []


def test_a_repeated_start_of_an_ended_lease_is_answered_by_its_report() -> None:
    lifecycle = running(order())
    report = Report(finished=(FinishedRun(end=end(exit_code=3)),))
    assert lifecycle.on_input(RunsEnded(ended=(end(exit_code=3),)), 50) == [report]
    assert lifecycle.on_input(Ordered(starts=(order(),)), 60) == [report]


def test_a_start_of_a_forgotten_lease_is_not_run_again_and_ends_visibly() -> None:
    """It ran and its end is durable, so a late message changes nothing. A journal that lost that end gets an answer."""
    lifecycle = running(order())
    lifecycle.on_input(RunsEnded(ended=(end(),)), 50)
    assert lifecycle.on_input(Acked(finished=(L1,)), 60) == [ForgetRuns(lease_ids=(L1,))]
    (report,) = lifecycle.on_input(Ordered(starts=(order(),)), 70)
    assert isinstance(report, Report)
    assert [(run.end.lease_id, run.end.outcome) for run in report.finished] == [(L1, Outcome.NODE_FAULT)]
    assert lifecycle.held() == []


def test_an_end_is_told_only_after_the_memory_of_its_gpus_is_free() -> None:
    lifecycle = running(order(L1, GPU))
    outputs = lifecycle.on_input(RunsEnded(ended=(end(),)), 50)
    assert outputs == [CheckRelease(leases=((L1, (GPU,)),), until_ms=10_050)]
    assert lifecycle.gpu_holders().keys() == {GPU}
    outputs = lifecycle.on_input(GpusReleased(released=((L1, (GPU,)),)), 10_050)
    assert outputs == [Report(finished=(FinishedRun(end=end(), stuck=(GPU,)),))]
    assert lifecycle.gpu_holders() == {}


def test_processes_that_cannot_be_killed_leave_their_gpus_stuck() -> None:
    lifecycle = running(order(L1, GPU))
    outputs = lifecycle.on_input(RunsEnded(ended=(end(unkilled=2),)), 50)
    assert outputs == [Report(finished=(FinishedRun(end=end(unkilled=2), stuck=(GPU,)),))]


def test_a_stop_gives_grace_and_a_second_one_changes_nothing() -> None:
    lifecycle = running(order())
    stop = StopOrder(lease_id=L1, grace_ms=7_000, cause=Outcome.STOPPED)
    assert lifecycle.on_input(Ordered(stops=((L1, "cancelled"),)), 6) == [StopRuns(orders=(stop,))]
    assert lifecycle.on_input(Ordered(stops=((L1, "cancelled"),)), 7) == []


def test_a_stop_for_a_time_limit_says_so() -> None:
    lifecycle = running(order())
    stop = StopOrder(lease_id=L1, grace_ms=7_000, cause=Outcome.TIMEOUT)
    assert lifecycle.on_input(Ordered(stops=((L1, "timeout"),)), 6) == [StopRuns(orders=(stop,))]


def test_a_stop_of_what_never_came_is_answered_and_fences_a_late_start() -> None:
    lifecycle = ready()
    stopped = end(outcome=Outcome.STOPPED, error="stopped before it was started")
    report = Report(finished=(FinishedRun(end=stopped),))
    assert lifecycle.on_input(Ordered(stops=((L1, "cancelled"),)), 50) == [report]
    assert lifecycle.on_input(Ordered(starts=(order(),)), 60) == [report]


def test_start_and_stop_in_one_message_reach_the_runner_in_order() -> None:
    outputs = ready().on_input(Ordered(starts=(order(),), stops=((L1, "cancelled"),)), 1)
    assert [type(output) for output in outputs] == [StartRuns, StopRuns]


def test_leases_that_the_scheduler_does_not_keep_end_at_once_and_unreported() -> None:
    lifecycle = running(order(L1), order(L2))
    outputs = lifecycle.on_input(Welcomed(keep=frozenset({L2})), 20)
    kill = StopOrder(lease_id=L1, grace_ms=0, cause=Outcome.STOPPED)
    assert outputs == [StopRuns(orders=(kill,)), Report(started=((L2, 5),))]
    assert [run.lease_id for run in lifecycle.held()] == [L2]
    assert lifecycle.on_input(RunsEnded(ended=(end(L1),)), 30) == [ForgetRuns(lease_ids=(L1,))]


def test_a_gpu_of_an_abandoned_lease_is_not_used_before_its_processes_have_gone() -> None:
    """The scheduler gave the lease away and may place the next task at once; the old one still holds the memory."""
    lifecycle = running(order(L1, GPU))
    lifecycle.on_input(Welcomed(keep=frozenset()), 20)
    assert lifecycle.on_input(Ordered(starts=(order(L2, GPU),)), 21) == []
    assert lifecycle.state_of(L2) is LeaseState.RECEIVED
    lifecycle.on_input(RunsEnded(ended=(end(L1),)), 30)
    outputs = lifecycle.on_input(GpusReleased(released=((L1, ()),)), 40)
    assert outputs == [ForgetRuns(lease_ids=(L1,)), StartRuns(orders=(order(L2, GPU),))]


def test_a_frozen_lease_that_still_stands_goes_on() -> None:
    lifecycle = running(order())
    lifecycle.on_input(RunsFrozen(lease_ids=(L1,)), 20)
    outputs = lifecycle.on_input(Welcomed(keep=frozenset({L1})), 30)
    assert outputs == [ThawRuns(lease_ids=(L1,)), Report(started=((L1, 5),))]


def test_unacknowledged_reports_are_told_again_after_a_new_welcome() -> None:
    lifecycle = running(order(L1), order(L2))
    lifecycle.on_input(Acked(started=(L1,)), 10)
    lifecycle.on_input(RunsEnded(ended=(end(L2),)), 50)
    outputs = lifecycle.on_input(Welcomed(keep=frozenset({L1, L2})), 60)
    assert outputs == [Report(started=((L2, 5),), finished=(FinishedRun(end=end(L2)),))]


def test_an_end_that_the_scheduler_knows_already_is_forgotten() -> None:
    """The acknowledgement was lost with the stream; the lease is no longer in what it keeps."""
    lifecycle = running(order())
    lifecycle.on_input(RunsEnded(ended=(end(),)), 50)
    assert lifecycle.on_input(Welcomed(keep=frozenset()), 60) == [ForgetRuns(lease_ids=(L1,))]


def test_output_is_kept_until_it_is_stored_and_the_end_acknowledged() -> None:
    lifecycle = running(order())
    outputs = lifecycle.on_input(RunsEnded(ended=(end(output_bytes=9),)), 50)
    assert outputs[0] == KeepOutput(lease_id=L1, task_id=TaskId(11), attempt=1, output_bytes=9)
    assert lifecycle.on_input(Acked(finished=(L1,)), 60) == []
    assert lifecycle.held() == []
    assert lifecycle.on_input(OutputStored(lease_ids=(L1,)), 70) == [ForgetRuns(lease_ids=(L1,))]


def test_a_start_of_an_acknowledged_lease_whose_output_waits_is_answered_by_its_report() -> None:
    """A journal that lost the end orders it again. Without an answer the task would run for ever."""
    lifecycle = running(order())
    lifecycle.on_input(RunsEnded(ended=(end(output_bytes=9),)), 50)
    lifecycle.on_input(Acked(finished=(L1,)), 60)
    report = Report(finished=(FinishedRun(end=end(output_bytes=9)),))
    assert lifecycle.on_input(Ordered(starts=(order(),)), 70) == [report]
    lifecycle.on_input(Acked(finished=(L1,)), 80)
    assert lifecycle.on_input(Ordered(stops=((L1, "cancelled"),)), 90) == [report]


def test_output_that_was_lost_is_told_like_output() -> None:
    lifecycle = running(order())
    outputs = lifecycle.on_input(RunsEnded(ended=(end(output_lost=9),)), 50)
    assert outputs[0] == KeepOutput(lease_id=L1, task_id=TaskId(11), attempt=1, lost_bytes=9)


def test_output_that_is_stored_first_waits_for_the_acknowledgement() -> None:
    lifecycle = running(order())
    lifecycle.on_input(RunsEnded(ended=(end(output_bytes=9),)), 50)
    assert lifecycle.on_input(OutputStored(lease_ids=(L1,)), 55) == []
    assert lifecycle.on_input(Acked(finished=(L1,)), 60) == [ForgetRuns(lease_ids=(L1,))]


def test_a_restarted_agent_adopts_what_its_keeper_holds() -> None:
    lifecycle = Lifecycle()
    runs = (
        KnownRun(lease_id=L1, task_id=TaskId(11), attempt=2, started_at_ms=5),
        KnownRun(lease_id=L2, task_id=TaskId(12), attempt=1, started_at_ms=6, end=end(L2, exit_code=7)),
    )
    lifecycle.on_input(RunsListed(runs=runs), 100)
    assert lifecycle.held() == [
        HeldRun(lease_id=L1, task_id=TaskId(11), state=LeaseState.RUNNING, attempt=2),
        HeldRun(lease_id=L2, task_id=TaskId(12), state=LeaseState.ENDED, attempt=1),
    ]
    outputs = lifecycle.on_input(Welcomed(keep=frozenset({L1, L2})), 110)
    assert outputs == [Report(started=((L1, 5), (L2, 6)), finished=(FinishedRun(end=end(L2, exit_code=7)),))]


def test_with_a_dead_keeper_its_leases_are_the_nodes_fault() -> None:
    lifecycle = running(order())
    lifecycle.on_input(RunnerLost(), 40)
    assert lifecycle.on_input(Ordered(starts=(order(L2),)), 41) == []
    lost = end(outcome=Outcome.NODE_FAULT, error="its keeper died")
    outputs = lifecycle.on_input(RunsListed(runs=()), 50)
    assert outputs == [Report(finished=(FinishedRun(end=lost),)), StartRuns(orders=(order(L2),))]


def test_a_runner_that_missed_a_forget_is_told_again() -> None:
    lifecycle = running(order())
    lifecycle.on_input(RunsEnded(ended=(end(),)), 50)
    lifecycle.on_input(Acked(finished=(L1,)), 60)
    known = KnownRun(lease_id=L1, task_id=TaskId(11), attempt=1, started_at_ms=5, end=end())
    assert lifecycle.on_input(RunsListed(runs=(known,)), 70) == [ForgetRuns(lease_ids=(L1,))]


def test_a_stop_that_the_runner_may_have_missed_is_told_again() -> None:
    """Given away, it may run elsewhere by now."""
    lifecycle = running(order(L1), order(L2))
    lifecycle.on_input(RunnerLost(), 40)
    lifecycle.on_input(Welcomed(keep=frozenset({L2})), 41)
    lifecycle.on_input(Ordered(stops=((L2, "timeout"),)), 42)
    known = tuple(
        KnownRun(lease_id=lease, task_id=TaskId(10 + lease), attempt=1, started_at_ms=5) for lease in (L1, L2)
    )
    again = StopRuns(
        orders=(
            StopOrder(lease_id=L1, grace_ms=0, cause=Outcome.STOPPED),
            StopOrder(lease_id=L2, grace_ms=7_000, cause=Outcome.TIMEOUT),
        )
    )
    assert lifecycle.on_input(RunsListed(runs=known), 50) == [again]
