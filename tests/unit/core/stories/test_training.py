"""A training over four nodes, as a story: it waits for all of them, loses one, and starts again as a whole."""

from __future__ import annotations

from building import cluster, do, finished, node, run_pass, task
from dgpu.core.commands import LoseNode, ReleaseNode
from dgpu.core.digest import digest
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.task import Outcome

NAMES = ("n1", "n2", "n3", "n4", "n5")


def test_a_training_over_four_nodes() -> None:
    state = cluster(*(node(name, gpus=2) for name in NAMES))
    do(state, task(gpus=2, count=2))  # two small ones came first
    assert run_pass(state) == [1, 2]
    do(state, task(gpus=2, nodes=4))

    # Three nodes are free: nothing of it starts, and it takes nothing away from others.
    assert run_pass(state) == []
    (nodes, *_) = explain(state, 3, state.last_at).blockers
    assert nodes.detail == "needs 4 nodes at once with room for 2 GPUs each; 3 have it now"
    do(state, task(gpus=1, timeout_ms=1_000))
    assert run_pass(state) == [4]
    do(state, finished(state.tasks[4].lease_id))

    # A small one ends: four nodes are free, and all ranks start at once.
    do(state, finished(state.tasks[1].lease_id))
    assert run_pass(state) == [3]
    leases = state.gangs[3].leases
    assert len(state.tasks[3].gpu_ids) == 8

    # Its second node burns down. The others cannot go on without it.
    lost = state.leases[leases[1]].node_id
    do(state, LoseNode(node_id=lost, reason="no heartbeat for 15 s"))
    assert state.gangs[3].failed is None
    do(state, ReleaseNode(node_id=lost, reason="task lease over"))
    check_invariants(state)
    for place in (0, 2, 3):
        do(state, finished(leases[place], outcome=Outcome.STOPPED))
    assert (state.tasks[3].status.value, state.tasks[3].retries) == ("pending", 0)

    # Three nodes are left beside the one that is busy: it waits, and starts when that one is free.
    assert run_pass(state) == []
    do(state, finished(state.tasks[2].lease_id))
    assert run_pass(state) == [3]
    assert state.tasks[3].attempt == 2
    assert lost not in state.tasks[3].node_ids
    for lease_id in state.gangs[3].leases:
        do(state, finished(lease_id))
    assert state.tasks[3].status.value == "success"
    check_invariants(state)
    assert digest(state) == digest(state.fork())
