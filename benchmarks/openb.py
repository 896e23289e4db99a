"""How full `placement: pack` gets a production cluster: openb (Alibaba 2023), protocol in the traces' README.md.

The scheduler's own core places each pod as it arrives; what does not fit is turned away. The traces are not part of the
project: DGPU_TRACES names their folder. Without them there is nothing to measure, and nothing is printed.
"""

from __future__ import annotations

import csv
import gc
import gzip
import os
import pathlib
import random
import statistics
import time
from collections.abc import Iterator

from dgpu.core.commands import BeginEpoch, CancelTasks, RegisterNode, RunPass, SubmitTasks
from dgpu.core.events import TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.model.ids import GpuId, NodeId, TaskId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.quota import Quota
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import WHOLE_MILLI, Pool, Shape, TaskSpec
from dgpu.core.state import ClusterState

WORKLOADS = ("openb_default", "openb_multigpu20", "openb_cpu050", "openb_gpushare40", "openb_gpuspec10")
SEEDS = tuple(int(seed) for seed in os.environ.get("DGPU_OPENB_SEEDS", "42,43,44,45").split(","))
MARKS_PCT = (80, 90, 95, 100, 110, 120, 130)


def run() -> Iterator[dict[str, object]]:
    folder = traces()
    if folder is None:
        return
    nodes = rows_of(folder / "openb_nodes_gpu.csv.gz")
    for workload in WORKLOADS:
        published = reference(folder, workload)
        pods = [shape_of(row) for row in rows_of(folder / f"{workload}.csv.gz")]
        reached: list[list[float]] = []
        spent_ns: list[int] = []
        for seed in SEEDS:
            marks, ns = pack(nodes, arrivals(pods, nodes, seed))
            reached.append(marks)
            spent_ns += ns
        for at, values in zip(MARKS_PCT, zip(*reached, strict=True), strict=True):
            mean = statistics.fmean(values)
            yield {
                "figure": f"{workload}: GPUs allocated at {at} % demand",
                "value": round(mean, 2),
                "unit": "%",
                "fgd": published["FGD", at],
                "best_fit": published["BestFit", at],
                "random": published["Random", at],
                "over_fgd": round(mean - published["FGD", at], 2),
                "by_seed": [round(value, 2) for value in values],
            }
        spent_ns.sort()
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            yield {
                "figure": f"{workload}: pass with its grant, {name}",
                "value": round(spent_ns[int(part * len(spent_ns))] / 1_000, 1),
                "unit": "us",
            }


def traces() -> pathlib.Path | None:
    named = os.environ.get("DGPU_TRACES")
    folder = (
        pathlib.Path(named) if named else pathlib.Path(__file__).resolve().parents[2] / "shared" / "traces"
    )
    return folder if (folder / "openb_nodes_gpu.csv.gz").exists() else None


def reference(folder: pathlib.Path, workload: str) -> dict[tuple[str, int], float]:
    with (folder / "reference_openb_fgd.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == workload]
    return {(row["policy"], int(row["arrived_pct"])): float(row["alloc_pct_mean"]) for row in rows}


def rows_of(path: pathlib.Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def shape_of(row: dict[str, str]) -> Shape:
    gpus = int(row["num_gpu"])
    return Shape(
        tenant_id=TenantId("openb"),
        pool=Pool.BATCH,
        priority=50,
        gpus=gpus,
        share_milli=int(row["gpu_milli"]) if gpus == 1 else WHOLE_MILLI,
        gpu_models=tuple(sorted(set(row["gpu_model"].split("|")))) if row["gpu_model"] else (),
        cpus_milli=int(row["cpu_milli"]),
        ram_mb=int(row["memory_mib"]),
    )


def asked_milli(shape: Shape) -> int:
    return shape.gpus * shape.share_milli


def arrivals(pods: list[Shape], nodes: list[dict[str, str]], seed: int) -> list[Shape]:
    """All pods and others drawn from them until they ask for 130 % of the GPUs, in random order."""
    draw = random.Random(seed)
    most = sum(int(row["gpu_count"]) for row in nodes) * WHOLE_MILLI * MARKS_PCT[-1] // 100
    drawn = list(pods)
    asked = sum(map(asked_milli, drawn))
    while asked < most:
        pod = draw.choice(pods)
        drawn.append(pod)
        asked += asked_milli(pod)
    draw.shuffle(drawn)
    return drawn


def cluster(nodes: list[dict[str, str]]) -> ClusterState:
    state = ClusterState()
    rules = Settings(
        placement=Placement.PACK,
        memory_margin_mb=0,
        max_leases=1_000_000,
        quota=Quota(online_ppm=0),
        max_timeout_ms=0,
    )
    execute(state, BeginEpoch(at=1, settings=rules))
    for row in nodes:
        name = NodeId(row["node_id"])
        gpus = tuple(
            Gpu(id=GpuId(f"{name}/{index}"), node_id=name, index=index, model=row["gpu_model"], memory_mb=0)
            for index in range(int(row["gpu_count"]))
        )
        execute(
            state,
            RegisterNode(
                at=2,
                node_id=name,
                boot_id="b",
                cpus_milli=int(row["cpu_milli"]),
                ram_mb=int(row["memory_mib"]),
                gpus=gpus,
            ),
        )
    return state


def pack(nodes: list[dict[str, str]], shapes: list[Shape]) -> tuple[list[float], list[int]]:
    """Share of GPUs allocated at each mark, and the CPU time of each pass. Only what has arrived is known."""
    state = cluster(nodes)
    capacity = len(state.gpus) * WHOLE_MILLI
    arrived = allocated = 0
    reached: list[float] = []
    spent_ns: list[int] = []
    gc.collect()
    gc.disable()
    for number, shape in enumerate(shapes, start=1):
        arrived += asked_milli(shape)
        spec = TaskSpec(shape=shape, detail=b"{}", timeout_ms=0)
        execute(state, SubmitTasks(at=10 + number, entries=((1, spec),)))
        started = time.thread_time_ns()
        events = execute(state, RunPass(at=10 + number))
        spent_ns.append(time.thread_time_ns() - started)
        if any(isinstance(event, TaskPlaced) for event in events):
            allocated += asked_milli(shape)
        elif state.waiting_count:
            execute(state, CancelTasks(at=10 + number, task_ids=(TaskId(state.next_task_id - 1),)))
        while len(reached) < len(MARKS_PCT) - 1 and arrived * 100 >= MARKS_PCT[len(reached)] * capacity:
            reached.append(100 * allocated / capacity)
    gc.enable()
    return [*reached, 100 * allocated / capacity], spent_ns


if __name__ == "__main__":
    import json

    for figure in run():
        print(json.dumps(figure), flush=True)
