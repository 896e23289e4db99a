"""Pools, as a story: ten GPUs, 70 % for online services, 30 % for batch work."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import cluster, do, finished, node, restart, run_pass, spec, task, tried
from dgpu.core.commands import CancelTasks, DrainNode, LoseNode, RunPass, SetQuota, SetTenant, SubmitTasks
from dgpu.core.decide.schedule import pass_due
from dgpu.core.digest import digest
from dgpu.core.events import TaskStopRequested
from dgpu.core.foresight.explain import explain
from dgpu.core.index.limits import quota_of
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim, Split, split
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.rejections import ExceedsQuota, QuotaInUse
from dgpu.core.rules.admission import used_milli
from dgpu.core.state import ClusterState

STRICT = Settings(quota=Quota(mode=QuotaMode.STRICT))
BORROW = Settings(quota=Quota(mode=QuotaMode.BORROW))
STOP = Settings(quota=Quota(mode=QuotaMode.BORROW, reclaim=Reclaim.STOP))
ALL_ONLINE = replace(STOP, quota=replace(STOP.quota, online_ppm=1_000_000))


def ten_gpus(settings: Settings) -> ClusterState:
    return cluster(node("n1", gpus=5), node("n2", gpus=5), settings=settings)


def running(state: ClusterState, pool: Pool) -> list[int]:
    return sorted(
        lease.task_id
        for lease in state.leases.values()
        if state.shapes[state.tasks[lease.task_id].shape_id].pool is pool
    )


def lease_of(state: ClusterState, task_id: int) -> int:
    return state.tasks[task_id].lease_id


def stops_of(state: ClusterState) -> list[TaskStopRequested]:
    events = do(state, RunPass(at=state.last_at + 1))
    return [event for event in events if isinstance(event, TaskStopRequested)]


def codes(state: ClusterState, task_id: int) -> set[str]:
    return {blocker.code for blocker in explain(state, task_id, state.last_at).blockers}


@pytest.mark.parametrize(
    ("gpus", "online_ppm", "parts"),
    [
        (10, 700_000, (7, 3)),
        (9, 700_000, (6, 3)),  # 6.3 and 2.7: the larger remainder is batch
        (5, 700_000, (4, 1)),  # 3.5 and 1.5: on a tie, online
        (1, 700_000, (1, 0)),
        (0, 700_000, (0, 0)),
        (3, 333_333, (1, 2)),
        (7, 0, (0, 7)),
        (7, 1_000_000, (7, 0)),
    ],
)
def test_parts_are_whole_gpus_and_add_up(gpus: int, online_ppm: int, parts: tuple[int, int]) -> None:
    assert split(gpus, online_ppm) == Split(*parts)


def test_half_a_gpu_of_quota_goes_to_a_share_and_a_whole_one_to_whom_it_is_due() -> None:
    state = ten_gpus(STRICT)
    do(state, task(count=2, pool=Pool.BATCH))  # 1, 2
    do(state, task(count=2, pool=Pool.BATCH, share=0.5))  # 3, 4: the quota of 3 is used up
    run_pass(state)
    do(state, task(pool=Pool.BATCH, priority=90))  # 5
    do(state, task(pool=Pool.BATCH, priority=80, memory_mb=1_024))  # 6
    do(state, task(count=2, pool=Pool.BATCH, priority=70, share=0.5))  # 7, 8
    do(state, finished(lease_of(state, 3)))
    run_pass(state)
    assert running(state, Pool.BATCH) == [1, 2, 4, 7]  # half a GPU is left, which is of no use to 5 and 6
    do(state, finished(lease_of(state, 1)))
    run_pass(state)
    assert running(state, Pool.BATCH) == [2, 4, 5, 7]
    do(state, finished(lease_of(state, 2)))
    run_pass(state)
    assert running(state, Pool.BATCH) == [4, 5, 6, 7]
    do(state, finished(lease_of(state, 4)))
    run_pass(state)
    assert running(state, Pool.BATCH) == [5, 6, 7, 8]
    check_invariants(state)


def test_under_both_kinds_of_load_each_pool_gets_its_part_and_keeps_it() -> None:
    state = ten_gpus(STRICT)
    do(state, task(count=20, pool=Pool.BATCH))
    do(state, task(count=20, pool=Pool.ONLINE))
    run_pass(state)
    assert (len(running(state, Pool.ONLINE)), len(running(state, Pool.BATCH))) == (7, 3)
    assert "pool_quota" in codes(state, 4)
    for _ in range(20):
        ended = running(state, Pool.BATCH)[0]
        do(state, finished(lease_of(state, ended)))
        run_pass(state)
        if not state.queue.pools[Pool.BATCH].ready:
            break
        assert (len(running(state, Pool.ONLINE)), len(running(state, Pool.BATCH))) == (7, 3)
    check_invariants(state)


def test_strict_quota_of_an_idle_pool_stays_idle() -> None:
    state = ten_gpus(STRICT)
    do(state, task(count=20, pool=Pool.BATCH))
    assert len(run_pass(state)) == 3
    assert used_milli(state, Pool.BATCH) == 3_000
    blocker = next(b for b in explain(state, 20, state.last_at).blockers if b.code == "pool_quota")
    assert blocker.numbers == {"pool": "batch", "quota": 3, "used": 3, "left": 0, "asked": 1}


def test_a_task_blocked_by_its_own_quota_blocks_nobody_else() -> None:
    state = ten_gpus(STRICT)
    do(state, task(3, pool=Pool.BATCH))
    do(state, task(2, pool=Pool.BATCH, priority=90))
    do(state, task(pool=Pool.BATCH, priority=10, count=2))
    assert run_pass(state) == [
        2,
        3,
    ]  # the first of 3 GPUs no longer fits into what the second left of the quota


def test_gpus_that_come_fail_and_go_change_the_quota_at_once() -> None:
    state = ten_gpus(STRICT)
    assert quota_of(state) == Split(7, 3)
    do(state, node("n3", gpus=10))
    assert quota_of(state) == Split(14, 6)
    do(state, DrainNode(node_id="n3"))
    assert quota_of(state) == Split(14, 6), "draining GPUs count"
    do(state, LoseNode(node_id="n3", reason="silent"))
    assert quota_of(state) == Split(7, 3), "those out of reach do not"


def test_what_runs_out_of_reach_does_not_count_against_the_quota() -> None:
    """Its GPUs are out of the quota; counting its task would take the part away twice."""
    halves = Settings(quota=Quota(online_ppm=500_000, mode=QuotaMode.STRICT))
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), settings=halves)
    do(state, task(count=3, pool=Pool.BATCH))
    assert run_pass(state) == [1, 2]
    away = state.leases[1].node_id
    do(state, LoseNode(node_id=away, reason="silent"))
    lost = sum(lease.node_id == away for lease in state.leases.values())
    assert used_milli(state, Pool.BATCH) == 1_000 * (2 - lost)
    assert quota_of(state) == Split(1, 1)
    assert run_pass(state) == ([3] if lost == 2 else [])
    check_invariants(state)


def test_what_its_pool_can_never_hold_is_refused_at_submit() -> None:
    state = ten_gpus(STRICT)
    before = digest(state)
    assert tried(state, task(4, pool=Pool.BATCH)) == ExceedsQuota(
        entry=0, holder="batch pool", milli_requested=4_000, gpus_quota=3
    )
    assert digest(state) == before
    do(state, LoseNode(node_id="n2", reason="silent"))
    do(state, task(3, pool=Pool.BATCH))  # it could be held if all were well: it waits
    assert run_pass(state) == []


def test_a_live_change_to_60_40() -> None:
    state = ten_gpus(STRICT)
    do(state, task(count=20, pool=Pool.BATCH))
    do(state, task(count=7, pool=Pool.ONLINE))
    run_pass(state)
    before = digest(state)
    assert tried(state, SetQuota(online_ppm=600_000)) == QuotaInUse(pool="online", used_milli=7_000, quota=6)
    assert digest(state) == before
    do(state, finished(lease_of(state, 21)))
    assert run_pass(state) == [], "the seventh online GPU is not for batch"
    do(state, SetQuota(online_ppm=600_000))
    assert run_pass(state) == [4]
    assert (len(running(state, Pool.ONLINE)), len(running(state, Pool.BATCH))) == (6, 4)
    assert do(state, SetQuota(online_ppm=600_000)) == ()


def test_with_borrow_no_gpu_idles_while_only_one_pool_has_work() -> None:
    state = ten_gpus(BORROW)
    do(state, task(count=12, pool=Pool.BATCH))
    assert len(run_pass(state)) == 10
    assert "pool_quota" not in codes(state, 11)


def test_the_owner_waits_and_then_gets_what_borrowed_tasks_free() -> None:
    """reclaim: wait. The freed GPUs go to the owner, however old or urgent the borrower's tasks are."""
    state = ten_gpus(BORROW)
    do(state, task(count=30, pool=Pool.BATCH, priority=90))
    run_pass(state)
    do(state, task(count=8, pool=Pool.ONLINE, priority=10))
    assert run_pass(state) == []
    for turn in range(7):
        do(state, finished(lease_of(state, running(state, Pool.BATCH)[0])))
        assert run_pass(state) == [31 + turn]
    do(state, finished(lease_of(state, running(state, Pool.BATCH)[0])))
    assert run_pass(state) == [11], "the eighth would be more than its quota, and that is batch's own"
    check_invariants(state)


