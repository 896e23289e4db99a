"""Function calls: slots of warm workers."""

from __future__ import annotations

from collections.abc import Iterable

from building import cluster, do, finished, node, run_pass, task
from building.calls import app, call, ready, returned, with_workers
from building.lockstep import execute_alike
from dgpu.core.commands import CancelTasks, HeldLease, ReportStarted, RunPass, SetTenant, Tick
from dgpu.core.decide.schedule import pass_due
from dgpu.core.events import CallReturned, CallsFailed, Event, TaskFinished, TaskStopRequested
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.task import Outcome, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState, next_tick_at


def test_a_call_starts_a_worker_and_then_has_a_slot_of_it() -> None:
    """submit, worker, ready, slot, result."""
    state = cluster(node("n1"), call())
    assert run_pass(state) == [2], "the worker, which the pass submitted"
    assert state.tasks[2].worker_of == "job"
    assert state.tasks[1].status is TaskStatus.PENDING
    ready(state, 1)
    assert state.workers[2].idle_since == state.last_at
    assert run_pass(state) == [1]
    slot = state.leases[state.tasks[1].lease_id]
    assert (slot.worker, slot.gpu_ids, slot.node_id) == (1, (), "n1")
    assert state.workers[2].idle_since == 0
    check_invariants(state)
    *_, result, end = do(state, returned(slot.id, ran_ms=0))
    assert isinstance(result, CallReturned)
    assert isinstance(end, TaskFinished)
    assert (result.task_id, result.result, result.encoding) == (1, b"\xc0", "msgpack")
    assert (state.tasks[1].status, state.tasks[1].exit_code) == (TaskStatus.SUCCESS, 0)
    assert state.workers[2].idle_since == state.last_at
    check_invariants(state)


def test_the_worker_is_charged_and_its_calls_are_not() -> None:
    state = with_workers(cluster(node("n1"), call(app(tenant="lab"))))
    run_pass(state)
    account = state.accounts.by_tenant["lab"]
    assert (account.running, account.milli) == (1, 1_000)


def test_workers_are_as_many_as_calls_wait_up_to_the_limit() -> None:
    state = cluster(node("n1", gpus=4), call(app(max_workers=3), count=10))
    assert run_pass(state) == [11, 12, 13]


def test_short_calls_queue_at_a_worker_and_long_ones_do_not() -> None:
    state = with_workers(cluster(node("n1"), call(app(max_workers=1), count=100)))
    assert run_pass(state) == [1], "nothing is known yet"
    do(state, returned(2, ran_ms=1))
    assert len(run_pass(state)) == 64
    slow = with_workers(cluster(node("n1"), call(app(max_workers=1), count=9)))
    run_pass(slow)
    do(slow, ReportStarted(lease_id=2))
    do(slow, returned(2), at=slow.last_at + 60_000)
    assert len(run_pass(slow)) == 1


def test_calls_of_a_worker_that_ended_wait_again() -> None:
    state = with_workers(cluster(node("n1"), call(count=2)))
    run_pass(state)
    do(state, ReportStarted(lease_id=2))
    do(state, finished(1, outcome=Outcome.SIGNALED, signal=9))
    assert state.tasks[3].status is TaskStatus.FAILED
    assert (state.tasks[1].status, state.tasks[1].retries, state.tasks[1].reason) == (
        TaskStatus.PENDING,
        1,
        "worker_lost",
    )
    check_invariants(state)


def test_a_call_that_was_lost_names_its_worker_and_no_failed_node() -> None:
    state = with_workers(cluster(node("n1"), call(max_retries=0)))
    run_pass(state)
    do(state, returned(2, outcome=Outcome.NODE_FAULT, error="its worker exited with code 4"))
    assert state.tasks[1].error == "lost: its worker exited with code 4"


def test_calls_fail_with_the_error_of_their_workers_after_three_of_them() -> None:
    state = cluster(node("n1"), call(count=2))
    at = state.last_at
    for number in range(3):
        at += 60_000
        (worker,) = run_pass(state, at=at)
        lease_id = state.tasks[worker].lease_id
        end = finished(lease_id, 1, error=f"no module named job ({number})")
        do(state, end, at=at + 1)
    run_pass(state, at=at + 2)
    assert [state.tasks[each].status for each in (1, 2)] == [TaskStatus.FAILED] * 2
    assert state.tasks[1].reason == "no_worker"
    assert "no module named job (2)" in state.tasks[1].error
    assert not state.apps
    check_invariants(state)


