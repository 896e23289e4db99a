"""The core alone: what a decision costs, whatever the size of the cluster.

A decision here is the decide and apply of one placement (`RunPass(limit=1)`) in a full cluster where one GPU was
just released. Every figure is a JSON line; `run()` gives them to a common runner.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import _rules
import msgspec

from dgpu.core.commands import BeginEpoch, RegisterNode, ReportFinished, RunPass, SubmitTasks
from dgpu.core.events import Event, GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.sooner import sooner
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, Pool, Shape, TaskDetail, TaskSpec
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

GPUS_PER_NODE = 8
ROUNDS = 10_000
WARM_UP = 1_000
TENANT_ROUNDS = 5_000
RESERVATIONS = 8  # as a service has them unless it is told otherwise


def run() -> Iterator[dict[str, Any]]:
    # The service runs so too: values are acyclic, and a full collection waits for an idle moment.
    gc.collect()
    gc.disable()
    try:
        small = decision(nodes=200)
        yield small
        bare = decision(nodes=200, reservations=0)
        yield bare
        yield figure(
            "decision p50 with 8 reservations against none", small["value"] / bare["value"], "ratio", None
        )
        large = decision(nodes=20_000)
        yield large
        yield figure("decision p50 at 20,000 nodes against 200", large["value"] / small["value"], "ratio", 2)
        small = decision(nodes=200, placement=Placement.PACK)
        yield small
        large = decision(nodes=20_000, placement=Placement.PACK)
        yield large
        yield figure(
            "decision (pack) p50 at 20,000 nodes against 200", large["value"] / small["value"], "ratio", 2
        )
        yield from with_all_rules()
        yield many_tenants(nodes=200)
        yield mixed_pass(nodes=200)
        yield bulk_submit()
        yield from idle_pass()
    finally:
        gc.enable()


def decision(
    nodes: int, placement: Placement = Placement.BALANCED, reservations: int = RESERVATIONS
) -> dict[str, Any]:
    """Steady load: 50 shapes wait, a task ends, the next in order takes its GPU."""
    state = full_cluster(nodes, placement=placement, reservations=reservations)
    gc.freeze()
    took: list[int] = []
    leases = sorted(state.leases)
    for turn in range(WARM_UP + ROUNDS):
        at = state.last_at + 1
        # Ends come from all over the cluster, in no order that would suit a heap.
        released = leases[turn * 7_919 % len(leases)]
        execute(state, ReportFinished(at=at, lease_id=released, outcome=Outcome.EXITED))
        command = RunPass(at=at, limit=1)
        start = time.perf_counter_ns()
        events = execute(state, command)
        took.append(time.perf_counter_ns() - start)
        _replace(leases, turn * 7_919 % len(leases), events)
        if turn % 100 == 0:
            _top_up(state, at, _spec)
    gc.unfreeze()
    name = f"decision ({placement}), {nodes:,} nodes x {GPUS_PER_NODE} GPUs, 10,000 waiting in 50 shapes"
    name += "" if reservations else ", no reservations"
    return percentiles(name, took[WARM_UP:], aim_us=20) | {"aim_p99_us": 100}


def with_all_rules() -> Iterator[dict[str, Any]]:
    """See _rules. Every placement of a pass counts, not the first one alone."""
    for placement in Placement:
        small = ruled_decision(200, placement)
        yield small
        bare = ruled_decision(200, placement, reservations=0)
        yield bare
        name = f"decision with all rules on ({placement}) p50 with 8 reservations against none"
        yield figure(name, small["value"] / bare["value"], "ratio", None)
        large = ruled_decision(20_000, placement)
        yield large
        name = f"decision with all rules on ({placement}) p50 at 20,000 nodes against 200"
        yield figure(name, large["value"] / small["value"], "ratio", 2)


def ruled_decision(nodes: int, placement: Placement, reservations: int = RESERVATIONS) -> dict[str, Any]:
    state = _rules.full_cluster(nodes, placement, _register, reservations=reservations)
    gc.freeze()
    took: list[int] = []
    leases = sorted(state.leases)
    turn = 0
    while len(took) < WARM_UP + ROUNDS:
        turn += 1
        at = state.last_at + 1
        place = turn * 7_919 % len(leases)
        released, leases[place] = leases[place], leases[-1]
        leases.pop()
        execute(state, ReportFinished(at=at, lease_id=released, outcome=Outcome.EXITED))
        command = RunPass(at=at, limit=1)
        while True:
            start = time.perf_counter_ns()
            events = execute(state, command)
            spent = time.perf_counter_ns() - start
            granted = _granted(events)
            if not granted:
                break
            took.append(spent)
            leases += granted
        if turn % 100 == 0:
            _top_up(state, at, _rules.spec)
    gc.unfreeze()
    name = f"decision with all rules on ({placement}), {nodes:,} nodes, 10,000 waiting in 50 shapes"
    name += "" if reservations else ", no reservations"
    return percentiles(name, took[WARM_UP:], aim_us=20) | {"aim_p99_us": 100}


def many_tenants(nodes: int, reservations: int = RESERVATIONS) -> dict[str, Any]:
    """1,000 tenants with 10 demands each wait in a full cluster. One task ends: the pass after it, to its end."""
    state = full_cluster(nodes, waiting=0, reservations=reservations)
    for tenant in range(1_000):
        entries = tuple((2, _of_tenant(tenant, size)) for size in range(10))
        execute(state, SubmitTasks(at=5, entries=entries))
    execute(state, RunPass(at=6))
    gc.freeze()
    took: list[int] = []
    leases = sorted(state.leases)
    for turn in range(TENANT_ROUNDS):
        at = state.last_at + 1
        place = turn * 7_919 % len(leases)
        execute(state, ReportFinished(at=at, lease_id=leases[place], outcome=Outcome.EXITED))
        command = RunPass(at=at)
        start = time.perf_counter_ns()
        events = execute(state, command)
        took.append(time.perf_counter_ns() - start)
        _replace(leases, place, events)
    gc.unfreeze()
    name = "pass after an end, 1,000 tenants x 10 demands" + ("" if reservations else ", no reservations")
    return percentiles(name, took[TENANT_ROUNDS // 10 :])


def mixed_pass(nodes: int, reservations: int = RESERVATIONS) -> dict[str, Any]:
    """The honest whole: a release and the pass after it to its end, all other shapes tried or known not to fit."""
    state = full_cluster(nodes, reservations=reservations)
    gc.freeze()
    took: list[int] = []
    leases = sorted(state.leases)
    for turn in range(WARM_UP + ROUNDS):
        at = state.last_at + 1
        released = leases[turn * 7_919 % len(leases)]
        start = time.perf_counter_ns()
        execute(state, ReportFinished(at=at, lease_id=released, outcome=Outcome.EXITED))
        events = execute(state, RunPass(at=at))
        took.append(time.perf_counter_ns() - start)
        _replace(leases, turn * 7_919 % len(leases), events)
        if turn % 100 == 0:
            _top_up(state, at, _spec)
    gc.unfreeze()
    return percentiles(f"report of an end and a whole pass, {nodes:,} nodes", took[WARM_UP:])


def _replace(leases: list[LeaseId], place: int, events: tuple[Event, ...]) -> None:
    """What was placed instead of what ended. Nothing, where the GPU is kept for a reservation."""
    leases[place : place + 1] = _granted(events)


def _granted(events: tuple[Event, ...]) -> list[LeaseId]:
    placed = [event for event in events if isinstance(event, TaskPlaced | GangPlaced)]
    return [rank.lease_id for event in placed for rank in getattr(event, "ranks", (event,))]


def bulk_submit() -> dict[str, Any]:
    state = _cluster(200)
    command = SubmitTasks(at=10, entries=tuple((1, _spec(number % 50, number)) for number in range(10_000)))
    start = time.perf_counter()
    for _ in range(10):
        execute(state, command)
    return figure(
        "bulk submit in the core, distinct tasks", 100_000 / (time.perf_counter() - start), "tasks/s", None
    )


def idle_pass() -> Iterator[dict[str, Any]]:
    """100,000 tasks wait in a full cluster."""
    import tracemalloc

    state = full_cluster(200, waiting=0)
    commands = [
        SubmitTasks(at=20, entries=tuple((1, _spec(number % 50, first + number)) for number in range(10_000)))
        for first in range(0, 100_000, 10_000)
    ]
    blobs = sum(sys.getsizeof(spec.detail) for command in commands for _, spec in command.entries)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for command in commands:
        execute(state, command)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    yield figure("memory of a waiting task in the core, detail apart", grown / 100_000, "bytes", 500)
    yield figure("detail of a waiting task, as encoded", blobs / 100_000, "bytes", None)
    yield from nothing_to_place(state, "100,000 waiting")
    yield timed("fork at 100,000 waiting", state.fork)
    ruled = _rules.full_cluster(200, Placement.BALANCED, _register, waiting=100_000)
    yield from nothing_to_place(ruled, "100,000 waiting with all rules on")


def nothing_to_place(state: ClusterState, name: str) -> Iterator[dict[str, Any]]:
    """A pass that finds nothing, and why the last task in the queue waits."""
    at = state.last_at + 1
    while execute(state, RunPass(at=at)):
        pass
    yield timed(f"pass over {name}, nothing changed", lambda: execute(state, RunPass(at=at)), aim_ms=1)
    yield timed(
        f"full pass over {name}, nothing to place",
        lambda: execute(state, RunPass(at=at, full=True)),
        aim_ms=1,
    )
    last = queue(state, limit=state.waiting_count)[-1]
    yield timed(f"why with {name}", lambda: explain(state, last, at), aim_ms=50)
    yield timed(f"why with {name}, and what would start it", lambda: sooner(state, last, at), aim_ms=50)


def full_cluster(
    nodes: int,
    waiting: int = 10_000,
    placement: Placement = Placement.BALANCED,
    reservations: int = RESERVATIONS,
) -> ClusterState:
    state = _cluster(nodes, placement, reservations)
    gpus = nodes * GPUS_PER_NODE
    for start in range(0, gpus, 10_000):
        execute(state, SubmitTasks(at=3, entries=((min(10_000, gpus - start), _spec(0, 0)),)))
    while execute(state, RunPass(at=4, limit=10_000)):
        pass
    assert len(state.leases) == gpus
    for number in range(0, waiting, 1_000):
        entries = tuple((1, _spec(each % 50, number + each)) for each in range(1_000))
        execute(state, SubmitTasks(at=5, entries=entries))
    return state


def _cluster(
    nodes: int, placement: Placement = Placement.BALANCED, reservations: int = RESERVATIONS
) -> ClusterState:
    state = ClusterState()
    settings = Settings(max_waiting=10_000_000, placement=placement, reservations=reservations)
    execute(state, BeginEpoch(at=1, settings=settings))
    _register(state, nodes)
    return state


def _register(state: ClusterState, nodes: int) -> None:
    for number in range(nodes):
        name = NodeId(f"node-{number:05d}")
        gpus = tuple(
            Gpu(
                id=GpuId(f"GPU-{number:05d}-{index}"),
                node_id=name,
                index=index,
                model="A100",
                memory_mb=81_920,
            )
            for index in range(GPUS_PER_NODE)
        )
        execute(
            state,
            RegisterNode(at=2, node_id=name, boot_id="b", cpus_milli=128_000, ram_mb=1_048_576, gpus=gpus),
        )


def _top_up(state: ClusterState, at: int, spec: Callable[[int, int], TaskSpec]) -> None:
    """As many come as went, spread over the shapes."""
    missing = 10_000 - state.waiting_count
    if missing > 0:
        entries = tuple((1, spec((at + each) % 50, at + each)) for each in range(missing))
        execute(state, SubmitTasks(at=at, entries=entries))


def _spec(kind: int, number: int) -> TaskSpec:
    """50 shapes: 5 tenants, 5 priorities, 2 sizes of memory; of one GPU, but for a tenth that wants 2 to 8."""
    wide = kind % 10 == 9
    shape = Shape(
        tenant_id=TenantId(f"tenant-{kind % 5}"),
        pool=Pool.BATCH,
        priority=10 + 10 * (kind // 10),
        gpus=2 + kind // 10 if wide else 1,
        gpu_memory_mb=16_384 * (1 + kind % 2),
        cpus_milli=1_000 * (kind % 3),
    )
    detail = TaskDetail(name=f"train-{number}", command=("python", "train.py", f"--seed={number}"))
    return TaskSpec(shape=shape, detail=msgspec.json.encode(detail))


def _of_tenant(tenant: int, size: int) -> TaskSpec:
    """10 demands that differ in memory."""
    tenant_id = TenantId(f"tenant-{tenant}")
    shape = Shape(tenant_id=tenant_id, pool=Pool.BATCH, priority=50, gpus=1, gpu_memory_mb=4_096 * (1 + size))
    return TaskSpec(shape=shape, detail=b'{"command":"true"}')


def percentiles(name: str, took_ns: list[int], aim_us: float | None = None) -> dict[str, Any]:
    took_ns.sort()
    p50, p99 = median(took_ns) / 1_000, took_ns[len(took_ns) * 99 // 100] / 1_000
    return {
        "figure": f"{name}, p50",
        "value": round(p50, 2),
        "unit": "us",
        "aim": aim_us,
        "p99_us": round(p99, 2),
    }


def figure(name: str, value: float, unit: str, aim: float | None) -> dict[str, Any]:
    return {"figure": name, "value": round(value, 3), "unit": unit, "aim": aim}


def timed(name: str, work: Callable[[], object], aim_ms: float | None = None) -> dict[str, Any]:
    took = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        took.append((time.perf_counter() - start) * 1_000)
    return figure(name, median(took), "ms", aim_ms)


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line), flush=True)