def test_what_the_owner_could_not_start_anyway_is_not_kept_for_it() -> None:
    state = ten_gpus(BORROW)
    do(state, task(count=10, pool=Pool.BATCH))
    do(state, task(5, pool=Pool.ONLINE, count=2))
    assert len(run_pass(state)) == 6, "one online task of 5 fits its quota of 7, the second would not"
    assert len(running(state, Pool.BATCH)) == 5


def test_borrowed_gpus_are_reclaimed_by_stopping_no_more_than_needed() -> None:
    state = ten_gpus(STOP)
    do(state, task(count=10, pool=Pool.BATCH))
    run_pass(state, at=state.last_at + 1)
    do(state, task(count=2, pool=Pool.ONLINE), at=state.last_at + 60_000)
    stops = stops_of(state)
    assert len(stops) == 2
    assert {stop.for_task for stop in stops} == {11, 12}
    assert stops_of(state) == [], "asked once"
    for stop in stops:
        do(state, finished(stop.lease_id, outcome=Outcome.STOPPED))
        run_pass(state)
    assert running(state, Pool.ONLINE) == [11, 12]
    for stop in stops:
        stopped = state.tasks[stop.task_id]
        assert (stopped.status, stopped.retries, stopped.reason) == (TaskStatus.PENDING, 0, "reclaimed")
    assert run_pass(state) == [], "no loop: the stopped ones wait for the next turn"
    do(state, finished(lease_of(state, 11)))
    assert run_pass(state) == [min(stop.task_id for stop in stops)]
    check_invariants(state)


