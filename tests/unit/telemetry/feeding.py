"""Batches for the telemetry file, as the scheduler would send them."""

from __future__ import annotations

from dgpu.service.telemetry.tiers import CLUSTER_COLUMNS, RAW, Batch
from dgpu.service.telemetry.writer import TelemetryWriter

MIDNIGHT = 1_767_225_600_000
HOUR_MS = 3_600_000


def batch(at: int, *loads: int | None, node: str = "n1") -> Batch:
    """A card for each load; the other numbers follow from it."""
    return Batch(
        at=at,
        gpu_ids=[f"GPU-{number}" for number in range(len(loads))],
        node_ids=[node] * len(loads),
        columns=[
            [None if load is None else load * 10 for load in loads],
            [None if load is None else load * 100 for load in loads],
            [30_000 for _ in loads],
            [0 for _ in loads],
            [None if load is None else 30 + load // 2 for load in loads],
            [None for _ in loads],  # a card that does not measure its power
        ],
        cluster=[number * 10 for number in range(len(CLUSTER_COLUMNS))],
    )


def feed(
    writer: TelemetryWriter, since: int, until: int, load_at=lambda at: 50, every_ms: int = RAW.step_ms
) -> None:
    for at in range(since, until, every_ms):
        load = load_at(at)
        if load is not ...:
            writer.take(batch(at, load))
            tidy(writer)


def tidy(writer: TelemetryWriter) -> None:
    while writer.busy:
        writer.step()
