"""What cards measured, kept: a day on disk, what a batch of 1,600 costs, and charts out of a week.

Each card has chunks of its own, so a day of 400 cards tells what a day of 1,600 takes, in a quarter of the time. The
samples are made up, with plausible noise (see `trace`), and go through the real writer at the speed it takes them.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dgpu.service.telemetry.file import TELEMETRY_NAME
from dgpu.service.telemetry.reader import Span, Telemetry
from dgpu.service.telemetry.tiers import DAY_MS, RAW, Batch
from dgpu.service.telemetry.writer import TelemetryWriter

NODES = 50
ALL_GPUS = 1_600
GPUS_A_NODE = 8
TRACES = 48
POINTS = DAY_MS // RAW.step_ms
START = 1_767_225_600_000  # midnight, UTC
WEEK_MS = 7 * DAY_MS
Trace = list[tuple[int, int, int, int, int, int]]


def run() -> Iterator[dict[str, Any]]:
    """Beside the working directory, not in the temp dir, which may be memory."""
    random.seed(7)
    traces = [trace() for _ in range(TRACES)]
    directory = Path(tempfile.mkdtemp(prefix=".bench-telemetry-", dir=Path.cwd()))
    try:
        yield from a_day(directory / TELEMETRY_NAME, traces)
        yield from a_batch(directory / f"batch-{TELEMETRY_NAME}", traces)
        yield from a_week(directory / f"week-{TELEMETRY_NAME}", traces)
    finally:
        shutil.rmtree(directory)


def a_day(path: Path, traces: list[Trace]) -> Iterator[dict[str, Any]]:
    gpus = NODES * GPUS_A_NODE
    writer = TelemetryWriter(path)
    pieces_ms: list[float] = []
    # One batch beyond the day, so that the last quarter of an hour and the roll-ups are closed, too.
    for point in range(POINTS + 1):
        batch = make_batch(traces, gpus, START + point * RAW.step_ms, point)
        writer.take(batch)
        while writer.busy:
            began = time.thread_time()
            writer.step()
            pieces_ms.append((time.thread_time() - began) * 1e3)
    writer.settle()
    writer.close()
    size = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
    yield figure("a GPU's day on disk, all tiers", size / gpus / 1e3, "kB", gpus=gpus)
    yield figure("the same for 1,600 GPUs", size / gpus * ALL_GPUS / 1e6, "MB")
    yield figure("CPU of one piece of closing or rolling up, p99", quantile(pieces_ms, 0.99), "ms")
    tidy_s = sum(pieces_ms) / 1e3 * ALL_GPUS / gpus
    yield figure("CPU of closing and rolling up a day of 1,600 GPUs", tidy_s, "s")
    span = Span(since=START, until=START + DAY_MS, step_ms=120_000)
    yield from charts(path, span, "a day", gpus=8)


def a_batch(path: Path, traces: list[Trace]) -> Iterator[dict[str, Any]]:
    writer = TelemetryWriter(path)
    took_ms = []
    for point in range(60):
        batch = make_batch(traces, ALL_GPUS, START + point * RAW.step_ms, point)
        began = time.thread_time()
        writer.take(batch)
        took_ms.append((time.thread_time() - began) * 1e3)
    writer.close()
    yield figure("CPU of one batch of 1,600 GPUs, p50", quantile(took_ms, 0.5), "ms")


def a_week(path: Path, traces: list[Trace]) -> Iterator[dict[str, Any]]:
    """Of two nodes only: a chart reads what it shows, whatever else is in the file."""
    writer = TelemetryWriter(path, sync_every_ms=WEEK_MS)
    # It ends in the middle of a day: what a coarser tier does not have yet comes from all the finer ones.
    points = (WEEK_MS + DAY_MS * 17 // 20) // RAW.step_ms
    for point in range(points):
        writer.take(make_batch(traces, 16, START + point * RAW.step_ms, point))
        while writer.busy:
            writer.step()
    writer.close()
    until = (START + points * RAW.step_ms) // 600_000 * 600_000
    yield from charts(path, Span(since=until - WEEK_MS, until=until, step_ms=600_000), "a week", gpus=8)


def charts(path: Path, span: Span, words: str, *, gpus: int) -> Iterator[dict[str, Any]]:
    reader = Telemetry(path)
    series = [each.number for each in reader.gpus([f"GPU-{number:05d}" for number in range(gpus)])]
    for what, ask in (
        ("one GPU", lambda: reader.read_gpus(series[:1], span)),
        ("a node of 8 GPUs", lambda: reader.read_gpus(series, span)),
        ("the cluster", lambda: reader.read_cluster(span)),
    ):
        took_ms, cpu_ms = [], []
        for _ in range(20):
            began, worked = time.perf_counter(), time.thread_time()
            ask()
            took_ms.append((time.perf_counter() - began) * 1e3)
            cpu_ms.append((time.thread_time() - worked) * 1e3)
        yield figure(
            f"chart of {words}, {what}, p95",
            quantile(took_ms, 0.95),
            "ms",
            points=span.count,
            cpu=round(quantile(cpu_ms, 0.5), 1),
        )
    reader.close()


def make_batch(traces: list[Trace], gpus: int, at: int, point: int) -> Batch:
    rows = [traces[gpu % TRACES][(point + gpu * 137) % POINTS] for gpu in range(gpus)]
    columns: list[list[int | None]] = [list(column) for column in zip(*rows, strict=True)]
    sums = [sum(value or 0 for value in column) for column in columns]
    cluster: list[int | None] = [sums[0] // gpus, sums[1], sums[2], sums[3], max(columns[4]), sums[5]]  # type: ignore[type-var]
    return Batch(
        at=at,
        gpu_ids=[f"GPU-{gpu:05d}" for gpu in range(gpus)],
        node_ids=[f"node-{gpu // GPUS_A_NODE:03d}" for gpu in range(gpus)],
        columns=columns,
        cluster=[*cluster, gpus * 81_920, gpus, gpus * 3 // 4, point % 500, gpus],
    )


def trace() -> Trace:
    """A day of a card: tasks of minutes to hours, idle between. Load and power tremble with every sample, temperature
    follows slowly, memory is steady for two thirds of the tasks and breathes for the others.
    """
    points: Trace = []
    heat_c = 35.0
    while len(points) < POINTS:
        busy = random.random() < 0.75
        length = int(random.lognormvariate(5.0, 1.2)) + 6
        load = random.uniform(35, 98) if busy else 0.0
        memory_mb = random.randrange(4_000, 78_000) if busy else 3
        breathes = busy and random.random() < 0.33
        foreign_mb = 0 if random.random() < 0.9 else random.randrange(200, 4_000)
        for _ in range(length):
            now = min(100.0, max(0.0, random.gauss(load, 5.0))) if busy else 0.0
            watts = 70 + 5.5 * now + random.gauss(0, 12 if busy else 1)
            heat_c += (30 + watts / 14 - heat_c) * 0.15 + random.gauss(0, 0.25)
            used_mb = memory_mb + (random.randrange(-800, 800) if breathes else 0) + foreign_mb
            points.append(
                (
                    round(now) * 10,
                    max(used_mb, 0),
                    79_920 if busy else 0,
                    foreign_mb,
                    round(heat_c),
                    round(watts),
                )
            )
    return points[:POINTS]


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def figure(name: str, value: float, unit: str, **more: Any) -> dict[str, Any]:
    return {"figure": name, "value": round(value, 3), "unit": unit, **more}