def test_the_newest_and_smallest_are_stopped_first() -> None:
    state = ten_gpus(STOP)
    do(state, task(count=4, pool=Pool.BATCH))
    run_pass(state)
    do(state, task(3, pool=Pool.BATCH), at=state.last_at + 100_000)
    run_pass(state)
    do(state, task(count=3, pool=Pool.BATCH), at=state.last_at + 100_000)
    run_pass(state)
    do(state, task(pool=Pool.ONLINE), at=state.last_at + 100_000)
    stops = stops_of(state)
    assert [stop.task_id for stop in stops] == [8]
    assert "task-9" in stops[0].error


def test_what_batch_has_of_its_own_is_never_stopped() -> None:
    state = ten_gpus(STOP)
    do(state, task(count=10, pool=Pool.BATCH))
    run_pass(state)
    do(state, task(count=10, pool=Pool.ONLINE))
    stops = stops_of(state)
    assert len(stops) == 7
    assert stops_of(state) == []


def test_a_task_of_several_gpus_gets_them_on_one_node() -> None:
    state = ten_gpus(STOP)
    do(state, task(count=9, pool=Pool.BATCH))
    run_pass(state)
    do(state, task(4, pool=Pool.ONLINE))
    stops = stops_of(state)
    nodes = {state.leases[stop.lease_id].node_id for stop in stops}
    assert (len(stops), len(nodes)) == (3, 1), "one GPU is idle there: three are needed"
    for stop in stops:
        do(state, finished(stop.lease_id, outcome=Outcome.STOPPED))
        run_pass(state)
    assert running(state, Pool.ONLINE) == [10]


def test_a_stop_that_is_not_needed_after_all_is_left_out() -> None:
    """The small one loses less and is chosen first; then the large one alone would have done."""
    state = cluster(node("n1", gpus=3), settings=ALL_ONLINE)
    do(state, task(2, pool=Pool.BATCH))
    do(state, task(1, pool=Pool.BATCH))
    run_pass(state)
    do(state, task(2, pool=Pool.ONLINE), at=state.last_at + 1_000)
    assert [stop.task_id for stop in stops_of(state)] == [1]


def test_what_a_stop_frees_beyond_its_need_is_for_the_next() -> None:
    state = cluster(node("n1", gpus=4), settings=ALL_ONLINE)
    do(state, task(2, count=2, pool=Pool.BATCH))
    run_pass(state)
    do(state, task(count=2, pool=Pool.ONLINE), at=state.last_at + 1_000)
    (stop,) = stops_of(state)
    do(state, task(pool=Pool.ONLINE))
    assert len(stops_of(state)) == 1, "a third has nothing left of the first stop"
    do(state, finished(stop.lease_id, outcome=Outcome.STOPPED))
    assert run_pass(state) == [3, 4]


