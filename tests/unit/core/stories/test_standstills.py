"""Tasks that wait for each other: reservations, quota and guarantees never hold what the other needs for good."""

from __future__ import annotations

from building import START, cluster, do, node, run_pass, task
from dgpu.core.commands import SetTenant
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState

MINUTE = 60_000
OVER_MS = 11_000  # kill grace and release
ALL_BATCH = Quota(online_ppm=0)
HALF = Quota(online_ppm=500_000, mode=QuotaMode.STRICT)


def ended(state: ClusterState, task_id: int, at: int) -> list[int]:
    """A task ends, and the pass after it places these."""
    end_task(state, state.tasks[task_id], at)
    return run_pass(state, at)


def test_two_tasks_with_reservations_do_not_keep_the_same_quota_from_each_other() -> None:
    """The second in order can begin sooner, on other GPUs. Only one of them fits into what the tenant has left."""
    limits = (Tenant(id="lab"), Tenant(id="others"))
    state = cluster(
        node("n1", gpus=2),
        node("n2", gpus=1),
        node("n3", gpus=1),
        settings=Settings(memory_margin_mb=0, reservations=8, tenants=limits, quota=ALL_BATCH),
    )
    do(state, task(2, tenant="others", timeout_ms=10 * MINUTE), START)
    do(state, task(1, tenant="others", timeout_ms=5 * MINUTE), START)
    do(state, task(1, tenant="lab", timeout_ms=60 * MINUTE), START)
    assert sorted(run_pass(state, START)) == [1, 2, 3]
    do(state, task(2, tenant="lab", timeout_ms=60 * MINUTE), START)
    do(state, task(1, tenant="lab", timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == []
    first, second = state.reservations[4], state.reservations[5]
    assert first.number < second.number
    assert second.at < first.at
    do(state, SetTenant(tenant=Tenant(id="lab", max_gpus=3)), START)
    end_task(state, state.tasks[2], START + MINUTE)
    assert ended(state, 1, START + MINUTE) == [4]
    assert ended(state, 3, START + 2 * MINUTE) == [5]


def test_a_task_whose_time_is_known_does_not_wait_for_the_quota_of_one_whose_time_is_not() -> None:
    """The first waits for any GPU. The second was promised the one that comes free. Only one of them fits into the quota."""
    rules = Settings(memory_margin_mb=0, reservations=8, tenants=(Tenant(id="lab"), Tenant(id="others")))
    state = cluster(*(node(f"n{number}", gpus=1) for number in (1, 2, 3)), settings=rules)
    do(state, task(1, tenant="lab", pool=Pool.ONLINE), START)
    do(state, task(1, count=2, tenant="others", pool=Pool.ONLINE), START)
    assert run_pass(state, START) == [1, 2, 3]
    do(state, task(1, tenant="lab", pool=Pool.ONLINE), START)
    assert run_pass(state, START) == []
    do(state, task(1, tenant="others", priority=90, timeout_ms=5 * MINUTE), START)
    assert ended(state, 3, START) == [5]
    do(state, task(1, tenant="lab", pool=Pool.ONLINE, memory_mb=1_000), START)
    assert run_pass(state, START) == []
    first, second = state.reservations[4], state.reservations[6]
    assert first.number < second.number
    assert (first.at, second.at) == (0, START + 5 * MINUTE + OVER_MS)
    do(state, SetTenant(tenant=Tenant(id="lab", max_gpus=2)), START)
    assert ended(state, 5, START + MINUTE) == [6]
    assert ended(state, 6, START + 2 * MINUTE) == [4]


def test_a_task_that_lacks_quota_when_its_gpus_come_free_leaves_them_to_others() -> None:
    state = cluster(
        node("n1", gpus=2),
        node("n2", gpus=1),
        node("n3", gpus=1),
        settings=Settings(memory_margin_mb=0, reservations=8, quota=HALF),
    )
    do(state, task(2, pool=Pool.ONLINE, timeout_ms=10 * MINUTE), START)
    do(state, task(2, timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == [1]
    assert state.reservations[2].places
    do(state, task(1, priority=90, timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == [3], "it holds one of the two GPUs that batch may have"
    at = START + 10 * MINUTE + OVER_MS
    do(state, task(2, pool=Pool.ONLINE, timeout_ms=60 * MINUTE), at)
    assert ended(state, 1, at) == [4]
    reserved = state.reservations[2]
    assert (reserved.places, reserved.at) == ((), START + 60 * MINUTE + OVER_MS)
    assert ended(state, 3, at + MINUTE) == []
    assert state.reservations[2].places, "it waits for GPUs again"
    assert ended(state, 4, at + 2 * MINUTE) == [2]


def with_guarantee(**more) -> ClusterState:
    """Five GPUs. The task of others has reserved the four of n1, and a tenant with a guarantee of two comes after it."""
    rules = Settings(
        memory_margin_mb=0,
        reservations=8,
        quota=ALL_BATCH,
        tenants=(Tenant(id="lab", guaranteed_gpus=2), Tenant(id="others")),
    )
    state = cluster(node("n1", gpus=4), node("n2", gpus=1), settings=rules)
    do(state, task(4, tenant="others", timeout_ms=10 * MINUTE), START)
    assert run_pass(state, START) == [1]
    do(state, task(4, tenant="others", timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == []
    assert state.reservations[2].places
    do(state, task(**more, tenant="lab", timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == []
    return state


def test_a_task_within_its_tenants_guarantee_passes_a_reservation_that_is_not() -> None:
    """Else the reservation would keep its GPUs from the guarantee, and the guarantee the GPUs from the reservation."""
    state = with_guarantee(gpus=2)
    assert ended(state, 1, START + MINUTE) == [3]
    assert ended(state, 3, START + 2 * MINUTE) == [2]


def test_a_guarantee_keeps_nothing_for_a_task_that_is_beyond_it() -> None:
    state = with_guarantee(gpus=3)
    assert ended(state, 1, START + MINUTE) == [2]
    assert ended(state, 2, START + 2 * MINUTE) == [3]


def test_a_task_that_comes_within_the_guarantee_is_tried_at_once() -> None:
    """Its tenant uses less now, on a node that is too small for it."""
    rules = Settings(
        memory_margin_mb=0,
        reservations=1,
        quota=ALL_BATCH,
        tenants=(Tenant(id="lab", guaranteed_gpus=2), Tenant(id="others")),
    )
    state = cluster(node("n1", gpus=4), node("n2", gpus=1), node("n3", gpus=4), settings=rules)
    do(state, task(1, tenant="lab", timeout_ms=60 * MINUTE), START)
    do(state, task(4, tenant="others", timeout_ms=10 * MINUTE), START)
    assert sorted(run_pass(state, START)) == [1, 2]
    do(state, task(4, nodes=2, tenant="others", timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == []
    do(state, task(2, tenant="lab", timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == []
    assert ended(state, 1, START + MINUTE) == [4]
