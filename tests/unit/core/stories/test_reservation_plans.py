"""What moves a reservation, and what does not: plans change where something changed, and elsewhere now and then."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from building import START, cluster, do, node, run_pass, task
from dgpu.core.commands import CancelTasks, ReleaseTasks, ReportStarted, RunPass
from dgpu.core.events import Event, TasksReserved
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.foresight.forward import end_task
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import TaskId
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.reservation import Place, Reservation
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.rules.access import bookings_in_order, window_ms
from dgpu.core.state import ClusterState

MINUTE = 60_000
OVER_MS = 11_000  # kill grace and release
RULES = Settings(memory_margin_mb=0, reservations=2)


def two_busy_nodes(*minutes: int) -> ClusterState:
    """Two nodes of two GPUs; their four tasks may run for so many minutes."""
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), settings=RULES)
    for each in minutes:
        do(state, task(1, timeout_ms=each * MINUTE), START)
        run_pass(state, START)
    return state


def on(state: ClusterState, node_id: str) -> list[int]:
    """The tasks that run there, oldest first."""
    return [lease.task_id for lease in state.leases.values() if lease.node_id == node_id]


def place(state: ClusterState, task_id: int) -> tuple[str, int]:
    made = state.reservations[task_id]
    return made.places[0].node_id, made.at


def test_what_ends_early_on_its_node_makes_a_reservation_earlier_at_once() -> None:
    state = two_busy_nodes(30, 30, 30, 30)
    do(state, task(2, count=2, timeout_ms=MINUTE), START)
    run_pass(state, START)
    first, second = place(state, 5), place(state, 6)
    assert {first[0], second[0]} == {"n1", "n2"}
    at = START + MINUTE
    do(state, task(1, timeout_ms=20 * MINUTE), at)
    end_task(state, state.tasks[on(state, first[0])[0]], at)
    assert run_pass(state, at) == [7], "it is over before the other GPU is free"
    end_task(state, state.tasks[on(state, first[0])[0]], at)
    run_pass(state, at)
    assert place(state, 5) == (first[0], at + 20 * MINUTE + OVER_MS)
    assert place(state, 6) == second, "nothing changed there"


def test_a_task_waits_for_the_ram_that_it_lacks_and_no_more() -> None:
    state = cluster(node("n1", gpus=3, ram_mb=10_240), settings=RULES)
    for minutes in (10, 20, 30):
        do(state, task(1, ram_mb=3_072, timeout_ms=minutes * MINUTE), START)
    run_pass(state, START)
    do(state, task(1, ram_mb=7_168, timeout_ms=MINUTE), START)
    do(state, task(3, timeout_ms=MINUTE), START)
    run_pass(state, START)
    assert place(state, 4) == ("n1", START + 20 * MINUTE + OVER_MS)  # 1 GB is free, two tasks hold the rest


def test_something_earlier_elsewhere_is_found_by_the_next_full_pass() -> None:
    state = two_busy_nodes(10, 10, 30, 30)
    do(state, task(2, timeout_ms=MINUTE), START)
    run_pass(state, START)
    here, _ = place(state, 5)
    elsewhere = "n2" if here == "n1" else "n1"
    at = START + 1
    for number in on(state, elsewhere):
        do(state, CancelTasks(task_ids=(number,)), at)
    run_pass(state, at)
    assert place(state, 5)[0] == here
    run_pass(state, at, full=True)
    assert place(state, 5) == (elsewhere, at + OVER_MS)


def test_a_task_that_was_slow_to_start_ends_later_and_the_plan_knows() -> None:
    state = cluster(node("n1", gpus=1), settings=RULES)
    do(state, task(1, timeout_ms=10 * MINUTE), START)
    run_pass(state, START)
    do(state, task(1, timeout_ms=MINUTE), START)
    run_pass(state, START)
    assert place(state, 2) == ("n1", START + 10 * MINUTE + OVER_MS)
    do(state, ReportStarted(lease_id=1), START + MINUTE)
    run_pass(state, START + MINUTE)
    assert place(state, 2) == ("n1", START + 11 * MINUTE + OVER_MS)


def test_a_reservation_that_moves_to_a_later_time_lets_a_task_ahead_in_the_same_pass() -> None:
    state = cluster(node("n1", gpus=2), settings=replace(RULES, reservations=1))
    do(state, task(1, timeout_ms=11 * MINUTE), START)
    do(state, task(1, timeout_ms=MINUTE), START)
    do(state, task(2, timeout_ms=60 * MINUTE), START)
    do(state, task(1, timeout_ms=10 * MINUTE), START)
    assert run_pass(state, START) == [1, 2]
    end_task(state, state.tasks[2], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [], "it would end after the reservation begins"
    at = START + 2 * MINUTE
    do(state, ReportStarted(lease_id=state.tasks[1].lease_id), at)
    assert run_pass(state, at) == [4]
    assert place(state, 3) == ("n1", at + 11 * MINUTE + OVER_MS)


def test_a_task_that_starts_after_three_runs_of_its_kind_is_expected_to_take_as_long() -> None:
    state = cluster(node("n1", gpus=2), settings=RULES)
    at = START
    for number in range(1, 5):
        do(state, task(1, pool=Pool.ONLINE, command="serve"), at)
        run_pass(state, at)
        do(state, ReportStarted(lease_id=state.tasks[2 * number - 1].lease_id), at)
        do(state, task(2, timeout_ms=MINUTE), at)
        run_pass(state, at)
        (made,) = state.reservations.values()
        assert made.at == (at + MINUTE + 1_000 if number == 4 else 0), "unknown until three are over"
        do(state, CancelTasks(task_ids=(made.task_id,)), at)
        at += MINUTE
        end_task(state, state.tasks[2 * number - 1], at)
    assert state.run_times


def test_a_place_that_is_free_goes_to_the_next_of_the_same_kind_before_a_lower_priority() -> None:
    """Passes of one grant each. The first of three urgent tasks starts: the third gets its place among the two that hold
    a reservation, not the large one of low priority that is refused on the way.
    """
    state = two_busy_nodes(10, 10, 10, 10)
    do(state, task(2, count=3, timeout_ms=MINUTE, priority=90), START)
    do(state, task(2, cpus=1, timeout_ms=MINUTE, priority=10), START)
    run_pass(state, START)
    assert sorted(state.reservations) == [5, 6]
    here, elsewhere = state.reservations[5].places[0].node_id, state.reservations[6].places[0].node_id
    at = START + MINUTE
    events = [event for number in on(state, here) for event in ended(state, number, at)]
    assert state.tasks[5].node_id == here
    events += ended(state, on(state, elsewhere)[0], at + 1)
    assert sorted(state.reservations) == [6, 7]
    made = {each.task_id for event in events if isinstance(event, TasksReserved) for each in event.made}
    assert 8 not in made


def ended(state: ClusterState, task_id: int, at: int) -> tuple[Event, ...]:
    end_task(state, state.tasks[task_id], at)
    return do(state, RunPass(limit=1), at)


def test_who_loses_its_place_to_an_urgent_task_gets_the_next_best_at_once() -> None:
    state = two_busy_nodes(10, 10, 20, 20)
    do(state, task(2, timeout_ms=60 * MINUTE), START)
    run_pass(state, START)
    here, at = place(state, 5)
    assert at == START + 10 * MINUTE + OVER_MS
    do(state, task(2, timeout_ms=60 * MINUTE, priority=90), START)
    run_pass(state, START)
    assert place(state, 6) == (here, at)
    assert place(state, 5) == ("n2" if here == "n1" else "n1", START + 20 * MINUTE + OVER_MS)


def test_urgent_tasks_take_the_places_of_all_lower_levels_in_one_pass() -> None:
    """The first urgent task takes the free place, the second the place of the task of low priority."""
    state = two_busy_nodes(10, 10, 20, 20)
    do(state, task(2, timeout_ms=60 * MINUTE, priority=10), START)
    run_pass(state, START)
    assert sorted(state.reservations) == [5]
    do(state, task(2, count=3, timeout_ms=60 * MINUTE, priority=90), START)
    run_pass(state, START)
    assert sorted(state.reservations) == [6, 7]


def test_a_short_task_that_comes_behind_long_ones_of_its_kind_is_seen() -> None:
    """All reservations are held, and those who wait may not have what is kept: the new one may."""
    state = cluster(node("n1", gpus=2), settings=Settings(memory_margin_mb=0, reservations=1))
    do(state, task(1, count=2, timeout_ms=10 * MINUTE), START)
    run_pass(state, START)
    do(state, task(2, timeout_ms=MINUTE, priority=90), START)
    do(state, task(1, count=2, timeout_ms=30 * MINUTE), START)
    run_pass(state, START)
    end_task(state, state.tasks[1], START + MINUTE)
    assert run_pass(state, START + MINUTE) == []
    do(state, task(1, timeout_ms=20 * MINUTE), START + MINUTE)
    assert run_pass(state, START + MINUTE) == []
    do(state, task(1, timeout_ms=2 * MINUTE), START + MINUTE)
    assert run_pass(state, START + MINUTE) == [7]


def test_a_reservation_on_borrowed_quota_makes_room_for_the_pool_that_owns_it_in_the_same_pass() -> None:
    borrow = Settings(
        memory_margin_mb=0, reservations=1, quota=Quota(online_ppm=250_000, mode=QuotaMode.BORROW)
    )
    state = cluster(node("n1", gpus=4), settings=borrow)
    do(state, task(1, count=2, pool=Pool.ONLINE, timeout_ms=10 * MINUTE), START)
    do(state, task(3, pool=Pool.ONLINE, timeout_ms=MINUTE), START)
    run_pass(state, START)
    assert sorted(state.reservations) == [3]
    do(state, task(1, count=3, timeout_ms=60 * MINUTE), START + 1)
    assert run_pass(state, START + 1) == [4, 5]
    assert 3 not in state.reservations


@pytest.mark.parametrize("lower", [False, True], ids=["alone", "above somebody who holds one, too"])
def test_who_holds_a_reservation_does_not_take_the_cpus_of_a_later_one_on_another_node(lower: bool) -> None:
    state = cluster(
        node("n1", cpus=4), node("n2", gpus=3, cpus=8), settings=Settings(memory_margin_mb=0, reservations=3)
    )
    for minutes in (10, 20, 30):  # one on the first node, two on the second: no cpu is left
        do(state, task(1, cpus=4, timeout_ms=minutes * MINUTE), START)
        run_pass(state, START)
    assert (on(state, "n1"), on(state, "n2")) == ([1], [2, 3])
    do(state, task(1, cpus=4, timeout_ms=60 * MINUTE), START)
    do(state, task(1, cpus=8, timeout_ms=MINUTE), START)
    if lower:
        do(state, task(1, cpus=8, timeout_ms=60 * MINUTE, priority=10), START)
    run_pass(state, START)
    assert place(state, 4) == ("n1", START + 10 * MINUTE + OVER_MS)
    assert place(state, 5) == ("n2", START + 30 * MINUTE + OVER_MS)
    # Half of the second node comes free. Whoever took it for an hour would keep the other from it.
    end_task(state, state.tasks[3], START + MINUTE)
    assert run_pass(state, START + MINUTE) == []
    assert place(state, 5) == ("n2", START + 20 * MINUTE + OVER_MS)
    end_task(state, state.tasks[1], START + 10 * MINUTE)
    assert run_pass(state, START + 10 * MINUTE) == [4]
    end_task(state, state.tasks[2], START + 20 * MINUTE)
    assert run_pass(state, START + 20 * MINUTE) == [5]


@pytest.mark.parametrize("short", [{"cpus": 4}, {"ram_mb": 4_096}], ids=["cpus", "ram"])
def test_a_reservation_beside_another_counts_the_cpus_and_ram_of_both(short: dict[str, int]) -> None:
    state = cluster(node("n1", gpus=8, cpus=8, ram_mb=8_192), settings=RULES)
    for minutes in (10, 20):
        do(state, task(timeout_ms=minutes * MINUTE, **short), START)
    do(state, task(timeout_ms=60 * MINUTE, count=2, **short), START)
    assert run_pass(state, START) == [1, 2]
    assert place(state, 3) == ("n1", START + 10 * MINUTE + OVER_MS)
    assert place(state, 4) == ("n1", START + 20 * MINUTE + OVER_MS)


def test_a_share_reserves_on_a_node_whose_gpu_is_idle_and_whose_cpus_are_not() -> None:
    state = cluster(node("n1", cpus=4), settings=RULES)
    do(state, task(0, cpus=4, timeout_ms=MINUTE), START)
    run_pass(state, START)
    do(state, task(share=0.5, cpus=2), START)
    do(state, task(0, cpus=3), START)  # not all tasks are alike: reservations are made
    run_pass(state, START)
    assert state.reservations[2].at == START + MINUTE + OVER_MS
    assert state.reservations[2].places == (Place("n1", ("GPU-n1-0",)),)


def test_a_gang_is_told_of_the_reservation_on_the_only_nodes_that_it_could_have() -> None:
    """Just as many nodes are free as it needs, and all are reserved for another task."""
    state = cluster(node("n1"), node("n2"), node("n3"), settings=RULES)
    do(state, task(timeout_ms=MINUTE), START)
    do(state, task(nodes=3, timeout_ms=MINUTE), START)
    do(state, task(nodes=2, timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == [1]
    assert list(state.reservations) == [2, 3]
    told = explain(state, 3, START)
    assert isinstance(told, Explanation)
    (reserved,) = [each for each in told.blockers if each.code == "reserved_for"]
    assert reserved.numbers["task"] == "task-2"


def test_the_plan_forgets_a_lease_that_has_ended() -> None:
    """A scheduler that runs for months sees millions of leases."""
    state = two_busy_nodes(10, 10, 10, 10)
    do(state, task(2), START)
    run_pass(state, START)
    end_task(state, state.tasks[1], START + MINUTE)
    run_pass(state, START + MINUTE)
    check_invariants(state)


def test_a_late_reservation_leaves_no_time_for_others() -> None:
    made = Reservation(task_id=TaskId(1), places=(), made_at=START, at=START + MINUTE, number=1)
    assert [window_ms(made.at, START + at) for at in (0, MINUTE, 2 * MINUTE)] == [MINUTE, 0, 0]


def test_a_reservation_stands_behind_those_made_before_it_even_if_its_task_is_older() -> None:
    """All are made in one millisecond. The order decides which of them gives way."""
    state = cluster(node("n1", gpus=2), settings=replace(RULES, reservations=8))
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(2, cpus=1, held=True), START)
    do(state, task(2, cpus=2), START)
    do(state, task(2, cpus=3), START)
    run_pass(state, START)
    do(state, ReleaseTasks(task_ids=(TaskId(2),)), START)
    run_pass(state, START)
    assert [each.task_id for each in bookings_in_order(state, START)] == [3, 4, 2]


def test_a_task_that_takes_longer_than_its_kind_makes_the_time_of_a_reservation_unknown() -> None:
    """No event tells it: only time passes."""
    state = cluster(
        node("n1"), settings=replace(RULES, reservations=1, default_timeout_ms=0, max_timeout_ms=0)
    )
    at = START
    for number in range(1, 5):
        do(state, task(command="train"), at)
        run_pass(state, at)
        do(state, ReportStarted(lease_id=state.tasks[number].lease_id), at)
        if number < 4:
            at += MINUTE
            end_task(state, state.tasks[number], at)
    do(state, task(timeout_ms=MINUTE, priority=90), at)
    do(state, task(timeout_ms=MINUTE, cpus=1, priority=10), at)
    run_pass(state, at)
    assert place(state, 5) == ("n1", at + MINUTE + 1_000)
    run_pass(state, at + MINUTE)
    assert place(state, 5) == ("n1", at + MINUTE + 1_000)
    run_pass(state, at + 2 * MINUTE)
    assert place(state, 5) == ("n1", 0)