def test_many_calls_fail_in_portions_and_each_once() -> None:
    state = cluster(node("n1"), call(app(max_workers=1), count=2_500))
    at = state.last_at
    for _ in range(3):
        at += 60_000
        (worker,) = run_pass(state, at=at)
        do(state, finished(state.tasks[worker].lease_id, 1), at=at + 1)
    events = do(state, RunPass(), at=at + 2)
    failed = [event.task_ids for event in events if isinstance(event, CallsFailed)]
    assert [len(task_ids) for task_ids in failed] == [1_000, 1_000, 500]
    assert sorted(sum(failed, ())) == list(range(1, 2_501))


def test_a_failed_worker_is_replaced_after_a_back_off() -> None:
    state = cluster(node("n1"), call())
    run_pass(state)
    do(state, finished(1, 1))
    assert run_pass(state) == []
    again_at = state.crews.next_again_at
    assert again_at == state.last_at + 1_000
    assert run_pass(state, at=again_at) == [3]


def test_an_idle_worker_gives_way_to_a_task_that_needs_its_gpu() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, returned(2))
    do(state, task())
    events = do(state, RunPass())
    (stop,) = [event for event in events if isinstance(event, TaskStopRequested)]
    assert (stop.task_id, stop.reason, stop.for_task) == (2, "gave_way", 3)
    assert not [event for event in do(state, RunPass(full=True)) if isinstance(event, TaskStopRequested)]
    do(state, finished(1, outcome=Outcome.STOPPED))
    assert (state.tasks[2].status, state.tasks[2].reason) == (TaskStatus.SUCCESS, "gave_way")
    assert run_pass(state) == [3]
    assert not state.apps
    check_invariants(state)


def test_a_busy_worker_does_not_give_way() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, task())
    assert not [event for event in do(state, RunPass()) if isinstance(event, TaskStopRequested)]


def test_tenants_never_share_a_worker() -> None:
    state = with_workers(cluster(node("n1", gpus=2), call(app("a", tenant="a"))))
    run_pass(state)
    do(state, returned(2))
    do(state, call(app("b", tenant="b")))
    run_pass(state)
    assert [worker.app_id for worker in state.workers.values()] == ["a", "b"]
    check_invariants(state)


def test_a_cancelled_call_ends_and_its_worker_stays() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, CancelTasks(task_ids=(1,)))
    do(state, returned(2, Outcome.STOPPED))
    assert state.tasks[1].status is TaskStatus.CANCELLED
    assert state.workers[2].ready
    check_invariants(state)


def test_a_worker_that_waits_for_a_gpu_goes_with_its_last_call() -> None:
    state = cluster(node("n1"), task(), call())
    run_pass(state)
    do(state, CancelTasks(task_ids=(2,)))
    run_pass(state)
    assert state.tasks[3].status is TaskStatus.CANCELLED
    assert not state.apps
    check_invariants(state)


def test_a_node_that_was_restarted_loses_workers_and_their_calls() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, ReportStarted(lease_id=2))
    do(state, node("n1", boot="boot-2"))
    assert (state.tasks[2].status, state.tasks[2].reason) == (TaskStatus.FAILED, "node_lost")
    assert (state.tasks[1].status, state.tasks[1].retries) == (TaskStatus.PENDING, 0)
    check_invariants(state)


def test_a_call_that_its_node_no_longer_knows_waits_again() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, ReportStarted(lease_id=2))
    held = HeldLease(lease_id=1, task_id=2, running=True)
    do(state, node("n1", held=(held,)))
    assert state.tasks[1].status is TaskStatus.PENDING
    assert state.workers[2].ready
    check_invariants(state)


