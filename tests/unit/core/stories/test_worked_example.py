"""The example of docs/scheduling.md, step by step."""

from __future__ import annotations

from building import START, cluster, do, node, run_pass, task
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.settings import Settings
from dgpu.core.rules.durations import KILL_GRACE_MS, RELEASE_MS
from dgpu.core.state import ClusterState

MINUTE = 60_000
OVER_MS = KILL_GRACE_MS + RELEASE_MS  # after a time limit, until the GPUs are free
A, B, C = 5, 6, 7


def at(minute: int) -> int:
    return START + minute * MINUTE


def end(state: ClusterState, task_id: int, minute: int) -> list[int]:
    end_task(state, state.tasks[task_id], at(minute))
    return run_pass(state, at(minute))


def test_three_tasks_and_two_nodes() -> None:
    state = cluster(settings=Settings(memory_margin_mb=0, reservations=8))
    for name, minutes in (("n1", 10), ("n1", 30), ("n2", 20), ("n2", 20)):
        only = (("node", True, (name,)),)
        if name not in state.nodes:
            do(state, node(name, gpus=2), START)
        do(state, task(1, timeout_ms=minutes * MINUTE - OVER_MS, constraints=only), START)
        run_pass(state, START)
    do(state, task(2, timeout_ms=60 * MINUTE), START)
    do(state, task(1, timeout_ms=60 * MINUTE), START)
    do(state, task(1, timeout_ms=4 * MINUTE), START)

    assert run_pass(state, START) == []
    made = {
        task_id: (each.places[0].node_id, len(each.places[0].gpu_ids), each.at)
        for task_id, each in state.reservations.items()
    }
    assert made == {A: ("n2", 2, at(20)), B: ("n1", 1, at(10)), C: ("n1", 1, at(30))}

    assert end(state, 3, 5) == [C]
    assert state.tasks[C].node_id == "n2"
    assert end(state, 1, 10) == [B]
    assert state.tasks[B].node_id == "n1"
    assert end(state, C, 11) == []
    assert end(state, 4, 12) == [A]
    assert not state.reservations
