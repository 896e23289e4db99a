"""Why, when and what if: what an explanation, its `sooner`, a forecast and a what-if cost with 100,000 waiting
tasks.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from dgpu.core.commands import BeginEpoch, DrainNode, RegisterNode, RunPass, SubmitTasks
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.foresight.sooner import sooner
from dgpu.core.foresight.whatif import whatif
from dgpu.core.model.ids import GpuId, NodeId, TaskId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Shape, TaskSpec
from dgpu.core.state import ClusterState

WAITING = 100_000
SHAPES = 50
ROUNDS = 5


def run() -> Iterator[dict[str, Any]]:
    for nodes in (200, 20_000):
        state = cluster(nodes)
        gc.collect()
        gc.freeze()
        for name, ask in questions(state).items():
            yield {"figure": name, "value": best_ms(ask), "unit": "ms", "nodes": nodes, "waiting": WAITING}
        gc.unfreeze()


def questions(state: ClusterState) -> dict[str, Callable[[], object]]:
    last = TaskId(state.next_task_id - 1)
    at = state.last_at + 1
    return {
        "fork": state.fork,
        "why: blockers": lambda: explain(state, last, at),
        "why: sooner": lambda: sooner(state, last, at),
        "forecast of 1,000 tasks": lambda: forecast(state, at),
        "what-if of a drain": lambda: whatif(state, (DrainNode(node_id=NodeId("n0")),), at),
    }


def best_ms(ask: Callable[[], object]) -> float:
    """CPU time, the best of some rounds: neighbours on the machine are not what is measured."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        ask()
        taken.append(time.process_time() - began)
    return round(min(taken) * 1_000, 2)


def cluster(nodes: int) -> ClusterState:
    """Seven of eight GPUs of each node are busy, and everybody waits for two or more."""
    state = ClusterState()
    execute(state, BeginEpoch(at=1, settings=Settings()))
    for number in range(nodes):
        name = NodeId(f"n{number}")
        gpus = tuple(
            Gpu(id=GpuId(f"{name}-{index}"), node_id=name, index=index, model="V100", memory_mb=32_768)
            for index in range(8)
        )
        execute(
            state,
            RegisterNode(at=1, node_id=name, boot_id="b", cpus_milli=64_000, ram_mb=262_144, gpus=gpus),
        )
    submit(state, 7, nodes, 0)
    while execute(state, RunPass(at=2)):
        pass
    for number in range(SHAPES):
        submit(state, 2 + number % 7, WAITING // SHAPES, number)
    execute(state, RunPass(at=3))
    return state


def submit(state: ClusterState, gpus: int, count: int, number: int) -> None:
    shape = Shape(
        tenant_id=TenantId("lab"),
        pool=Pool.BATCH,
        priority=50,
        gpus=gpus,
        cpus_milli=1_000 * (1 + number // 8),
    )
    spec = TaskSpec(shape=shape, detail=b'{"command":"true"}', timeout_ms=60_000 * (1 + number))
    execute(state, SubmitTasks(at=2, entries=((count, spec),)))


if __name__ == "__main__":
    for figure in run():
        sys.stdout.write(json.dumps({"benchmark": "foresight", **figure}) + "\n")
