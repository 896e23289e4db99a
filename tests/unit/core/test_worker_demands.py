"""What workers ask for, and how many an app has."""

from __future__ import annotations

from building import cluster, do, finished, node, run_pass
from building.calls import app, call, returned, with_workers
from dgpu.core.commands import ReportWorkers, WorkerReport
from dgpu.core.invariants import check_invariants
from dgpu.core.model.task import Outcome, TaskStatus


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
