"""Foreign memory and faults of GPUs as agents report them: sent to the core when a step or the fault changes."""

from __future__ import annotations

from dgpu.core.commands import ObserveGpu
from dgpu.core.model.ids import GpuId
from dgpu.core.model.node import Gpu
from dgpu.service.machine.agent_words import GpuSample, foreign_step_mb

_OBSERVE_EVERY_MS = 5_000  # per GPU and step of foreign memory
_FAULT_EVERY_MS = 1_000  # per GPU, for a new description of its fault
_STEP_SLACK_MB = 64  # memory near the edge of a step must not change the step with every heartbeat


class Observer:
    def __init__(self) -> None:
        self._observed_at: dict[GpuId, int] = {}

    def observe(self, gpu: Gpu, sample: GpuSample, now: int) -> list[ObserveGpu]:
        foreign_mb = sample.memory_foreign_mb or 0
        step_mb = foreign_step_mb(foreign_mb)
        if step_mb < gpu.foreign_mb:
            step_mb = min(gpu.foreign_mb, foreign_step_mb(foreign_mb + _STEP_SLACK_MB))
        is_known = step_mb == gpu.foreign_mb and sample.fault == gpu.fault
        if is_known or now - self._observed_at.get(gpu.id, 0) < _observed_every_ms(gpu, sample):
            return []
        self._observed_at[gpu.id] = now
        return [
            ObserveGpu(gpu_id=gpu.id, foreign_mb=step_mb, fault=sample.fault, fault_cause=sample.fault_cause)
        ]

    def forget(self, gpu_id: GpuId) -> None:
        self._observed_at.pop(gpu_id, None)


def _observed_every_ms(gpu: Gpu, sample: GpuSample) -> int:
    """A fault of a GPU that counts as healthy is sent at once. A sample from just before the fault may arrive after the
    list that reports the fault. Until that is corrected, the GPU looks like one that recovers.
    """
    if sample.fault == gpu.fault:
        return _OBSERVE_EVERY_MS
    return _FAULT_EVERY_MS if gpu.fault else 0
