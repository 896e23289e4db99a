"""A large task that waits for quota or for its tenant's limits, behind an endless stream of small ones."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest

from building import START, cluster, do, node, run_pass, task
from dgpu.core.apply.table import apply
from dgpu.core.commands import CancelTasks, RunPass, SetQuota, SetTenant
from dgpu.core.events import GangPlaced, TaskPlaced, TasksReserved
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.ids import TaskId
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.model.tenant import Tenant
from dgpu.core.state import ClusterState

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
LENGTH = 4 * MINUTE  # of a task of the stream: its time limit
OVER_MS = 11_000  # kill grace and release
STRICT = Settings(memory_margin_mb=0, reservations=8, quota=Quota(online_ppm=500_000, mode=QuotaMode.STRICT))
BORROW = Settings(memory_margin_mb=0, reservations=8, quota=Quota(online_ppm=500_000, mode=QuotaMode.BORROW))


def ended(state: ClusterState, task_id: int, at: int) -> list[int]:
    """A task ends, and the pass after it places these."""
    end_task(state, state.tasks[task_id], at)
    return run_pass(state, at)


class Stream:
    """Every minute a small task comes, just before another one ends. It runs to its limit: four of them run at any time."""

    def __init__(self, state: ClusterState, **small) -> None:
        self.state = state
        self.small = small
        self.at = START
        self.ends: list[tuple[int, int]] = []
        self.started: dict[int, int] = {}
        self.lasts: dict[int, int] = {}

    def submit(self, gpus: int, **more) -> int:
        task_id = self.state.next_task_id
        do(self.state, task(gpus, **more), self.at)
        self.lasts[task_id] = more["timeout_ms"]
        return task_id

    def settle(self) -> None:
        for event in do(self.state, RunPass(), self.at):
            if isinstance(event, TaskPlaced | GangPlaced):
                self.started[event.task_id] = self.at
                heappush(self.ends, (self.at + self.lasts.get(event.task_id, DAY), event.task_id))

    def run(self, minutes: int, timeout_ms: int = LENGTH) -> None:
        for _ in range(minutes):
            self.submit(1, timeout_ms=timeout_ms, **self.small)
            self.settle()
            until = self.at + MINUTE
            while self.ends and self.ends[0][0] < until:
                self.at, task_id = heappop(self.ends)
                end_task(self.state, self.state.tasks[task_id], self.at)
                self.settle()
            self.at = until

    def waited(self, task_id: int) -> int:
        assert task_id in self.started, "it starves"
        return self.started[task_id] - self.state.tasks[task_id].created_at

    def used_milli(self, pool: Pool) -> int:
        return self.state.queue.pools[pool].used_milli


def pool_of_four(settings: Settings = STRICT, **more) -> ClusterState:
    return cluster(node("n1", gpus=8), settings=settings, **more)


def by_pool() -> Stream:
    return Stream(pool_of_four())


def by_gpus() -> Stream:
    rules = Settings(memory_margin_mb=0, reservations=8, tenants=(Tenant(id="lab", max_gpus=4),))
    return Stream(pool_of_four(rules), tenant="lab")


def by_memory() -> Stream:
    rules = Settings(memory_margin_mb=0, reservations=8, tenants=(Tenant(id="lab", max_gpu_memory_mb=4_000),))
    return Stream(pool_of_four(rules), tenant="lab", memory_mb=1_000)


def by_borrowing() -> Stream:
    """The other pool has all that is its own, and wants more."""
    state = pool_of_four(BORROW)
    do(state, task(1, count=4, pool=Pool.ONLINE, timeout_ms=DAY), START)
    run_pass(state, START)
    stream = Stream(state)
    stream.run(4)
    do(state, task(1, count=4, pool=Pool.ONLINE, timeout_ms=DAY, priority=40), stream.at)
    return stream


WAYS = pytest.mark.parametrize("begin", [by_pool, by_gpus, by_memory, by_borrowing])


@WAYS
def test_it_starts_when_those_that_ran_before_it_are_over(begin) -> None:
    stream = begin()
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH, **stream.small)
    stream.run(60)
    assert stream.waited(large) <= LENGTH + OVER_MS + MINUTE


@WAYS
def test_without_reservations_it_starves(begin) -> None:
    stream = begin()
    rules = stream.state.settings
    stream.state.settings = Settings(
        memory_margin_mb=0, reservations=0, quota=rules.quota, tenants=rules.tenants
    )
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH, **stream.small)
    stream.run(300)
    assert large not in stream.started


@WAYS
def test_short_tasks_run_ahead_and_long_ones_do_not(begin) -> None:
    stream = begin()
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH, **stream.small)
    short = [stream.submit(1, timeout_ms=MINUTE, **stream.small) for _ in range(3)]
    before = set(stream.started)
    stream.run(2)
    ahead = set(stream.started) - before
    assert ahead == set(short), "those of four minutes would delay it"
    stream.run(10)
    assert stream.waited(large) <= LENGTH + OVER_MS + MINUTE


@WAYS
def test_a_higher_level_passes(begin) -> None:
    stream = begin()
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH, **stream.small)
    stream.run(2)
    urgent = stream.submit(1, timeout_ms=60 * MINUTE, priority=90, **stream.small)
    stream.run(2)
    assert urgent in stream.started
    stream.run(10)
    assert large not in stream.started, "the urgent one holds what it waits for"
    stream.run(70)
    assert stream.waited(large) <= 75 * MINUTE


@pytest.mark.parametrize("begin", [by_pool, by_gpus, by_memory])
def test_what_it_reserves_is_quota_alone_until_it_waits_for_gpus(begin) -> None:
    stream = begin()
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH, **stream.small)
    stream.run(1)
    made = stream.state.reservations[large]
    last = max(at for at, task_id in stream.ends if at < stream.at + DAY // 2)
    assert (made.places, made.at) == ((), last + OVER_MS)


def test_a_task_above_its_pools_part_holds_none_and_delays_no_other() -> None:
    """It was not when it was submitted."""
    stream = by_pool()
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH)
    stream.run(1)
    assert large in stream.state.reservations
    do(stream.state, SetQuota(online_ppm=625_000), stream.at)
    stream.run(40, timeout_ms=2 * MINUTE)
    before = len(stream.started)
    stream.run(20, timeout_ms=2 * MINUTE)
    assert len(stream.started) == before + 20
    assert large not in stream.started
    assert not stream.state.reservations


def test_with_borrowing_it_may_be_above_its_pools_part_while_the_other_pool_needs_nothing() -> None:
    stream = Stream(pool_of_four(BORROW))
    stream.run(20, timeout_ms=8 * MINUTE)
    large = stream.submit(6, timeout_ms=LENGTH)
    stream.run(20)
    assert stream.waited(large) <= 8 * MINUTE + OVER_MS + MINUTE


def test_while_it_waits_the_other_pool_does_not_borrow_what_comes_free_for_it() -> None:
    stream = by_borrowing()
    stream.run(20)
    stream.submit(4, timeout_ms=LENGTH)
    for _ in range(4):
        stream.run(1)
        assert stream.used_milli(Pool.ONLINE) == 4_000


@pytest.mark.parametrize("limit", ["max_running", "array"])
def test_a_task_that_another_limit_keeps_waiting_reserves_nothing(limit: str) -> None:
    tenants = (Tenant(id="lab", max_running=1), Tenant(id="other")) if limit == "max_running" else ()
    rules = Settings(memory_margin_mb=0, reservations=8, quota=STRICT.quota, tenants=tenants)
    state = pool_of_four(rules)
    lab, other = ({"tenant": "lab"}, {"tenant": "other"}) if tenants else ({}, {})
    if tenants:
        do(state, task(2, count=2, timeout_ms=DAY, **lab), START)
    else:
        do(state, task(2, array="0-1%1", timeout_ms=DAY), START)
    do(state, task(1, count=3, timeout_ms=DAY, **other), START)
    assert run_pass(state, START) == [1, 3, 4]
    assert not state.reservations


def test_the_limit_of_its_tenant_keeps_no_quota_of_the_pool_from_other_tenants() -> None:
    """What its tenant holds comes free for it with the pool's quota that goes with it."""
    rules = Settings(
        memory_margin_mb=0,
        reservations=8,
        quota=STRICT.quota,
        tenants=(Tenant(id="lab", max_gpus=2), Tenant(id="other")),
    )
    state = pool_of_four(rules)
    do(state, task(1, tenant="lab", timeout_ms=DAY), START)
    do(state, task(2, tenant="lab", timeout_ms=MINUTE), START)
    do(state, task(1, tenant="lab", timeout_ms=DAY), START)
    do(state, task(1, count=4, tenant="other", timeout_ms=DAY), START)
    assert run_pass(state, START) == [1, 4, 5, 6]
    assert list(state.reservations) == [2]
    # It waits for quota of the pool now, and keeps what comes free of it.
    end_task(state, state.tasks[1], START + MINUTE)
    assert run_pass(state, START + MINUTE) == []
    end_task(state, state.tasks[4], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [2]


def test_a_reservation_counts_as_needed_however_much_more_than_what_is_left_it_asks_for() -> None:
    state = pool_of_four(BORROW)
    do(state, task(1, count=4, pool=Pool.ONLINE, timeout_ms=DAY), START)
    do(state, task(1, count=4, timeout_ms=DAY), START)
    assert run_pass(state, START) == [1, 2, 3, 4, 5, 6, 7, 8]
    do(state, task(4, timeout_ms=DAY, priority=90), START)
    do(state, task(1, pool=Pool.ONLINE, timeout_ms=DAY), START)
    do(state, task(1, timeout_ms=DAY), START)
    end_task(state, state.tasks[5], START + MINUTE)
    assert run_pass(state, START + MINUTE) == []
    assert 9 in state.reservations
    do(state, CancelTasks(task_ids=(11,)), START + MINUTE)
    end_task(state, state.tasks[6], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [], "the online pool may not borrow two GPUs of the four"
    for number in (7, 8):
        end_task(state, state.tasks[number], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [9]


def test_a_reservation_is_gone_once_its_tenant_has_used_its_budget() -> None:
    rules = Settings(
        memory_margin_mb=0,
        reservations=8,
        quota=STRICT.quota,
        tenants=(Tenant(id="lab", max_gpus=4), Tenant(id="other")),
    )
    stream = Stream(pool_of_four(rules), tenant="other")
    stream.run(20)
    large = stream.submit(4, timeout_ms=LENGTH, tenant="lab")
    stream.run(1)
    assert large in stream.state.reservations
    before = len(stream.started)
    do(stream.state, SetTenant(tenant=Tenant(id="lab", max_gpus=4, gpu_hours_milli=0)), stream.at)
    stream.run(10)
    assert not stream.state.reservations
    assert len(stream.started) >= before + 10


def test_of_an_array_with_a_limit_no_more_tasks_hold_one_than_may_run() -> None:
    state = cluster(
        node("n1", gpus=2), node("n2", gpus=2), settings=Settings(memory_margin_mb=0, reservations=8)
    )
    do(state, task(2, count=2, timeout_ms=10 * MINUTE), START)
    run_pass(state, START)
    do(state, task(2, array="0-1%1", timeout_ms=DAY), START)
    do(state, task(1, count=2, timeout_ms=DAY), START)
    run_pass(state, START)
    assert {3, 4} <= state.reservations.keys()
    end_task(state, state.tasks[1], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [3]
    assert 4 not in state.reservations
    end_task(state, state.tasks[2], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [5, 6]


def test_a_task_that_its_pools_quota_keeps_waiting_is_not_delayed_by_smaller_ones_of_its_pool() -> None:
    """Without a reservation of quota, a stream of small tasks would keep it waiting for ever."""
    state = cluster(node("n1", gpus=4), settings=STRICT)
    do(state, task(1, timeout_ms=10 * MINUTE), START)
    do(state, task(2, timeout_ms=10 * MINUTE), START)  # batch may have two GPUs, and uses one
    do(state, task(1, timeout_ms=60 * MINUTE), START)
    do(state, task(2, pool=Pool.ONLINE, timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == [1, 4], "the third would hold for an hour what the second waits for"
    assert (state.reservations[2].places, state.reservations[2].at) == ((), START + 10 * MINUTE + OVER_MS)
    do(state, task(1, timeout_ms=5 * MINUTE), START)
    assert run_pass(state, START) == [5], "it is over in time"
    assert ended(state, 5, START + MINUTE) == []
    assert ended(state, 1, START + 2 * MINUTE) == [2]
    assert not state.reservations


def test_a_reservation_without_a_time_does_not_take_the_quota_of_an_earlier_one() -> None:
    """One with a time may: the earlier one in turn waits for its GPUs. Without a time, both only wait for quota."""
    endless = Settings(
        memory_margin_mb=0, reservations=8, default_timeout_ms=0, max_timeout_ms=0, quota=STRICT.quota
    )
    state = cluster(node("n1", gpus=8), task(3), task(1), settings=endless)
    assert run_pass(state) == [1, 2]
    do(state, task(3))
    do(state, task(1))
    alone = [
        Reservation(task_id=TaskId(number), places=(), made_at=state.last_at, number=number)
        for number in (3, 4)
    ]
    apply(state, TasksReserved(at=state.last_at, made=tuple(alone)))
    assert ended(state, 2, state.last_at) == []  # enough for task 4, but task 3 is before it
    assert [made.at for made in state.reservations.values()] == [0, 0]
    assert ended(state, 1, state.last_at) == [3, 4]
