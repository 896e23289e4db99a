"""Tenants, as stories: limits, guarantees, budgets and the fair share."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import START, cluster, do, finished, node, run_pass, spec, task, tried
from dgpu.core.commands import (
    BeginEpoch,
    CancelTasks,
    Command,
    RemoveTenant,
    RunPass,
    SetTenant,
    SubmitTasks,
    Tick,
)
from dgpu.core.digest import digest
from dgpu.core.events import Event, TaskPlaced, TenantSet, UsageCharged
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import TenantId
from dgpu.core.model.quota import Quota
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.usage import HOUR_MS, Meter, Usage, decayed
from dgpu.core.rejections import (
    ExceedsMemory,
    ExceedsQuota,
    MemoryNotStated,
    PoolNotAllowed,
    PriorityTooHigh,
    Rejection,
    TenantBusy,
    TenantExists,
    TenantQueueFull,
    UnknownTenant,
)
from dgpu.core.replay import replay
from dgpu.core.rules.admission import lines_of
from dgpu.core.rules.order import position, queue
from dgpu.core.state import ClusterState

ONE_POOL = Settings(quota=Quota(online_ppm=0), default_timeout_ms=0, max_timeout_ms=0)


def tenant(name: str, **limits) -> Tenant:
    return Tenant(id=TenantId(name), **limits)


def lab(*tenants: Tenant, gpus: int = 4, **settings) -> ClusterState:
    return cluster(node("n1", gpus=gpus), settings=replace(ONE_POOL, tenants=tenants, **settings))


def codes(state: ClusterState, task_id: int) -> set[str]:
    return {blocker.code for blocker in explain(state, task_id, state.last_at).blockers} - {"tasks_ahead"}


def end(state: ClusterState, task_id: int, at: int | None = None) -> None:
    do(state, finished(state.tasks[task_id].lease_id), at)


# limits


def test_more_than_a_tenant_may_ever_hold_is_refused_and_more_than_it_holds_now_waits() -> None:
    state = lab(tenant("a", max_gpus=2), tenant("b"))
    before = digest(state)
    assert tried(state, task(3, tenant="a")) == ExceedsQuota(
        entry=0, holder="tenant a", milli_requested=3_000, gpus_quota=2
    )
    assert digest(state) == before
    do(state, task(tenant="a", count=3))
    do(state, task(tenant="b"))
    assert run_pass(state) == [1, 4, 2]
    assert codes(state, 3) == {"tenant_gpus"}
    end(state, 1)
    assert run_pass(state) == [3]


def test_a_tenant_at_its_limit_blocks_nobody_else() -> None:
    state = lab(tenant("a", max_running=1), tenant("b"))
    do(state, task(tenant="a", priority=90, count=2))
    do(state, task(tenant="b", priority=10))
    assert run_pass(state) == [1, 3]
    assert codes(state, 2) == {"tenant_running"}
    end(state, 3)
    assert run_pass(state) == []
    end(state, 1)
    assert run_pass(state) == [2]


def test_gpu_memory_is_counted_as_asked_for() -> None:
    state = lab(tenant("a", max_gpu_memory_mb=16_384))
    assert tried(state, task(tenant="a")) == MemoryNotStated(entry=0, tenant_id="a", quota_mb=16_384)
    assert tried(state, task(2, tenant="a", memory_mb=10_240)) == ExceedsMemory(
        entry=0, tenant_id="a", requested_mb=20_480, quota_mb=16_384
    )
    do(state, task(tenant="a", memory_mb=8_192, count=3))
    assert run_pass(state) == [1, 2]
    assert codes(state, 3) == {"tenant_memory"}


def test_pools_priorities_and_waiting_tasks_are_limited() -> None:
    state = lab(tenant("a", pools=(Pool.BATCH,), max_priority=60, max_waiting=2))
    assert tried(state, task(tenant="a", pool=Pool.ONLINE)) == PoolNotAllowed(
        entry=0, tenant_id="a", pool="online", pools="batch"
    )
    assert tried(state, task(tenant="a", priority=61)) == PriorityTooHigh(
        entry=0, tenant_id="a", priority=61, max_priority=60
    )
    do(state, task(tenant="a"))
    assert tried(state, task(tenant="a", count=2)) == TenantQueueFull(
        tenant_id="a", waiting=1, submitted=2, limit=2
    )
    do(state, task(tenant="a"))
    run_pass(state)
    do(state, task(tenant="a", count=2))


def test_unknown_tenants_are_refused_once_any_is_known() -> None:
    state = lab()
    do(state, task(tenant="anybody"))
    do(state, SetTenant(tenant=tenant("a")))
    assert tried(state, task(tenant="anybody")) == UnknownTenant(tenant_id="anybody", entry=0)
    do(state, task(tenant="a"))
    assert run_pass(state) == [1, 2], "what was accepted before still runs"


def test_on_ones_own_machine_tenants_are_made_when_first_named() -> None:
    state = lab(creates_tenants=True)
    events = do(
        state, SubmitTasks(entries=((1, spec(tenant="a")), (1, spec(tenant="b")), (1, spec(tenant="a"))))
    )
    assert [event.tenant.id for event in events if isinstance(event, TenantSet)] == ["a", "b"]
    assert not [event for event in do(state, task(tenant="a")) if isinstance(event, TenantSet)]


def test_tenants_are_set_changed_and_removed_live() -> None:
    state = lab()
    do(state, SetTenant(tenant=tenant("a", max_gpus=1), is_new=True))
    assert tried(state, SetTenant(tenant=tenant("a"), is_new=True)) == TenantExists(tenant_id="a")
    do(state, task(tenant="a", count=2))
    assert run_pass(state) == [1]
    assert tried(state, RemoveTenant(tenant_id="a")) == TenantBusy(tenant_id="a", waiting=1, running=1)
    do(state, SetTenant(tenant=tenant("a", max_gpus=2)))
    assert run_pass(state) == [2]
    do(state, SetTenant(tenant=tenant("a", max_gpus=1)))
    check_invariants(state)
    end(state, 1)
    end(state, 2)
    do(state, RemoveTenant(tenant_id="a"))
    assert state.tenants == {}
    assert tried(state, RemoveTenant(tenant_id="a")) == UnknownTenant(tenant_id="a")


def test_the_latest_word_on_a_tenant_holds_over_a_restart() -> None:
    listed = (tenant("a", max_gpus=1), tenant("b", max_gpus=1), tenant("c"))
    state = lab(*listed)
    do(state, SetTenant(tenant=tenant("a", max_gpus=3)))
    do(state, SetTenant(tenant=tenant("live")))
    do(state, BeginEpoch(settings=replace(ONE_POOL, tenants=listed)))
    assert state.tenants["a"].max_gpus == 3, "the file says nothing new"
    changed = (tenant("a", max_gpus=2), tenant("b", max_gpus=1))
    do(state, BeginEpoch(settings=replace(ONE_POOL, tenants=changed)))
    assert state.tenants["a"].max_gpus == 2
    assert sorted(state.tenants) == ["a", "b", "live"]


# guarantees


def test_what_is_guaranteed_is_kept_while_its_tenant_waits_for_it() -> None:
    state = lab(tenant("a", guaranteed_gpus=3), tenant("b"))
    do(state, task(tenant="b", count=4))
    assert run_pass(state) == [1, 2, 3, 4], "nobody waits for the guarantee: it is used by others"
    do(state, task(2, tenant="a"))
    do(state, task(tenant="b", priority=90))
    end(state, 1)
    assert run_pass(state) == []
    assert codes(state, 6) == {"guaranteed_to_others"}
    assert codes(state, 5) == {"gpus_busy"}
    end(state, 2)
    assert run_pass(state) == [5]
    end(state, 3)
    assert run_pass(state) == [6], "it has no more tasks: what is left of the guarantee is not kept"


def test_a_guarantee_is_not_kept_for_tasks_that_could_not_start_anyway() -> None:
    state = lab(tenant("a", guaranteed_gpus=3, max_running=1), tenant("b"))
    do(state, task(tenant="a", count=3))
    do(state, task(tenant="b", count=4))
    assert run_pass(state) == [1, 4, 5, 6]


def test_within_its_guarantee_a_tenant_needs_nobodys_leave() -> None:
    state = lab(tenant("a", guaranteed_gpus=2), tenant("b", guaranteed_gpus=4))
    do(state, task(2, tenant="a"))
    do(state, task(4, tenant="b"))
    assert run_pass(state) == [1], "more is promised than there is: who comes first has his part"


def test_a_guarantee_is_named_also_where_nothing_is_idle() -> None:
    state = lab(tenant("a", guaranteed_gpus=1), tenant("b"), tenant("c", guaranteed_gpus=1))
    do(state, task(tenant="b", count=4))
    assert run_pass(state) == [1, 2, 3, 4]
    do(state, task(tenant="b"))
    assert "guaranteed_to_others" not in codes(state, 5), "nobody waits for a guarantee"
    do(state, task(tenant="c"))
    assert "guaranteed_to_others" in codes(state, 5)


# budgets


def test_a_budget_used_up_waits_for_the_next_month() -> None:
    month = 1_700_000_000_000  # in November 2023
    state = cluster(
        replace(node("n1", gpus=2), at=month),
        settings=replace(ONE_POOL, tenants=(tenant("a", gpu_hours_milli=2_000),)),
    )
    do(state, task(tenant="a", count=3), at=month)
    assert run_pass(state, at=month) == [1, 2]
    do(state, Tick(at=month + 30 * 60_000))
    end(state, 1, at=month + HOUR_MS)
    assert run_pass(state, at=month + HOUR_MS) == [3], "1.5 of 2 hours are charged"
    do(state, Tick(at=month + 2 * HOUR_MS))
    end(state, 2, at=month + 2 * HOUR_MS)
    end(state, 3, at=month + 2 * HOUR_MS)
    do(state, task(tenant="a"), at=month + 3 * HOUR_MS)
    assert run_pass(state, at=month + 3 * HOUR_MS) == []
    assert codes(state, 4) == {"tenant_budget"}
    budget = {"tenant": "a", "used_hours": 4, "limit_hours": 2, "renews_at": 1_701_388_800_000}
    assert explain(state, 4, state.last_at).blockers[0].numbers == budget
    december = 1_701_388_800_000 + 1_000
    do(state, Tick(at=december))
    assert run_pass(state, at=december) == [4]


def test_a_tenant_that_was_removed_begins_with_its_whole_budget() -> None:
    limits = tenant("a", gpu_hours_milli=1_000)
    state = lab(limits, tenant("b"))
    do(state, task(tenant="a"))
    run_pass(state)
    end(state, 1, at=state.last_at + 2 * HOUR_MS)
    do(state, RemoveTenant(tenant_id="a"))
    do(state, SetTenant(tenant=limits))
    do(state, task(tenant="a"))
    assert run_pass(state) == [2]


# fair share


def test_a_burst_of_free_gpus_is_dealt_in_turns_by_weight() -> None:
    state = lab(tenant("a", weight_milli=2_000), tenant("b"), gpus=6)
    do(state, task(tenant="a", count=10))
    do(state, task(tenant="b", count=10))
    placed = run_pass(state)
    assert sum(each <= 10 for each in placed) == 4


def test_priority_goes_before_share_and_share_before_age() -> None:
    state = lab(tenant("a"), tenant("b"), gpus=1)
    do(state, task(tenant="a", count=2))
    run_pass(state)
    end(state, 1, at=state.last_at + HOUR_MS)
    do(state, task(tenant="b"))
    do(state, task(tenant="a", priority=60))
    assert queue(state, limit=10) == [4, 3, 2]
    assert [position(state, each) for each in (4, 3, 2)] == [1, 2, 3]
    for expected in (4, 3, 2):
        assert run_pass(state) == [expected]
        end(state, expected)


def test_use_fades_with_its_half_life() -> None:
    state = lab(tenant("a"), fair_share_half_life_ms=HOUR_MS)
    do(state, task(tenant="a"))
    run_pass(state)
    end(state, 1, at=state.last_at + 60_000)
    used = state.usages["a"]
    assert used.of_month == 60_000_000
    now = decayed(used, state.meter, state.last_at)
    later = decayed(used, state.meter, state.last_at + HOUR_MS)
    assert abs(now - 60_000_000) < 1_000_000
    assert abs(2 * later - now) < 100_000


@pytest.mark.parametrize("hours", [20, 50], ids=["less than the old half-life", "more"])
def test_a_new_half_life_keeps_what_is_left(hours: int) -> None:
    state = lab(tenant("a"), tenant("b"))
    do(state, task(tenant="a"))
    run_pass(state)
    end(state, 1, at=START + hours * HOUR_MS)
    before = decayed(state.usages["a"], state.meter, state.last_at)
    do(state, BeginEpoch(settings=replace(state.settings, fair_share_half_life_ms=HOUR_MS)))
    after = decayed(state.usages["a"], state.meter, state.last_at)
    assert abs(after - before) <= before // 1_000
    assert state.meter.half_life_ms == HOUR_MS


def test_numbers_stay_small_however_long_it_runs() -> None:
    state = lab(tenant("a"), fair_share_half_life_ms=60_000)
    do(state, task(tenant="a"))
    run_pass(state)
    for minute in range(1, 400):
        do(state, Tick(at=START + minute * 60_000))
    assert state.usages["a"].weighed.bit_length() < 64
    assert state.usages["a"].of_month == 1_000 * (state.meter.charged_at - state.leases[1].granted_at)
    check_invariants(state)


def test_nobody_is_charged_where_no_tenant_is_known() -> None:
    state = lab()
    do(state, task(tenant="a"))
    run_pass(state)
    do(state, Tick(at=START + HOUR_MS))
    end(state, 1)
    assert (state.usages, state.meter) == ({}, Meter())
    do(state, task(tenant="a"))
    run_pass(state)
    do(state, SetTenant(tenant=tenant("a")), at=START + 2 * HOUR_MS)
    end(state, 2, at=START + 2 * HOUR_MS + 1_000)
    assert state.usages["a"].of_month == 1_000_000, "from the moment on that it is known"


@pytest.mark.parametrize("lengths", [(600_000, 600_000), (60_000, 1_800_000), (1_800_000, 90_000)])
def test_two_tenants_of_weights_2_to_1_end_within_5_percent_of_2_to_1_gpu_time(
    lengths: tuple[int, int],
) -> None:
    """Eight GPUs, more work than they can do, and tasks that may be much longer for one tenant than for the other."""
    state = lab(tenant("a", weight_milli=2_000), tenant("b"), gpus=8)
    journal: list[Event] = []
    _simulate(state, {"a": lengths[0], "b": lengths[1]}, 24 * HOUR_MS, journal)
    used = {name: usage.of_month for name, usage in state.usages.items()}
    assert used["a"] + used["b"] >= 0.99 * 8_000 * 24 * HOUR_MS, "no GPU idles"
    assert abs(used["a"] / used["b"] - 2) <= 0.1, used
    again = replay(journal, lab(tenant("a", weight_milli=2_000), tenant("b"), gpus=8))
    assert again.usages == state.usages
    assert digest(again) == digest(state)


def _simulate(state: ClusterState, lengths: dict[str, int], until_ms: int, journal: list[Event]) -> None:
    ends: dict[int, int] = {}
    at, next_tick = state.last_at + 1, state.last_at + 60_000

    def send(command: Command) -> tuple[Event, ...]:
        decision = execute(state, command)
        assert not isinstance(decision, Rejection), decision
        journal.extend(decision)
        return decision

    while at < START + until_ms:
        for name in lengths:
            account = state.accounts.by_tenant.get(TenantId(name))
            if account is None or sum(len(line) for line in lines_of(account)) < 20:
                send(SubmitTasks(at=at, entries=((50, spec(tenant=name)),)))
        for event in send(RunPass(at=at)):
            if isinstance(event, TaskPlaced):
                name = state.shapes[state.tasks[event.task_id].shape_id].tenant_id
                ends[event.lease_id] = at + lengths[name]
        at = min(*ends.values(), next_tick)
        if at == next_tick:
            send(Tick(at=at, history_at=at))
            next_tick += 60_000
        for lease_id in [lease_id for lease_id, ends_at in ends.items() if ends_at <= at]:
            del ends[lease_id]
            send(replace(finished(lease_id), at=at))
    send(Tick(at=at + 60_000, history_at=at))


def test_a_charge_is_journaled_each_minute_in_which_something_runs() -> None:
    state = lab(tenant("a"))
    assert do(state, Tick(at=START + HOUR_MS)) == ()
    do(state, task(tenant="a"))
    run_pass(state)
    at = state.meter.charged_at + HOUR_MS
    assert [type(event) for event in do(state, Tick(at=at))] == [UsageCharged]
    assert do(state, Tick(at=at + 59_999)) == ()
    assert [type(event) for event in do(state, Tick(at=at + 60_000))] == [UsageCharged]
    assert state.usages["a"] != Usage()


def test_cancelling_what_waits_gives_its_place_free() -> None:
    state = lab(tenant("a", guaranteed_gpus=4), tenant("b"))
    do(state, task(4, tenant="a"))
    do(state, task(tenant="b"))
    do(state, task(tenant="b"))
    run_pass(state)
    end(state, 1)
    assert run_pass(state) == [2, 3]
    do(state, task(4, tenant="a"))
    do(state, task(tenant="b"))
    assert run_pass(state) == []
    do(state, CancelTasks(task_ids=(4,)))
    assert run_pass(state) == [5]
