"""Explanations look at each kind of node once; the numbers are those of all nodes."""

from __future__ import annotations

from building import cluster, do, lease, node, task
from dgpu.core.commands import DrainNode, RunPass
from dgpu.core.foresight.alike import alike
from dgpu.core.foresight.explain import explain
from dgpu.core.model.demand import Demand


def test_nodes_alike_are_counted_and_others_stand_alone() -> None:
    nodes = [node(f"n{number}", gpus=2) for number in range(6)]
    state = cluster(*nodes, node("t1", model="T4"), task(count=4))
    for number, on in enumerate(("n0", "n1", "n2", "n2"), 1):
        lease(number, on=on)(state)
    do(state, DrainNode(node_id="n5"))
    found = {room.node_id: number for room, number in alike(state, Demand(gpus=2))}
    # half used: n0, n1; full: n2; empty: n3, n4; drained: n5; of another model: t1
    assert found == {"n0": 2, "n2": 1, "n3": 2, "n5": 1, "t1": 1}
    by_cpus = {room.node_id: number for room, number in alike(state, Demand(gpus=2, cpus_milli=1))}
    assert by_cpus == found
    pinned = Demand(gpus=1, constraints=(("node", True, ("n1",)),))
    assert sorted(number for _, number in alike(state, pinned)) == [1] * 7


def test_the_numbers_of_blockers_are_those_of_all_nodes() -> None:
    nodes = [node(f"n{number}", gpus=4) for number in range(5)]
    state = cluster(*nodes, task(count=9), task(4))
    for number, on in enumerate(("n0", "n0", "n0", "n1", "n1", "n1", "n2", "n3", "n4"), 1):
        lease(number, on=on)(state)
    told = explain(state, 10, state.last_at)
    (busy,) = told.blockers
    assert busy.numbers == {"needed": 4, "most_free_on_one_node": 3, "free": 11, "busy": 9}


def test_a_fork_and_its_original_know_their_own_nodes() -> None:
    """More nodes than are asked one by one, so that both have an order of them."""
    state = cluster(*[node(f"n{number:02}") for number in range(12)])
    one = Demand(gpus=1)
    first = state.rooms.find(one).room.node_id
    fork = state.fork()
    do(fork, task())
    do(fork, RunPass())  # the fork gives its best node away
    assert fork.rooms.find(one).room.node_id != first
    assert state.rooms.find(one).room.node_id == first
    late = state.fork()
    do(state, DrainNode(node_id=first))  # the original moves on, and the fork was not asked yet
    assert late.rooms.find(one).room.node_id == first
    assert state.rooms.find(one).room.node_id != first
