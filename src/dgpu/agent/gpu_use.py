"""How busy the GPUs of a run were: a mean and a percentile in a bounded table. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dgpu.agent.probe.probe import Sample
from dgpu.core.model.ids import GpuId, LeaseId


class GpuUse(NamedTuple):
    samples: int = 0
    percent: int = 0
    percent_p95: int = 0


class UseTable:
    """One number for each percent. Samples before a restart of the agent are not counted."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = [0] * 101

    def add(self, percent: int) -> None:
        self._counts[max(0, min(100, percent))] += 1

    def use(self) -> GpuUse:
        samples = sum(self._counts)
        if not samples:
            return GpuUse()
        total = sum(percent * count for percent, count in enumerate(self._counts))
        seen, p95 = 0, 100
        for percent, count in enumerate(self._counts):
            seen += count
            if seen * 100 >= samples * 95:
                p95 = percent
                break
        return GpuUse(samples, round(total / samples), p95)


def use_by_lease(
    samples: Sequence[Sample], holders: Mapping[GpuId, tuple[LeaseId, ...]]
) -> tuple[tuple[LeaseId, int], ...]:
    """The mean over the GPUs of each lease. A shared GPU does not tell which of its tasks keeps it busy."""
    found: dict[LeaseId, list[int]] = {}
    for sample in samples:
        on_it = holders.get(sample.gpu_id, ())
        if len(on_it) == 1 and not sample.fault and "utilization" not in sample.untold:
            found.setdefault(on_it[0], []).append(sample.utilization_percent)
    return tuple((lease_id, round(sum(all_) / len(all_))) for lease_id, all_ in found.items())
