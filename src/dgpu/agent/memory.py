"""Memory of a GPU by lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dgpu.agent.probe.probe import Probe, ProbeError, Sample
from dgpu.core.model.ids import GpuId, LeaseId


def with_leases(
    samples: Sequence[Sample],
    holders: Mapping[GpuId, tuple[LeaseId, ...]],
    owners: Mapping[int, LeaseId | None],
) -> tuple[Sample, ...]:
    """`owners`: the lease of each task process, see ProcessOwners."""
    return tuple(_with_leases(sample, holders.get(sample.gpu_id, ()), owners) for sample in samples)


def _with_leases(
    sample: Sample, holders: tuple[LeaseId, ...], owners: Mapping[int, LeaseId | None]
) -> Sample:
    if not holders or sample.fault:
        return sample
    if not sample.own_mb:
        # The driver does not list processes. With one lease on the GPU, that is not needed.
        own_mb = sample.memory_used_mb - sample.memory_foreign_mb
        return (
            replace(sample, leases_mb=((holders[0], own_mb),)) if len(holders) == 1 and own_mb > 0 else sample
        )
    held: dict[LeaseId, int] = {}
    for pid, memory_mb in sample.own_mb:
        lease_id = owners.get(pid)
        if lease_id is not None and lease_id in holders:
            held[lease_id] = held.get(lease_id, 0) + memory_mb
    return replace(sample, leases_mb=tuple(sorted(held.items())))


def clinging(probe: Probe, gpu_ids: tuple[GpuId, ...]) -> tuple[GpuId, ...]:
    """GPUs whose memory still belongs to ended processes: the driver has not freed it yet."""
    found = []
    for gpu_id in gpu_ids:
        try:
            holders = probe.holders(gpu_id)
        except ProbeError:
            continue  # unknown; the next sample shows a fault
        if any(not Path(f"/proc/{pid}").exists() for pid in holders):
            found.append(gpu_id)
    return tuple(found)
