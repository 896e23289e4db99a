"""Cancelling."""

from __future__ import annotations

from building import cluster, do, finished, node, run_pass, task, tried
from dgpu.core.commands import CancelTasks, LoseNode, ReleaseNode
from dgpu.core.digest import digest
from dgpu.core.events import TaskCancelRequested, TasksCancelled
from dgpu.core.model.quota import Quota
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, TaskStatus
from dgpu.core.rejections import TaskEnded, UnknownTask


def statuses(state) -> list[str]:
    return [state.tasks[number].status.value for number in sorted(state.tasks)]


def test_waiting_tasks_end_at_once_in_one_event() -> None:
    state = cluster(task(count=3))
    (event,) = do(state, CancelTasks(task_ids=(3, 1, 3)))
    assert event == TasksCancelled(at=state.last_at, task_ids=(1, 3))
    assert statuses(state) == ["cancelled", "pending", "cancelled"]
    assert state.tasks[1].reason == "cancelled"


def test_a_running_task_runs_on_until_its_end_is_reported() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    (event,) = do(state, CancelTasks(task_ids=(1,)))
    assert event == TaskCancelRequested(at=state.last_at, task_id=1, lease_id=1)
    assert state.tasks[1].status is TaskStatus.RUNNING
    assert state.tasks[1].cancelling
    assert do(state, CancelTasks(task_ids=(1,))) == ()
    do(state, finished(1, outcome=Outcome.SIGNALED, signal=15))
    ended = state.tasks[1]
    assert (ended.status, ended.exit_code, ended.reason) == (TaskStatus.CANCELLED, None, "cancelled")
    assert ended.error == "cancelled while running; killed by signal 15 (SIGTERM)"


def test_a_running_task_whose_node_is_given_up_is_cancelled_not_requeued() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    do(state, CancelTasks(task_ids=(1,)))
    do(state, LoseNode(node_id="n1", reason="silent"))
    assert state.tasks[1].status is TaskStatus.RUNNING
    do(state, ReleaseNode(node_id="n1", reason="lease over"))
    assert state.tasks[1].status is TaskStatus.CANCELLED


def test_an_allocation_ends_at_once() -> None:
    state = cluster(node("n1"), task(allocation=True))
    run_pass(state)
    do(state, CancelTasks(task_ids=(1,)))
    assert state.tasks[1].status is TaskStatus.CANCELLED
    assert state.leases == {}


def test_one_unknown_id_refuses_all() -> None:
    state = cluster(task(count=2))
    before = digest(state)
    assert tried(state, CancelTasks(task_ids=(1, 7))) == UnknownTask(task_id=7)
    assert digest(state) == before


def test_what_is_over_is_refused_alone_and_skipped_among_others() -> None:
    state = cluster(task(count=2))
    do(state, CancelTasks(task_ids=(1,)))
    assert tried(state, CancelTasks(task_ids=(1,))) == TaskEnded(task_id=1, status="cancelled")
    do(state, CancelTasks(task_ids=(1, 2)))
    assert statuses(state) == ["cancelled", "cancelled"]


def test_filters_choose_by_status_tenant_pool_and_priority() -> None:
    state = cluster(
        node("n1", gpus=1),
        task(tenant="a", priority=90),
        task(tenant="a"),
        task(tenant="b", pool=Pool.ONLINE),
        task(tenant="b", priority=10),
        settings=Settings(quota=Quota(online_ppm=0)),
    )
    run_pass(state)
    do(state, CancelTasks(status=TaskStatus.PENDING, tenant_id="a"))
    assert statuses(state) == ["running", "cancelled", "pending", "pending"]
    do(state, CancelTasks(pool=Pool.ONLINE))
    assert statuses(state) == ["running", "cancelled", "cancelled", "pending"]
    do(state, CancelTasks(status=TaskStatus.RUNNING))
    assert state.tasks[1].cancelling
    assert do(state, CancelTasks(status=TaskStatus.SUCCESS)) == ()
    do(state, CancelTasks(priority=10))
    assert state.waiting_count == 0


def test_tasks_that_back_off_are_cancelled_like_all_that_wait() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    do(state, finished(1, outcome=Outcome.NODE_FAULT))
    do(state, CancelTasks())
    assert statuses(state) == ["cancelled"]
    assert run_pass(state, at=state.last_at + 100_000) == []


def test_many_at_once_leave_the_others_in_order() -> None:
    state = cluster(task(count=1_000), task(count=1_000, priority=90))
    do(state, CancelTasks(task_ids=tuple(range(1, 2_001, 2))))
    do(state, node("n1", gpus=4))
    assert run_pass(state) == [1_002, 1_004, 1_006, 1_008]
    assert state.waiting_count == 996
