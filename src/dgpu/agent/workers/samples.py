"""What workers add to the samples of GPUs: loaded models, faults, and the memory of simulated GPUs. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from dgpu.agent.probe.probe import Sample
from dgpu.agent.workers.records import NodeWorker
from dgpu.core.model.health import Cause
from dgpu.core.model.ids import GpuId, LeaseId


def with_models(
    samples: Sequence[Sample], workers: Iterable[NodeWorker], faults: Mapping[GpuId, str]
) -> tuple[Sample, ...]:
    """`faults`: of GPUs whose workers stopped to answer."""
    models: dict[GpuId, list[str]] = {}
    for worker in workers:
        loaded = [model.name for model in worker.models.values() if not model.loading]
        for gpu_id in worker.gpu_ids if loaded else ():
            models.setdefault(gpu_id, []).extend(loaded)
    if not models and not faults:
        return tuple(samples)
    return tuple(
        _with(sample, models.get(sample.gpu_id), faults.get(sample.gpu_id, "")) for sample in samples
    )


def _with(sample: Sample, models: list[str] | None, fault: str) -> Sample:
    if models:
        sample = replace(sample, loaded_models=tuple(dict.fromkeys((*sample.loaded_models, *models))))
    if fault and not sample.fault:
        sample = replace(sample, fault=fault, fault_cause=Cause.FAULT.value)
    return sample


def busy_gpus(
    holders: Mapping[GpuId, tuple[LeaseId, ...]], workers: Mapping[LeaseId, NodeWorker]
) -> frozenset[GpuId]:
    """GPUs on which something runs. A worker without a call keeps its GPUs, but does not use them."""
    return frozenset(
        gpu_id
        for gpu_id, leases in holders.items()
        if any(lease_id not in workers or workers[lease_id].has_work() for lease_id in leases)
    )


def with_simulated_memory(
    samples: Sequence[Sample],
    holders: Mapping[GpuId, tuple[LeaseId, ...]],
    workers: Mapping[LeaseId, NodeWorker],
) -> tuple[Sample, ...]:
    """On simulated GPUs that only workers hold, the memory in use is that of their models."""
    return tuple(
        _with_models_in_memory(sample, holders.get(sample.gpu_id, ()), workers) for sample in samples
    )


def _with_models_in_memory(
    sample: Sample, leases: tuple[LeaseId, ...], workers: Mapping[LeaseId, NodeWorker]
) -> Sample:
    if not leases or any(lease_id not in workers for lease_id in leases):
        return sample
    used = tuple((lease_id, _memory_mb(workers[lease_id])) for lease_id in leases)
    total_mb = sum(memory_mb for _, memory_mb in used) + sample.memory_foreign_mb
    return replace(sample, memory_used_mb=total_mb, leases_mb=used)


def _memory_mb(worker: NodeWorker) -> int:
    """On each of its GPUs."""
    return sum(model.memory_mb for model in worker.models.values()) // max(1, len(worker.gpu_ids))
