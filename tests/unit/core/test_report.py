"""How attempts end."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, node, run_pass, task, tried
from dgpu.core.commands import CancelTasks, ObserveGpu, ReportStarted
from dgpu.core.events import ObservationChanged, TaskFinished, TaskRequeued
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Restart, TaskStatus
from dgpu.core.rejections import StaleLease
from dgpu.core.state import gpu_status


def running(**more):
    state = cluster(node("n1", gpus=2), task(**more))
    run_pass(state)
    do(state, ReportStarted(lease_id=1))
    return state


def test_a_start_is_noted_once_at_the_time_the_node_says() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    placed_at = state.last_at
    do(state, ReportStarted(lease_id=1, ago_ms=5), at=placed_at + 20)
    assert state.tasks[1].started_at == placed_at + 15
    assert do(state, ReportStarted(lease_id=1)) == ()


def test_a_start_is_never_before_its_placement() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    placed_at = state.last_at
    do(state, ReportStarted(lease_id=1, ago_ms=60_000))
    assert state.tasks[1].started_at == placed_at


def test_a_report_on_a_released_lease_is_refused() -> None:
    """A node given up for lost must not finish a task now leased elsewhere."""
    state = running()
    do(state, finished(1))
    assert tried(state, finished(1)) == StaleLease(lease_id=1)
    assert tried(state, ReportStarted(lease_id=1)) == StaleLease(lease_id=1)


@pytest.mark.parametrize(
    ("report", "status", "exit_code", "reason", "error"),
    [
        ({"exit_code": 0}, TaskStatus.SUCCESS, 0, "", ""),
        ({"exit_code": 3}, TaskStatus.FAILED, 3, "exit_code", "exited with code 3"),
        (
            {"outcome": Outcome.SIGNALED, "signal": 9},
            TaskStatus.FAILED,
            137,
            "signal",
            "killed by signal 9 (SIGKILL)",
        ),
        (
            {"outcome": Outcome.SIGNALED, "signal": 40},
            TaskStatus.FAILED,
            168,
            "signal",
            "killed by signal 40",
        ),
        ({"outcome": Outcome.TIMEOUT}, TaskStatus.FAILED, None, "timeout", "timed out after 60 s"),
        (
            {"outcome": Outcome.CANNOT_START, "error": "no such file: trian.py"},
            TaskStatus.FAILED,
            None,
            "cannot_start",
            "could not be started: no such file: trian.py",
        ),
    ],
)
def test_an_end_is_told_in_a_word_for_programs_and_a_line_for_people(
    report, status, exit_code, reason, error
) -> None:
    state = running(timeout_ms=60_000)
    do(state, finished(1, **report))
    ended = state.tasks[1]
    assert (ended.status, ended.exit_code, ended.reason, ended.error) == (status, exit_code, reason, error)
    assert ended.finished_at == ended.ended_at == state.last_at
    assert state.leases == {}
    assert state.gpu_counts()[GpuStatus.IDLE] == 2


def test_an_end_reported_late_keeps_the_time_at_which_it_was() -> None:
    state = running()
    started_at = state.tasks[1].started_at
    do(state, finished(1, ago_ms=2_000), at=started_at + 10_000)
    assert state.tasks[1].finished_at == started_at + 8_000
    assert state.tasks[1].ended_at == started_at + 10_000


def test_the_fault_of_a_node_is_retried_with_doubling_delays_then_the_task_fails() -> None:
    state = cluster(
        node("n1"), task(max_retries=3), settings=Settings(retry_delay_ms=1_000, max_retry_delay_ms=3_000)
    )
    delays = []
    for attempt in (1, 2, 3, 4):
        assert run_pass(state, at=max(state.last_at, state.tasks[1].eligible_at)) == [1]
        assert state.tasks[1].attempt == attempt
        do(state, finished(attempt, outcome=Outcome.NODE_FAULT, error="disk full"))
        delays.append(state.tasks[1].eligible_at - state.last_at)
    assert delays[:3] == [1_000, 2_000, 3_000]
    assert state.tasks[1].status is TaskStatus.FAILED
    assert (state.tasks[1].reason, state.tasks[1].error) == ("infrastructure", "the node failed: disk full")


def test_its_own_failure_is_final_by_default() -> None:
    state = running(max_retries=3)
    do(state, finished(1, exit_code=1))
    assert state.tasks[1].status is TaskStatus.FAILED


@pytest.mark.parametrize(
    "report", [{"exit_code": 1}, {"outcome": Outcome.SIGNALED, "signal": 11}, {"outcome": Outcome.TIMEOUT}]
)
def test_restart_on_failure_retries_its_own_failures_and_keeps_the_last_reason(report) -> None:
    state = running(max_retries=1, restart=Restart.ON_FAILURE)
    again = do(state, finished(1, **report))[-1]
    assert isinstance(again, TaskRequeued)
    assert again.counted
    run_pass(state, at=again.eligible_at)
    do(state, finished(2, **report))
    assert state.tasks[1].status is TaskStatus.FAILED
    assert state.tasks[1].reason in {"exit_code", "signal", "timeout"}


def test_restart_on_failure_leaves_a_success_alone() -> None:
    state = running(restart=Restart.ON_FAILURE)
    do(state, finished(1))
    assert state.tasks[1].status is TaskStatus.SUCCESS


def test_a_service_starts_again_whenever_it_ends_until_it_is_cancelled() -> None:
    state = running(restart=Restart.ALWAYS, max_retries=0)
    for lease_id in range(1, 6):
        do(state, finished(lease_id, exit_code=lease_id % 2))
        assert state.tasks[1].status is TaskStatus.PENDING
        assert run_pass(state, at=state.tasks[1].eligible_at) == [1]
    do(state, CancelTasks(task_ids=(1,)))
    do(state, finished(6))
    assert state.tasks[1].status is TaskStatus.CANCELLED


def test_a_service_that_lived_long_comes_back_soon_however_often_it_ended_before() -> None:
    state = running(restart=Restart.ALWAYS)
    do(state, finished(1, exit_code=1))
    run_pass(state, at=state.tasks[1].eligible_at)
    do(state, finished(2))
    assert state.tasks[1].retries == 2
    run_pass(state, at=state.tasks[1].eligible_at)
    do(state, ReportStarted(lease_id=3))
    do(state, finished(3), at=state.last_at + 60_000)
    assert state.tasks[1].eligible_at == state.last_at + 1_000
    assert state.tasks[1].retries == 2


def test_what_was_stopped_by_us_but_not_cancelled_waits_again_uncounted() -> None:
    state = running()
    do(state, finished(1, outcome=Outcome.STOPPED))
    waiting = state.tasks[1]
    assert (waiting.status, waiting.retries, waiting.eligible_at) == (TaskStatus.PENDING, 0, 0)


def test_a_gpu_whose_memory_was_not_released_is_not_used_until_an_observation_clears_it() -> None:
    state = cluster(node("n1", gpus=2), task(2), task(1))
    run_pass(state)
    events = do(state, finished(1, stuck_gpus=("GPU-n1-0", "GPU-n1-1", "GPU-of-nobody")))
    # The faults come first: the cards are never idle in between.
    assert [type(event) for event in events] == [ObservationChanged, ObservationChanged, TaskFinished]
    assert gpu_status(state, state.gpus["GPU-n1-0"]) is GpuStatus.ERROR
    assert state.gpus["GPU-n1-0"].fault == "memory not released by task-1"
    assert run_pass(state) == []
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=0))
    assert run_pass(state) == [2]
