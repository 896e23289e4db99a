"""A keeper that does not answer, orders that do not start: machines without I/O."""

from __future__ import annotations

import pytest

from dgpu.agent.frames import OLDEST_PROTOCOL, PROTOCOL
from dgpu.agent.keeper_link import KeeperError, protocol_of
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import (
    LeaseState,
    Ordered,
    Report,
    StartRuns,
    StopRuns,
    Welcomed,
    Woke,
)
from dgpu.agent.lifeline import LeaseGuard, Lifeline
from dgpu.agent.pulse import MAX_UNANSWERED, Pulse
from dgpu.agent.run.runner import (
    RunEnd,
    RunnerFit,
    RunnerLost,
    RunOrder,
    RunsEnded,
    RunsListed,
    RunsStarted,
    StopOrder,
)
from dgpu.agent.session_words import Send, Written
from dgpu.agent.start_watch import NEVER_MS, START_MS
from dgpu.agent.task_leases import TaskLeases
from dgpu.core.model.ids import GpuId, LeaseId, TaskId
from dgpu.core.model.task import Outcome
from unit.agent.test_agent_session import opened

L1 = LeaseId(1)


def order(lease_id: LeaseId = L1) -> RunOrder:
    return RunOrder(lease_id=lease_id, task_id=TaskId(10), attempt=1, gpu_ids=(GpuId("g0"),))


def welcomed() -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle.on_input(RunsListed(runs=()), 0)
    lifecycle.on_input(Welcomed(keep=frozenset()), 1)
    return lifecycle


def finished(outputs: list) -> list[RunEnd]:
    return [run.end for output in outputs if isinstance(output, Report) for run in output.finished]


def test_an_order_that_no_runner_takes_is_given_back_at_its_deadline() -> None:
    """A keeper that cannot be started again: until now such an order stayed "running" for ever."""
    lifecycle = welcomed()
    lifecycle.on_input(RunnerLost(), 2)
    assert lifecycle.on_input(Ordered(starts=(order(),)), 3) == []
    assert lifecycle.wake_at_ms == 3 + START_MS
    assert lifecycle.on_input(Woke(), 3 + START_MS - 1) == []
    (end,) = finished(lifecycle.on_input(Woke(), 3 + START_MS))
    assert (end.outcome, end.error) == (Outcome.STOPPED, "withdrawn: not started within 30 s")
    assert lifecycle.wake_at_ms == NEVER_MS
    # The runner comes back: the order must not start any more.
    assert not any(
        isinstance(each, StartRuns) for each in lifecycle.on_input(RunsListed(runs=()), 4 + START_MS)
    )


def test_an_order_that_a_runner_may_have_started_is_withdrawn_and_reported_when_its_end_is_certain() -> None:
    lifecycle = welcomed()
    lifecycle.on_input(Ordered(starts=(order(),)), 0)
    stop = StopOrder(lease_id=L1, grace_ms=0, cause=Outcome.STOPPED)
    assert lifecycle.on_input(Woke(), START_MS) == [StopRuns(orders=(stop,))]
    assert lifecycle.state_of(L1) is LeaseState.STOPPING
    said = RunEnd(
        lease_id=L1, outcome=Outcome.STOPPED, at_ms=START_MS + 5, error="stopped before it was started"
    )
    (end,) = finished(lifecycle.on_input(RunsEnded(ended=(said,)), START_MS + 5))
    assert end.error == "withdrawn: not started within 30 s"


def test_a_withdrawn_order_whose_runner_died_before_it_started_has_ended() -> None:
    lifecycle = welcomed()
    lifecycle.on_input(Ordered(starts=(order(),)), 0)
    lifecycle.on_input(Woke(), START_MS)
    lifecycle.on_input(RunnerLost(), START_MS + 1)
    (end,) = finished(lifecycle.on_input(RunsListed(runs=()), START_MS + 2))
    assert end.outcome is Outcome.STOPPED


def test_an_order_that_started_in_time_is_left_alone() -> None:
    lifecycle = welcomed()
    lifecycle.on_input(Ordered(starts=(order(),)), 0)
    lifecycle.on_input(RunsStarted(started=((L1, 5),)), 5)
    assert lifecycle.wake_at_ms == NEVER_MS
    assert lifecycle.on_input(Woke(), START_MS) == []


def test_a_runner_that_says_it_is_unfit_is_told_to_the_scheduler_at_once() -> None:
    machine = opened()
    machine.on_input(Written(address="m:1"), 300)
    (sent,) = machine.on_input(RunnerFit(unfit="its keeper does not answer"), 400)
    assert isinstance(sent, Send)
    assert sent.message.heartbeat.unfit == "its keeper does not answer"
    machine.on_input(Written(address="m:1"), 500)
    assert machine.on_input(RunnerFit(unfit="its keeper does not answer"), 600) == []
    (sent,) = machine.on_input(RunnerFit(unfit=""), 700)
    assert isinstance(sent, Send)
    assert sent.message.heartbeat.unfit == ""


def test_a_keeper_that_leaves_pings_unanswered_is_silent_until_it_answers() -> None:
    pulse = Pulse()
    for number in range(1, 4):
        pulse.answered(pulse.tick())
        assert not pulse.is_silent, number
    for _ in range(MAX_UNANSWERED):
        last = pulse.tick()
        assert not pulse.is_silent
    pulse.tick()
    assert pulse.is_silent
    pulse.answered(last)
    assert not pulse.is_silent


def test_the_guard_acts_after_several_late_looks_and_not_after_one() -> None:
    """It may have been stopped together with its keeper, or with the whole machine."""
    lifeline, guard = Lifeline(), LeaseGuard()
    assert not guard.look(lifeline.enforce_by_ms, 10**9)
    lifeline.set(1_000)
    assert not guard.look(lifeline.enforce_by_ms, 900)
    assert not guard.look(lifeline.enforce_by_ms, 3_600_000)
    lifeline.set(3_700_000)
    assert not guard.look(lifeline.enforce_by_ms, 3_600_250)
    lifeline.set(1_000)
    looks = [guard.look(lifeline.enforce_by_ms, 2_000 + 250 * each) for each in range(6)]
    assert looks == [False] * 5 + [True]


def test_task_leases_tell_the_next_end_and_what_is_over() -> None:
    leases = TaskLeases()
    assert leases.hear("n1", 1_000, 500, "freeze") == 1_500
    assert leases.hear("n2", 1_000, 900, "stop") == 1_900
    assert leases.hear("n3", 1_000, 100, "never") == 0
    assert [leases.next_end_ms(at) for at in (1_000, 1_500, 1_900)] == [1_500, 1_900, 0]
    assert [leases.is_over(node, 1_600) for node in ("n1", "n2", "n3", "unknown")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("hello", "spoken"),
    [
        ({"protocol": 1}, 1),
        ({"protocol": PROTOCOL, "oldest": OLDEST_PROTOCOL}, PROTOCOL),
        ({"protocol": PROTOCOL + 5, "oldest": 1}, PROTOCOL),
    ],
)
def test_agent_and_keeper_speak_the_newest_protocol_that_both_know(hello, spoken) -> None:
    assert protocol_of(hello) == spoken


def test_a_keeper_without_a_common_protocol_is_refused_by_name() -> None:
    with pytest.raises(KeeperError, match=r"\(pid 7\) speaks protocol 98 to 99, this agent 1 to"):
        protocol_of({"protocol": 99, "oldest": 98, "pid": 7})
