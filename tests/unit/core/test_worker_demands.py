"""What workers ask for, how many an app has, and when a busy one gives way."""

from __future__ import annotations

from building import cluster, do, finished, node, run_pass, task
from building.calls import app, call, returned, with_workers
from dgpu.core.commands import CancelTasks, ReportWorkers, RunPass, SubmitTasks, WorkerReport
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.core.model.task import Outcome, TaskStatus
from dgpu.core.state import ClusterState

TURN_MS = 600_000  # worker.turn_seconds


def test_the_estimate_of_a_model_learns_from_a_call_that_ran_out_of_memory() -> None:
    state = with_workers(cluster(node("n1"), call(model="m1", max_retries=2)))
    run_pass(state)
    events = do(state, returned(2, Outcome.OUT_OF_MEMORY))
    assert [type(event).__name__ for event in events] == ["EstimateLearned", "CallReturned", "TaskFinished"]
    assert (state.tasks[1].status, state.tasks[1].reason) == (TaskStatus.FAILED, "out_of_memory")
    check_invariants(state)


def test_the_next_worker_of_an_app_asks_for_more_after_a_call_ran_out_of_memory() -> None:
    state = with_workers(cluster(node("n1"), call(max_retries=2)))
    do(state, node("n2", gpus=1, memory_mb=32_768))
    run_pass(state)
    assert state.shapes[state.tasks[2].shape_id].gpu_memory_mb == 0
    do(state, returned(2, Outcome.OUT_OF_MEMORY))
    do(state, finished(1))
    do(state, call())
    (worker,) = run_pass(state)
    assert state.shapes[state.tasks[worker].shape_id].gpu_memory_mb > 16_384
    assert state.tasks[worker].node_id == "n2"
    check_invariants(state)


def test_no_worker_asks_for_more_than_any_gpu_has() -> None:
    state = with_workers(cluster(node("n1"), call(max_retries=2)))
    run_pass(state)
    do(state, returned(2, Outcome.OUT_OF_MEMORY))
    do(state, finished(1))
    do(state, call())
    (worker,) = run_pass(state)
    assert state.shapes[state.tasks[worker].shape_id].gpu_memory_mb == 0


def test_a_worker_that_its_node_gave_up_does_not_come_back() -> None:
    """Its app may have another one in its place by then."""
    state = with_workers(cluster(node("n1", gpus=2), call(app(max_workers=1))))
    do(state, ReportWorkers(workers=(WorkerReport(lease_id=1, ready=True, down="silent"),)))
    do(state, ReportWorkers(workers=(WorkerReport(lease_id=1, ready=True),)))
    assert state.workers[2].down == "silent"


def busy_worker(*, priority: int = 50) -> ClusterState:
    """One GPU; the worker has ended a call, has as many as it may, and some wait."""
    state = with_workers(cluster(node("n1"), call(app(max_workers=1, priority=priority), count=100)))
    run_pass(state)
    do(state, returned(2, ran_ms=80))
    run_pass(state)
    return state


def full_pass(state: ClusterState, at: int) -> list[str]:
    return [type(event).__name__ for event in do(state, RunPass(full=True), at=at)]


def test_a_worker_that_is_never_idle_gives_way_after_its_turn() -> None:
    state = busy_worker()
    (waiting,) = submitted(state, task())
    begin = state.last_at
    assert full_pass(state, begin + TURN_MS - 1) == []
    assert full_pass(state, begin + TURN_MS) == ["WorkerChanged"]
    assert state.workers[TaskId(101)].retires_for == waiting
    assert full_pass(state, begin + TURN_MS + 1) == [], "one worker is enough"
    (blocker,) = explain(state, 100, state.last_at).blockers[:1]
    assert "takes no more calls, because task-102 waits for the GPU" in blocker.detail
    for lease_id in list(state.crews.calls_of(LeaseId(1))):
        do(state, returned(lease_id))
        assert run_pass(state) == []
    assert state.leases[LeaseId(1)].stopping == "gave_way"
    do(state, finished(1))
    assert run_pass(state) == [waiting]
    check_invariants(state)


def test_a_worker_takes_calls_again_if_the_task_no_longer_waits() -> None:
    state = busy_worker()
    (waiting,) = submitted(state, task())
    full_pass(state, state.last_at + TURN_MS)
    do(state, CancelTasks(task_ids=(waiting,)))
    for lease_id in list(state.crews.calls_of(LeaseId(1))):
        do(state, returned(lease_id))
    assert run_pass(state) != []
    check_invariants(state)


def test_a_task_of_a_lower_priority_ends_no_turn() -> None:
    state = busy_worker(priority=60)
    submitted(state, task())
    assert full_pass(state, state.last_at + TURN_MS) == []


def submitted(state: ClusterState, command: SubmitTasks) -> list[TaskId]:
    first = state.next_task_id
    do(state, command)
    return [TaskId(each) for each in range(first, state.next_task_id)]
