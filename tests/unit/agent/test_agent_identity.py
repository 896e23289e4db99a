"""A node that still holds runs of another journal: none of them is taken for an order, and no order is ignored."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import (
    DropOutput,
    ForgetRuns,
    GpusReleased,
    KeepOutput,
    Ordered,
    Report,
    StartRuns,
    Welcomed,
)
from dgpu.agent.run.runner import KnownRun, RunEnd, RunOrder, RunsEnded, RunsListed
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from dgpu.core.model.task import Outcome

L1 = LeaseId(1 << 32 | 1)
GPU = GpuId("GPU-a")
OLD = KnownRun(
    lease_id=L1, task_id=TaskId(1), attempt=1, gpu_ids=(GPU,), started_at_ms=5, nonce="old", cluster_id="old"
)
ORDER = RunOrder(lease_id=L1, task_id=TaskId(77), attempt=1, gpu_ids=(GPU,), nonce="new", cluster_id="new")
ENDED = RunEnd(lease_id=L1, outcome=Outcome.STOPPED, at_ms=30, output_bytes=10)


def joined_another(run: KnownRun = OLD) -> Lifecycle:
    """The keeper held a run of the old cluster; the new one does not keep it."""
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=(run,)), 10)
    lifecycle.on_input(Welcomed(keep=frozenset(), cluster_id="new"), 20)
    return lifecycle


def ends(outputs) -> list[tuple[LeaseId, Outcome, str]]:
    return [
        (run.end.lease_id, run.end.outcome, run.end.error)
        for output in outputs
        if isinstance(output, Report)
        for run in output.finished
    ]


def test_what_is_held_is_told_with_the_journal_it_is_of() -> None:
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=(OLD,)), 10)
    (held,) = lifecycle.held()
    assert (held.attempt, held.nonce, held.cluster_id) == (1, "old", "old")


def test_an_order_under_a_number_of_another_journal_ends_visibly_once_the_old_run_is_gone() -> None:
    """Before, the task "ran" forever: the number was known, so the order was ignored."""
    lifecycle = joined_another()
    assert not ends(lifecycle.on_input(Ordered(starts=(ORDER,)), 25)), "its processes still run"
    lifecycle.on_input(RunsEnded(ended=(ENDED,)), 30)
    outputs = lifecycle.on_input(GpusReleased(released=((L1, ()),)), 40)
    error = f"lease {L1} was not started: the number belongs to task-1 of another journal"
    assert ends(outputs) == [(L1, Outcome.NODE_FAULT, error)]
    assert not any(isinstance(output, StartRuns) for output in outputs)


def test_an_order_under_a_number_that_has_gone_ends_visibly() -> None:
    lifecycle = joined_another()
    lifecycle.on_input(RunsEnded(ended=(ENDED,)), 30)
    lifecycle.on_input(GpusReleased(released=((L1, ()),)), 40)
    outputs = lifecycle.on_input(Ordered(starts=(ORDER,)), 50)
    assert ends(outputs) == [
        (L1, Outcome.NODE_FAULT, f"lease {L1} was not started: the number has ended here before")
    ]


def test_an_order_for_a_run_that_was_given_up_ends_visibly() -> None:
    """A journal that lost its tail may grant the same number to the same task again."""
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=(OLD,)), 10)
    lifecycle.on_input(Welcomed(keep=frozenset(), cluster_id="old"), 20)
    again = replace(ORDER, task_id=TaskId(1), nonce="old", cluster_id="old")
    lifecycle.on_input(Ordered(starts=(again,)), 25)
    lifecycle.on_input(RunsEnded(ended=(ENDED,)), 30)
    outputs = lifecycle.on_input(GpusReleased(released=((L1, ()),)), 40)
    assert ends(outputs) == [
        (L1, Outcome.NODE_FAULT, f"lease {L1} was not started: the number was withdrawn before")
    ]


def test_a_repeated_order_is_still_answered_by_what_is_known() -> None:
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=(replace(OLD, nonce="", cluster_id=""),)), 10)
    lifecycle.on_input(Welcomed(keep=frozenset({L1}), cluster_id="new"), 20)
    repeated = replace(ORDER, task_id=TaskId(1))
    assert not ends(lifecycle.on_input(Ordered(starts=(repeated,)), 25)), (
        "its keeper is of an earlier version"
    )


def test_output_of_another_cluster_is_not_sent_to_this_one() -> None:
    lifecycle = joined_another()
    outputs = lifecycle.on_input(RunsEnded(ended=(ENDED,)), 30)
    outputs += lifecycle.on_input(GpusReleased(released=((L1, ()),)), 40)
    assert not any(isinstance(output, KeepOutput) for output in outputs)
    assert ForgetRuns(lease_ids=(L1,)) in outputs


def test_output_that_waited_for_the_old_cluster_is_dropped_with_its_run() -> None:
    lifecycle = Lifecycle()
    outputs = lifecycle.on_input(RunsListed(runs=(replace(OLD, gpu_ids=(), end=ENDED),)), 10)
    assert any(isinstance(output, KeepOutput) for output in outputs)
    outputs = lifecycle.on_input(Welcomed(keep=frozenset(), cluster_id="new"), 20)
    assert outputs == [DropOutput(lease_id=L1), ForgetRuns(lease_ids=(L1,))], "not sent, then deleted"


def test_an_end_that_nothing_waits_for_is_forgotten_by_the_runner() -> None:
    """Otherwise the runner would answer a later order under the same number with the exit code of another task."""
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=()), 0)
    end = RunEnd(lease_id=LeaseId(5), outcome=Outcome.EXITED, at_ms=1)
    assert lifecycle.on_input(RunsEnded(ended=(end,)), 1) == [ForgetRuns(lease_ids=(LeaseId(5),))]
