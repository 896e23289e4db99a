"""The order of the queue."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, lease, node, run_pass, task
from dgpu.core.commands import CancelTasks
from dgpu.core.model.ids import TenantId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from dgpu.core.model.tenant import Tenant
from dgpu.core.rules.order import position, queue


def test_the_queue_is_by_priority_then_age_over_all_shapes() -> None:
    state = cluster(task(count=2), task(2), task(priority=90), task(priority=10), task(3))
    assert queue(state, limit=10) == [4, 1, 2, 3, 6, 5]
    assert [position(state, number) for number in (4, 1, 2, 3, 6, 5)] == [1, 2, 3, 4, 5, 6]


def test_pages_follow_one_another() -> None:
    state = cluster(task(count=3), task(2, count=3), task(priority=90, count=3), task(priority=10, count=3))
    pages, after = [], None
    while page := queue(state, limit=5, after=after):
        pages.append(page)
        after = page[-1]
    assert pages == [[7, 8, 9, 1, 2], [3, 4, 5, 6, 10], [11, 12]]


def test_a_page_can_follow_a_task_that_is_gone() -> None:
    state = cluster(task(count=3), task(priority=90))
    do(state, CancelTasks(task_ids=(1,)))
    assert queue(state, limit=10, after=1) == [2, 3]
    assert queue(state, limit=10, after=99, after_level=60) == [2, 3]
    assert queue(state, limit=10, after=99) == [4, 2, 3]


def test_a_task_that_backs_off_keeps_its_place() -> None:
    state = cluster(node("n1"), task(count=3), lease(2, on="n1"))
    do(state, finished(1, outcome=Outcome.NODE_FAULT))
    assert queue(state, limit=10) == [1, 2, 3]
    assert position(state, 2) == 2
    assert run_pass(state) == [1]
    assert queue(state, limit=10) == [2, 3]


def test_who_does_not_wait_has_no_position() -> None:
    state = cluster(node("n1"), task(), lease(1, on="n1"))
    assert position(state, 1) is None
    assert position(state, 5) is None


def test_a_tenant_whose_tasks_end_comes_before_one_whose_tasks_run_on() -> None:
    tenants = (Tenant(id=TenantId("a")), Tenant(id=TenantId("b")))
    state = cluster(node("n1", gpus=3), settings=Settings(memory_margin_mb=0, tenants=tenants))
    do(state, task(tenant="a"))
    do(state, task(tenant="b", count=2))
    assert run_pass(state) == [1, 2, 3]
    do(state, task(tenant="a"))
    do(state, task(tenant="b"))
    assert run_pass(state) == []
    assert queue(state, limit=10) == [4, 5]
    for ended in (2, 3):
        do(state, finished(ended))
    assert queue(state, limit=10) == [5, 4]
    assert run_pass(state) == [5, 4]


@pytest.mark.parametrize("ageing_ms", [0, 1])
def test_lines_compare_as_their_turns(ageing_ms: int) -> None:
    """A grant compares its line with thousands of others, without their turns: the order must be the same."""
    tenants = tuple(Tenant(id=TenantId(name)) for name in ("a", "b"))
    state = cluster(
        node("n1", gpus=2),
        task(tenant="b"),
        lease(1, on="n1"),
        *(
            task(gpus, tenant=tenant, priority=priority)
            for gpus in (2, 1)
            for priority in (50, 60, 51)
            for tenant in ("b", "a")
        ),
        settings=Settings(tenants=tenants, ageing_ms=ageing_ms),
    )
    lines = [line for line in state.queue.lines() if line.head]
    assert len({line.account.standing for line in lines}) == 2
    for line in lines:
        turn = line.turn_of(line.head)
        assert [each for each in lines if each.precedes(line)] == [
            each for each in lines if each.turn_of(each.head) < turn
        ]