def test_a_task_that_comes_back_is_not_stopped_again_for_the_same_one() -> None:
    """There is quota for both, in parts of GPUs that the waiting share is too large for."""
    state = cluster(node("n1", gpus=3), settings=ALL_ONLINE)
    do(state, task(pool=Pool.ONLINE, share=0.6, count=2))
    do(state, task(pool=Pool.BATCH, priority=90))
    assert sorted(run_pass(state)) == [1, 2, 3]
    do(state, task(pool=Pool.ONLINE, share=0.5), at=state.last_at + 1_000)
    (stop,) = stops_of(state)
    do(state, finished(stop.lease_id, outcome=Outcome.STOPPED))
    assert run_pass(state) == [3], "it may borrow, and comes first"
    assert stops_of(state) == []
    do(state, task(pool=Pool.ONLINE), at=state.last_at + 1_000)
    assert [stop.for_task for stop in stops_of(state)] == [5], "one that came later is as good as any"


def test_two_shares_need_one_card() -> None:
    state = cluster(node("n1", gpus=2), settings=ALL_ONLINE)
    do(state, task(count=2, pool=Pool.BATCH))
    run_pass(state)
    do(state, task(pool=Pool.ONLINE, share=0.4, count=2), at=state.last_at + 1_000)
    assert len(stops_of(state)) == 1


def test_no_more_is_stopped_than_a_tenant_may_hold() -> None:
    tenants = (
        Tenant(id=TenantId("a")),
        Tenant(id=TenantId("b"), max_gpus=2),
        Tenant(id=TenantId("c"), max_running=1),
    )
    state = cluster(node("n1", gpus=8), settings=replace(ALL_ONLINE, tenants=tenants))
    do(state, task(count=8, pool=Pool.BATCH, tenant="a"))
    run_pass(state)
    do(state, task(count=4, pool=Pool.ONLINE, tenant="b"), at=state.last_at + 1_000)
    do(state, task(count=4, pool=Pool.ONLINE, tenant="c"))
    assert sorted(stop.for_task for stop in stops_of(state)) == [9, 10, 13]


def test_nothing_is_stopped_for_a_share_that_its_tenant_may_not_hold_now() -> None:
    """What a share holds of its tenant's memory is known only with the card."""
    unlimited = Tenant(id=TenantId("b"))
    settings = replace(ALL_ONLINE, tenants=(Tenant(id=TenantId("a")), unlimited))
    state = cluster(node("n1", gpus=3), settings=settings)
    do(state, task(count=2, pool=Pool.BATCH, tenant="a"))
    do(state, task(pool=Pool.ONLINE, tenant="b", share=0.6))
    assert sorted(run_pass(state)) == [1, 2, 3]
    do(state, task(pool=Pool.ONLINE, tenant="b", share=0.6), at=state.last_at + 1_000)
    do(state, SetTenant(tenant=replace(unlimited, max_gpu_memory_mb=10_000)))
    assert stops_of(state) == []
    do(state, SetTenant(tenant=unlimited))
    assert len(stops_of(state)) == 1


def test_allocations_are_not_stopped() -> None:
    state = ten_gpus(STOP)
    do(state, SubmitTasks(entries=((10, spec(pool=Pool.BATCH, allocation=True)),)))
    run_pass(state)
    do(state, task(pool=Pool.ONLINE))
    assert stops_of(state) == []
    do(state, CancelTasks(task_ids=(10,)))
    assert run_pass(state) == [11]


def test_a_borrower_that_waits_is_told_how_much_the_owner_uses() -> None:
    state = ten_gpus(BORROW)
    do(state, task(count=2, pool=Pool.ONLINE))
    do(state, task(count=20, pool=Pool.BATCH))
    assert len(run_pass(state)) == 10
    do(state, task(count=8, pool=Pool.ONLINE))
    blocker = next(b for b in explain(state, 20, state.last_at).blockers if b.code == "pool_quota")
    assert blocker.numbers == {
        "pool": "batch",
        "other_pool": "online",
        "quota": 3,
        "used": 8,
        "left": 0,
        "asked": 1,
        "other_quota": 7,
        "other_used": 2,
    }


def test_a_new_quota_in_the_configuration_wins_and_an_old_one_does_not_undo_a_live_change() -> None:
    state = ten_gpus(STRICT)
    do(state, SetQuota(online_ppm=600_000))
    restart(state, STRICT)
    assert quota_of(state) == Split(6, 4), "the configuration says what it said before"
    restart(state, replace(STRICT, quota=replace(STRICT.quota, online_ppm=500_000)))
    assert quota_of(state) == Split(5, 5)


def test_a_pass_is_due_once_a_pool_gets_more_quota() -> None:
    state = ten_gpus(STRICT)
    do(state, task(count=4))
    assert run_pass(state) == [1, 2, 3]
    assert not pass_due(state)
    do(state, SetQuota(online_ppm=0))
    assert pass_due(state)
    assert run_pass(state) == [4]