def test_a_worker_that_is_idle_for_too_long_is_stopped() -> None:
    state = with_workers(cluster(node("n1"), call()))
    run_pass(state)
    do(state, returned(2))
    due_at = next_tick_at(state)
    assert due_at == state.workers[2].idle_since + state.settings.worker_idle_ms
    assert do(state, Tick(), at=due_at - 1) == ()
    (stop,) = do(state, Tick(), at=due_at)
    assert (stop.task_id, stop.reason) == (2, "idle")
    assert next_tick_at(state) is None


def test_a_call_goes_to_the_worker_that_has_its_model() -> None:
    state = cluster(node("n1", gpus=2), call(app(max_workers=2), count=2))
    run_pass(state)
    ready(state, 1, "m1", load_ms=8_000)
    ready(state, 2, "m2", load_ms=8_000)
    run_pass(state)
    for lease_id in (3, 4):
        do(state, returned(lease_id, ran_ms=1))
    do(state, call(app(max_workers=2), model="m2"))
    run_pass(state)
    assert state.leases[state.tasks[5].lease_id].worker == 2


def test_a_call_waits_for_a_warm_worker_if_a_load_takes_longer() -> None:
    of = app(max_workers=2)
    state = cluster(node("n1", gpus=2), call(of, count=2))
    run_pass(state)
    ready(state, 1, "m1", load_ms=60_000)
    ready(state, 2)
    run_pass(state)
    for lease_id in (3, 4):
        do(state, ReportStarted(lease_id=lease_id))
        do(state, returned(lease_id), at=state.last_at + 10_000)
    do(state, call(of, count=2, model="m1"))
    assert run_pass(state) == [5], "calls of this length do not queue at a worker"
    (blocker,) = explain(state, 6, state.last_at).blockers[:1]
    assert (blocker.code, blocker.numbers["load_ms"]) == ("waits_for_warm", 60_000)
    again_at = state.crews.next_again_at
    assert run_pass(state, at=again_at - 1) == []
    late = max(again_at, state.leases[5].granted_at + 120_001)
    assert run_pass(state, at=late) == [6], "the first call takes much longer than usual"
    assert state.leases[6].worker == 2


def test_an_idle_worker_gives_way_if_its_tenant_is_at_its_limit() -> None:
    state = with_workers(cluster(node("n1", gpus=2), call(app(tenant="lab"))))
    do(state, SetTenant(tenant=Tenant(id="lab", max_gpus=1)))
    run_pass(state)
    do(state, returned(2))
    do(state, task(tenant="lab"))
    (stop,) = do(state, RunPass())
    assert (stop.task_id, stop.reason, stop.for_task) == (2, "gave_way", 3)


def test_an_idle_worker_stays_if_its_gpu_would_not_help() -> None:
    state = with_workers(cluster(node("n1", gpus=2), call()))
    run_pass(state)
    do(state, returned(2))
    do(state, task())
    run_pass(state)
    do(state, SetTenant(tenant=Tenant(id="default", max_gpus=2)))
    do(state, task(2))
    assert do(state, RunPass()) == (), "the other GPU is busy"


def with_a_queue(model: str = "") -> ClusterState:
    """Two workers and calls of 1 ms: one worker has several calls, the other none."""
    of = app(max_workers=2)
    state = with_workers(cluster(node("n1", gpus=2), call(of, count=2)))
    run_pass(state)
    for lease_id in (3, 4):
        do(state, returned(lease_id, ran_ms=1))
    do(state, call(of, count=4, model=model))
    run_pass(state)
    if not model:  # otherwise, all calls are where the first one loads it
        for lease_id in list(state.crews.calls_of(1)):
            do(state, returned(lease_id, ran_ms=1))
    return state


def test_calls_behind_one_that_takes_far_too_long_are_taken_back_for_an_idle_worker() -> None:
    state = with_a_queue()
    first, behind = state.crews.calls_of(2)
    due_at = state.crews.next_again_at
    assert due_at == state.leases[first].granted_at + 1_000
    assert not execute_alike(state, RunPass(at=due_at - 1))
    (stop,) = execute_alike(state, RunPass(at=due_at))
    assert (stop.task_id, stop.lease_id, stop.reason) == (state.leases[behind].task_id, behind, "taken_back")
    assert "a worker is idle" in stop.error
    assert not do(state, RunPass(full=True)), "once is enough"
    do(state, returned(behind, Outcome.STOPPED))
    moved = state.tasks[stop.task_id]
    assert (moved.status, moved.retries) == (TaskStatus.PENDING, 0)
    assert run_pass(state) == [stop.task_id]
    assert state.leases[state.tasks[stop.task_id].lease_id].worker == 1
    check_invariants(state)


