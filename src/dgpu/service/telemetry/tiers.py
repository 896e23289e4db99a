"""The stored values of GPUs and cluster, their resolution, and their retention."""

from __future__ import annotations

import msgspec

SECOND_MS = 1_000
DAY_MS = 86_400_000

# Values of a GPU, in stored order. Utilisation is in tenths of a percent.
GPU_COLUMNS = (
    "utilization_percent",
    "memory_used_mb",
    "memory_reserved_mb",
    "memory_foreign_mb",
    "temperature_c",
    "power_w",
)
# Values of the whole cluster: mean utilisation, the highest temperature, and sums.
CLUSTER_COLUMNS = (
    *GPU_COLUMNS,
    "memory_total_mb",
    "gpus",
    "gpus_busy",
    "tasks_waiting",
    "tasks_running",
)
TENTHS = frozenset({"utilization_percent"})
CLUSTER = 0  # its series; GPUs count from 1


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    step_ms: int
    window_ms: int  # one chunk of a series
    keep_ms: int

    @property
    def points(self) -> int:
        return self.window_ms // self.step_ms

    def window_of(self, at: int) -> int:
        return at - at % self.window_ms


# From fine to coarse. A window of each tier consists of whole windows of the tier before.
RAW = Tier(table="raw", step_ms=10 * SECOND_MS, window_ms=900 * SECOND_MS, keep_ms=DAY_MS)
MINUTES = Tier(table="minutes", step_ms=60 * SECOND_MS, window_ms=6 * 3_600 * SECOND_MS, keep_ms=7 * DAY_MS)
TENS = Tier(table="tens", step_ms=600 * SECOND_MS, window_ms=DAY_MS, keep_ms=91 * DAY_MS)
TIERS = (RAW, MINUTES, TENS)
MAX_AGE_MS = TENS.keep_ms
MAX_BYTES = 2 << 30


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs at one moment, in columns. A value that was not measured is None."""

    at: int  # a multiple of the finest step
    gpu_ids: list[str]
    node_ids: list[str]
    columns: list[list[int | None]]  # like GPU_COLUMNS
    cluster: list[int | None]  # like CLUSTER_COLUMNS
