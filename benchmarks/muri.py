"""What reservations cost and bring where no task has a time limit: muri (Microsoft Philly jobs) in virtual time.

Jobs arrive and end as the traces say; nothing is known of how long they run. The traces are not part of the project:
DGPU_TRACES names their folder. Without them there is nothing to measure, and nothing is printed.
"""

from __future__ import annotations

import csv
import gzip
import os
import pathlib
import statistics
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from dgpu.core.commands import BeginEpoch, RegisterNode, RunPass, SubmitTasks
from dgpu.core.events import GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.ids import NO_TASK, GpuId, NodeId, TaskId, TenantId
from dgpu.core.model.node import Gpu
from dgpu.core.model.quota import Quota, QuotaMode
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Pool, Shape, TaskDetail, TaskSpec
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState

TRACES = ("muri_trace1", "muri_trace3")
RESERVATIONS = (0, 1, 8)
NODES = GPUS_EACH = 8
START_MS = 1_000
LARGE = 32  # GPUs of the largest jobs


class Job(NamedTuple):
    submit_ms: int
    duration_ms: int
    gpus: int


class Outcome(NamedTuple):
    """Of one replay, by job: how long it waited, and how long it took from submit to end."""

    waits_s: list[float]
    completions_s: list[float]
    busy_pct: float  # of the GPUs until the last job has arrived


def run() -> Iterator[dict[str, object]]:
    folder = traces()
    if folder is None:
        return
    for trace in TRACES:
        jobs = jobs_of(folder / f"{trace}.csv.gz")
        none = 0.0
        for number in RESERVATIONS:
            began = time.perf_counter()
            outcome = replay(jobs, number)
            mean = statistics.fmean(outcome.completions_s)
            none = none or mean
            large = [wait for job, wait in zip(jobs, outcome.waits_s, strict=True) if job.gpus == LARGE]
            yield {
                "figure": f"{trace}: average completion, {number} reservations",
                "value": round(mean / 1_000, 1),
                "unit": "ks",
                "of_none": round(mean / none, 3),
                "longest_wait_of_32_gpus_h": round(max(large) / 3_600, 1),
                "mean_wait_of_32_gpus_h": round(statistics.fmean(large) / 3_600, 1),
                "longest_wait_h": round(max(outcome.waits_s) / 3_600, 1),
                "busy_pct": round(outcome.busy_pct, 1),
                "took_s": round(time.perf_counter() - began, 1),
            }


def traces() -> pathlib.Path | None:
    named = os.environ.get("DGPU_TRACES")
    folder = pathlib.Path(named) if named else None
    return folder if folder is not None and (folder / f"{TRACES[0]}.csv.gz").exists() else None


def jobs_of(path: pathlib.Path) -> list[Job]:
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Job(
            submit_ms=round(float(row["submit_s"]) * 1_000),
            duration_ms=round(float(row["duration_s"]) * 1_000),
            gpus=int(float(row["gpu_count"])),
        )
        for row in rows
    ]


def spec_of(job: Job, number: int) -> TaskSpec:
    """Each has a command of its own, numbers aside: nothing is learned from the others."""
    nodes = max(1, job.gpus // GPUS_EACH)
    command = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    return TaskSpec(
        shape=Shape(
            tenant_id=TenantId("muri"), pool=Pool.BATCH, priority=50, gpus=job.gpus // nodes, nodes=nodes
        ),
        detail=msgspec.json.encode(TaskDetail(command=command)),
    )


def cluster(reservations: int) -> ClusterState:
    state = ClusterState()
    rules = Settings(
        default_timeout_ms=0,
        max_timeout_ms=0,
        quota=Quota(mode=QuotaMode.BORROW),
        placement=Placement(os.environ.get("DGPU_MURI_PLACEMENT", Placement.BALANCED)),
        reservations=reservations,
    )
    execute(state, BeginEpoch(at=1, settings=rules))
    for number in range(NODES):
        name = NodeId(f"n{number}")
        gpus = tuple(
            Gpu(id=GpuId(f"{name}/{index}"), node_id=name, index=index, model="V100", memory_mb=16_384)
            for index in range(GPUS_EACH)
        )
        execute(
            state,
            RegisterNode(at=2, node_id=name, boot_id="b", cpus_milli=64_000, ram_mb=262_144, gpus=gpus),
        )
    return state


def replay(jobs: list[Job], reservations: int) -> Outcome:
    """A pass after each arrival and each end, over everything that waits."""
    state = cluster(reservations)
    arrives_at = [START_MS + job.submit_ms for job in jobs]
    until, busy_ms = arrives_at[-1], 0
    waits_s, completions_s = [0.0] * len(jobs), [0.0] * len(jobs)
    number_of: dict[TaskId, int] = {}
    due: list[tuple[int, int, TaskId]] = [(at, number, NO_TASK) for number, at in enumerate(arrives_at)]
    while due:
        at = due[0][0]
        while due and due[0][0] == at:
            _, number, task_id = heappop(due)
            if task_id:
                del number_of[task_id]
                end_task(state, state.tasks[task_id], at)
                completions_s[number] = (at - arrives_at[number]) / 1_000
            else:
                number_of[TaskId(state.next_task_id)] = number
                submit(state, jobs[number], number, at)
        for event in execute(state, RunPass(at=at, full=True)):
            if isinstance(event, TaskPlaced | GangPlaced):
                number = number_of[event.task_id]
                waits_s[number] = (at - arrives_at[number]) / 1_000
                over_at = at + jobs[number].duration_ms
                heappush(due, (over_at, number, event.task_id))
                busy_ms += jobs[number].gpus * max(0, min(over_at, until) - at)
    if number_of:
        raise RuntimeError(f"{len(number_of)} jobs never started")
    return Outcome(waits_s, completions_s, 100 * busy_ms / (NODES * GPUS_EACH * (until - START_MS)))


def submit(state: ClusterState, job: Job, number: int, at: int) -> None:
    decided = execute(state, SubmitTasks(at=at, entries=((1, spec_of(job, number)),)))
    if isinstance(decided, Rejection):
        raise SystemExit(f"job {number} was refused: {decided}")


if __name__ == "__main__":
    import json

    for figure in run():
        print(json.dumps(figure), flush=True)