def test_a_call_that_is_taken_back_and_has_ended_meanwhile_keeps_its_result() -> None:
    state = with_a_queue()
    _, behind = state.crews.calls_of(2)
    task_id = state.leases[behind].task_id
    do(state, RunPass(), at=state.crews.next_again_at)
    assert state.leases[behind].stopping == "taken_back"
    do(state, returned(behind, ran_ms=1))
    assert state.tasks[task_id].status is TaskStatus.SUCCESS
    check_invariants(state)


def test_a_worker_with_an_overdue_call_gets_no_more_and_is_named_by_why() -> None:
    of = app(max_workers=1)
    state = with_workers(cluster(node("n1"), call(of)))
    run_pass(state)
    do(state, returned(2, ran_ms=1))
    do(state, call(of))
    run_pass(state)
    late = state.last_at + 1_000
    do(state, call(of), at=late)
    assert run_pass(state, at=late) == []
    (blocker,) = explain(state, 4, late).blockers[:1]
    assert (blocker.code, blocker.numbers["overdue"]) == ("workers_busy", 1)
    do(state, returned(3))
    assert run_pass(state) == [4]


def test_the_time_of_a_call_counts_from_its_start_and_not_from_its_wait_at_the_worker() -> None:
    of = app(max_workers=1)
    state = with_workers(cluster(node("n1"), call(of)))
    run_pass(state)
    do(state, returned(2, ran_ms=1))
    do(state, call(of, count=2))
    assert run_pass(state) == [3, 4]
    first, second = state.crews.calls_of(1)
    late = state.last_at + 10_000
    do(state, returned(first, ran_ms=10_000), at=late)
    do(state, call(of), at=late)
    assert run_pass(state, at=late) == [], "it is not known yet that the second call has only begun"
    do(state, ReportStarted(lease_id=second), at=late)
    assert pass_due(state)
    assert run_pass(state, at=late) == [5]


def test_a_call_behind_an_overdue_one_is_not_moved_to_a_worker_that_would_load_its_model_for_longer() -> None:
    state = with_a_queue("m1")
    due_at = state.crews.next_again_at
    assert not do(state, RunPass(), at=due_at)
    patient_at = state.crews.next_again_at
    assert patient_at > due_at
    stops = do(state, RunPass(), at=patient_at)
    assert [stop.reason for stop in stops] == ["taken_back"] * 3


def test_a_worker_that_leaves_is_promised_to_one_task() -> None:
    """Neither all that leave to one task of a node, nor one to several tasks."""
    state = with_idle_workers(4)
    do(state, task())
    do(state, task(priority=1))
    assert len(stops_of(do(state, RunPass()))) == 2
    assert not stops_of(do(state, RunPass(full=True)))
    do(state, task(priority=2))
    assert len(stops_of(do(state, RunPass()))) == 1


def test_quota_of_a_worker_that_leaves_is_promised_to_one_task() -> None:
    state = with_idle_workers(4)
    do(state, SetTenant(tenant=Tenant(id="default", max_gpus=4)))
    do(state, node("n2", gpus=4))
    do(state, task())
    assert len(stops_of(do(state, RunPass()))) == 1
    do(state, task(priority=1))
    assert len(stops_of(do(state, RunPass()))) == 1
    assert not stops_of(do(state, RunPass(full=True)))


def with_idle_workers(count: int) -> ClusterState:
    state = with_workers(cluster(node("n1", gpus=count), call(app(max_workers=count), count=count)))
    run_pass(state)
    for lease_id in [lease.id for lease in state.leases.values() if lease.worker]:
        do(state, returned(lease_id, ran_ms=1))
    return state


def stops_of(events: Iterable[Event]) -> list[TaskStopRequested]:
    return [event for event in events if isinstance(event, TaskStopRequested)]
