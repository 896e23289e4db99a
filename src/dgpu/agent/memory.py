"""Which lease holds how much of a card's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from dgpu.agent.probe.probe import Sample
from dgpu.agent.tree import markers
from dgpu.core.ids import GpuId, LeaseId


def with_leases(
    samples: Sequence[Sample], holders: Mapping[GpuId, tuple[LeaseId, ...]]
) -> tuple[Sample, ...]:
    """Reads /proc: for a thread."""
    leases: dict[int, str] = {}  # by pid
    return tuple(_with_leases(sample, holders.get(sample.gpu_id, ()), leases) for sample in samples)


def _with_leases(sample: Sample, holders: tuple[LeaseId, ...], known: dict[int, str]) -> Sample:
    if not holders or sample.fault:
        return sample
    if not sample.own_mb:
        # The driver tells no processes apart. A card with one lease needs no telling.
        own_mb = sample.memory_used_mb - sample.memory_foreign_mb
        return (
            replace(sample, leases_mb=((holders[0], own_mb),)) if len(holders) == 1 and own_mb > 0 else sample
        )
    held: dict[LeaseId, int] = {}
    for pid, memory_mb in sample.own_mb:
        if pid not in known:
            known[pid] = markers(pid)[0]
        lease_id = LeaseId(int(known[pid])) if known[pid].isdigit() else None
        if lease_id in holders:
            held[lease_id] = held.get(lease_id, 0) + memory_mb
    return replace(sample, leases_mb=tuple(sorted(held.items())))
