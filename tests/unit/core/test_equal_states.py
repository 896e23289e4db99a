"""A state that has lived on decides like one made anew from its parts: cases in which it once did not."""

from __future__ import annotations

from building import cluster, do, finished, lease, node, task
from building.lockstep import execute_alike
from dgpu.core.apply.table import apply
from dgpu.core.commands import DrainNode, RunPass
from dgpu.core.decision import Decision
from dgpu.core.events import TaskPlaced, TasksReserved
from dgpu.core.model.ids import TaskId, TenantId
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.settings import Settings
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState

MINUTE_MS = 60_000


def passed(state: ClusterState) -> Decision:
    return execute_alike(state, RunPass(at=state.last_at + 1))


def test_a_line_refused_by_its_tenant_reserves_quota_once_its_pool_refuses_it_too() -> None:
    tenants = (Tenant(id=TenantId("lab"), max_gpus=2), Tenant(id=TenantId("works")))
    strict = Quota(mode=QuotaMode.STRICT, online_ppm=500_000)
    state = cluster(
        node("n1", gpus=8),
        task(2, tenant="lab", timeout_ms=MINUTE_MS),
        lease(1, on="n1"),
        task(2, tenant="lab", priority=80),
        settings=Settings(memory_margin_mb=0, quota=strict, tenants=tenants, reservations=1),
    )
    assert passed(state) == ()  # its tenant refuses task 2; the pool has quota for it
    do(state, task(tenant="works", count=3, timeout_ms=MINUTE_MS))
    passed(state)
    assert state.reservations[TaskId(2)].places == ()  # the second task of works left too little
    do(state, finished(2))
    (placed,) = passed(state)  # a tenant at its limit keeps no quota from others
    assert isinstance(placed, TaskPlaced)
    assert placed.task_id == 5


def test_a_reservation_moves_if_the_room_that_it_was_about_to_start_in_is_taken() -> None:
    state = cluster(
        node("n1"),
        node("n2"),
        task(timeout_ms=MINUTE_MS, count=2),
        lease(1, on="n1"),
        lease(2, on="n2"),
        task(),
        settings=Settings(memory_margin_mb=0, reservations=1),
    )
    passed(state)
    (place,) = state.reservations[TaskId(3)].places
    assert place.node_id == "n1"
    do(state, DrainNode(node_id="n1"))
    do(state, finished(2))
    do(state, task(priority=90, timeout_ms=MINUTE_MS))
    passed(state)  # there is room for task 3 on n2, but task 4 takes it
    passed(state)
    (place,) = state.reservations[TaskId(3)].places
    assert place.node_id == "n2"


def test_all_tasks_of_a_line_that_reserved_quota_alone_reserve_gpus() -> None:
    state = cluster(
        node("n1", gpus=2),
        task(count=2, timeout_ms=MINUTE_MS),
        lease(1, on="n1"),
        lease(2, on="n1"),
        task(count=2),
        settings=Settings(memory_margin_mb=0, reservations=2),
    )
    alone = [
        Reservation(task_id=TaskId(number), places=(), made_at=state.last_at, number=number)
        for number in (3, 4)
    ]
    apply(state, TasksReserved(at=state.last_at, made=tuple(alone)))
    passed(state)
    passed(state)
    assert all(made.places for made in state.reservations.values())


def test_a_fork_keeps_gpus_for_guarantees() -> None:
    tenants = (Tenant(id=TenantId("lab"), guaranteed_gpus=1), Tenant(id=TenantId("works")))
    state = cluster(
        node("n1", gpus=2),
        task(1, tenant="works", count=2, priority=80),
        task(1, tenant="lab"),
        settings=Settings(memory_margin_mb=0, tenants=tenants),
    )
    fork = state.fork()
    placed = [each.task_id for each in do(fork, RunPass()) if isinstance(each, TaskPlaced)]
    assert placed == [1, 3]
    assert [each.task_id for each in do(state, RunPass()) if isinstance(each, TaskPlaced)] == placed


def test_a_task_without_gpus_starts_within_the_limit_of_its_tenant_while_no_gpu_is_idle() -> None:
    tenants = (Tenant(id=TenantId("lab"), max_running=1), Tenant(id=TenantId("works")))
    state = cluster(
        node("n1", gpus=1),
        task(1, tenant="works"),
        lease(1, on="n1"),
        task(0, tenant="lab", count=2),
        settings=Settings(memory_margin_mb=0, tenants=tenants),
    )
    passed(state)
    do(state, finished(2))
    (placed,) = passed(state)
    assert isinstance(placed, TaskPlaced)
    assert placed.task_id == 3
