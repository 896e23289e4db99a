"""Reservations where no task has a time limit: what they hold idle, and that no task starves."""

from __future__ import annotations

from msgspec.structs import replace

from building import START, cluster, do, node, run_pass, task
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.quota import Quota
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Constraint, Restart
from dgpu.core.rules.access import bookings_in_order
from dgpu.core.rules.durations import NEVER
from dgpu.core.state import ClusterState

HOUR = 3_600_000
WEEK = 7 * 24 * HOUR
RULES = Settings(memory_margin_mb=0, reservations=8, default_timeout_ms=0, max_timeout_ms=0)


def busy(nodes: int = 4) -> ClusterState:
    """Nodes of two GPUs, each with a task on both of them."""
    state = cluster(*(node(f"n{number}", gpus=2) for number in range(nodes)), settings=RULES)
    do(state, task(2, count=nodes), START)
    run_pass(state, START)
    return state


def end(state: ClusterState, task_id: int, at: int) -> list[int]:
    end_task(state, state.tasks[task_id], at)
    return run_pass(state, at)


def test_a_gang_of_two_nodes_holds_nothing_idle_until_it_has_waited_two_weeks() -> None:
    state = busy()
    do(state, task(2, nodes=2), START)
    do(state, task(2, count=9), START)
    run_pass(state, START)
    made = state.reservations[5]
    first, second = [each.node_id for each in made.places]
    assert made.at == 0
    assert end(state, on(state, first), START + WEEK) == [6], "one node is the bound, and it needs two"
    late = made.made_at + 2 * WEEK
    assert end(state, on(state, first), late - 1) == [7]
    assert end(state, on(state, first), late) == []
    assert end(state, on(state, second), late + HOUR) == [5]


def test_why_names_a_reservation_whose_time_is_unknown() -> None:
    state = cluster(node("n1", gpus=2), settings=RULES)
    do(state, task(1, count=2), START)
    run_pass(state, START)
    do(state, task(2), START)
    do(state, task(1), START)
    assert end(state, 1, START) == []
    (blocker,) = [each for each in explain(state, 4, START).blockers if each.code == "reserved_for"]
    assert (blocker.numbers["task"], blocker.numbers["at"], blocker.numbers["left_ms"]) == (
        "task-3",
        "unknown",
        0,
    )


def test_of_several_only_as_many_hold_gpus_as_fit_into_one_node_and_each_of_the_rest_after_its_weeks() -> (
    None
):
    state = cluster(*(node(f"n{number}", gpus=2) for number in range(4)), settings=RULES)
    for _ in range(8):
        do(state, task(1), START)
        run_pass(state, START)
    places = ("n0", "n1", "n2")
    for node_id in places:
        do(state, task(2, constraints=only(node_id)), START)
    do(state, task(1, count=9), START)
    run_pass(state, START)
    assert end(state, on(state, places[0]), START + HOUR) == [], "the first holds its node"
    assert end(state, on(state, places[1]), START + HOUR) == [12]
    assert end(state, on(state, places[2]), START + HOUR) == [13]
    made_at = state.reservations[10].made_at
    assert end(state, on(state, places[1]), made_at + WEEK - 1) == [14]
    assert end(state, on(state, places[1]), made_at + WEEK) == []
    assert end(state, on(state, places[2]), made_at + WEEK) == [15], "it is the second of those"
    assert end(state, on(state, places[2]), made_at + 2 * WEEK) == []


def test_with_a_second_reservation_of_a_higher_level_others_pass_the_first_at_once() -> None:
    state = busy(nodes=2)
    do(state, task(2), START)
    do(state, task(1, count=4), START)
    run_pass(state, START)
    (place,) = state.reservations[3].places
    other = "n0" if place.node_id == "n1" else "n1"
    end_task(state, state.tasks[on(state, place.node_id)], START)
    do(state, task(1, priority=90), START)
    assert run_pass(state, START) == [8]
    assert place.node_id == state.tasks[8].node_id, "one GPU of the node is idle, and reserved"
    do(state, task(2, priority=90, constraints=only(other)), START)
    assert run_pass(state, START) == [4]
    assert [each.node_id for each in state.reservations[9].places] == [other]


def only(node_id: str) -> tuple[Constraint, ...]:
    return (("node", True, (node_id,)),)


def on(state: ClusterState, node_id: str) -> int:
    """The oldest task that runs there."""
    return min(lease.task_id for lease in state.leases.values() if lease.node_id == node_id)


def test_a_gang_reserves_no_node_that_a_service_holds_for_good() -> None:
    """The other node comes free at an unknown time, and it would stay idle for nothing."""
    state = cluster(node("n1"), node("n2"), settings=RULES)
    do(state, task(restart=Restart.ALWAYS), START)
    do(state, task(command="unknown"), START)
    do(state, task(nodes=2), START)
    run_pass(state, START)
    assert not state.reservations


def test_in_a_large_pool_one_gpu_in_twenty_may_be_held_idle() -> None:
    """Five of a hundred. With a bound of one small node, gangs would wait for weeks in a large cluster."""
    all_batch = replace(RULES, quota=Quota(online_ppm=0))
    state = cluster(*(node(f"n{number:02}") for number in range(100)), settings=all_batch)
    do(state, task(count=100), START)
    run_pass(state, START)
    do(state, task(nodes=2, count=3), START)
    do(state, task(nodes=3), START)
    run_pass(state, START)
    held = {each.task_id: each.window_ms < NEVER for each in bookings_in_order(state, START)}
    assert held == {101: True, 102: True, 103: False, 104: False}
