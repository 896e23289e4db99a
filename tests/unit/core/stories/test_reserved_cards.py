"""Grants from cards that reservations keep: to the task itself, and to short tasks that delay none."""

from __future__ import annotations

import pytest

from building import START, cluster, do, node, run_pass, task
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.state import ClusterState

MINUTE = 60_000
RULES = Settings(memory_margin_mb=0, reservations=8)


def busy(gpus: int, *minutes: int, placement: Placement = Placement.BALANCED) -> ClusterState:
    """A node on which a task runs on each GPU, for at most so many minutes."""
    state = cluster(
        node("n1", gpus=gpus),
        settings=Settings(memory_margin_mb=0, reservations=8, placement=placement),
    )
    for each in minutes:
        do(state, task(1, timeout_ms=each * MINUTE), START)
        run_pass(state, START)
    return state


def reserved(state: ClusterState, task_id: int) -> tuple[str, ...]:
    (place,) = state.reservations[task_id].places
    return place.gpu_ids


@pytest.mark.parametrize("placement", Placement)
def test_each_gets_its_own_card_whichever_comes_free_first(placement: Placement) -> None:
    state = busy(3, 10, 20, 30, placement=placement)
    do(state, task(1, cpus=1, timeout_ms=60 * MINUTE), START)
    do(state, task(1, cpus=2, timeout_ms=60 * MINUTE), START)
    do(state, task(1, cpus=3, timeout_ms=60 * MINUTE), START)
    run_pass(state, START)
    cards = {number: reserved(state, number) for number in (4, 5, 6)}
    assert [state.tasks[number].gpu_ids for number in (1, 2, 3)] == list(cards.values())
    # The card of the last comes free first, then that of the second.
    for ended, started in ((3, 6), (2, 5), (1, 4)):
        end_task(state, state.tasks[ended], START + MINUTE)
        assert run_pass(state, START + MINUTE) == [started]
        assert state.tasks[started].gpu_ids == cards[started]


def test_all_come_free_at_once_and_each_gets_its_own() -> None:
    state = busy(3, 10, 20, 30)
    for cpus in (1, 2, 3):
        do(state, task(1, cpus=cpus, timeout_ms=60 * MINUTE), START)
    run_pass(state, START)
    cards = {number: reserved(state, number) for number in (4, 5, 6)}
    for number in (3, 2, 1):
        end_task(state, state.tasks[number], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [4, 5, 6]
    assert {number: state.tasks[number].gpu_ids for number in (4, 5, 6)} == cards


def test_the_first_of_two_with_the_same_card_is_not_kept_from_it_by_the_second() -> None:
    """No time limits: nothing is known of when either is over."""
    rules = Settings(memory_margin_mb=0, reservations=8, default_timeout_ms=0, max_timeout_ms=0)
    state = cluster(node("n1", gpus=1), node("n2", gpus=4), settings=rules)
    here = (("node", True, ("n1",)),)
    do(state, task(1, constraints=here), START)
    run_pass(state, START)
    do(state, task(1, cpus=1, constraints=here), START)
    do(state, task(1, cpus=2, constraints=here), START)
    run_pass(state, START)
    assert reserved(state, 2) == reserved(state, 3) == state.tasks[1].gpu_ids
    end_task(state, state.tasks[1], START + MINUTE)
    assert run_pass(state, START + MINUTE) == [2]


@pytest.mark.parametrize("nodes", [8, 9, 12])
def test_short_tasks_use_all_nodes_that_free_reserved_cards_at_once_however_many(nodes: int) -> None:
    """A gang waits for its last node. All others come free in the same moment."""
    state = cluster(*(node(f"n{number:02}", gpus=1) for number in range(nodes)), settings=RULES)
    do(state, task(1, count=nodes - 1, timeout_ms=60 * MINUTE), START)
    do(state, task(1, timeout_ms=60 * MINUTE), START)
    assert len(run_pass(state, START)) == nodes
    do(state, task(1, nodes=nodes, timeout_ms=60 * MINUTE), START)
    do(state, task(1, count=nodes, timeout_ms=120 * MINUTE), START)
    do(state, task(1, count=nodes, timeout_ms=5 * MINUTE), START)
    assert run_pass(state, START) == []
    gang, first_short = nodes + 1, 2 * nodes + 2
    assert len(state.reservations[gang].places) == nodes
    for number in range(1, nodes):
        end_task(state, state.tasks[number], START + MINUTE)
    assert run_pass(state, START + MINUTE) == list(range(first_short, first_short + nodes - 1))
    assert {state.tasks[number].node_id for number in range(first_short, first_short + nodes - 1)} == {
        f"n{number:02}" for number in range(nodes)
    } - {state.tasks[nodes].node_id}
    # They are over, and the last node comes free: the gang has not waited for any of them.
    for number in (*range(first_short, first_short + nodes - 1), nodes):
        end_task(state, state.tasks[number], START + 6 * MINUTE)
    assert run_pass(state, START + 6 * MINUTE) == [gang]
